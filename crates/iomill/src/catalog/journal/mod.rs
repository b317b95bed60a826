//! [`Journal`]: the files in memory, and the log that makes their changes durable.
//!
//! Goals: a change is checked, applied and queued under one lock (C16). Callers that want it durable share the fsync
//! (C17). No change waits for the upkeep of the log: the next segment, checkpoints, and reserved space (C25 to C30). A
//! copy that fails in upkeep is left behind, as after a failed append (C13). Non-goals: what changes there are, what
//! labels are, and the time of upkeep (`keeper`).
//!
//! Locks are taken in this order: `checkpoint`, `making`, `writing`, and the files after any of them. Upkeep holds
//! `writing` during no I/O except that of labels.

pub mod checkpoint;
pub mod commits;
mod keeper;
pub mod space;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::id::fill_random;
use super::log::bytes::Cursor;
use super::log::group::group_bytes;
use super::log::header::{FileKind, LogPosition};
use super::log::merged::{LogEnd, Merged, Replay, Stop, Visit, Voter, read_beside_writer};
use super::log::place::{LogFiles, checkpoint_path, cut_reserve, fill_reserve, segment_path};
use super::log::record::{LogFault, LogRecord};
use super::log::writer::{Announce, LogPlace, LogWriter, NextSegment};
use super::state::files::Files;
use super::store::{LOG, is_full, unlink_if_there};
use checkpoint::{CheckpointWriter, Failures, Start, checkpoint_header};
use commits::{CommitQueue, Commits, Failed, Ticket};
use keeper::Keeper;

use crate::error::{Error, Result};
use crate::sys::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock, RwLockReadGuard, lock, read, write};
use crate::sys::thread::Thread;

/// The distance by which numbers go on higher after a crash (C24).
pub const NUMBERS_AFTER_CRASH: u64 = 1 << 32;
/// The least length of an instalment in bytes. It is longer if the group before it was: four times its length.
const INSTALMENT_BYTES: u64 = 64 << 10;

/// Records that wait for an fsync.
#[derive(Debug, Default)]
pub struct QueuedRecords {
    records: Vec<u8>,
    count: u32,
}

/// The records of one change.
#[derive(Debug, Default)]
pub struct ChangeRecords {
    records: Vec<u8>,
    count: u32,
}

impl ChangeRecords {
    /// Adds a record.
    pub fn push(&mut self, record: &LogRecord<'_>) {
        record.encode(&mut self.records);
        self.count += 1;
    }

    /// Bytes of the records.
    pub fn bytes(&self) -> usize {
        self.records.len()
    }
}

/// Reads the log into files.
#[derive(Debug, Default)]
struct FilesReplay {
    files: Files,
    /// Numbers in the order of names.
    hint: Vec<u64>,
    /// Up to this group of the log records may be late (C27).
    late_until: u64,
    /// Whether to refuse what only readers may skip.
    writes: bool,
}

impl Replay for FilesReplay {
    fn reset(&mut self) {
        *self = FilesReplay { writes: self.writes, ..FilesReplay::default() };
    }

    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        let in_checkpoint = matches!(visit.header.kind, FileKind::Checkpoint { .. });
        let is_late = in_checkpoint || visit.group.header.sequence <= self.late_until;
        let take = |record: LogRecord<'_>| {
            match &record {
                LogRecord::Order(numbers) => self.hint.extend_from_slice(numbers),
                LogRecord::End { sequence, .. } => self.late_until = *sequence,
                _ => {}
            }
            self.files.apply(&record, is_late)
        };
        Ok(visit.group.each_record(self.writes, take)?)
    }
}

/// How a journal is kept.
#[derive(Clone, Copy, Debug)]
pub struct Upkeep {
    /// A checkpoint begins when the log behind the last one is longer than this, and than that one.
    pub checkpoint_bytes: u64,
    /// The largest instalment of a checkpoint.
    pub instalment_bytes: u64,
}

impl Default for Upkeep {
    fn default() -> Upkeep {
        Upkeep { checkpoint_bytes: 16 << 20, instalment_bytes: 1 << 20 }
    }
}

/// See the module.
pub struct Journal {
    shared: Arc<Shared>,
    /// The last thread that kept the log up. It may have ended.
    thread: Mutex<Option<Thread>>,
}

