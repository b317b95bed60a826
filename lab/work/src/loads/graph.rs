//! Graph algorithms: the lists of neighbours are on drives. The starts of the lists, and the data of the algorithms,
//! are in memory.

#[path = "../../../../crates/iomill/examples/graph/graph.rs"]
mod program;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use program::{Graph, Kronecker, Lists, VERTEX_BYTES, mix};

use super::timed::{Ready, digest, timed};
use crate::bytes::{self, Bytes, Range};
use crate::job::{Job, Measure, Result};

const EDGES_PER_VERTEX: u64 = 16;

/// The number of shortest paths, and of threads that search for them.
const PAIRS: u64 = 64;
const THREADS: u64 = 16;

impl Lists for Box<dyn Bytes> {
    fn visit(&self, ranges: &[Range], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
        (**self).visit(ranges, each)
    }
}

/// A graph of about the job's `size_bytes`: each edge is in two lists.
fn kronecker(job: &Job) -> Kronecker {
    let vertices = job.size_bytes / (2 * EDGES_PER_VERTEX * VERTEX_BYTES);
    Kronecker { scale: vertices.max(1 << 8).ilog2(), edges_per_vertex: EDGES_PER_VERTEX, seed: 1 }
}

pub fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    let (starts, lists) = kronecker(job).build();
    let file = bytes::open(job, array, "edges", Some(lists.len() as u64 * VERTEX_BYTES))?;
    for (at, lists) in (0..).zip(lists.chunks(1 << 20)) {
        let bytes: Vec<u8> = lists.iter().flat_map(|vertex| vertex.to_le_bytes()).collect();
        file.write(&bytes, at << 22)?;
    }
    file.sync()?;
    let starts: Vec<u8> = starts.iter().flat_map(|start| start.to_le_bytes()).collect();
    Ok(fs::write(job.place.join("starts"), starts)?)
}

pub struct Open {
    graph: Graph<Box<dyn Bytes>>,
}

pub fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Open> {
    let starts = fs::read(job.place.join("starts"))?;
    let starts = starts.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    Ok(Open { graph: Graph::new(starts, bytes::open(job, array, "edges", None)?) })
}

impl Ready for Open {
    fn run(&mut self, seed: u64) -> Result<Vec<Measure>> {
        let graph = &self.graph;
        let edges = graph.lists().len()? / VERTEX_BYTES;
        let of = |numbers: Vec<u32>| Some(digest(numbers.into_iter().map(u64::from)));
        let connected = |drawn: u64| {
            let from = mix(drawn) as u32 % graph.len() as u32;
            (from..graph.len() as u32).chain(0..from).find(|&vertex| graph.degree(vertex) > 0).unwrap_or(0)
        };
        Ok(vec![
            timed("breadth-first", "edges", || Ok((edges, of(graph.distances(connected(seed))?))))?,
            timed("components", "edges", || Ok((edges, of(graph.components()?))))?,
            timed("16-core", "edges", || Ok((edges, Some(digest(graph.core(16)?.into_iter().map(u64::from))))))?,
            timed("pagerank, 2 rounds", "edges", || {
                let ranks = graph.ranks(2)?;
                Ok((2 * edges, Some(digest(ranks.into_iter().map(|rank| rank.to_bits().into())))))
            })?,
            timed("shortest paths, 16 threads", "paths", || {
                let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
                let work = || -> Result<()> {
                    loop {
                        let pair = next.fetch_add(1, Relaxed);
                        if pair >= PAIRS {
                            return Ok(());
                        }
                        let drawn = mix(seed) ^ pair << 32;
                        let found = graph.distance(connected(drawn), connected(drawn + 1))?;
                        sum.fetch_add(mix(pair << 8 | u64::from(found.unwrap_or(255))), Relaxed);
                    }
                };
                let work = &work;
                thread::scope(|scope| {
                    let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
                    threads.into_iter().try_for_each(|thread| thread.join().expect("a search panicked"))
                })?;
                Ok((PAIRS, Some(sum.into_inner())))
            })?,
        ])
    }
}
