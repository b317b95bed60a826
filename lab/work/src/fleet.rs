//! Lets the contenders of a load take turns, each in a process of its own with the same memory for the data.
//!
//! Rules:
//! 1. The data are made before, without a limit. Between turns the page cache has none of their pages.
//! 2. A process has a limit as soon as its data are open. The limit is the sum of its memory at that moment without
//!    pages of files, the memory of the running program, and the memory for the data. Pages that it has read by then
//!    are a part of the third, or programs that read all data at the start would have memory for all. The second and
//!    the third part are the same for all contenders; a contender that needs less of the second has more for the data.
//! 3. In each round each contender has a turn with the same requests. The results of a program must be the same for
//!    all.
//!
//! Non-goals: limits on anything but memory.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use iomill::{Error, Result};
use iomill_contenders::held::{Helper, MemoryGroup};
use rustix::fs::{Advice, fadvise};

use crate::child::Said;
use crate::job::{Contender, Job, Load, Measure};
use crate::stores;

/// The interval at which a waiting run checks for cancellation.
const TICK: Duration = Duration::from_millis(50);

/// The description of a measurement of a load.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The load.
    pub load: Load,
    /// The contenders that take part.
    pub contenders: Vec<Contender>,
    /// A directory for all files. It exists, and is removed with its content.
    pub place: PathBuf,
    /// Directories of the drives of iomill's array. They exist, and are empty.
    pub drives: Vec<PathBuf>,
    /// Approximate bytes of the data.
    pub size_bytes: u64,
    /// Turns of each contender; the median counts.
    pub rounds: usize,
    /// A command that calls [`crate::serve`].
    pub helper: Helper,
}

/// The figures of a contender in a part of a load: medians over the rounds.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The part.
    pub part: String,
    /// The contender.
    pub contender: Contender,
    /// The unit of the counts.
    pub unit: String,
    /// Turns that count.
    pub rounds: usize,
    /// Operations per second, and the least and the most of them.
    pub rate: [f64; 3],
    /// CPU time of an operation, in microseconds.
    pub cpu_us: f64,
    /// Bytes that drives delivered in a turn, over all parts of the load.
    pub fetched_bytes: u64,
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By part, and within a part in the order of the contenders.
    pub figures: Vec<Figures>,
    /// Contenders that did not take part, with the reasons.
    pub left_out: Vec<(Contender, String)>,
    /// Memory for the data of each.
    pub cache_bytes: u64,
}

/// A turn.
struct Turn {
    measures: Vec<Measure>,
    fetched_bytes: u64,
}

/// Measures a load. Calls `tell` at the begin of each step, with the step, its number, and the number of steps.
/// `cancel` ends it with the results of whole rounds.
pub fn run(settings: &Settings, cancel: &AtomicBool, tell: &mut dyn FnMut(String, usize, usize)) -> Result<Outcome> {
    let cache_bytes = settings.size_bytes / settings.load.share();
    let mut outcome = Outcome { cache_bytes, ..Outcome::default() };
    let mut taking_part = Vec::new();
    let mut made: HashMap<&str, ()> = HashMap::new();
    let steps = settings.contenders.len() * (settings.rounds + 1);
    for (step, &contender) in settings.contenders.iter().enumerate() {
        tell(format!("{}: data for {}", settings.load.name(), contender.name()), step, steps);
        let is_made = made.insert(contender.storage(settings.load.is_changed()), ()).is_some();
        let job = settings.job(contender, cache_bytes, true, 0);
        let ready = stores::build(contender, &settings.place).map_err(|error| error.to_string());
        match ready.map(|_| if is_made { Ok(()) } else { settings.turn(&job, cancel).map(drop) }) {
            Ok(Ok(())) => taking_part.push(contender),
            Ok(Err(error)) if contender == Contender::Iomill || cancel.load(Ordering::Relaxed) => return Err(error),
            Ok(Err(error)) => outcome.left_out.push((contender, error.to_string())),
            Err(why) => outcome.left_out.push((contender, why)),
        }
    }
    let mut turns: HashMap<&str, Vec<Turn>> = HashMap::new();
    'rounds: for round in 0..settings.rounds {
        let mut in_round = Vec::new();
        for index in 0..taking_part.len() {
            let contender = taking_part[(index + round) % taking_part.len()];
            let step = settings.contenders.len() + round * taking_part.len() + index;
            tell(
                format!("{}: round {} of {}, {}", settings.load.name(), round + 1, settings.rounds, contender.name()),
                step,
                steps,
            );
            settings.drop_caches()?;
            let turn = settings.turn(&settings.job(contender, cache_bytes, false, round as u64), cancel);
            if cancel.load(Ordering::Relaxed) {
                break 'rounds;
            }
            in_round.push((contender, turn?));
        }
        agree(&in_round)?;
        in_round.into_iter().for_each(|(contender, turn)| turns.entry(contender.name()).or_default().push(turn));
    }
    outcome.figures = figures(&taking_part, &turns);
    Ok(outcome)
}

/// Rule 3: an error if two contenders have different results.
fn agree(turns: &[(Contender, Turn)]) -> Result<()> {
    let Some((first, rest)) = turns.split_first() else { return Ok(()) };
    for other in rest {
        for (one, two) in first.1.measures.iter().zip(&other.1.measures) {
            if one.digest != two.digest || one.operations != two.operations {
                let what = format!("{} by {} and by {}", one.name, first.0.name(), other.0.name());
                return Err(Error::Tool {
                    what,
                    why: "they have different results: one of them has read wrong bytes".into(),
                });
            }
        }
    }
    Ok(())
}

