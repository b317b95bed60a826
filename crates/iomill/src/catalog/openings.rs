//! [`Openings`]: the note of each drive of the openings for writing that it took part in (C41 to C45, C53).
//!
//! Goals: a drive that was restored, cloned or used apart is recognised before its content is used. A crash in the
//! middle of an opening is distinguished from that. Non-goals: the bytes of parts, which carry no marks; copies of the
//! log that differ (`log::compare`).
//!
//! The states of notes, where `n` is the newest opening that any note or the log has in use (C43):
//!
//! | the note has in use | it has begun | meaning |
//! |---|---|---|
//! | n, the same id | anything | the drive has all changes; what it has begun since was interrupted before any change |
//! | less | n, the same id | interrupted when all notes had begun n: no change was made before all had it in use |
//! | less | anything else | the drive has missed the changes of n |
//! | n, another id | anything | the drive was used apart |
//!
//! A note may also say that n was closed (C53). Then all notes name the last group of n, and one that does not is of a
//! copy from the middle of n.

use std::cmp::Ordering;
use std::sync::Arc;

use super::id::Id;
use super::log::bytes::Cursor;
use super::log::group::OpeningId;
use super::log::header::BLOCK_BYTES;
use super::log::merged::{LogEnd, Merged};
use super::store::{Drive, LOG, OPENING, Staged, absent_is_none, failed, full_path};
use crate::engine::platform::{DurableWrite, Platform, write_durably};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs};
use crate::sys::hash::xxh3_64;

const MAGIC: [u8; 8] = *b"iomilope";
const FORMAT: u32 = 3;
/// Bytes of a note that are not zero.
const NOTE_BYTES: usize = 128;

/// A group that was durable when a note was written: its number, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) sequence: u64,
    pub(super) checksum: u64,
}

/// The content of a note. It has two blocks, which are written in turn. The one with the higher version is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Counts the writes of the note.
    pub(super) version: u64,
    /// The last opening that may have changed something.
    pub(super) in_use: OpeningId,
    /// The last opening that has begun.
    pub(super) begun: OpeningId,
    /// What the log has at least.
    pub(super) proof: Proof,
    /// Whether the opening in use was closed: all notes had the proof when this became true (C53).
    pub(super) is_closed: bool,
}

/// Of which drive a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    array: Id,
    drive: Id,
}

impl Note {
    fn block(&self, owner: &Owner) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&FORMAT.to_le_bytes());
        block.extend_from_slice(&u32::from(self.is_closed).to_le_bytes());
        block.extend_from_slice(&owner.array.0);
        block.extend_from_slice(&owner.drive.0);
        block.extend_from_slice(&self.version.to_le_bytes());
        for opening in [self.in_use, self.begun] {
            block.extend_from_slice(&opening.number.to_le_bytes());
            block.extend_from_slice(&opening.id.0);
        }
        block.extend_from_slice(&self.proof.sequence.to_le_bytes());
        block.extend_from_slice(&self.proof.checksum.to_le_bytes());
        let checksum = xxh3_64(&block);
        block.extend_from_slice(&checksum.to_le_bytes());
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// Reads one of the two blocks. `None` if it was never written, or is damaged. Never panics, whatever the bytes.
    fn parse(block: &[u8]) -> Option<(Note, Owner)> {
        let (body, checksum) = block.get(..NOTE_BYTES)?.split_at(NOTE_BYTES - 8);
        let mut cursor = Cursor::new(body);
        let is_ours = cursor.take(8)? == MAGIC && cursor.u32()? == FORMAT;
        let closed = cursor.u32()?;
        if !is_ours || closed > 1 || Cursor::new(checksum).u64()? != xxh3_64(body) {
            return None;
        }
        let owner = Owner { array: Id(cursor.id()?), drive: Id(cursor.id()?) };
        let version = cursor.count()?;
        let mut opening = || Some(OpeningId { number: cursor.u64()?, id: Id(cursor.id()?) });
        let (in_use, begun) = (opening()?, opening()?);
        let proof = Proof { sequence: cursor.count()?, checksum: cursor.u64()? };
        Some((Note { version, in_use, begun, proof, is_closed: closed == 1 }, owner))
    }

    /// Whether it has an opening in use, or has begun it (C43).
    fn has_reached(&self, opening: OpeningId) -> bool {
        self.in_use == opening || self.begun == opening
    }
}

