//! Listing names: a [`ListPosition`] in their order, and the entries from there on ([`Found`]). Non-goals: lengths of
//! open files.
//!
//! Rules:
//! 1. Each step takes the lock of the files for a bounded number of names, and continues after the last one that it has
//!    seen. So no change makes a listing show an entry twice.
//! 2. The entries are in order, common prefixes among the names. A common prefix is skipped by one search for the name
//!    after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Catalog;
use super::log::record::{FileRecord, PAGE_BYTES};
use super::state::files::Files;
use crate::error::Result;
use crate::layout::Layout;

/// The position at which a listing continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListPosition {
    /// With the first entry that is not before this.
    From(String),
    /// With the first entry after this.
    After(String),
    /// With the first entry that does not begin with this, and is after it.
    Behind(String),
}

impl ListPosition {
    /// Whether an entry comes before the position.
    fn is_behind(&self, entry: &str) -> bool {
        match self {
            ListPosition::From(name) => entry < name.as_str(),
            ListPosition::After(name) => entry <= name.as_str(),
            ListPosition::Behind(prefix) => entry < prefix.as_str() || entry.starts_with(prefix),
        }
    }
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A file.
    File {
        /// Its name.
        name: String,
        /// Its number.
        number: u64,
        /// Its durable length in bytes.
        length: u64,
        /// When it was made, in nanoseconds since 1970.
        created_ns: u64,
        /// When a change of it was last synced, in nanoseconds since 1970.
        modified_ns: u64,
        /// How it is laid out.
        layout: Arc<FoundLayout>,
    },
    /// What several names have in common, the delimiter included.
    Prefix(String),
}

/// The layout that many files have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLayout {
    /// The function.
    pub kind: Layout,
    /// Unit of placement in bytes.
    pub block_bytes: u32,
    /// The drives by index, in the order of the layout.
    pub drives: Arc<[u16]>,
}

/// The layouts of one look, each made once.
#[derive(Default)]
struct Layouts(BTreeMap<u32, Arc<FoundLayout>>);

impl Layouts {
    fn of(&mut self, files: &Files, number: u32) -> Arc<FoundLayout> {
        let make = || {
            // As `Record::of`: the log has no file without its layout.
            let layout = files.layout(number);
            Arc::new(FoundLayout {
                kind: layout.map_or(Layout::Striping, |layout| layout.kind),
                block_bytes: layout.map_or(PAGE_BYTES, |layout| layout.block_bytes),
                drives: layout.map_or(&[][..], |layout| &layout.drives).iter().map(|(drive, _)| *drive).collect(),
            })
        };
        Arc::clone(self.0.entry(number).or_insert_with(make))
    }

    fn found(&mut self, files: &Files, file: &FileRecord<'_>) -> Found {
        let FileRecord { number, length, created_ns, modified_ns, .. } = *file;
        let layout = self.of(files, file.layout);
        Found::File { name: file.name.to_owned(), number, length, created_ns, modified_ns, layout }
    }
}

impl Catalog {
    /// The next entries among the names that begin with `prefix`, and the next position. Reads at most `most` names.
    /// `None` at the end.
    pub fn entries(
        &self,
        prefix: &str,
        delimiter: Option<char>,
        position: ListPosition,
        most: usize,
    ) -> Result<(Vec<Found>, Option<ListPosition>)> {
        self.check_known()?;
        Ok(self.with_files(|files| entries_of(files, prefix, delimiter, position, most)))
    }
}

