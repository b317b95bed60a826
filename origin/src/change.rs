//! [`Change`] and [`Deletes`]: changes of objects through the store, and what the cache may remember of the objects
//! meanwhile and afterwards. Rule C4 of `docs/origin.md`. Non-goals: the changes themselves, which the origin makes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::notices::locked;
use crate::store::Store;

/// Of a program with several stores of one name, all see the change.
fn forget(store: &Store, path: &str) {
    store.all_learned().iter().for_each(|learned| learned.known.forget(path));
}

fn doubt(store: &Store, path: &str) {
    store.all_learned().iter().for_each(|learned| learned.known.doubt(path));
}

/// A change of some objects in flight. If it is dropped before its end is known, it may still happen: the caller has
/// dropped the future.
#[derive(Debug)]
pub struct Change {
    store: Arc<Store>,
    paths: Vec<String>,
    is_sure: bool,
}

impl Change {
    pub fn begin<'a>(store: &Arc<Store>, paths: impl IntoIterator<Item = &'a str>) -> Change {
        let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
        paths.iter().for_each(|path| forget(store, path));
        Change { store: Arc::clone(store), paths, is_sure: false }
    }

    /// The origin has answered. `is_sure`: the change has happened, or was refused.
    pub fn end(mut self, is_sure: bool) {
        self.is_sure = is_sure;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        for path in &self.paths {
            match self.is_sure {
                true => forget(&self.store, path),
                false => doubt(&self.store, path),
            }
        }
    }
}

/// The deletes of a stream. A delete without an answer may still happen.
#[derive(Debug)]
pub struct Deletes {
    store: Arc<Store>,
    /// In the order of the stream, which is also that of the answers.
    begun: Mutex<VecDeque<String>>,
}

impl Deletes {
    pub fn new(store: &Arc<Store>) -> Arc<Deletes> {
        Arc::new(Deletes { store: Arc::clone(store), begun: Mutex::default() })
    }

    pub fn begin(&self, path: &str) {
        forget(&self.store, path);
        locked(&self.begun).push_back(path.to_owned());
    }

    pub fn end(&self, path: &str) {
        let mut begun = locked(&self.begun);
        if let Some(place) = begun.iter().position(|other| other == path) {
            begun.remove(place);
        }
        drop(begun);
        forget(&self.store, path);
    }

    /// The origin has refused one delete, or a bulk of them, so none of these happens. `named` begins with the path, or
    /// with the paths of the bulk. A refusal that names none of the deletes in flight is that of the only one.
    pub fn refused(&self, named: &str) {
        let mut begun = locked(&self.begun);
        let only = || (begun.len() == 1).then_some(0..1);
        let Some(run) = named_run(&begun, named).or_else(only) else { return };
        let refused: Vec<String> = begun.drain(run).collect();
        drop(begun);
        // An object that is missing is refused, too.
        refused.iter().for_each(|path| forget(&self.store, path));
    }
}

/// The paths that a refusal names: one, or adjacent ones with commas between them. A reason may follow after a colon.
fn named_run(begun: &VecDeque<String>, named: &str) -> Option<Range<usize>> {
    (0..begun.len()).find_map(|first| {
        let mut rest = named;
        for (place, path) in begun.iter().enumerate().skip(first) {
            rest = rest.strip_prefix(path.as_str())?;
            if rest.is_empty() || rest.starts_with(": ") {
                return Some(first..place + 1);
            }
            rest = rest.strip_prefix(',')?;
        }
        None
    })
}

impl Drop for Deletes {
    fn drop(&mut self) {
        let begun = std::mem::take(&mut *locked(&self.begun));
        begun.iter().for_each(|path| doubt(&self.store, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_one_path_or_the_paths_of_a_bulk() {
        let begun: VecDeque<String> = ["a", "a/b", "c,d", "e: f", "g"].map(str::to_owned).into();
        for (named, run) in [
            ("a", Some(0..1)),
            ("a/b", Some(1..2)),
            ("a,a/b,c,d", Some(0..3)),
            ("c,d", Some(2..3)),
            ("e: f: Access Denied (code: AccessDenied)", Some(3..4)),
            ("a: Access Denied", Some(0..1)),
            ("c", None),
            ("b", None),
            ("g,h", None),
            ("", None),
        ] {
            assert_eq!(named_run(&begun, named), run, "{named}");
        }
    }
}
