//! `iomill check`: a [`Report`] of each [`Problem`] that the catalog can know of the files on the drives, and their
//! repair on demand.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::discovery::{self, FoundArray, FoundDrive};
use super::journal::{read_files, read_log};
use super::label::Signature;
use super::log::merged::{LogEnd, Voter};
use super::log::place::{LogFile, LogFiles, segment_path};
use super::log::record::{Extent, PAGE_BYTES};
use super::open::{Opening, lock_array};
use super::record::{Record, number_of_part, part_path, sums_path};
use super::small::{free_pages, shared_path};
use super::state::files::Files;
use super::store::{
    Drive, LABEL, LOCK, LOG, PARTS, SHARED, TEMPORARY, absent_is_none, failed, full_path, is_media_error, is_ours,
    take_directory,
};
use super::{Catalog, OpenMode};
use crate::engine::platform::Platform;
use crate::error::{CHECK, Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, Lock, sync_dir};
use crate::sys::fsyncs::Since;

/// Advice for a problem that a writer corrects.
const REPAIR_ADVICE: &str = "repair the array; opening it for writing puts it right too";

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Traces of an interrupted change; the next writer removes them.
    Note,
    /// A copy is lost, or a file is not iomill's. All data can be read.
    Warning,
    /// Data is lost, or no rule can decide.
    Error,
}

impl Severity {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A fault that [`Array::check`](crate::Array::check) has found: its place, how bad it is, and what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
    /// How bad that is.
    pub severity: Severity,
    /// Whether a repair has corrected it.
    pub repaired: bool,
    /// What to do about it.
    pub advice: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The problems that the check found.
    pub problems: Vec<Problem>,
    /// The number of checked drives; 0 if the array could not be assembled.
    pub drives: usize,
    /// The number of checked files.
    pub files: usize,
    /// Their lengths added up, in bytes.
    pub bytes: u64,
    /// Bytes of deleted small files that a repair has given back to the drives.
    pub given_back_bytes: u64,
    /// Findings that are not problems, such as drives that have moved.
    pub notices: Vec<String>,
}

impl Report {
    /// Whether no problem is left that needs a person's attention.
    pub fn is_clean(&self) -> bool {
        self.problems.iter().all(|problem| problem.repaired)
    }

    /// Notes what keeps the array from being put together.
    fn fault(&mut self, error: Error) -> Result<()> {
        let (path, what, own) = match error {
            Error::Drive { path, why, advice, .. }
            | Error::NoArray { path, why, advice, .. }
            | Error::DriveMissing { path, why, advice, .. }
            | Error::Corrupt { path, why, advice, .. } => (path, why, advice),
            other => return Err(other),
        };
        let advice = "the array does not open before this is mended; a label can be copied from another drive of the array: set \
                      `drive` and `index` to those of this drive, end it with `# checksum none`, and check and \
                      repair the array";
        let of_label = path.ends_with(LABEL);
        let advice = match of_label {
            true => advice.to_owned(),
            false => joined("the array does not open before this is mended", &own),
        };
        self.problems.push(Problem { path, what, severity: Severity::Error, repaired: false, advice });
        Ok(())
    }

    /// Notes what keeps the log from being read.
    fn log_fault(&mut self, error: Error) -> Result<()> {
        let advice = "the array does not open before this is mended; restore `iomill/log` of any drive from a backup";
        self.lost(error, advice)
    }

    /// Notes damage of one file. An error of the check itself stays an error.
    fn lost(&mut self, error: Error, advice: &str) -> Result<()> {
        let (path, what, own) = match error {
            Error::Corrupt { path, why, advice: own, .. } => (path, why, own),
            Error::Io { action, path, source, .. } if is_media_error(&source) => {
                (path, format!("cannot {action} it: {source}"), Cow::Borrowed(""))
            }
            other => return Err(other),
        };
        let advice = joined(advice, &own);
        self.problems.push(Problem { path, what, severity: Severity::Error, repaired: false, advice });
        Ok(())
    }
}

/// The advice of a problem, with that of the error that was found. To check the array is no advice here.
fn joined(advice: &str, own: &str) -> String {
    if own.is_empty() || own == CHECK { advice.to_owned() } else { format!("{advice}; {own}") }
}

/// How long the part of a file on the drive at a position of its `drives` must be at least, given the file's length.
pub type PartExtent<'a> = &'a dyn Fn(&Record, u64, usize) -> u64;

/// The number of files between two reports of progress.
const FILES_PER_STEP: u32 = 1024;

/// Receives the number of checked files, and the number of all files.
pub type Watch<'a> = &'a mut dyn FnMut(usize, usize);

