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
        let version = cursor.u64()?;
        let mut opening = || Some(OpeningId { number: cursor.u64()?, id: Id(cursor.id()?) });
        let (in_use, begun) = (opening()?, opening()?);
        let proof = Proof { sequence: cursor.u64()?, checksum: cursor.u64()? };
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

#[cfg(test)]
mod tests;
