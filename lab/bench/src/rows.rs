//! Random rows of a user's own file, by iomill and by the usual ways of today's programs. The question is the speed of
//! a gather.
//!
//! Goals: one run answers for rows on drives and for rows in memory; the file is only read. Non-goals: data of our own,
//! arrays ([`crate::limited`], [`crate::warm`]); popular rows.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use iomill::{Error, PlainOptions, Result, RuntimeOptions};
use iomill_contenders::rows::{Loops, ReadRows, RowReads, Way};

use crate::bench::Stage;
use crate::contender::{Cache, Contender, IOMILL_READ_ROWS, MMAP, MMAP_RANDOM, Sample, Slice, URING_BY_HAND};
use crate::held::{self, Held, Helper, Job};
use crate::limited::Uncached;
use crate::machine::{self, Machine};
use crate::report::{Report, Row};
use crate::rivals::uring::Uring;
use crate::rounds::{self, Measured, Turns, WARM_UP};
use crate::target::Target;
use crate::warm::CACHE_OVER_SIZE;
use crate::workload::Workload;
use iomill_cli::human;

/// Cold reads: the file's length over the memory, if no memory is given.
const SIZE_OVER_CACHE: u64 = 8;
/// The minimum of that memory, unless half of the file is less. The kernel may read several MiB ahead for one page of a
/// mapping, and kills a process that has no memory for these.
const CACHE_BYTES_USUAL: u64 = 16 << 20;
/// The divisor of the available memory that gives the memory of a cold cache, if none is given.
const AVAILABLE_OVER_CACHE: u64 = 4;
/// The contenders with a list of numbers at the same time: iomill, and the rivals in processes of their own.
const LISTS: u64 = 4;
/// Memory of all processes beside cache, lists and rows.
const BESIDES_BYTES: u64 = 24 << 20;
/// The smallest memory for cold reads.
const CACHE_BYTES_MIN: u64 = 1 << 20;

const WAYS: [Way; 3] = [Way::Mapped, Way::MappedRandom, Way::Called];

/// How to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file.
    pub path: PathBuf,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Rows of a gather.
    pub batch: u32,
    /// Memory for cold reads, the same for all contenders. The default is an eighth of the file, and more for a short
    /// file. It is at most a quarter of the available memory.
    pub cache_bytes: Option<u64>,
    /// How iomill opens the file. The measurement sets the cache's size.
    pub options: RuntimeOptions,
    /// I/Os in flight, for io_uring by hand.
    pub depth: u32,
    /// How turns are taken.
    pub turns: Turns,
    /// Starts the processes of contenders with limited memory.
    pub helper: Helper,
}

impl Settings {
    /// The cold reads of a file, with this much memory available.
    fn cold(&self, len_bytes: u64, there: u64) -> Result<RowReads> {
        let usual = (len_bytes / SIZE_OVER_CACHE).max(CACHE_BYTES_USUAL).min(len_bytes / 2);
        let cache_bytes = self.cache_bytes.unwrap_or(usual.min(there / AVAILABLE_OVER_CACHE));
        let cache = human::size(cache_bytes);
        if cache_bytes < CACHE_BYTES_MIN {
            let least = human::size(CACHE_BYTES_MIN).replace(' ', "");
            let why = format!("give a --cache of at least {least}, and a file at least twice as long");
            return Err(Error::invalid(format!("memory for {cache}"), why));
        }
        if len_bytes / 2 < cache_bytes {
            let what = format!("cold reads of a file of {} with memory for {cache}", human::size(len_bytes));
            let why = "most of them would find their rows in memory; give a smaller --cache, or a file at least twice as long";
            return Err(Error::invalid(what, why));
        }
        let reads = RowReads { row_bytes: self.row_bytes, batch: self.batch, len_bytes, cache_bytes };
        let needed = self.memory_bytes(&reads);
        if needed > there {
            let (needed, there) = (human::size(needed), human::size(there));
            let why = format!(
                "all processes together take {needed}, and {there} is available; give a smaller --cache, or more memory"
            );
            return Err(Error::invalid(format!("memory for {cache}"), why));
        }
        Ok(reads)
    }