/// Checks the array that the drives in `starts` belong to. With `repair` it corrects all problems that it can correct
/// without loss. It takes the reader's lock, or for a repair the writer's. An error means that the check itself failed.
pub fn check(
    platform: &Arc<dyn Platform>,
    starts: &[PathBuf],
    repair: bool,
    part_extent: PartExtent<'_>,
    watch: Watch<'_>,
) -> Result<Report> {
    let mut report = Report::default();
    let others = check_owners(&**platform, starts, repair, &mut report);
    match check_as_user(platform, starts, repair, part_extent, watch, &mut report) {
        // The report says why this user may not.
        Err(error) if others > 0 && matches!(error.errno(), Some(libc::EACCES | libc::EPERM)) => Ok(report),
        checked => checked.map(|()| report),
    }
}

fn check_as_user(
    platform: &Arc<dyn Platform>,
    starts: &[PathBuf],
    repair: bool,
    part_extent: PartExtent<'_>,
    watch: Watch<'_>,
    report: &mut Report,
) -> Result<()> {
    let (mode, signature) =
        if repair { (OpenMode::Writer, Signature::Waived) } else { (OpenMode::Reader, Signature::Required) };
    if repair && let Err(error) = remake_locks(&**platform, starts, report) {
        report.fault(error)?;
        return Ok(());
    }
    let (array, locks) = match lock_array(&**platform, starts, mode, signature) {
        Ok(found) => found,
        Err(error) => {
            report.fault(error)?;
            return Ok(());
        }
    };
    report.drives = array.found.len();
    if array.found_places() != array.label.drives {
        let then = if repair { "they were written anew" } else { "the next opening for writing writes them anew" };
        report.notices.push(format!("the drives are in other places than their labels say, as in a container: {then}"));
    }
    let labels = label_faults(&array);
    let mut opening = match Opening::new(platform, mode, array, locks, signature) {
        Ok(opening) => opening,
        Err(error) => {
            report.fault(error)?;
            return Ok(());
        }
    };
    opening.compares_all = repair;
    for (drive, what) in labels {
        let found = repairable(opening.drives(), drive, LABEL, &what, Severity::Note);
        report.problems.push(Problem { repaired: opening.labels_agree, ..found });
    }
    check_opened(opening, part_extent, watch, report)
}

/// Checks the log and the files. A writer's opening repairs what it can.
fn check_opened(opening: Opening, part_extent: PartExtent<'_>, watch: Watch<'_>, report: &mut Report) -> Result<()> {
    let first = report.problems.len();
    let (files, end, merged) = match read_log(&opening.voters(), opening.body().array) {
        Ok(read) => read,
        Err(error) => {
            report.log_fault(error)?;
            return opening.close();
        }
    };
    if let Err(error) = opening.judge_log(&end, &merged) {
        // An older copy of the log would be no help.
        report.fault(error)?;
        return opening.close();
    }
    check_copies(&opening, &end, report)?;
    check_leftovers(opening.drives(), &files, report)?;
    let copies = opening.body().copies;
    let catalog = match opening.into_catalog() {
        Ok(catalog) => catalog,
        Err(error) => return report.log_fault(error),
    };
    if let Err(fault) = catalog.with_files(free_pages) {
        let found = problem(catalog.drives(), 0, SHARED, &fault.to_string(), Severity::Error);
        let advice = "copy the files that it names out, and remove all but one of them".to_owned();
        report.problems.push(Problem { advice, ..found });
    }
    check_files(&catalog, part_extent, watch, report)?;
    report.given_back_bytes = catalog.give_everything_back();
    let closed = catalog.close();
    if catalog.is_writer() {
        note_repaired(&catalog, copies, first, report);
    }
    closed
}

/// Notes that the opening has corrected the problems from the `first` on that it can correct. It has not for a copy of
/// the log that it has left behind.
fn note_repaired(catalog: &Catalog, copies: u16, first: usize, report: &mut Report) {
    let voters = catalog.voters();
    let drives = catalog.drives();
    let left: Vec<usize> = (0..copies).filter(|index| !voters.contains(index)).map(usize::from).collect();
    let logs: Vec<PathBuf> = left.iter().map(|drive| full_path(&*drives[*drive].fs, LOG)).collect();
    for problem in report.problems[first..].iter_mut().filter(|problem| problem.advice == REPAIR_ADVICE) {
        problem.repaired = !logs.iter().any(|log| problem.path.starts_with(log));
    }
    if !left.is_empty() {
        report.notices.extend(catalog.notices().all());
    }
    for (drive, log) in left.into_iter().zip(logs) {
        if !report.problems.iter().any(|problem| problem.path == log && !problem.repaired) {
            let what = "the copy of the log could not be completed, and was left behind";
            report.problems.push(repairable(drives, drive, LOG, what, Severity::Warning));
        }
    }
}

