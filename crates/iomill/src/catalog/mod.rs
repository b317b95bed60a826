//! The catalog: which drives make up an array, which files it has, and how long each is.
//!
//! Goals: every change is all-or-nothing over a crash at any point, and durable on all drives when it is acknowledged;
//! what is wrong on a drive is an error that names it. Non-goals: the data of files; which of them are open (the
//! caller keeps that); speed of changes (each costs a few syncs per drive). `docs/format.md` describes the bytes.
//!
//! All I/O goes through [`DriveFs`](crate::sys::fs::DriveFs) and [`Platform`]: no thread, no clock, no other file
//! operation, so that a simulator can run all of it on one thread.
//!
//! # Rules
//!
//! 1. *Form.* Labels and records are TOML with a format number, and a last line with a checksum over all bytes before.
//!    An unknown key is an error, and so is a later format. `# checksum none` is believed only by `check --repair`,
//!    which signs it: so a person can mend a file.
//! 2. *Replacing.* A file is replaced by a temporary one of unpredictable name in the same directory: written, synced,
//!    renamed, directory synced. A change of several drives writes and syncs all temporary files before the first
//!    rename, so that a full drive refuses it while nothing has changed. The next writer removes left-over ones.
//! 3. *Create.* Empty parts and lengths of 0 are made durable first, then the record (generation 1) goes to every drive
//!    of the array. Parts and lengths without a record are the traces of a crash and are removed by the next writer
//!    when all those parts are empty. A part with bytes in it but without a record is never removed.
//! 4. *Delete.* A tombstone (next generation, state `deleted`) is made durable on every drive; then parts are cut and
//!    unlinked, and lengths unlinked, durably; then the tombstones go. A tombstone that is found is finished by the next
//!    writer.
//! 5. *Rename.* One new generation with the new name. When that replaces a file, the record names its id in `replaces`,
//!    and a file so named is dead, whatever its own record says; its deletion follows by rule 4. While such a tombstone
//!    is not yet durable on every drive, no other change begins, so that no record that names a file is lost before it.
//! 6. *Versions.* Of the copies of a record the highest valid generation rules. A writer brings the other copies up at
//!    open and notes it; readers do so in memory. Copies of one generation with different bytes, and a record without
//!    any good copy, are errors.
//! 7. *Labels.* Of the labels of an array the one with the highest epoch rules; those of one epoch agree. All drives
//!    that it lists must be there, each once, found by hints and proven by ids. A writer that finds drives in other
//!    places writes labels with the next epoch.
//! 8. *Lock.* `lock` is made once, never replaced, and locked on every drive in the order of indices: exclusively by
//!    the writer, shared by readers. Labels are read again under the lock.
//! 9. *Init.* Labels are written with epoch 0 on all drives, then with epoch 1. So a drive with epoch 0 has never held
//!    a file, and a later init may take it; an array opens when at least one of its labels has left epoch 0, since
//!    then all drives have theirs.
//! 10. *Length.* Two slots, written in turn, on up to three drives; the highest valid sequence rules. A length is
//!     published on all its copies or the publisher hears of it; a failed sequence number is never used again, and the
//!     slot of the last good one is not touched before a later one is good.
//! 11. *Failure.* A change that fails before its first rename has not happened. One that fails later is superseded on
//!     all drives by a next generation with the old content (for a create, a tombstone), and has not happened then
//!     either. When that fails too the outcome is unknown, and the catalog takes no more changes.
//! 12. *Space.* Each drive keeps a little space in `spare`. A delete, and the superseding of a failed change, gives it
//!     up when the drive is full, so that a full array can always be emptied; it is taken again afterwards.
//! 13. *Building on what is found.* What a killed process left may be in memory only. A writer syncs the directories of
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
pub enum Mode {
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
    mode: Mode,
    id: Id,
    epoch: u64,
    /// Whether all labels are as they should be: a writer sees to it, but may fail.
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
    /// Why there are none any more (rule 11).
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
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether it was opened for changing the array.
    pub fn is_writer(&self) -> bool {
        self.mode == Mode::Writer
    }

    /// What was found amiss so far and does not hinder use, one line each.
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

    /// Gives the lock back. Later changes fail; closing again does nothing.
    pub fn close(&self) -> Result<()> {
        lock(&self.changes).closed = true;
        lock(&self.locks).release()
    }

    /// Notes what is not worth an error; once, however often it happens.
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
