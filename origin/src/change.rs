//! [`Change`] and [`Deletes`]: changes of objects through the store, and what is known of the objects meanwhile and afterwards. Rule C4 of
//! `docs/origin.md`. Non-goals: the changes themselves, which pass through.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use crate::notices::locked;
use crate::store::Store;

/// A change of some objects that is under way. Dropped before its end was told, it may still happen: its caller has dropped the future.
#[derive(Debug)]
pub struct Change {
    store: Arc<Store>,
    paths: Vec<String>,
    is_sure: bool,
}

impl Change {
    pub fn begin<'a>(store: &Arc<Store>, paths: impl IntoIterator<Item = &'a str>) -> Change {
        let paths: Vec<String> = paths.into_iter().map(str::to_owned).collect();
        paths.iter().for_each(|path| store.known().forget(path));
        Change { store: Arc::clone(store), paths, is_sure: false }
    }

    /// The origin has answered. `is_sure`: it has done it, or has refused it.
    pub fn end(mut self, is_sure: bool) {
        self.is_sure = is_sure;
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        for path in &self.paths {
            match self.is_sure {
                true => self.store.known().forget(path),
                false => self.store.known().doubt(path),
            }
        }
    }
}

/// Deletes of a stream. One that the stream has not told of may still happen.
#[derive(Debug)]
pub struct Deletes {
    store: Arc<Store>,
    begun: Mutex<HashSet<String>>,
}

impl Deletes {
    pub fn new(store: &Arc<Store>) -> Arc<Deletes> {
        Arc::new(Deletes { store: Arc::clone(store), begun: Mutex::default() })
    }

    pub fn begin(&self, path: &str) {
        self.store.known().forget(path);
        locked(&self.begun).insert(path.to_owned());
    }

    pub fn end(&self, path: &str) {
        locked(&self.begun).remove(path);
        self.store.known().forget(path);
    }
}

impl Drop for Deletes {
    fn drop(&mut self) {
        let begun = std::mem::take(&mut *locked(&self.begun));
        begun.iter().for_each(|path| self.store.known().doubt(path));
    }
}
