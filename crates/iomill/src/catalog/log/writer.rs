//! [`LogWriter`]: appends groups to all voters. [`NextSegment`]: the segment after the active one, which is made while
//! groups are appended (C29).
//!
//! Goals: a group is durable on all voters of a durable epoch when `append` returns (C18). Non-goals: which changes are
//! in a group (`commits`). One thread at a time has the writer: the leader.

use std::collections::VecDeque;
use std::sync::Arc;

use super::group::{GROUP_MAX_BYTES, GroupHeader, OpeningId, group_bytes};
use super::header::{BLOCK_BYTES, Features, FileHeader, FileKind, LogPosition};
use super::mend::{bring_up, make_first, open_mended, remove_copy, remove_others};
use super::merged::{LogEnd, Merged, Replay, Voter};
use super::place::{cut_reserve, make_segment, open_for_groups, segment_path};
use super::record::LogRecord;
use crate::catalog::Id;
use crate::catalog::id::fill_random;
use crate::catalog::store::{full_path, is_full, unlink_if_there};
use crate::engine::platform::{DurableWrite, Platform, write_durably};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile};
use crate::sys::memory::PageBuf;
use crate::sys::sync::give_way;

/// Bytes of the first segment: two groups of the largest size fit.
pub const SEGMENT_MIN_BYTES: u64 = 256 << 10;
/// The largest ratio of the length of later segments to that of the first.
const SEGMENT_GROWTH: u64 = 16;
/// The length of the group that names the next segment, in bytes.
const CONTINUES_BYTES: u64 = BLOCK_BYTES;
/// How often a group is written again to a voter that lacks nothing but memory for it.
const WRITE_TRIES: u32 = 8;
/// The number of groups after a try without space until the next segment is tried again.
const GROUPS_BETWEEN_TRIES: u64 = 16;

/// Makes the labels say which voters there are (C10).
pub trait Announce {
    /// Makes labels with this epoch and these voters, by their drives, durable on all voters. Returns the voters on
    /// which that failed.
    fn announce(&mut self, epoch: u64, voters: &[usize]) -> Vec<usize>;

    /// Refuses a log that is not the one of the drives. Then says durably on all drives that another opening begins
    /// (C42).
    fn begin(&mut self, merged: &Merged, end: &LogEnd) -> Result<OpeningId>;

    /// Says durably on all drives that the opening makes changes from now on (C42). This group of the log is durable.
    fn use_begun(&mut self, sequence: u64, checksum: u64) -> Result<()>;

    /// Notes that this group of the log is durable, before the array is closed (C44).
    fn prove(&mut self, sequence: u64, checksum: u64);

    /// Why the last announcement failed on a voter, if that passes: then the voter is not at fault.
    fn passing(&mut self) -> Option<Error> {
        None
    }

    /// Takes a line for the user.
    fn notice(&mut self, text: String);
}

/// The facts of the array that a writer needs.
#[derive(Clone, Debug)]
pub struct LogPlace {
    /// The world of the drives.
    pub platform: Arc<dyn Platform>,
    /// The array.
    pub array: Id,
    /// Bytes of the first segment, [`SEGMENT_MIN_BYTES`]. Tests have less, and smaller groups.
    pub segment_bytes: u64,
    /// Whether an opening compares all of the copies also after a clean close, which finds rot.
    pub compares_all: bool,
}

/// A voter that groups go to.
#[derive(Debug)]
struct ActiveVoter {
    /// The drive and its place among the voters.
    voter: Voter,
    /// The segment that groups go to.
    file: DriveFile,
    /// The segment after it, if it is made.
    next: Option<DriveFile>,
    /// Why `next` could not be made.
    next_failure: Option<Error>,
    /// It has failed, and no fsync is tried on it again (C12).
    failure: Option<Error>,
}

impl ActiveVoter {
    /// A voter and its open active segment.
    fn new(voter: &Voter, file: DriveFile) -> ActiveVoter {
        ActiveVoter { voter: voter.clone(), file, next: None, next_failure: None, failure: None }
    }

