//! Breadth-first search, components, cores, PageRank and shortest paths on a graph with its lists of neighbours in a file of an array.
//!
//! `cargo run --release -p iomill --example graph [DIRECTORY [SCALE]]`: 2^SCALE vertices, 16 edges for each. The lab runs the same algorithms on
//! rivals: `iomill-lab work graph`.

mod graph;
#[path = "../common/scratch.rs"]
mod scratch;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use graph::{Graph, Kronecker, Lists, NONE, mix};
use iomill::{ArrayOptions, File, Layout};
use scratch::{Result, on_drives};

/// Bytes of lists that a gather asks for. More does not make a drive faster, and takes memory.
const BATCH_BYTES: usize = 2 << 20;

/// Ranges that it asks for at a time: a gather keeps a list of them.
const BATCH_RANGES: usize = 8192;

/// The lists in a file.
struct Edges(File);

impl Lists for Edges {
    /// Each processor gathers the next batch of lists, and hands them on.
    fn visit(&self, ranges: &[(u64, usize)], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        let batches = batches(ranges);
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            let mut bytes = Vec::new();
            while let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) {
                let ranges = &ranges[batch.clone()];
                bytes.resize(ranges.iter().map(|range| range.1).sum(), 0);
                self.0.read_ranges(&mut bytes, ranges)?;
                let mut rest = &bytes[..];
                for (index, range) in batch.clone().zip(ranges) {
                    let (list, behind) = rest.split_at(range.1);
                    each(index, list);
                    rest = behind;
                }
            }
            Ok(())
        };
        let threads = thread::available_parallelism()?.get().min(batches.len());
        thread::scope(|scope| {
            let threads: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            threads.into_iter().map(|thread| thread.join().expect("a visit panicked")).fold(own, Result::and)
        })
    }
}

/// Ranges of the list of ranges, each with at most [`BATCH_RANGES`] of about [`BATCH_BYTES`].
fn batches(ranges: &[(u64, usize)]) -> Vec<std::ops::Range<usize>> {
    let (mut batches, mut start, mut len) = (Vec::new(), 0, 0);
    for (index, range) in ranges.iter().enumerate() {
        if index > start && (len + range.1 > BATCH_BYTES || index - start == BATCH_RANGES) {
            batches.push(start..index);
            (start, len) = (index, 0);
        }
        len += range.1;
    }
    batches.push(start..ranges.len());
    batches
}

fn main() -> Result<()> {
    on_drives(14, |drives, scale| run(drives, Kronecker { scale: scale as u32, edges_per_vertex: 16, seed: 1 }))
}

fn run(drives: &[PathBuf], kronecker: Kronecker) -> Result<()> {
    let (starts, lists) = kronecker.build();
    // Memory for an eighth of the lists.
    let array = ArrayOptions::new().cache_bytes((lists.len() as u64 / 2).max(1 << 20)).create(drives)?;
    let file = array.create_file("edges", Layout::default())?;
    for (at, lists) in (0..).zip(lists.chunks(1 << 20)) {
        let bytes: Vec<u8> = lists.iter().flat_map(|vertex| vertex.to_le_bytes()).collect();
        file.write_at(&bytes, at << 22)?;
    }
    file.sync()?;
    drop(lists);
    let graph = Graph::new(starts, Edges(file));
    let hub = (0..graph.len() as u32).max_by_key(|&vertex| graph.degree(vertex)).unwrap_or(0);

    let distances = graph.distances(hub)?;
    let reached = distances.iter().filter(|&&distance| distance != NONE);
    println!("{} vertices are reached from vertex {hub}", reached.clone().count());
    println!("the furthest is {} edges away", reached.max().unwrap_or(&0));

    let components = graph.components()?;
    let alone = (0..graph.len()).filter(|&vertex| components[vertex] == vertex as u32).count();
    println!("{alone} components");

    println!("{} vertices in the 16-core", graph.core(16)?.iter().filter(|&&is_in| is_in).count());

    let ranks = graph.ranks(5)?;
    let best = (0..graph.len()).max_by(|&a, &b| ranks[a].total_cmp(&ranks[b])).unwrap_or(0);
    println!("vertex {best} has the highest rank, {:.5}", ranks[best]);

    let pairs = (0..8).map(|pair| (mix(pair) as u32 % graph.len() as u32, hub));
    for (from, to) in pairs {
        let distance = graph.distance(from, to)?;
        match distance {
            Some(edges) => println!("from {from} to {to}: {edges} edges"),
            None => println!("no path leads from {from} to {to}"),
        }
        assert_eq!(distance.unwrap_or(NONE), distances[from as usize]);
    }
    graph.lists().0.sync()?;
    Ok(array.close()?)
}
