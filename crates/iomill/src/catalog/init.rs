//! Making an array (rule 9).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::discovery::{FoundArray, FoundDrive, are_new, attach, hint, read_label};
use super::id::Id;
use super::label::{COPIES_MAX, DRIVES_MAX, DriveState, LabelBody, LabelDrive, LabelFeatures, Signature, WEIGHT_MAX};
use super::log::group::OpeningId;
use super::log::merged::Voter;
use super::log::writer::LogPlace;
use super::open::{FIRST_SEGMENT_BYTES, Opening};
use super::openings::{Openings, Proof};
use super::store::{
    Drive, LABEL, LOCK, LOG, Locks, OPENING, PARTS, SHARED, Staged, TEMPORARY, absent_is_none, failed, is_ours,
    unlink_if_there,
};
use super::{Catalog, OpenMode};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, Lock, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::sync::lock;

/// A file that each drive has before it has a label. It is empty.
pub const EMPTY_FILE: &str = LOCK;

/// The weight of a drive without a given one.
const WEIGHT_DEFAULT: u32 = 10;

impl Catalog {
    /// Whether these drives are to become a new array, because none of them has one. An error if one of them may be an
    /// empty mount point, unless `on_root`.
    pub fn are_new(platform: &dyn Platform, drives: &[PathBuf], on_root: bool) -> Result<bool> {
        are_new(platform, drives, on_root)
    }

    /// Makes an array of the given drives, with one weight for each, or none for equal drives. The directories must
    /// exist and be no drives yet. The log is on the first `copies` drives, by default on up to three. The catalog that
    /// comes back is the array's writer. After an error the drives are no array, unless it is
    /// [`Error::OutcomeUnknown`], and a directory `<drive>/iomill` that it has made is gone again.
    ///
    /// `ready` makes what the caller needs to serve the array. It runs before anything on the drives says that they are
    /// one, and its error is an error of the call. Each drive then has the file [`EMPTY_FILE`].
    pub fn create_with<T>(
        platform: &Arc<dyn Platform>,
        drives: &[PathBuf],
        weights: &[u32],
        copies: Option<usize>,
        ready: impl FnOnce(Id, &[Drive]) -> Result<T>,
    ) -> Result<(Catalog, T)> {
        let weights = check_arguments(drives, weights)?;
        let copies = check_copies(copies, drives.len())?;
        let mut fses = Vec::new();
        let made = make_array(platform, drives, &weights, copies, &mut fses, ready);
        if made.is_err() {
            fses.iter().for_each(|fs| remove_made(&**fs));
        }
        made
    }
}

/// Makes an array of the drives, to which it attaches one by one.
fn make_array<T>(
    platform: &Arc<dyn Platform>,
    drives: &[PathBuf],
    weights: &[u32],
    copies: u16,
    fses: &mut Vec<Arc<dyn DriveFs>>,
    ready: impl FnOnce(Id, &[Drive]) -> Result<T>,
) -> Result<(Catalog, T)> {
    for path in drives {
        fses.push(attach(&**platform, path, true)?);
    }
    refuse_doubles(fses)?;
    for fs in &*fses {
        refuse_other_content(&**fs)?;
        make_lock(fs)?;
    }
    let locks = Locks::take(&**platform, &*fses, Lock::Exclusive)?;
    refuse_drives_in_use(fses)?;
    for fs in &*fses {
        prepare(fs)?;
    }
    let mut listed = Vec::new();
    for ((index, fs), weight) in (0u16..).zip(&*fses).zip(weights) {
        let id = Id::random(&**platform)?;
        listed.push(LabelDrive { id, index, path: hint(&**fs), weight: *weight, state: DriveState::In });
    }
    let body = LabelBody {
        array: Id::random(&**platform)?,
        epoch: 0,
        copies,
        voters: (0..copies).collect(),
        features: LabelFeatures::default(),
        drives: listed,
    };
    let listed = fses.iter().zip(&body.drives);
    let new: Vec<Drive> = listed
        .map(|(fs, listed)| Drive { fs: Arc::clone(fs), id: listed.id, index: listed.index, weight: listed.weight })
        .collect();
    let ready = ready(body.array, &new)?;
    let first = LabelBody { epoch: 1, ..body.clone() };
    let made = write_labels(&**platform, fses, &body)
        .and_then(|()| make_log(platform, &new, &body))
        .and_then(|()| write_labels(&**platform, fses, &first))
        .and_then(|()| open_made(platform, fses, &first));
    match made {
        Ok(catalog) => {
            *lock(&catalog.locks) = locks;
            Ok((catalog, ready))
        }
        // The locks keep others out until all is gone.
        Err(error) => Err(take_back(fses, error)),
    }
}

/// Opens the array that was made. The caller has its locks.
fn open_made(platform: &Arc<dyn Platform>, fses: &[Arc<dyn DriveFs>], body: &LabelBody) -> Result<Catalog> {
    let found = (0u16..).zip(fses).map(|(index, fs)| FoundDrive {
        fs: Arc::clone(fs),
        label: body.label_of(index),
        signed: true,
        moved: false,
    });
    let array = FoundArray { label: body.label_of(0), found: found.collect() };
    Opening::new(platform, OpenMode::Writer, array, Locks::default(), Signature::Required)?.into_catalog()
}