    /// An error if the segment is shorter than it was made. A write into it would leave a hole in place of groups that
    /// are lost.
    fn check_uncut(&self, least: u64) -> Result<()> {
        let path = || full_path(&*self.voter.fs, self.file.path());
        let len = self.file.fs().len(self.file.handle()).map_err(|error| Error::io("measure", path(), error))?;
        if len >= least {
            return Ok(());
        }
        Err(Error::corrupt(path(), format!("it has {len} bytes of {least}: it was cut")))
    }

    /// A group that is to be written to it.
    fn write<'a>(&'a self, bytes: &'a [u8], offset: u64) -> DurableWrite<'a> {
        DurableWrite { fs: &**self.file.fs(), handle: self.file.handle(), bytes, offset }
    }
}

/// The log, open for appending.
#[derive(Debug)]
pub struct LogWriter {
    place: LogPlace,
    voters: Vec<ActiveVoter>,
    /// A voter of the opening, for the error when none is left.
    first: Voter,
    /// The segment that groups go to.
    active: FileHeader,
    /// The segment after it, if it is made on all voters (C29).
    next: Option<FileHeader>,
    /// Whether a copy was left behind since the last checkpoint.
    has_lost: bool,
    /// Whether a drive had no space for it.
    is_full: bool,
    /// No try to make the next segment before this group.
    next_try: u64,
    /// A group in `buffer` that is not durable on all voters, because the machine lacked something. It is written
    /// before any other group: a voter may have it already (C2).
    pending: Option<Pending>,
    /// The records of later groups, with their number: they are put off, too.
    held: VecDeque<(Vec<u8>, u32)>,
    /// Whether the labels still name a voter that was left behind, because the process lacked something when they were
    /// to be written.
    owes_labels: bool,
    /// The last group.
    sequence: u64,
    checksum: u64,
    /// The place of the next group in the active segment.
    offset: u64,
    /// The last group that is durable on all voters.
    durable: u64,
    epoch: u64,
    opening: OpeningId,
    /// Bytes of the groups of the log since the last checkpoint.
    log_bytes: u64,
    buffer: Vec<u8>,
    /// The group again, at an address that direct I/O takes.
    aligned: PageBuf,
}

/// The header of a group to write.
#[derive(Clone, Copy, Debug)]
struct Pending {
    sequence: u64,
    checksum: u64,
    /// Whether it names the next segment.
    continues: bool,
}

impl LogPlace {
    /// Most bytes of records in a group of this log: two fit into the first segment.
    pub fn group_max_bytes(&self) -> usize {
        GROUP_MAX_BYTES.min(self.segment_bytes as usize / 2 - BLOCK_BYTES as usize)
    }

    fn header(&self, number: u64, bytes: u64) -> Result<FileHeader> {
        let mut salt = [0; 8];
        fill_random(&*self.platform, &mut salt)?;
        let (kind, salt) = (FileKind::Segment { bytes }, u64::from_le_bytes(salt));
        Ok(FileHeader { kind, array: self.array, number, salt, features: Features::default() })
    }

    /// Makes a log on the voters of a new array. It has no name in a label yet. Its first group is that of a clean
    /// close, so the first writer does not take it for the log of one that crashed before its first fsync (C24).
    /// Returns the checksum of the group.
    pub fn create(&self, voters: &[Voter], opening: OpeningId) -> Result<u64> {
        let header = self.header(1, self.segment_bytes)?;
        let (group, checksum) = first_group(&header, 1, 1, opening);
        voters.iter().try_for_each(|voter| make_first(&voter.fs, &header, &group))?;
        Ok(checksum)
    }

