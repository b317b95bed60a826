//! `iomill check`: reports everything that the catalog can know about the files on the drives, and repairs it on demand.

use std::path::PathBuf;
use std::sync::Arc;

use super::discovery::{self, FoundArray, FoundDrive};
use super::length;
use super::open::lock_array;
use super::plan::{LATER_ADVICE, Plan, Problem, REPAIR_ADVICE, Severity, Step, problem};
use super::record::{Record, part_path};
use super::scan::{Scan, ScanDepth};
use super::store::{Drive, LABEL, LOCK, PARTS, absent_is_none, failed, is_media_error, sync_dir};
use super::text::Signature;
use super::{Catalog, OpenMode};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile};

/// What a check found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Everything that is wrong, as far as the check saw it.
    pub problems: Vec<Problem>,
    /// How many drives were checked; 0 if the array could not be put together.
    pub drives: usize,
    /// How many files were checked.
    pub files: usize,
    /// Their lengths added up, in bytes.
    pub bytes: u64,
}

impl Report {
    /// Whether no problem is left that needs a person's attention.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// Notes what keeps the array from being put together.
    fn fault(&mut self, error: Error) -> Result<()> {
        let (path, what) = match error {
            Error::Drive { path, why } => (path, why),
            Error::Corrupt { path, why } => (path, why),
            other => return Err(other),
        };
        let advice = "until then the array does not open; a label can be copied from another drive of the array: set \
                      `drive` and `index` to those of this drive, end it with `# checksum none`, and run `iomill check \
                      --repair`";
        let of_label = path.ends_with(LABEL);
        // The user runs `check` already, so the advice to run it is left out.
        let what = what.strip_suffix(discovery::LABEL_ADVICE).unwrap_or(&what).to_owned();
        let advice = if of_label { advice } else { "until then the array does not open" }.to_owned();
        self.problems.push(Problem { path, what, severity: Severity::Error, repaired: false, advice });
        Ok(())
    }

    /// Notes damage that concerns one file. An error of the check itself goes on as an error.
    fn lost(&mut self, error: Error, advice: &str) -> Result<()> {
        let (path, what) = match error {
            Error::Corrupt { path, why } => (path, why),
            Error::Io { action, path, source, .. } if is_media_error(&source) => {
                (path, format!("cannot {action} it: {source}"))
            }
            other => return Err(other),
        };
        let advice = advice.to_owned();
        self.problems.push(Problem { path, what, severity: Severity::Error, repaired: false, advice });
        Ok(())
    }
}

/// How long the part of a file on the drive at a position of its `drives` must be at least, given the file's length.
pub type PartExtent<'a> = &'a dyn Fn(&Record, u64, usize) -> u64;

/// Checks the array that the drives in `starts` belong to. With `repair` it corrects everything that it can without loss. It
/// takes the reader's lock, or for a repair the writer's. An error means that the check itself could not go on.
pub fn check(
    platform: &Arc<dyn Platform>,
    starts: &[PathBuf],
    repair: bool,
    part_extent: PartExtent<'_>,
) -> Result<Report> {
    let mut report = Report::default();
    let (mode, signature) =
        if repair { (OpenMode::Writer, Signature::Waived) } else { (OpenMode::Reader, Signature::Required) };
    if repair && let Err(error) = remake_locks(&**platform, starts, &mut report) {
        report.fault(error)?;
        return Ok(report);
    }
    let (array, locks) = match lock_array(&**platform, starts, mode, signature) {
        Ok(found) => found,
        Err(error) => {
            report.fault(error)?;
            return Ok(report);
        }
    };
    report.drives = array.found.len();
    let labels = label_faults(&array);
    let catalog = Catalog::assemble(platform, mode, array, locks)?;
    for (drive, what) in labels {
        let found = problem(&catalog.drives, drive, LABEL, &what, Severity::Note);
        report.problems.push(Problem { repaired: catalog.labels_agree, ..found });
    }
    check_files(&catalog, signature, part_extent, &mut report)?;
    catalog.close()?;
    Ok(report)
}

/// What is wrong with the labels of an array, by drive.
fn label_faults(array: &FoundArray) -> Vec<(usize, String)> {
    let moved = array.found_places() != array.label.drives;
    let fault = |(drive, found): (usize, &FoundDrive)| {
        let what = if !found.signed {
            "the label was mended by hand and is not signed".to_owned()
        } else if found.label.epoch != array.label.epoch {
            format!("the label was left at epoch {} of {}", found.label.epoch, array.label.epoch)
        } else if moved {
            "the label gives other places than those where the drives are now".to_owned()
        } else {
            return None;
        };
        Some((drive, what))
    };
    array.found.iter().enumerate().filter_map(fault).collect()
}

