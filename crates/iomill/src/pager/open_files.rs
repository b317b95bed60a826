//! [`OpenFiles`]: opening the files of an array and plain files, and removing files that lost their names. Non-goals:
//! the table itself (`table`), finding plain files (`file::plain`), and which queue serves a device (`api::runtime`).
//!
//! Rules:
//! 1. A handle holds a file by its number. A name is looked up when a file is opened, and not again.
//! 2. A file that has lost its name is removed by the thread that finds it closed, or by its last owner. The entry in
//!    the table prevents an opening meanwhile. A thread that opens a file takes the entry, and then checks whether the
//!    file still has a name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use super::open::{ArrayRef, Ending, OpenFile, OpenRef};
use super::table::{Entry, Found, Table};
use super::{Paged, Pager};
use crate::catalog::{Catalog, Draft, Id, Record};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::file::FileState;
use crate::file::plain::{DriveHold, PlainFile, PlainList};
use crate::file::sums::SumsMemory;
use crate::sys::fs::{Access, Identity};

/// The path and the identity of each file that was opened as one.
pub type Places = Vec<(PathBuf, Identity)>;

/// The open files of an array or runtime.
#[derive(Debug)]
pub struct OpenFiles {
    exec: Arc<Exec>,
    table: Arc<Table<OpenFile>>,
    /// The memory for the sums of these files.
    sums: Arc<SumsMemory>,
}

impl OpenFiles {
    /// No file is open.
    pub fn new(exec: &Arc<Exec>, sums: Arc<SumsMemory>) -> OpenFiles {
        OpenFiles { exec: Arc::clone(exec), table: Table::new(exec), sums }
    }

    /// The file, if it is open.
    pub fn find(&self, id: &Id) -> Option<OpenRef> {
        self.table.find(id).map(OpenRef::new)
    }

    /// Opens a file. If it is open already, returns that.
    pub fn open(
        &self,
        catalog: &Arc<Catalog>,
        pager: Option<&Arc<Pager>>,
        name: &str,
        owner: &ArrayRef,
    ) -> Result<OpenRef> {
        loop {
            if let Some(file) = self.open_numbered(catalog, pager, catalog.number(name)?, owner)? {
                return Ok(file);
            }
        }
    }

    /// `open` without a system call and without a wait for another thread. `None` if it needs either.
    pub fn open_at_once(
        &self,
        catalog: &Arc<Catalog>,
        pager: Option<&Arc<Pager>>,
        name: &str,
        owner: &ArrayRef,
    ) -> Result<Option<OpenRef>> {
        self.exec.check_home()?;
        let number = catalog.number(name)?;
        let id = catalog.id_of(number);
        let entry = match self.table.look(&id)? {
            Found::Closed(entry) => entry,
            Found::OnItsWay => return Ok(None),
            Found::Open(file) => return Ok(Some(OpenRef::new(file))),
        };
        let is_quick = |record: &Arc<Record>| {
            record.is_live() && !record.has_parts && record.extent.is_none_or(|extent| catalog.is_shared_open(extent))
        };
        let record = catalog.numbered(number).filter(is_quick);
        record.map(|record| self.open_record(catalog, pager, &record, entry, owner)).transpose()
    }

    fn open_record(
        &self,
        catalog: &Arc<Catalog>,
        pager: Option<&Arc<Pager>>,
        record: &Arc<Record>,
        entry: Entry<OpenFile>,
        owner: &ArrayRef,
    ) -> Result<OpenRef> {
        let file = FileState::open(&self.exec, catalog, record, None, &self.sums)?;
        let ending = catalog.is_writer().then(|| Ending::new(catalog, record.number, None));
        Ok(self.enter(file, pager, record.id, entry, ending, owner))
    }

    /// Opens the file with this number. `None` if it has lost its name since.
    pub fn open_numbered(
        &self,
        catalog: &Arc<Catalog>,
        pager: Option<&Arc<Pager>>,
        number: u64,
        owner: &ArrayRef,
    ) -> Result<Option<OpenRef>> {
        self.exec.check_home()?;
        let id = catalog.id_of(number);
        loop {
            let entry = match self.table.look(&id)? {
                Found::Closed(entry) => entry,
                Found::OnItsWay => {
                    self.table.wait_for(&id);
                    continue;
                }
                Found::Open(file) => return Ok(Some(OpenRef::new(file))),
            };
            // From here on the entry protects the file's parts (rule 2).
            let Some(record) = catalog.numbered(number).filter(|record| record.is_live()) else {
                return Ok(None);
            };
            return self.open_record(catalog, pager, &record, entry, owner).map(Some);
        }
    }

