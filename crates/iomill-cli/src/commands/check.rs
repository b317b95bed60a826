//! `iomill check`: the problems of an array, and what to do about each; with `--data` also those of the files' bytes.

use crate::human;
use iomill::{Array, Error, Listed, Report, Scrubbed, Severity};
use serde_json::{Value, json};

use crate::arguments::Check;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// The most errors of data that are shown. The others are counted.
const SHOWN_MAX: usize = 100;

pub fn run(context: &Context<'_>, arguments: &Check) -> Result<Answer> {
    let mut progress = Progress::of_files(context.global);
    let watch = &mut |done, all| progress.set(done as u64, all as u64);
    let report = context.options().check_watched(context.starts()?, arguments.repair, watch)?;
    drop(progress);
    context.note(report.notices.iter().cloned());
    let mut failures = if report.is_clean() { Vec::new() } else { vec![verdict(&report, arguments.repair)] };
    let (mut text, mut document) = (text(&report, context.global.quiet), document(&report));
    if arguments.data {
        match read_data(context, arguments.after.as_deref().unwrap_or("")) {
            Ok(data) => {
                text.push_str(&data.text());
                document["data"] = data.document();
                failures.extend(data.failures());
            }
            // What was found before counts all the same.
            Err(failure) => failures.push(failure),
        }
    }
    Ok(Answer { failures, ..Answer::new(text, document) })
}

/// What a scrub has found.
#[derive(Debug, Default)]
struct Data {
    files: u64,
    bytes: u64,
    /// Of files without checksums, and of pages that a failed write has left without one.
    unproved_bytes: u64,
    damaged: u64,
    /// The first errors.
    damage: Vec<String>,
    seconds: f64,
    /// The signal or error that stopped it, and the last file that was read to its end.
    stopped: Option<(Failure, String)>,
}

fn read_data(context: &Context<'_>, after: &str) -> Result<Data> {
    let interrupt = Interrupt::install()?;
    let array = context.options().read_only(true).cache_bytes(0).open_at(context.starts()?)?;
    context.with(array, |array| {
        let mut progress = Progress::new(context.global, Some(bytes_after(array, after)?));
        let (mut data, mut last) = (Data::default(), after.to_owned());
        for scrubbed in array.scrub(after) {
            let scrubbed = match scrubbed {
                Ok(scrubbed) => scrubbed,
                Err(error) => {
                    data.stopped = Some((error.into(), last));
                    break;
                }
            };
            progress.advance(scrubbed.len);
            data.take(&scrubbed);
            if scrubbed.is_end {
                last = scrubbed.name;
            }
            if let Err(failure) = interrupt.check() {
                data.stopped = Some((failure, last));
                break;
            }
        }
        data.seconds = progress.seconds();
        Ok(data)
    })
}

/// How many bytes the files behind a name have together.
fn bytes_after(array: &Array, after: &str) -> Result<u64, Error> {
    let len = |listed: Listed| if let Listed::File(file) = listed { file.len_bytes } else { 0 };
    array.list("").after(after).map(|listed| listed.map(len)).sum()
}

impl Data {
    fn take(&mut self, scrubbed: &Scrubbed) {
        self.files += u64::from(scrubbed.is_end);
        self.bytes += scrubbed.len;
        self.unproved_bytes += scrubbed.unproved_bytes;
        self.damaged += scrubbed.damage.len() as u64;
        let room = SHOWN_MAX.saturating_sub(self.damage.len());
        self.damage.extend(scrubbed.damage.iter().take(room).map(ToString::to_string));
    }

    fn text(&self) -> String {
        let mut text: String = self.damage.iter().map(|error| line(&["error", error])).collect();
        if self.damaged > self.damage.len() as u64 {
            text.push_str(&format!("and {} more errors\n", self.damaged - self.damage.len() as u64));
        }
        let rate = human::size(human::per_second(self.bytes, self.seconds));
        let (files, size) = (counted(self.files as usize, "file"), human::size(self.bytes));
        text.push_str(&format!("{files} read, {size} at {rate}/s"));
        if self.unproved_bytes > 0 {
            text.push_str(&format!(", {} of them without checksums", human::size(self.unproved_bytes)));
        }
        text.push_str(if self.damaged > 0 { ": there is damage\n" } else { ": no damage\n" });
        text
    }

    fn document(&self) -> Value {
        json!({
            "files": self.files,
            "bytes": self.bytes,
            "unproved_bytes": self.unproved_bytes,
            "damaged": self.damaged,
            "damage": self.damage,
            "seconds": self.seconds,
            "bytes_per_second": human::per_second(self.bytes, self.seconds),
            "stopped_after": self.stopped.as_ref().map(|(_, last)| last),
        })
    }

    fn failures(self) -> Vec<Failure> {
        let mut failures = Vec::new();
        if self.damaged > 0 {
            let what = "pages are damaged; write them anew, or bring the files back from a copy";
            failures.push(Failure::Unsound(what.to_owned()));
        }
        if let Some((failure, last)) = self.stopped {
            failures.push(failure.and(format!("`iomill check --data --after {}` goes on", quoted(&last))));
        }
        failures
    }
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

/// A name as one word of a shell, whatever it holds.
fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\'', r"'\''"))
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
    format!("{}\n", human::printable(&said.join(": ")))
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

    /// Seen to fail when the quotes were those of Rust, in which a shell runs commands.
    #[test]
    fn a_shell_takes_a_quoted_name_as_it_is() {
        // A broken one may run `touch`.
        let dir = tempfile::tempdir().unwrap();
        for name in ["", "a b", "it's", "$(touch x) `touch x`", "a\\", "\"", "''"] {
            let script = format!("printf %s {}", quoted(name));
            let said = std::process::Command::new("sh").args(["-c", &script]).current_dir(&dir).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), name);
        }
    }

    /// Seen to fail when a line without an advice ended with a colon.
    #[test]
    fn a_line_ends_with_what_there_is_to_say() {
        assert_eq!(line(&["note", "/ssd0", "the lock was missing", ""]), "note: /ssd0: the lock was missing\n");
        assert_eq!(line(&["note", "/ssd0", "it was lost", "repaired"]), "note: /ssd0: it was lost: repaired\n");
    }
}
