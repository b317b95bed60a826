//! The upkeep of the log: the next segment, checkpoints, and reserved space (C25 to C30).
//!
//! Goals: no change waits for upkeep (C25), and a copy that fails here is left behind, as after a failed append (C13).
//! Non-goals: the time of its runs (`keeper`).
//!
//! Locks are taken in this order: `checkpoint`, `making`, `writing`, and the files after any of them. Here `writing` is
//! held during no I/O except that of labels.

use super::checkpoint::{CheckpointWriter, Failures, Start, checkpoint_header};
use super::commits::Ticket;
use super::{Shared, Upkeep, Writing};
use crate::catalog::id::fill_random;
use crate::catalog::log::header::LogPosition;
use crate::catalog::log::merged::Voter;
use crate::catalog::log::next::NextSegment;
use crate::catalog::log::place::{LogFiles, checkpoint_path, cut_reserve, fill_reserve, segment_path};
use crate::catalog::store::is_full;
use crate::catalog::store::unlink_if_there;
use crate::error::{Error, Result};
use crate::sys::sync::{lock, read};

/// A checkpoint in progress.
pub(super) struct Checkpointing {
    writer: CheckpointWriter,
    /// The last change that it shows, once it shows all.
    pub(super) shows: Option<Ticket>,
    /// How long the log was when it began.
    log_bytes: u64,
}

impl Writing {
    /// Whether there is anything to keep up.
    pub(super) fn is_due(&self, upkeep: &Upkeep) -> bool {
        self.is_checkpointing || self.log.is_next_due() || self.wants_checkpoint(upkeep)
    }

    fn wants_checkpoint(&self, upkeep: &Upkeep) -> bool {
        let log_bytes = self.log.log_bytes();
        let is_long = log_bytes > upkeep.checkpoint_bytes.max(self.last_bytes);
        // A checkpoint frees space on a full drive, because the log before it is removed.
        let is_wanted = is_long || self.log.has_lost() || (!self.log.has_room() && log_bytes >= self.last_bytes);
        is_wanted && log_bytes > self.not_before
    }
}

impl Shared {
    /// Makes the next segment if it is time, and writes `instalment` more bytes of the checkpoint. A failure costs no
    /// change, and is noted. Returns whether the checkpoint can go on at once.
    pub(super) fn step(&self, instalment: u64) -> bool {
        self.make_next();
        let mut place = lock(&self.checkpoint);
        let next = match place.take() {
            None => self.begin_checkpoint(),
            Some(checkpoint) => self.go_on(checkpoint, instalment),
        };
        lock(&self.writing).is_checkpointing = next.is_some();
        let waits = |ticket| !self.commits.is_durable(ticket);
        let goes_on = next.as_ref().is_some_and(|checkpoint| !checkpoint.shows.is_some_and(waits));
        *place = next;
        goes_on
    }

    fn make_next(&self) {
        let _making = lock(&self.making);
        let planned = {
            let mut writing = lock(&self.writing);
            if !writing.log.is_next_due() {
                return;
            }
            writing.log.plan_next(false)
        };
        let made = planned.and_then(NextSegment::make);
        let mut writing = lock(&self.writing);
        let Writing { log, labels, .. } = &mut *writing;
        if let Err(error) = log.take_next(made, &mut **labels) {
            labels.notice(format!("the next segment of the log could not be made, and is tried again: {error}"));
        }
        self.note_room(&writing);
    }

    /// Makes the next segment for a change that finds no place for its group. An error is one that passes: then nothing
    /// has changed. All else is left to the leader.
    pub(super) fn make_place(&self, small: bool) -> Result<()> {
        let _making = lock(&self.making);
        let planned = {
            let mut writing = lock(&self.writing);
            if writing.log.left() == u64::MAX {
                self.note_room(&writing);
                return Ok(());
            }
            writing.log.plan_next(small)
        };
        let made = planned.and_then(NextSegment::make);
        let mut writing = lock(&self.writing);
        let Writing { log, labels, .. } = &mut *writing;
        let taken = log.take_next(made, &mut **labels);
        self.note_room(&writing);
        match taken {
            Err(error) if error.passes() => Err(error),
            _ => Ok(()),
        }
    }

    fn begin_checkpoint(&self) -> Option<Checkpointing> {
        let mut salt = [0; 8];
        let filled = fill_random(&*self.place.platform, &mut salt);
        let (start, writer, log_bytes, voters) = {
            let mut writing = lock(&self.writing);
            if !writing.wants_checkpoint(&self.upkeep) {
                return None;
            }
            if let Err(error) = filled {
                writing.checkpoint_failed(&error, false);
                return None;
            }
            let (position, checksum) = writing.log.end();
            let start = Start { sequence: writing.log.sequence(), checksum, position };
            let voters: Vec<Voter> = writing.log.copies().collect();
            (start, (writing.log.epoch(), writing.log.opening()), writing.log.log_bytes(), voters)
        };
        let header = checkpoint_header(self.place.array, start.sequence, u64::from_le_bytes(salt));
        let (writer, failures) = CheckpointWriter::begin(header, voters.into_iter(), start, writer);
        self.outlives(failures).then_some(Checkpointing { writer, shows: None, log_bytes })
    }