    /// Opens a draft, which has a number of its own. Once it has a name, openings find it by its number, because its
    /// entry is in the table.
    pub fn open_draft(
        &self,
        catalog: &Arc<Catalog>,
        pager: Option<&Arc<Pager>>,
        (draft, record): (&Arc<Draft>, &Arc<Record>),
        owner: &ArrayRef,
    ) -> Result<OpenRef> {
        self.exec.check_home()?;
        let Found::Closed(entry) = self.table.look(&record.id)? else {
            unreachable!("no other file has the number of a draft");
        };
        let file = FileState::open(&self.exec, catalog, record, Some(Arc::clone(draft)), &self.sums)?;
        let ending = Ending::new(catalog, record.number, Some(Arc::clone(draft)));
        Ok(self.enter(file, pager, record.id, entry, Some(ending), owner))
    }

    /// Opens plain files as one, or returns them if they are open already. `drive` finds or adds the drive of each
    /// file.
    ///
    /// Another thread of this process may be closing a file, and cut it to its length (rule 6 of the length). So
    /// lengths and versions are valid only if they were read under the entry and the claims: before that they may
    /// change.
    pub fn open_plain(
        &self,
        platform: &dyn Platform,
        pager: Option<&Arc<Pager>>,
        (paths, access): (&[PathBuf], Access),
        drive: impl Fn(&PlainFile) -> Result<DriveHold>,
        owner: &ArrayRef,
    ) -> Result<(OpenRef, Places)> {
        self.exec.check_home()?;
        let mut list = PlainList::open(platform, paths, access)?;
        let place = |file: &PlainFile| (file.open.full_path(), file.stamp.identity);
        let places = list.files.iter().map(place).collect();
        loop {
            let id = list.id();
            let entry = match self.table.look(&id)? {
                Found::Closed(entry) => entry,
                Found::OnItsWay => {
                    self.table.wait_for(&id);
                    list.look()?;
                    continue;
                }
                Found::Open(file) => return Ok((OpenRef::new(file), places)),
            };
            let claims = list.claim(&self.exec)?;
            list.look()?;
            if list.id() != id {
                continue;
            }
            let files = list.files.into_iter().map(|file| drive(&file).map(|drive| (file, drive)));
            let file = FileState::open_plain(&self.exec, files.collect::<Result<_>>()?, claims, access.write)?;
            return Ok((self.enter(file, pager, id, entry, None, owner), places));
        }
    }

    /// Removes a file that has lost its name, or leaves that to its last holder (rule 2).
    pub fn remove(&self, catalog: &Catalog, number: u64) {
        let id = catalog.id_of(number);
        // If the array is being closed, the next opening removes the file.
        while let Ok(found) = self.table.look(&id) {
            match found {
                Found::Closed(_entry) => return catalog.remove_if_dying(number),
                Found::OnItsWay => self.table.wait_for(&id),
                // If this is the last holder by now, its drop does it.
                Found::Open(file) => return drop(OpenRef::new(file)),
            }
        }
    }

    /// Makes an opened file known.
    fn enter(
        &self,
        file: FileState,
        pager: Option<&Arc<Pager>>,
        id: Id,
        entry: Entry<OpenFile>,
        ending: Option<Ending>,
        owner: &ArrayRef,
    ) -> OpenRef {
        let paged = pager.map(|pager| Arc::new(Paged::new(pager, &id, file.len(), file.sums().cloned())));
        let file = Arc::new(OpenFile::new(file, paged, ending, entry, owner));
        if let (Some(pager), Some(paged)) = (pager, &file.paged) {
            pager.enter(paged.number(), &file);
        }
        Entry::fill(&self.table, id, &file);
        OpenRef::new(file)
    }

    /// Closes the array or runtime of the files: waits for I/O in flight, makes every open file durable, and ends all
    /// threads. Then runs `last`. All steps are tried, and the first error is returned.
    pub fn close(&self, pager: Option<&Arc<Pager>>, last: impl FnOnce() -> Result<()>) -> Result<()> {
        self.exec.check_open()?;
        self.exec.wait_for_queued_calls();
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
            // Operations that entered before end their I/O. Later ones find the array closed, and enter only when the
            // file is finished.
            let _closed = file.file.close_gate();
            // A panic at one file must leave no other file unfinished.
            keep(catch_unwind(AssertUnwindSafe(|| file.finish())).unwrap_or(Err(Error::Panicked)));
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
