//! What checksums cost: `cargo bench -p iomill --bench checksums [-- [--mib M] [--only NAME] DIR...]`.
//!
//! Two files in one array, one with checksums and one without, take turns. A turn does the same operations on one of
//! them. Figures are the processor time of the process per operation (user and system), medians of the turns, and the
//! median of the ratios of neighbouring turns. Each DIR is a drive: RAM disks show the processor's share. `--mib` is
//! the size of a file. The bytes are random, and long writes come from memory that drives can read. Non-goals: latency,
//! and drives that are the limit.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::Instant;

use iomill::{Array, ArrayOptions, Buffer, File, FileOptions, When, block_on};

const PAGE: usize = 4096;
const ROW: usize = 128;
const CHUNK: usize = 4 << 20;
/// Rows of a gather.
const BATCH: usize = 256;
const NAMES: [&str; 2] = ["without", "with"];

/// An operation: its name, the goal for its ratio, the cache in MiB (none: that of both files), turns, and a turn.
struct Case {
    name: &'static str,
    goal: f64,
    cache_mib: Option<u64>,
    turns: usize,
    turn: fn(&mut Side) -> usize,
}

const CASES: [Case; 9] = [
    Case { name: "hit", goal: 1.0, cache_mib: None, turns: 31, turn: hits },
    Case { name: "miss", goal: 1.05, cache_mib: Some(32), turns: 31, turn: misses },
    Case { name: "gather-miss", goal: 1.05, cache_mib: Some(32), turns: 31, turn: gathers },
    Case { name: "future-miss", goal: 1.05, cache_mib: Some(32), turns: 31, turn: futures },
    Case { name: "put", goal: 1.1, cache_mib: Some(0), turns: 9, turn: puts },
    Case { name: "put-cached", goal: 1.1, cache_mib: Some(32), turns: 9, turn: puts },
    Case { name: "sequential-write", goal: 1.1, cache_mib: Some(32), turns: 9, turn: sequential_writes },
    Case { name: "write-sync", goal: 1.25, cache_mib: Some(32), turns: 31, turn: synced_writes },
    Case { name: "write-back", goal: 1.15, cache_mib: Some(32), turns: 21, turn: random_writes },
];

/// One of the files.
struct Side {
    array: Array,
    has_sums: bool,
    file: File,
    rng: fastrand::Rng,
    /// Random bytes, and memory to read to.
    bytes: Buffer,
    out: Vec<u8>,
    len: usize,
}

impl Side {
    fn page(&mut self) -> u64 {
        self.rng.usize(..self.len / PAGE) as u64 * PAGE as u64
    }

    fn place(&mut self) -> u64 {
        self.rng.usize(..self.len / ROW) as u64 * ROW as u64
    }
}

fn options(has_sums: bool) -> FileOptions {
    FileOptions::new().checksums(has_sums)
}

fn hits(side: &mut Side) -> usize {
    let places: Vec<u64> = (0..100_000).map(|_| side.place()).collect();
    for place in &places {
        assert_eq!(side.file.read_at(&mut side.out[..ROW], *place).unwrap(), ROW);
    }
    places.len()
}

fn misses(side: &mut Side) -> usize {
    for _ in 0..10_000 {
        let page = side.page();
        assert_eq!(side.file.read_at(&mut side.out[..PAGE], page).unwrap(), PAGE);
    }
    10_000
}

fn gathers(side: &mut Side) -> usize {
    for _ in 0..100 {
        let places: Vec<u64> = (0..BATCH).map(|_| side.place()).collect();
        side.file.read_many(&mut side.out[..BATCH * ROW], &places, ROW).unwrap();
    }
    100 * BATCH
}

fn futures(side: &mut Side) -> usize {
    for _ in 0..100 {
        let pages: Vec<u64> = (0..64).map(|_| side.page()).collect();
        let reads: Vec<_> = pages.iter().map(|at| side.file.read_at_async(vec![0; PAGE], *at)).collect();
        reads.into_iter().for_each(|read| assert_eq!(block_on(read).unwrap().unwrap().1, PAGE));
    }
    6400
}

fn write_all(file: &File, side: &Side) -> usize {
    (0..side.len).step_by(CHUNK).for_each(|at| file.write_at(&side.bytes[..CHUNK], at as u64).unwrap());
    side.len / PAGE
}

