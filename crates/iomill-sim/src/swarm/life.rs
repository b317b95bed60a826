//! A running program: the machine, the array, and the allowed states of its files.
//!
//! Rules:
//! 1. A call that changes names leaves one of its allowed states. After an error with a known outcome, the array shows
//!    which.
//! 2. A life of the array ends when the machine stops, the process dies, or the outcome of a change is unknown. Then
//!    the array is opened again, and shows one of the allowed states.
//! 3. An error is right only if something has gone wrong since the array was opened.
//! 4. Bytes that are read without an error are always right.

use std::collections::BTreeMap;

use iomill::{Array, CreateOptions, Draft, Error, File};

use super::coverage::{Coverage, State};
use super::flight::{Call, Part};
use super::model::Contents;
use super::program::{Program, Step};
use crate::World;
use crate::testing::check_clean;

/// A fault, in words.
pub type Wrong = String;

/// The result of a step, in words.
pub type Said = Result<String, Wrong>;

const NOTHING: &str = "nothing to do";

/// The result of a step without work.
pub fn nothing() -> Said {
    Ok(NOTHING.to_owned())
}

/// A name: its contents and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub id: u32,
    /// The version of `stat`, after the first look.
    pub version: Option<u64>,
    pub attributes: BTreeMap<String, String>,
}

/// All names.
pub type Names = BTreeMap<String, Named>;

/// An open file.
pub struct Handle {
    pub id: u32,
    pub file: File,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine stops.
    Power,
    /// The process dies.
    Death,
    /// The array is closed.
    Close,
}

/// A program that runs.
pub struct Life<'a> {
    pub program: &'a Program,
    pub world: World,
    /// Only `None` between lives.
    pub array: Option<Array>,
    pub names: Names,
    /// The allowed states if the life ends in the running call.
    pub outcomes: Vec<Names>,
    pub contents: BTreeMap<u32, Contents>,
    pub handles: Vec<Handle>,
    pub drafts: Vec<(Draft, u32)>,
    /// Calls in flight, and those that were dropped in this life. Their ranges are disjoint.
    pub calls: Vec<Call>,
    /// Contents that were made.
    pub made: u32,
    openings: u64,
    is_cached: bool,
    /// The end of the life before.
    last_end: End,
    /// Whether something that causes errors has happened since the array was opened (rule 3).
    pub is_excused: bool,
    /// Whether drives have other bytes than were written, which only files with sums detect. Errors of rot are right
    /// from then on.
    pub is_rotten: bool,
    /// Whether a page of sums has rotted. From then on pages of its stretch may not reach the drive, and a dropped
    /// handle reports that only by a notice.
    pub has_rotten_sums: bool,
    /// Whether the head of a file of sums has rotted, or a write of sums was lost. A rotten head alone causes no error.
    /// But removed marks may return, and hide another fault in their zones: so no more faults are caused.
    pub has_rotten_head: bool,
    /// Whether a change has an unknown outcome (rule 2).
    pub is_unknown: bool,
    /// Whether writes are cut at any byte, so that a crash may leave a sector half old and half new.
    pub is_cut_short: bool,
    /// Whether a life has ended with requests in flight.
    was_cut: bool,
    pub coverage: &'a mut Coverage,
    /// The results of all steps, in words.
    pub story: Vec<String>,
}