/// The newest opening in use, of some notes.
fn newest(notes: impl Iterator<Item = Note>) -> Option<OpeningId> {
    notes.map(|note| note.in_use).max_by_key(|opening| opening.number)
}

/// The notes that have not reached the newest opening in use (C43).
fn behind<'a>(notes: &'a [Note], newest: OpeningId) -> impl Iterator<Item = usize> + 'a {
    notes.iter().enumerate().filter(move |(_, note)| !note.has_reached(newest)).map(|(at, _)| at)
}

/// The notes that have not the end of the newest opening in use, which another says was closed (C53).
fn unclosed(notes: &[Note], newest: OpeningId) -> impl Iterator<Item = usize> + '_ {
    let closed = notes.iter().filter(|note| note.is_closed && note.in_use == newest);
    let end = closed.map(|note| note.proof.sequence).max();
    let lacks = move |note: &Note| end.is_some_and(|end| note.in_use != newest || note.proof.sequence < end);
    notes.iter().enumerate().filter(move |(_, note)| lacks(note)).map(|(at, _)| at)
}

/// The opening that all notes must have reached, if the last group of the log is of `of_log`. `None` if log and notes
/// went apart.
fn required(newest: OpeningId, of_log: OpeningId) -> Option<OpeningId> {
    match of_log.number.cmp(&newest.number) {
        // All notes had begun it before the log had a group of it. They have it in use at most in part.
        Ordering::Greater => Some(of_log),
        Ordering::Equal if of_log != newest => None,
        Ordering::Equal | Ordering::Less => Some(newest),
    }
}

/// A note on its drive.
#[derive(Debug)]
struct DriveNote {
    fs: Arc<dyn DriveFs>,
    owner: Owner,
    note: Note,
    file: Option<DriveFile>,
}

impl DriveNote {
    fn open(&mut self) -> Result<()> {
        if self.file.is_none() {
            let opened = DriveFile::open(&self.fs, OPENING, Access::WRITE);
            self.file = Some(opened.map_err(failed("open", &*self.fs, OPENING))?);
        }
        Ok(())
    }
}

/// The notes of all drives of an array.
#[derive(Debug)]
pub(super) struct Openings {
    /// By drive.
    held: Vec<DriveNote>,
    /// The newest opening in use.
    in_use: OpeningId,
    /// The proof with the highest number.
    proof: Proof,
}

impl Openings {
    /// Reads the notes of all drives, and refuses drives that do not belong together (C43). `None` if no drive has a
    /// note: a person has removed all of them.
    pub(super) fn read(array: Id, drives: &[Drive]) -> Result<Option<Openings>> {
        let mut held = Vec::new();
        let mut missing = None;
        for drive in drives {
            let owner = Owner { array, drive: drive.id };
            match read_note(&drive.fs, &owner)? {
                Some(note) => held.push(DriveNote { fs: Arc::clone(&drive.fs), owner, note, file: None }),
                None => missing = missing.or(Some(drive)),
            }
        }
        if let Some(drive) = missing {
            return if held.is_empty() { Ok(None) } else { Err(lost_note(drive)) };
        }
        let none = || Error::invalid("the array", "it has no drives");
        let in_use = newest(held.iter().map(|held| held.note)).ok_or_else(none)?;
        let proof = held.iter().map(|held| held.note.proof).max_by_key(|proof| proof.sequence).ok_or_else(none)?;
        let openings = Openings { held, in_use, proof };
        openings.judge(in_use)?;
        Ok(Some(openings))
    }