    /// Memory of all processes in cold reads, in bytes.
    fn memory_bytes(&self, reads: &RowReads) -> u64 {
        let threads = self.turns.threads.iter().max().map_or(1, |&threads| threads as u64);
        let gathers = threads.saturating_mul(u64::from(reads.batch)).saturating_mul(reads.row_bytes.into());
        let lists = LISTS * reads.list_bytes();
        reads.cache_bytes.saturating_add(lists).saturating_add(gathers).saturating_add(BESIDES_BYTES)
    }
}

/// Measures on the file. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Report> {
    // A file that iomill cannot open is an error before anything else.
    let runtime = settings.options.clone().cache_bytes(0).start()?;
    let len_bytes = PlainOptions::new().runtime(&runtime).open(&settings.path)?.len();
    let cold = settings.cold(len_bytes, machine::available_memory_bytes()?)?;
    let target = Target::plain(settings.path.clone(), len_bytes)?;
    let machine = Machine::look(target.parts());
    let mut measured = turns(from_drives(settings, &target), cold, settings, cancel, stage)?;
    if measured.iter().all(|one| !one.cancelled && one.failed.is_none()) {
        let warm = RowReads { cache_bytes: len_bytes.saturating_mul(CACHE_OVER_SIZE), ..cold };
        measured.extend(turns(from_memory(settings), warm, settings, cancel, stage)?);
    }
    Ok(Report { baselines: &[MMAP, MMAP_RANDOM, URING_BY_HAND], ..Report::new(machine, &measured) })
}

fn turns(
    mut contenders: Vec<Box<dyn Contender<RowReads>>>,
    reads: RowReads,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Vec<Measured<RowReads>>> {
    let plans = settings.turns.plans(reads, WARM_UP);
    rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel)
}

fn from_drives(settings: &Settings, target: &Target) -> Vec<Box<dyn Contender<RowReads>>> {
    let (path, options) = (&settings.path, &settings.options);
    let mut contenders: Vec<Box<dyn Contender<RowReads>>> = vec![
        Box::new(ReadRows::new(path.clone(), options.clone(), Cache::Held)),
        Box::new(Uncached::new(Box::new(Uring::new(target.clone())), settings.depth)),
    ];
    for way in WAYS {
        let path = path.clone();
        let job = move |reads: &RowReads| Job::Rows { path: path.clone(), way, reads: *reads };
        contenders.push(Box::new(Held::new(way.name(), &settings.helper, job).over_drives(target.clone())));
    }
    // Without a group the rivals still take part, with all of the machine's memory.
    if held::why_not().is_some() {
        for way in WAYS {
            contenders.push(Box::new(Loops::new(way, path.clone(), Cache::Cold)));
        }
    }
    contenders
}

fn from_memory(settings: &Settings) -> Vec<Box<dyn Contender<RowReads>>> {
    let path = &settings.path;
    vec![
        Box::new(ReadRows::new(path.clone(), settings.options.clone(), Cache::Warm)),
        Box::new(Loops::new(Way::Mapped, path.clone(), Cache::Warm)),
        Box::new(Loops::new(Way::Called, path.clone(), Cache::Warm)),
    ]
}

impl Contender<RowReads> for Uncached {
    fn name(&self) -> &'static str {
        self.reader.name()
    }

    fn cache(&self) -> Cache {
        self.reader.cache()
    }

    fn prepare(&mut self, reads: &RowReads) -> Result<Option<String>> {
        let workload = Workload { depth: self.depth, block_bytes: reads.pages_bytes(), ..Workload::RANDOM_READ };
        if reads.len_bytes < u64::from(workload.block_bytes) {
            return Ok(Some("the file is shorter than the pages of one row".to_owned()));
        }
        self.reader.prepare(&workload)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.reader.run(slice)
    }

    fn lost(&self) -> Option<String> {
        self.reader.lost()
    }

    fn notes(&self) -> Vec<String> {
        let pages = "reads as many whole pages as a row takes, and copies nothing out of them".to_owned();
        [pages].into_iter().chain(self.reader.notes()).collect()
    }
}