/// Removes the directory `<drive>/iomill` if this attempt has made it, and nothing is in it but the empty frame of an
/// array. Its lock keeps another attempt out meanwhile.
fn remove_made(fs: &dyn DriveFs) {
    let frame = [LOCK, LOG, PARTS, SHARED];
    let is_frame = || {
        let is_empty = |name: &String| name == LOCK || fs.list(name).is_ok_and(|names| names.is_empty());
        fs.list("").is_ok_and(|names| names.iter().all(|name| frame.contains(&name.as_str()) && is_empty(name)))
    };
    if fs.is_new() && fs.lock_directory(Lock::Exclusive).unwrap_or(false) {
        if is_frame() {
            // The error of the attempt is what counts. A directory that stays holds nothing, and the next attempt takes
            // it.
            let _ = absent_is_none(fs.unlink(LOCK));
            [LOG, PARTS, SHARED, ""].into_iter().for_each(|dir| drop(fs.remove_dir(dir)));
        }
        let _ = fs.unlock_directory();
    }
}

/// On how many drives the log is.
fn check_copies(copies: Option<usize>, drives: usize) -> Result<u16> {
    let most = drives.min(COPIES_MAX);
    match copies.unwrap_or(most) {
        copies if (1..=most).contains(&copies) => Ok(copies as u16),
        copies => {
            let why = format!("1 to {COPIES_MAX} drives have the log, and the array has {drives}");
            Err(Error::invalid(format!("{copies} copies of the log"), why))
        }
    }
}

/// Makes the log on the drives that vote, and the notes of the first opening on all drives.
fn make_log(platform: &Arc<dyn Platform>, drives: &[Drive], body: &LabelBody) -> Result<()> {
    let opening = OpeningId { number: 1, id: Id::random(&**platform)? };
    let (array, segment_bytes) = (body.array, FIRST_SEGMENT_BYTES);
    let place = LogPlace { platform: Arc::clone(platform), array, segment_bytes, compares_all: false };
    let voter = |index: &u16| Voter { drive: usize::from(*index), fs: Arc::clone(&drives[usize::from(*index)].fs) };
    let checksum = place.create(&body.voters.iter().map(voter).collect::<Vec<_>>(), opening)?;
    Openings::make(&**platform, array, drives, opening, Proof { sequence: 1, checksum }).map(drop)
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
            return Err(Error::drive(fs.location(), format!("it is the same directory as {}", other.display()))
                .advise("name each drive once"));
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
        Some(name) => {
            Err(Error::drive(fs.location(), format!("its directory `iomill` holds something else ({name:?})"))
                .advise("choose another directory"))
        }
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
            let why = format!("it is drive {} of array {} already", label.index, label.array);
            let advice = "open that array. If it is not needed any more, remove the directory `iomill` here: that destroys \
                          all files of the array";
            return Err(Error::array_exists(fs.location(), why).advise(advice));
        }
        for dir in [LOG, PARTS, SHARED] {
            if dir == LOG && label.is_some() {
                // The log of the array that was not finished, which holds nothing.
                continue;
            }
            let names = absent_is_none(fs.list(dir)).map_err(failed("list", fs, dir))?.unwrap_or_default();
            if let Some(name) = names.iter().find(|name| !name.starts_with(TEMPORARY)) {
                return Err(Error::drive(fs.location(), format!("it holds files of an array (iomill/{dir}/{name})"))
                    .advise("move `iomill` away first"));
            }
        }
    }
    Ok(())
}

/// Makes the directories, and clears away what an interrupted init left.
fn prepare(fs: &Arc<dyn DriveFs>) -> Result<()> {
    let since = Since::now();
    for dir in [PARTS, SHARED] {
        fs.make_dir(dir).map_err(failed("create", &**fs, dir))?;
        sync_dir(&**fs, dir, since)?;
    }
    for name in fs.list("").map_err(failed("list", &**fs, ""))? {
        if name.starts_with(TEMPORARY) {
            unlink_if_there(&**fs, &name)?;
        }
    }
    unlink_if_there(&**fs, OPENING)?;
    remove_log(&**fs)?;
    sync_dir(&**fs, "", since)
}

/// Removes the files of a log that no label of an epoch above 0 names.
fn remove_log(fs: &dyn DriveFs) -> Result<()> {
    let Some(names) = absent_is_none(fs.list(LOG)).map_err(failed("list", fs, LOG))? else { return Ok(()) };
    let since = Since::now();
    for name in names {
        unlink_if_there(fs, &format!("{LOG}/{name}"))?;
    }
    sync_dir(fs, LOG, since)
}

fn write_labels(platform: &dyn Platform, fses: &[Arc<dyn DriveFs>], body: &LabelBody) -> Result<()> {
    let mut files = Vec::new();
    for (index, fs) in (0u16..).zip(fses) {
        let failed = |why| Error::invalid(format!("the label of drive {}", fs.location().display()), why);
        files.push((fs, body.label_of(index).to_bytes().map_err(failed)?));
    }
    Staged::write(platform, files.iter().map(|(fs, bytes)| (*fs, LABEL.to_owned(), bytes.as_slice())))?.commit()
}

/// Removes what was written, the labels last, so that the drives are free again.
fn take_back(fses: &[Arc<dyn DriveFs>], error: Error) -> Error {
    let (since, mut freed) = (Since::now(), Ok(()));
    for fs in fses {
        let left = unlink_if_there(&**fs, OPENING).and_then(|()| remove_log(&**fs));
        let removed = left.and_then(|()| unlink_if_there(&**fs, LABEL));
        freed = freed.and(removed.and_then(|()| sync_dir(&**fs, "", since)));
    }
    match freed {
        Ok(()) => error,
        Err(_) => Error::OutcomeUnknown { what: "making the array".to_owned(), source: Box::new(error) },
    }
}
