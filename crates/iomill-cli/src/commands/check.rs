//! `iomill check`: the problems of an array, and what to do about each.

use iomill::Report;
use iomill_bench::human;
use serde_json::{Value, json};

use crate::arguments::Check;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::naming;
use crate::progress::Progress;

pub fn run(context: &Context<'_>, arguments: &Check) -> Result<Answer> {
    let mut progress = Progress::of_files(context.global);
    let watch = &mut |done, all| progress.set(done as u64, all as u64);
    let report = context.options().check_watched(context.starts()?, arguments.repair, watch)?;
    drop(progress);
    let unfinished = match unfinished_puts(context, arguments.repair) {
        Ok(unfinished) => unfinished,
        // The report already says what keeps the array from opening.
        Err(failure) if report.is_clean() => return Err(failure),
        Err(_) => Vec::new(),
    };
    // The report says in more detail what opening the array noticed.
    context.take_notices();
    let is_clean = report.is_clean() && unfinished.iter().all(|(_, repaired)| *repaired);
    let failures = if is_clean { Vec::new() } else { vec![verdict(&report, &unfinished, arguments.repair)] };
    Ok(Answer {
        failures,
        ..Answer::new(text(&report, &unfinished, is_clean), document(&report, &unfinished, is_clean))
    })
}

/// Files that a killed `put` left, and whether they have been removed. No process had the array open for writing during the
/// check, so no running `put` owns these files. A `put` that has started since then holds the lock, and the caller gets that error.
fn unfinished_puts(context: &Context<'_>, repair: bool) -> Result<Vec<(String, bool)>> {
    let work = |array: &iomill::Array| {
        let mut found = Vec::new();
        for name in array.list(naming::UNFINISHED) {
            if repair {
                array.delete(&name)?;
            }
            found.push((name, repair));
        }
        Ok(found)
    };
    if repair { context.with_writer(work) } else { context.with_reader(work) }
}

fn verdict(report: &Report, unfinished: &[(String, bool)], repair: bool) -> Failure {
    let problems = report.problems.iter().filter(|problem| !problem.repaired).count();
    let count = problems + unfinished.iter().filter(|(_, repaired)| !repaired).count();
    let what = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
    Failure::Unsound(if repair {
        format!("{what} could not be repaired; do what the line of each says")
    } else {
        format!("{what} found; `iomill check --repair` repairs what it can without losing data")
    })
}

fn text(report: &Report, unfinished: &[(String, bool)], is_clean: bool) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        let end = if problem.repaired { "repaired".to_owned() } else { problem.advice.clone() };
        let (severity, path) = (problem.severity.name(), problem.path.display());
        text.push_str(&format!("{severity}: {path}: {}: {end}\n", problem.what));
    }
    for (name, repaired) in unfinished {
        let end = if *repaired { "removed" } else { "run `iomill check --repair`, or remove it with `iomill rm`" };
        text.push_str(&format!("note: an interrupted put left {name:?}: {end}\n"));
    }
    if report.drives > 0 {
        let (drives, files) = (counted(report.drives, "drive"), counted(report.files, "file"));
        let end = if is_clean { "all is well" } else { "there are problems" };
        text.push_str(&format!("{drives}, {files}, {}: {end}\n", human::size(report.bytes)));
    }
    text
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn document(report: &Report, unfinished: &[(String, bool)], is_clean: bool) -> Value {
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| {
            json!({
                "severity": problem.severity.name(),
                "path": problem.path.display().to_string(),
                "what": problem.what,
                "advice": problem.advice,
                "repaired": problem.repaired,
            })
        })
        .collect();
    let unfinished: Vec<Value> =
        unfinished.iter().map(|(name, removed)| json!({ "name": name, "removed": removed })).collect();
    json!({
        "clean": is_clean,
        "drives": report.drives,
        "files": report.files,
        "bytes": report.bytes,
        "problems": problems,
        "unfinished_puts": unfinished,
    })
}
