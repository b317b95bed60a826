//! [`Difference`]: the difference between one copy of the log and the merge of all copies (C45).
//!
//! Goals: a copy that lacks groups is distinguished from one with a history of its own. Non-goals: mending (`mend`).
//!
//! Groups name the checksums of the groups before them. So two copies with the same last group have the same groups.
//! Only a copy without that group is read by itself.

use super::header::{FileHeader, LogPosition};
use super::merged::{LogEnd, Merged, Replay, Stop, Visit, Voter, read_beside_writer};
use super::place::{LogFile, LogFiles, checkpoint_path, segment_path};
use crate::catalog::store::{LOG, full_path, is_media_error};
use crate::error::{Error, Result};
use crate::sys::fs::Access;

/// The problem of a copy of the log.
#[derive(Debug)]
pub enum Difference {
    /// It lacks groups, a segment or a checkpoint.
    Lacks {
        /// Its last group, if it can be read.
        end: Option<u64>,
        /// In words.
        what: String,
    },
    /// It went another way: in words.
    Apart(String),
}

/// A reader that wants the groups only.
pub struct Nothing;

impl Replay for Nothing {
    fn reset(&mut self) {}

    fn take(&mut self, _: &Visit<'_>) -> Result<(), Stop> {
        Ok(())
    }
}

/// The advice for diverged copies.
const APART: &str = "nothing was changed. Put the drives together that belong together. If only one of these logs is to count, \
                     move the directory `iomill/log` of the other drive away, and check and repair the array";

impl Merged {
    /// Refuses diverged copies: each may have acknowledged changes (C45). Returns the differences of the others from
    /// the merge.
    pub fn refuse_apart(&self, end: &LogEnd) -> Result<Vec<(Voter, Difference)>> {
        let differences = self.differences(end)?;
        for (voter, difference) in &differences {
            if let Difference::Apart(what) = difference {
                let why = format!(
                    "the copies of the log on drives {} and {} went apart ({what}): the drives were used apart from each other, as an array and \
                     its clone are",
                    self.preferred_drive(),
                    voter.drive
                );
                return Err(Error::corrupt(full_path(&*voter.fs, LOG), why).advise(APART));
            }
        }
        Ok(differences)
    }

    fn differences(&self, end: &LogEnd) -> Result<Vec<(Voter, Difference)>> {
        let mut differences = Vec::new();
        if self.files().count() < 2 {
            // This is also reached for a copy that is read by itself.
            return Ok(differences);
        }
        for (voter, _) in self.files() {
            if !self.has_end(end, voter)? {
                let found = self.difference(end, voter)?;
                differences.extend(found.map(|difference| (voter.clone(), difference)));
            }
        }
        Ok(differences)
    }

    /// Whether a copy has the end of the log: its checkpoint, its segments, and its last group.
    fn has_end(&self, end: &LogEnd, voter: &Voter) -> Result<bool> {
        let files = match LogFiles::list(&*voter.fs) {
            Err(Error::Io { source, .. }) if is_media_error(&source) => return Ok(false),
            files => files?,
        };
        let has_segments = (end.first_segment..=end.position.segment).all(|number| files.segments.contains(&number));
        if self.has_missed(voter.drive) || !has_segments {
            return Ok(false);
        }
        if let Some((number, header)) = end.checkpoint.zip(self.checkpoint_header())
            && self.header(voter, &checkpoint_path(number))? != Some(header)
        {
            return Ok(false);
        }
        let active = segment_path(end.position.segment);
        let own = self.header(voter, &active)?;
        if own.is_none() || own != self.header(self.preferred_voter(), &active)? {
            return Ok(false);
        }
        Ok(end.last_group.is_none_or(|place| self.has_group(voter, place, end.checksum)))
    }

    /// The comparison with all bytes of the last segment. After a clean close each copy has all of them, because each
    /// fsync of a group was done on all copies.
    pub fn has_all(&self, end: &LogEnd, voter: &Voter) -> Result<bool> {
        Ok(self.has_end(end, voter)? && !self.is_cut(voter, end.position)? && self.is_equal(voter, end.position)?)
    }

    /// Whether a copy of a segment is shorter than at its making (C52).
    fn is_cut(&self, voter: &Voter, place: LogPosition) -> Result<bool> {
        let file = LogFile::open(&voter.fs, &segment_path(place.segment), Access::READ, self.writes())?;
        Ok(file.is_none_or(|file| file.is_cut()))
    }

