//! Turns what lies on the drives into the files that there are, and the steps that finish interrupted changes.
//!
//! The plan is the same for every process. A writer takes its steps at open, a reader only believes them, and `check` reports
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::id::Id;
use super::record::{Record, RecordState, length_path, part_path, record_path};
use super::scan::Scan;
use super::store::{Drive, absent_is_none, failed, full_path};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile};

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

/// Advice for a problem that a writer corrects.
pub(super) const REPAIR_ADVICE: &str = "run `iomill check --repair`; opening the array for writing puts it right too";
/// Advice for the same problem where a repair was refused.
pub(super) const LATER_ADVICE: &str = "first decide the errors that need you; then a repair puts it right";

/// A problem that the plan found.
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

/// A problem, and the step that corrects it.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) problem: Problem,
    pub(super) act: Act,
}

#[derive(Debug)]
pub(super) enum Act {
    /// Remove a temporary file.
    Remove { drive: usize, path: String },
    /// Bring a lagging copy of a record up.
    Rewrite { drive: usize, path: String, bytes: Vec<u8> },
    /// Write this tombstone of a file that another file replaced.
    Bury(Record),
    /// Finish the deletion of a file with a tombstone on every drive.
    Finish(Record),
    /// Remove the empty parts and the lengths of a file that was not finished.
    RemoveOrphan(Id),
}

/// The files, and what to do about the rest.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The files there are, by name.
    pub(super) live: BTreeMap<String, Arc<Record>>,
    /// In the order in which they must be taken.
    pub(super) steps: Vec<Step>,
    /// Problems that no step corrects and that do not hinder use.
    pub(super) remarks: Vec<Problem>,
    /// Problems that forbid use.
    pub(super) faults: Vec<Problem>,
}