impl<'a> Life<'a> {
    /// Makes the machine and an array.
    pub fn begin(program: &'a Program, coverage: &'a mut Coverage) -> Result<Life<'a>, Wrong> {
        let world = program.world();
        let options = CreateOptions::new().weights(program.weights.clone());
        let (first, is_cached) = program.options(&world, 0);
        let array =
            first.create_with(world.paths(), &options).map_err(|error| format!("no array could be made: {error}"))?;
        Ok(Life {
            program,
            world,
            array: Some(array),
            names: Names::new(),
            outcomes: vec![Names::new()],
            contents: BTreeMap::new(),
            handles: Vec::new(),
            drafts: Vec::new(),
            calls: Vec::new(),
            made: 0,
            openings: 0,
            is_cached,
            last_end: End::Close,
            is_excused: false,
            is_rotten: false,
            has_rotten_sums: false,
            has_rotten_head: false,
            is_unknown: false,
            is_cut_short: false,
            was_cut: false,
            coverage,
            story: Vec::new(),
        })
    }

    /// Runs one step, and what follows from it.
    pub fn step(&mut self, index: usize, step: &Step) -> Result<(), Wrong> {
        let states = self.states();
        let _earlier = self.world.take_met();
        let did = self.act(step)?;
        self.story.push(format!("{index:>4} {step}: {did}"));
        if did != NOTHING {
            let (met, crashed) = (self.world.take_met(), self.world.crashed());
            self.coverage.count(step.act, &states, met, &did, crashed);
        }
        self.follow()
    }

    /// The states that the program is in.
    fn states(&self) -> Vec<State> {
        let is_unsynced = self.contents.values().any(Contents::is_unsynced);
        let states = [
            (State::Sums, self.program.has_sums),
            (State::NoSums, !self.program.has_sums),
            (State::Cached, self.is_cached),
            (State::Uncached, !self.is_cached),
            (State::Clean, !is_unsynced),
            (State::Unsynced, is_unsynced),
            (State::InFlight, !self.calls.is_empty()),
            (State::Drafts, !self.drafts.is_empty()),
            (State::AfterCrash, self.last_end == End::Power),
            (State::AfterDeath, self.last_end == End::Death),
        ];
        states.into_iter().filter(|(_, is_true)| *is_true).map(|(state, _)| state).collect()
    }

    /// Ends the life if it is over.
    fn follow(&mut self) -> Result<(), Wrong> {
        self.sound()?;
        if self.world.crashed() {
            self.end(End::Power)?;
        } else if self.is_unknown {
            let how = if self.openings.is_multiple_of(2) { End::Close } else { End::Death };
            self.end(how)?;
        }
        Ok(())
    }

    /// The machine's contracts hold.
    fn sound(&self) -> Result<(), Wrong> {
        let violations = self.world.violations();
        if violations.is_empty() { Ok(()) } else { Err(format!("contracts of the machine: {violations:?}")) }
    }

    /// The array that is open.
    pub fn array(&self) -> Array {
        self.array.clone().expect("an array is open between steps")
    }

    /// A contents of a number.
    pub fn contents(&mut self, id: u32) -> &mut Contents {
        self.contents.get_mut(&id).expect("a handle has contents")
    }

    /// Takes note of an error (rule 3).
    pub fn excuse(&mut self, error: &Error) -> Result<(), Wrong> {
        if self.world.crashed() {
            return Ok(());
        }
        let text = error.to_string();
        if self.is_rotten && is_rot(error) {
            return Ok(());
        }
        if self.is_rotten && matches!(error, Error::Poisoned { .. }) {
            // A cut that met rot has poisoned the file.
            self.is_excused = true;
        }
        if !self.is_excused {
            return Err(format!("an error, and nothing has gone wrong: {text}"));
        }
        match error {
            Error::OutcomeUnknown { .. } | Error::ReadOnly { .. } => self.is_unknown = true,
            Error::Io { source, .. } if source.raw_os_error().is_none() => {
                return Err(format!("no kernel says so: {text}"));
            }
            Error::Io { .. }
            | Error::Poisoned { .. }
            | Error::PartCut { .. }
            | Error::PinnedSet { source: Some(_), .. } => {}
            Error::Corrupt { .. } | Error::Drive { .. } | Error::DriveMissing { .. } if text.contains("/sim/") => {}
            _ => return Err(format!("no drive can cause this error: {text}")),
        }
        Ok(())
    }

    /// Whether writes that no sync has confirmed may be lost with their handle.
    pub fn may_lose(&self) -> bool {
        self.is_excused || self.has_rotten_sums
    }

    /// The result of a step with an error (rule 3).
    pub fn failed(&mut self, error: &Error) -> Said {
        self.excuse(error).map(|()| format!("failed: {error}"))
    }

    /// Ends this life, and begins the next one with what it left (rule 2).
    pub fn end(&mut self, how: End) -> Result<(), Wrong> {
        self.story.push(format!("     {how:?}, {} outcomes", self.outcomes.len()));
        match how {
            End::Power => self.world.crash(),
            End::Death => self.world.kill_process(),
            End::Close => {}
        }
        let is_closed = how == End::Close && self.close()?;
        // Drops the rest of a killed process.
        self.let_go();
        self.array = None;
        // The machine may have stopped while the array was closed.
        let how = if self.world.crashed() { End::Power } else { how };
        if self.may_lose() {
            self.contents.values_mut().for_each(Contents::may_be_lost);
        }
        self.was_cut |= how != End::Close;
        self.calm();
        if how == End::Power {
            self.world.reboot();
        }
        if self.is_cut_short {
            self.contents.values_mut().for_each(Contents::tear_unsynced);
        }
        (self.is_excused, self.is_unknown, self.is_cut_short) = (false, false, false);
        self.openings += 1;
        self.last_end = how;
        let (options, is_cached) = self.program.options(&self.world, self.openings);
        self.is_cached = is_cached;
        let drive = self.openings as usize % self.world.drives();
        let array =
            options.open(self.world.path(drive)).map_err(|error| format!("the array does not open: {error}"))?;
        self.array = Some(array);
        self.look(how, is_closed)
    }

    /// Ends all faults.
    pub fn calm(&mut self) {
        self.world.faults(|faults| faults.clear());
        (0..self.world.drives()).for_each(|drive| self.world.set_capacity(drive, None));
    }

    /// Drops all that the process has, but the array.
    fn let_go(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            for part in &call.parts {
                if let (Part::Write(began), Some(contents)) = (part, self.contents.get_mut(&call.id)) {
                    contents.tear(began);
                }
            }
        }
        self.drafts.clear();
        self.handles.clear();
    }

    /// Closes the array. Returns whether everything was made durable.
    fn close(&mut self) -> Result<bool, Wrong> {
        self.finish_calls(None)?;
        self.contents.values_mut().for_each(Contents::may_be_synced);
        self.let_go();
        let array = self.array.take().expect("an array is open between steps");
        let may_lose = self.may_lose();
        match array.close() {
            Ok(()) => Ok(!may_lose),
            Err(error) => self.excuse(&error).map(|()| false),
        }
    }

    /// Compares the array with the allowed states (rule 2), and goes on with the state that it shows.
    fn look(&mut self, how: End, is_closed: bool) -> Result<(), Wrong> {
        if is_closed {
            self.contents.values_mut().for_each(Contents::synced);
        }
        let found = self.read_all()?;
        let killed = how != End::Power;
        let reasons: Vec<Result<(), Wrong>> =
            self.outcomes.iter().map(|names| fits(names, &self.contents, &found, killed)).collect();
        let Some(which) = reasons.iter().position(Result::is_ok) else {
            let reasons: Vec<Wrong> = reasons.into_iter().filter_map(Result::err).collect();
            return Err(format!("after {how:?} no state that may be is there:\n  {}", reasons.join("\n  ")));
        };
        self.names = self.outcomes.swap_remove(which);
        for mut found in found {
            let Some(named) = self.names.get_mut(&found.name) else { continue };
            named.version = Some(found.version);
            let contents = self.contents.get_mut(&named.id).expect("a name has contents");
            contents.fill(&mut found.bytes, &found.unread);
            match (killed, is_closed) {
                (false, _) => contents.found_after_crash(&found.bytes, &found.unread),
                (true, true) => contents.found_after_close(&found.bytes, &found.unread),
                (true, false) => contents.found_after_kill(&found.bytes),
            }
        }
        self.outcomes = vec![self.names.clone()];
        let names = &self.names;
        self.contents.retain(|id, _| names.values().any(|named| named.id == *id));
        self.sound()
    }

    fn read_all(&self) -> Result<Vec<Found>, Wrong> {
        let array = self.array();
        let mut all = Vec::new();
        let names = array.list("").names();
        for name in names.map_err(|error| format!("the names cannot be listed, and nothing fails: {error}"))? {
            let failed = |error: Error| format!("{name} cannot be read, and nothing fails: {error}");
            let file = array.open_file(&name).map_err(failed)?;
            let mut bytes = vec![0; file.len() as usize];
            let mut unread = Vec::new();
            let read = match file.read_at(&mut bytes, 0) {
                Err(error) if self.is_rotten && is_rot(&error) => {
                    unread = read_pages(&file, &mut bytes).map_err(failed)?;
                    bytes.len()
                }
                read => read.map_err(failed)?,
            };
            if read != bytes.len() {
                return Err(format!("{name} has {} bytes, and a read of them brought {read}", bytes.len()));
            }
            let stat = array.stat(&name).map_err(failed)?;
            all.push(Found { version: stat.version, attributes: stat.attributes, name, bytes, unread });
        }
        Ok(all)
    }

    /// The last look: closes, checks, opens and reads the array once more. Nothing is left open.
    pub fn finish(&mut self) -> Result<(), Wrong> {
        self.calm();
        self.end(End::Close)?;
        self.end(End::Close)?;
        let array = self.array.take().expect("an array is open between steps");
        let unnamed = array.unnamed_pages();
        if unnamed != 0 {
            return Err(format!("{unnamed} pages of shared parts belong to no file"));
        }
        array.close().map_err(|error| format!("the array does not close: {error}"))?;
        self.sound()?;
        let (open, flying) = (self.world.open_files(), self.world.in_flight());
        let left = if self.was_cut { 0 } else { self.world.abandoned() };
        if open > 0 || flying > 0 || left > 0 {
            return Err(format!("left behind: {open} open files, {flying} requests in flight, {left} abandoned"));
        }
        check_clean(&self.world)
    }
}