struct Shared {
    place: LogPlace,
    upkeep: Upkeep,
    files: RwLock<Files>,
    commits: Commits<QueuedRecords>,
    /// The checkpoint in progress.
    checkpoint: Mutex<Option<Checkpointing>>,
    /// Held by the thread that makes the next segment, or changes the space that is set aside.
    making: Mutex<()>,
    /// The leader has it.
    writing: Mutex<Writing>,
    keeper: Keeper,
    /// Whether changes that need space may go on (C29).
    has_room: AtomicBool,
    /// Bytes for groups before a segment is needed that is not made.
    left: AtomicU64,
    /// Files have numbers from this one on.
    first_number: AtomicU64,
    /// Whether the log says that it is open.
    has_begun: AtomicBool,
}

struct Writing {
    log: LogWriter,
    labels: Box<dyn Announce + Send>,
    /// Whether a checkpoint is in progress.
    is_checkpointing: bool,
    /// Bytes of the last checkpoint.
    last_bytes: u64,
    /// No checkpoint begins before the log is longer than this: the last try failed.
    not_before: u64,
}

/// A checkpoint in progress.
struct Checkpointing {
    writer: CheckpointWriter,
    /// The last change that it shows, once it shows all.
    shows: Option<Ticket>,
    /// How long the log was when it began.
    log_bytes: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("array", &self.shared.place.array).finish_non_exhaustive()
    }
}

fn has_failed() -> Error {
    let why = "an earlier change of the catalog failed on all drives that hold it";
    Error::read_only(why).advise("close the array and open it again")
}

/// The files as a reader sees them, and the end of the log (C31, C32).
pub fn read_files(voters: &[Voter], array: super::Id) -> Result<(Files, LogEnd)> {
    read_log(voters, array).map(|(files, end, _)| (files, end))
}

/// The same, with the copies of the log.
pub fn read_log(voters: &[Voter], array: super::Id) -> Result<(Files, LogEnd, Merged)> {
    let mut replay = FilesReplay::default();
    let (merged, end) = read_beside_writer(voters, array, &mut replay)?;
    Ok((finish(replay, voters)?, end, merged))
}

fn finish(replay: FilesReplay, voters: &[Voter]) -> Result<Files> {
    let mut files = replay.files;
    let damage = |fault: LogFault| {
        Error::corrupt(voters.first().map(|voter| voter.fs.root().join(LOG)).unwrap_or_default(), fault.to_string())
    };
    files.index(replay.hint).map_err(damage)?;
    Ok(files)
}