/// Checks all files, a few at a time: a million records need half a gigabyte.
fn check_files(catalog: &Catalog, part_extent: PartExtent<'_>, watch: Watch<'_>, report: &mut Report) -> Result<()> {
    let all = catalog.count();
    let mut lens = SharedLens::default();
    let slots = catalog.with_files(Files::slots);
    for first in (0..slots).step_by(FILES_PER_STEP as usize) {
        for record in catalog.in_slots(first..slots.min(first + FILES_PER_STEP)) {
            check_file(catalog, &record, part_extent, &mut lens, report)?;
        }
        watch(report.files, all);
    }
    Ok(())
}

/// The lengths of shared parts in bytes, by drive and number. Many files have their bytes in one part.
type SharedLens = BTreeMap<(u16, u16), u64>;

/// Compares each copy of the log with the merge of all copies.
fn check_copies(opening: &Opening, end: &LogEnd, report: &mut Report) -> Result<()> {
    let body = opening.body();
    for index in (0..body.copies).filter(|index| !body.voters.contains(index)) {
        let what = "the copy of the log was left behind";
        report.problems.push(repairable(opening.drives(), usize::from(index), LOG, what, Severity::Warning));
    }
    for voter in opening.voters() {
        if let Some(what) = fault_of_copy(&voter, &opening.body().array, end)? {
            report.problems.push(repairable(opening.drives(), voter.drive, LOG, &what, Severity::Warning));
        }
    }
    Ok(())
}

/// The problems of one copy of the log, read alone.
fn fault_of_copy(voter: &Voter, array: &super::Id, end: &LogEnd) -> Result<Option<String>> {
    match read_files(std::slice::from_ref(voter), *array) {
        Ok((_, own)) if own.sequence == end.sequence && own.checkpoint == end.checkpoint => {
            let last = LogFile::open(&voter.fs, &segment_path(end.position.segment), Access::READ, false)?;
            let is_cut = last.is_some_and(|file| file.is_cut());
            Ok(is_cut.then(|| "the last segment of this copy of the log is shorter than at its making".to_owned()))
        }
        Ok((_, own)) if own.sequence == end.sequence => {
            Ok(Some("the newest checkpoint is missing or damaged in this copy of the log".to_owned()))
        }
        Ok((_, own)) => Ok(Some(format!("this copy of the log ends at group {} of {}", own.sequence, end.sequence))),
        Err(Error::Corrupt { path, why, .. }) => {
            Ok(Some(format!("this copy of the log is damaged ({}: {why})", path.display())))
        }
        Err(Error::Io { action, path, source, .. }) if is_media_error(&source) => {
            Ok(Some(format!("this copy of the log cannot be read (cannot {action} {}: {source})", path.display())))
        }
        Err(other) => Err(other),
    }
}

/// Looks for files that no record names, and for those of interrupted changes.
fn check_leftovers(drives: &[Drive], files: &Files, report: &mut Report) -> Result<()> {
    let mut dying: BTreeSet<u64> = files.dying().collect();
    for (index, drive) in drives.iter().enumerate() {
        let fs = &*drive.fs;
        let log = LogFiles::list(fs)?;
        let mut leftovers = log.leftovers;
        let mut strangers = log.strangers;
        for name in fs.list("").map_err(failed("list", fs, ""))? {
            if name.starts_with(TEMPORARY) {
                leftovers.push(name);
            } else if !is_ours(&name) {
                strangers.push(name);
            }
        }
        for name in fs.list(PARTS).map_err(failed("list", fs, PARTS))? {
            let path = format!("{PARTS}/{name}");
            match number_of_part(&name) {
                None => strangers.push(path),
                Some(number) => match files.numbered(number) {
                    Some(file) if file.name.is_empty() => drop(dying.insert(number)),
                    Some(_) => {}
                    None => report.problems.push(orphan(drives, index, &path)?),
                },
            }
        }
        for path in leftovers {
            let what = "a temporary file of an interrupted change";
            report.problems.push(repairable(drives, index, &path, what, Severity::Note));
        }
        for path in strangers {
            let found = problem(drives, index, &path, "not a file of iomill", Severity::Warning);
            report.problems.push(Problem { advice: "move it away".to_owned(), ..found });
        }
    }
    for number in dying {
        let what = "a deleted or an unfinished file still has its space";
        report.problems.push(repairable(drives, 0, &part_path(number), what, Severity::Note));
    }
    Ok(())
}

