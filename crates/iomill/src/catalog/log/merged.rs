//! [`Merged`]: the log merged from all its voters.
//!
//! Goals: each group is taken from any voter that has it, so one good copy of each is enough (C5, C9). As long as one
//! voter is good, only that voter is read. Non-goals: the meaning of the records; mending copies (`mend`).

use std::sync::Arc;

use super::group::{Group, OpeningId};
use super::header::{BLOCK_BYTES, FileHeader, FileKind, LogPosition};
use super::place::{LogFile, LogFiles, Missing, checkpoint_path, segment_path, unreadable};
use super::record::{LogFault, LogRecord};
use crate::catalog::Id;
use crate::catalog::store::{full_path, is_media_error};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFs};

/// A drive with a copy of the log that may rule.
#[derive(Clone, Debug)]
pub struct Voter {
    /// Its index in the array.
    pub drive: usize,
    /// Its file operations.
    pub fs: Arc<dyn DriveFs>,
}

/// The place of a visited group in its file.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// The header of the file.
    pub header: &'a FileHeader,
    /// Offset in bytes of the group in the file.
    pub offset: u64,
    /// The group in whole blocks.
    pub bytes: &'a [u8],
    /// The visited group, parsed.
    pub group: Group<'a>,
}

/// Why a replay ends early.
#[derive(Debug)]
pub enum Stop {
    /// The group makes no sense.
    Fault(LogFault),
    /// Something else failed.
    Failed(Error),
}

impl From<LogFault> for Stop {
    fn from(fault: LogFault) -> Stop {
        Stop::Fault(fault)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// Visits each group of the log, in order.
pub trait Replay {
    /// Forget everything. A checkpoint was damaged, and an older one is read.
    fn reset(&mut self);

    /// Takes a group of a checkpoint or of the log.
    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop>;
}

/// The end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Behind the last group.
    pub position: LogPosition,
    /// The start of the last group, if one was read after the checkpoint. If the group names the next segment, it is
    /// not in the segment of `position`.
    pub last_group: Option<LogPosition>,
    /// Number of the last group.
    pub sequence: u64,
    /// Its checksum.
    pub checksum: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The opening that wrote it, or else the checkpoint.
    pub opening: OpeningId,
    /// Whether the last writer closed the array (C8).
    pub is_closed: bool,
    /// The checkpoint that was read.
    pub checkpoint: Option<u64>,
    /// The first segment that was read.
    pub first_segment: u64,
    /// Bytes of the groups that were read from segments.
    pub log_bytes: u64,
}

/// The copies of the log, read as one.
#[derive(Debug)]
pub struct Merged {
    array: Id,
    writes: bool,
    copies: Vec<Copy>,
    /// The copy that is read as long as it is good.
    preferred: usize,
    /// The groups behind the checkpoint that were read, and the one before them.
    chain: Vec<Last>,
    /// The header of the checkpoint that was read.
    checkpoint: Option<FileHeader>,
}

#[derive(Debug)]
struct Copy {
    voter: Voter,
    files: LogFiles,
    /// The file that was asked for last, by its path, if it is good.
    open: Option<(String, Option<LogFile>)>,
    /// Whether a group was missing here that another copy has.
    lacks: bool,
    /// Whether its directory could be listed.
    is_listed: bool,
}

impl Copy {
    fn file(&mut self, path: &str, array: Id, writes: bool) -> Result<Option<&mut LogFile>> {
        if self.open.as_ref().is_none_or(|(known, _)| known != path) {
            let file = LogFile::open(&self.voter.fs, path, Access::READ, writes)?;
            self.open = Some((path.to_owned(), file.filter(|file| file.is_of(array))));
        }
        Ok(self.open.as_mut().and_then(|(_, file)| file.as_mut()))
    }

