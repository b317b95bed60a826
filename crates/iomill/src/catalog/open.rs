//! Opening an array: find the drives, lock them, and read the log.

use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, RwLock};

use super::discovery::{self, FoundArray};
use super::journal::{Journal, NUMBERS_AFTER_CRASH, Upkeep, read_log};
use super::label::{LabelBody, Signature};
use super::labels::{Labels, label_bytes};
use super::log::compare::Difference;
use super::log::group::OpeningId;
use super::log::merged::{LogEnd, Merged, Voter};
use super::log::writer::{LogPlace, SEGMENT_MIN_BYTES};
use super::openings::{Openings, no_notes};
use super::record::number_of_part;
use super::small::SmallFiles;
use super::state::files::{Files, NUMBERS_END};
use super::store::{LABEL, LOCK, LOG, Locks, PARTS, SHARED, Staged, TEMPORARY, failed, full_path, unlink_if_there};
use super::{Catalog, Drive, OpenMode, Store};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::{DriveFs, Lock, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::notices::Notices;
use crate::sys::sync::{Mutex, lock};

/// Bytes of the first segment of the log. Tests copy their drives often.
pub(super) const FIRST_SEGMENT_BYTES: u64 = if cfg!(test) { 64 << 10 } else { SEGMENT_MIN_BYTES };

/// The number of retries if another process changes the array between two reads.
const TRIES: usize = 5;

/// An array with its drives found and locked. Its files are still unknown.
#[derive(Debug)]
pub(super) struct Opening {
    platform: Arc<dyn Platform>,
    mode: OpenMode,
    locks: Locks,
    pub(super) labels: Labels,
    /// Whether all labels are right. A writer corrects them, but may fail.
    pub(super) labels_agree: bool,
    /// Whether a writer compares all copies of the log as a whole, which finds rot.
    pub(super) compares_all: bool,
}

impl Catalog {
    /// Opens the array that the drives in `starts` belong to; one of them is enough.
    pub fn open(platform: &Arc<dyn Platform>, starts: &[PathBuf], mode: OpenMode) -> Result<Catalog> {
        let open = || {
            let (array, locks) = lock_array(&**platform, starts, mode, Signature::Required)?;
            Opening::new(platform, mode, array, locks, Signature::Required)?.into_catalog()
        };
        if mode == OpenMode::Peek { beside_writer(open) } else { open() }
    }
}

/// Without a lock, a look may see the middle of a change of the labels, or of an opening. A second look then sees the
/// change done.
pub(super) fn beside_writer<R>(look: impl Fn() -> Result<R>) -> Result<R> {
    let mut seen = look();
    for _ in 1..TRIES {
        if seen.is_ok() {
            break;
        }
        seen = look();
    }
    seen
}

impl Opening {
    /// Drives that do not belong together are refused here (C43). A writer updates the labels. Without a signature, by
    /// hand, an array that has lost all notes of its openings is taken, and gets new ones later.
    pub(super) fn new(
        platform: &Arc<dyn Platform>,
        mode: OpenMode,
        array: FoundArray,
        locks: Locks,
        signature: Signature,
    ) -> Result<Opening> {
        let drives: Arc<[Drive]> = array.drives().into();
        let openings = Openings::read(array.label.array, &drives)?;
        if openings.is_none() && signature == Signature::Required {
            return Err(no_notes(&drives));
        }
        let labels = Labels {
            platform: Arc::clone(platform),
            drives,
            body: Arc::new(Mutex::new(array.label.body())),
            openings: Arc::new(Mutex::new(openings)),
            notices: Arc::new(Notices::default()),
            passing: Arc::default(),
        };
        let mut opening =
            Opening { platform: Arc::clone(platform), mode, locks, labels, labels_agree: false, compares_all: false };
        if mode == OpenMode::Writer {
            if let Some((why, advice)) = array.label.is_beyond(true) {
                let path = opening.drives()[0].path().to_owned();
                return Err(Error::drive(path, why).advise(advice));
            }
            opening.settle_directories()?;
            opening.update_labels(&array)?;
        }
        Ok(opening)
    }

    pub(super) fn drives(&self) -> &[Drive] {
        &self.labels.drives
    }

    pub(super) fn body(&self) -> LabelBody {
        lock(&self.labels.body).clone()
    }

    /// The drives with a copy of the log that counts.
    pub(super) fn voters(&self) -> Vec<Voter> {
        self.body().voters.iter().map(|index| self.voter(*index)).collect()
    }

    fn voter(&self, index: u16) -> Voter {
        let drive = usize::from(index);
        Voter { drive, fs: Arc::clone(&self.drives()[drive].fs) }
    }

    /// Reads the log. A writer makes its copies equal first, and removes what deleted files have left.
    pub(super) fn into_catalog(self) -> Result<Catalog> {
        let body = self.body();
        let store = if self.mode == OpenMode::Writer {
            let place = LogPlace {
                platform: Arc::clone(&self.platform),
                array: body.array,
                segment_bytes: FIRST_SEGMENT_BYTES,
                compares_all: self.compares_all,
            };
            let left = (0..body.copies).filter(|index| !body.voters.contains(index));
            let back: Vec<Voter> = left.map(|index| self.voter(index)).collect();
            let labels = Box::new(self.labels.clone());
            let voters = self.voters();
            let is_renewed = lock(&self.labels.openings).is_none();
            let journal = Journal::open(place, Upkeep::default(), &voters, &back, body.epoch, labels)?;
            self.check_layouts(&journal.files())?;
            let mut least = self.number_above_parts(journal.files().next_number())?;
            if is_renewed {
                // The log may have been rolled back.
                least = least.saturating_add(NUMBERS_AFTER_CRASH);
            }
            journal.start(least)?;
            Store::Journal(Box::new(journal))
        } else {
            Store::Files(Box::new(self.read_files()?))
        };
        let catalog = Catalog {
            platform: self.platform,
            mode: self.mode,
            id: body.array,
            labels: self.labels,
            store,
            small: SmallFiles::default(),
            syncs_changes: true,
            named: Mutex::default(),
            naming: AtomicUsize::new(0),
            buried: Mutex::default(),
            waiting: Mutex::default(),
            removed: Mutex::default(),
            is_closed: RwLock::new(false),
            locks: Mutex::new(self.locks),
        };
        catalog.remove_all_dying();
        Ok(catalog)
    }

    /// Reads the log as a reader, and judges it.
    pub(super) fn read_files(&self) -> Result<Files> {
        let (files, end, merged) = read_log(&self.voters(), self.body().array)?;
        let differences = self.judge_log(&end, &merged)?;
        self.check_layouts(&files)?;
        self.note_lost_copies(&end, differences);
        Ok(files)
    }

    /// Says which copies of the log are lost. The next writer puts them right.
    fn note_lost_copies(&self, end: &LogEnd, differences: Vec<(Voter, Difference)>) {
        let note = |fs: &dyn DriveFs, what: &str| {
            let text = format!(
                "{}: this copy of the log is lost or damaged ({what}); the other copies serve, and the next opening for writing puts it right",
                full_path(fs, LOG).display()
            );
            self.labels.notices.push(text);
        };
        let body = self.body();
        for index in (0..body.copies).filter(|index| !body.voters.contains(index)) {
            note(&*self.voter(index).fs, "it was left behind");
        }
        for (voter, difference) in differences {
            let Difference::Lacks { end: own, what } = difference else { continue };
            // A writer may be at work beside a look: a copy may lack the last group, and have what the look did not
            // see.
            let is_certain = own.is_none_or(|own| own + 1 < end.sequence);
            if self.mode == OpenMode::Reader || is_certain {
                note(&*voter.fs, &what);
            }
        }
    }

    /// Refuses copies of the log that went apart (C45), and a log that is not the one of the drives (C43, C44). Returns
    /// how copies differ.
    pub(super) fn judge_log(&self, end: &LogEnd, merged: &Merged) -> Result<Vec<(Voter, Difference)>> {
        let differences = merged.refuse_apart(end)?;
        if let Some(openings) = &*lock(&self.labels.openings) {
            openings.judge_log(end, merged)?;
        }
        Ok(differences)
    }

    /// The opening in use, and the last group of the log that the drives know of.
    pub(super) fn in_use(&self) -> Result<(OpeningId, u64)> {
        match &*lock(&self.labels.openings) {
            Some(openings) => Ok((openings.in_use(), openings.proof().sequence)),
            None => Err(no_notes(self.drives())),
        }
    }

    /// A number above those of all parts that lie on the drives, and of all files (C24). A part that no file can have
    /// yet is left of a catalog that was newer than this one.
    fn number_above_parts(&self, next: u64) -> Result<u64> {
        let mut least = next;
        for drive in self.drives() {
            let fs = &*drive.fs;
            let names = fs.list(PARTS).map_err(failed("list", fs, PARTS))?;
            let numbers = names.iter().filter_map(|name| number_of_part(name));
            // A file that is not iomill's may have any name.
            let Some(highest) = numbers.filter(|number| *number < NUMBERS_END).max() else { continue };
            if highest >= next {
                let text = format!(
                    "{}: the part {highest:016x} is there, and the catalog has not given such a number yet: the catalog was once newer. \
                     The part is kept, new files have higher numbers, and a check of the array lists all such parts",
                    full_path(fs, PARTS).display()
                );
                self.labels.notices.push(text);
            }
            least = least.max(highest + 1);
        }
        Ok(least)
    }

    /// An error if a layout names a drive that the array does not have.
    pub(super) fn check_layouts(&self, files: &Files) -> Result<()> {
        let count = self.drives().len();
        let beyond = |index: u16| usize::from(index) >= count;
        let bad = files.layouts().find(|layout| layout.drives.iter().any(|(index, _)| beyond(*index)));
        let Some(layout) = bad else { return Ok(()) };
        Err(Error::corrupt(
            full_path(&*self.drives()[0].fs, LOG),
            format!("layout {} names a drive beyond the {count} of the array", layout.number),
        ))
    }

    /// Renames of a killed process may be in memory only. They must be durable before changes that build on them (rule
    /// 6).
    fn settle_directories(&self) -> Result<()> {
        for drive in self.drives() {
            let (fs, since) = (&*drive.fs, Since::now());
            for name in fs.list("").map_err(failed("list", fs, ""))? {
                if name.starts_with(TEMPORARY) {
                    unlink_if_there(fs, &name)?;
                }
            }
            for dir in ["", PARTS, SHARED] {
                sync_dir(fs, dir, since)?;
            }
        }
        Ok(())
    }

    /// Writes labels that are old, and all of them with the next epoch where drives have moved (rule 3). Paths are only
    /// hints, so a full drive still opens; but no label may stay at epoch 0 (rule 5).
    fn update_labels(&mut self, array: &FoundArray) -> Result<()> {
        let places = array.found_places();
        let moved = places != array.label.drives;
        let epoch = if moved { array.label.epoch + 1 } else { array.label.epoch };
        let body = LabelBody { epoch, drives: places, ..array.label.body() };
        let mut labels = Vec::new();
        for (drive, found) in self.labels.drives.iter().zip(&array.found) {
            if moved || found.label.epoch != epoch || !found.signed {
                labels.push((drive, label_bytes(&body.label_of(drive.index), drive)?));
            }
        }
        if labels.is_empty() {
            self.labels_agree = true;
            return Ok(());
        }
        let files = labels.iter().map(|(drive, bytes)| (&drive.fs, LABEL.to_owned(), bytes.as_slice()));
        match Staged::write(&*self.platform, files).and_then(Staged::commit) {
            Ok(()) => {
                let paths: Vec<_> = labels.iter().map(|(drive, _)| drive.path().display().to_string()).collect();
                self.labels.notices.push(format!("labels updated to epoch {epoch} on {}", paths.join(", ")));
                *lock(&self.labels.body) = body;
                self.labels_agree = true;
            }
            Err(error) if array.found.iter().all(|found| found.label.epoch > 0 && found.signed) => {
                // Some labels may have the new epoch, so the next one that is announced must be higher.
                lock(&self.labels.body).epoch = epoch;
                self.labels
                    .notices
                    .push(format!("the labels could not be updated, the next writer tries again: {error}"));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Releases the locks without reading the log.
    pub(super) fn close(mut self) -> Result<()> {
        self.locks.release()
    }
}

/// Finds the drives and locks them. Everything that was found before the lock was taken must still hold under it (rule
/// 4).
pub(super) fn lock_array(
    platform: &dyn Platform,
    starts: &[PathBuf],
    mode: OpenMode,
    signature: Signature,
) -> Result<(FoundArray, Locks)> {
    for _ in 0..TRIES {
        let array = discovery::find(platform, starts, signature)?;
        let lock = match mode {
            OpenMode::Writer => Lock::Exclusive,
            OpenMode::Reader => Lock::Shared,
            OpenMode::Peek => return Ok((array, Locks::default())),
        };
        let locks = Locks::take(platform, array.found.iter().map(|found| &found.fs), lock)?;
        if array.is_unchanged(signature)? {
            return Ok((array, locks));
        }
    }
    Err(Error::drive(
        starts.first().cloned().unwrap_or_default(),
        format!("its label changed {TRIES} times while it was being locked ({LOCK})"),
    )
    .advise("try again"))
}
