//! The catalog: the drives of an array, its files, and their lengths.
//!
//! Goals: every change is all or nothing over a crash at any point, and durable on all copies of the log when it is
//! acknowledged. An error about a drive names that drive. Non-goals: the data of files, and the set of open files,
//! which the caller has. `docs/format.md` describes the bytes on the drives, and `docs/catalog.md` the log, with the
//! rules C1 and up.
//!
//! All I/O goes through [`DriveFs`](crate::sys::fs::DriveFs) and [`Platform`]. The only clock is [`Platform::unix_ns`],
//! except while the catalog waits for the lock of a process that has ended. Its only thread writes checkpoints, on
//! platforms that have threads. So a simulator runs all of it on one thread. It has no `unsafe`.
//!
//! - `init.rs`, `label.rs`, `labels.rs`, `discovery.rs`: new arrays, labels and their changes, finding the drives.
//! - `open.rs`, `openings.rs`: locking the drives and reading the log; the notes of openings.
//! - `change.rs`, `remove.rs`: changes; removing the parts of deleted files.
//! - `small.rs`, `shared.rs`: pages of small files, allocated and returned to the drives; the parts that hold them.
//! - `draft.rs`: files without a name, and their publication.
//! - `listing.rs`: names by prefix, a few at a time.
//! - `record.rs`, `name.rs`, `id.rs`: the record of a file, and its name.
//! - `store.rs`: small files on drives, replaced as a whole; locks.
//! - `check.rs`: `iomill check`.
//! - `by_hand.rs`, `text_form.rs`: the catalog as text, and a text as the catalog.
//! - `log/mod.rs`: bytes of records and groups, one copy, all copies read as one, mending, appending.
//! - `state/mod.rs`: the files in memory, by number, by name and in order.
//! - `journal/mod.rs`: changes, shared fsyncs, a thread for checkpoints and segments, free pages of shared parts.
//!
//! `journal` uses `state` and `log`, and `state` uses the records of `log`; neither uses `journal`.
//!
//! - A change is planned, applied in memory and queued under one lock. Then it is made durable together with the
//!   changes of other callers.
//! - A writer has a `Journal`, and a reader the `Files` as they were when it opened the array. So has a look at the
//!   array without its lock (`Peek`).
//! - A file is identified by its number. A deleted or replaced file loses its name at once, and handles keep the file.
//!   The last handle calls `remove_if_dying`.
//! - `init` writes labels twice, with epoch 0 and then 1. So the remains of an unfinished `init` differ from a drive in
//!   use. A refused `init` removes the directories that it has made. Engines are chosen and the cache is made before
//!   the first label: if a drive refuses its engine, `init` is refused, too.
//! - Each missing thing has an error of its own: a directory, an array, a drive of an array. `open_or_create` makes an
//!   array only if no drive of the list has one. A directory on the file system of `/` is refused, because it may be
//!   the empty mount point of a drive.
//! - Moved drives are no problem for `check`: the paths in labels are only hints, and in a container they always
//!   differ.
//! - One process writes at a time. Engines hold the lock on each drive, too, so that it lasts as long as their I/O.
//!
//! # Rules
//!
//! 1. *Form.* Labels are TOML with a format number, and a last line with a checksum over all bytes before. An unknown
//!    key is an error, and so is another format. Only `check --repair` accepts `# checksum none`, and signs it: so a
//!    person can mend a label.
//! 2. *Replacing.* A temporary file of unpredictable name in the same directory replaces a label: written, synced,
//!    renamed, directory synced. The next writer removes temporary files that are left.
//! 3. *Labels.* The label with the highest epoch rules; labels of one epoch agree. All drives that it lists must be
//!    there, each once, found by hints and proven by ids. A writer that finds drives in other places writes labels with
//!    the next epoch.
//! 4. *Lock.* `lock` is made once, never replaced, and locked on every drive in the order of indices: exclusively by
//!    the writer, shared by readers. Labels are read again under the lock.
//! 5. *Init.* Labels are written with epoch 0 on all drives, then the log is made, then labels are written with
//!    epoch 1. So a drive with epoch 0 has never held a file, and a later init may use it. An array opens when at least
//!    one of its labels has left epoch 0, since then all drives have theirs.
//! 6. *Building on what is found.* The changes of a killed process may be in memory only. A writer syncs the
//!    directories of every drive, and all copies of the log (C11), before it builds on them.
//! 7. *Removing.* Parts of a dying file are cut and unlinked. The record `gone` follows when the directories are
//!    synced, for many files together. The next writer finishes what is left (C23).
//! 8. *Closing.* After the lock is released, nothing of the drives is touched.

