//! [`Handles`]: files that stay open between calls. Opening a long file opens its parts, which takes longer than a read
//! of bytes in memory. Non-goals: the current version of a name. The callers name the version, and never get a handle
//! of another one.
//!
//! A held handle keeps the space of a file that was deleted or replaced. So a store drops the handle of a name that it
//! changes (`forget`). Each time a handle is added, all others are checked, too: does their name still have that
//! version?

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iomill::File;

/// Up to this length a file of an array has no part of its own, so opening and closing it takes no system call.
pub const SMALL_MAX_BYTES: u64 = 64 << 10;

/// An open file. Closing a long file takes system calls, and closing a nameless one frees its space. So the last holder
/// leaves the close to another thread.
#[derive(Debug)]
pub struct Handle(Option<File>);

impl Handle {
    pub fn new(file: File) -> Handle {
        Handle(Some(file))
    }
}

impl Deref for Handle {
    type Target = File;

    fn deref(&self) -> &File {
        self.0.as_ref().expect("only the drop takes the file")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        if file.len() > SMALL_MAX_BYTES || file.is_nameless() {
            blocking::unblock(move || drop(file)).detach();
        }
    }
}

/// See the module. `V` is the version of a name's content.
#[derive(Debug)]
pub struct Handles<V> {
    most: usize,
    held: Mutex<Table<V>>,
}

#[derive(Debug)]
struct Table<V> {
    by_name: HashMap<String, Held<V>>,
    /// Counts uses.
    now: u64,
}

#[derive(Debug)]
struct Held<V> {
    version: V,
    handle: Arc<Handle>,
    used: u64,
}

impl<V> Table<V> {
    /// The least recently used name.
    fn oldest(&self) -> Option<String> {
        let (name, _) = self.by_name.iter().min_by_key(|(_, held)| held.used)?;
        Some(name.clone())
    }
}

impl<V: Copy + PartialEq> Handles<V> {
    pub fn new(most: usize) -> Handles<V> {
        Handles { most, held: Mutex::new(Table { by_name: HashMap::new(), now: 0 }) }
    }

    fn table(&self) -> MutexGuard<'_, Table<V>> {
        // No code that can panic runs with the table in two states.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of this version. Drops a handle of another version.
    pub fn find(&self, name: &str, version: V) -> Option<Arc<Handle>> {
        let mut table = self.table();
        table.now += 1;
        let now = table.now;
        let held = table.by_name.get_mut(name)?;
        if held.version != version {
            let left = table.by_name.remove(name);
            drop(table);
            drop(left);
            return None;
        }
        held.used = now;
        Some(Arc::clone(&held.handle))
    }

    /// Adds a handle. If there are too many, it replaces the least recently used one. `is_current` says whether a name
    /// still has a version. It is called for all names, also this one, so a change meanwhile is seen here or by
    /// `forget`.
    pub fn hold(&self, name: &str, version: V, handle: &Arc<Handle>, is_current: impl Fn(&str, V) -> bool) {
        let mut left = Vec::new();
        let names: Vec<(String, V)> = {
            let mut table = self.table();
            table.now += 1;
            let held = Held { version, handle: Arc::clone(handle), used: table.now };
            left.extend(table.by_name.insert(name.to_owned(), held));
            if table.by_name.len() > self.most {
                let oldest = table.oldest();
                left.extend(oldest.and_then(|oldest| table.by_name.remove(&oldest)));
            }
            table.by_name.iter().map(|(name, held)| (name.clone(), held.version)).collect()
        };
        drop(left);
        // Outside of the lock: the answers take system calls.
        for (name, version) in names {
            if !is_current(&name, version) {
                self.forget_version(&name, version);
            }
        }
    }

    /// Drops the handle of a name with a new content.
    pub fn forget(&self, name: &str) {
        let left = self.table().by_name.remove(name);
        drop(left);
    }

    fn forget_version(&self, name: &str, version: V) {
        let mut table = self.table();
        if table.by_name.get(name).is_some_and(|held| held.version == version) {
            let left = table.by_name.remove(name);
            drop(table);
            drop(left);
        }
    }

    #[cfg(test)]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.table().by_name.keys().cloned().collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle() -> Arc<Handle> {
        Arc::new(Handle::new(iomill::open_plain(std::env::current_exe().unwrap()).unwrap()))
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes() {
        let handles = Handles::new(2);
        for name in ["a", "b"] {
            handles.hold(name, 1, &handle(), |_, _| true);
        }
        assert!(handles.find("a", 1).is_some());
        handles.hold("c", 1, &handle(), |_, _| true);
        assert_eq!(handles.names(), ["a", "c"]);
    }

    #[test]
    fn another_version_is_not_found_and_is_replaced() {
        let handles = Handles::new(2);
        let (old, new) = (handle(), handle());
        handles.hold("a", 1, &old, |_, _| true);
        assert!(handles.find("a", 2).is_none());
        handles.hold("a", 2, &new, |_, _| true);
        assert!(Arc::ptr_eq(&handles.find("a", 2).unwrap(), &new) && Arc::strong_count(&old) == 1);
        assert!(handles.find("a", 1).is_none());
        assert!(handles.find("a", 2).is_none() && Arc::strong_count(&new) == 1);
    }

    #[test]
    fn what_has_changed_meanwhile_is_not_held() {
        let handles = Handles::new(9);
        let late = handle();
        handles.hold("late", 1, &late, |_, _| false);
        assert!(handles.names().is_empty() && Arc::strong_count(&late) == 1);
        for name in ["a", "b", "c"] {
            handles.hold(name, 1, &handle(), |_, _| true);
        }
        // The oldest one is current.
        handles.hold("d", 1, &handle(), |name, _| name != "b");
        assert_eq!(handles.names(), ["a", "c", "d"], "all were looked at");
        handles.forget("a");
        assert!(handles.find("c", 2).is_none());
        assert_eq!(handles.names(), ["d"], "a content that is gone is not held");
    }
}
