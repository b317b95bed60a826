//! [`Store`]: a source with a prefix of names, the options of new objects, and uploads by their ids. It is the common
//! part of the stores of all versions of `object_store`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use iomill::{Array, FileOptions, Runtime};

use crate::common::{Fault, Result};
use crate::objects::Objects;
use crate::source::Source;
use crate::tree::Tree;
use crate::uploads::Uploads;

/// See the module. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub source: Arc<Source>,
    /// The beginning of each name: nothing, or segments that end with `/`.
    prefix: Arc<str>,
    pub file_options: FileOptions,
    /// Uploads that are addressed by an id.
    pub uploads: Arc<Uploads>,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.trim_end_matches('/');
        match &*self.source {
            Source::Array(_) => write!(f, "IomillStore(array, {prefix:?})"),
            Source::Plain(tree) => write!(f, "IomillStore({}, {prefix:?})", tree.root().display()),
        }
    }
}

/// A short form for logs, without the fields below.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Store {
    fn new(source: Source) -> Store {
        let (prefix, file_options, uploads) = (Arc::from(""), FileOptions::new(), Arc::default());
        Store { source: Arc::new(source), prefix, file_options, uploads }
    }

    pub fn array(array: Array) -> Store {
        Store::new(Source::Array(Arc::new(Objects::new(array))))
    }

    pub fn plain(dir: &Path, runtime: Option<&Runtime>) -> Result<Store> {
        Ok(Store::new(Source::Plain(Tree::new(dir, runtime)?)))
    }

    /// The store of the names below `prefix`, which is a path of `object_store`.
    pub fn within(mut self, prefix: &str) -> Store {
        if !prefix.is_empty() {
            self.prefix = format!("{}{prefix}/", self.prefix).into();
            self.uploads = Arc::default();
        }
        self
    }

    /// The array, if the objects are its files.
    pub fn as_array(&self) -> Option<&Array> {
        match &*self.source {
            Source::Array(objects) => Some(objects.array()),
            Source::Plain(_) => None,
        }
    }

    /// The name of a location in the source.
    pub fn name(&self, location: &str) -> String {
        [&self.prefix, location].concat()
    }

    /// The prefix of the names below a directory.
    pub fn names_below(&self, directory: Option<&str>) -> String {
        match directory {
            Some(directory) if !directory.is_empty() => [&self.prefix, directory, "/"].concat(),
            _ => self.prefix.to_string(),
        }
    }

    /// The location of a name in the source, or of a common prefix.
    pub fn location<'a>(&self, name: &'a str) -> Result<&'a str> {
        let location = name.strip_prefix(&*self.prefix);
        location.ok_or_else(|| Fault::other(format!("a listing of {:?} has the entry {name:?}", self.prefix)))
    }
}