    /// Makes the notes of a new array, or those that a person has removed. `opening` is in use.
    pub(super) fn make(
        platform: &dyn Platform,
        array: Id,
        drives: &[Drive],
        opening: OpeningId,
        proof: Proof,
    ) -> Result<Openings> {
        let note = Note { version: 0, in_use: opening, begun: opening, proof, is_closed: false };
        let hold = |drive: &Drive| {
            let owner = Owner { array, drive: drive.id };
            DriveNote { fs: Arc::clone(&drive.fs), owner, note, file: None }
        };
        let held: Vec<DriveNote> = drives.iter().map(hold).collect();
        let mut bytes = Vec::new();
        for held in &held {
            // Both blocks are written, so that later fsyncs change nothing but bytes.
            let mut both = note.block(&held.owner);
            both.resize(2 * BLOCK_BYTES as usize, 0);
            bytes.push(both);
        }
        let files = held.iter().zip(&bytes).map(|(held, bytes)| (&held.fs, OPENING.to_owned(), bytes.as_slice()));
        Staged::write(platform, files)?.commit()?;
        Ok(Openings { held, in_use: opening, proof })
    }

    /// The newest opening in use.
    pub(super) fn in_use(&self) -> OpeningId {
        self.in_use
    }

    /// The last group that the notes name.
    pub(super) fn proof(&self) -> Proof {
        self.proof
    }

    fn notes(&self) -> Vec<Note> {
        self.held.iter().map(|held| held.note).collect()
    }

    /// Refuses notes that have not reached an opening in use (C43), or have not its end (C53).
    fn judge(&self, newest: OpeningId) -> Result<()> {
        let notes = self.notes();
        let late: Vec<usize> = behind(&notes, newest).collect();
        let Some(first) = late.first() else { return self.judge_closed(&notes, newest) };
        let others: Vec<usize> = (0..notes.len()).filter(|drive| !late.contains(drive)).collect();
        // The error is of a drive of the smaller group.
        let odd = if late.len() > others.len() { others.first().unwrap_or(first) } else { first };
        let rest = if others.is_empty() { "the log".to_owned() } else { named(&others) };
        let own = notes[*first].in_use.number;
        let fact = if own == newest.number {
            format!("{} and {rest} were used apart: both had an opening {own}, each another one", named(&late))
        } else {
            format!(
                "{} was last in use in opening {own}, and {rest} in opening {}: it is an older copy, or was used apart, and has \
                 missed changes",
                named(&late),
                newest.number
            )
        };
        Err(Error::drive(self.held[*odd].fs.location(), fact).advise(ADVICE))
    }

    /// Refuses a note from the middle of an opening that was closed (C53).
    fn judge_closed(&self, notes: &[Note], newest: OpeningId) -> Result<()> {
        let Some(first) = unclosed(notes, newest).next() else { return Ok(()) };
        let why = format!(
            "{} has what it had in the middle of opening {}, which went on and was closed: it is an older copy, and has missed \
             changes",
            named(&[first]),
            newest.number
        );
        Err(Error::drive(self.held[first].fs.location(), why).advise(ADVICE))
    }

    /// Compares the notes with the log that all its copies together have (C43, C44).
    pub(super) fn judge_log(&self, end: &LogEnd, merged: &Merged) -> Result<()> {
        match required(self.in_use, end.opening) {
            Some(opening) => self.judge(opening)?,
            None => {
                let what = format!(
                    "the log and the drives were used apart: both had opening {}, each another one",
                    end.opening.number
                );
                return Err(self.log_fault(merged, what).advise(ADVICE));
            }
        }
        let Proof { sequence, checksum } = self.proof;
        if sequence > end.sequence {
            let what = format!(
                "the log ends after group {}, and the drives know that group {sequence} was durable: the log was restored from \
                 an older copy, or has lost its end",
                end.sequence
            );
            let advice = "bring back the newest copy of `iomill/log`, or all drives from one backup, or import an exported \
                          text of the catalog";
            return Err(self.log_fault(merged, what).advise(advice));
        }
        match merged.checksum_of(sequence) {
            Some(found) if found != checksum => {
                let what = format!("group {sequence} of the log is not the one that the drives know of");
                Err(self.log_fault(merged, what).advise(ADVICE))
            }
            _ => Ok(()),
        }
    }

