//! Runs the steps of an experiment. A step that has a document of the same command line is not run again; a step that
//! was left out is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use iomill::{Error, Result};
use iomill_cli::machine::Machine;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::experiment::{Experiment, Section, Settings, Step, Verdict};
use crate::quiet::{self, Quiet};
use crate::rig::{self, Rig, Up};

/// The stored result of a step.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    /// The command line of the step. With another one the record is stale.
    arguments: Vec<String>,
    /// The documents that the measurement printed, one per line.
    documents: Vec<Value>,
    /// The reason why there is none.
    left_out: Option<String>,
    /// A description of the rig, if the command line has none.
    note: Option<String>,
    /// The machine that ran the step: a report may be continued on another one. Empty in records before 2026-11-28.
    #[serde(default)]
    machine: String,
    at: u64,
}

/// The interval at which a waiting run checks for cancellation.
const TICK: Duration = Duration::from_millis(50);

/// Runs the steps that have no result yet. Calls `begins` for each step. `None` after a cancellation.
pub fn run(
    settings: &Settings,
    experiment: &Experiment,
    steps: &[Step],
    cancel: &AtomicBool,
    begins: &mut dyn FnMut(&Step),
) -> Result<Option<Section>> {
    let directory = settings.report.join("steps").join(experiment.name);
    fs::create_dir_all(&directory).map_err(|error| Error::io("create", &directory, error))?;
    let quiet_path = directory.join("quiet.json");
    let mut quiet: Quiet =
        fs::read_to_string(&quiet_path).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let mut records = Vec::new();
    let mut up: Option<(Rig, Up)> = None;
    let mut before = None;
    let mut has_measured = false;
    for step in steps {
        begins(step);
        let path = directory.join(format!("{}.json", step.name.replace(['/', ' '], "-")));
        let old = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Record>(&text).ok());
        if let Some(record) = old.filter(|record| record.left_out.is_none() && record.arguments == step.arguments) {
            records.push(record);
            continue;
        }
        if before.is_none() {
            before = Some(quiet::look(&settings.place)?);
        }
        if up.as_ref().is_none_or(|(rig, _)| *rig != step.rig) {
            // The old rig is removed first: both may use the same drives.
            drop(up.take());
        }
        let record = match up {
            Some((_, ref up)) => measure(settings, step, up, cancel),
            None => match Up::start(step.rig, &settings.place, &settings.drives) {
                Ok(started) => {
                    let started = &up.insert((step.rig, started)).1;
                    measure(settings, step, started, cancel)
                }
                Err(error) => Ok(left_out(step, error.to_string())),
            },
        }?;
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        write(&path, &record)?;
        has_measured |= record.left_out.is_none();
        records.push(record);
    }
    drop(up);
    // A step that was left out again says nothing about the time of the others.
    if let Some(before) = before.filter(|_| has_measured) {
        quiet = Quiet { before, after: quiet::look(&settings.place)? };
        write(&quiet_path, &quiet)?;
    }
    Ok(Some(section(experiment, steps, &records, quiet)))
}

fn section(experiment: &Experiment, steps: &[Step], records: &[Record], quiet: Quiet) -> Section {
    let documents: Vec<Value> = records.iter().map(|record| Value::Array(record.documents.clone())).collect();
    let points = (experiment.points)(steps, &documents);
    let verdict = match points.is_empty() {
        true => Verdict { holds: None, why: "none of its steps could be measured here".to_owned() },
        false => (experiment.judge)(&points),
    };
    let missing = |(step, record): (&Step, &Record)| Some((step.name.clone(), record.left_out.clone()?));
    let command = |(step, record): (&Step, &Record)| {
        let note = record.note.as_ref().map_or_else(String::new, |note| format!("   # {note}"));
        format!("iomill-lab {}{note}", step.arguments.join(" "))
    };
    Section {
        name: experiment.name,
        title: experiment.title,
        work: experiment.work,
        found: experiment.found,
        unit: experiment.unit,
        verdict,
        commands: steps.iter().zip(records).map(command).collect(),
        points,
        left_out: steps.iter().zip(records).filter_map(missing).collect(),
        quiet,
        machines: machines(records),
        at: records.iter().map(|record| record.at).max().unwrap_or(0),
        shape: experiment.shape,
    }
}

/// The machines that ran the steps with results, in that order.
fn machines(records: &[Record]) -> Vec<String> {
    let measured = records.iter().filter(|record| record.left_out.is_none());
    let mut machines: Vec<(u64, &String)> = measured.map(|record| (record.at, &record.machine)).collect();
    machines.sort_unstable();
    machines.dedup_by_key(|machine| machine.1);
    machines.into_iter().map(|machine| machine.1.clone()).collect()
}

