//! [`CheckpointWriter`]: writes a checkpoint by instalments (C25 to C27).
//!
//! Goals: an instalment copies a few records under the lock of the files, and writes them without it. Non-goals: when
//! to begin and when to go on (`journal`).
//!
//! A checkpoint may show changes that are queued and not durable. So it gets its name only when the log is durable up
//! to the last change that it shows. The record `end` names that group, E.

use crate::catalog::log::group::{GROUP_MAX_BYTES, GroupHeader, OpeningId};
use crate::catalog::log::header::{Features, FileHeader, FileKind, LogPosition};
use crate::catalog::log::merged::Voter;
use crate::catalog::log::place::{Making, checkpoint_path};
use crate::catalog::log::record::{FileRecord, LogRecord};
use crate::catalog::state::files::Files;
use crate::error::Error;

/// A checkpoint is synced each time it has grown by this many bytes. A concurrent fsync of the log waits for no more
/// than these.
const SYNC_BYTES: u64 = 1 << 20;

/// The place in the log where the replay of a checkpoint begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Behind this group.
    pub sequence: u64,
    /// Its checksum.
    pub checksum: u64,
    /// The place of the next group.
    pub position: LogPosition,
}

/// A checkpoint that is being written on all voters.
#[derive(Debug)]
pub struct CheckpointWriter {
    /// The state of the log when the checkpoint began.
    pub start: Start,
    salt: u64,
    epoch: u64,
    opening: OpeningId,
    copies: Vec<(usize, Making)>,
    stage: Stage,
    files: u64,
    sequence: u64,
    checksum: u64,
    records: Vec<u8>,
    count: u32,
    /// Whole groups that are to be written.
    group: Vec<u8>,
    /// Bytes that were written since the last sync.
    unsynced: u64,
    /// All bytes.
    written: u64,
    /// The highest number of a copied layout. 0 before the first. Numbers rise, and layouts are never removed.
    last_layout: u32,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Layouts, shared parts, drives.
    Small,
    /// Files from this slot on.
    Files(u32),
    /// Leaves of the order from this one on.
    Order(usize),
    /// Nothing but the end.
    End,
}

/// Copies of a checkpoint that failed, and are not written any more: the drive, and why.
pub type Failures = Vec<(usize, Error)>;

impl CheckpointWriter {
    /// Begins a checkpoint on all `voters`, by the epoch of the labels and the opening that writes it.
    pub fn begin(
        header: impl Fn(FileKind) -> FileHeader,
        voters: impl Iterator<Item = Voter>,
        start: Start,
        (epoch, opening): (u64, OpeningId),
    ) -> (CheckpointWriter, Failures) {
        let header = header(FileKind::Checkpoint { start: start.position, previous: start.checksum });
        let (mut copies, mut failures) = (Vec::new(), Failures::new());
        for voter in voters {
            match Making::begin(&voter.fs, checkpoint_path(header.number), &header) {
                Ok(making) => copies.push((voter.drive, making)),
                Err(error) => failures.push((voter.drive, error)),
            }
        }
        let writer = CheckpointWriter {
            start,
            salt: header.salt,
            epoch,
            opening,
            copies,
            stage: Stage::Small,
            files: 0,
            sequence: 0,
            checksum: 0,
            records: Vec::new(),
            count: 0,
            group: Vec::new(),
            unsynced: 0,
            written: 0,
            last_layout: 0,
        };
        (writer, failures)
    }

