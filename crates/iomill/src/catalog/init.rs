//! Making an array (rule 9).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::discovery::{FoundArray, FoundDrive, attach, hint, read_label};
use super::id::Id;
use super::label::{DRIVES_MAX, DriveState, Label, LabelDrive, WEIGHT_MAX};
use super::open::label_bytes;
use super::spare;
use super::store::{
    FILES, LABEL, LOCK, Locks, PARTS, Staged, TEMPORARY, absent_is_none, failed, is_ours, sync_dir, unlink_if_there,
};
use super::text::Signature;
use super::{Catalog, OpenMode};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, Lock};

/// The weight of a drive without a given one.
const WEIGHT_DEFAULT: u32 = 10;

impl Catalog {
    /// Makes an array of the given drives, with one weight for each, or none for equal drives. The directories must
    /// exist and be no drives yet. The catalog that comes back is the array's writer.
    pub fn create(platform: &Arc<dyn Platform>, drives: &[PathBuf], weights: &[u32]) -> Result<Catalog> {
        let weights = check_arguments(drives, weights)?;
        let mut fses = Vec::new();
        for path in drives {
            fses.push(attach(&**platform, path, true)?);
        }
        refuse_doubles(&fses)?;
        for fs in &fses {
            refuse_other_content(&**fs)?;
            make_lock(fs)?;
        }
        let locks = Locks::take(&fses, Lock::Exclusive)?;
        refuse_drives_in_use(&fses)?;
        for fs in &fses {
            prepare(fs)?;
        }
        let array = Id::random(&**platform)?;
        let mut listed = Vec::new();
        for ((index, fs), weight) in (0u16..).zip(&fses).zip(weights) {
            let id = Id::random(&**platform)?;
            listed.push(LabelDrive { id, index, path: hint(&**fs), weight, state: DriveState::In });
        }
        let label_of = |own: &LabelDrive, epoch| Label::of(own, array, epoch, listed.clone());
        for epoch in [0, 1] {
            if let Err(error) = write_labels(&**platform, &fses, listed.iter().map(|own| label_of(own, epoch))) {
                return Err(take_back(&fses, error));
            }
        }
        let found = fses.into_iter().zip(&listed).map(|(fs, own)| FoundDrive {
            fs,
            label: label_of(own, 1),
            signed: true,
            moved: false,
        });
        let found: Vec<FoundDrive> = found.collect();
        let label = label_of(&listed[0], 1);
        Catalog::assemble(platform, OpenMode::Writer, FoundArray { label, found }, locks)
    }
}

/// The weights to use.
fn check_arguments(drives: &[PathBuf], weights: &[u32]) -> Result<Vec<u32>> {
    if drives.is_empty() || drives.len() > DRIVES_MAX {
        return Err(Error::invalid(format!("{} drives", drives.len()), format!("an array has 1 to {DRIVES_MAX}")));
    }
    if weights.is_empty() {
        return Ok(vec![WEIGHT_DEFAULT; drives.len()]);
    }
    if weights.len() != drives.len() {
        let why = format!("each of the {} drives has one weight", drives.len());
        return Err(Error::invalid(format!("{} weights", weights.len()), why));
    }
    match weights.iter().find(|&&weight| weight == 0 || weight > WEIGHT_MAX) {
        Some(weight) => Err(Error::invalid(format!("weight {weight}"), format!("weights are 1 to {WEIGHT_MAX}"))),
        None => Ok(weights.to_vec()),
    }
}

fn refuse_doubles(fses: &[Arc<dyn DriveFs>]) -> Result<()> {
    let mut seen: Vec<(_, &Path)> = Vec::new();
    for fs in fses {
        let identity = fs.identity().map_err(failed("stat", &**fs, ""))?;
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == identity) {
            return Err(Error::Drive {
                path: fs.location().to_owned(),
                why: format!("it is the same directory as {}; name each drive once", other.display()),
            });
        }
        seen.push((identity, fs.location()));
    }
    Ok(())
}

/// A directory `iomill` may be something else, for example a checkout of iomill's source.
fn refuse_other_content(fs: &dyn DriveFs) -> Result<()> {
    let names = fs.list("").map_err(failed("list", fs, ""))?;
    match names.iter().find(|name| !is_ours(name)) {
        None => Ok(()),
        Some(name) => Err(Error::Drive {
            path: fs.location().to_owned(),
            why: format!("its directory `iomill` holds something else ({name:?}); choose another directory"),
        }),
    }
}

/// Makes the lock, unless an interrupted init has made it.
fn make_lock(fs: &Arc<dyn DriveFs>) -> Result<()> {
    match DriveFile::open(fs, LOCK, Access::CREATE) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed("create", &**fs, LOCK)(error)),
    }
}

/// Refuses drives with a label, with one exception: an array that was not finished. A drive's own epoch of 0 shows
/// that, or another of these drives shows it (rule 9).
fn refuse_drives_in_use(fses: &[Arc<dyn DriveFs>]) -> Result<()> {
    let mut labels = Vec::new();
    for fs in fses {
        labels.push(read_label(fs, Signature::Required)?.map(|(label, _)| label));
    }
    let unfinished: Vec<Id> =
        labels.iter().flatten().filter(|label| label.epoch == 0).map(|label| label.array).collect();
    for (fs, label) in fses.iter().zip(&labels) {
        let fs = &**fs;
        if let Some(label) = label
            && !unfinished.contains(&label.array)
        {
            return Err(Error::Drive {
                path: fs.location().to_owned(),
                why: format!(
                    "it is drive {} of array {} already; open that array, or remove its directory `iomill` with all \
                     that the array holds",
                    label.index, label.array
                ),
            });
        }
        for dir in [FILES, PARTS] {
            let names = absent_is_none(fs.list(dir)).map_err(failed("list", fs, dir))?.unwrap_or_default();
            if let Some(name) = names.iter().find(|name| !name.starts_with(TEMPORARY)) {
                return Err(Error::Drive {
                    path: fs.location().to_owned(),
                    why: format!("it holds files of an array (iomill/{dir}/{name}); move `iomill` away first"),
                });
            }
        }
    }
    Ok(())
}

/// Makes the directories, and clears away what an interrupted init left.
fn prepare(fs: &Arc<dyn DriveFs>) -> Result<()> {
    for dir in [FILES, PARTS] {
        fs.make_dir(dir).map_err(failed("create", &**fs, dir))?;
        sync_dir(&**fs, dir)?;
    }
    for name in fs.list("").map_err(failed("list", &**fs, ""))? {
        if name.starts_with(TEMPORARY) {
            unlink_if_there(&**fs, &name)?;
        }
    }
    spare::fill(fs)?;
    sync_dir(&**fs, "")
}

fn write_labels(platform: &dyn Platform, fses: &[Arc<dyn DriveFs>], labels: impl Iterator<Item = Label>) -> Result<()> {
    let mut files = Vec::new();
    for (fs, label) in fses.iter().zip(labels) {
        files.push((fs, label_bytes(&label, fs.location())?));
    }
    Staged::write(platform, files.iter().map(|(fs, bytes)| (*fs, LABEL.to_owned(), bytes.as_slice())))?.commit()
}

/// Removes the labels that were written, so that the drives are free again.
fn take_back(fses: &[Arc<dyn DriveFs>], error: Error) -> Error {
    let mut freed = Ok(());
    for fs in fses {
        freed = freed.and(unlink_if_there(&**fs, LABEL).and_then(|()| sync_dir(&**fs, "")));
    }
    match freed {
        Ok(()) => error,
        Err(_) => Error::OutcomeUnknown { what: "making the array".to_owned(), source: Box::new(error) },
    }
}
