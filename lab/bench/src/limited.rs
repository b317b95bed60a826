//! Measurements of data that does not fit in memory: cold reads, reads of which a share hits, small writes.
//!
//! Goals: all contenders have the same memory for the data that they read or write. If the memory of a contender cannot
//! be limited, it is left out with the reason. Non-goals: data that fits in memory ([`crate::warm`]).

use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, Error, FileOptions, Result};

use crate::access::Access;
use crate::arena::{Arena, Shape};
use crate::asynchronous::Flyer;
use crate::bench::{Rivals, Stage};
use crate::cached::{Accesses, WriteAt};
use crate::contender::{
    Cache, Contender, IOMILL_FUTURE_64, MMAP, PREAD, PWRITE, Sample, Slice, UNCACHED, URING_BY_HAND,
};
use crate::draw::Choice;
use crate::held::{Held, Helper, Job};
use crate::machine::Machine;
use crate::pattern::PAGE_BYTES;
use crate::report::Report;
use crate::rivals::uncached;
use crate::rivals::uring::Uring;
use crate::rounds::{self, Measured, Turns, WARM_UP};
use crate::small_writes::SmallWrites;
use crate::task::Task;
use crate::workload::Workload;
use iomill_cli::human;

/// Bytes of a value, and of its slot.
const VALUE_BYTES: u32 = 1000;
const VALUE_SLOT_BYTES: u32 = 1024;
/// Minimum ratio of the file's length to the memory. With a smaller file, bytes that were read once would often still
/// be in memory.
const SIZE_OVER_CACHE_MIN: u64 = 2;

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the measured file in bytes.
    pub size_bytes: u64,
    /// Memory for the data read or written, in bytes. It is the same for all contenders.
    pub cache_bytes: u64,
    /// How iomill opens the array. The measurement sets the cache's size and the access itself.
    pub options: ArrayOptions,
    /// Operations per call, for contenders that take many in a call.
    pub batch: u32,
    /// I/Os in flight on each drive, for io_uring by hand.
    pub depth: u32,
    /// How turns are taken.
    pub turns: Turns,
    /// iomill's asynchronous ways, for cold reads. Reads with a share of hits take the one with 64 futures.
    pub flyers: Vec<Flyer>,
    /// The contenders besides iomill.
    pub rivals: Rivals,
    /// Starts the processes of contenders with limited memory.
    pub helper: Helper,
}

/// What to measure.
#[derive(Clone, Debug)]
pub enum What {
    /// Reads of single pages; one measurement for each choice.
    Cold(Vec<Choice>),
    /// Reads of values with each of these shares of hits, 0 to 99 percent. Then a key-value load, first with reads
    /// only, then with updates.
    Mixed(Vec<u8>),
    /// Small writes.
    SmallWrites,
}

/// The rivals of cold reads.
pub fn cold_rivals() -> Vec<&'static str> {
    [&[URING_BY_HAND, PREAD, MMAP], UNCACHED].concat()
}

/// The rivals of reads with a share of hits.
pub const MIXED_RIVALS: &[&str] = &[PREAD, MMAP];
/// The rivals of small writes.
pub const WRITE_RIVALS: &[&str] = &[PWRITE];

impl What {
    fn rivals(&self) -> Vec<&'static str> {
        match self {
            What::Cold(_) => cold_rivals(),
            What::Mixed(_) => MIXED_RIVALS.to_vec(),
            What::SmallWrites => WRITE_RIVALS.to_vec(),
        }
    }
}

/// Measures on `arena`. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(
    arena: &mut Arena,
    what: &What,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    check(settings)?;
    settings.rivals.check(&what.rivals())?;
    match what {
        What::SmallWrites => small_writes(arena, settings, cancel, stage),
        What::Cold(choices) => {
            let tasks: Vec<Access> = choices.iter().map(|&choice| Access { choice, ..settings.cold() }).collect();
            accesses(arena, settings, &tasks, &settings.flyers, cancel, stage)
        }
        What::Mixed(percents) => {
            let flyers: Vec<Flyer> =
                settings.flyers.iter().filter(|flyer| flyer.name() == IOMILL_FUTURE_64).cloned().collect();
            accesses(arena, settings, &settings.mixed(percents), &flyers, cancel, stage)
        }
    }
}

fn check(settings: &Settings) -> Result<()> {
    if settings.size_bytes / SIZE_OVER_CACHE_MIN < settings.cache_bytes {
        let (size, cache) = (human::size(settings.size_bytes), human::size(settings.cache_bytes));
        let why =
            format!("give a --size of at least {SIZE_OVER_CACHE_MIN} times --cache; a smaller file stays in memory");
        return Err(Error::invalid(format!("a file of {size} with a cache of {cache}"), why));
    }
    Ok(())
}

impl Settings {
    fn cold(&self) -> Access {
        Access::page_reads(self.size_bytes, self.cache_bytes, self.batch)
    }

