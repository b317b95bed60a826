//! A soak: all kinds of calls at the same time on a cache that is too small, for any length of time. The process's
//! memory is watched, and every byte read is checked.
//!
//! Goals: to find growing memory and wrong bytes.
//! Non-goals: speed ([`crate::limited`] measures it).
//!
//! Rules:
//! 1. The file consists of slots, several to a page. The place and the version of a slot determine its bytes. Version 0
//!    is the pattern that fills the file at first.
//! 2. Each page belongs to one thread, and only that thread writes its slots. So the versions of a slot go up one by
//!    one. The writer marks a version as begun before the call, and as done after it.
//! 3. A reader takes the done version before the call, and the begun version after it. The slot must hold one of the
//!    versions between.
//! 4. The versions that are done when the threads have ended are on the drives when the array is closed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iomill::{Array, ArrayOptions, Counters, Error, File, FileOptions, Result};
use serde::Serialize;

use crate::arena::{Arena, Shape};
use crate::bench::Stage;
use crate::machine::{Machine, process_memory_bytes};
use crate::rounds::Progress;
use iomill_cli::human;
use iomill_contenders::soak::slots::Slots;
use iomill_contenders::soak::worker::{Chores, Done, Worker};

/// Memory that the process may take beyond the cache's size, in percent of that size: the data about each page.
pub const OVERHEAD_PERCENT: u64 = 3;

/// Memory that it may take beyond that, in bytes, for any cache size: threads, rings, copies during flushes, the
/// allocator's arenas.
pub const OVERHEAD_BYTES: u64 = 8 << 20;

/// Stack size of the threads. It is too small for a huge page, which would count as iomill's memory.
const STACK_BYTES: usize = 512 << 10;

/// The interval between looks at the memory.
const TICK: Duration = Duration::from_millis(50);
/// Number of moments in the report.
const TOLD: u32 = 60;

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the file in bytes.
    pub size_bytes: u64,
    /// Size of iomill's cache in bytes.
    pub cache_bytes: u64,
    /// How iomill opens the array. The measurement sets the cache's size and the access itself.
    pub options: ArrayOptions,
    /// Threads that work at the same time.
    pub threads: usize,
    /// How long the threads work.
    pub length: Duration,
}

/// Memory in use at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Seconds since the threads started.
    pub seconds: f64,
    /// Memory of the process minus its memory before it opened the array, in bytes.
    pub used_bytes: u64,
}

/// The results of a soak. Their JSON is iomill's format of results: fields may be added, never renamed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Soaked {
    /// The machine of the soak.
    pub machine: Machine,
    /// How long the threads worked.
    pub seconds: f64,
    /// Threads that worked at the same time.
    pub threads: usize,
    /// Length of the file in bytes.
    pub size_bytes: u64,
    /// Size of the cache in bytes.
    pub cache_bytes: u64,
    /// The cache's size plus the allowed overhead ([`OVERHEAD_PERCENT`], [`OVERHEAD_BYTES`]).
    pub limit_bytes: u64,
    /// The maximum of the process's memory, minus its memory before it opened the array, in bytes.
    pub used_max_bytes: u64,
    /// The same at the end, with the array still open.
    pub used_final_bytes: u64,
    /// The same after the array was closed.
    pub used_closed_bytes: u64,
    /// Whether the maximum is within the limit.
    pub is_within: bool,
    /// Memory in use over time.
    pub memory: Vec<Moment>,
    /// Calls that read, including pins.
    pub reads: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Pins.
    pub pins: u64,
    /// Calls of `sync`.
    pub syncs: u64,
    /// Changes of the cache's size.
    pub resizes: u64,
    /// Bytes that were read and checked, including those read back at the end.
    pub verified_bytes: u64,
    /// Share of the requested pages that were in the cache, 0 to 1.
    pub hit_rate: Option<f64>,
    /// Pages that were evicted.
    pub evictions: u64,
    /// Pages that the cache wrote to the drives.
    pub flushes: u64,
    /// True if the soak was cancelled before its time was over.
    pub cancelled: bool,
}

