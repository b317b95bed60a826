//! Whole pages out of the cache, to memory that begins anywhere in a page: `cargo bench -p iomill --bench page_copies`.
//!
//! `memcpy` is the C library's copy of the same number of pages from memory of their own. The C library's allocator begins large vectors 16 bytes
//! behind a page's edge. There some processors take six times as long for the instruction that `memcpy` uses (`sys::copy`). The figures are
//! nanoseconds per page, medians over short turns one after the other.

#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use iomill::{Array, ArrayOptions, File, FileOptions};

const PAGE: usize = 4096;
const PAGES: usize = 16_384;
/// Pages of a turn, which fill the memory that they are copied to.
const TURN: usize = 256;
const TURNS: usize = 400;
/// How far behind a page's edge the memory begins.
const BEHIND: [usize; 7] = [0, 1, 16, 32, 64, 2048, 4080];

fn file(array: &Array) -> File {
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    let mut all = vec![1; PAGES * PAGE];
    file.write_at(&all, 0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.read_at(&mut all, 0).unwrap(), PAGES * PAGE);
    file
}

/// Nanoseconds for each of the pages.
fn timed(pages: &[usize], mut copy: impl FnMut(usize, usize)) -> f64 {
    let begin = Instant::now();
    pages.iter().enumerate().for_each(|(to, &from)| copy(to * PAGE, from * PAGE));
    begin.elapsed().as_nanos() as f64 / pages.len() as f64
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let dir = tempfile::tempdir_in(".").unwrap();
    // Room for all: a page has only some frames to be in.
    let array = ArrayOptions::new().cache_bytes(4 * (PAGES * PAGE) as u64).create([dir.path()]).unwrap();
    let (file, mut rng) = (file(&array), fastrand::Rng::with_seed(7));
    let own = vec![1; (PAGES + 1) * PAGE];
    let own = &own[own.as_ptr().align_offset(PAGE)..];
    let mut out = vec![0; (TURN + 2) * PAGE];
    let edge = out.as_ptr().align_offset(PAGE);
    println!("{:>14} {:>8} {:>8}", "begins behind", "read_at", "memcpy");
    for behind in BEHIND {
        let out = &mut out[edge + behind..];
        let mut turn = |_| {
            let pages: Vec<usize> = (0..TURN).map(|_| rng.usize(..PAGES)).collect();
            let read = timed(&pages, |to, from| {
                assert_eq!(file.read_at(&mut out[to..to + PAGE], from as u64).unwrap(), PAGE);
            });
            let copied = timed(&pages, |to, from| out[to..to + PAGE].copy_from_slice(&own[from..from + PAGE]));
            black_box(&out);
            (read, copied)
        };
        let turns: Vec<(f64, f64)> = (0..TURNS).map(&mut turn).collect();
        let (read, copied) = (median(turns.iter().map(|turn| turn.0)), median(turns.iter().map(|turn| turn.1)));
        println!("{behind:12} B {read:5.0} ns {copied:5.0} ns");
    }
}