/// The result in words: the time of a gather of `batch` rows, by iomill and by the fastest of its rivals in the same
/// memory. A mapping without advice may take hundreds of times as long as the fastest one, because the kernel reads
/// many pages ahead for each row.
pub fn verdict(report: &Report, batch: u32) -> Vec<String> {
    [false, true].into_iter().filter_map(|is_warm| sentence(report, batch, is_warm)).collect()
}

fn sentence(report: &Report, batch: u32, is_warm: bool) -> Option<String> {
    let place = if is_warm { "in memory" } else { "on the drive" };
    let is_there = |row: &&Row| (row.cache == Cache::Warm.name()) == is_warm;
    let time_us = |row: &Row| f64::from(batch) * row.threads as f64 / row.ops_per_s.max(1e-9) * 1e6;
    let fastest = |cache: &str| {
        let rivals = report.results.iter().filter(|row| row.contender != IOMILL_READ_ROWS && row.cache == cache);
        rivals.filter(is_there).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
    };
    let ours = report.results.iter().filter(is_there).find(|row| row.contender == IOMILL_READ_ROWS)?;
    let (theirs, memory) = match fastest(&ours.cache) {
        Some(theirs) => (theirs, "in the same memory"),
        None => (fastest(Cache::Cold.name())?, "with all of the machine's memory"),
    };
    let (our_us, their_us) = (time_us(ours), time_us(theirs));
    let mut sentence = format!(
        "A gather of {batch} rows {place} takes {} by iomill and {} by {}, the fastest rival {memory}: {} as fast.",
        human::time_us(our_us),
        human::time_us(their_us),
        theirs.contender,
        human::ratio(their_us / our_us.max(1e-9))
    );
    if theirs.cache != ours.cache {
        sentence += " So this says little of a file that fits into it; run as root for equal memory.";
    }
    if let Some(by_hand) = fastest(Cache::Direct.name()) {
        let took = human::time_us(time_us(by_hand));
        sentence += &format!(" {} reads the pages alone, without a cache, in {took}.", by_hand.contender);
    }
    Some(sentence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::PREAD;
    use crate::rounds::Outcome;
    use std::time::Duration;

    /// The sentence about these contenders, with their rows a second.
    fn said(cold: &[(&'static str, Cache, u64)], warm: &[(&'static str, Cache, u64)]) -> Vec<String> {
        let reads = RowReads { row_bytes: 512, batch: 4096, len_bytes: 1 << 30, cache_bytes: 1 << 27 };
        let turns = Turns { threads: vec![1], rounds: 1, slice: WARM_UP };
        let measured = [cold, warm].map(|outcomes| {
            let outcomes = outcomes.iter().map(|&(contender, cache, ops)| {
                let sample = Sample { ops, wall: Duration::from_secs(1), ..Sample::empty().unwrap() };
                Outcome { contender, cache, samples: vec![sample], notes: Vec::new() }
            });
            Measured { outcomes: outcomes.collect(), ..Measured::of(turns.plans(reads, WARM_UP).next().unwrap()) }
        });
        verdict(&Report::new(Machine::default(), &measured), 4096)
    }

    #[test]
    fn the_verdict_compares_with_the_fastest_rival_in_the_same_memory() {
        let cold = [
            (IOMILL_READ_ROWS, Cache::Held, 409_600),
            (URING_BY_HAND, Cache::Direct, 819_200),
            (MMAP, Cache::Held, 1_000),
            (MMAP_RANDOM, Cache::Held, 40_000),
            (PREAD, Cache::Held, 40_960),
            // It has more memory.
            (MMAP_RANDOM, Cache::Cold, 200_000),
        ];
        let warm = [
            (IOMILL_READ_ROWS, Cache::Warm, 4_096_000),
            (PREAD, Cache::Warm, 1_024_000),
            (MMAP, Cache::Warm, 2_048_000),
        ];
        assert_eq!(
            said(&cold, &warm),
            [
                "A gather of 4096 rows on the drive takes 10.0 ms by iomill and 100 ms by pread, the fastest rival in the same \
                 memory: 10.00x as fast. uring-by-hand reads the pages alone, without a cache, in 5.0 ms.",
                "A gather of 4096 rows in memory takes 1.0 ms by iomill and 2.0 ms by mmap, the fastest rival in the same memory: \
                 2.00x as fast.",
            ]
        );
        // The line of a gather from drives needs iomill and a rival there.
        assert_eq!(said(&cold[..1], &warm).len(), 1);
        assert_eq!(said(&cold[1..], &warm).len(), 1);
    }

    #[test]
    fn the_verdict_says_where_memory_is_not_equal() {
        let cold =
            [(IOMILL_READ_ROWS, Cache::Held, 409_600), (MMAP, Cache::Cold, 4_096), (MMAP_RANDOM, Cache::Cold, 40_960)];
        assert_eq!(
            said(&cold, &[]),
            [
                "A gather of 4096 rows on the drive takes 10.0 ms by iomill and 100 ms by mmap-random, the fastest rival with all \
              of the machine's memory: 10.00x as fast. So this says little of a file that fits into it; run as root for equal \
              memory."
            ]
        );
    }

    /// A gather of `batch` rows with the default memory.
    fn settings(batch: u32) -> Settings {
        let helper = Helper { program: "true".into(), arguments: Vec::new() };
        let turns = Turns { threads: vec![1], rounds: 1, slice: WARM_UP };
        let (path, options) = ("f".into(), RuntimeOptions::new());
        Settings { path, row_bytes: 512, batch, cache_bytes: None, options, depth: 32, turns, helper }
    }

    #[test]
    fn memory_is_an_eighth_of_the_file_unless_given() {
        let settings = settings(64);
        for (len, cache) in [(800 << 20, 100 << 20), (80 << 20, 16 << 20), (20 << 20, 10 << 20)] {
            assert_eq!(settings.cold(len, 1 << 30).unwrap().cache_bytes, cache);
        }
        let says = |settings: &Settings, len| settings.cold(len, 1 << 30).unwrap_err().to_string();
        assert!(says(&settings, 1 << 20).contains("at least 1MiB"), "{}", says(&settings, 1 << 20));
        let settings = Settings { cache_bytes: Some(6 << 20), ..settings };
        assert_eq!(settings.cold(12 << 20, 1 << 30).unwrap().cache_bytes, 6 << 20);
        assert!(says(&settings, 11 << 20).contains("twice as long"), "{}", says(&settings, 11 << 20));
    }

    #[test]
    fn memory_is_what_is_available() {
        let settings = settings(4096);
        let cold = |settings: &Settings, there: u64| settings.cold(1 << 30, there << 20);
        assert_eq!(cold(&settings, 1024).unwrap().cache_bytes, 128 << 20);
        // A run in a control group of 128 MiB.
        assert_eq!(cold(&settings, 120).unwrap().cache_bytes, 30 << 20);
        let said = cold(&settings, 64).unwrap_err().to_string();
        assert!(said.contains("take 74 MiB, and 64 MiB is available"), "{said}");
        let settings = Settings { cache_bytes: Some(70 << 20), ..settings };
        assert_eq!(cold(&settings, 129).unwrap().cache_bytes, 70 << 20);
        assert!(cold(&settings, 127).unwrap_err().to_string().contains("smaller --cache"));
        let settings = Settings { turns: Turns { threads: vec![1, 16], ..settings.turns.clone() }, ..settings };
        assert!(cold(&settings, 129).is_err());
    }
}