    /// Copies the records of the next instalment, of about `bytes`. Returns whether that was the last one. The caller
    /// holds the lock of the files.
    pub fn copy(&mut self, files: &Files, bytes: usize) -> bool {
        let bytes = bytes.min(GROUP_MAX_BYTES / 2);
        // A file that is copied now may have a layout that came since the last instalment. A reader must know it before
        // the file.
        self.copy_layouts(files);
        if self.stage == Stage::Small {
            self.copy_shared(files);
            self.stage = Stage::Files(0);
            return false;
        }
        while let Stage::Files(slot) = self.stage {
            if slot == files.slots() {
                self.stage = Stage::Order(0);
                break;
            }
            if let Some(file) = files.in_slot(slot) {
                self.copy_file(files, &file);
            }
            self.stage = Stage::Files(slot + 1);
            if self.copied_bytes() >= bytes {
                return false;
            }
        }
        while let Stage::Order(leaf) = self.stage {
            let Some(numbers) = files.order_leaf(leaf) else {
                self.stage = Stage::End;
                break;
            };
            self.push(&LogRecord::Order(numbers));
            self.stage = Stage::Order(leaf + 1);
            if self.copied_bytes() >= bytes {
                return false;
            }
        }
        true
    }

    fn copy_layouts(&mut self, files: &Files) {
        for layout in files.layouts_above(self.last_layout) {
            self.push(&LogRecord::Layout(layout.clone()));
            self.last_layout = layout.number;
        }
    }

    fn copy_shared(&mut self, files: &Files) {
        for ((drive, shared), pages) in files.shared() {
            self.push(&LogRecord::Shared { drive, shared, pages });
        }
    }

    fn copy_file(&mut self, files: &Files, file: &FileRecord<'_>) {
        self.files += 1;
        self.push(&LogRecord::File(*file));
        for (key, value) in files.attributes(file.number) {
            self.push(&LogRecord::Attribute { number: file.number, key, value: Some(value) });
        }
    }

    /// Bytes that were copied and not written.
    fn copied_bytes(&self) -> usize {
        self.group.len() + self.records.len()
    }

    /// Adds a record. A group that it does not fit into ends before it, so a file or the list of layouts may have any
    /// size.
    fn push(&mut self, record: &LogRecord<'_>) {
        let before = self.records.len();
        record.encode(&mut self.records);
        if self.records.len() > GROUP_MAX_BYTES {
            let last = self.records.split_off(before);
            self.seal();
            self.records = last;
        }
        self.count += 1;
    }

    /// Ends the group of the records that were added.
    fn seal(&mut self) {
        if self.count == 0 {
            return;
        }
        self.sequence += 1;
        let header = GroupHeader {
            salt: self.salt,
            sequence: self.sequence,
            durable: 0,
            epoch: self.epoch,
            previous: self.checksum,
            records: self.count,
            opening: self.opening,
        };
        self.checksum = header.seal(&self.records, &mut self.group);
        self.records.clear();
        self.count = 0;
    }

    /// Writes the instalment that was copied. Copies that fail are left out from now on.
    pub fn write(&mut self) -> Failures {
        self.seal();
        if self.group.is_empty() {
            return Failures::new();
        }
        self.written += self.group.len() as u64;
        self.unsynced += self.group.len() as u64;
        let syncs = self.unsynced >= SYNC_BYTES;
        if syncs {
            self.unsynced = 0;
        }
        let mut failures = Failures::new();
        self.copies.retain_mut(|(drive, making)| {
            let written = making.append(&self.group).and_then(|()| if syncs { making.sync() } else { Ok(()) });
            written.map_err(|error| failures.push((*drive, error))).is_ok()
        });
        self.group.clear();
        failures
    }

    /// Bytes that were written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written
    }

    /// Ends the checkpoint. The log is durable up to group `sequence` and has all changes that the checkpoint shows.
    /// `next` is the number of the next file.
    pub fn finish(mut self, next: u64, sequence: u64) -> Failures {
        let files = self.files;
        self.push(&LogRecord::End { files, next, sequence });
        let mut failures = self.write();
        for (drive, making) in self.copies {
            failures.extend(making.finish().err().map(|error| (drive, error)));
        }
        failures
    }
}

/// The header of a checkpoint of an array.
pub fn checkpoint_header(array: crate::catalog::Id, number: u64, salt: u64) -> impl Fn(FileKind) -> FileHeader {
    move |kind| FileHeader { kind, array, number, salt, features: Features::default() }
}
