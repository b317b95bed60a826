//! The parts of the drives' queues after Falcon (ATC'17), switched on one after the other: order, merging, gathering
//! behind I/O in flight, adaptive depth.
//!
//! Goals: throughput and CPU time per operation of requests in batches, inline and by drive threads, for several
//! numbers of drives. The loads are some that can gain, one that cannot, and recorded traces. Each step adds to the
//! steps before it. Non-goals: rivals; latency under open load.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use iomill::{ADAPTIVE_DEPTH, ArrayOptions, Error, FileOptions, Result};
use serde::Serialize;

use crate::arena::{Arena, Shape};
use crate::bench::Stage;
use crate::contender::{Cache, Contender, Sample, Slice};
use crate::machine::Machine;
use crate::report::Report;
use crate::rounds::{self, Plan, Turns};
use crate::target::Target;
use crate::task::Task;
use crate::{loads, threads, traces};
pub use loads::Load;
pub use traces::Trace;

/// The steps. The first is a queue that sends each request at once.
pub const STEPS: [&str; 5] = ["plain", "sort", "merge", "plug", "adaptive"];

/// The names of the steps in the results, inline first, then by drive threads.
pub const NAMES: [[&str; STEPS.len()]; 2] = [
    [
        "iomill-falcon-inline-plain",
        "iomill-falcon-inline-sort",
        "iomill-falcon-inline-merge",
        "iomill-falcon-inline-plug",
        "iomill-falcon-inline-adaptive",
    ],
    [
        "iomill-falcon-drive-threads-plain",
        "iomill-falcon-drive-threads-sort",
        "iomill-falcon-drive-threads-merge",
        "iomill-falcon-drive-threads-plug",
        "iomill-falcon-drive-threads-adaptive",
    ],
];

/// The load or trace of one measurement.
#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Load(Load),
    Trace(&'a Trace),
}

impl What<'_> {
    fn writes(self) -> bool {
        match self {
            What::Load(_) => false,
            What::Trace(trace) => trace.writes(),
        }
    }
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Load(load) => load.fmt(f),
            What::Trace(trace) => write!(f, "trace-{}", trace.name()),
        }
    }
}

impl Task for What<'_> {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Maximum length of the first slice of each step.
const WARM_UP: Duration = Duration::from_millis(200);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Numbers of drives. Each number gets an array of its own.
    pub drives: Vec<usize>,
    /// Directories in which the drives are made, in turn. The drives are removed at the end.
    pub dirs: Vec<PathBuf>,
    /// Length of the measured file in bytes.
    pub len_bytes: u64,
    /// Reads of pages.
    pub loads: Vec<Load>,
    /// Traces, measured after the loads. They are made for a file of `len_bytes`.
    pub traces: Vec<Trace>,
    /// How turns are taken.
    pub turns: Turns,
    /// How arrays are opened. The steps change the options of the queues.
    pub options: ArrayOptions,
    /// I/Os in flight per drive, in all steps but the last.
    pub depth: u32,
}

/// The results of the ladder.
#[derive(Clone, Debug, Serialize)]
pub struct Ladder {
    /// The name of the ladder.
    pub of: &'static str,
    /// One for each number of drives.
    pub ladders: Vec<Rung>,
    /// Numbers of drives without results.
    pub drives_left_out: Vec<DrivesLeftOut>,
}

/// The results for one array.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    /// The number of its drives.
    pub drives: usize,
    /// The measurements.
    #[serde(flatten)]
    pub report: Report,
}

/// An array that was not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrivesLeftOut {
    /// The number of drives that it would have had.
    pub drives: usize,
    /// The reason.
    pub why: String,
}

impl Ladder {
    /// The ladder as JSON, for programs.
    pub fn json(&self) -> Result<String> {
        let odd = |e: serde_json::Error| Error::Tool { what: "the ladder as JSON".into(), why: e.to_string() };
        serde_json::to_string_pretty(self).map_err(odd)
    }
}

impl Settings {
    /// The names of the measurements in reports, in order.
    pub fn workloads(&self) -> Vec<String> {
        self.whats().map(|what| what.to_string()).collect()
    }