pub mod by_hand;
mod change;
mod check;
mod discovery;
mod draft;
mod id;
mod init;
pub mod journal;
mod label;
mod labels;
mod listing;
pub mod log;
mod name;
mod open;
mod openings;
mod record;
mod remove;
mod shared;
mod small;
pub mod state;
mod store;
mod text_form;

#[cfg(test)]
pub(crate) mod tests;

pub use change::{Queued, When};
pub use check::{Problem, Report, Severity, check};
pub use draft::Draft;
pub use id::Id;
pub use init::EMPTY_FILE;
pub use label::{COPIES_MAX, DRIVES_MAX, DriveState, Label, LabelDrive, TextError, WEIGHT_MAX, parse_label};
pub use listing::{Found, ListPosition};
pub use log::record::{BLOCK_MAX_BYTES, Extent, PAGE_BYTES, SUMS_HERE, SUMS_IN_PARTS, SUMS_UNKNOWN};
pub use name::{ATTRIBUTE_KEY_MAX_BYTES, NAME_MAX_BYTES, check_attribute_key, check_name};
pub use record::{FileSpec, Record, part_path, sums_path};
pub use shared::SharedPart;
pub use small::{SmallSpace, shared_path};
pub use store::{Drive, PARTS, is_full};

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, PoisonError, RwLock};

use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::Handle;
use crate::sys::fsyncs::Since;
use crate::sys::notices::Notices;
use crate::sys::sync::{Mutex, lock};
use journal::Journal;
use journal::commits::Ticket;
use labels::Labels;
use log::record::FileRecord;
use small::SmallFiles;
use state::files::Files;
use store::Locks;

/// How to open an array's catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The one process that changes the array.
    Writer,
    /// One of many that read it.
    Reader,
    /// Without any lock, beside a writer: for listing only. Length and content of a file may change at any time.
    Peek,
}

/// The catalog of an open array. Drop it after [`Catalog::close`]; a drop alone is like the end of the process.
pub struct Catalog {
    platform: Arc<dyn Platform>,
    mode: OpenMode,
    id: Id,
    labels: Labels,
    store: Store,
    small: SmallFiles,
    /// Whether changes of names and attributes wait until they are durable (C19).
    syncs_changes: bool,
    /// The last change of names or attributes.
    named: Mutex<Ticket>,
    /// The number of such changes in progress.
    naming: AtomicUsize,
    /// Files that have lost their names to changes of this process, each with that change. An entry is removed with the
    /// last handle.
    buried: Mutex<BTreeMap<u64, Ticket>>,
    /// Dying files without a handle, each with the ticket of its own change or of a later one. They wait until that
    /// change is durable (C21). Then a thread takes the ticket and removes the file. The entry stays until the record
    /// `gone`, so that no other thread removes the file, too.
    waiting: Mutex<BTreeMap<u64, Option<Ticket>>>,
    /// Dying files with parts that are unlinked, but not yet durably (rule 7), each with the moment before that.
    removed: Mutex<BTreeMap<u64, Since>>,
    /// Held for reading by what writes to the drives (rule 8).
    is_closed: RwLock<bool>,
    locks: Mutex<Locks>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, mode, drives) = (self.id.to_string(), self.mode, self.drives().len());
        f.debug_struct("Catalog")
            .field("array", &id)
            .field("mode", &mode)
            .field("drives", &drives)
            .finish_non_exhaustive()
    }
}

/// Where the files are known.
#[derive(Debug)]
enum Store {
    /// In a writer.
    Journal(Box<Journal>),
    /// In a process that reads.
    Files(Box<Files>),
}

impl Catalog {
    /// The array's id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The epoch of the labels.
    pub fn epoch(&self) -> u64 {
        lock(&self.labels.body).epoch
    }

    /// The drives with a copy of the log that counts, by index.
    pub fn voters(&self) -> Vec<u16> {
        lock(&self.labels.body).voters.clone()
    }

    /// All drives, by index.
    pub fn drives(&self) -> &[Drive] {
        &self.labels.drives
    }

    /// How it was opened.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Whether it was opened for changing the array.
    pub fn is_writer(&self) -> bool {
        self.mode == OpenMode::Writer
    }

