//! The length of a file (rule 10).
//!
//! Each copy holds two slots of 64 bytes at offsets 0 and 4096; sequence number s goes to slot s mod 2. A slot, in
//! little-endian order:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `iomillen` |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | zero |
//! | 16 | 16 | file id |
//! | 32 | 8 | sequence |
//! | 40 | 8 | length in bytes |
//! | 48 | 8 | zero |
//! | 56 | 8 | xxh3 of the 56 bytes before |

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::xxh3_64;

use super::id::Id;
use super::plan::{Problem, Severity, problem};
use super::record::{Record, length_path};
use super::store::{FILES, absent_is_none, failed, full_path, is_media_error, sync_dir};
use super::{Catalog, OpenMode, lock};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs};

const MAGIC: [u8; 8] = *b"iomillen";
const FORMAT: u32 = 1;
const SLOT_BYTES: usize = 64;
/// Far enough apart that one torn sector spoils one slot only.
const SLOT_DISTANCE: u64 = 4096;
/// Longest file in bytes: offsets are signed in the kernel.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LengthSlot {
    sequence: u64,
    length: u64,
}

impl LengthSlot {
    const FIRST: LengthSlot = LengthSlot { sequence: 1, length: 0 };

    fn offset(self) -> u64 {
        (self.sequence % 2) * SLOT_DISTANCE
    }

    fn to_bytes(self, id: &Id) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(&id.0);
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.length.to_le_bytes());
        let checksum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the slot with this number (0 or 1).
    fn parse(bytes: &[u8], id: &Id, number: u64) -> Result<LengthSlot, SlotFault> {
        if bytes.len() < SLOT_BYTES || bytes[..SLOT_BYTES] == [0; SLOT_BYTES] {
            return Err(SlotFault::Empty);
        }
        if bytes[..8] != MAGIC || u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return Err(SlotFault::Damaged);
        }
        let format = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if format > FORMAT {
            return Err(SlotFault::Newer(format));
        }
        let slot = LengthSlot { sequence: u64_at(bytes, 32), length: u64_at(bytes, 40) };
        let fits = bytes[16..32] == id.0 && slot.sequence % 2 == number && slot.length <= LENGTH_MAX;
        if fits && slot.sequence > 0 && format == FORMAT { Ok(slot) } else { Err(SlotFault::Damaged) }
    }
}

/// Why a slot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotFault {
    /// Never written.
    Empty,
    /// Torn or changed.
    Damaged,
    /// Of a later format.
    Newer(u32),
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The better slot of a length file, given its first 4,160 bytes or fewer.
fn parse(bytes: &[u8], id: &Id) -> Result<LengthSlot, SlotFault> {
    let second = bytes.get(SLOT_DISTANCE as usize..).unwrap_or_default();
    let slots = [LengthSlot::parse(bytes, id, 0), LengthSlot::parse(second, id, 1)];
    if let Some(newer) = slots.iter().find_map(|slot| slot.err().filter(|fault| matches!(fault, SlotFault::Newer(_)))) {
        return Err(newer);
    }
    let best = slots.iter().filter_map(|slot| slot.ok()).max();
    best.ok_or(if slots.contains(&Err(SlotFault::Damaged)) { SlotFault::Damaged } else { SlotFault::Empty })
}

/// Makes the length file of a new file, of length 0, and its bytes (not its name) durable.
pub(super) fn create(fs: &Arc<dyn DriveFs>, id: &Id) -> Result<DriveFile> {
    let path = length_path(id);
    let file = DriveFile::open(fs, &path, Access::CREATE).map_err(failed("create", &**fs, &path))?;
    write_slot(&file, id, LengthSlot::FIRST)?;
    Ok(file)
}

fn write_slot(file: &DriveFile, id: &Id, slot: LengthSlot) -> Result<()> {
    let fs = &**file.fs();
    fs.write_at(file.handle(), &slot.to_bytes(id), slot.offset()).map_err(failed("write", fs, file.path()))?;
    fs.sync_data(file.handle()).map_err(failed("sync", fs, file.path()))
}

/// One copy as it was found.
struct LengthCopy {
    /// Index of the drive.
    drive: usize,
    /// `None` where there is no file.
    file: Option<DriveFile>,
    slot: Result<LengthSlot, Unusable>,
}

/// Why a copy cannot be used.
#[derive(Debug)]
enum Unusable {
    Missing,
    Empty,
    Damaged,
    /// The drive failed to read it.
    Unreadable(io::Error),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Missing => f.write_str("is missing"),
            Unusable::Empty => f.write_str("is empty"),
            Unusable::Damaged => f.write_str("is damaged"),
            Unusable::Unreadable(error) => write!(f, "cannot be read ({error})"),
        }
    }
}