    /// Reads the log into `replay`, completes the copies of all `voters`, and makes the drives in `back` voters again
    /// (C11, C15). A drive that fails is left behind. `epoch` is that of the labels.
    pub fn open(
        &self,
        voters: &[Voter],
        back: &[Voter],
        epoch: u64,
        replay: &mut dyn Replay,
        labels: &mut dyn Announce,
    ) -> Result<(LogWriter, LogEnd)> {
        let mut merged = Merged::list(voters, self.array, true)?;
        let end = merged.read(replay)?;
        merged.refuse_apart(&end)?;
        let opening = labels.begin(&merged, &end)?;
        let mut active = Vec::new();
        let (mut changed, mut lost) = (false, false);
        let mut ups = Vec::new();
        for (at, voter) in voters.iter().chain(back).enumerate() {
            let is_voter = at < voters.len();
            let removed = if is_voter { Ok(()) } else { remove_copy(&*voter.fs) };
            let is_certain = is_voter && !self.compares_all;
            ups.push(removed.and_then(|()| bring_up(&mut merged, &end, voter, is_certain)));
        }
        // What passes says nothing about a voter.
        if let Some(at) = ups.iter().position(|up| up.as_ref().is_err_and(Error::passes)) {
            return Err(ups.swap_remove(at).err().unwrap_or_else(|| no_voter(voters)));
        }
        for (at, (voter, up)) in voters.iter().chain(back).zip(ups).enumerate() {
            let is_voter = at < voters.len();
            let up = up.and_then(|found| {
                remove_others(&*voter.fs, &end)?;
                Ok((found, open_active(voter, &end)?))
            });
            match up {
                Ok((found, (file, header))) => {
                    changed |= !is_voter;
                    note_mended(labels, voter, found.filter(|_| is_voter));
                    active.push((ActiveVoter::new(voter, file), header));
                }
                Err(error) if error.passes() => return Err(error),
                Err(error) => {
                    changed |= is_voter;
                    lost |= is_voter;
                    labels.notice(left_behind(voter, &error));
                }
            }
        }
        let mut writer = self.begin(active, voters, &end, (epoch, opening))?;
        writer.has_lost = lost;
        if changed {
            writer.change_epoch(labels)?;
        }
        Ok((writer, end))
    }

    /// A writer that continues at the end of the log, on `active`, the good ones of `voters`.
    fn begin(
        &self,
        active: Vec<(ActiveVoter, FileHeader)>,
        voters: &[Voter],
        end: &LogEnd,
        (epoch, opening): (u64, OpeningId),
    ) -> Result<LogWriter> {
        let Some((first, header)) = active.first().map(|(first, header)| (first.voter.clone(), *header)) else {
            return Err(no_voter(voters));
        };
        let most_bytes = group_bytes(self.group_max_bytes());
        let aligned = PageBuf::new(most_bytes as usize).map_err(Error::memory("groups of the log", most_bytes))?;
        Ok(LogWriter {
            place: self.clone(),
            voters: active.into_iter().map(|(voter, _)| voter).collect(),
            first,
            active: header,
            next: None,
            has_lost: false,
            is_full: false,
            next_try: 0,
            pending: None,
            held: VecDeque::new(),
            owes_labels: false,
            sequence: end.sequence,
            checksum: end.checksum,
            offset: end.position.offset,
            durable: end.sequence,
            epoch,
            opening,
            log_bytes: end.log_bytes,
            buffer: Vec::new(),
            aligned,
        })
    }
}

fn note_mended(labels: &mut dyn Announce, voter: &Voter, found: Option<String>) {
    if let Some(found) = found {
        labels.notice(format!("{}: the log was behind ({found}; put right)", voter.fs.location().display()));
    }
}

impl LogWriter {
    /// The number of the last group.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The epoch of the labels.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The opening that writes.
    pub fn opening(&self) -> OpeningId {
        self.opening
    }

    /// The voters, by their drives.
    pub fn voters(&self) -> Vec<usize> {
        self.voters.iter().map(|voter| voter.voter.drive).collect()
    }

    /// The copies that groups go to.
    pub fn copies(&self) -> impl Iterator<Item = Voter> {
        self.voters.iter().map(|voter| voter.voter.clone())
    }

    /// The place of the next group, and the checksum of the group before it.
    pub fn end(&self) -> (LogPosition, u64) {
        (LogPosition { segment: self.active.number, offset: self.offset }, self.checksum)
    }

