//! A hit beside the least that such a cache must do: `cargo bench -p iomill --bench hit_limit [-- GIB [zipf]]`.
//!
//! `least` is a table of hints, a table of keys and versions, and huge pages. It looks, proves and copies as a hit
//! does, and notes the page. It has no file, no length, no closing, no counters and no policy. So no cache that finds
//! pages in this way is faster than it. All ways copy the same 128 bytes, in short turns one after the other. The
//! figures are medians over the turns.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use iomill::{Array, ArrayOptions, File, FileOptions};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

const PAGE: usize = 4096;
const ROW: usize = 128;
/// Reads of a turn.
const TURN: usize = 40_000;
/// Lists of places, which the turns take in order. Together they read more than the processor's caches hold.
const LISTS: usize = 128;
const TURNS: usize = 60;

/// Memory that is there, with small or huge pages.
fn memory(len: usize, pages: Advice) -> &'static mut [u8] {
    // SAFETY: a new mapping, which is never unmapped.
    let all = unsafe {
        let start =
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).unwrap();
        // Only advice: without huge pages the figures are those of small ones.
        let _advised = madvise(start, len, pages);
        std::slice::from_raw_parts_mut(start.cast::<u8>(), len)
    };
    all.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    all
}

/// The least: hints, keys with versions, and pages.
struct Least {
    hints: Vec<u32>,
    frames: Vec<[AtomicU64; 2]>,
    bytes: &'static [u8],
    noted: [u64; 64],
    count: usize,
}

impl Least {
    #[inline(always)]
    fn read(&mut self, out: &mut [u8; ROW], place: u64) {
        let (page, within) = (place / PAGE as u64, place as usize % PAGE);
        let frame = self.hints[page as usize] as usize;
        let [key, version] = &self.frames[frame];
        let seen = version.load(Ordering::Acquire);
        assert!(seen & 1 == 0 && key.load(Ordering::Relaxed) == page);
        out.copy_from_slice(&self.bytes[frame * PAGE + within..][..ROW]);
        fence(Ordering::Acquire);
        assert_eq!(version.load(Ordering::Relaxed), seen);
        self.noted[self.count % 64] = page;
        self.count += 1;
    }
}

fn file(array: &Array, len: usize) -> File {
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    let chunk = vec![1; 1 << 20];
    (0..len).step_by(1 << 20).for_each(|at| file.write_at(&chunk, at as u64).unwrap());
    file.sync().unwrap();
    let mut chunk = chunk;
    (0..len).step_by(1 << 20).for_each(|at| assert_eq!(file.read_at(&mut chunk, at as u64).unwrap(), 1 << 20));
    file
}

fn places(rows: u64, is_zipf: bool) -> Vec<u64> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // The inverse of a zipf law with an exponent near 1, and its ranks scattered over the rows.
    let rank = |number: u64| (rows as f64).powf((number >> 11) as f64 / (1u64 << 53) as f64) as u64;
    let row = |number| if is_zipf { rank(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { number };
    (0..LISTS * TURN).map(|_| row(next()) % rows * ROW as u64).collect()
}

/// A place that depends on the bytes before.
fn after(place: u64, out: &[u8; ROW]) -> u64 {
    place ^ (u64::from(out[5] & 2) << 6)
}

/// What is measured, in this order.
const WAYS: [&str; 8] = [
    "small pages",
    "huge pages",
    "least",
    "read_at",
    "pin",
    "read_many of 256",
    "chain, small pages",
    "chain, read_at",
];

/// What the ways read from and copy to.
struct Sides {
    file: File,
    small: &'static [u8],
    least: Least,
    out: [u8; ROW],
    many: Vec<u8>,
}

impl Sides {
    /// Reads all places by a way. Returns nanoseconds per read.
    fn turn(&mut self, way: usize, places: &[u64]) -> f64 {
        let Sides { file, small, least, out, many } = self;
        let begin = Instant::now();
        match way {
            0 => places.iter().for_each(|&place| {
                out.copy_from_slice(&small[place as usize..][..ROW]);
                black_box(&out);
            }),
            1 => places.iter().for_each(|&place| {
                out.copy_from_slice(&least.bytes[place as usize..][..ROW]);
                black_box(&out);
            }),
            2 => places.iter().for_each(|&place| {
                least.read(out, place);
                black_box(&out);
            }),
            3 => places.iter().for_each(|&place| {
                file.read_at(out, place).unwrap();
                black_box(&out);
            }),
            4 => places.iter().for_each(|&place| {
                let page = file.pin(place / PAGE as u64).unwrap();
                out.copy_from_slice(&page[place as usize % PAGE..][..ROW]);
                black_box(&out);
            }),
            5 => places.chunks_exact(256).for_each(|places| {
                file.read_many(many, places, ROW).unwrap();
                black_box(&many);
            }),
            6 => places.iter().for_each(|&place| {
                let place = after(place, out) as usize;
                out.copy_from_slice(&small[place..][..ROW]);
                black_box(&out);
            }),
            _ => places.iter().for_each(|&place| {
                let place = after(place, out);
                file.read_at(out, place).unwrap();
                black_box(&out);
            }),
        }
        begin.elapsed().as_nanos() as f64 / places.len() as f64
    }
}

/// Sorted figures of all ways, which take turns.
fn measure(sides: &mut Sides, places: &[u64]) -> Vec<Vec<f64>> {
    let mut figures = vec![Vec::new(); WAYS.len()];
    for number in 0..TURNS + 3 {
        for way in 0..WAYS.len() {
            // Each way comes after each other way.
            let way = (way + number) % WAYS.len();
            // Each turn has a list of its own: what another turn has just read is in the processor's caches.
            let list = (number * WAYS.len() + way) % LISTS;
            let figure = sides.turn(way, &places[list * TURN..][..TURN]);
            if number >= 3 {
                figures[way].push(figure);
            }
        }
    }
    figures.iter_mut().for_each(|figures| figures.sort_by(f64::total_cmp));
    figures
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let gib = arguments.first().map_or(2, |gib| gib.parse().unwrap());
    let len = gib << 30;
    let dir = tempfile::tempdir_in(".").unwrap();
    // Room for all: a page has only some frames to be in.
    let array = ArrayOptions::new().cache_bytes(4 * len as u64).create([dir.path()]).unwrap();
    let pages = len / PAGE;
    let least = Least {
        hints: (0..pages as u32).collect(),
        frames: (0..pages as u64).map(|page| [AtomicU64::new(page), AtomicU64::new(4)]).collect(),
        bytes: memory(len, Advice::LinuxHugepage),
        noted: [0; 64],
        count: 0,
    };
    let (file, small) = (file(&array, len), &*memory(len, Advice::LinuxNoHugepage));
    let mut sides = Sides { file, small, least, out: [0; ROW], many: vec![0; 256 * ROW] };
    let places = places((len / ROW) as u64, arguments.iter().any(|argument| argument == "zipf"));
    let figures = measure(&mut sides, &places);
    println!("{:20} {:>8} {:>8} {:>8} {:>12} {:>12}", "", "ns", "best 10%", "x least", "x small", "x huge");
    let median = |way: usize| figures[way][TURNS / 2];
    for (way, name) in WAYS.iter().enumerate() {
        let small = if way >= 6 { 6 } else { 0 };
        let ratio = |to| median(way) / median(to);
        let tenth = figures[way][TURNS / 10];
        let (ns, least, small, huge) = (median(way), ratio(2), ratio(small), ratio(1));
        println!("{name:20} {ns:8.0} {tenth:8.0} {least:7.2}x {small:11.2}x {huge:11.2}x");
    }
}