    fn log_fault(&self, merged: &Merged, why: String) -> Error {
        let fs = merged.files().next().map_or(&self.held[0].fs, |(voter, _)| &voter.fs);
        Error::corrupt(full_path(&**fs, LOG), why)
    }

    /// Says durably on all drives that another opening begins. `end` is the end of the log (C42).
    pub(super) fn begin(&mut self, platform: &dyn Platform, end: &LogEnd) -> Result<OpeningId> {
        if end.opening.number > self.in_use.number {
            self.in_use = end.opening;
        }
        let highest = self.held.iter().map(|held| held.note.begun.number.max(held.note.in_use.number)).max();
        let highest = highest.unwrap_or(0).max(end.opening.number);
        let number = highest.checked_add(1).ok_or_else(|| {
            Error::invalid(format!("opening {highest}"), "it is the highest possible number")
                .advise("export the catalog and make a new array")
        })?;
        let opening = OpeningId { number, id: Id::random(platform)? };
        let (in_use, proof) = (self.in_use, self.proof);
        let is_closed = |note: Note| note.is_closed && note.in_use == in_use;
        self.write(platform, |note| Note { in_use, begun: opening, proof, is_closed: is_closed(note), ..note })?;
        Ok(opening)
    }

    /// Says durably on all drives that the opening which has begun may make changes (C42). The log has this group.
    pub(super) fn use_begun(&mut self, platform: &dyn Platform, proof: Proof) -> Result<()> {
        self.write(platform, |note| Note { in_use: note.begun, proof, is_closed: false, ..note })?;
        self.in_use = self.held.first().map_or(self.in_use, |held| held.note.in_use);
        self.proof = proof;
        self.held.iter_mut().for_each(|held| held.file = None);
        Ok(())
    }

    /// Notes the last group of the opening (C44), and when that is durable on all drives, that the opening was closed
    /// (C53).
    pub(super) fn close(&mut self, platform: &dyn Platform, proof: Proof) -> Result<()> {
        let proven = self.write(platform, |note| Note { proof, ..note });
        let written = proven.and_then(|()| self.write(platform, |note| Note { is_closed: true, ..note }));
        self.held.iter_mut().for_each(|held| held.file = None);
        written
    }

    /// Writes all notes, durably and at the same time. After an error some may be written.
    fn write(&mut self, platform: &dyn Platform, change: impl Fn(Note) -> Note) -> Result<()> {
        let mut blocks = Vec::with_capacity(self.held.len());
        for held in &mut self.held {
            held.open()?;
            held.note = Note { version: held.note.version + 1, ..change(held.note) };
            blocks.push(held.note.block(&held.owner));
        }
        let mut writes = Vec::with_capacity(self.held.len());
        for (held, block) in self.held.iter().zip(&blocks) {
            let Some(file) = &held.file else { continue };
            let offset = held.note.version % 2 * BLOCK_BYTES;
            writes.push(DurableWrite { fs: &*held.fs, handle: file.handle(), bytes: block, offset });
        }
        let results = write_durably(platform, &writes);
        for (held, result) in self.held.iter().zip(results) {
            result.map_err(failed("note the opening in", &*held.fs, OPENING))?;
        }
        Ok(())
    }
}

/// The advice for drives that do not belong together.
const ADVICE: &str = "nothing was changed. Put the drives together that belong together: bring back the newest copy of the one that is \
                      older, or all drives from one backup. To accept them as they are, and lose what they disagree about, \
                      remove `iomill/opening` on all of them, and check and repair the array";

/// Drives in words.
fn named(drives: &[usize]) -> String {
    let (first, others) = match drives {
        [] => return "a drive".to_owned(),
        [one] => return format!("drive {one}"),
        [first, others @ ..] => (first, others),
    };
    let others: Vec<String> = others.iter().map(|drive| format!(", {drive}")).collect();
    format!("drives {first}{}", others.concat())
}