/// A file after the end of a life.
struct Found {
    name: String,
    version: u64,
    attributes: BTreeMap<String, String>,
    bytes: Vec<u8>,
    /// The ranges that cannot be read because of rot.
    unread: Vec<std::ops::Range<usize>>,
}

/// Whether an error reports rot.
fn is_rot(error: &Error) -> bool {
    matches!(error, Error::CorruptPage { .. } | Error::Corrupt { .. })
}

/// Reads a file page by page. Returns the rotten pages.
fn read_pages(file: &File, bytes: &mut [u8]) -> iomill::Result<Vec<std::ops::Range<usize>>> {
    let mut unread = Vec::new();
    for (page, chunk) in bytes.chunks_mut(4096).enumerate() {
        match file.read_at(chunk, page as u64 * 4096) {
            Err(error) if is_rot(&error) => unread.push(page * 4096..(page + 1) * 4096),
            read => drop(read?),
        }
    }
    Ok(unread)
}

fn fits(names: &Names, contents: &BTreeMap<u32, Contents>, found: &[Found], killed: bool) -> Result<(), Wrong> {
    let there: Vec<&String> = found.iter().map(|found| &found.name).collect();
    if !there.iter().copied().eq(names.keys()) {
        return Err(format!("names {there:?}, not {:?}", names.keys().collect::<Vec<_>>()));
    }
    for (found, named) in found.iter().zip(names.values()) {
        if found.attributes != named.attributes {
            return Err(format!("{}: attributes {:?}, not {:?}", found.name, found.attributes, named.attributes));
        }
        let mut bytes = found.bytes.clone();
        contents[&named.id].fill(&mut bytes, &found.unread);
        contents[&named.id].may_leave(&bytes, killed).map_err(|why| format!("{}: {why}", found.name))?;
    }
    Ok(())
}