fn read_copy(catalog: &Catalog, id: &Id, drive: usize, access: Access) -> Result<LengthCopy> {
    let fs = &catalog.drives[drive].fs;
    let path = length_path(id);
    let opened = absent_is_none(DriveFile::open(fs, &path, access)).map_err(failed("open", &**fs, &path))?;
    let Some(file) = opened else { return Ok(LengthCopy { drive, file: None, slot: Err(Unusable::Missing) }) };
    let mut bytes = [0; SLOT_DISTANCE as usize + SLOT_BYTES];
    let slot = match fs.read_at(file.handle(), &mut bytes, 0) {
        Ok(count) => match parse(&bytes[..count], id) {
            Ok(slot) => Ok(slot),
            Err(SlotFault::Newer(format)) => {
                let why = format!("is of format {format}; use a version of iomill that knows it");
                return Err(Error::Corrupt { path: full_path(&**fs, &path), why });
            }
            Err(SlotFault::Empty) => Err(Unusable::Empty),
            Err(SlotFault::Damaged) => Err(Unusable::Damaged),
        },
        Err(error) if is_media_error(&error) => Err(Unusable::Unreadable(error)),
        Err(error) => return Err(Error::io("read", full_path(&**fs, &path), error)),
    };
    Ok(LengthCopy { drive, file: Some(file), slot })
}

/// All copies and the slot that rules.
struct LengthCopies {
    copies: Vec<LengthCopy>,
    best: LengthSlot,
}

fn find(catalog: &Catalog, record: &Record, access: Access) -> Result<LengthCopies> {
    let drives = record.length_drives.iter().map(|&drive| usize::from(drive));
    let copies: Vec<LengthCopy> =
        drives.map(|drive| read_copy(catalog, &record.id, drive, access)).collect::<Result<_>>()?;
    let best = copies.iter().filter_map(|copy| copy.slot.as_ref().ok()).max_by_key(|slot| slot.sequence).copied();
    let Some(best) = best else { return Err(none_good(catalog, record, copies)) };
    let rival =
        |copy: &&LengthCopy| copy.slot.as_ref().is_ok_and(|slot| slot.sequence == best.sequence && *slot != best);
    if let Some(copy) = copies.iter().find(rival) {
        let why = "has the same sequence number as on another drive, but differs";
        return Err(corrupt(catalog, record, copy.drive, why));
    }
    Ok(LengthCopies { copies, best })
}

/// No copy can be used: reports the first.
fn none_good(catalog: &Catalog, record: &Record, copies: Vec<LengthCopy>) -> Error {
    for copy in copies {
        match copy.slot {
            Ok(_) => {}
            Err(Unusable::Unreadable(error)) => {
                return Error::io("read", full_path(&*catalog.drives[copy.drive].fs, &length_path(&record.id)), error);
            }
            Err(why) => {
                let why = format!("{why}, and no other drive has a good copy; bring one back, or remove the file");
                return corrupt(catalog, record, copy.drive, &why);
            }
        }
    }
    corrupt(catalog, record, 0, "is kept on no drive")
}

fn corrupt(catalog: &Catalog, record: &Record, drive: usize, why: &str) -> Error {
    Error::Corrupt {
        path: full_path(&*catalog.drives[drive].fs, &length_path(&record.id)),
        why: format!("the length of {:?} {why}", record.name),
    }
}

/// What is wrong with the copies of a file's length, and the length if it can be determined.
pub(super) fn examine(catalog: &Catalog, record: &Record) -> (Result<u64>, Vec<Problem>) {
    let found = match find(catalog, record, Access::READ) {
        Ok(found) => found,
        Err(error) => return (Err(error), Vec::new()),
    };
    let mut problems = Vec::new();
    for copy in &found.copies {
        let what = match &copy.slot {
            Ok(slot) if *slot == found.best => continue,
            Ok(slot) => format!("was left at sequence {} of {}", slot.sequence, found.best.sequence),
            Err(why) => why.to_string(),
        };
        let what = format!("this copy of the length of {:?} {what}", record.name);
        problems.push(problem(&catalog.drives, copy.drive, &length_path(&record.id), &what, Severity::Warning));
    }
    (Ok(found.best.length), problems)
}

/// The length of an open file.
#[derive(Debug)]
pub struct LengthFile {
    id: Id,
    name: String,
    /// Empty in a process that does not write.
    copies: Vec<DriveFile>,
    state: Mutex<LengthState>,
}

#[derive(Clone, Copy, Debug)]
struct LengthState {
    /// Durable on every copy.
    good: LengthSlot,
    /// The next sequence number to use. Its distance from `good` is odd, so that its slot is the other one (rule 10).
    next: u64,
}

impl Catalog {
    /// Reads the length of a file. A writer updates old copies and makes all of them durable (rule 13).
    pub fn open_length(&self, record: &Record) -> Result<LengthFile> {
        let access = if self.mode == OpenMode::Writer { Access::WRITE } else { Access::READ };
        let found = find(self, record, access)?;
        let mut copies = Vec::new();
        if self.mode == OpenMode::Writer {
            for copy in found.copies {
                copies.push(self.bring_up(record, copy, found.best)?);
            }
        }
        let state = LengthState { good: found.best, next: found.best.sequence + 1 };
        Ok(LengthFile { id: record.id, name: record.name.clone(), copies, state: Mutex::new(state) })
    }