/// A part that the log does not know. It may be all that is left of a file, so it is never removed.
fn orphan(drives: &[Drive], index: usize, path: &str) -> Result<Problem> {
    let fs = &drives[index].fs;
    let file = DriveFile::open(fs, path, Access::READ).map_err(failed("open", &**fs, path))?;
    let len = fs.len(file.handle()).map_err(failed("stat", &**fs, path))?;
    let found = problem(drives, index, path, &format!("{len} bytes, but the log has no such file"), Severity::Warning);
    Ok(Problem { advice: "move it away if you do not miss a file".to_owned(), ..found })
}

fn problem(drives: &[Drive], drive: usize, path: &str, what: &str, severity: Severity) -> Problem {
    let path = full_path(&*drives[drive].fs, path);
    Problem { path, what: what.to_owned(), severity, repaired: false, advice: String::new() }
}

/// A problem that the next opening for writing corrects.
fn repairable(drives: &[Drive], drive: usize, path: &str, what: &str, severity: Severity) -> Problem {
    Problem { advice: REPAIR_ADVICE.to_owned(), ..problem(drives, drive, path, what, severity) }
}

/// The problems of the labels of an array, by drive. Changed places are no problem: they are only hints.
fn label_faults(array: &FoundArray) -> Vec<(usize, String)> {
    let fault = |(drive, found): (usize, &FoundDrive)| {
        let what = if !found.signed {
            "the label was mended by hand and is not signed".to_owned()
        } else if found.label.epoch != array.label.epoch {
            format!("the label was left at epoch {} of {}", found.label.epoch, array.label.epoch)
        } else {
            return None;
        };
        Some((drive, what))
    };
    array.found.iter().enumerate().filter_map(fault).collect()
}

/// Locked directories of drives. A drop unlocks them.
struct LockedDirectories(Vec<Arc<dyn DriveFs>>);

impl Drop for LockedDirectories {
    fn drop(&mut self) {
        for fs in &self.0 {
            // Closing the directory unlocks it, too.
            let _ = fs.unlock_directory();
        }
    }
}

/// Finds files and directories with another owner than the directory `iomill`. A repair changes their owner. Returns
/// the number that still have another owner.
fn check_owners(platform: &dyn Platform, starts: &[PathBuf], repair: bool, report: &mut Report) -> usize {
    let found = discovery::find(platform, starts, Signature::Waived);
    // If a label cannot be read, its owner may be wrong.
    let drives: Vec<Arc<dyn DriveFs>> = match found {
        Ok(array) => array.found.into_iter().map(|found| found.fs).collect(),
        Err(_) => starts.iter().filter_map(|start| platform.attach(start, false).ok()).collect(),
    };
    let before = report.problems.len();
    for fs in &drives {
        for path in paths_of(&**fs) {
            let Ok(Some(user)) = fs.other_owner(&path) else { continue };
            let what = format!("it belongs to user {user}, and not to the user of the directory `iomill`");
            let repaired = repair && fs.give_to_owner(&path).is_ok();
            let advice = "repair the array as root, which gives it back".to_owned();
            let path = full_path(&**fs, &path);
            report.problems.push(Problem { path, what, severity: Severity::Warning, repaired, advice });
        }
    }
    report.problems[before..].iter().filter(|problem| !problem.repaired).count()
}

/// The files and directories of a drive that can be listed.
fn paths_of(fs: &dyn DriveFs) -> Vec<String> {
    let mut paths = fs.list("").unwrap_or_default();
    for dir in [LOG, PARTS, SHARED] {
        paths.extend(fs.list(dir).unwrap_or_default().into_iter().map(|name| format!("{dir}/{name}")));
    }
    paths.sort_unstable();
    paths
}

/// Makes missing locks again, so that the array can be locked at all.
fn remake_locks(platform: &dyn Platform, starts: &[PathBuf], report: &mut Report) -> Result<()> {
    let array = discovery::find(platform, starts, Signature::Waived)?;
    let drives = array.drives();
    // A process that has the array open holds the directories, whatever became of the locks.
    let mut held = LockedDirectories(Vec::new());
    for drive in &drives {
        let fs = &drive.fs;
        if let Some(holder) = take_directory(platform, &**fs, Lock::Exclusive)? {
            let (path, wanted) = (fs.location().to_owned(), "repaired");
            return Err(Error::Locked { path, holder: holder.process(), wanted });
        }
        held.0.push(Arc::clone(fs));
    }
    for (index, drive) in drives.iter().enumerate() {
        let (fs, since) = (&drive.fs, Since::now());
        match DriveFile::open(fs, LOCK, Access::CREATE) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed("create", &**fs, LOCK)(error)),
            Ok(_) => {
                sync_dir(&**fs, "", since)?;
                let found = problem(&drives, index, LOCK, "the lock was missing", Severity::Warning);
                report.problems.push(Problem { repaired: true, ..found });
            }
        }
    }
    Ok(())
}