/// This machine. QEMU without help of the processor (TCG) names its own model of one.
fn here() -> String {
    let machine = Machine::look(&[]);
    let emulated = machine.cpu_model.starts_with("QEMU TCG");
    let note = if emulated { ", emulated by software: only ratios within a step mean something" } else { "" };
    machine.host() + note
}

fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::Tool { what: path.display().to_string(), why: error.to_string() })?;
    // A step that was stopped while it wrote leaves no document.
    let draft = path.with_extension("draft");
    fs::write(&draft, text + "\n").map_err(|error| Error::io("write", &draft, error))?;
    fs::rename(&draft, path).map_err(|error| Error::io("rename", &draft, error))
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn left_out(step: &Step, why: String) -> Record {
    let (arguments, documents, machine) = (step.arguments.clone(), Vec::new(), here());
    Record { arguments, documents, left_out: Some(why), note: None, machine, at: now() }
}

/// Runs a step in a process of its own.
fn measure(settings: &Settings, step: &Step, up: &Up, cancel: &AtomicBool) -> Result<Record> {
    let said = settings.report.join("steps").join("said");
    let errors = settings.report.join("steps").join("errors");
    let create = |path: &Path| fs::File::create(path).map_err(|error| Error::io("create", path, error));
    let mut command = Command::new(&settings.helper.program);
    command.args(&settings.helper.arguments).args(step.arguments.iter().map(|argument| up.argument(argument)));
    command.args(["--quiet", "--json"]).stdin(Stdio::null()).stdout(create(&said)?).stderr(create(&errors)?);
    let mut child = command.spawn().map_err(|error| Error::io("start", &settings.helper.program, error))?;
    let note = up.bound(child.id());
    let mut is_told = false;
    let status = loop {
        if let Some(status) =
            child.try_wait().map_err(|error| Error::io("wait for", &settings.helper.program, error))?
        {
            break status;
        }
        // The process removes its files, and ends. It takes a signal of the terminal and this one as one.
        if cancel.load(Ordering::Relaxed) && !std::mem::replace(&mut is_told, true) {
            kill_process(Pid::from_child(&child), Signal::TERM)
                .map_err(|error| Error::io("end", &settings.helper.program, error.into()))?;
        }
        std::thread::sleep(TICK);
    };
    let read = |path: &Path| fs::read_to_string(path).map_err(|error| Error::io("read", path, error));
    let (text, errors) = (read(&said)?, read(&errors)?);
    if cancel.load(Ordering::Relaxed) {
        return Ok(left_out(step, "it was interrupted".to_owned()));
    }
    if !status.success() {
        let why = errors.lines().chain(text.lines()).find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Ok(left_out(step, format!("it ended with {status}: {why}")));
    }
    let documents: std::result::Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let documents =
        documents.map_err(|error| Error::Tool { what: step.arguments.join(" "), why: error.to_string() })?;
    let beyond = (up.bounded() > 0).then(|| rig::beyond_bound(up.bounded(), &documents)).flatten();
    let note = note.map(|note| beyond.map_or(note.clone(), |beyond| format!("{note}; {beyond}")));
    Ok(Record { arguments: step.arguments.clone(), documents, left_out: None, note, machine: here(), at: now() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::Drives;
    use iomill_contenders::held::Helper;

    #[test]
    fn a_signal_to_this_process_alone_ends_the_step() {
        let place = tempfile::tempdir().unwrap();
        let report = place.path().join("report");
        fs::create_dir_all(report.join("steps")).unwrap();
        // The options that follow are arguments of the shell.
        let helper =
            Helper { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), "exec sleep 3600".to_owned()] };
        let settings = Settings {
            report,
            place: place.path().to_owned(),
            drives: Drives::Memory,
            traces: Vec::new(),
            only: Vec::new(),
            is_quick: true,
            helper,
        };
        let step = Step { name: "sleep".to_owned(), rig: Rig::Place, arguments: Vec::new(), seconds: 1 };
        let up = Up::start(Rig::Place, place.path(), &Drives::Memory).unwrap();
        let began = std::time::Instant::now();
        let record = measure(&settings, &step, &up, &AtomicBool::new(true)).unwrap();
        assert_eq!(record.left_out.as_deref(), Some("it was interrupted"));
        assert!(began.elapsed() < Duration::from_secs(600), "{:?}", began.elapsed());
    }
}