    /// Whether it has no file of this name. A file that is there and cannot be opened may have all groups.
    fn has_no(&self, path: &str) -> bool {
        let segments = self.files.segments.iter().map(|number| segment_path(*number));
        let mut all = segments.chain(self.files.checkpoints.iter().map(|number| checkpoint_path(*number)));
        self.is_listed && !all.any(|listed| listed == path)
    }
}

/// How often a reader begins again.
const TRIES: usize = 5;

/// Reads the log beside a writer, which may remove files meanwhile (C31). Open files can be read to their end. If a
/// file has been removed, the reader begins again with the checkpoint that replaced it.
pub fn read_beside_writer(voters: &[Voter], array: Id, replay: &mut dyn Replay) -> Result<(Merged, LogEnd)> {
    let mut tries = 1;
    loop {
        let mut merged = Merged::list(voters, array, false)?;
        match merged.read(replay) {
            Ok(end) => return Ok((merged, end)),
            Err(error) if tries == TRIES || !merged.has_changed()? => return Err(error),
            Err(_) => {}
        }
        tries += 1;
    }
}

/// The group that was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    sequence: u64,
    checksum: u64,
}

impl Merged {
    /// Lists the copies. At least one voter is given.
    pub fn list(voters: &[Voter], array: Id, writes: bool) -> Result<Merged> {
        let mut copies = Vec::new();
        let mut unlisted = None;
        for voter in voters {
            // A copy that cannot be listed shows nothing. Others may have all.
            let (files, is_listed) = match LogFiles::list(&*voter.fs) {
                Err(error) if matches!(&error, Error::Io { source, .. } if is_media_error(source)) => {
                    unlisted = Some(error);
                    (LogFiles::default(), false)
                }
                files => (files?, true),
            };
            copies.push(Copy { voter: voter.clone(), files, open: None, lacks: false, is_listed });
        }
        // Without any list the log would begin before all checkpoints.
        if let Some(error) = unlisted.filter(|_| copies.iter().all(|copy| !copy.is_listed)) {
            return Err(error);
        }
        Ok(Merged { array, writes, copies, preferred: 0, chain: Vec::new(), checkpoint: None })
    }

    /// The files in each voter's directory.
    pub fn files(&self) -> impl Iterator<Item = (&Voter, &LogFiles)> {
        self.copies.iter().map(|copy| (&copy.voter, &copy.files))
    }

    /// Whether a voter lacked a group that was read. Only one voter is read as long as it is good, so others may lack
    /// more.
    pub fn has_missed(&self, drive: usize) -> bool {
        self.copies.iter().any(|copy| copy.lacks && copy.voter.drive == drive)
    }

    /// The array.
    pub fn array(&self) -> Id {
        self.array
    }

    /// Whether this program writes to the array.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// The voter that gave the last group.
    pub fn preferred_voter(&self) -> &Voter {
        &self.copies[self.preferred].voter
    }

    /// Its drive.
    pub fn preferred_drive(&self) -> usize {
        self.preferred_voter().drive
    }

    /// The header of the checkpoint that was read.
    pub fn checkpoint_header(&self) -> Option<FileHeader> {
        self.checkpoint
    }

