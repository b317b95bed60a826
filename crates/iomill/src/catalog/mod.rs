//! The catalog: which drives make up an array, which files it has, and how long each is.
//!
//! Goals: every change is all-or-nothing over a crash at any point, and durable on all drives when it is acknowledged. An error
//! about a drive names that drive. Non-goals: the data of files; which files are open (the caller knows that); speed of changes
//! (each costs a few syncs per drive). `docs/format.md` describes the bytes.
//!
//! All I/O goes through [`DriveFs`](crate::sys::fs::DriveFs) and [`Platform`]. The catalog uses no thread, no clock and no other
//! file operation, so that a simulator can run all of it on one thread.
//!
//! # Rules
//!
//! 1. *Form.* Labels and records are TOML with a format number, and a last line with a checksum over all bytes before. An unknown
//!    key is an error, and so is a later format. Only `check --repair` accepts `# checksum none`, and signs it: so a person can
//!    mend a file.
//! 2. *Replacing.* A temporary file of unpredictable name in the same directory replaces a file: written, synced, renamed,
//!    directory synced. A change of several drives writes and syncs all temporary files before the first rename. So a full drive
//!    refuses the change while nothing has changed. The next writer removes temporary files that are left.
//! 3. *Create.* Empty parts and lengths of 0 are made durable first. Then the record (generation 1) goes to every drive of the
//!    array. Parts and lengths without a record are the traces of a crash. The next writer removes them when all those parts are
//!    empty. A part that holds bytes but has no record is never removed.
//! 4. *Delete.* A tombstone (next generation, state `deleted`) is made durable on every drive. Then parts are cut and unlinked,
//!    and lengths unlinked, durably. Then the tombstones go. The next writer that finds a tombstone finishes the deletion.
//! 5. *Rename.* A rename is one new generation with the new name. When it replaces a file, the record names that file's id in
//!    `replaces`. The replaced file is then dead, whatever its own record says, and is deleted by rule 4. While its tombstone is
//!    not yet durable on every drive, no other change begins. So the record that names a dead file is never lost before the
//!    tombstone.
//! 6. *Versions.* The highest valid generation rules among the copies of a record. A writer updates the other copies at open and
//!    notes it. Readers do so in memory. Two cases are errors: copies of one generation with different bytes, and a record
//!    without any good copy.
//! 7. *Labels.* The label with the highest epoch rules; labels of one epoch agree. All drives that it lists must be there, each
//!    once, found by hints and proven by ids. A writer that finds drives in other places writes labels with the next epoch.
//! 8. *Lock.* `lock` is made once, never replaced, and locked on every drive in the order of indices: exclusively by the writer,
//!    shared by readers. Labels are read again under the lock.
//! 9. *Init.* Labels are written with epoch 0 on all drives, then with epoch 1. So a drive with epoch 0 has never held a file,
//!    and a later init may take it. An array opens when at least one of its labels has left epoch 0, since then all drives have
//!    theirs.
//! 10. *Length.* A length has two slots, written in turn, on up to three drives; the highest valid sequence rules. A length is
//!     published on all its copies, or the publisher gets an error. A failed sequence number is never used again. The slot of the
//!     last good length is not touched before a later one is good.
//! 11. *Failure.* A change that fails before its first rename has not happened. A change that fails later is superseded on all
//!     drives by a next generation with the old content (for a create, a tombstone). It has not happened then either. When that
//!     fails too the outcome is unknown, and the catalog takes no more changes.
//! 12. *Space.* Each drive keeps a little space in `spare`. When the drive is full, a delete, and the superseding of a failed
//!     change, gives that space up. So a full array can always be emptied. The space is taken again afterwards.
//! 13. *Building on what is found.* The changes of a killed process may be in memory only. A writer syncs the directories of
//!     every drive, and the lengths it opens, before it builds on them.

mod change;
mod check;
mod discovery;
mod id;
mod init;
mod label;
mod length;
mod name;
mod open;
mod plan;
mod record;
mod scan;
mod spare;
mod store;
mod text;

#[cfg(test)]
mod tests;

pub use check::{Report, check};
pub use id::Id;
pub use label::{DRIVES_MAX, DriveState, Label, LabelDrive, WEIGHT_MAX, parse_label};
pub use length::LengthFile;
pub use name::{ATTRIBUTE_KEY_MAX_BYTES, NAME_MAX_BYTES, check_attribute_key, check_name};
pub use plan::{Problem, Severity};
pub use record::{
    BLOCK_MAX_BYTES, FileSpec, LENGTH_COPIES_MAX, PAGE_BYTES, RECORD_MAX_BYTES, Record, RecordState, length_path,
    parse_record, part_path, record_path,
};
pub use store::Drive;
pub use text::TextError;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::Handle;
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

/// The catalog of an open array. Closes when it is dropped.
#[derive(Debug)]
pub struct Catalog {
    platform: Arc<dyn Platform>,
    mode: OpenMode,
    id: Id,
    epoch: u64,
    /// Whether all labels are right. A writer corrects them, but may fail.
    labels_agree: bool,
    /// By index.
    drives: Vec<Drive>,
    /// Serializes changes. Locked before `index` and `notices`, which are never held over I/O.
    changes: Mutex<Changes>,
    /// The files there are, by name.
    index: Mutex<BTreeMap<String, Arc<Record>>>,
    notices: Mutex<Vec<String>>,
    locks: Mutex<Locks>,
}

/// What governs changes.
#[derive(Debug, Default)]
struct Changes {
    /// Why the catalog takes no more changes (rule 11).
    failed: Option<String>,
    closed: bool,
    /// Tombstones of replaced files that are not yet known to be durable on every drive (rule 5).
    unsettled: Vec<Record>,
}

impl Catalog {
    /// The array's id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The epoch of the labels, as they were read or written at open.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All drives, by index.
    pub fn drives(&self) -> &[Drive] {
        &self.drives
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
    pub fn notices(&self) -> Vec<String> {
        lock(&self.notices).clone()
    }

    /// Names of the files that begin with `prefix`, sorted.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        let index = lock(&self.index);
        let from = index.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(name, _)| name).take_while(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// The record of the file of that name.
    pub fn record(&self, name: &str) -> Result<Arc<Record>> {
        let found = lock(&self.index).get(name).cloned();
        found.ok_or_else(|| Error::NotFound { name: name.to_owned() })
    }

    /// The records of all files, sorted by name.
    pub fn records(&self) -> Vec<Arc<Record>> {
        lock(&self.index).values().cloned().collect()
    }

    /// The descriptors that hold the array's lock. They are registered in every ring of a writer, so that the lock
    /// outlives I/O in flight after a kill.
    pub fn lock_handles(&self) -> Vec<Handle> {
        lock(&self.locks).files().iter().map(|file| file.handle()).collect()
    }

    /// Gives the lock back. Later changes fail. A second close does nothing.
    pub fn close(&self) -> Result<()> {
        lock(&self.changes).closed = true;
        lock(&self.locks).release()
    }

    /// Notes a problem that is not worth an error; once, however often it happens.
    fn notice(&self, text: String) {
        let mut notices = lock(&self.notices);
        if !notices.contains(&text) {
            notices.push(text);
        }
    }
}

/// Takes a lock. Each holder changes its data in single steps, so the data is whole even after a panic of a holder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