/// Works on `arena`. `cancel` ends it soon. Wrong bytes are an error; the result reports too much memory.
pub fn run(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Soaked> {
    if settings.size_bytes < settings.cache_bytes {
        let (size, cache) = (human::size(settings.size_bytes), human::size(settings.cache_bytes));
        let why = "the whole file would stay in memory; give a larger --size";
        return Err(Error::invalid(format!("a file of {size} with a cache of {cache}"), why));
    }
    let shape = Shape { len_bytes: settings.size_bytes, layout: FileOptions::new() };
    arena.fill(&shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let machine = Machine::look(arena.target()?.parts());
    let slots = Slots::new(settings.size_bytes);
    let workers = (0..settings.threads).map(|thread| Worker::new(&slots, thread, settings.threads)).collect();
    // Now the measurement has all its own memory, except the threads' stacks.
    let mut watch = Watch { before_bytes: process_memory_bytes()?, max_bytes: 0, told: Vec::new() };
    let place = Place { drives: arena.drives().to_owned(), file_name: arena.file_name().to_owned() };
    let (array, file) = place.open(&settings.options.clone().cache_bytes(settings.cache_bytes))?;
    let start = Instant::now();
    let done = work(&array, &file, workers, settings, cancel, &mut |seconds, done, total| {
        stage(Stage::Measuring(Progress { done, total, contender: "soak" }));
        watch.look(seconds, settings.length)
    });
    let (done, seconds) = (done?, start.elapsed().as_secs_f64());
    file.sync()?;
    let used_final_bytes = watch.look(seconds, settings.length)?;
    let counters = array.counters();
    file.close()?;
    array.close()?;
    let used_closed_bytes = watch.used_bytes()?;
    let cancelled = cancel.load(Ordering::Relaxed);
    let read_back = if cancelled { 0 } else { place.verify(&settings.options, &slots)? };
    let done = Done { verified_bytes: done.verified_bytes + read_back, ..done };
    Ok(Soaked {
        machine,
        seconds,
        used_final_bytes,
        used_closed_bytes,
        cancelled,
        ..outcome(settings, &done, &counters, watch)
    })
}

/// The limit of the process's memory for a cache of `cache_bytes`.
fn limit_bytes(cache_bytes: u64) -> u64 {
    cache_bytes + cache_bytes * OVERHEAD_PERCENT / 100 + OVERHEAD_BYTES
}

fn outcome(settings: &Settings, done: &Done, counters: &Counters, watch: Watch) -> Soaked {
    let limit_bytes = limit_bytes(settings.cache_bytes);
    Soaked {
        machine: Machine::default(),
        seconds: 0.0,
        threads: settings.threads,
        size_bytes: settings.size_bytes,
        cache_bytes: settings.cache_bytes,
        limit_bytes,
        used_max_bytes: watch.max_bytes,
        used_final_bytes: 0,
        used_closed_bytes: 0,
        is_within: watch.max_bytes <= limit_bytes,
        memory: watch.told,
        reads: done.reads,
        writes: done.writes,
        pins: done.pins,
        syncs: done.syncs,
        resizes: done.resizes,
        verified_bytes: done.verified_bytes,
        hit_rate: counters.hit_rate(),
        evictions: counters.evictions,
        flushes: counters.flushes,
        cancelled: false,
    }
}

/// Lets the threads work until the time is over, `cancel` is set, or a thread fails. `look` gets the elapsed seconds,
/// and the progress as a part of a total.
fn work(
    array: &Array,
    file: &File,
    workers: Vec<Worker<'_>>,
    settings: &Settings,
    cancel: &AtomicBool,
    look: &mut dyn FnMut(f64, usize, usize) -> Result<u64>,
) -> Result<Done> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (mut spawned, mut failed) = (Vec::new(), None);
        for (index, mut worker) in workers.into_iter().enumerate() {
            let mut chores = (index == 0).then(|| Chores::new(array, settings.cache_bytes, settings.length));
            let stop = &stop;
            let body = move || worker.work(file, &mut chores, stop);
            let thread = thread::Builder::new().name(format!("soak-{index}")).stack_size(STACK_BYTES);
            match thread.spawn_scoped(scope, body) {
                Ok(thread) => spawned.push(thread),
                Err(error) => {
                    let why = format!("{error}; ask for fewer threads");
                    failed = Some(Error::Tool { what: format!("thread {}", index + 1), why });
                    break;
                }
            }
        }
        let start = Instant::now();
        while failed.is_none() && start.elapsed() < settings.length && !cancel.load(Ordering::Relaxed) {
            if spawned.iter().any(|thread| thread.is_finished()) {
                break;
            }
            let seconds = start.elapsed().as_secs_f64();
            failed = look(seconds, seconds as usize, settings.length.as_secs_f64().ceil() as usize).err();
            thread::sleep(TICK.min(settings.length.saturating_sub(start.elapsed())));
        }
        stop.store(true, Ordering::Relaxed);
        let mut done = Done::default();
        for thread in spawned {
            let panicked = || Error::Tool { what: "a thread of the soak".into(), why: "it panicked".into() };
            match thread.join().unwrap_or_else(|_| Err(panicked())) {
                Ok(one) => done.add(&one),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(done), Err)
    })
}