    /// Whether a listing shows other checkpoints now.
    fn has_changed(&self) -> Result<bool> {
        for copy in &self.copies {
            if LogFiles::list(&*copy.voter.fs)?.checkpoints != copy.files.checkpoints {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The checksum of a group behind the checkpoint that was read, or of the last one before.
    pub fn checksum_of(&self, sequence: u64) -> Option<u64> {
        let at = self.chain.binary_search_by_key(&sequence, |group| group.sequence).ok()?;
        Some(self.chain[at].checksum)
    }

    /// Reads everything: the newest good checkpoint, and the log after it.
    pub fn read(&mut self, replay: &mut dyn Replay) -> Result<LogEnd> {
        let mut numbers: Vec<u64> = self.copies.iter().flat_map(|copy| copy.files.checkpoints.clone()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let newest = numbers.last().copied();
        for number in numbers.into_iter().rev() {
            replay.reset();
            if let Some((start, last, opening)) = self.read_checkpoint(number, replay)? {
                let damaged = newest.filter(|newest| *newest != number);
                self.refuse_unless_began(start.segment, damaged)?;
                let end = self.read_log(start, last, opening, Some(number), replay)?;
                return self.refuse_before(damaged, end);
            }
            self.copies.iter_mut().for_each(|copy| copy.lacks |= copy.files.checkpoints.contains(&number));
        }
        replay.reset();
        self.checkpoint = None;
        let start = LogPosition { segment: 1, offset: BLOCK_BYTES };
        let none = OpeningId { number: 0, id: Id([0; 16]) };
        self.refuse_unless_began(start.segment, newest)?;
        let end = self.read_log(start, Last { sequence: 0, checksum: 0 }, none, None, replay)?;
        self.refuse_before(newest, end)
    }

    /// A damaged checkpoint is named as such if the log that it replaced is gone.
    fn refuse_unless_began(&mut self, segment: u64, damaged: Option<u64>) -> Result<()> {
        match damaged {
            Some(number) if self.segment_header(segment)?.is_none() => Err(self.lost_checkpoint(number)),
            _ => Ok(()),
        }
    }

    /// The group in the name of a checkpoint was durable. So a log that ends before it is not the one that the damaged
    /// checkpoint continued: groups are lost, or an imported catalog had replaced it.
    fn refuse_before(&self, damaged: Option<u64>, end: LogEnd) -> Result<LogEnd> {
        match damaged {
            Some(number) if end.sequence < number => Err(self.lost_checkpoint(number)),
            _ => Ok(end),
        }
    }

    fn lost_checkpoint(&self, number: u64) -> Error {
        let path = checkpoint_path(number);
        let holder = self.copies.iter().find(|copy| copy.files.checkpoints.contains(&number));
        let path = holder.map_or_else(|| path.clone().into(), |copy| full_path(&*copy.voter.fs, &path));
        let why = "the checkpoint is damaged or unreadable, no other drive has it, and no older one leads to it";
        Error::corrupt(path, why)
    }

    /// Reads a checkpoint. `None` if no copy has all of it.
    fn read_checkpoint(
        &mut self,
        number: u64,
        replay: &mut dyn Replay,
    ) -> Result<Option<(LogPosition, Last, OpeningId)>> {
        let path = checkpoint_path(number);
        let mut offset = BLOCK_BYTES;
        let mut last = Last { sequence: 0, checksum: 0 };
        loop {
            let Ok(copy) = self.find(&path, offset, last)? else { return Ok(None) };
            let Some(file) = self.copies[copy].file(&path, self.array, self.writes)? else { return Ok(None) };
            let header = file.header;
            let Some(ended) = visit(file, &header, offset, replay, &mut last, &mut offset)? else { return Ok(None) };
            let FileKind::Checkpoint { start, previous } = header.kind else { return Ok(None) };
            if ended.has_end {
                self.checkpoint = Some(header);
                return Ok(Some((start, Last { sequence: header.number, checksum: previous }, ended.opening)));
            }
        }
    }

    /// Reads the log from a place on.
    fn read_log(
        &mut self,
        start: LogPosition,
        last: Last,
        opening: OpeningId,
        checkpoint: Option<u64>,
        replay: &mut dyn Replay,
    ) -> Result<LogEnd> {
        self.refuse_without(start.segment)?;
        self.chain = vec![last];
        let mut end = LogEnd {
            position: start,
            last_group: None,
            sequence: last.sequence,
            checksum: last.checksum,
            epoch: 0,
            opening,
            is_closed: false,
            checkpoint,
            first_segment: start.segment,
            log_bytes: 0,
        };
        self.read_on(&mut end, replay)?;
        // The next segment exists before the log names it (C46).
        self.refuse_without(end.position.segment)?;
        while let Some((durable, rot)) = self.rot_behind(&end)? {
            // Or a writer has appended groups since the end was read. Then they are there now (C33).
            let before = end.sequence;
            self.copies.iter_mut().for_each(|copy| copy.open = None);
            self.read_on(&mut end, replay)?;
            if end.sequence >= durable {
                break;
            }
            if end.sequence == before {
                // The group may be of a copy that went another way.
                self.refuse_apart(&end)?;
                return Err(rot);
            }
        }
        Ok(end)
    }

    /// Reads all groups of the log from `end` on.
    fn read_on(&mut self, end: &mut LogEnd, replay: &mut dyn Replay) -> Result<()> {
        let mut last = Last { sequence: end.sequence, checksum: end.checksum };
        loop {
            let path = segment_path(end.position.segment);
            let copy = match self.find(&path, end.position.offset, last)? {
                Ok(copy) => copy,
                Err(none) => return none.refuse_unless_read(),
            };
            let Some(file) = self.copies[copy].file(&path, self.array, self.writes)? else { return Ok(()) };
            let (header, at) = (file.header, end.position);
            let seen = visit(file, &header, at.offset, replay, &mut last, &mut end.position.offset)?;
            let Some(seen) = seen else { return Ok(()) };
            (end.sequence, end.checksum, end.last_group) = (last.sequence, last.checksum, Some(at));
            (end.epoch, end.opening, end.is_closed) = (seen.epoch, seen.opening, seen.is_closed);
            self.chain.push(last);
            end.log_bytes += seen.bytes;
            if let Some(segment) = seen.continues {
                end.position = LogPosition { segment, offset: BLOCK_BYTES };
            }
        }
    }

    /// A copy that has the group behind `last` at a place. `Err` if none has it.
    fn find(&mut self, path: &str, offset: u64, last: Last) -> Result<Result<usize, NoneHas>> {
        let mut none = NoneHas { is_read: false, is_doubtful: false, error: None };
        let count = self.copies.len();
        for turn in 0..count {
            let at = (self.preferred + turn) % count;
            let Some(file) = self.copies[at].file(path, self.array, self.writes)? else {
                // A copy that has lost the file says nothing (C54).
                if !self.copies[at].has_no(path) {
                    let what = full_path(&*self.copies[at].voter.fs, path);
                    let why = "its header is damaged or unreadable, and no other copy shows whether the log ends there";
                    none.error = Some(Error::corrupt(what, why).advise("try again, then check the array"));
                }
                continue;
            };
            let salt = file.header.salt;
            match file.group(offset) {
                Ok(group) if group.follows(salt, last.sequence, last.checksum) => {
                    for behind in 0..turn {
                        self.copies[(self.preferred + behind) % count].lacks = true;
                    }
                    self.preferred = at;
                    return Ok(Ok(at));
                }
                Ok(_) | Err(Missing::Nothing) => {
                    let is_unwritten = file.is_unwritten(offset);
                    none.is_read |= is_unwritten;
                    none.is_doubtful |= !is_unwritten;
                }
                Err(Missing::Unreadable(source)) => {
                    none.error = Some(unreadable(&*self.copies[at].voter.fs, path, offset, source));
                }
            }
        }
        Ok(Err(none))
    }

    /// Whether any copy has all bytes of a segment.
    pub fn has_whole(&mut self, number: u64) -> Result<bool> {
        let path = segment_path(number);
        for copy in &mut self.copies {
            if copy.file(&path, self.array, self.writes)?.is_some_and(|file| !file.is_cut()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The header of a segment, from any copy that has it.
    pub fn segment_header(&mut self, number: u64) -> Result<Option<FileHeader>> {
        let path = segment_path(number);
        for at in 0..self.copies.len() {
            if let Some(file) = self.copies[at].file(&path, self.array, self.writes)? {
                return Ok(Some(file.header));
            }
        }
        Ok(None)
    }

    /// A segment is complete from the moment when it has its name (C1). So without any good header it is damaged.
    fn refuse_without(&mut self, number: u64) -> Result<()> {
        let path = segment_path(number);
        if self.segment_header(number)?.is_some() {
            return Ok(());
        }
        let path = self.copies.first().map_or_else(|| path.clone().into(), |copy| full_path(&*copy.voter.fs, &path));
        let why = "the segment of the log is missing or its header is damaged, and no other drive has it";
        Err(Error::corrupt(path, why))
    }

    /// A group past the end that any group there names as durable, with the error for it (C5).
    fn rot_behind(&mut self, end: &LogEnd) -> Result<Option<(u64, Error)>> {
        for at in 0..self.copies.len() {
            let segments = self.copies[at].files.segments.clone();
            for number in segments.into_iter().filter(|number| *number >= end.position.segment) {
                let path = segment_path(number);
                // The log continues only in segments that all copies have (C46). A crash may leave one that was made
                // ahead, or removed, on one drive.
                if !self.copies.iter().any(|copy| copy.has_no(&path)) {
                    self.refuse_without(number)?;
                }
                let first = if number == end.position.segment { end.position.offset } else { BLOCK_BYTES };
                if let Some(durable) = self.durable_behind(at, number, first)?.filter(|known| *known > end.sequence) {
                    let why = format!(
                        "the log ends after group {}, and group {durable} was durable: no copy has the groups between them",
                        end.sequence
                    );
                    let path = full_path(&*self.copies[at].voter.fs, &path);
                    return Ok(Some((durable, Error::corrupt(path, why))));
                }
            }
        }
        Ok(None)
    }

    /// The highest group that any group of a segment, from an offset on, names as durable.
    fn durable_behind(&mut self, at: usize, number: u64, first: u64) -> Result<Option<u64>> {
        let Some(file) = self.copies[at].file(&segment_path(number), self.array, self.writes)? else { return Ok(None) };
        let FileKind::Segment { bytes } = file.header.kind else { return Ok(None) };
        let salt = file.header.salt;
        let mut highest = None;
        let mut offset = first;
        while offset < bytes {
            let found = file.group(offset).ok().filter(|group| group.header.salt == salt);
            highest = highest.max(found.map(|group| group.header.durable));
            offset += BLOCK_BYTES;
        }
        Ok(highest)
    }
}

/// No copy has a group.
#[derive(Debug)]
struct NoneHas {
    /// Whether a copy shows that nothing was written there.
    is_read: bool,
    /// Whether a copy has something else there: what a crash has torn, or what rot has left of a group.
    is_doubtful: bool,
    error: Option<Error>,
}

impl NoneHas {
    /// What could not be read on any copy may be acknowledged, so the log does not end there.
    fn refuse_unless_read(self) -> Result<()> {
        match self.error {
            Some(error) if !self.is_read && self.is_doubtful => Err(doubtful(error)),
            Some(error) if !self.is_read => Err(error),
            _ => Ok(()),
        }
    }
}

/// The error of a place that one copy cannot read, and at which another has no valid group.
fn doubtful(error: Error) -> Error {
    let (path, why) = match error {
        Error::Corrupt { path, why, .. } => (path, why),
        Error::Io { path, source, .. } => {
            (path, format!("the last group may be in it ({source}), and another copy has a damaged one"))
        }
        other => return other,
    };
    let advice = "try again. If that does not help, move the directory `iomill/log` of this drive away, and check and repair the \
                  array: that may lose the last changes";
    Error::corrupt(path, why).advise(advice)
}

/// The result of visiting a group.
struct Seen {
    bytes: u64,
    epoch: u64,
    opening: OpeningId,
    is_closed: bool,
    has_end: bool,
    continues: Option<u64>,
}

/// Visits the group at `offset`, and moves past it. `None` if the group has been removed.
fn visit(
    file: &mut LogFile,
    header: &FileHeader,
    offset: u64,
    replay: &mut dyn Replay,
    last: &mut Last,
    next: &mut u64,
) -> Result<Option<Seen>> {
    let path = full_path(&**file.fs(), file.path());
    let Ok((group, bytes)) = file.group_and_bytes(offset) else { return Ok(None) };
    let (epoch, opening) = (group.header.epoch, group.header.opening);
    let mut seen = Seen { bytes: group.bytes(), epoch, opening, is_closed: false, has_end: false, continues: None };
    let mut look = |record: LogRecord<'_>| {
        seen.is_closed = record == LogRecord::Closed;
        seen.has_end = matches!(record, LogRecord::End { .. });
        if let LogRecord::Continues(segment) = record {
            if segment != header.number + 1 {
                return Err(LogFault::Damaged(format!(
                    "the log continues in segment {segment}, which is not the next"
                )));
            }
            seen.continues = Some(segment);
        }
        Ok(())
    };
    // The records `closed`, `end` and `continues` are alone in their groups.
    let looked = if group.header.records == 1 { group.each_record(false, &mut look) } else { Ok(()) };
    let taken = looked.map_err(Stop::Fault).and_then(|()| replay.take(&Visit { header, offset, bytes, group }));
    taken.map_err(|stop| match stop {
        Stop::Failed(error) => error,
        Stop::Fault(fault) => {
            let why = format!("group {} at offset {offset}: {fault}", group.header.sequence);
            Error::corrupt(path, why)
        }
    })?;
    *last = Last { sequence: group.header.sequence, checksum: group.checksum };
    *next = offset + group.bytes();
    Ok(Some(seen))
}