impl Plan {
    pub(super) fn make(drives: &[Drive], scan: Scan) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut known: BTreeSet<Id> = BTreeSet::new();
        for (drive, path) in scan.leftovers {
            let problem = problem(drives, drive, &path, "a temporary file of an interrupted change", Severity::Note);
            plan.steps.push(Step { problem, act: Act::Remove { drive, path } });
        }
        let mut winners: Vec<Record> = Vec::new();
        for (id, copies) in scan.records {
            if copies.is_empty() {
                continue;
            }
            known.insert(id);
            let path = record_path(&id);
            match copies.decide() {
                Ok(winner) => {
                    for (drive, why) in winner.stale {
                        let problem = problem(drives, drive, &path, &format!("the record {why}"), Severity::Warning);
                        let act = Act::Rewrite { drive, path: path.clone(), bytes: winner.bytes.clone() };
                        plan.steps.push(Step { problem, act });
                    }
                    winners.push(winner.record);
                }
                Err(undecided) => {
                    let what = format!("the record {}", undecided.why);
                    let mut fault = problem(drives, undecided.drive, &path, &what, Severity::Error);
                    fault.advice = "until then the array does not open".to_owned();
                    plan.faults.push(fault);
                }
            }
        }
        plan.sort_out(drives, winners);
        plan.look_at_strays(drives, &known, &scan.parts, &scan.lengths)?;
        for (drive, path) in scan.strangers {
            let mut remark = problem(drives, drive, &path, "not a file of iomill", Severity::Warning);
            remark.advice = "move it elsewhere".to_owned();
            plan.remarks.push(remark);
        }
        Ok(plan)
    }

    /// Separates living files from dead ones (rules 4 and 5). All tombstones are written before the first is removed, since the
    /// record that makes another file dead may be dead itself.
    fn sort_out(&mut self, drives: &[Drive], winners: Vec<Record>) {
        let replaced: BTreeSet<Id> = winners.iter().filter_map(|record| record.replaces).collect();
        let mut last = Vec::new();
        for record in winners {
            let path = record_path(&record.id);
            let note = |what: String| problem(drives, 0, &path, &what, Severity::Note);
            if !record.is_live() {
                let problem = note(format!("the deletion of {:?} was interrupted", record.name));
                last.push(Step { problem, act: Act::Finish(record) });
            } else if replaced.contains(&record.id) {
                let tombstone = tombstone_of(&record);
                let problem = note(format!("the replacing of {:?} was interrupted", record.name));
                self.steps.push(Step { problem: problem.clone(), act: Act::Bury(tombstone.clone()) });
                last.push(Step { problem, act: Act::Finish(tombstone) });
            } else if let Some(other) = self.live.get(&record.name) {
                self.faults.push(doubled_name(drives, &record, other));
            } else {
                self.live.insert(record.name.clone(), Arc::new(record));
            }
        }
        self.steps.append(&mut last);
    }

    /// Parts and lengths without a record (rule 3). Parts that hold bytes are never removed.
    fn look_at_strays(
        &mut self,
        drives: &[Drive],
        known: &BTreeSet<Id>,
        parts: &BTreeMap<Id, Vec<usize>>,
        lengths: &BTreeMap<Id, Vec<usize>>,
    ) -> Result<()> {
        let strays: BTreeSet<Id> =
            parts.keys().chain(lengths.keys()).filter(|id| !known.contains(id)).copied().collect();
        for id in strays {
            let path = part_path(&id);
            let mut full: Option<(usize, u64)> = None;
            for &drive in parts.get(&id).into_iter().flatten() {
                let bytes = len_of(&drives[drive], &path)?;
                if bytes > 0 && full.is_none() {
                    full = Some((drive, bytes));
                }
            }
            if let Some((drive, bytes)) = full {
                let what = format!("a part of {bytes} bytes, but no drive has a record of its file");
                let mut remark = problem(drives, drive, &path, &what, Severity::Warning);
                remark.advice = "iomill never removes it; bring the record back from a copy, or remove the parts of \
                                 that name on all drives yourself"
                    .to_owned();
                self.remarks.push(remark);
                continue;
            }
            let holder = parts.get(&id).or(lengths.get(&id)).and_then(|list| list.first()).copied().unwrap_or(0);
            let path = if parts.contains_key(&id) { path } else { length_path(&id) };
            let what = "it is empty and has no record: the making of a file was interrupted";
            let problem = problem(drives, holder, &path, what, Severity::Note);
            self.steps.push(Step { problem, act: Act::RemoveOrphan(id) });
        }
        Ok(())
    }

    /// The first fault, as an error.
    pub(super) fn refuse_faults(&self) -> Result<()> {
        match self.faults.first() {
            None => Ok(()),
            Some(fault) => Err(Error::Corrupt { path: fault.path.clone(), why: fault.what.clone() }),
        }
    }
}

fn doubled_name(drives: &[Drive], record: &Record, other: &Record) -> Problem {
    let first = full_path(&*drives[0].fs, &record_path(&other.id));
    let what = format!("a second file is named {:?}; the first is {}", record.name, first.display());
    let mut fault = problem(drives, 0, &record_path(&record.id), &what, Severity::Error);
    fault.advice =
        "give one of them another name: change `name` in its record, raise `generation` by one, end it with \
                    `# checksum none`, and run `iomill check --repair`"
            .to_owned();
    fault
}

/// The tombstone of a file, one generation on.
pub(super) fn tombstone_of(record: &Record) -> Record {
    Record { generation: record.generation + 1, state: RecordState::Deleted, ..record.clone() }
}

pub(super) fn problem(drives: &[Drive], drive: usize, path: &str, what: &str, severity: Severity) -> Problem {
    Problem {
        path: full_path(&*drives[drive].fs, path),
        what: what.to_owned(),
        severity,
        repaired: false,
        advice: REPAIR_ADVICE.to_owned(),
    }
}

/// Length of a file in bytes; 0 if it does not exist.
pub(super) fn len_of(drive: &Drive, path: &str) -> Result<u64> {
    let opened = absent_is_none(DriveFile::open(&drive.fs, path, Access::READ));
    match opened.map_err(failed("open", &*drive.fs, path))? {
        Some(file) => drive.fs.len(file.handle()).map_err(failed("stat", &*drive.fs, path)),
        None => Ok(0),
    }
}
