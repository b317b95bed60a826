//! Reading all records of all drives, and deciding which version of each rules.
//!
//! Goals: each record is parsed once, however many drives hold it, since equal bytes need no second look. One buffer serves all
//! reads. Non-goals: changing anything (`plan.rs`).

use std::collections::BTreeMap;

use super::id::Id;
use super::record::{RECORD_MAX_BYTES, Record, parse_record_as, record_path};
use super::store::{Drive, FILES, PARTS, TEMPORARY, failed, full_path, is_media_error, is_ours, read_small};
use super::text::{Signature, TextError};
use crate::error::{Error, Result};

/// What lies on the drives.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Every id that has a record somewhere.
    pub(super) records: BTreeMap<Id, RecordCopies>,
    /// Drives (by index) with a length file of each id.
    pub(super) lengths: BTreeMap<Id, Vec<usize>>,
    /// Drives with a part of each id.
    pub(super) parts: BTreeMap<Id, Vec<usize>>,
    /// Temporary files, as drive and path.
    pub(super) leftovers: Vec<(usize, String)>,
    /// Files that are not iomill's, as drive and path.
    pub(super) strangers: Vec<(usize, String)>,
}

/// All copies of one record.
#[derive(Debug)]
pub(super) struct RecordCopies {
    /// The different contents found.
    versions: Vec<Version>,
    /// By drive.
    by_drive: Vec<RecordCopy>,
}

#[derive(Debug)]
struct Version {
    bytes: Vec<u8>,
    parsed: Result<(Record, bool), TextError>,
}

#[derive(Debug)]
enum RecordCopy {
    Missing,
    Holds(usize),
    Unreadable(String),
}

/// The version of a record that rules.
#[derive(Debug)]
pub(super) struct Winner {
    pub(super) record: Record,
    pub(super) bytes: Vec<u8>,
    /// Drives that hold something else, and what is wrong with it.
    pub(super) stale: Vec<(usize, String)>,
}

/// A record that no rule can decide.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) drive: usize,
    pub(super) why: String,
}

/// Which files to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanDepth {
    /// Records only: enough for reading.
    Records,
    /// Parts, lengths and files that are not iomill's, too.
    All,
}

impl Scan {
    pub(super) fn read(drives: &[Drive], depth: ScanDepth, signature: Signature) -> Result<Scan> {
        let mut scan = Scan::default();
        let mut buf = vec![0; RECORD_MAX_BYTES];
        for (index, drive) in drives.iter().enumerate() {
            let fs = &*drive.fs;
            for name in fs.list(FILES).map_err(failed("list", fs, FILES))? {
                match classify(&name) {
                    FileKind::Record(id) => scan.read_record(drives, index, id, signature, &mut buf)?,
                    FileKind::Length(id) => scan.lengths.entry(id).or_default().push(index),
                    FileKind::Leftover => scan.leftovers.push((index, format!("{FILES}/{name}"))),
                    FileKind::Stranger => scan.strangers.push((index, format!("{FILES}/{name}"))),
                }
            }
            if depth == ScanDepth::All {
                scan.list_rest(index, drive)?;
            }
        }
        Ok(scan)
    }

    fn list_rest(&mut self, index: usize, drive: &Drive) -> Result<()> {
        let fs = &*drive.fs;
        for name in fs.list(PARTS).map_err(failed("list", fs, PARTS))? {
            match name.parse::<Id>() {
                Ok(id) => self.parts.entry(id).or_default().push(index),
                Err(_) => self.strangers.push((index, format!("{PARTS}/{name}"))),
            }
        }
        for name in fs.list("").map_err(failed("list", fs, ""))? {
            if name.starts_with(TEMPORARY) {
                self.leftovers.push((index, name));
            } else if !is_ours(&name) {
                self.strangers.push((index, name));
            }
        }
        Ok(())
    }

    fn read_record(
        &mut self,
        drives: &[Drive],
        index: usize,
        id: Id,
        signature: Signature,
        buf: &mut [u8],
    ) -> Result<()> {
        let path = record_path(&id);
        let fs = &*drives[index].fs;
        let copies = self.records.entry(id).or_insert_with(|| RecordCopies::none(drives.len()));
        copies.by_drive[index] = match read_small(fs, &path, buf) {
            // Removed since it was listed. Only a reader without a lock sees that.
            Ok(None) => RecordCopy::Missing,
            Ok(Some(bytes)) => RecordCopy::Holds(copies.version(bytes, id, drives.len(), signature)),
            Err(error) if is_media_error(&error) => RecordCopy::Unreadable(format!("cannot be read ({error})")),
            Err(error) => return Err(Error::io("read", full_path(fs, &path), error)),
        };
        Ok(())
    }
}

impl RecordCopies {
    fn none(drives: usize) -> RecordCopies {
        RecordCopies { versions: Vec::new(), by_drive: (0..drives).map(|_| RecordCopy::Missing).collect() }
    }

