//! Finding the drives of an array, given one of them (rule 7).
//!
//! Goals: the ids decide, paths are only hints; every refusal names the drive and says what to do. Non-goals: arrays
//! with missing drives; they do not open.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::id::Id;
use super::label::{LABEL_MAX_BYTES, Label, LabelDrive, Signature, TextError, parse_label_as};
use super::store::{Drive, LABEL, full_path, read_whole};
use crate::engine::platform::{Footing, Platform};
use crate::error::{Error, Result};
use crate::sys::fs::DriveFs;

/// The advice of a label that cannot be read.
const LABEL_ADVICE: &str = "check the array, which tells how to mend it from another drive's label";

/// A directory with a label.
#[derive(Clone, Debug)]
pub(super) struct FoundDrive {
    pub(super) fs: Arc<dyn DriveFs>,
    pub(super) label: Label,
    /// False if a person mended the label and no repair has signed it yet.
    pub(super) signed: bool,
    /// Whether its place differs from that in the newest label. Another path to the same directory is the same place.
    pub(super) moved: bool,
}

/// All drives of an array.
#[derive(Debug)]
pub(super) struct FoundArray {
    /// The label of the highest epoch.
    pub(super) label: Label,
    /// By index; as many as the label lists.
    pub(super) found: Vec<FoundDrive>,
}

impl FoundArray {
    pub(super) fn drives(&self) -> Vec<Drive> {
        let pairs = self.found.iter().zip(&self.label.drives);
        let drive = |(found, listed): (&FoundDrive, &LabelDrive)| Drive {
            fs: Arc::clone(&found.fs),
            id: listed.id,
            index: listed.index,
            weight: listed.weight,
        };
        pairs.map(drive).collect()
    }

    /// Reads all labels again, to learn (under the lock) whether another process changed one meanwhile.
    pub(super) fn is_unchanged(&self, signature: Signature) -> Result<bool> {
        for found in &self.found {
            if read_label(&found.fs, signature)?.is_none_or(|(label, _)| label != found.label) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The list of drives with the places where they were found.
    pub(super) fn found_places(&self) -> Vec<LabelDrive> {
        let pairs = self.found.iter().zip(&self.label.drives);
        let place = |(found, listed): (&FoundDrive, &LabelDrive)| {
            let path = if found.moved { hint(&*found.fs) } else { listed.path.clone() };
            LabelDrive { path, ..listed.clone() }
        };
        pairs.map(place).collect()
    }
}

/// A drive's place as labels note it. A place that is not UTF-8 is noted as well as possible, and found as a neighbour.
pub(super) fn hint(fs: &dyn DriveFs) -> String {
    fs.location().to_string_lossy().into_owned()
}

/// Attaches to a drive. An error says what to do.
pub(super) fn attach(platform: &dyn Platform, path: &Path, create: bool) -> Result<Arc<dyn DriveFs>> {
    platform.attach(path, create).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if create || platform.footing(path).is_err() => {
            Error::NoDirectory { path: path.to_owned() }
        }
        io::ErrorKind::NotFound => Error::no_array(path, "no array has a drive here (there is no directory `iomill`)")
            .advise("mount the drive, or make an array"),
        io::ErrorKind::NotADirectory => Error::drive(path, "it is no directory, or `iomill` in it is none")
            .advise("name the directory where a drive is mounted, without another file of that name"),
        _ => Error::io(if create { "make a drive in" } else { "attach to the drive in" }, path, error),
    })
}