    /// Bytes of groups since the last checkpoint.
    pub fn log_bytes(&self) -> u64 {
        self.log_bytes
    }

    /// Whether changes that need space may go on: the last try to make the next segment did not find a full drive
    /// (C29).
    pub fn has_room(&self) -> bool {
        !self.is_full
    }

    /// Whether the last group waits to be written again. The error of [`LogWriter::append`] was one that passes.
    pub fn is_put_off(&self) -> bool {
        self.pending.is_some() && !self.voters.is_empty()
    }

    /// Appends a group of records, and makes it durable on all voters. A voter that fails is left behind by a durable
    /// epoch. The error is that of the last voter: then the outcome is not known (C14). Or the machine lacks something.
    /// Then the group is put off: it is written before the next one. Without records only such a group is written.
    pub fn append(&mut self, records: &[u8], count: u32, labels: &mut dyn Announce) -> Result<()> {
        if self.voters.is_empty() {
            return Err(no_voter(std::slice::from_ref(&self.first)));
        }
        if let Err(error) = self.write_put_off(labels) {
            if count > 0 && self.is_put_off() {
                self.held.push_back((records.to_vec(), count));
            }
            return Err(error);
        }
        if count == 0 { Ok(()) } else { self.append_new(records, count, labels) }
    }

    /// Appends to the active segment, or to the next one.
    fn append_new(&mut self, records: &[u8], count: u32, labels: &mut dyn Announce) -> Result<()> {
        if !self.fits(records.len()) {
            self.make_next(labels)?;
            let mut continues = Vec::new();
            LogRecord::Continues(self.active.number + 1).encode(&mut continues);
            // If that group is put off, this one is, too.
            self.held.push_front((records.to_vec(), count));
            self.append_here(&continues, 1, true, labels)?;
            self.held.pop_front();
        }
        assert!(self.fits(records.len()), "a group was not divided");
        self.append_here(records, count, false, labels)
    }

    /// Whether the active segment has room for such a group, and for the group that names the next segment (C46).
    fn fits(&self, records_bytes: usize) -> bool {
        self.place_of_next() + group_bytes(records_bytes) + CONTINUES_BYTES <= segment_bytes(&self.active)
    }

    /// Appends to the active segment, which has room.
    fn append_here(&mut self, records: &[u8], count: u32, continues: bool, labels: &mut dyn Announce) -> Result<()> {
        let header = GroupHeader {
            salt: self.active.salt,
            sequence: self.sequence + 1,
            durable: self.durable,
            epoch: self.epoch,
            previous: self.checksum,
            records: count,
            opening: self.opening,
        };
        self.buffer.clear();
        let checksum = header.seal(records, &mut self.buffer);
        self.pending = Some(Pending { sequence: header.sequence, checksum, continues });
        self.write_pending(labels)
    }

    /// Writes the groups that were put off: the group in `buffer`, and those after it.
    fn write_put_off(&mut self, labels: &mut dyn Announce) -> Result<()> {
        self.write_pending(labels)?;
        while let Some((records, count)) = self.held.pop_front() {
            self.append_new(&records, count, labels)?;
        }
        Ok(())
    }

    /// The place of the next group, in bytes of the active segment, if the group in `buffer` becomes durable before it.
    fn place_of_next(&self) -> u64 {
        self.offset + if self.pending.is_some() { self.buffer.len() as u64 } else { 0 }
    }

    /// Writes the group in `buffer`, if there is one that is not durable yet.
    fn write_pending(&mut self, labels: &mut dyn Announce) -> Result<()> {
        let Some(Pending { sequence, checksum, continues }) = self.pending else { return Ok(()) };
        self.write_buffer();
        for left in (0..WRITE_TRIES).rev() {
            let passing = self.voters.iter_mut().filter(|voter| voter.failure.as_ref().is_some_and(Error::passes));
            let Some(error) = passing.filter_map(|voter| voter.failure.take()).last() else { break };
            if left == 0 {
                return Err(error);
            }
            give_way();
            // All voters get the same bytes again. So no later fsync acknowledges bytes that a voter has lost.
            self.write_buffer();
        }
        self.leave_failed_behind(labels)?;
        if self.owes_labels {
            self.change_epoch(labels)?;
        }
        self.pending = None;
        (self.sequence, self.checksum) = (sequence, checksum);
        self.offset += self.buffer.len() as u64;
        self.log_bytes += self.buffer.len() as u64;
        self.durable = self.sequence;
        if continues {
            self.enter_next();
        }
        Ok(())
    }