    /// The length of a file by its copies. It changes no copy, so another process may work on the file.
    pub fn length(&self, record: &Record) -> Result<u64> {
        Ok(find(self, record, Access::READ)?.best.length)
    }

    fn bring_up(&self, record: &Record, copy: LengthCopy, best: LengthSlot) -> Result<DriveFile> {
        let fs = &self.drives[copy.drive].fs;
        let path = length_path(&record.id);
        let (file, why) = match (copy.file, copy.slot) {
            (Some(file), Ok(slot)) if slot == best => {
                fs.sync_data(file.handle()).map_err(failed("sync", &**fs, &path))?;
                return Ok(file);
            }
            (Some(file), slot) => (file, slot.map_or_else(|why| why.to_string(), |_| "lagged behind".to_owned())),
            (None, _) => {
                let file = DriveFile::open(fs, &path, Access::CREATE).map_err(failed("create", &**fs, &path))?;
                (file, "was missing".to_owned())
            }
        };
        write_slot(&file, &record.id, best)?;
        sync_dir(&**fs, FILES)?;
        let name = &record.name;
        self.notice(format!("{}: the length of {name:?} {why} (put right)", full_path(&**fs, &path).display()));
        Ok(file)
    }
}

impl LengthFile {
    /// The length published last, in bytes.
    pub fn current(&self) -> u64 {
        lock(&self.state).good.length
    }

    /// Makes `length` the file's length, durable on all copies. Before the call, the parts are durably as long as `length`
    /// demands.
    ///
    /// After an error the file has either length when it is opened next; `current` keeps the old one.
    pub fn publish(&self, length: u64) -> Result<()> {
        if self.copies.is_empty() {
            return Err(Error::ReadOnly { why: format!("{:?} is open for reading", self.name) });
        }
        if length > LENGTH_MAX {
            return Err(Error::invalid(
                format!("length {length} of {:?}", self.name),
                format!("the most is {LENGTH_MAX}"),
            ));
        }
        let mut state = lock(&self.state);
        let settled = state.next == state.good.sequence + 1;
        if settled && state.good.length == length {
            return Ok(());
        }
        let slot = LengthSlot { sequence: state.next, length };
        // Plus two: some copies may have this number now, but the slot of the last good one must stay.
        state.next += 2;
        for file in &self.copies {
            write_slot(file, &self.id, slot)?;
        }
        *state = LengthState { good: slot, next: slot.sequence + 1 };
        Ok(())
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    const ID: Id = Id([7; 16]);

    fn file(slots: &[LengthSlot]) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_DISTANCE as usize + SLOT_BYTES];
        for slot in slots {
            let at = slot.offset() as usize;
            bytes[at..at + SLOT_BYTES].copy_from_slice(&slot.to_bytes(&ID));
        }
        bytes
    }

    #[test]
    fn the_higher_sequence_rules() {
        let old = LengthSlot { sequence: 8, length: 100 };
        let new = LengthSlot { sequence: 9, length: 50 };
        assert_eq!(parse(&file(&[old, new]), &ID), Ok(new));
        assert_eq!(parse(&file(&[old]), &ID), Ok(old));
        assert_eq!(parse(&file(&[old, new])[..4100], &ID), Ok(old));
        assert_eq!(parse(&file(&[]), &ID), Err(SlotFault::Empty));
        assert_eq!(parse(b"", &ID), Err(SlotFault::Empty));
        assert_eq!(parse(&file(&[new]), &Id([8; 16])), Err(SlotFault::Damaged));
    }

    #[test]
    fn any_changed_byte_of_a_slot_falls_back_to_the_other() {
        let old = LengthSlot { sequence: 8, length: 100 };
        let new = LengthSlot { sequence: 9, length: 50 };
        for at in 0..SLOT_BYTES {
            let mut bytes = file(&[old, new]);
            bytes[SLOT_DISTANCE as usize + at] ^= 0x40;
            assert_eq!(parse(&bytes, &ID), Ok(old), "byte {at}");
            let mut bytes = file(&[new]);
            bytes[SLOT_DISTANCE as usize + at] ^= 1;
            assert_eq!(parse(&bytes, &ID), Err(SlotFault::Damaged), "byte {at}");
        }
    }

    #[test]
    fn a_slot_in_the_wrong_place_or_of_a_later_format_is_refused() {
        let slot = LengthSlot { sequence: 9, length: 50 };
        let mut bytes = vec![0; SLOT_DISTANCE as usize + SLOT_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&slot.to_bytes(&ID));
        assert_eq!(parse(&bytes, &ID), Err(SlotFault::Damaged));
        let mut newer = slot.to_bytes(&ID);
        newer[8] = 2;
        let checksum = xxh3_64(&newer[..56]);
        newer[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes[SLOT_DISTANCE as usize..].copy_from_slice(&newer);
        assert_eq!(parse(&bytes, &ID), Err(SlotFault::Newer(2)));
    }
}