/// Watches the process's memory.
struct Watch {
    /// Memory before the array was opened.
    before_bytes: u64,
    max_bytes: u64,
    told: Vec<Moment>,
}

impl Watch {
    fn used_bytes(&self) -> Result<u64> {
        Ok(process_memory_bytes()?.saturating_sub(self.before_bytes))
    }

    fn look(&mut self, seconds: f64, length: Duration) -> Result<u64> {
        let used_bytes = self.used_bytes()?;
        self.max_bytes = self.max_bytes.max(used_bytes);
        if seconds >= self.told.len() as f64 * length.as_secs_f64() / f64::from(TOLD) {
            self.told.push(Moment { seconds, used_bytes });
        }
        Ok(used_bytes)
    }
}

struct Place {
    drives: Vec<PathBuf>,
    file_name: String,
}

impl Place {
    fn open(&self, options: &ArrayOptions) -> Result<(Array, File)> {
        let array = options.clone().open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        Ok((array, file))
    }

    /// Checks rule 4, without a cache. Returns the number of bytes read.
    fn verify(&self, options: &ArrayOptions, slots: &Slots) -> Result<u64> {
        let (array, file) = self.open(&options.clone().cache_bytes(0).read_only(true))?;
        let mut buffer = array.buffer(1 << 20)?;
        let mut offset = 0;
        while offset < file.len() {
            let len = file.read_at(&mut buffer, offset)?;
            slots.seen_before(offset, len).check(&buffer[..len])?;
            offset += len as u64;
        }
        drop(buffer);
        file.close()?;
        array.close()?;
        Ok(offset)
    }
}

impl Soaked {
    /// The results as JSON, for programs.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|e| Error::Tool { what: "writing the report as JSON".into(), why: e.to_string() })
    }

    /// The results for people, in whole lines.
    pub fn text(&self) -> String {
        let size = |bytes: u64| human::size(bytes);
        let percent = |bytes: u64| format!("{:+.2}%", 100.0 * (bytes as f64 / self.cache_bytes as f64 - 1.0));
        let used = |bytes: u64| format!("{} ({} of the cache's size)", size(bytes), percent(bytes));
        [
            self.machine.line(),
            format!(
                "{:.0} s, {} threads, a file of {}, a cache of {}",
                self.seconds,
                self.threads,
                size(self.size_bytes),
                size(self.cache_bytes)
            ),
            format!("memory, most     {}", used(self.used_max_bytes)),
            format!("memory, at end   {}", used(self.used_final_bytes)),
            format!("memory, closed   {}", size(self.used_closed_bytes)),
            format!("memory, allowed  {}", used(self.limit_bytes)),
            format!(
                "{} reads ({} pins), {} writes, {} syncs, {} resizes; {:.1}% of the pages were in the cache",
                human::count(self.reads as f64),
                human::count(self.pins as f64),
                human::count(self.writes as f64),
                self.syncs,
                self.resizes,
                100.0 * self.hit_rate.unwrap_or(0.0)
            ),
            format!("{} were read and checked: every byte was right", size(self.verified_bytes)),
        ]
        .join("\n")
            + "\n"
    }

    /// The fault of the result; `None` if it has none.
    pub fn fault(&self) -> Option<String> {
        (!self.is_within).then(|| {
            format!(
                "the process took up to {} for a cache of {}: more than its size plus {OVERHEAD_PERCENT}% and {}",
                human::size(self.used_max_bytes),
                human::size(self.cache_bytes),
                human::size(OVERHEAD_BYTES)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte above the limit is a fault, the limit itself is not.
    #[test]
    fn too_much_memory_is_a_fault() {
        let settings = Settings {
            size_bytes: 1 << 30,
            cache_bytes: 100 << 20,
            options: ArrayOptions::new(),
            threads: 1,
            length: Duration::from_secs(1),
        };
        let soaked = |max_bytes| {
            let watch = Watch { before_bytes: 0, max_bytes, told: Vec::new() };
            outcome(&settings, &Done::default(), &Counters::default(), watch)
        };
        assert_eq!(soaked(111 << 20).fault(), None);
        let fault = soaked((111 << 20) + 1).fault().unwrap();
        assert!(fault.contains("111 MiB for a cache of 100 MiB: more than its size plus 3% and 8 MiB"), "{fault}");
        assert_eq!(soaked(111 << 20).limit_bytes, 111 << 20);
    }
}