impl Journal {
    /// Opens the journal for writing, and brings the copies up.
    pub fn open(
        place: LogPlace,
        upkeep: Upkeep,
        voters: &[Voter],
        back: &[Voter],
        epoch: u64,
        mut labels: Box<dyn Announce + Send>,
    ) -> Result<Journal> {
        let mut replay = FilesReplay { writes: true, ..FilesReplay::default() };
        let (log, end) = place.open(voters, back, epoch, &mut replay, &mut *labels)?;
        let files = finish(replay, voters)?;
        let (has_room, left) = (AtomicBool::new(log.has_room()), AtomicU64::new(log.left()));
        let writing = Writing { log, labels, is_checkpointing: false, last_bytes: 0, not_before: 0 };
        let next = files.next_number();
        let first_number = if end.is_closed { next } else { next.saturating_add(NUMBERS_AFTER_CRASH) };
        let shared = Shared {
            place,
            upkeep,
            files: RwLock::new(files),
            commits: Commits::default(),
            checkpoint: Mutex::new(None),
            making: Mutex::new(()),
            writing: Mutex::new(writing),
            keeper: Keeper::default(),
            has_room,
            left,
            first_number: AtomicU64::new(first_number),
            has_begun: AtomicBool::new(false),
        };
        Ok(Journal { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    /// Before the first change the log says durably that it is open. Otherwise the next writer would take it for closed
    /// after a crash, and give numbers again that changes without sync had (C24).
    fn begin(&self) -> Result<()> {
        // Acquire: pairs with the Release below, so that later changes are behind this one.
        if self.shared.has_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let ((), ticket) = self.queue(false, |_, change| {
            // Relaxed: it is set before the first change.
            change.push(&LogRecord::Numbers(self.shared.first_number.load(Ordering::Relaxed)));
            Ok(())
        })?;
        self.commit(ticket)?;
        self.shared.set_space_aside();
        self.shared.has_begun.store(true, Ordering::Release);
        Ok(())
    }

    /// Makes the array ready for changes: the log says that it is open, and then the drives say that this opening is in
    /// use (C42). Files get numbers from `least` on.
    pub fn start(&self, least: u64) -> Result<()> {
        // Relaxed: no other thread has the journal yet.
        self.shared.first_number.fetch_max(least, Ordering::Relaxed);
        self.begin()?;
        let mut writing = lock(&self.shared.writing);
        let Writing { log, labels, .. } = &mut *writing;
        labels.use_begun(log.sequence(), log.end().1)
    }

    /// A number that no file has had or will get, without a record (C24, C40).
    pub fn reserve_number(&self) -> Result<u64> {
        self.begin()?;
        write(&self.shared.files).reserve_number()
    }

    /// The files. Do no I/O and take no other lock while this is held.
    pub fn files(&self) -> RwLockReadGuard<'_, Files> {
        read(&self.shared.files)
    }

    /// Makes a change, which is durable when [`Journal::commit`] has returned. `plan` checks the files and adds the
    /// records; it may be called more than once. With `needs_space` the change is refused when the drives are full
    /// (C29).
    pub fn change<R>(
        &self,
        needs_space: bool,
        plan: impl FnMut(&Files, &mut ChangeRecords) -> Result<R>,
    ) -> Result<(R, Ticket)> {
        self.begin()?;
        self.queue(needs_space, plan)
    }

    fn queue<R>(
        &self,
        needs_space: bool,
        mut plan: impl FnMut(&Files, &mut ChangeRecords) -> Result<R>,
    ) -> Result<(R, Ticket)> {
        let mut is_forced = false;
        loop {
            // Relaxed: a hint. If this sees the value late, half a segment is still free.
            if needs_space && !self.shared.has_room.load(Ordering::Relaxed) {
                return Err(self.no_room());
            }
            let mut files = write(&self.shared.files);
            let mut change = ChangeRecords::default();
            let result = plan(&files, &mut change)?;
            if change.count == 0 {
                // The state that the caller has seen may not be durable yet.
                return Ok((result, self.shared.commits.last()));
            }
            let (bytes, most) = (change.records.len(), self.shared.place.group_max_bytes());
            if bytes > most {
                let error = Error::invalid(format!("a change of {bytes} bytes"), format!("at most {most} go at once"));
                return Err(error.advise("use fewer or shorter attributes"));
            }
            // Acquire: pairs with the Release in `note_room`.
            let left = if is_forced { u64::MAX } else { self.shared.left.load(Ordering::Acquire) };
            let queued = self.shared.commits.queue_beside(|queue, taken| queue.add(&change, most, left, taken));
            match queued {
                Ok(ticket) => {
                    apply(&mut files, &change)?;
                    return Ok((result, ticket));
                }
                Err(NotQueued::Failed) => return Err(has_failed()),
                Err(NotQueued::Full) => {
                    drop(files);
                    // An error is about the changes of others: this one is not made.
                    self.commit(self.shared.commits.last()).map_err(|error| match error {
                        Error::OutcomeUnknown { .. } if self.shared.commits.has_failed() => has_failed(),
                        Error::OutcomeUnknown { source, .. } => *source,
                        error => error,
                    })?;
                }
                Err(NotQueued::NoPlace) => {
                    drop(files);
                    // Before anything of the change is applied, so that it may be refused (C29).
                    self.shared.make_place(false)?;
                    is_forced = true;
                }
            }
        }
    }

    /// An error if a change has failed on all voters (C14).
    pub fn check_known(&self) -> Result<()> {
        if self.shared.commits.has_failed() { Err(has_failed()) } else { Ok(()) }
    }

    /// The last change that was made.
    pub fn last(&self) -> Ticket {
        self.shared.commits.last()
    }

    /// Whether a change is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        self.shared.commits.is_durable(ticket)
    }

    /// Makes all changes durable that were made.
    pub fn commit_all(&self) -> Result<()> {
        self.commit(self.shared.commits.last())
    }

    /// Makes a change durable, and all before it.
    pub fn commit(&self, ticket: Ticket) -> Result<()> {
        let mut group_bytes = 0;
        let mut is_due = false;
        let lead = |queue: &mut QueuedRecords| {
            group_bytes = queue.records.len() as u64;
            is_due = self.shared.lead(queue)?;
            Ok(())
        };
        let is_put_off = |_: &Error| lock(&self.shared.writing).log.is_put_off();
        let committed = self.shared.commits.commit_or_put_off(ticket, lead, is_put_off);
        // The callers of this turn have their results.
        if is_due {
            self.keep_up(group_bytes);
        }
        committed.map_err(|error| match error {
            Some(error) => {
                Error::OutcomeUnknown { what: "a change of the catalog".to_owned(), source: Box::new(error) }
            }
            // The change was applied, and the group that was to have it may be on some drive (C14).
            None => Error::OutcomeUnknown {
                what: "a change of the catalog".to_owned(),
                source: Box::new(self.group_failed()),
            },
        })
    }

    /// The error of a change in a group that another caller led, and that failed.
    fn group_failed(&self) -> Error {
        let path = lock(&self.shared.writing).log.first().fs.location().to_owned();
        let why = "its group of changes could not be written to any copy of the log";
        Error::drive(path, why).advise("the notices say why")
    }

    /// Wakes the thread, or without threads does a part of its work.
    fn keep_up(&self, group_bytes: u64) {
        if self.shared.place.platform.threads() && self.has_thread() {
            return;
        }
        let bytes = (4 * group_bytes).max(INSTALMENT_BYTES).min(self.shared.upkeep.instalment_bytes);
        self.shared.step(bytes);
    }

    /// Wakes or starts the thread. `false` if none can be started.
    fn has_thread(&self) -> bool {
        if !self.shared.keeper.wake() {
            return true;
        }
        let shared = Arc::clone(&self.shared);
        let started = Thread::start("iomill-log", move || shared.serve());
        let last = match started {
            Ok(thread) => lock(&self.thread).replace(thread),
            Err(error) => {
                self.shared.keeper.has_not_started();
                let text = format!("no thread for the checkpoints of the log, so changes wait for them: {error}");
                lock(&self.shared.writing).labels.notice(text);
                return false;
            }
        };
        // It has seen that there is nothing to do, and ends at this moment.
        last.into_iter().for_each(Thread::join);
        true
    }

    /// Ends the thread, and waits for it.
    fn end_thread(&self) {
        self.shared.keeper.end();
        let thread = lock(&self.thread).take();
        thread.into_iter().for_each(Thread::join);
    }

    /// Makes all changes durable, and ends the log cleanly. No change is made afterwards.
    pub fn close(&self) -> Result<()> {
        let shared = &*self.shared;
        if !shared.has_begun.load(Ordering::Acquire) {
            return Ok(());
        }
        self.commit(shared.commits.last())?;
        self.end_thread();
        *lock(&shared.checkpoint) = None;
        let mut closed = ChangeRecords::default();
        closed.push(&LogRecord::Closed);
        shared.append(&closed.records, closed.count)?;
        let mut writing = lock(&shared.writing);
        let Writing { log, labels, .. } = &mut *writing;
        labels.prove(log.sequence(), log.end().1);
        Ok(())
    }

    fn no_room(&self) -> Error {
        let path = lock(&self.shared.writing).log.first().fs.root().join(LOG);
        let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
        Error::Io { action: "make room for a change of the catalog in", path, offset: None, source }
    }

    /// Tries again to make the next segment after a drive was full, or a small one if no other fits. Whether changes
    /// that need space may go on.
    pub fn make_room(&self, may_be_small: bool) -> bool {
        // Any error is temporary, and the change returns it.
        let has_made = |small| self.shared.make_place(small).is_ok() && self.shared.has_room.load(Ordering::Relaxed);
        has_made(false) || (may_be_small && has_made(true))
    }

    /// The voters, by their drives.
    pub fn voters(&self) -> Vec<usize> {
        lock(&self.shared.writing).log.voters()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Shared {
    /// The leader's turn. Whether there is anything to keep up.
    fn lead(&self, queue: &QueuedRecords) -> Result<bool> {
        self.append(&queue.records, queue.count)
    }

    fn append(&self, records: &[u8], count: u32) -> Result<bool> {
        let mut writing = lock(&self.writing);
        let mut making = None;
        if !writing.log.has_place(records.len()) {
            // The next segment is late. Either another thread makes it at this moment, or this one does.
            drop(writing);
            making = Some(lock(&self.making));
            writing = lock(&self.writing);
        }
        let Writing { log, labels, .. } = &mut *writing;
        let appended = log.append(records, count, &mut **labels);
        drop(making);
        self.note_room(&writing);
        appended?;
        Ok(writing.is_due(&self.upkeep))
    }

    fn note_room(&self, writing: &Writing) {
        // Relaxed: a hint, see `change`.
        self.has_room.store(writing.log.has_room(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `queue`. The turn that has used the bytes ends after this.
        self.left.store(writing.log.left(), Ordering::Release);
    }

    /// The thread: keeps the log up as long as leaders ask for it.
    fn serve(&self) {
        while self.keeper.next() {
            // A panic of one step must not end the thread. Its message has been printed.
            let step = || self.step(self.upkeep.instalment_bytes);
            while !self.keeper.ends() && catch_unwind(AssertUnwindSafe(step)).unwrap_or(false) {}
        }
    }

    /// Makes the next segment if it is time, and writes `instalment` more bytes of the checkpoint. A failure costs no
    /// change, and is noted. Returns whether the checkpoint can go on at once.
    fn step(&self, instalment: u64) -> bool {
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
    fn make_place(&self, small: bool) -> Result<()> {
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
        // On each drive, also after a failure on another.
        let failed = voters.iter().filter(|voter| cut_reserve(&voter.fs).is_err()).count();
        failed == 0
    }

    /// Sets space aside for the next segment and checkpoint (C30). Without it changes go on as long as there is space.
    fn set_space_aside(&self) {
        // A leader on a full drive may just have given up the old space, and needs it.
        let _making = lock(&self.making);
        let (bytes, voters) = {
            let writing = lock(&self.writing);
            let voters: Vec<Voter> = writing.log.copies().collect();
            (writing.last_bytes.max(self.place.segment_bytes), voters)
        };
        let bytes = self.place.segment_bytes + bytes + bytes / 4;
        for error in voters.iter().filter_map(|voter| fill_reserve(&voter.fs, bytes).err()) {
            let text = format!("no space could be set aside for the log of a full drive: {error}");
            lock(&self.writing).labels.notice(text);
        }
    }
}

impl Writing {
    /// Whether there is anything to keep up.
    fn is_due(&self, upkeep: &Upkeep) -> bool {
        self.is_checkpointing || self.log.is_next_due() || self.wants_checkpoint(upkeep)
    }

    fn wants_checkpoint(&self, upkeep: &Upkeep) -> bool {
        let log_bytes = self.log.log_bytes();
        let is_long = log_bytes > upkeep.checkpoint_bytes.max(self.last_bytes);
        // A checkpoint frees space on a full drive, because the log before it is removed.
        let is_wanted = is_long || self.log.has_lost() || (!self.log.has_room() && log_bytes >= self.last_bytes);
        is_wanted && log_bytes > self.not_before
    }

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

enum NotQueued {
    Failed,
    /// The queue has no room for the change (C19).
    Full,
    /// The log needs another segment for it.
    NoPlace,
}

impl From<Failed> for NotQueued {
    fn from(_: Failed) -> NotQueued {
        NotQueued::Failed
    }
}

impl CommitQueue for QueuedRecords {
    fn empty(&mut self) {
        self.records.clear();
        self.count = 0;
    }

    fn weight(&self) -> u64 {
        if self.count == 0 { 0 } else { group_bytes(self.records.len()) }
    }
}

impl QueuedRecords {
    /// A group has at most `most` bytes of records. The log has room for `left` bytes of groups, and the group in
    /// progress takes `taken` of them.
    fn add(&mut self, change: &ChangeRecords, most: usize, left: u64, taken: u64) -> Result<(), NotQueued> {
        if self.count > 0 && self.records.len() + change.records.len() > most {
            return Err(NotQueued::Full);
        }
        if taken + group_bytes(self.records.len() + change.records.len()) > left {
            return Err(NotQueued::NoPlace);
        }
        self.records.extend_from_slice(&change.records);
        self.count += change.count;
        Ok(())
    }
}

/// Applies a change in the way in which a replay does.
fn apply(files: &mut Files, change: &ChangeRecords) -> Result<()> {
    let mut cursor = Cursor::new(&change.records);
    while !cursor.is_empty() {
        let applied = LogRecord::decode(&mut cursor, true).and_then(|record| match record {
            Some(record) => files.apply(&record, false),
            None => Ok(()),
        });
        applied.map_err(|fault| Error::invalid("a change of the catalog", fault.to_string()))?;
    }
    Ok(())
}