fn figures(contenders: &[Contender], turns: &HashMap<&str, Vec<Turn>>) -> Vec<Figures> {
    let first = contenders.first().and_then(|first| turns.get(first.name())?.first());
    let mut figures = Vec::new();
    for part in 0..first.map_or(0, |turn| turn.measures.len()) {
        for &contender in contenders {
            let Some(turns) = turns.get(contender.name()) else { continue };
            let measures: Vec<&Measure> = turns.iter().map(|turn| &turn.measures[part]).collect();
            let rates = sorted(measures.iter().map(|measure| measure.operations as f64 / measure.seconds));
            let cpu = sorted(measures.iter().map(|measure| measure.cpu_seconds * 1e6 / measure.operations as f64));
            let mut fetched: Vec<u64> = turns.iter().map(|turn| turn.fetched_bytes).collect();
            fetched.sort_unstable();
            figures.push(Figures {
                part: measures[0].name.clone(),
                contender,
                unit: measures[0].unit.clone(),
                rounds: turns.len(),
                rate: [rates[rates.len() / 2], rates[0], rates[rates.len() - 1]],
                cpu_us: cpu[cpu.len() / 2],
                fetched_bytes: fetched[fetched.len() / 2],
            });
        }
    }
    figures
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

impl Settings {
    fn job(&self, contender: Contender, cache_bytes: u64, makes: bool, seed: u64) -> Job {
        let (load, size_bytes) = (self.load, self.size_bytes);
        Job {
            load,
            contender,
            drives: self.drives.clone(),
            place: self.place.clone(),
            size_bytes,
            cache_bytes,
            makes,
            seed,
        }
    }

    /// Rule 1.
    fn drop_caches(&self) -> Result<()> {
        for directory in self.drives.iter().chain([&self.place]) {
            drop_below(directory)?;
        }
        Ok(())
    }

    /// Lets a process do a job.
    fn turn(&self, job: &Job, cancel: &AtomicBool) -> Result<Turn> {
        let group = MemoryGroup::make().map_err(|why| self.failed(job, &why))?;
        let mut command = Command::new(&self.helper.program);
        // Otherwise the C library keeps the largest buffer that each thread ever had.
        command.env("MALLOC_MMAP_THRESHOLD_", "131072").env("MALLOC_ARENA_MAX", "2");
        command.args(&self.helper.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| Error::io("start", &self.helper.program, error))?;
        let mut process = Process(child);
        let (input, output) = (process.0.stdin.take(), process.0.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else { return Err(self.failed(job, "it has no pipes")) };
        group.take_in(process.0.id())?;
        let odd = |error: &dyn std::fmt::Display| self.failed(job, &error.to_string());
        let line = serde_json::to_string(job).map_err(|error| odd(&error))?;
        writeln!(input, "{line}").map_err(|error| odd(&error))?;
        let lines = lines_of(output);
        while !cancel.load(Ordering::Relaxed) {
            let line = match lines.recv_timeout(TICK) {
                Ok(line) => line.map_err(|error| odd(&error))?,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match serde_json::from_str(&line).map_err(|error| odd(&error))? {
                Said::Ready => {
                    // Rule 2.
                    let own_bytes = group.own_bytes()? + self.load.own_bytes(self.size_bytes);
                    group.limit(own_bytes + job.cache_bytes)?;
                    writeln!(input).map_err(|error| odd(&error))?;
                }
                Said::Done { measures, fetched_bytes } => return Ok(Turn { measures, fetched_bytes }),
                Said::Failed(why) => return Err(odd(&why)),
            }
        }
        Err(odd(&"it has ended without a result; perhaps the kernel killed it for lack of memory"))
    }

    fn failed(&self, job: &Job, why: &str) -> Error {
        let what = format!("{} by {}", self.load.name(), job.contender.name());
        Error::Tool { what, why: why.to_owned() }
    }
}

/// The lines that a process prints, read by a thread, so that a cancelled run does not wait for them. The thread ends
/// with the process.
fn lines_of(output: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| sender.send(line)));
    lines
}

/// Ends its process on drop, so that its group is empty.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Drops all files below a directory from the page cache.
fn drop_below(directory: &Path) -> Result<()> {
    let entries = fs::read_dir(directory).map_err(|error| Error::io("list", directory, error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", directory, error))?;
        let path = entry.path();
        if path.is_dir() {
            drop_below(&path)?;
        } else if path.is_file() {
            let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
            // Only clean pages are dropped.
            file.sync_data().map_err(|error| Error::io("fsync", &path, error))?;
            fadvise(&file, 0, None, Advice::DontNeed)
                .map_err(|error| Error::io("drop from the page cache", &path, error.into()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_run_does_not_wait_for_its_process() {
        if let Some(why) = iomill_contenders::held::why_not() {
            println!("skipped: no memory cgroup can be made here: {why}");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        // It says nothing for an hour.
        let helper =
            Helper { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), "exec sleep 3600".to_owned()] };
        let settings = Settings {
            load: Load::Train,
            contenders: vec![Contender::Iomill],
            place: place.path().to_owned(),
            drives: vec![place.path().to_owned()],
            size_bytes: 1 << 20,
            rounds: 1,
            helper,
        };
        let (cancel, began) = (AtomicBool::new(false), std::time::Instant::now());
        let ran = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(200));
                cancel.store(true, Ordering::Relaxed);
            });
            run(&settings, &cancel, &mut |_, _, _| {})
        });
        assert!(ran.is_err() && began.elapsed() < Duration::from_secs(600), "{ran:?} after {:?}", began.elapsed());
    }
}
