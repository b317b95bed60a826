//! The parts of the drives' queues after Falcon (ATC'17), switched on one after the other: order, merging, gathering behind what is in
//! flight, adaptive depth.
//!
//! Goals: throughput and CPU time per operation of 4 KiB requests in batches, for loads that can gain and one that cannot, by number of
//! drives, inline and by drive threads; each step on top of those before it. Non-goals: rivals; latency under open load.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use iomill::{ADAPTIVE_DEPTH, ArrayOptions, Buffer, Error, File, Layout, Mode, Result};
use serde::Serialize;

use crate::arena::{Arena, SEED, Shape};
use crate::bench::Stage;
use crate::contender::{Cache, Contender, Sample, Slice, Task};
use crate::machine::Machine;
use crate::pattern::{self, PAGE_BYTES, Rng, mix};
use crate::report::Report;
use crate::rounds::{self, Plan};
use crate::target::Target;
use crate::threads::{self, Count};

/// The steps, from a queue that passes on what comes.
pub const STEPS: [&str; 5] = ["plain", "sort", "merge", "plug", "adaptive"];

/// The names of both ways' steps among the results.
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

/// Pages of a batch: 32 of the longest merged I/Os, so that merging does not empty the drives.
const BATCH_PAGES: usize = 2048;

/// Steps of this many pages from one request to the next leave nothing to merge.
const STRIDE_PAGES: u64 = 2;

/// What is read, a page at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Pages at random.
    Random,
    /// Every other page, ascending.
    Strided,
    /// Page after page.
    Sequential,
    /// In turn a page of a sequential stream and one at random.
    Mixed,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 4] = [Load::Random, Load::Strided, Load::Sequential, Load::Mixed];
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Load::Random => "random-read-4KiB",
            Load::Strided => "strided-read-4KiB",
            Load::Sequential => "sequential-read-4KiB",
            Load::Mixed => "mixed-read-4KiB",
        })
    }
}

impl Task for Load {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Numbers of drives, each an array of its own.
    pub drives: Vec<usize>,
    /// Where they are made, in turn; what is made is removed.
    pub dirs: Vec<PathBuf>,
    /// Length of the measured file in bytes.
    pub len_bytes: u64,
    /// The timed part, for each load.
    pub plan: Plan<Load>,
    /// How arrays are opened; the steps change the queues' part. The depth is that of all steps but the last.
    pub options: ArrayOptions,
    /// I/Os in flight per drive.
    pub depth: u32,
}

/// What the ladder yielded.
#[derive(Clone, Debug, Serialize)]
pub struct Ladder {
    /// Whose steps.
    pub of: &'static str,
    /// One for each number of drives.
    pub ladders: Vec<Rung>,
}

/// The results of one array.
#[derive(Clone, Debug, Serialize)]
pub struct Rung {
    /// How many drives it had.
    pub drives: usize,
    /// What was measured.
    #[serde(flatten)]
    pub report: Report,
}

