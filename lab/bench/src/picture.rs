//! The picture of the README: reads by iomill beside `mmap`, `pread` and io_uring by hand, from drives and from memory.
//!
//! Goals: one run on one array, without preparation and without root; figures that miss their goals are drawn like all
//! others. Non-goals: the same memory for all contenders ([`crate::limited`]), several threads, writes.

mod svg;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::{ArrayOptions, Error, Result};

use crate::access::Access;
use crate::arena::{Arena, SEED};
use crate::asynchronous::Flyer;
use crate::bench::Stage;
use crate::cached::{self, Accesses, Whole};
use crate::contender::{Cache, Contender};
use crate::contender::{IOMILL_FUTURE_512, IOMILL_READ_AT, IOMILL_READ_MANY, MMAP, PREAD, URING_BY_HAND};
use crate::limited::Uncached;
use crate::machine::Machine;
use crate::pattern::PAGE_BYTES;
use crate::records::{Data, RecordReads, Skew};
use crate::report::Report;
use crate::rivals::mmap::Mmap;
use crate::rivals::pread::Pread;
use crate::rivals::resident;
use crate::rivals::uring::Uring;
use crate::rounds::{self, Turns, WARM_UP};
use crate::task::Task;
use crate::warm;
use iomill_cli::human;
pub use svg::svg;

/// For reads from drives, the file is this many times as long as iomill's cache. So few reads find their page there.
const SIZE_OVER_CACHE: u64 = 32;

/// The smallest cache that a measurement takes.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Pages or records per call of `read_many`.
const BATCH: u32 = 256;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the measured files in bytes.
    pub size_bytes: u64,
    /// How iomill opens the array. The measurement sets caches and access itself.
    pub options: ArrayOptions,
    /// Timed slices per contender, of one thread.
    pub rounds: usize,
    /// Length of a timed slice.
    pub slice: Duration,
}

impl Settings {
    fn access(&self) -> Result<Access> {
        let cache_bytes = self.size_bytes / SIZE_OVER_CACHE;
        if cache_bytes < CACHE_BYTES_MIN {
            let what = format!("a file of {}", human::size(self.size_bytes));
            let least = human::size(CACHE_BYTES_MIN * SIZE_OVER_CACHE).replace(' ', "");
            return Err(Error::invalid(what, format!("give a --size of at least {least}")));
        }
        Ok(Access::page_reads(self.size_bytes, cache_bytes, BATCH))
    }

    fn turns(&self) -> Turns {
        Turns { threads: vec![1], rounds: self.rounds, slice: self.slice }
    }
}

/// Measures on `arena`. `cancel` ends it soon; the report then has the complete rounds only. Reads from
/// memory are the rows with the cache `warm`, all others are reads from drives.
pub fn run(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let access = settings.access()?;
    warm::check_memory(settings.size_bytes, warm::COPIES)?;
    let (flat, _) =
        arena.fill_with_flat(settings.size_bytes, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let machine = Machine::look(arena.target()?.parts());
    let data = Arc::new(Data::new(flat.path().to_owned(), flat.len_bytes() / PAGE_BYTES as u64, SEED)?);
    let cold = turns(from_drives(arena, settings)?, access, settings, &machine, cancel, stage)?;
    let baselines = &[URING_BY_HAND, MMAP, PREAD];
    if cold.cancelled {
        return Ok(Report { baselines, ..cold });
    }
    let reads = RecordReads { skew: Skew::Uniform, batch: BATCH };
    let warm = turns(from_memory(arena, settings, &data), reads, settings, &machine, cancel, stage)?;
    Ok(Report {
        machine,
        results: [cold.results, warm.results].concat(),
        left_out: [cold.left_out, warm.left_out].concat(),
        cancelled: warm.cancelled,
        failed: None,
        baselines,
    })
}

fn turns<T: Task>(
    mut contenders: Vec<Box<dyn Contender<T>>>,
    task: T,
    settings: &Settings,
    machine: &Machine,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let plans = settings.turns().plans(task, WARM_UP).collect::<Vec<_>>();
    let measured = rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel)?;
    Ok(Report::new(machine.clone(), &measured))
}

fn from_drives(arena: &Arena, settings: &Settings) -> Result<Vec<Box<dyn Contender<Access>>>> {
    let (depth, target) = (iomill::DEFAULT_DEPTH, arena.target()?);
    let mut contenders: Vec<Box<dyn Contender<Access>>> = vec![
        Box::new(Accesses::in_batches(arena, &settings.options)?),
        Box::new(Accesses::one_by_one(arena, &settings.options)?),
        Box::new(Uncached::new(Box::new(Uring::new(target.clone())), depth)),
        Box::new(Uncached::new(Box::new(Pread::new(target.clone(), Cache::Cold)), depth)),
        Box::new(Uncached::new(Box::new(Mmap::new(target, Cache::Cold)), depth)),
    ];
    for flyer in Flyer::all().into_iter().filter(|flyer| flyer.name() == IOMILL_FUTURE_512) {
        contenders.push(Box::new(Accesses::in_flight(&flyer, arena, &settings.options)?));
    }
    Ok(contenders)
}

fn from_memory(arena: &Arena, settings: &Settings, data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>> {
    let cache_bytes = settings.size_bytes.saturating_mul(warm::CACHE_OVER_SIZE);
    let whole = Arc::new(Whole::new(arena, &settings.options, cache_bytes));
    let mut contenders = cached::warm(data, &whole, &[]);
    contenders.retain(|one| [IOMILL_READ_AT, IOMILL_READ_MANY].contains(&one.name()));
    contenders.push(Box::new(resident::mmap(data)));
    contenders.push(Box::new(resident::pread(data)));
    contenders
}
