//! A hit by a future beside a hit by a call: `cargo bench -p iomill --bench hit_futures [-- GIB]`.
//!
//! All ways copy 128 bytes at random places of a file that is in the cache, in short turns one after the other. The
//! figures are medians over the turns. A ratio is that of two ways in each round, and its median over the rounds. A
//! future is polled once, and must be ready.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use iomill::{Array, ArrayOptions, File, FileOptions};

const ROW: usize = 128;
/// Rows of a gather.
const MANY: usize = 256;
/// Reads of a turn.
const TURN: usize = 40_960;
const ROUNDS: usize = 61;

/// What is measured, in this order; and which way's figure divides its own.
const WAYS: [(&str, usize); 6] = [
    ("read_at", 0),
    ("read_at, a new buffer", 1),
    ("read", 1),
    ("read_at_async, the same buffer", 0),
    ("read_many", 4),
    ("read_many_async", 4),
];

fn file(array: &Array, len: usize) -> File {
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    let mut chunk = vec![1; 1 << 20];
    (0..len).step_by(1 << 20).for_each(|at| file.write_at(&chunk, at as u64).unwrap());
    file.sync().unwrap();
    (0..len).step_by(1 << 20).for_each(|at| assert_eq!(file.read_at(&mut chunk, at as u64).unwrap(), 1 << 20));
    file
}

/// The result of a future that is ready.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("not a hit"),
    }
}

/// Reads all places by a way. Returns nanoseconds per read.
fn turn(file: &File, way: usize, places: &[u64]) -> f64 {
    let (mut out, mut many) = (vec![0; ROW], vec![0; MANY * ROW]);
    let begin = Instant::now();
    match way {
        0 => places.iter().for_each(|&place| {
            file.read_at(&mut out, place).unwrap();
            black_box(&out);
        }),
        1 => places.iter().for_each(|&place| {
            let mut out = vec![0; ROW];
            file.read_at(&mut out, place).unwrap();
            black_box(&out);
        }),
        2 => places.iter().for_each(|&place| drop(black_box(ready(file.read_async(place, ROW)).unwrap()))),
        3 => places.iter().for_each(|&place| {
            out = ready(file.read_at_async(std::mem::take(&mut out), place)).unwrap().0;
            black_box(&out);
        }),
        4 => places.chunks_exact(MANY).for_each(|places| {
            file.read_many(&mut many, places, ROW).unwrap();
            black_box(&many);
        }),
        _ => places.chunks_exact(MANY).for_each(|places| {
            many = ready(file.read_many_async(std::mem::take(&mut many), places, ROW)).unwrap();
            black_box(&many);
        }),
    }
    begin.elapsed().as_nanos() as f64 / places.len() as f64
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    let len = argument.map_or(1, |gib| gib.parse::<usize>().unwrap()) << 30;
    let dir = tempfile::tempdir_in(".").unwrap();
    // Room for all: a page has only some frames to be in.
    let array = ArrayOptions::new().cache_bytes(4 * len as u64).create([dir.path()]).unwrap();
    let (file, mut rng) = (file(&array, len), fastrand::Rng::with_seed(7));
    let round = |_| {
        // Each turn has places of its own: what another turn has just read is in the processor's caches.
        let mut places = || (0..TURN).map(|_| rng.u64(..(len / ROW) as u64) * ROW as u64).collect::<Vec<_>>();
        std::array::from_fn(|way| turn(&file, way, &places()))
    };
    let figures: Vec<[f64; WAYS.len()]> = (0..ROUNDS).map(round).collect();
    println!("{:32} {:>6} {:>8}", "", "ns", "ratio");
    for (way, (name, over)) in WAYS.into_iter().enumerate() {
        let ns = median(figures.iter().map(|round| round[way]));
        let ratio = median(figures.iter().map(|round| round[way] / round[over]));
        println!("{name:32} {ns:6.0} {ratio:7.2}x");
    }
}
