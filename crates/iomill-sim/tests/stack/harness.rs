//! Shared by the tests: rounds by seed, random machines and arrays, memory of chosen alignment.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;
use iomill::{Array, ArrayOptions, CreateOptions, PolicyKind, Topology};
pub use iomill_sim::testing::{drive, file_options};
use iomill_sim::{World, testing};

/// One round of a test.
pub struct Round {
    pub rng: Rng,
    pub world: World,
}

/// Runs a test as the environment asks: first the seeds that once failed, then `count` more.
pub fn rounds(test: &str, count: u64, once_failed: &[u64], body: impl Fn(&mut Round)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("IOMILL_SEED") {
        return round(test, seed, &body);
    }
    once_failed.iter().for_each(|&seed| round(test, seed, &body));
    match number("IOMILL_ROUNDS") {
        Some(times) => (0..count * times).for_each(|_| round(test, fastrand::u64(..), &body)),
        None => (0..count).for_each(|seed| round(test, seed, &body)),
    }
}

fn round(test: &str, seed: u64, body: &impl Fn(&mut Round)) {
    let again = format!("IOMILL_SEED={seed} cargo test -p iomill-sim --test all {test}");
    if std::env::var_os("IOMILL_SHOW").is_some() {
        // `eprintln!` is not used, because the test harness would hold its output back.
        std::io::stderr().write_all(format!("{again}\n").as_bytes()).unwrap();
    }
    let mut round = Round { rng: Rng::with_seed(seed), world: World::new(seed) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&mut round))) {
        eprintln!("{}\nseed {seed} failed; again: {again}", round.world.trace_tail());
        resume_unwind(panic);
    }
}

/// Nothing broke the machine's contracts, and nothing is in flight or open any more.
pub fn assert_tidy(world: &World) {
    assert_eq!(world.violations(), Vec::<String>::new());
    assert_eq!(world.abandoned(), 0, "requests were in flight when their engine was dropped");
    assert_eq!(world.in_flight(), 0);
    assert_eq!(world.open_files(), 0, "files left open");
}

/// Random options, with a cache or without.
pub fn options(rng: &mut Rng, world: &World) -> ArrayOptions {
    let options = bare_options(rng, world);
    match rng.u8(0..5) {
        0 => options.cache_bytes(0),
        1 => options,
        _ => tiny_cache(rng, options),
    }
}

/// A cache of few sets, so that pages come and go. Sometimes the hash is so bad that all pages of a node are in one
/// set.
pub fn tiny_cache(rng: &mut Rng, options: ArrayOptions) -> ArrayOptions {
    // This draws nothing, so that seeds that once failed keep their meaning.
    let nodes = [1, 2, 1, 4][(rng.get_seed() >> 20) as usize % 4];
    let ways = [4, 8, 12, 32][rng.usize(0..4)];
    let sets = rng.usize(1..9);
    let policy = PolicyKind::all().nth(rng.usize(0..PolicyKind::all().len())).unwrap_or_default();
    let mask = [u64::MAX, u64::MAX, 0, 0xFF << 32][rng.usize(0..4)];
    let options = options
        .with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes)))
        .with_cache(|cache| cache.policy(policy).hash_mask(mask));
    options.with_cache(|cache| cache.set_pages(ways)).cache_bytes((sets.max(nodes) * ways * PAGE) as u64)
}

/// Random options without a cache, for tests of the code between calls and drives.
pub fn uncached_options(rng: &mut Rng, world: &World) -> ArrayOptions {
    bare_options(rng, world).cache_bytes(0)
}

fn bare_options(rng: &mut Rng, world: &World) -> ArrayOptions {
    let depth = [1, 2, 3, 8, 32][rng.usize(0..5)];
    ArrayOptions::new().platform(world.platform()).depth(depth)
}

/// A machine of one to five drives with an array over them.
pub fn machine(round: &mut Round) -> Array {
    machine_with(round, options)
}