/// Checks all records, lengths and parts. The catalog of a writer repairs what it can.
fn check_files(
    catalog: &Catalog,
    signature: Signature,
    part_extent: PartExtent<'_>,
    report: &mut Report,
) -> Result<()> {
    let plan = Plan::make(&catalog.drives, Scan::read(&catalog.drives, ScanDepth::All, signature)?)?;
    // While any fault has no decision, nothing is changed.
    let repair = catalog.is_writer() && plan.faults.is_empty();
    report.problems.extend(plan.faults.iter().chain(&plan.remarks).cloned());
    let advice = match (repair, catalog.is_writer()) {
        (true, _) => "",
        (false, true) => LATER_ADVICE,
        (false, false) => REPAIR_ADVICE,
    };
    let problem_of = |step: &Step| Problem { repaired: repair, advice: advice.to_owned(), ..step.problem.clone() };
    report.problems.extend(plan.steps.iter().map(problem_of));
    let records: Vec<Arc<Record>> = plan.live.values().cloned().collect();
    if repair {
        catalog.adopt(plan)?;
    }
    for record in &records {
        check_file(catalog, record, repair, part_extent, report)?;
    }
    Ok(())
}

/// Makes missing locks again, so that the array can be locked at all.
fn remake_locks(platform: &dyn Platform, starts: &[PathBuf], report: &mut Report) -> Result<()> {
    let array = discovery::find(platform, starts, Signature::Waived)?;
    let drives = array.drives();
    for (index, drive) in drives.iter().enumerate() {
        let fs = &drive.fs;
        match DriveFile::open(fs, LOCK, Access::CREATE) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &**fs, LOCK)(error)),
            Ok(_) => {
                sync_dir(&**fs, "")?;
                let found = problem(&drives, index, LOCK, "the lock was missing", Severity::Warning);
                report.problems.push(Problem { repaired: true, ..found });
            }
        }
    }
    Ok(())
}

/// Checks the length and the parts of one file.
fn check_file(
    catalog: &Catalog,
    record: &Record,
    repair: bool,
    part_extent: PartExtent<'_>,
    report: &mut Report,
) -> Result<()> {
    report.files += 1;
    let (length, problems) = length::examine(catalog, record);
    let repair_lengths = repair && length.is_ok() && !problems.is_empty();
    if repair_lengths {
        catalog.open_length(record)?;
    }
    report.problems.extend(problems.into_iter().map(|found| Problem { repaired: repair_lengths, ..found }));
    let length = match length {
        Ok(length) => length,
        Err(error) => {
            report.lost(error, "without it the file's length is not known; its parts are untouched")?;
            return Ok(());
        }
    };
    report.bytes = report.bytes.saturating_add(length);
    for (position, drive) in catalog.drives_of(&record.drives).enumerate() {
        let least = part_extent(record, length, position);
        match check_part(&catalog.drives, drive, record, least, repair) {
            Ok(found) => report.problems.extend(found),
            Err(error) => report.lost(error, "see the kernel's log; the drive may be failing")?,
        }
    }
    Ok(())
}

fn check_part(drives: &[Drive], drive: &Drive, record: &Record, least: u64, repair: bool) -> Result<Option<Problem>> {
    let fs = &*drive.fs;
    let path = part_path(&record.id);
    let tell = |what: String| problem(drives, usize::from(drive.index), &path, &what, Severity::Error);
    let lost = |what: String| Problem {
        advice: format!("bring it back from a copy, or remove {:?}; iomill cannot restore its bytes", record.name),
        ..tell(what)
    };
    let opened = absent_is_none(DriveFile::open(&drive.fs, &path, Access::READ)).map_err(failed("open", fs, &path))?;
    let Some(file) = opened else {
        if least > 0 {
            return Ok(Some(lost(format!("the part of {:?} is missing; {least} bytes of it are in use", record.name))));
        }
        if repair {
            DriveFile::open(&drive.fs, &path, Access::CREATE).map_err(failed("create", fs, &path))?;
            sync_dir(fs, PARTS)?;
        }
        let found = tell(format!("the part of {:?} is missing; none of it was in use", record.name));
        let advice = "run `iomill check --repair`".to_owned();
        return Ok(Some(Problem { repaired: repair, advice, ..found }));
    };
    let len = fs.len(file.handle()).map_err(failed("stat", fs, &path))?;
    if len >= least {
        return Ok(None);
    }
    Ok(Some(lost(format!("the part of {:?} has {len} bytes and should have at least {least}", record.name))))
}
