//! [`OpenFiles`]: opening the files of an array, and keeping them closed. Non-goals: the table itself (`table`).
//!
//! Rule: a thread that creates, deletes or renames a file holds `naming`, so that names stay as it found them. It takes `naming` before
//! the table's lock. It does not hold `naming` while it waits for something that a user's callback may delay.

use std::sync::Arc;

use super::open::{ArrayRef, OpenFile, OpenRef};
use super::table::{Entry, Found, Table};
use super::{Paged, Pager};
use crate::catalog::{Catalog, Id, Record};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::file::FileState;
use crate::sys::fair::Fair;

/// The open files of an array.
#[derive(Debug)]
pub struct OpenFiles {
    pub(super) exec: Arc<Exec>,
    pub(super) table: Arc<Table<OpenFile>>,
    /// Fair, because a change of names writes to all drives.
    naming: Fair<()>,
}

/// The result of an attempt to keep a file closed.
enum Kept {
    Closed(#[expect(dead_code, reason = "held")] Entry<OpenFile>),
    OnItsWay,
    /// A handle or an operation in flight holds it.
    InUse(OpenRef, Arc<Record>),
}

impl OpenFiles {
    /// No file is open.
    pub fn new(exec: &Arc<Exec>) -> OpenFiles {
        OpenFiles { exec: Arc::clone(exec), table: Table::new(exec), naming: Fair::new(()) }
    }

    /// Changes names that no open file has.
    pub fn with_names<R>(&self, change: impl FnOnce() -> R) -> R {
        let _naming = self.naming.lock();
        change()
    }

    /// The file, if it is open.
    pub fn find(&self, id: &Id) -> Option<OpenRef> {
        self.table.find(id).map(OpenRef::new)
    }

    /// Opens a file. If it is open already, returns that.
    pub fn open(&self, catalog: &Catalog, pager: Option<&Arc<Pager>>, name: &str, owner: &ArrayRef) -> Result<OpenRef> {
        self.exec.check_home()?;
        loop {
            let id = catalog.record(name)?.id;
            let entry = match self.table.look(&id)? {
                Found::Closed(entry) => entry,
                Found::OnItsWay => {
                    self.table.wait_for(&id);
                    continue;
                }
                Found::Open(file) => {
                    let file = OpenRef::new(file);
                    // The file that was looked up may have been renamed before another thread opened it.
                    if file.file.name() == name {
                        return Ok(file);
                    }
                    continue;
                }
            };
            // From here on the entry keeps the file from being deleted or renamed. That may have happened before.
            let record = catalog.record(name)?;
            if record.id != id {
                continue;
            }
            let file = FileState::open(&self.exec, catalog, &record)?;
            return Ok(self.enter(file, pager, id, entry, owner));
        }
    }

    /// Makes an opened file known.
    pub(super) fn enter(
        &self,
        file: FileState,
        pager: Option<&Arc<Pager>>,
        id: Id,
        entry: Entry<OpenFile>,
        owner: &ArrayRef,
    ) -> OpenRef {
        let paged = pager.map(|pager| Arc::new(Paged::new(pager, &id, file.len())));
        let file = Arc::new(OpenFile::new(file, paged, entry, owner));
        if let (Some(pager), Some(paged)) = (pager, &file.paged) {
            pager.enter(paged.number(), &file);
        }
        Entry::fill(&self.table, id, &file);
        OpenRef::new(file)
    }

    /// Changes names while the files that `find` finds stay closed. An error if a user has one open. Waits for operations in flight on
    /// them, without the lock of names: such an operation may run a user's task, and other files must not wait for that.
    pub fn with_closed<R>(
        &self,
        find: impl Fn() -> Result<Vec<Arc<Record>>>,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        loop {
            // Declared first, so that it is dropped after the lock of names: it may be a file's last holder.
            let mut kept = Vec::new();
            let naming = self.naming.lock();
            for record in find()? {
                kept.push(self.keep_closed(record)?);
            }
            if kept.iter().all(|kept| matches!(kept, Kept::Closed(_))) {
                return change();
            }
            drop(naming);
            let held = |kept: &Kept| match kept {
                Kept::InUse(file, record) if file.is_held() => Some(Error::Busy { name: record.name.clone() }),
                _ => None,
            };
            if let Some(error) = kept.iter().find_map(held) {
                return Err(error);
            }
            drop(kept);
            // Nothing is held here, so in a simulation callbacks may run, too: one of them may have the file.
            self.exec.pause();
        }
    }

    /// Keeps a file from being opened as long as the result lives.
    fn keep_closed(&self, record: Arc<Record>) -> Result<Kept> {
        Ok(match self.table.look(&record.id)? {
            Found::Closed(entry) => Kept::Closed(entry),
            Found::OnItsWay => Kept::OnItsWay,
            Found::Open(file) => Kept::InUse(OpenRef::new(file), record),
        })
    }

    /// Closes the array, or what else the files belong to: waits for I/O in flight, makes every open file durable, and ends all threads.
    /// Then does `last`. Returns the first error, after it has tried everything.
    pub fn close(&self, pager: Option<&Arc<Pager>>, last: impl FnOnce() -> Result<()>) -> Result<()> {
        self.exec.check_home()?;
        if let Some(pager) = pager {
            pager.end_short_way();
        }
        if !self.exec.begin_close() {
            return Err(Error::Closed);
        }
        if let Some(pager) = pager {
            pager.flusher.stop();
        }
        let mut first = Ok(());
        let mut keep = |result: Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        let files: Vec<OpenRef> = self.table.settled().into_iter().map(OpenRef::new).collect();
        for file in &files {
            // Operations that entered before end their I/O. Later ones find the array closed, and enter only when the file is
            // finished.
            let _closed = file.file.close_gate();
            keep(file.finish());
        }
        drop(files);
        if let Some(pager) = pager {
            pager.stop_node_threads();
        }
        self.exec.stop();
        keep(last());
        first
    }
}
