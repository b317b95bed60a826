//! Runs the steps of an experiment. A step that has a document of the same command line is not run again; one that was
//! left out is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quiet::{self, Quiet};
use crate::rig::{self, Rig, Up};
use crate::{Experiment, Section, Settings, Step, Verdict};

/// What stays of a step.
#[derive(Debug, Deserialize, Serialize)]
struct Record {
    /// The command line as the step names it. Another one makes the record stale.
    arguments: Vec<String>,
    /// The documents that the measurement printed, one per line.
    documents: Vec<Value>,
    /// Why there is none.
    left_out: Option<String>,
    /// A description of the rig, if the command line has none.
    note: Option<String>,
    at: u64,
}

/// How often a waiting run looks for cancellation.
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
    let mut has_run = false;
    for step in steps {
        begins(step);
        let path = directory.join(format!("{}.json", step.name.replace(['/', ' '], "-")));
        let old = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Record>(&text).ok());
        if let Some(record) = old.filter(|record| record.left_out.is_none() && record.arguments == step.arguments) {
            records.push(record);
            continue;
        }
        if !has_run {
            quiet.before = quiet::look(&settings.place)?;
            has_run = true;
        }
        if up.as_ref().is_none_or(|(rig, _)| *rig != step.rig) {
            // The old rig is taken apart first: both may use the same drives.
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
        records.push(record);
    }
    drop(up);
    if has_run {
        quiet.after = quiet::look(&settings.place)?;
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
        at: records.iter().map(|record| record.at).max().unwrap_or(0),
        shape: experiment.shape,
    }
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
    Record { arguments: step.arguments.clone(), documents: Vec::new(), left_out: Some(why), note: None, at: now() }
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
    let status = loop {
        match child.try_wait().map_err(|error| Error::io("wait for", &settings.helper.program, error))? {
            Some(status) => break status,
            // The signal has reached the process as well. It removes its files, and ends.
            None => std::thread::sleep(TICK),
        }
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
    Ok(Record { arguments: step.arguments.clone(), documents, left_out: None, note, at: now() })
}