    fn go_on(&self, mut checkpoint: Checkpointing, instalment: u64) -> Option<Checkpointing> {
        // All that it shows was queued before this turn's group was taken, or is durable by an earlier one.
        if checkpoint.shows.is_some_and(|ticket| self.commits.is_durable(ticket)) {
            self.end_checkpoint(checkpoint);
            return None;
        }
        let until = checkpoint.writer.written_bytes() + instalment;
        while checkpoint.shows.is_none() && checkpoint.writer.written_bytes() < until {
            let files = read(&self.files);
            let is_last = checkpoint.writer.copy(&files, instalment as usize);
            checkpoint.shows = is_last.then(|| self.commits.last());
            drop(files);
            let failures = checkpoint.writer.write();
            if !self.outlives(failures) {
                return None;
            }
        }
        Some(checkpoint)
    }

    fn end_checkpoint(&self, checkpoint: Checkpointing) {
        let Checkpointing { writer, log_bytes, .. } = checkpoint;
        let (start, written) = (writer.start, writer.written_bytes());
        let next = read(&self.files).next_number();
        let sequence = lock(&self.writing).log.sequence();
        let failures = writer.finish(next, sequence);
        if !self.outlives(failures) {
            return;
        }
        let voters: Vec<Voter> = {
            let mut writing = lock(&self.writing);
            (writing.last_bytes, writing.not_before) = (written, 0);
            let since = writing.log.log_bytes() - log_bytes;
            writing.log.begins_again(since);
            writing.log.copies().collect()
        };
        for voter in voters {
            if let Err(error) = remove_before(&voter, start.sequence, start.position) {
                self.outlives(vec![(voter.drive, error)]);
            }
        }
        self.set_space_aside();
    }

    /// Leaves the drives behind on which something failed (C13). Returns whether the checkpoint can go on. It cannot
    /// when a drive is full, when the process lacks something, or when the last voter fails: its log may still be good.
    fn outlives(&self, failures: Failures) -> bool {
        let mut goes_on = true;
        for (drive, error) in failures {
            if error.passes() {
                // The process lacks something, and the drive does not.
                lock(&self.writing).checkpoint_failed(&error, false);
                goes_on = false;
                continue;
            }
            if is_full(&error) {
                let has_cut = self.cut_reserves();
                lock(&self.writing).checkpoint_failed(&error, has_cut);
                goes_on = false;
                continue;
            }
            let mut writing = lock(&self.writing);
            let Writing { log, labels, .. } = &mut *writing;
            if let Err(error) = log.give_up(drive, error, &mut **labels) {
                writing.checkpoint_failed(&error, false);
                goes_on = false;
            }
        }
        goes_on
    }

    /// Frees the reserved space (C30). Returns whether it is free now.
    fn cut_reserves(&self) -> bool {
        let _making = lock(&self.making);
        let voters: Vec<Voter> = lock(&self.writing).log.copies().collect();
        voters.iter().all(|voter| cut_reserve(&voter.fs).is_ok())
    }

    /// Sets space aside for the next segment and checkpoint (C30). Without it changes go on as long as there is space.
    pub(super) fn set_space_aside(&self) {
        // A leader on a full drive may just have given up the old space, and needs it.
        let _making = lock(&self.making);
        let (bytes, voters) = {
            let writing = lock(&self.writing);
            let voters: Vec<Voter> = writing.log.copies().collect();
            (writing.last_bytes.max(self.place.segment_bytes), voters)
        };
        let bytes = self.place.segment_bytes + bytes + bytes / 4;
        if let Err(error) = voters.iter().try_for_each(|voter| fill_reserve(&voter.fs, bytes)) {
            let text = format!("no space could be set aside for the log of a full drive: {error}");
            lock(&self.writing).labels.notice(text);
        }
    }
}

impl Writing {
    /// No checkpoint begins for a while. With the space that was set aside the next try may succeed.
    fn checkpoint_failed(&mut self, error: &Error, has_cut: bool) {
        self.not_before = if has_cut { 0 } else { 2 * self.log.log_bytes() };
        self.labels.notice(format!("a checkpoint failed, and is tried again: {error}"));
    }
}

/// Removes the files of the log from before a checkpoint.
fn remove_before(voter: &Voter, checkpoint: u64, start: LogPosition) -> Result<()> {
    let fs = &*voter.fs;
    let files = LogFiles::list(fs)?;
    for number in files.segments.iter().filter(|number| **number < start.segment) {
        unlink_if_there(fs, &segment_path(*number))?;
    }
    for number in files.checkpoints.iter().filter(|number| **number != checkpoint) {
        unlink_if_there(fs, &checkpoint_path(*number))?;
    }
    Ok(())
}