    fn header(&self, voter: &Voter, path: &str) -> Result<Option<FileHeader>> {
        let file = LogFile::open(&voter.fs, path, Access::READ, self.writes())?;
        Ok(file.filter(|file| file.is_of(self.array())).map(|file| file.header))
    }

    /// Whether a copy has the same bytes of a segment as the one that was read, up to a place.
    fn is_equal(&self, voter: &Voter, until: LogPosition) -> Result<bool> {
        const STEP_BYTES: u64 = 64 << 10;
        if voter.drive == self.preferred_voter().drive {
            return Ok(true);
        }
        let path = segment_path(until.segment);
        let open = |voter: &Voter| LogFile::open(&voter.fs, &path, Access::READ, self.writes());
        let (Some(mut read), Some(mut own)) = (open(self.preferred_voter())?, open(voter)?) else { return Ok(false) };
        let mut offset = 0;
        while offset < until.offset {
            let len = STEP_BYTES.min(until.offset - offset) as usize;
            match (read.bytes(offset, len), own.bytes(offset, len)) {
                (Ok(ours), Ok(theirs)) if ours == theirs => offset += len as u64,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether a copy has a group with this checksum at a place.
    fn has_group(&self, voter: &Voter, place: LogPosition, checksum: u64) -> bool {
        let file = LogFile::open(&voter.fs, &segment_path(place.segment), Access::READ, self.writes());
        let Ok(Some(mut file)) = file else { return false };
        file.group(place.offset).is_ok_and(|group| group.checksum == checksum)
    }

    /// Reads a copy by itself.
    fn difference(&self, end: &LogEnd, voter: &Voter) -> Result<Option<Difference>> {
        if let Some(what) = self.other_file(end, voter)? {
            return Ok(Some(Difference::Apart(what)));
        }
        let lacks = |end: Option<u64>, what: String| Ok(Some(Difference::Lacks { end, what }));
        let (own, own_end) = match read_beside_writer(std::slice::from_ref(voter), self.array(), &mut Nothing) {
            Ok(read) => read,
            Err(Error::Corrupt { path, why, .. }) => {
                return lacks(None, format!("{}: {why}", path.display()));
            }
            Err(Error::Io { action, path, source, .. }) if is_media_error(&source) => {
                return lacks(None, format!("cannot {action} {}: {source}", path.display()));
            }
            Err(other) => return Err(other),
        };
        let common = end.sequence.min(own_end.sequence);
        let pair = self.checksum_of(common).zip(own.checksum_of(common));
        // A last group that was never acknowledged may differ, if one opening wrote both.
        let is_tail = (own_end.sequence, own_end.opening) == (end.sequence, end.opening);
        match pair {
            Some((ours, theirs)) if ours != theirs && !is_tail => {
                let what = format!("they have different groups of number {common}");
                Ok(Some(Difference::Apart(what)))
            }
            None if own_end.sequence > end.sequence => {
                let what = format!("one ends at group {}, and the other begins after it", end.sequence);
                Ok(Some(Difference::Apart(what)))
            }
            _ if own_end.sequence < end.sequence => {
                lacks(Some(own_end.sequence), format!("it ends at group {} of {}", own_end.sequence, end.sequence))
            }
            _ if own_end.checkpoint != end.checkpoint => {
                lacks(Some(own_end.sequence), "the newest checkpoint is missing or damaged".to_owned())
            }
            _ => lacks(Some(own_end.sequence), "a part of it is missing or damaged".to_owned()),
        }
    }

    /// A segment or checkpoint of a copy that is another one than that of the same name that was read. All copies of
    /// one get the same random bits.
    fn other_file(&self, end: &LogEnd, voter: &Voter) -> Result<Option<String>> {
        if let Some((number, read)) = end.checkpoint.zip(self.checkpoint_header())
            && self.header(voter, &checkpoint_path(number))?.is_some_and(|own| own != read)
        {
            return Ok(Some(format!("they have different checkpoints of group {number}")));
        }
        for number in end.first_segment..=end.position.segment {
            let path = segment_path(number);
            let pair = self.header(self.preferred_voter(), &path)?.zip(self.header(voter, &path)?);
            if pair.is_some_and(|(read, own)| read.salt != own.salt) {
                return Ok(Some(format!("they have different segments of number {number}")));
            }
        }
        Ok(None)
    }
}
