//! The evaluation: each experiment of the four works that iomill grows from, repeated here beside today's rivals, as
//! one report.
//!
//! An experiment is a list of steps, and what is read out of their documents. A step is a measurement of the lab, run
//! as a process of its own. Its document stays in the report's directory, so a run that was stopped goes on with the
//! steps that lack one.
//!
//! Goals: one command, also on other machines; nothing in the report that was not measured. Non-goals: measuring, which
//! the lab's other commands do.

mod experiments;
mod page;
mod picture;
mod quiet;
mod read;
mod rig;
mod steps;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use iomill_contenders::held::Helper;
use serde::Serialize;
use serde_json::Value;

pub use experiments::ALL;
use quiet::Quiet;
use rig::Rig;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the report, and of the documents of its steps. It exists.
    pub report: PathBuf,
    /// A directory on the disk that rivals use, and iomill where no drives are given.
    pub place: PathBuf,
    /// A directory on each of several drives. Without them drives in memory are made where an experiment is about
    /// several.
    pub drives: Vec<PathBuf>,
    /// Recorded accesses.
    pub traces: Vec<PathBuf>,
    /// Names of experiments; empty for all.
    pub only: Vec<String>,
    /// Small data and short turns. The results show that everything works, and hardly more.
    pub is_quick: bool,
    /// This program. Its arguments are those that come before a command line.
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
    steps: fn(&Scale) -> Vec<Step>,
    /// Computes points from the documents. Each document is that of the step with the same index.
    points: fn(&[Step], &[Value]) -> Vec<Point>,
    /// Whether the work's finding holds here.
    judge: fn(&[Point]) -> Verdict,
    /// How the points are drawn.
    shape: Shape,
    /// The unit of the numbers.
    unit: &'static str,
}

/// Sizes and times of a run.
#[derive(Clone, Debug)]
struct Scale {
    is_quick: bool,
    traces: Vec<PathBuf>,
    /// Drives that an experiment may use at most.
    drives: usize,
}

impl Scale {
    /// One of two values: of a full run, or of a quick one.
    fn of<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// A measurement.
#[derive(Clone, Debug)]
struct Step {
    /// The name of its document, and of its group of points.
    name: String,
    /// Where it runs.
    rig: Rig,
    /// The command line of the lab, without `--json`. `{place}`, `{drive}` and `{file}` stand for the paths of the rig.
    arguments: Vec<String>,
    /// How long it takes, about.
    seconds: u32,
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

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// A bar for each point, by group.
    Bars,
    /// A line for each series over the groups' numbers.
    Lines,
}

/// Whether something holds here.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// `None` if it is unknown.
    pub holds: Option<bool>,
    /// In a sentence, with figures.
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
    /// Steps that did not run, and why.
    pub left_out: Vec<(String, String)>,
    /// How quiet the machine was.
    pub quiet: Quiet,
    /// When the last step ended, in seconds since 1970.
    pub at: u64,
    #[serde(skip)]
    shape: Shape,
}

/// Runs the experiments, and writes `report.html`, `report.json` and `report.csv` into the report's directory. Calls
/// `tell` for each step, with its name, the elapsed seconds, and the estimate of all seconds. Returns the result of
/// each experiment.
pub fn run(settings: &Settings, cancel: &AtomicBool, tell: &mut dyn FnMut(&str, u64, u64)) -> Result<Vec<Section>> {
    let chosen = chosen(&settings.only)?;
    let scale = Scale {
        is_quick: settings.is_quick,
        traces: settings.traces.clone(),
        drives: if settings.drives.is_empty() { 8 } else { settings.drives.len() },
    };
    let all: Vec<(&Experiment, Vec<Step>)> =
        chosen.into_iter().map(|experiment| (experiment, (experiment.steps)(&scale))).collect();
    let total: u64 = all.iter().flat_map(|(_, steps)| steps).map(|step| u64::from(step.seconds)).sum();
    let mut sections = Vec::new();
    let mut behind = 0;
    for (experiment, steps) in all {
        let section = steps::run(settings, experiment, &steps, cancel, &mut |step| {
            tell(&format!("{}: {}", experiment.name, step.name), behind, total);
            behind += u64::from(step.seconds);
        })?;
        sections.extend(section);
        // After each experiment, so that a stopped run leaves its results.
        page::write(settings, &sections)?;
        if cancel.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(sections)
}

fn chosen(only: &[String]) -> Result<Vec<&'static Experiment>> {
    if let Some(unknown) = only.iter().find(|name| ALL.iter().all(|experiment| experiment.name != **name)) {
        let names: Vec<&str> = ALL.iter().map(|experiment| experiment.name).collect();
        let why = format!("no experiment has this name; there are {}", names.join(", "));
        return Err(Error::invalid(unknown, why));
    }
    let is_chosen = |experiment: &&Experiment| only.is_empty() || only.iter().any(|name| name == experiment.name);
    Ok(ALL.iter().filter(is_chosen).collect())
}
