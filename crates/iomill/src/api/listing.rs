//! [`Listing`]: an iterator over the files of an array, by prefix. Non-goals: the full metadata of a file (`stat`).

use std::sync::Arc;
use std::time::SystemTime;
use std::vec;

use super::array::Array;
use super::info::time;
use crate::catalog::{Catalog, Found, ListPosition};
use crate::error::Result;
use crate::layout::Layout;

/// The number of names that are read under one hold of the catalog's lock.
const BATCH: usize = 256;

/// The files with names that begin with a prefix, in the order of the names' bytes in UTF-8: an iterator of
/// [`Array::list`](super::Array::list).
///
/// ```no_run
/// use iomill::Listed;
///
/// # fn main() -> iomill::Result<()> {
/// # let array = iomill::Array::open("/mnt/ssd0")?;
/// for entry in array.list("graph/").delimiter('/') {
///     match entry? {
///         Listed::File(file) => println!("{} {}", file.len_bytes, file.name),
///         Listed::Prefix(prefix) => println!("{prefix}"),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
///
/// A listing does no I/O. It holds at most 256 entries, and takes the lock of the catalog for 256 names at a time. A
/// common prefix costs one search for any number of names. A file that is made, renamed or deleted meanwhile may appear
/// or not. No entry appears twice. The first listing of an array sorts its names, which takes up to a second for a
/// million.
///
/// An item is an error if the array is closed, if an earlier change of the catalog has failed on all its drives
/// ([`Error::ReadOnly`](crate::Error::ReadOnly)), and in a forked child if the array is open for writing. An error ends
/// the iteration. [`Listing::names`] collects all names.
#[derive(Clone)]
#[must_use = "a listing does nothing until it is read"]
pub struct Listing {
    source: Source,
    prefix: String,
    delimiter: Option<char>,
    /// `None` at the end.
    position: Option<ListPosition>,
    batch: vec::IntoIter<Found>,
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listing")
            .field("prefix", &self.prefix)
            .field("delimiter", &self.delimiter)
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
enum Source {
    Array(Array),
    Peek(Arc<Catalog>),
}

/// An entry of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listed {
    /// A file.
    File(ListedFile),
    /// A common prefix of names: the listing's prefix and the characters up to the next delimiter, with the delimiter.
    Prefix(String),
}

/// A file of a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedFile {
    /// Its name.
    pub name: String,
    /// Length in bytes.
    pub len_bytes: u64,
    /// When it was made.
    pub created: SystemTime,
    /// When a change of it was last synced.
    pub modified: SystemTime,
    /// The version of the name, as in [`FileStat`](super::FileStat).
    pub version: u64,
    /// Its layout.
    pub layout: Layout,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Its drives, by index in the array, in the layout's order.
    pub drives: Arc<[u16]>,
}

impl Listed {
    /// The name of the file, or the common prefix.
    pub fn into_name(self) -> String {
        match self {
            Listed::File(file) => file.name,
            Listed::Prefix(prefix) => prefix,
        }
    }
}

impl Array {
    /// The files with names that begin with `prefix`, in the order of their names. [`Listing`] describes the cost and
    /// the errors, and has options: a delimiter, and the first name.
    pub fn list(&self, prefix: &str) -> Listing {
        Listing::new(Source::Array(self.clone()), prefix)
    }
}

impl Listing {
    pub(super) fn of_catalog(catalog: &Arc<Catalog>, prefix: &str) -> Listing {
        Listing::new(Source::Peek(Arc::clone(catalog)), prefix)
    }

    fn new(source: Source, prefix: &str) -> Listing {
        let position = Some(ListPosition::From(prefix.to_owned()));
        Listing { source, prefix: prefix.to_owned(), delimiter: None, position, batch: Vec::new().into_iter() }
    }

    /// Groups names that have this character after the prefix: each common prefix is one entry, a [`Listed::Prefix`].
    pub fn delimiter(mut self, delimiter: char) -> Listing {
        self.delimiter = Some(delimiter);
        self
    }

    /// Begins with the first entry that is not before `name`. The last of several calls of `from` and `after` counts.
    pub fn from(self, name: &str) -> Listing {
        self.at(name, ListPosition::From)
    }

    /// Begins with the first entry after `name`, which may be a common prefix. So a listing continues where another one
    /// has stopped.
    pub fn after(self, name: &str) -> Listing {
        self.at(name, ListPosition::After)
    }

    /// Collects all names and common prefixes, in their order, or returns the first error.
    pub fn names(self) -> Result<Vec<String>> {
        self.map(|entry| entry.map(Listed::into_name)).collect()
    }

    fn at(mut self, name: &str, position: fn(String) -> ListPosition) -> Listing {
        let is_within = name >= self.prefix.as_str();
        let position = if is_within { position(name.to_owned()) } else { ListPosition::From(self.prefix.clone()) };
        (self.position, self.batch) = (Some(position), Vec::new().into_iter());
        self
    }

    /// Reads the next names.
    fn fill(&mut self, position: ListPosition) -> Result<()> {
        let catalog = match &self.source {
            Source::Array(array) => &array.here()?.open_inner()?.catalog,
            Source::Peek(catalog) => catalog,
        };
        let (found, next) = catalog.entries(&self.prefix, self.delimiter, position, BATCH)?;
        (self.batch, self.position) = (found.into_iter(), next);
        Ok(())
    }

    /// The public form of an entry. The length of an open file is that of `stat`.
    fn listed(&self, found: Found) -> Result<Listed> {
        let (name, number, length, created_ns, modified_ns, layout) = match found {
            Found::Prefix(prefix) => return Ok(Listed::Prefix(prefix)),
            Found::File { name, number, length, created_ns, modified_ns, layout } => {
                (name, number, length, created_ns, modified_ns, layout)
            }
        };
        let open = match &self.source {
            Source::Array(array) => array.here()?.open_inner()?.find(number),
            Source::Peek(_) => None,
        };
        let len_bytes = open.map_or(length, |open| open.file.len());
        Ok(Listed::File(ListedFile {
            name,
            len_bytes,
            created: time(created_ns),
            modified: time(modified_ns),
            version: number,
            layout: layout.kind,
            block_bytes: layout.block_bytes,
            drives: Arc::clone(&layout.drives),
        }))
    }
}

impl Iterator for Listing {
    type Item = Result<Listed>;

    fn next(&mut self) -> Option<Result<Listed>> {
        loop {
            if let Some(found) = self.batch.next() {
                let listed = self.listed(found);
                if listed.is_err() {
                    (self.batch, self.position) = (Vec::new().into_iter(), None);
                }
                return Some(listed);
            }
            let position = self.position.take()?;
            if let Err(error) = self.fill(position) {
                return Some(Err(error));
            }
        }
    }
}

impl std::iter::FusedIterator for Listing {}