pub(super) fn entries_of(
    files: &Files,
    prefix: &str,
    delimiter: Option<char>,
    mut position: ListPosition,
    most: usize,
) -> (Vec<Found>, Option<ListPosition>) {
    let (mut found, mut seen, mut layouts) = (Vec::new(), 0, Layouts::default());
    'search: loop {
        let mut last = None;
        for file in files.ordered_from(&|name| position.is_behind(name)) {
            if seen == most {
                return (found, Some(last.map_or(position, |name: &str| ListPosition::After(name.to_owned()))));
            }
            let Some(rest) = file.name.strip_prefix(prefix) else { break };
            seen += 1;
            let common = delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len_utf8()));
            if let Some(len) = common {
                let common = &file.name[..prefix.len() + len];
                if !position.is_behind(common) {
                    found.push(Found::Prefix(common.to_owned()));
                }
                position = ListPosition::Behind(common.to_owned());
                continue 'search;
            }
            found.push(layouts.found(files, &file));
            last = Some(file.name);
        }
        return (found, None);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::catalog::log::record::{LayoutRecord, LogRecord};
    use crate::catalog::record::new_file;
    use crate::sys::property::{check, list, maybe, text};

    fn files(names: &[String]) -> Files {
        let mut files = Files::default();
        files.index(Vec::new()).expect("it is empty");
        let layout = LayoutRecord { number: 0, kind: Layout::Striping, block_bytes: 4096, drives: vec![(0, 1)] };
        files.apply(&LogRecord::Layout(layout), false).expect("it is the first");
        for (name, number) in names.iter().zip(1..) {
            let file = LogRecord::File(new_file(number, name, 0, (0, false), 0));
            files.apply(&file, false).expect("its layout is there");
        }
        files
    }

    fn shown(found: &Found) -> String {
        match found {
            Found::File { name, .. } => name.clone(),
            Found::Prefix(prefix) => format!("{prefix} ..."),
        }
    }

    /// All entries of a listing, by looks at `most` names.
    fn all(
        files: &Files,
        prefix: &str,
        delimiter: Option<char>,
        mut position: ListPosition,
        most: usize,
    ) -> Vec<(String, ListPosition)> {
        let mut all = Vec::new();
        loop {
            let (found, next) = entries_of(files, prefix, delimiter, position, most);
            assert!(found.len() <= most);
            all.extend(found.iter().map(|found| match found {
                Found::File { name, .. } | Found::Prefix(name) => (shown(found), ListPosition::After(name.clone())),
            }));
            match next {
                Some(next) => position = next,
                None => return all,
            }
        }
    }

    /// The entries by their definition.
    fn wanted(names: &[String], prefix: &str, delimiter: Option<char>, position: &ListPosition) -> Vec<String> {
        let entry = |name: &String| {
            let rest = name.strip_prefix(prefix)?;
            let common = delimiter.and_then(|delimiter| Some((rest.split_once(delimiter)?.0, delimiter)));
            Some(match common {
                Some((part, delimiter)) => (format!("{prefix}{part}{delimiter}"), true),
                None => (name.clone(), false),
            })
        };
        let mut entries: Vec<(String, bool)> = names.iter().filter_map(entry).collect();
        entries.sort();
        entries.dedup();
        let kept = entries.into_iter().filter(|(entry, _)| !position.is_behind(entry));
        kept.map(|(entry, is_prefix)| if is_prefix { format!("{entry} ...") } else { entry }).collect()
    }

    /// A listing has each entry once, in order, whatever the size of the looks. It goes on behind each of its entries.
    #[test]
    fn a_listing_has_each_entry_once() {
        let make = |bytes: &mut arbitrary::Unstructured<'_>| {
            let (prefix, from) = (text(bytes, "ab/", 0..=2)?, maybe(bytes, |bytes| text(bytes, "ab/", 0..=4))?);
            let delimiter = maybe(bytes, |bytes| bytes.choose(&['/', '\u{10FFFF}']).copied())?;
            let most = bytes.int_in_range(1..=8usize)?;
            let mut names = list(bytes, 0..=59, |bytes| text(bytes, "ab\u{10FFFF}/", 1..=6))?;
            names.sort();
            names.dedup();
            Ok((names, prefix, delimiter, from, most))
        };
        check(256, make, |(names, prefix, delimiter, from, most)| {
            let files = files(&names);
            let position = ListPosition::From(from.filter(|from| *from > prefix).unwrap_or_else(|| prefix.clone()));
            let wanted = wanted(&names, &prefix, delimiter, &position);
            let listed = all(&files, &prefix, delimiter, position, most);
            let shown: Vec<&String> = listed.iter().map(|(entry, _)| entry).collect();
            assert_eq!(&shown, &wanted.iter().collect::<Vec<_>>());
            for (at, (_, after)) in listed.iter().enumerate() {
                let rest = all(&files, &prefix, delimiter, after.clone(), most);
                assert_eq!(&rest[..], &listed[at + 1..]);
            }
        });
    }
}