    /// Problems found so far that do not hinder use, one line each.
    pub fn notices(&self) -> &Arc<Notices> {
        &self.labels.notices
    }

    /// Looks at the files. `look` does no I/O and takes no other lock.
    fn with_files<R>(&self, look: impl FnOnce(&Files) -> R) -> R {
        match &self.store {
            Store::Journal(journal) => look(&journal.files()),
            Store::Files(files) => look(files),
        }
    }

    /// Sets whether changes of names and attributes wait until they are durable. If not, they are durable with the next
    /// change that waits, and after [`Catalog::sync_changes`].
    pub fn set_syncs_changes(&mut self, syncs_changes: bool) {
        self.syncs_changes = syncs_changes;
    }

    /// Names of the files that begin with `prefix`, sorted.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        self.with_files(|files| {
            let found = files.from(prefix).take_while(|file| file.name.starts_with(prefix));
            found.map(|file| file.name.to_owned()).collect()
        })
    }

    /// The number of files with a name.
    pub fn count(&self) -> usize {
        self.with_files(|files| files.len() - files.dying().count())
    }

    /// The number that the next file has, unless another thread makes one before.
    pub fn next_number(&self) -> u64 {
        self.with_files(Files::next_number)
    }

    /// The number of the file of that name.
    pub fn number(&self, name: &str) -> Result<u64> {
        self.check_known()?;
        let found = self.with_files(|files| files.named(name).map(|file| file.number));
        found.ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    /// The record of the file of that name.
    pub fn record(&self, name: &str) -> Result<Arc<Record>> {
        self.check_known()?;
        let found = self.with_files(|files| files.named(name).map(|file| self.record_of(files, &file)));
        found.ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    /// The record of a file by its number, also of a dying one.
    pub fn numbered(&self, number: u64) -> Option<Arc<Record>> {
        self.with_files(|files| files.numbered(number).map(|file| self.record_of(files, &file)))
    }

    /// The records of all files, sorted by name.
    #[cfg(test)]
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.with_files(|files| files.from("").map(|file| self.record_of(files, &file)).collect())
    }

    /// The records of the files in some slots that have a name.
    fn in_slots(&self, slots: Range<u32>) -> Vec<Record> {
        self.with_files(|files| {
            let live = slots.filter_map(|slot| files.in_slot(slot)).filter(|file| !file.name.is_empty());
            live.map(|file| Record::of(self.id, files, &file)).collect()
        })
    }

    /// The id of a file, by its number.
    pub fn id_of(&self, number: u64) -> Id {
        record::file_id(self.id, number)
    }

    fn record_of(&self, files: &Files, file: &FileRecord<'_>) -> Arc<Record> {
        Arc::new(Record::of(self.id, files, file))
    }

    /// An error if a change has failed on all copies of the log: then the state in memory may be wrong.
    fn check_known(&self) -> Result<()> {
        match &self.store {
            Store::Journal(journal) => journal.check_known(),
            Store::Files(_) => Ok(()),
        }
    }

    /// The descriptors that hold the array's lock. They are registered in every ring of a writer, so that the lock
    /// outlives I/O in flight after a kill.
    pub fn lock_handles(&self) -> Vec<Handle> {
        lock(&self.locks).files().iter().map(|file| file.handle()).collect()
    }

    /// Makes all changes durable, and releases the lock. Later changes fail. A second close does nothing.
    pub fn close(&self) -> Result<()> {
        let mut is_closed = self.is_closed.write().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_closed, true) {
            return Ok(());
        }
        let closed = match &self.store {
            Store::Journal(journal) => {
                let committed = journal.commit_all();
                self.remove_waiting(journal);
                self.give_back_excess();
                self.settle_removed(journal);
                committed.and(journal.close())
            }
            Store::Files(_) => Ok(()),
        };
        self.small.close();
        closed.and(lock(&self.locks).release())
    }

    /// Notes a problem that is not worth an error; once, however often it happens.
    fn notice(&self, text: String) {
        self.labels.notices.push(text);
    }

    fn drives_of<'a>(&'a self, indices: &'a [u16]) -> impl Iterator<Item = &'a Drive> {
        // No layout has an index beyond the array: `open` refuses such a one, and `layout_of` makes none.
        indices.iter().filter_map(|&index| self.drives().get(usize::from(index)))
    }
}