fn lost_note(drive: &Drive) -> Error {
    Error::corrupt(
        full_path(&*drive.fs, OPENING),
        format!("drive {} has no note of openings, and others have theirs: it was lost", drive.index),
    )
    .advise(ADVICE)
}

/// The error for an array without any note.
pub(super) fn no_notes(drives: &[Drive]) -> Error {
    let path = drives.first().map(|drive| drive.path().to_owned()).unwrap_or_default();
    let why = "no drive of the array has a note of its openings (`iomill/opening`), so it is not known whether they belong \
               together";
    Error::drive(path, why).advise("if they do, check and repair the array, which makes new notes")
}

/// Reads a note. `None` if it is not there.
fn read_note(fs: &Arc<dyn DriveFs>, owner: &Owner) -> Result<Option<Note>> {
    let opened = absent_is_none(DriveFile::open(fs, OPENING, Access::READ)).map_err(failed("open", &**fs, OPENING))?;
    let Some(file) = opened else { return Ok(None) };
    let mut bytes = vec![0; 2 * BLOCK_BYTES as usize];
    let read = fs.read_at(file.handle(), &mut bytes, 0).map_err(failed("read", &**fs, OPENING))?;
    bytes.truncate(read);
    let (first, second) = bytes.split_at(read.min(BLOCK_BYTES as usize));
    let found = [first, second].into_iter().filter_map(Note::parse).max_by_key(|(note, _)| note.version);
    let path = full_path(&**fs, OPENING);
    match found {
        None => {
            let why = "the note of openings is damaged";
            Err(Error::corrupt(path, why).advise(ADVICE))
        }
        Some((_, found)) if found != *owner => {
            let why = format!(
                "the content of the directory is not of this drive, but of drive {} of array {}",
                found.drive, found.array
            );
            Err(Error::corrupt(path, why).advise("put the contents of drives back to where they belong"))
        }
        Some((note, _)) => Ok(Some(note)),
    }
}

/// Notes of openings: states that crashes, restored notes and clones leave, and bytes.
#[cfg(test)]
mod tests {
    use super::*;

    /// Three notes and a log, with what each has truly taken part in.
    #[derive(Clone, Debug)]
    struct Model {
        notes: Vec<Note>,
        /// The last group of the log.
        log: OpeningId,
        /// The openings that made changes, of each note, and of the log.
        truth: Vec<Vec<OpeningId>>,
        ids: u8,
    }

    /// How an opening ends: how far it comes.
    #[derive(Clone, Copy, Debug)]
    enum Outcome {
        /// Only these notes have begun it.
        Begun(u8),
        /// All have begun it, and the log has a group or not.
        Logged(bool),
        /// These have it in use. If all have, it makes changes.
        InUse(u8),
    }

    const NOTES: usize = 3;
    const ALL: u8 = (1 << NOTES) - 1;

    fn outcomes() -> impl Iterator<Item = Outcome> {
        let begun = (0..ALL).map(Outcome::Begun);
        begun.chain([false, true].map(Outcome::Logged)).chain((1..=ALL).map(Outcome::InUse))
    }

    impl Model {
        fn new() -> Model {
            let opening = OpeningId { number: 1, id: Id([0; 16]) };
            let note = Note {
                version: 0,
                in_use: opening,
                begun: opening,
                proof: Proof { sequence: 1, checksum: 1 },
                is_closed: false,
            };
            let truth = vec![vec![opening]; NOTES + 1];
            Model { notes: vec![note; NOTES], log: opening, truth, ids: 0 }
        }

        fn accepts(&self) -> bool {
            let newest = newest(self.notes.iter().copied()).unwrap();
            let late = |opening| behind(&self.notes, opening).chain(unclosed(&self.notes, opening)).next().is_some();
            !late(newest) && required(newest, self.log).is_some_and(|opening| !late(opening))
        }