    fn whats(&self) -> impl Iterator<Item = What<'_>> {
        let loads = self.loads.iter().map(|&load| What::Load(load));
        loads.chain(self.traces.iter().map(What::Trace))
    }

    fn plans(&self) -> impl Iterator<Item = Plan<What<'_>>> {
        self.whats().flat_map(|what| self.turns.plans(what, WARM_UP))
    }
}

/// Measures, and leaves nothing behind.
pub fn run(settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Ladder> {
    let mut ladders = Vec::new();
    for &drives in &settings.drives {
        if cancel.load(Ordering::Relaxed) {
            break;
        }
        let arena = Arena::fresh_over(&settings.dirs, drives)?;
        let report = arena.measured(|arena| measure(arena, settings, cancel, stage))?;
        ladders.push(Rung { drives, report });
    }
    Ok(Ladder { of: "falcon", ladders, drives_left_out: Vec::new() })
}

fn measure(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let shape = Shape { len_bytes: settings.len_bytes, layout: FileOptions::new() };
    arena.fill(&shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let mut measured = Vec::new();
    let mut is_spoilt = false;
    for plan in settings.plans() {
        if is_spoilt {
            arena.refill(cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
        }
        let mut contenders = steps(arena, settings, plan.workload)?;
        let one = rounds::run(&mut contenders, &plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
        is_spoilt = one.spoilt;
        let cancelled = one.cancelled;
        measured.push(one);
        if cancelled {
            break;
        }
    }
    Ok(Report::new(Machine::look(arena.target()?.parts()), &measured))
}

/// All steps, inline and by drive threads.
fn steps<'a>(arena: &Arena, settings: &Settings, what: What<'a>) -> Result<Vec<Box<dyn Contender<What<'a>> + 'a>>> {
    let mut contenders: Vec<Box<dyn Contender<What<'a>> + 'a>> = Vec::new();
    for (names, drive_threads) in NAMES.iter().zip([false, true]) {
        for (level, &name) in names.iter().enumerate() {
            let options = switched(&settings.options, level, settings.depth)
                .with_tuning(|tuning| tuning.drive_threads(drive_threads))
                .cache_bytes(0);
            contenders.push(Box::new(Step {
                name,
                drives: arena.drives().to_owned(),
                file_name: arena.file_name().to_owned(),
                target: arena.target()?,
                options: options.read_only(!what.writes()),
                what,
            }));
        }
    }
    Ok(contenders)
}

/// The options with all steps up to `level` switched on.
fn switched(options: &ArrayOptions, level: usize, depth: u32) -> ArrayOptions {
    let options = options.clone().with_tuning(|tuning| tuning.sort(level >= 1).merge(level >= 2));
    let options = if level >= 3 { options } else { options.with_tuning(|tuning| tuning.plug(1)) };
    let most = if level >= 4 { depth.max(ADAPTIVE_DEPTH) } else { depth };
    options.depth(most).with_tuning(|tuning| tuning.adaptive_depth(level >= 4))
}

/// iomill with some of the steps switched on.
#[derive(Debug)]
struct Step<'a> {
    name: &'static str,
    drives: Vec<PathBuf>,
    file_name: String,
    target: Target,
    options: ArrayOptions,
    what: What<'a>,
}

impl<'a> Contender<What<'a>> for Step<'a> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, what: &What<'a>) -> Result<Option<String>> {
        self.what = *what;
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.target.drop_cached()?;
        let array = self.options.clone().open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        let sample = match self.what {
            What::Load(load) => threads::run(
                slice,
                |thread| loads::Worker::new(&array, &file, load, (thread, slice.threads)),
                |worker, stop| worker.work(stop, slice.verify),
            )?,
            What::Trace(trace) => {
                let next = AtomicUsize::new(0);
                threads::run(
                    slice,
                    |_| traces::Worker::new(&array, &file, trace, &next),
                    |worker, stop| worker.work(stop, slice.verify),
                )?
            }
        };
        file.close()?;
        array.close()?;
        Ok(sample)
    }

    fn spoils(&self) -> bool {
        self.what.writes()
    }

    fn notes(&self) -> Vec<String> {
        vec![match self.what {
            What::Load(_) => format!("latency is that of a whole call, a batch of {} pages", loads::BATCH_PAGES),
            What::Trace(_) => "latency is that of a batch of the trace's requests; each turn starts at the first batch, and a faster step gets further".to_owned(),
        }]
    }
}