    /// Bytes for groups before a segment is needed that is not made. The next segment has room for each group.
    pub fn left(&self) -> u64 {
        if self.next.is_some() {
            return u64::MAX;
        }
        let held: u64 = self.held.iter().map(|(records, _)| group_bytes(records.len())).sum();
        segment_bytes(&self.active).saturating_sub(self.place_of_next() + held + CONTINUES_BYTES)
    }

    /// Writes the group to all voters that are well, and syncs them. Notes which fail.
    fn write_buffer(&mut self) {
        let bytes = &mut self.aligned.as_mut_slice()[..self.buffer.len()];
        bytes.copy_from_slice(&self.buffer);
        let (bytes, offset) = (&*bytes, self.offset);
        let least = segment_bytes(&self.active);
        for voter in self.voters.iter_mut().filter(|voter| voter.failure.is_none()) {
            voter.failure = voter.check_uncut(least).err();
        }
        let well = self.voters.iter().filter(|voter| voter.failure.is_none());
        let writes: Vec<DurableWrite<'_>> = well.map(|voter| voter.write(bytes, offset)).collect();
        let results = write_durably(&*self.place.platform, &writes);
        let well = self.voters.iter_mut().filter(|voter| voter.failure.is_none());
        for (voter, result) in well.zip(results) {
            let path = || full_path(&*voter.voter.fs, voter.file.path());
            voter.failure = result.err().map(|error| Error::io("append to", path(), error));
        }
    }

    /// Goes on without the voters that have failed (C13).
    fn leave_failed_behind(&mut self, labels: &mut dyn Announce) -> Result<()> {
        let mut last = None;
        self.has_lost |= self.voters.iter().any(|voter| voter.failure.is_some());
        for voter in self.voters.extract_if(.., |voter| voter.failure.is_some()) {
            if let Some(error) = voter.failure {
                labels.notice(left_behind(&voter.voter, &error));
                last = Some(error);
            }
        }
        match last {
            None => Ok(()),
            Some(error) if self.voters.is_empty() => Err(error),
            Some(_) => self.change_epoch(labels),
        }
    }

    /// Makes labels of the next epoch name the voters that are left. Voters without a new label are left behind too.
    fn change_epoch(&mut self, labels: &mut dyn Announce) -> Result<()> {
        loop {
            let names = self.voters();
            self.owes_labels = true;
            let failed = labels.announce(self.epoch + 1, &names);
            self.epoch += 1;
            if let Some(error) = labels.passing() {
                return Err(error);
            }
            self.owes_labels = !failed.is_empty();
            if failed.is_empty() {
                return Ok(());
            }
            let last = self.voters.last().map(|voter| voter.voter.clone());
            self.voters.retain(|voter| !failed.contains(&voter.voter.drive));
            if self.voters.is_empty() {
                return Err(no_voter(last.as_slice()));
            }
        }
    }

    /// Makes the next segment now if it was not made ahead, and continues without the voters that lack it.
    fn make_next(&mut self, labels: &mut dyn Announce) -> Result<()> {
        if self.voters.iter().all(|voter| voter.next.is_none()) {
            // The copies that had it are left behind.
            self.next = None;
        }
        if self.next.is_none() {
            let made = self.plan_next(false)?.make();
            if made.as_ref().is_err_and(is_full) {
                // Only deletes reach this (C29), and the checkpoint that follows frees more (C30).
                self.is_full = true;
                self.voters.iter().try_for_each(|voter| cut_reserve(&voter.voter.fs))?;
                let small = self.plan_next(true)?.make()?;
                self.take_next(Ok(small), labels)?;
                self.is_full = true;
            } else {
                self.take_next(made, labels)?;
            }
        }
        // Only copies with the next segment may name it (C46).
        for voter in self.voters.iter_mut().filter(|voter| voter.next.is_none()) {
            voter.failure = voter.next_failure.take();
        }
        self.leave_failed_behind(labels)
    }