        /// Opens the array as far as `outcome` says, in the way of `Openings`. `life` tells clones apart.
        fn open(&mut self, outcome: Outcome, life: u8) {
            self.ids += 1;
            let in_use = required(newest(self.notes.iter().copied()).unwrap(), self.log).unwrap();
            let highest = self.notes.iter().map(|note| note.begun.number.max(note.in_use.number)).max().unwrap();
            let number = highest.max(self.log.number) + 1;
            let opening = OpeningId { number, id: Id([self.ids, life, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) };
            let has = |notes: u8, at: usize| notes >> at & 1 == 1;
            let begun = if let Outcome::Begun(notes) = outcome { notes } else { ALL };
            for at in (0..NOTES).filter(|at| has(begun, *at)) {
                self.notes[at] = Note { in_use, begun: opening, ..self.notes[at] };
            }
            if matches!(outcome, Outcome::Logged(true) | Outcome::InUse(_)) {
                self.log = opening;
            }
            let Outcome::InUse(used) = outcome else { return };
            for at in (0..NOTES).filter(|at| has(used, *at)) {
                self.notes[at].in_use = opening;
            }
            if used == ALL {
                self.truth.iter_mut().for_each(|truth| truth.push(opening));
            }
        }

        /// With some of its notes, and perhaps the log, from elsewhere.
        fn mixed(&self, other: &Model, which: u8) -> Model {
            let mut mixed = self.clone();
            for at in (0..=NOTES).filter(|at| which >> at & 1 == 1) {
                mixed.truth[at] = other.truth[at].clone();
                match mixed.notes.get_mut(at) {
                    Some(note) => *note = other.notes[at],
                    None => mixed.log = other.log,
                }
            }
            mixed
        }

        fn has_one_truth(&self) -> bool {
            self.truth.iter().all(|truth| *truth == self.truth[0])
        }
    }

    /// All states that up to three openings leave, each of which may be interrupted anywhere.
    fn lives() -> Vec<Vec<Model>> {
        let mut lives = vec![vec![Model::new()]];
        for depth in 0..3u8 {
            let mut longer = Vec::new();
            for life in &lives {
                for outcome in outcomes() {
                    let mut next = life.last().unwrap().clone();
                    next.open(outcome, depth);
                    longer.push([life.as_slice(), &[next]].concat());
                }
            }
            lives = longer;
        }
        lives
    }

    /// A crash is no fault, whatever it interrupted. Any notes that are put back from an earlier state are refused, if
    /// changes were made since. The log is judged here by its opening alone, so only notes are put back.
    #[test]
    fn a_crash_is_told_from_notes_that_were_put_back() {
        let (mut refused, mut all) = (0, 0);
        for life in lives() {
            let now = life.last().unwrap();
            assert!(now.accepts() && now.has_one_truth(), "{now:?}");
            for earlier in &life {
                for which in 1..=ALL {
                    let mixed = now.mixed(earlier, which);
                    all += 1;
                    refused += u32::from(!mixed.accepts());
                    assert!(mixed.has_one_truth() || !mixed.accepts(), "{which:03b} of {earlier:?} in {now:?}");
                }
            }
        }
        assert!(refused > 1000 && refused < all, "{refused} of {all}");
    }

