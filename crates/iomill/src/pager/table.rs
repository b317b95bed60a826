//! [`Table`]: the open things of an array, by id, each at most once. Non-goals: opening and closing them.
//!
//! Rules:
//! 1. A thread that is opening or closing a thing, or keeps it closed, owns the thing's entry: the entry then has a
//!    dead `Weak`. The thread holds the [`Entry`], and only the drop of that removes the entry. Every change notifies
//!    `changed`.
//! 2. No thread drops a possible last owner of a thing with the table locked: closing the thing takes the lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::catalog::Id;
use crate::error::Result;
use crate::exec::Exec;
use crate::sys::sync::{Condvar, Mutex, MutexGuard, lock, wait};

type Entries<T> = BTreeMap<Id, Weak<T>>;

/// The open things of an array, by id.
pub struct Table<T> {
    exec: Arc<Exec>,
    open: Mutex<Entries<T>>,
    changed: Condvar,
}

/// An entry of the table. Dropping it removes the entry (rule 1).
pub struct Entry<T> {
    table: Arc<Table<T>>,
    id: Id,
}

/// The state of an id in the table.
pub enum Found<T> {
    Open(Arc<T>),
    /// A thread is opening or closing it, or keeps it closed.
    OnItsWay,
    /// Nothing. The caller gets the entry.
    Closed(Entry<T>),
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {}", lock(&self.open).len())
    }
}

impl<T> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry {}", self.id)
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        lock(&self.table.open).remove(&self.id);
        self.table.changed.notify_all();
    }
}

impl<T> Entry<T> {
    /// The table, and the id in it.
    pub fn place(&self) -> (Arc<Table<T>>, Id) {
        (Arc::clone(&self.table), self.id)
    }

    /// Makes the thing known. The thing holds the entry.
    pub fn fill(table: &Table<T>, id: Id, thing: &Arc<T>) {
        lock(&table.open).insert(id, Arc::downgrade(thing));
        table.changed.notify_all();
    }
}

impl<T> Table<T> {
    /// Nothing is open.
    pub fn new(exec: &Arc<Exec>) -> Arc<Table<T>> {
        Arc::new(Table { exec: Arc::clone(exec), open: Mutex::default(), changed: Condvar::new() })
    }

    /// What is open under an id.
    pub fn find(&self, id: &Id) -> Option<Arc<T>> {
        lock(&self.open).get(id).and_then(Weak::upgrade)
    }

    /// The state of an id. If the table has no entry, adds one; an error if the array is closed.
    pub fn look(self: &Arc<Self>, id: &Id) -> Result<Found<T>> {
        let mut open = lock(&self.open);
        self.exec.check_open()?;
        Ok(match open.get(id).map(Weak::upgrade) {
            Some(Some(thing)) => Found::Open(thing),
            Some(None) => Found::OnItsWay,
            None => {
                open.insert(*id, Weak::new());
                Found::Closed(Entry { table: Arc::clone(self), id: *id })
            }
        })
    }

    /// Waits until no thread opens or closes the thing with this id, or keeps it closed.
    pub fn wait_for(&self, id: &Id) {
        let mut open = lock(&self.open);
        while open.get(id).is_some_and(|thing| thing.strong_count() == 0) {
            open = self.wait_for_change(open);
        }
    }

    fn wait_for_change<'a>(&'a self, open: MutexGuard<'a, Entries<T>>) -> MutexGuard<'a, Entries<T>> {
        if !self.exec.has_threads() {
            // This thread steps the job that closes the thing.
            drop(open);
            self.exec.pause_for_io();
            return lock(&self.open);
        }
        wait(&self.changed, open)
    }

    /// All open things. Waits until no thread opens or closes a thing, or keeps it closed.
    pub fn settled(&self) -> Vec<Arc<T>> {
        loop {
            let mut open = lock(&self.open);
            while open.values().any(|thing| thing.strong_count() == 0) {
                open = self.wait_for_change(open);
            }
            let all: Vec<_> = open.values().filter_map(Weak::upgrade).collect();
            let is_all = all.len() == open.len();
            // Before `all`, which may hold things last (rule 2).
            drop(open);
            if is_all {
                return all;
            }
        }
    }
}
