//! Breadth-first search, components, cores, PageRank and shortest paths on a graph with its lists of neighbours in a
//! file of an array.
//!
//! `cargo run --release -p iomill --example graph [DIRECTORY [SCALE]]`: 2^SCALE vertices, 16 edges for each. The lab
//! runs the same algorithms on rivals: `iomill-lab work graph`.

mod graph;
#[path = "../common/scratch.rs"]
mod scratch;
mod visit;

use std::path::PathBuf;

use graph::{Graph, Kronecker, Lists, NONE, mix};
use iomill::{ArrayOptions, File, FileOptions};
use scratch::{Result, on_drives};

/// The lists in a file.
struct Edges(File);

impl Lists for Edges {
    fn visit(&self, ranges: &[(u64, usize)], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        Ok(visit::visit(&self.0, ranges, each)?)
    }
}

fn main() -> Result<()> {
    on_drives(14, |drives, scale| run(drives, Kronecker { scale: scale as u32, edges_per_vertex: 16, seed: 1 }))
}

fn run(drives: &[PathBuf], kronecker: Kronecker) -> Result<()> {
    let (starts, lists) = kronecker.build();
    // Memory for an eighth of the lists.
    let array = ArrayOptions::new().cache_bytes((lists.len() as u64 / 2).max(1 << 20)).create(drives)?;
    let file = array.create_file("edges", &FileOptions::new())?;
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