    /// The load with updates comes last, because it leaves bytes that cannot be verified.
    fn mixed(&self, percents: &[u8]) -> Vec<Access> {
        let hits = percents.iter().map(|&percent| {
            let choice = Choice::Hits(percent);
            Access { choice, op_bytes: VALUE_BYTES, ..self.cold() }
        });
        // Memory for a tenth of the values, or less if the cache is smaller.
        let cache_bytes = self.cache_bytes.min(self.size_bytes / 10);
        let (slot_bytes, op_bytes) = (VALUE_SLOT_BYTES, VALUE_BYTES);
        let values = Access { choice: Choice::Zipf, slot_bytes, op_bytes, cache_bytes, ..self.cold() };
        hits.chain([values, Access { read_percent: 95, ..values }]).collect()
    }
}

fn accesses(
    arena: &mut Arena,
    settings: &Settings,
    tasks: &[Access],
    flyers: &[Flyer],
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let shape = Shape { len_bytes: settings.size_bytes, layout: FileOptions::new() };
    arena.fill(&shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let target = arena.target()?;
    let machine = Machine::look(target.parts());
    let mut contenders: Vec<Box<dyn Contender<Access>>> = vec![
        Box::new(Accesses::in_batches(arena, &settings.options)?),
        Box::new(Accesses::one_by_one(arena, &settings.options)?),
    ];
    if tasks.iter().any(|task| task.choice == Choice::Sequential) {
        contenders.push(Box::new(Accesses::without_read_ahead(arena, &settings.options)?));
    }
    for flyer in flyers {
        contenders.push(Box::new(Accesses::in_flight(flyer, arena, &settings.options)?));
    }
    let compares = tasks.iter().any(reads_random_pages);
    if compares {
        contenders.push(Box::new(Uncached::new(Box::new(Uring::new(arena.target()?)), settings.depth)));
        let runtimes = if matches!(settings.rivals, Rivals::None) { Vec::new() } else { uncached::all(&target) };
        contenders.extend(runtimes.into_iter().map(|reader| Box::new(Uncached::new(reader, settings.depth)) as Box<_>));
    }
    for (name, mapped) in [(PREAD, false), (MMAP, true)] {
        let (drives, file_name) = (arena.drives().to_owned(), arena.file_name().to_owned());
        let job = move |access: &Access| {
            let (drives, file_name) = (drives.clone(), file_name.clone());
            Job::Access { mapped, drives, file_name, access: *access }
        };
        contenders.push(Box::new(Held::new(name, &settings.helper, job).over_drives(arena.target()?)));
    }
    let measured = in_turns(&mut contenders, settings, tasks, cancel, stage)?;
    let baselines: &[&str] = if compares { &[URING_BY_HAND, PREAD, MMAP] } else { &[PREAD, MMAP] };
    Ok(Report { baselines, ..Report::new(machine, &measured) })
}

fn small_writes(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let mut filling = |done, total| stage(Stage::Filling(done, total));
    let (flat, machine) = arena.fill_with_flat(settings.size_bytes, cancel, &mut filling)?;
    let task = SmallWrites { op_bytes: VALUE_BYTES, cache_bytes: settings.cache_bytes, len_bytes: flat.len_bytes() };
    let path = flat.path().to_owned();
    let job = move |writes: &SmallWrites| Job::Write { path: path.clone(), writes: *writes };
    let mut contenders: Vec<Box<dyn Contender<SmallWrites>>> = vec![
        Box::new(WriteAt::new(arena, &settings.options, task)?),
        Box::new(Held::new(PWRITE, &settings.helper, job)),
    ];
    let measured = in_turns(&mut contenders, settings, &[task], cancel, stage)?;
    Ok(Report { baselines: &[PWRITE], ..Report::new(machine, &measured) })
}

fn in_turns<T: Task>(
    contenders: &mut Vec<Box<dyn Contender<T>>>,
    settings: &Settings,
    tasks: &[T],
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Vec<Measured<T>>> {
    contenders.retain(|contender| settings.rivals.include(contender.name()));
    let plans = tasks.iter().flat_map(|&task| settings.turns.plans(task, WARM_UP));
    rounds::run_each(contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel)
}

/// A contender that reads whole pages, all of them from drives, beside contenders with a cache.
pub(crate) struct Uncached {
    pub(crate) reader: Box<dyn Contender>,
    /// I/Os in flight on each drive, for a reader that has several.
    pub(crate) depth: u32,
}

impl Uncached {
    pub(crate) fn new(reader: Box<dyn Contender>, depth: u32) -> Uncached {
        Uncached { reader, depth }
    }
}

fn reads_random_pages(access: &Access) -> bool {
    access.choice == Choice::Uniform && access.op_bytes as usize == PAGE_BYTES && !access.writes()
}

impl Contender<Access> for Uncached {
    fn name(&self) -> &'static str {
        self.reader.name()
    }

    fn cache(&self) -> Cache {
        self.reader.cache()
    }

    fn prepare(&mut self, access: &Access) -> Result<Option<String>> {
        access.check()?;
        if !reads_random_pages(access) {
            return Ok(Some("it has no cache; measure it with cold reads of pages".to_owned()));
        }
        self.reader.prepare(&Workload { depth: self.depth, ..Workload::RANDOM_READ })
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.reader.run(slice)
    }

    fn lost(&self) -> Option<String> {
        self.reader.lost()
    }

    fn notes(&self) -> Vec<String> {
        self.reader.notes()
    }
}