    /// Goes to the next segment. The log names it first (C46).
    fn enter_next(&mut self) {
        let Some(next) = self.next.take() else { return };
        for voter in &mut self.voters {
            if let Some(file) = voter.next.take() {
                voter.file = file;
            }
        }
        (self.active, self.offset) = (next, BLOCK_BYTES);
    }

    /// Whether a group with this length of records, in bytes, fits into the segments that are made.
    pub fn has_place(&self, records_bytes: usize) -> bool {
        // The groups that were put off precede it.
        self.held.is_empty() && (self.next.is_some() || self.fits(records_bytes))
    }

    /// Whether it is time to make the next segment (C29).
    pub fn is_next_due(&self) -> bool {
        let is_half_full = self.offset > segment_bytes(&self.active) / 2;
        self.next.is_none() && is_half_full && self.sequence >= self.next_try
    }

    /// The next segment. It can be made while groups are appended. Until [`LogWriter::take_next`] has it, no other is
    /// planned.
    pub fn plan_next(&mut self, small: bool) -> Result<NextSegment> {
        self.next_try = self.sequence + GROUPS_BETWEEN_TRIES;
        let first = self.place.segment_bytes;
        let bytes = if small { first } else { (2 * segment_bytes(&self.active)).clamp(first, SEGMENT_GROWTH * first) };
        let header = self.place.header(self.active.number + 1, bytes)?;
        Ok(NextSegment { header, voters: self.copies().collect() })
    }

    /// Takes the next segment, or the error of its making. Lack of space is not an error: `has_room` reports it. A
    /// voter that has failed for another reason is left behind when the segment's first group is appended.
    pub fn take_next(&mut self, made: Result<MadeSegment>, labels: &mut dyn Announce) -> Result<()> {
        let made = match made {
            Err(error) if is_full(&error) => {
                self.is_full = true;
                labels.notice(format!("no space for the next segment of the log, so only deletes go on: {error}"));
                return Ok(());
            }
            made => made?,
        };
        for (drive, result) in made.files {
            // A voter may have been left behind meanwhile.
            let Some(voter) = self.voters.iter_mut().find(|voter| voter.voter.drive == drive) else { continue };
            match result {
                Ok(file) => (voter.next, voter.next_failure) = (Some(file), None),
                Err(error) => voter.next_failure = Some(error),
            }
        }
        (self.next, self.is_full) = (Some(made.header), false);
        Ok(())
    }

    /// Leaves a voter behind that has failed elsewhere than at a group, as after a failed append (C13). If it is the
    /// last voter, returns the error and changes nothing.
    pub fn give_up(&mut self, drive: usize, error: Error, labels: &mut dyn Announce) -> Result<()> {
        let is_last = self.voters.len() < 2;
        match self.voters.iter_mut().find(|voter| voter.voter.drive == drive) {
            Some(_) if is_last => Err(error),
            Some(voter) => {
                voter.failure = Some(error);
                self.leave_failed_behind(labels)
            }
            None => Ok(()),
        }
    }

    /// A checkpoint is durable on all voters, and `log_bytes` were appended since it began.
    pub fn begins_again(&mut self, log_bytes: u64) {
        (self.log_bytes, self.has_lost) = (log_bytes, false);
    }

    /// A voter of the opening, for messages. It may have been left behind.
    pub fn first(&self) -> &Voter {
        &self.first
    }

    /// Whether a copy was left behind since the last checkpoint. The remaining old files may be rotten, so a new
    /// checkpoint is written from memory.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Ends the log cleanly (C8).
    pub fn close(&mut self, labels: &mut dyn Announce) -> Result<()> {
        let mut records = Vec::new();
        LogRecord::Closed.encode(&mut records);
        self.append(&records, 1, labels)
    }
}

