//! An experiment: its steps, its points, and the result.

use std::path::PathBuf;

use iomill_contenders::held::Helper;
use serde::Serialize;
use serde_json::Value;

use crate::quiet::Quiet;
use crate::rig::{Drives, Rig};

/// The size of an evaluation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the report, and of the documents of its steps. It exists.
    pub report: PathBuf,
    /// A directory on the disk that rivals use, and that iomill uses if no drives are given.
    pub place: PathBuf,
    /// The drives of experiments about several drives.
    pub drives: Drives,
    /// Recorded accesses.
    pub traces: Vec<PathBuf>,
    /// Names of experiments; empty for all.
    pub only: Vec<String>,
    /// Small data and short turns. The results show little more than that everything works.
    pub is_quick: bool,
    /// This program. Its arguments precede a command line.
    pub helper: Helper,
}

/// An experiment of one of the works.
pub struct Experiment {
    /// The name in commands.
    pub name: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// The work, and its figure or table.
    pub work: &'static str,
    /// The finding of the work.
    pub found: &'static str,
    /// The steps.
    pub steps: fn(&Scale) -> Vec<Step>,
    /// Computes points from the documents. Each document is that of the step with the same index.
    pub points: fn(&[Step], &[Value]) -> Vec<Point>,
    /// Whether the work's finding holds here.
    pub judge: fn(&[Point]) -> Verdict,
    /// The drawing of the points.
    pub shape: Shape,
    /// The unit of the numbers.
    pub unit: &'static str,
}

/// Sizes and times of a run.
#[derive(Clone, Debug)]
pub struct Scale {
    pub is_quick: bool,
    pub traces: Vec<PathBuf>,
    /// Drives that an experiment may use at most.
    pub drives: usize,
    /// Whether the user named them.
    pub are_named: bool,
}

impl Scale {
    /// One of two values: for a full run, or for a quick one.
    pub fn of<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// A measurement.
#[derive(Clone, Debug)]
pub struct Step {
    /// The name of its document, and of its group of points.
    pub name: String,
    /// Its rig.
    pub rig: Rig,
    /// The command line of the lab, without `--json`. `{place}`, `{drive}` and `{file}` stand for the paths of the rig.
    pub arguments: Vec<String>,
    /// Its approximate duration.
    pub seconds: u32,
}

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The measured quantity, such as a workload; points of one group are beside each other.
    pub group: String,
    /// The group as a number, where it is one.
    pub x: Option<f64>,
    /// The contender.
    pub series: String,
    /// The median, the least and the most.
    pub value: [f64; 3],
    /// CPU time of an operation in microseconds, if it was counted.
    pub cpu_us: Option<f64>,
}

/// The form of a drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A bar for each point, by group.
    Bars,
    /// A line for each series over the groups' numbers.
    Lines,
}

/// Whether a finding holds here.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `None` if it is unknown.
    pub holds: Option<bool>,
    /// The reason, in a sentence with figures.
    pub why: String,
}

/// The result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// Its subject.
    pub title: &'static str,
    /// The work, and its figure or table.
    pub work: &'static str,
    /// The finding of the work.
    pub found: &'static str,
    /// The unit of the numbers.
    pub unit: &'static str,
    /// Whether the work's finding holds here.
    pub verdict: Verdict,
    /// The command lines.
    pub commands: Vec<String>,
    /// All figures.
    pub points: Vec<Point>,
    /// Steps that did not run, with the reasons.
    pub left_out: Vec<(String, String)>,
    /// The speed of the machine before and after.
    pub quiet: Quiet,
    /// The machines that ran its steps; one, unless the report was continued on another.
    pub machines: Vec<String>,
    /// When the last step ended, in seconds since 1970.
    pub at: u64,
    /// The drawing of the points.
    #[serde(skip)]
    pub shape: Shape,
}