/// Whether an array that holds something has a drive in this directory. An error if there is no such directory, or its
/// label cannot be read.
fn has_array(platform: &dyn Platform, path: &Path) -> Result<bool> {
    match attach(platform, path, false) {
        Ok(fs) => Ok(read_label(&fs, Signature::Required)?.is_some_and(|(label, _)| label.epoch > 0)),
        Err(Error::NoArray { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the drives are to become a new array: none of them has an array. Where one has, the array is to be opened,
/// and a drive that is missing is missed then. An error if a directory may be the empty mount point of a drive that is
/// not mounted, unless `on_root`.
pub(super) fn are_new(platform: &dyn Platform, drives: &[PathBuf], on_root: bool) -> Result<bool> {
    for path in drives {
        if has_array(platform, path)? {
            return Ok(false);
        }
    }
    for path in drives {
        match platform.footing(path) {
            Ok(Footing::Root) if on_root => {}
            Ok(Footing::Drive) => {}
            Ok(Footing::Root) => {
                let why = "no array has a drive here, and the directory is on the file system of `/`, as the mount point of a drive \
                           that is not mounted";
                let advice =
                    "mount the drive; if the array is to be on the disk of `/`, allow that by `ArrayOptions::on_root`";
                return Err(Error::no_array(path, why).advise(advice));
            }
            Err(error) => return Err(Error::io("examine", path, error)),
        }
    }
    Ok(true)
}

/// Reads a drive's label; `None` if it has none.
pub(super) fn read_label(fs: &Arc<dyn DriveFs>, signature: Signature) -> Result<Option<(Label, bool)>> {
    let path = full_path(&**fs, LABEL);
    let read = read_whole(fs, LABEL, LABEL_MAX_BYTES).map_err(|error| Error::in_array("read", &path, error))?;
    let Some(bytes) = read else { return Ok(None) };
    match parse_label_as(&bytes, signature) {
        Ok(label) => Ok(Some(label)),
        Err(TextError::Bad(why)) => Err(Error::corrupt(path, format!("the label {why}")).advise(LABEL_ADVICE)),
        Err(newer) => Err(Error::drive(fs.location(), format!("its label {newer}"))),
    }
}

/// Finds all drives of the array that the drives in `starts` belong to.
pub(super) fn find(platform: &dyn Platform, starts: &[PathBuf], signature: Signature) -> Result<FoundArray> {
    let mut search = Search { platform, starts, signature, found: BTreeMap::new(), neighbours: None };
    let array = search.take_starts()?;
    let best = search.complete(array)?;
    search.settle_places(&best)?;
    search.into_array(best)
}

struct Search<'a> {
    platform: &'a dyn Platform,
    starts: &'a [PathBuf],
    signature: Signature,
    found: BTreeMap<Id, FoundDrive>,
    /// Drives of the array in the neighbourhood, looked for once and only when hints fail.
    neighbours: Option<Vec<FoundDrive>>,
}

impl Search<'_> {
    /// Takes in the drives that the user named. They must all be of one array.
    fn take_starts(&mut self) -> Result<Id> {
        let mut array: Option<(Id, PathBuf)> = None;
        for path in self.starts {
            let fs = attach(self.platform, path, false).map_err(|error| self.beside_drives(error))?;
            let (label, signed) = read_label(&fs, self.signature)?.ok_or_else(|| {
                let why = "no array has a drive here (it has no label: its making may have been interrupted)";
                self.beside_drives(Error::no_array(path, why).advise("make one"))
            })?;
            let (id, first) = array.get_or_insert_with(|| (label.array, path.clone()));
            if *id != label.array {
                return Err(Error::drive(
                    path,
                    format!("it belongs to array {}, while {} belongs to {id}", label.array, first.display()),
                ));
            }
            self.take(FoundDrive { fs, label, signed, moved: false })?;
        }
        array.map(|(id, _)| id).ok_or_else(|| {
            Error::invalid("drives", "they name no array").advise("name at least one drive of the array")
        })
    }

    /// The error of a directory without an array. If another directory of the list has one, a drive is missing: no new
    /// array is to be made.
    fn beside_drives(&self, error: Error) -> Error {
        let Error::NoArray { path, why, .. } = &error else { return error };
        let drive_of = |other: &&PathBuf| match self.look_at(other) {
            Ok(Some(found)) => {
                Some(format!("{} is drive {} of array {}", other.display(), found.label.index, found.label.array))
            }
            _ => None,
        };
        let Some(other) = self.starts.iter().find_map(|other| drive_of(&other)) else { return error };
        Error::no_array(path, format!("{why}, while {other}"))
            .advise("mount the drive that belongs here, or name only directories of drives of that array")
    }

    /// Takes in a drive, unless another directory has its id already.
    fn take(&mut self, found: FoundDrive) -> Result<()> {
        match self.found.get(&found.label.drive) {
            Some(other) if is_same(&other.fs, &found.fs)? => {}
            Some(other) => return Err(doubled(other, &found)),
            None => {
                self.found.insert(found.label.drive, found);
            }
        }
        Ok(())
    }

    /// Searches until every drive of the newest label is found, and returns that label. A found drive may have a newer
    /// label, so this repeats until nothing changes.
    fn complete(&mut self, array: Id) -> Result<Label> {
        loop {
            let newest = self.found.values().max_by_key(|found| (found.label.epoch, found.signed));
            let best = newest.map(|found| found.label.clone()).ok_or_else(|| no_drives(self.starts))?;
            if let Some((why, advice)) = best.is_beyond(false) {
                let path = self.starts.first().cloned().unwrap_or_default();
                return Err(Error::drive(path, why).advise(advice));
            }
            let missing: Vec<LabelDrive> =
                best.drives.iter().filter(|listed| !self.found.contains_key(&listed.id)).cloned().collect();
            if missing.is_empty() {
                return Ok(best);
            }
            for listed in missing {
                let found = self.find_one(array, &best, &listed)?;
                self.take(found)?;
            }
        }
    }

    fn find_one(&mut self, array: Id, best: &Label, listed: &LabelDrive) -> Result<FoundDrive> {
        let wanted = |found: &FoundDrive| found.label.array == array && found.label.drive == listed.id;
        let at_hint = self.look_at(Path::new(&listed.path));
        let found_at_hint = match at_hint {
            Ok(Some(found)) if wanted(&found) => return Ok(found),
            other => other,
        };
        for path in self.relative_places(best, listed) {
            if let Ok(Some(found)) = self.look_at(&path)
                && wanted(&found)
            {
                return Ok(found);
            }
        }
        let mut matches: Vec<FoundDrive> = Vec::new();
        for found in self.neighbours(array).iter().filter(|found| wanted(found)) {
            if let Some(first) = matches.first() {
                if is_same(&first.fs, &found.fs)? {
                    continue;
                }
                return Err(doubled(first, found));
            }
            matches.push(found.clone());
        }
        matches.pop().map_or_else(|| Err(missing(listed, found_at_hint)), Ok)
    }

    /// The contents of a directory: a drive, nothing, or something unusable.
    fn look_at(&self, path: &Path) -> Result<Option<FoundDrive>> {
        let fs = match self.platform.attach(path, false) {
            Ok(fs) => fs,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(Error::io("attach to the drive in", path, error)),
        };
        Ok(read_label(&fs, self.signature)?.map(|(label, signed)| FoundDrive { fs, label, signed, moved: false }))
    }

    /// Where a drive is if the whole array moved together: as far from each found drive as their hints are apart.
    fn relative_places(&self, best: &Label, listed: &LabelDrive) -> Vec<PathBuf> {
        let mut places = Vec::new();
        for known in &best.drives {
            let Some(found) = self.found.get(&known.id) else { continue };
            if let Some(place) = shifted(found.fs.location(), Path::new(&known.path), Path::new(&listed.path))
                && !places.contains(&place)
            {
                places.push(place);
            }
        }
        places
    }

    /// Drives of the array near the starts. Directories there that cannot be read are ignored.
    fn neighbours(&mut self, array: Id) -> &[FoundDrive] {
        if self.neighbours.is_none() {
            let mut places: Vec<PathBuf> = Vec::new();
            for found in self.found.values() {
                places.extend(self.platform.neighbours(found.fs.location()));
            }
            places.sort();
            places.dedup();
            let found = places.iter().filter_map(|place| self.look_at(place).ok().flatten());
            self.neighbours = Some(found.filter(|found| found.label.array == array).collect());
        }
        self.neighbours.as_deref().unwrap_or_default()
    }

    /// Finds the drives that have moved. Such a drive may be a copy of a drive that is still in the old place. A copy
    /// and its original would drift apart, so neither is used.
    fn settle_places(&mut self, best: &Label) -> Result<()> {
        for listed in &best.drives {
            let old = Path::new(&listed.path);
            let Some(found) = self.found.get(&listed.id).filter(|found| found.fs.location() != old) else {
                continue;
            };
            let mut moved = true;
            if let Ok(Some(other)) = self.look_at(old)
                && other.label.drive == listed.id
            {
                if !is_same(&found.fs, &other.fs)? {
                    return Err(doubled(&other, found));
                }
                moved = false;
            }
            if let Some(found) = self.found.get_mut(&listed.id) {
                found.moved = moved;
            }
        }
        Ok(())
    }

    /// Brings the found drives into their order and compares their labels.
    fn into_array(mut self, best: Label) -> Result<FoundArray> {
        let mut drives = Vec::with_capacity(best.drives.len());
        for listed in &best.drives {
            let found = self.found.remove(&listed.id).ok_or_else(|| missing(listed, Ok(None)))?;
            if found.label.epoch == best.epoch && !found.label.agrees_with(&best) {
                let why = format!("it has epoch {} like another drive's label, but says something else", best.epoch);
                return Err(Error::corrupt(full_path(&*found.fs, LABEL), why).advise(
                    "decide which is right, raise its epoch by one, end it with `# checksum none`, and check and repair \
                     the array",
                ));
            }
            drives.push(found);
        }
        if let Some(stranger) = self.found.into_values().next() {
            return Err(Error::drive(
                stranger.fs.location(),
                format!("drive {} is not in array {} any more", stranger.label.drive, best.array),
            )
            .advise("leave it out"));
        }
        if best.epoch == 0 {
            return Err(Error::no_array(
                drives.first().map_or("".as_ref(), |found| found.fs.location()),
                "the making of this array was interrupted, and it holds nothing yet",
            )
            .advise("make it again with the same drives"));
        }
        Ok(FoundArray { label: best, found: drives })
    }
}

fn is_same(one: &Arc<dyn DriveFs>, other: &Arc<dyn DriveFs>) -> Result<bool> {
    let identity = |fs: &Arc<dyn DriveFs>| fs.identity().map_err(|error| Error::in_array("stat", fs.location(), error));
    Ok(identity(one)? == identity(other)?)
}

fn doubled(one: &FoundDrive, other: &FoundDrive) -> Error {
    Error::drive(
        other.fs.location(),
        format!(
            "it has the same id ({}) as {}: one is a copy of the other",
            one.label.drive,
            one.fs.location().display()
        ),
    )
    .advise("unmount or move away the one that is not to be used")
}

fn no_drives(starts: &[PathBuf]) -> Error {
    Error::invalid(format!("drives {starts:?}"), "they name no array").advise("name at least one drive of the array")
}

/// The words depend on what is in a missing drive's place.
fn missing(listed: &LabelDrive, at_hint: Result<Option<FoundDrive>>) -> Error {
    let instead = match at_hint {
        Err(error @ (Error::Corrupt { .. } | Error::Drive { .. })) => return error,
        Err(error) => format!(" ({error})"),
        Ok(Some(other)) => format!(" (now drive {} of array {} is there)", other.label.index, other.label.array),
        Ok(None) => String::new(),
    };
    Error::DriveMissing {
        path: PathBuf::from(&listed.path),
        index: listed.index,
        why: format!(
            "drive {} (id {}) of the array is missing; it was last seen here{instead}",
            listed.index, listed.id
        ),
        advice: "mount it, or open the array by the present directories of all its drives".into(),
    }
}

/// The place that is to `location` as the path `to` is to the path `from`.
fn shifted(location: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let mut from = from.components().peekable();
    let mut to = to.components().peekable();
    while from.peek().is_some() && from.peek() == to.peek() {
        from.next();
        to.next();
    }
    let mut place = location.to_owned();
    for component in from {
        if !matches!(component, Component::Normal(_)) || !place.pop() {
            return None;
        }
    }
    place.extend(to);
    Some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_hints() {
        let shift = |location: &str, from: &str, to: &str| {
            shifted(Path::new(location), Path::new(from), Path::new(to)).map(|path| path.display().to_string())
        };
        assert_eq!(shift("/x/ssd0", "/mnt/ssd0", "/mnt/ssd1").as_deref(), Some("/x/ssd1"));
        assert_eq!(shift("/x/y/0/d", "/a/0/d", "/a/1/d").as_deref(), Some("/x/y/1/d"));
        assert_eq!(shift("/x", "/a/b/c", "/a/d"), None);
    }
}