fn puts(side: &mut Side) -> usize {
    let draft = side.array.draft(&options(side.has_sums)).unwrap();
    draft.file().preallocate(side.len as u64).unwrap();
    let pages = write_all(draft.file(), side);
    draft.publish("put", When::Always).unwrap();
    side.array.delete("put").unwrap();
    pages
}

fn sequential_writes(side: &mut Side) -> usize {
    let pages = write_all(&side.file, side);
    side.file.sync().unwrap();
    pages
}

fn synced_writes(side: &mut Side) -> usize {
    for _ in 0..300 {
        let place = side.place();
        side.file.write_at(&side.bytes[..ROW], place).unwrap();
        side.file.sync().unwrap();
    }
    300
}

fn random_writes(side: &mut Side) -> usize {
    for _ in 0..20_000 {
        let page = side.page();
        side.file.write_at(&side.bytes[..PAGE], page).unwrap();
    }
    side.file.sync().unwrap();
    20_000
}

/// The processor time of the process so far, in nanoseconds.
fn used() -> f64 {
    // SAFETY: `getrusage` fills the structure, for which zeros are valid.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn measure(case: &Case, sides: &mut [Side; 2]) {
    let (mut cpu, mut wall) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for turn in 0..case.turns + 1 {
        // Each is first in every other turn.
        for at in [turn % 2, 1 - turn % 2] {
            let (used_before, begin) = (used(), Instant::now());
            let operations = (case.turn)(&mut sides[at]) as f64;
            if turn > 0 {
                cpu[at].push((used() - used_before) / operations);
                wall[at].push(begin.elapsed().as_nanos() as f64 / operations);
            }
        }
    }
    let ratio = |figures: &[Vec<f64>; 2]| median(figures[0].iter().zip(&figures[1]).map(|(a, b)| b / a).collect());
    let (ratio, time) = (ratio(&cpu), ratio(&wall));
    let [without, with] = cpu.map(median);
    println!("{:18} {without:10.0} {with:10.0} {ratio:8.3} {:8.2} {time:8.3}", case.name, case.goal);
}

fn run(case: &Case, drives: &[PathBuf], len: usize) {
    let both = 4 * len as u64;
    let cache = case.cache_mib.map_or(both, |mib| mib << 20);
    let array = ArrayOptions::new().cache_bytes(cache).open_at(drives.to_vec()).unwrap();
    let mut sides = [false, true].map(|has_sums| {
        let file = array.open_file(NAMES[usize::from(has_sums)]).unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut bytes = array.buffer(CHUNK).unwrap();
        rng.fill(&mut bytes);
        let out = vec![0; BATCH * ROW];
        Side { array: array.clone(), has_sums, file, rng, bytes, out, len }
    });
    if case.cache_mib.is_none() {
        let mut out = vec![0; CHUNK];
        for side in &sides {
            (0..len).step_by(CHUNK).for_each(|at| assert_eq!(side.file.read_at(&mut out, at as u64).unwrap(), CHUNK));
        }
    }
    measure(case, &mut sides);
    sides.into_iter().for_each(|side| side.file.close().unwrap());
    array.close().unwrap();
}

fn main() {
    let (mut drives, mut mib, mut only) = (Vec::new(), 512, None);
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--mib" => mib = arguments.next().unwrap().parse().unwrap(),
            "--only" => only = arguments.next(),
            _ => drives.push(PathBuf::from(argument)),
        }
    }
    if drives.is_empty() {
        drives.push(PathBuf::from("."));
    }
    let made: Vec<_> = drives.iter().map(|drive| tempfile::tempdir_in(drive).unwrap()).collect();
    let drives: Vec<PathBuf> = made.iter().map(|made| made.path().to_owned()).collect();
    let (len, mut bytes, mut rng) = (mib << 20, vec![0; CHUNK], fastrand::Rng::with_seed(5));
    let array = ArrayOptions::new().cache_bytes(0).create(drives.clone()).unwrap();
    for has_sums in [false, true] {
        let file = array.create_file(NAMES[usize::from(has_sums)], &options(has_sums)).unwrap();
        for at in (0..len).step_by(CHUNK) {
            rng.fill(&mut bytes);
            file.write_at(&bytes, at as u64).unwrap();
        }
        file.close().unwrap();
    }
    array.close().unwrap();
    println!("{:18} {:>10} {:>10} {:>8} {:>8} {:>8}", "ns CPU", NAMES[0], NAMES[1], "ratio", "goal", "time");
    for case in CASES.iter().filter(|case| only.as_deref().is_none_or(|only| only == case.name)) {
        run(case, &drives, len);
    }
}