/// A segment that is to be made on all voters, without the writer (C29).
#[derive(Debug)]
pub struct NextSegment {
    /// What its file begins with.
    header: FileHeader,
    /// The voters that are to have it.
    voters: Vec<Voter>,
}

/// A segment that was made on at least one voter, with what each voter has of it.
#[derive(Debug)]
pub struct MadeSegment {
    /// What its file begins with.
    header: FileHeader,
    /// By their drives.
    files: Vec<(usize, Result<DriveFile>)>,
}

impl NextSegment {
    /// Makes it. An error if no voter has it, or if one has no space, or if the process lacks something: then it is on
    /// none.
    pub fn make(self) -> Result<MadeSegment> {
        let NextSegment { header, voters } = self;
        let path = segment_path(header.number);
        let make = |voter: &Voter| {
            let made = make_segment(&voter.fs, &header).and_then(|_made| open_for_groups(&voter.fs, &path));
            (voter.drive, made)
        };
        let mut files: Vec<(usize, Result<DriveFile>)> = voters.iter().map(make).collect();
        // Neither lack of space nor what passes is a voter's fault.
        let is_lack = |error: &Error| is_full(error) || error.passes();
        let full = files.iter().position(|(_, result)| result.as_ref().is_err_and(is_lack));
        if full.is_none() && files.iter().any(|(_, result)| result.is_ok()) {
            return Ok(MadeSegment { header, files });
        }
        for (voter, _) in voters.iter().zip(&files).filter(|(_, (_, result))| result.is_ok()) {
            match unlink_if_there(&*voter.fs, &segment_path(header.number)) {
                // The next try makes it anew.
                Err(error) if !error.passes() => return Err(error),
                _ => {}
            }
        }
        let cause = if files.is_empty() { None } else { files.swap_remove(full.unwrap_or(0)).1.err() };
        Err(cause.unwrap_or_else(|| no_voter(&voters)))
    }
}

/// The notice about a voter that is left behind.
fn left_behind(voter: &Voter, error: &Error) -> String {
    format!(
        "{}: this copy of the log is left behind ({error}); the next opening for writing brings it up",
        voter.fs.location().display()
    )
}

/// The error of a log without a voter.
fn no_voter(voters: &[Voter]) -> Error {
    let path = voters.first().map(|voter| voter.fs.location().to_owned()).unwrap_or_default();
    Error::drive(path, "no copy of the log can be written").advise("see the notices, or open for reading")
}

/// Opens the active segment for groups, and reads its header.
fn open_active(voter: &Voter, end: &LogEnd) -> Result<(DriveFile, FileHeader)> {
    let path = segment_path(end.position.segment);
    let header = open_mended(&voter.fs, &path, Access::READ)?.header;
    Ok((open_for_groups(&voter.fs, &path)?, header))
}

/// The group of a clean close with which a new log begins, and its checksum.
pub fn first_group(header: &FileHeader, sequence: u64, epoch: u64, opening: OpeningId) -> (Vec<u8>, u64) {
    let mut records = Vec::new();
    LogRecord::Closed.encode(&mut records);
    let mut group = Vec::new();
    let own = GroupHeader { salt: header.salt, sequence, durable: 0, epoch, previous: 0, records: 1, opening };
    let checksum = own.seal(&records, &mut group);
    (group, checksum)
}

fn segment_bytes(header: &FileHeader) -> u64 {
    match header.kind {
        FileKind::Segment { bytes } => bytes,
        FileKind::Checkpoint { .. } => 0,
    }
}

// The header, the group with its own header, and the group that names the next segment.
const _: () = assert!(
    SEGMENT_MIN_BYTES >= BLOCK_BYTES + GROUP_MAX_BYTES as u64 + BLOCK_BYTES + CONTINUES_BYTES,
    "a group of the largest size fits into the smallest segment"
);