impl Ladder {
    /// For machines.
    pub fn json(&self) -> Result<String> {
        let odd = |e: serde_json::Error| Error::Machine { what: "the ladder as JSON".into(), why: e.to_string() };
        serde_json::to_string_pretty(self).map_err(odd)
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
    Ok(Ladder { of: "falcon", ladders })
}

fn measure(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let shape = Shape { len_bytes: settings.len_bytes, layout: Layout::striping() };
    arena.fill(&shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let mut measured = Vec::new();
    for load in Load::ALL {
        let mut contenders: Vec<Box<dyn Contender<Load>>> = Vec::new();
        for (names, mode) in NAMES.iter().zip([Mode::Inline, Mode::DriveThreads]) {
            for (level, &name) in names.iter().enumerate() {
                let options = switched(&settings.options, level, settings.depth).mode(mode).cache_bytes(0);
                contenders.push(Box::new(Step {
                    name,
                    drives: arena.drives().to_owned(),
                    file_name: arena.file_name().to_owned(),
                    target: arena.target()?,
                    options: options.read_only(true),
                    load,
                }));
            }
        }
        let plan = Plan { workload: load, ..settings.plan };
        let one = rounds::run(&mut contenders, &plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
        let cancelled = one.cancelled;
        measured.push(one);
        if cancelled {
            break;
        }
    }
    Ok(Report::new(Machine::look(&arena.target()?), &measured))
}

/// The options with the steps up to `level`.
fn switched(options: &ArrayOptions, level: usize, depth: u32) -> ArrayOptions {
    let options = options.clone().sort(level >= 1).merge(level >= 2);
    let options = if level >= 3 { options } else { options.plug(1) };
    let most = if level >= 4 { depth.max(ADAPTIVE_DEPTH) } else { depth };
    options.depth(most).adaptive_depth(level >= 4)
}

/// iomill with some of the steps on.
#[derive(Debug)]
struct Step {
    name: &'static str,
    drives: Vec<PathBuf>,
    file_name: String,
    target: Target,
    options: ArrayOptions,
    load: Load,
}

impl Contender<Load> for Step {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, load: &Load) -> Result<Option<String>> {
        self.load = *load;
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.target.drop_cached()?;
        let array = self.options.clone().open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        let set_up = |thread: usize| {
            let pages = file.len() / PAGE_BYTES as u64;
            let buffer = array.buffer(BATCH_PAGES * PAGE_BYTES)?;
            let next = pages / slice.threads.max(1) as u64 * thread as u64;
            let rng = Rng::new(mix(thread as u64) ^ u64::from(std::process::id()));
            let places = Places { load: self.load, pages, next, at_random: false, rng };
            let mut worker = Worker { file: file.clone(), places, offsets: Vec::new(), buffer };
            // Rings are made before the clock starts.
            worker.file.read_at(&mut worker.buffer[..PAGE_BYTES], 0)?;
            Ok(worker)
        };
        let sample = threads::run(slice, set_up, |worker, stop| worker.work(stop, slice.verify))?;
        file.close()?;
        array.close()?;
        Ok(sample)
    }

    fn notes(&self) -> Vec<String> {
        vec![format!("latency is that of a whole call, a batch of {BATCH_PAGES} pages")]
    }
}

/// The pages of a load, one after the other.
struct Places {
    load: Load,
    pages: u64,
    next: u64,
    /// In a mixed load, whether the next one is at random.
    at_random: bool,
    rng: Rng,
}

impl Places {
    fn draw(&mut self) -> u64 {
        self.at_random = match self.load {
            Load::Random => true,
            Load::Strided | Load::Sequential => false,
            Load::Mixed => !self.at_random,
        };
        if self.at_random {
            return ((u128::from(self.rng.draw()) * u128::from(self.pages)) >> 64) as u64;
        }
        let page = self.next % self.pages;
        self.next = page + if self.load == Load::Strided { STRIDE_PAGES } else { 1 };
        page
    }
}

struct Worker {
    file: File,
    places: Places,
    offsets: Vec<u64>,
    buffer: Buffer,
}

impl Worker {
    fn work(&mut self, stop: &AtomicBool, verify: bool) -> Result<Count> {
        let mut count = Count::new()?;
        while !stop.load(Ordering::Relaxed) {
            self.offsets.clear();
            self.offsets.extend((0..BATCH_PAGES).map(|_| self.places.draw() * PAGE_BYTES as u64));
            let start = Instant::now();
            self.file.read_many(&self.offsets, PAGE_BYTES, &mut self.buffer)?;
            count.record(start.elapsed());
            count.ops += BATCH_PAGES as u64;
            count.bytes += (BATCH_PAGES * PAGE_BYTES) as u64;
            if !verify {
                continue;
            }
            for (&offset, page) in self.offsets.iter().zip(self.buffer.chunks(PAGE_BYTES)) {
                if pattern::stamp_in(page) != Some(pattern::stamp(SEED, offset / PAGE_BYTES as u64)) {
                    let what = format!("page {} of the measured file", offset / PAGE_BYTES as u64);
                    return Err(Error::Machine { what, why: "it does not begin with its stamp: a wrong read".into() });
                }
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_what_they_say() {
        let draw = |load| {
            let mut places = Places { load, pages: 8, next: 0, at_random: false, rng: Rng::new(5) };
            (0..12).map(|_| places.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(Load::Sequential), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(draw(Load::Strided)[..5], [0, 2, 4, 6, 0]);
        assert_eq!(draw(Load::Mixed).into_iter().skip(1).step_by(2).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(draw(Load::Random).iter().all(|&page| page < 8));
        assert!(!draw(Load::Random).is_sorted());
    }
}
