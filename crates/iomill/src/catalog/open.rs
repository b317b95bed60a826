//! Opening an array: find the drives, lock them, read their records, finish changes that a crash interrupted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::discovery::{self, FoundArray};
use super::label::Label;
use super::plan::{Act, Plan, Step};
use super::scan::{Scan, ScanDepth};
use super::store::{FILES, LABEL, LOCK, Locks, PARTS, Staged, sync_dir, unlink_if_there};
use super::text::Signature;
use super::{Catalog, Changes, OpenMode, length_path, part_path};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::Lock;

/// How often to start again when another process changes the array between two looks.
const TRIES: usize = 5;

impl Catalog {
    /// Opens the array that the drives in `starts` belong to; one of them is enough.
    pub fn open(platform: &Arc<dyn Platform>, starts: &[PathBuf], mode: OpenMode) -> Result<Catalog> {
        let (array, locks) = lock_array(&**platform, starts, mode, Signature::Required)?;
        if mode == OpenMode::Peek {
            return Catalog::peek(platform, array);
        }
        let catalog = Catalog::assemble(platform, mode, array, locks)?;
        let depth = if mode == OpenMode::Writer { ScanDepth::All } else { ScanDepth::Records };
        let plan = Plan::make(&catalog.drives, Scan::read(&catalog.drives, depth, Signature::Required)?)?;
        plan.refuse_faults()?;
        catalog.adopt(plan)?;
        if mode == OpenMode::Writer {
            catalog.fill_spares();
        }
        Ok(catalog)
    }

    /// Without a lock, a look may see the middle of a change. A second look then sees the change done.
    fn peek(platform: &Arc<dyn Platform>, array: FoundArray) -> Result<Catalog> {
        let catalog = Catalog::assemble(platform, OpenMode::Peek, array, Locks::default())?;
        let look = || {
            let scan = Scan::read(&catalog.drives, ScanDepth::Records, Signature::Required)?;
            let plan = Plan::make(&catalog.drives, scan)?;
            plan.refuse_faults()?;
            Ok(plan)
        };
        let mut plan: Result<Plan> = look();
        for _ in 1..TRIES {
            if plan.is_ok() {
                break;
            }
            plan = look();
        }
        catalog.adopt(plan?)?;
        Ok(catalog)
    }

    /// A catalog over found and locked drives, its files still unknown. A writer updates the labels here.
    pub(super) fn assemble(
        platform: &Arc<dyn Platform>,
        mode: OpenMode,
        array: FoundArray,
        locks: Locks,
    ) -> Result<Catalog> {
        let mut catalog = Catalog {
            platform: Arc::clone(platform),
            mode,
            id: array.label.array,
            epoch: array.label.epoch,
            labels_agree: false,
            drives: array.drives(),
            changes: Mutex::new(Changes::default()),
            index: Mutex::default(),
            notices: Mutex::default(),
            locks: Mutex::new(locks),
        };
        if mode == OpenMode::Writer {
            catalog.settle_directories()?;
            catalog.update_labels(&array)?;
        }
        Ok(catalog)
    }

    /// Takes over the files of a plan. A writer first takes the plan's steps. Every process notes them.
    pub(super) fn adopt(&self, plan: Plan) -> Result<()> {
        for step in &plan.steps {
            if self.is_writer() {
                self.take(step)?;
            }
            let done = if self.is_writer() { "put right" } else { "left as it is, this process does not write" };
            self.notice(format!("{}: {} ({done})", step.problem.path.display(), step.problem.what));
        }
        for remark in &plan.remarks {
            self.notice(format!("{}: {}; {}", remark.path.display(), remark.what, remark.advice));
        }
        *super::lock(&self.index) = plan.live;
        Ok(())
    }

    /// Renames of a killed process may be in memory only. They must not vanish under what is built on them (rule 13).
    fn settle_directories(&self) -> Result<()> {
        for drive in &self.drives {
            for dir in ["", FILES, PARTS] {
                sync_dir(&*drive.fs, dir)?;
            }
        }
        Ok(())
    }

    /// Writes labels that are old, and all of them with the next epoch where drives have moved (rule 7). Paths are only hints, so
    /// a full drive still opens; but no label may stay at epoch 0 (rule 9).
    fn update_labels(&mut self, array: &FoundArray) -> Result<()> {
        let places = array.found_places();
        let moved = places != array.label.drives;
        let epoch = if moved { array.label.epoch + 1 } else { array.label.epoch };
        let behind = |label: &Label, signed: bool| moved || label.epoch != epoch || !signed;
        let mut labels = Vec::new();
        for ((drive, found), own) in self.drives.iter().zip(&array.found).zip(&places) {
            if behind(&found.label, found.signed) {
                labels.push((drive, label_bytes(&Label::of(own, self.id, epoch, places.clone()), drive.path())?));
            }
        }
        if labels.is_empty() {
            self.labels_agree = true;
            return Ok(());
        }
        let files = labels.iter().map(|(drive, bytes)| (&drive.fs, LABEL.to_owned(), bytes.as_slice()));
        match Staged::write(&*self.platform, files).and_then(Staged::commit) {
            Ok(()) => {
                self.epoch = epoch;
                self.labels_agree = true;
                let paths: Vec<_> = labels.iter().map(|(drive, _)| drive.path().display().to_string()).collect();
                self.notice(format!("labels updated to epoch {epoch} on {}", paths.join(", ")));
            }
            Err(error) if array.found.iter().all(|found| found.label.epoch > 0 && found.signed) => {
                self.notice(format!("the labels could not be updated, the next writer tries again: {error}"));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes one step of a plan.
    fn take(&self, step: &Step) -> Result<()> {
        match &step.act {
            Act::Remove { drive, path } => unlink_if_there(&*self.drives[*drive].fs, path),
            Act::Rewrite { drive, path, bytes } => {
                let file = (&self.drives[*drive].fs, path.clone(), bytes.as_slice());
                Staged::write(&*self.platform, [file])?.commit()
            }
            Act::Bury(tombstone) => self.write_record(tombstone),
            Act::Finish(tombstone) => self.finish_deletion(tombstone),
            Act::RemoveOrphan(id) => {
                for drive in &self.drives {
                    unlink_if_there(&*drive.fs, &part_path(id))?;
                    unlink_if_there(&*drive.fs, &length_path(id))?;
                }
                Ok(())
            }
        }
    }
}

/// The bytes of a label.
pub(super) fn label_bytes(label: &Label, drive: &Path) -> Result<Vec<u8>> {
    label.to_bytes().map_err(|why| Error::invalid(format!("the label of drive {}", drive.display()), why))
}

/// Finds the drives and locks them. Everything that was found before the lock was taken must still hold under it (rule 8).
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
        let locks = Locks::take(array.found.iter().map(|found| &found.fs), lock)?;
        if array.is_unchanged(signature)? {
            return Ok((array, locks));
        }
    }
    Err(Error::Drive {
        path: starts.first().cloned().unwrap_or_default(),
        why: format!("its label changed {TRIES} times while it was being locked ({LOCK}); try again"),
    })
}
