//! `iomill check`: the problems of an array, and what to do about each.

use crate::human;
use iomill::{Report, Severity};
use serde_json::{Value, json};

use crate::arguments::Check;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::progress::Progress;

pub fn run(context: &Context<'_>, arguments: &Check) -> Result<Answer> {
    let mut progress = Progress::of_files(context.global);
    let watch = &mut |done, all| progress.set(done as u64, all as u64);
    let report = context.options().check_watched(context.starts()?, arguments.repair, watch)?;
    drop(progress);
    context.note(report.notices.iter().cloned());
    let is_clean = report.is_clean();
    let failures = if is_clean { Vec::new() } else { vec![verdict(&report, arguments.repair)] };
    Ok(Answer { failures, ..Answer::new(text(&report, context.global.quiet), document(&report)) })
}

fn verdict(report: &Report, repair: bool) -> Failure {
    let count = report.problems.iter().filter(|problem| !problem.repaired).count();
    let what = if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") };
    Failure::Unsound(if repair {
        format!("{what} could not be repaired; do what the line of each says")
    } else {
        format!("{what} found; `iomill check --repair` repairs what it can without losing data")
    })
}

/// A line for each problem. A quiet one has no notes.
fn text(report: &Report, quiet: bool) -> String {
    let mut text = String::new();
    for problem in report.problems.iter().filter(|problem| !quiet || problem.severity > Severity::Note) {
        let end = if problem.repaired { "repaired" } else { &problem.advice };
        let (severity, path) = (problem.severity.name(), problem.path.display());
        text.push_str(&line(&[severity, &path.to_string(), &problem.what, end]));
    }
    if report.drives > 0 {
        let (drives, files) = (counted(report.drives, "drive"), counted(report.files, "file"));
        let end = if report.is_clean() { "all is well" } else { "there are problems" };
        text.push_str(&format!("{drives}, {files}, {}: {end}\n", human::size(report.bytes)));
    }
    if report.given_back_bytes > 0 {
        let given = human::size(report.given_back_bytes);
        text.push_str(&format!("{given} of deleted small files are free for other files of the drives now\n"));
    }
    text
}

/// A line of the parts that are not empty.
fn line(parts: &[&str]) -> String {
    let said: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    format!("{}\n", said.join(": "))
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn document(report: &Report) -> Value {
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
    json!({
        "clean": report.is_clean(),
        "drives": report.drives,
        "files": report.files,
        "bytes": report.bytes,
        "given_back_bytes": report.given_back_bytes,
        "problems": problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when a line without an advice ended with a colon.
    #[test]
    fn a_line_ends_with_what_there_is_to_say() {
        assert_eq!(line(&["note", "/ssd0", "the lock was missing", ""]), "note: /ssd0: the lock was missing\n");
        assert_eq!(line(&["note", "/ssd0", "it was lost", "repaired"]), "note: /ssd0: it was lost: repaired\n");
    }
}