    /// Two lives of an array that was cloned. A mixture is refused if either has made changes that the other has not.
    #[test]
    fn clones_are_not_mixed() {
        let mut refused = 0;
        for first in [Outcome::Begun(1), Outcome::Logged(true), Outcome::InUse(2), Outcome::InUse(ALL)] {
            let mut common = Model::new();
            common.open(first, 0);
            let lives = |life: u8| {
                let common = common.clone();
                outcomes().flat_map(move |outcome| {
                    let mut one = common.clone();
                    one.open(outcome, life);
                    let longer = one.clone();
                    let twice = outcomes().map(move |second| {
                        let mut two = longer.clone();
                        two.open(second, life);
                        two
                    });
                    std::iter::once(one).chain(twice)
                })
            };
            // All pairs take a minute.
            let others: Vec<Model> = lives(2).step_by(5).collect();
            for one in lives(1) {
                for other in &others {
                    // With and without the log.
                    for which in 1..(1 << (NOTES + 1)) - 1u8 {
                        let mixed = one.mixed(other, which);
                        refused += u64::from(!mixed.accepts());
                        // A log without a group of the changes is found out by its proof, not by its opening.
                        let is_of_notes = mixed.truth[..NOTES].iter().all(|truth| *truth == mixed.truth[0]);
                        assert!(is_of_notes || !mixed.accepts(), "{which:04b} of {other:?} in {one:?}");
                    }
                }
            }
        }
        assert!(refused > 10_000, "{refused}");
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_any_changed_byte_spoils_it() {
        let opening = |number: u64| OpeningId { number, id: Id([number as u8; 16]) };
        let proof = Proof { sequence: 9, checksum: 10 };
        let note = Note { version: 3, in_use: opening(4), begun: opening(5), proof, is_closed: true };
        let owner = Owner { array: Id([6; 16]), drive: Id([7; 16]) };
        let block = note.block(&owner);
        assert_eq!(Note::parse(&block), Some((note, owner)));
        assert_eq!(xxh3_64(&block), 15538145989604967604, "`docs/format.md` has these bytes");
        for at in 0..NOTE_BYTES {
            let mut changed = block.clone();
            changed[at] ^= 1;
            assert!(Note::parse(&changed).is_none(), "byte {at}");
        }
        assert!((0..NOTE_BYTES).all(|len| Note::parse(&block[..len]).is_none()));
        // No array reaches this count, to which each write adds one.
        let note = Note { version: 1 << 63, ..note };
        assert!(Note::parse(&note.block(&owner)).is_none());
    }

    /// A close is interrupted anywhere, and so is the opening that comes then. No crash is taken for a copy of the
    /// middle of the opening, and each copy of the middle that is put back after the close is refused.
    #[test]
    fn a_crash_in_a_close_is_told_from_a_copy_of_before() {
        let mut middle = Model::new();
        middle.open(Outcome::InUse(ALL), 0);
        // A copy from the time when not all notes had the opening in use has missed its changes, too.
        let mut early = Model::new();
        early.open(Outcome::InUse(1), 0);
        early.notes[0].in_use = middle.notes[0].in_use;
        early.notes.iter_mut().for_each(|note| note.begun = middle.notes[0].begun);
        let ends = |proven: u8, closed: u8| {
            let mut model = middle.clone();
            for (at, note) in model.notes.iter_mut().enumerate() {
                if proven >> at & 1 == 1 {
                    note.proof.sequence = 9;
                }
                note.is_closed = closed >> at & 1 == 1;
            }
            model
        };
        for interrupted in (0..ALL).map(|proven| ends(proven, 0)).chain((0..=ALL).map(|closed| ends(ALL, closed))) {
            assert!(interrupted.accepts(), "{interrupted:?}");
            for next in outcomes() {
                let mut model = interrupted.clone();
                // As `Openings::begin` and `use_begun` write them.
                let before = model.notes.clone();
                model.open(next, 0);
                for (note, before) in model.notes.iter_mut().zip(&before) {
                    note.is_closed = before.is_closed && note.in_use == before.in_use;
                }
                if let Outcome::Begun(_) = next {
                    let begun = |note: &&mut Note| note.begun.number > before[0].begun.number;
                    let end = before.iter().map(|note| note.proof).max_by_key(|proof| proof.sequence).unwrap();
                    model.notes.iter_mut().filter(begun).for_each(|note| note.proof = end);
                }
                assert!(model.accepts(), "{next:?}: {model:?}");
            }
        }
        for closed in 1..=ALL {
            for which in 1..ALL {
                for copy in [&middle, &early] {
                    let mixed = ends(ALL, closed).mixed(copy, which);
                    // A closed note is left.
                    let is_known = closed & !which != 0;
                    assert_eq!(!mixed.accepts(), is_known, "{which:03b} of {copy:?}, closed {closed:03b}");
                }
            }
        }
    }
}
