//! The evaluation: each experiment of the four works on which iomill is based, repeated here beside today's rivals, as
//! one report.
//!
//! An experiment is a list of steps, and the points that are computed from their documents. A step is a measurement of
//! the lab, run as a process of its own. Its document stays in the report's directory, so a stopped run continues with
//! the steps without a document.
//!
//! Goals: one command, also on other machines; only measured figures in the report. Non-goals: measuring, which the
//! lab's other commands do.

mod experiment;
mod experiments;
mod page;
mod picture;
mod quiet;
mod read;
mod rig;
mod steps;

use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};

pub use experiment::{Experiment, Point, Section, Settings, Verdict};
use experiment::{Scale, Step};
pub use experiments::ALL;
pub use rig::Drives;

/// Runs the experiments, and writes `report.html`, `report.json` and `report.csv` into the report's directory. Calls
/// `tell` for each step, with its name, the elapsed seconds, and the estimate of all seconds. Returns the result of
/// each experiment.
pub fn run(settings: &Settings, cancel: &AtomicBool, tell: &mut dyn FnMut(&str, u64, u64)) -> Result<Vec<Section>> {
    let chosen = chosen(&settings.only)?;
    let scale = Scale {
        is_quick: settings.is_quick,
        traces: settings.traces.clone(),
        drives: settings.drives.named().unwrap_or(8),
        are_named: settings.drives.named().is_some(),
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