/// The same with other options.
pub fn machine_with(round: &mut Round, options: fn(&mut Rng, &World) -> ArrayOptions) -> Array {
    let drives = round.rng.usize(1..6);
    for index in 0..drives {
        let model = drive(&mut round.rng);
        round.world.add_drive(format!("/sim/{index}"), model);
    }
    let weights: Vec<u32> = (0..drives).map(|_| round.rng.u32(1..12)).collect();
    options(&mut round.rng, &round.world)
        .create_with(round.world.paths(), &CreateOptions::new().weights(weights))
        .unwrap()
}

/// Opens the array by one of its drives.
pub fn open(rng: &mut Rng, world: &World) -> iomill::Result<Array> {
    open_with(rng, world, options)
}

/// The same with other options.
pub fn open_with(rng: &mut Rng, world: &World, options: fn(&mut Rng, &World) -> ArrayOptions) -> iomill::Result<Array> {
    options(rng, world).open(world.path(rng.usize(0..world.drives())))
}

/// Memory within a larger slab, so that its alignment can be chosen and stray writes are seen.
pub struct Memory {
    slab: Vec<u8>,
    start: usize,
    len: usize,
}

const GUARD: u8 = 0xA5;
const PAGE: usize = 4096;

impl Memory {
    /// `len` bytes at an address that is a page's, a sector's, or any other.
    pub fn new(rng: &mut Rng, len: usize) -> Memory {
        let slab = vec![GUARD; len + 3 * PAGE];
        let first = PAGE + (slab.as_ptr() as usize).wrapping_neg() % PAGE;
        let shift = match rng.u8(0..4) {
            0 | 1 => 0,
            2 => 512 * rng.usize(0..8),
            _ => rng.usize(0..PAGE),
        };
        Memory { slab, start: first + shift, len }
    }

    pub fn holding(rng: &mut Rng, bytes: &[u8]) -> Memory {
        let mut memory = Memory::new(rng, bytes.len());
        memory.get_mut().copy_from_slice(bytes);
        memory
    }

    pub fn get(&self) -> &[u8] {
        &self.slab[self.start..self.start + self.len]
    }

    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.slab[self.start..self.start + self.len]
    }

    /// Checks that nothing outside was touched.
    pub fn check(&self) {
        let (before, behind) = (&self.slab[..self.start], &self.slab[self.start + self.len..]);
        let untouched = |bytes: &[u8]| *bytes == [GUARD; 4 * PAGE][..bytes.len()];
        assert!(untouched(before) && untouched(behind), "memory around a buffer was written to");
    }
}

pub fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// A length: mostly short, sometimes whole pages, seldom long.
pub fn length(rng: &mut Rng) -> usize {
    match rng.u8(0..10) {
        0 => 0,
        1..4 => rng.usize(1..300),
        4..6 => rng.usize(1..20_000),
        6..8 => PAGE * rng.usize(1..20),
        8 => 512 * rng.usize(1..100),
        _ => rng.usize(1..700_000),
    }
}

/// An offset of at most `end`. Every other one is at a page's start.
pub fn offset(rng: &mut Rng, end: usize) -> usize {
    let offset = rng.usize(0..=end);
    if rng.bool() { offset - offset % PAGE } else { offset }
}

/// Steps the array until the future resolves. A simulation that does not end has hung.
pub fn block_on<F: Future>(array: &Array, future: F) -> F::Output {
    testing::block_on(array, future).unwrap_or_else(|hung| panic!("{hung}"))
}

/// Fails with the first difference, so that the message helps.
pub fn assert_same(got: &[u8], wanted: &[u8], what: impl FnOnce() -> String) {
    assert_eq!(got.len(), wanted.len(), "length of {}", what());
    // Compares whole slices first: byte by byte is slow without optimisation.
    if got != wanted
        && let Some(at) = got.iter().zip(wanted).position(|(got, wanted)| got != wanted)
    {
        let wrong = got.iter().zip(wanted).filter(|(got, wanted)| got != wanted).count();
        let (got, wanted) = (got[at], wanted[at]);
        panic!("{}: byte {at} is {got}, not {wanted}; {wrong} bytes differ", what());
    }
}