    /// The number of the version with these bytes.
    fn version(&mut self, bytes: &[u8], id: Id, drives: usize, signature: Signature) -> usize {
        if let Some(known) = self.versions.iter().position(|version| version.bytes == bytes) {
            return known;
        }
        let parsed = parse_record_as(bytes, signature).and_then(|(record, signed)| {
            if record.id != id {
                return Err(TextError::Bad(format!("is of another file, {}", record.id)));
            }
            match record.drives.iter().find(|&&drive| usize::from(drive) >= drives) {
                Some(drive) => Err(TextError::Bad(format!("names drive {drive} of an array of {drives} drives"))),
                None => Ok((record, signed)),
            }
        });
        self.versions.push(Version { bytes: bytes.to_owned(), parsed });
        self.versions.len() - 1
    }

    /// Whether any drive still has the record.
    pub(super) fn is_empty(&self) -> bool {
        self.by_drive.iter().all(|copy| matches!(copy, RecordCopy::Missing))
    }

    /// The highest generation wins (rule 6). `Err` if none can: all copies are unusable, two of one generation differ, or one has
    /// a later format.
    pub(super) fn decide(self) -> Result<Winner, Undecided> {
        let at = |number| {
            let holds = |copy: &RecordCopy| matches!(copy, RecordCopy::Holds(held) if *held == number);
            self.by_drive.iter().position(holds).unwrap_or(0)
        };
        let mut best: Option<(usize, &Record, bool)> = None;
        for (number, version) in self.versions.iter().enumerate() {
            let (record, signed) = match &version.parsed {
                Ok((record, signed)) => (record, *signed),
                Err(TextError::Bad(_)) => continue,
                Err(newer) => return Err(Undecided { drive: at(number), why: newer.to_string() }),
            };
            let Some((rival, other, other_signed)) = best else {
                best = Some((number, record, signed));
                continue;
            };
            if record.generation == other.generation && (record != other || (signed && other_signed)) {
                return Err(Undecided { drive: at(number), why: self.conflict(record.generation, at(rival)) });
            }
            if (record.generation, signed) > (other.generation, other_signed) {
                best = Some((number, record, signed));
            }
        }
        match best {
            Some((number, ..)) => self.won_by(number),
            None => Err(self.unusable()),
        }
    }

    fn conflict(&self, generation: u64, rival: usize) -> String {
        format!(
            "has generation {generation} like its copy on drive {rival}, but other bytes; decide which is right, raise \
             its generation by one, end it with `# checksum none`, and run `iomill check --repair`"
        )
    }

    fn won_by(mut self, number: usize) -> Result<Winner, Undecided> {
        let mut stale = Vec::new();
        for (drive, copy) in self.by_drive.iter().enumerate() {
            match copy {
                RecordCopy::Holds(held) if *held == number => {}
                RecordCopy::Missing => stale.push((drive, "was missing".to_owned())),
                RecordCopy::Unreadable(why) => stale.push((drive, why.clone())),
                RecordCopy::Holds(held) => stale.push(match &self.versions[*held].parsed {
                    Ok((record, _)) => (drive, format!("was left at generation {}", record.generation)),
                    Err(error) => (drive, error.to_string()),
                }),
            }
        }
        let version = self.versions.swap_remove(number);
        let undecided = |why: String| Undecided { drive: 0, why };
        let (record, signed) = version.parsed.map_err(|error| undecided(error.to_string()))?;
        if signed {
            return Ok(Winner { record, bytes: version.bytes, stale });
        }
        let bytes = record.to_bytes().map_err(undecided)?;
        let mended = |copy: &RecordCopy| matches!(copy, RecordCopy::Holds(held) if *held == number);
        let copies = self.by_drive.iter().enumerate().filter(|(_, copy)| mended(copy));
        stale.extend(copies.map(|(drive, _)| (drive, "was mended by hand and not signed".to_owned())));
        Ok(Winner { record, bytes, stale })
    }

    /// No copy can be used: reports the first.
    fn unusable(&self) -> Undecided {
        for (drive, copy) in self.by_drive.iter().enumerate() {
            let why = match copy {
                RecordCopy::Missing => continue,
                RecordCopy::Unreadable(why) => why.clone(),
                RecordCopy::Holds(held) => match &self.versions[*held].parsed {
                    Ok(_) => continue,
                    Err(error) => error.to_string(),
                },
            };
            return Undecided {
                drive,
                why: format!(
                    "{why}, and no other drive holds a good copy; mend it, end it with `# checksum none`, and run \
                     `iomill check --repair`"
                ),
            };
        }
        Undecided { drive: 0, why: "is gone".to_owned() }
    }
}

enum FileKind {
    Record(Id),
    Length(Id),
    Leftover,
    Stranger,
}

fn classify(name: &str) -> FileKind {
    if name.starts_with(TEMPORARY) {
        return FileKind::Leftover;
    }
    let parsed = name.split_once('.').and_then(|(id, kind)| Some((id.parse::<Id>().ok()?, kind)));
    match parsed {
        Some((id, "record")) => FileKind::Record(id),
        Some((id, "length")) => FileKind::Length(id),
        _ => FileKind::Stranger,
    }
}