/// Checks the parts of one file.
fn check_file(
    catalog: &Catalog,
    record: &Record,
    part_extent: PartExtent<'_>,
    lens: &mut SharedLens,
    report: &mut Report,
) -> Result<()> {
    report.files += 1;
    report.bytes = report.bytes.saturating_add(record.length);
    if let Some(extent) = record.extent {
        match check_extent(catalog, record, extent, lens) {
            Ok(found) => report.problems.extend(found),
            Err(error) => report.lost(error, "see the kernel's log; the drive may be failing")?,
        }
        return Ok(());
    }
    if record.length == 0 && !record.has_parts {
        // No part of it was ever made (C22).
        return Ok(());
    }
    for (position, drive) in catalog.drives_of(&record.drives).enumerate() {
        let least = part_extent(record, record.length, position);
        match check_part(catalog.drives(), drive, record, least) {
            Ok(found) => report.problems.extend(found),
            Err(error) => report.lost(error, "see the kernel's log; the drive may be failing")?,
        }
    }
    Ok(())
}

/// Looks whether the drive has the pages of a small file.
fn check_extent(catalog: &Catalog, record: &Record, extent: Extent, lens: &mut SharedLens) -> Result<Option<Problem>> {
    let Some(drive) = catalog.drives().get(usize::from(extent.drive)) else { return Ok(None) };
    let (fs, path) = (&drive.fs, shared_path(extent.shared));
    let place = (extent.drive, extent.shared);
    let len = match lens.get(&place) {
        Some(len) => *len,
        None => {
            let opened = DriveFile::open(fs, &path, Access::READ);
            let opened = absent_is_none(opened).map_err(failed("open", &**fs, &path))?;
            let measured = opened.map_or(Ok(0), |file| fs.len(file.handle()));
            let len = measured.map_err(failed("stat", &**fs, &path))?;
            lens.insert(place, len);
            len
        }
    };
    let least = u64::from(extent.page) * u64::from(PAGE_BYTES) + record.length;
    if len >= least {
        return Ok(None);
    }
    let what = format!("it has {len} bytes, and {:?} has its bytes there up to {least}", record.name);
    let advice = format!("bring it back from a copy, or remove {:?}; iomill cannot restore its bytes", record.name);
    let found = problem(catalog.drives(), usize::from(extent.drive), &path, &what, Severity::Error);
    Ok(Some(Problem { advice, ..found }))
}

fn check_part(drives: &[Drive], drive: &Drive, record: &Record, least: u64) -> Result<Option<Problem>> {
    let fs = &*drive.fs;
    let path = part_path(record.number);
    let lost = |what: String| Problem {
        advice: format!("bring it back from a copy, or remove {:?}; iomill cannot restore its bytes", record.name),
        ..problem(drives, usize::from(drive.index), &path, &what, Severity::Error)
    };
    let opened = absent_is_none(DriveFile::open(&drive.fs, &path, Access::READ)).map_err(failed("open", fs, &path))?;
    let Some(file) = opened else {
        // A part that is missing is an empty one (C22).
        let what = format!("the part of {:?} is missing; {least} bytes of it are in use", record.name);
        return Ok((least > 0).then(|| lost(what)));
    };
    let len = fs.len(file.handle()).map_err(failed("stat", fs, &path))?;
    if len >= least {
        let sums = sums_path(record.number);
        let is_bare = least > 0 && record.sums.is_some();
        let opened =
            if is_bare { absent_is_none(DriveFile::open(&drive.fs, &sums, Access::READ)) } else { return Ok(None) };
        if opened.map_err(failed("open", fs, &sums))?.is_some() {
            return Ok(None);
        }
        let what = format!("the sums of the part of {:?} are missing", record.name);
        let advice = format!(
            "bring them back from a copy, or remove {:?}; its bytes cannot be proved without them",
            record.name
        );
        let found = problem(drives, usize::from(drive.index), &sums, &what, Severity::Error);
        return Ok(Some(Problem { advice, ..found }));
    }
    Ok(Some(lost(format!("the part of {:?} has {len} bytes and should have at least {least}", record.name))))
}
