//! Graphs larger than memory, as FlashGraph reads them: some bytes for each vertex are in memory, and the lists of
//! neighbours are in a file.
//!
//! Each algorithm asks for the lists of many vertices at a time, in whatever order they come, so a store may have many
//! reads in flight. Non-goals: graphs that change, and weights.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of a vertex in a list: its number, little-endian.
pub const VERTEX_BYTES: u64 = 4;

/// No vertex, and no distance.
pub const NONE: u32 = u32::MAX;

/// A place in which the lists of all vertices lie, one after the other.
pub trait Lists: Sync {
    /// Calls `each` with the bytes of each range, an offset and a length in bytes, and the range's index. The calls
    /// come in any order, and from several threads.
    fn visit(&self, ranges: &[(u64, usize)], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()>;
}

/// An undirected graph in compressed sparse rows.
pub struct Graph<L> {
    /// The list of vertex v has the neighbours `starts[v]..starts[v + 1]`, counted from the first list's start.
    starts: Vec<u64>,
    lists: L,
}

/// The neighbours in a list.
pub fn neighbours(list: &[u8]) -> impl Iterator<Item = u32> {
    list.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

impl<L: Lists> Graph<L> {
    /// A graph from the starts of its lists, in neighbours, with the end of the last list behind them.
    pub fn new(starts: Vec<u64>, lists: L) -> Graph<L> {
        Graph { starts, lists }
    }

    /// The number of vertices.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of neighbours of a vertex.
    pub fn degree(&self, vertex: u32) -> u64 {
        self.starts[vertex as usize + 1] - self.starts[vertex as usize]
    }

    /// The place where the lists lie.
    pub fn lists(&self) -> &L {
        &self.lists
    }

    /// Some vertices at a time, so that the list of ranges takes little memory.
    fn visit(&self, vertices: &[u32], each: &(dyn Fn(u32, &[u8]) + Sync)) -> Result<()> {
        let range = |&vertex: &u32| {
            (self.starts[vertex as usize] * VERTEX_BYTES, (self.degree(vertex) * VERTEX_BYTES) as usize)
        };
        let mut ranges = Vec::new();
        for vertices in vertices.chunks(1 << 17) {
            ranges.clear();
            ranges.extend(vertices.iter().map(range));
            self.lists.visit(&ranges, &|index, list| each(vertices[index], list))?;
        }
        Ok(())
    }

    /// The distance of each vertex from one of them in edges, [`NONE`] where no path leads: a breadth-first search.
    pub fn distances(&self, from: u32) -> Result<Vec<u32>> {
        let distances = cells(self.len(), |_| NONE);
        distances[from as usize].store(0, Relaxed);
        let mut frontier = vec![from];
        for distance in 1.. {
            if frontier.is_empty() {
                break;
            }
            self.visit(&frontier, &|_, list| {
                for neighbour in neighbours(list) {
                    // Another thread may store the same distance.
                    if distances[neighbour as usize].load(Relaxed) == NONE {
                        distances[neighbour as usize].store(distance, Relaxed);
                    }
                }
            })?;
            frontier = chosen(self.len(), |vertex| distances[vertex].load(Relaxed) == distance);
        }
        Ok(values(distances))
    }

    /// The smallest vertex that a path leads to from each vertex. It names the vertex's connected component.
    pub fn components(&self) -> Result<Vec<u32>> {
        let labels = cells(self.len(), |vertex| vertex);
        let mut active: Vec<u32> = (0..self.len() as u32).collect();
        while !active.is_empty() {
            let changed: Vec<AtomicBool> = (0..self.len()).map(|_| AtomicBool::new(false)).collect();
            self.visit(&active, &|vertex, list| {
                let label = labels[vertex as usize].load(Relaxed);
                for neighbour in neighbours(list) {
                    if labels[neighbour as usize].fetch_min(label, Relaxed) > label {
                        changed[neighbour as usize].store(true, Relaxed);
                    }
                }
            })?;
            active = chosen(self.len(), |vertex| changed[vertex].load(Relaxed));
        }
        Ok(values(labels))
    }

    /// Which vertices are in the k-core: the largest part of the graph in which each has `k` neighbours in that part.
    pub fn core(&self, k: u32) -> Result<Vec<bool>> {
        let left = cells(self.len(), |vertex| self.degree(vertex) as u32);
        let mut removed = vec![false; self.len()];
        let mut leaving = chosen(self.len(), |vertex| left[vertex].load(Relaxed) < k);
        while !leaving.is_empty() {
            leaving.iter().for_each(|&vertex| removed[vertex as usize] = true);
            self.visit(&leaving, &|_, list| {
                neighbours(list).for_each(|neighbour| _ = left[neighbour as usize].fetch_sub(1, Relaxed));
            })?;
            // A vertex that has left may have fewer than none: the numbers wrap, and nothing reads them.
            leaving = chosen(self.len(), |vertex| !removed[vertex] && left[vertex].load(Relaxed) < k);
        }
        Ok(removed.into_iter().map(|is_removed| !is_removed).collect())
    }

    /// The rank of each vertex after `rounds` rounds of PageRank with a damping of 0.85 (Page et al. 1999). All ranks
    /// together are about 1.
    pub fn ranks(&self, rounds: usize) -> Result<Vec<f32>> {
        let all: Vec<u32> = (0..self.len() as u32).collect();
        let mut ranks = vec![1.0 / self.len() as f32; self.len()];
        for _ in 0..rounds {
            let share: Vec<f32> = all.iter().map(|&v| ranks[v as usize] / self.degree(v).max(1) as f32).collect();
            let next = cells(self.len(), |_| (0.15 / self.len() as f32).to_bits());
            self.visit(&all, &|vertex, list| {
                let sum: f32 = neighbours(list).map(|neighbour| share[neighbour as usize]).sum();
                next[vertex as usize].store((0.15 / self.len() as f32 + 0.85 * sum).to_bits(), Relaxed);
            })?;
            ranks = values(next).into_iter().map(f32::from_bits).collect();
        }
        Ok(ranks)
    }

    /// The length of the shortest path between two vertices in edges, if there is one: a search from both ends, which
    /// goes on at the end with the shorter lists.
    pub fn distance(&self, from: u32, to: u32) -> Result<Option<u32>> {
        if from == to {
            return Ok(Some(0));
        }
        let mut ends = [Reached::new(from), Reached::new(to)];
        loop {
            let cost = |end: &Reached| end.frontier.iter().map(|&vertex| self.degree(vertex)).sum::<u64>();
            let [near, far] = &mut ends;
            let (near, far) = if cost(near) <= cost(far) { (near, far) } else { (far, near) };
            if near.frontier.is_empty() {
                return Ok(None);
            }
            let found = std::sync::Mutex::new(Vec::new());
            self.visit(&near.frontier, &|_, list| {
                found.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(neighbours(list));
            })?;
            near.depth += 1;
            near.frontier.clear();
            let mut shortest = None;
            for vertex in found.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
                if near.depths.contains_key(&vertex) {
                    continue;
                }
                near.depths.insert(vertex, near.depth);
                near.frontier.push(vertex);
                if let Some(rest) = far.depths.get(&vertex) {
                    let length = near.depth + rest;
                    shortest = Some(shortest.map_or(length, |shortest: u32| shortest.min(length)));
                }
            }
            if shortest.is_some() {
                return Ok(shortest);
            }
        }
    }
}

/// What a search has reached from one end.
struct Reached {
    /// The distance of each vertex that was reached.
    depths: HashMap<u32, u32>,
    /// The vertices that were reached last, all at the distance `depth`.
    frontier: Vec<u32>,
    depth: u32,
}

impl Reached {
    fn new(vertex: u32) -> Reached {
        Reached { depths: HashMap::from([(vertex, 0)]), frontier: vec![vertex], depth: 0 }
    }
}

/// A number for each vertex, which several threads may change.
fn cells(len: usize, value: impl Fn(u32) -> u32) -> Vec<AtomicU32> {
    (0..len as u32).map(|vertex| AtomicU32::new(value(vertex))).collect()
}

fn values(cells: Vec<AtomicU32>) -> Vec<u32> {
    cells.into_iter().map(AtomicU32::into_inner).collect()
}

/// The vertices of which something is true, in rising order, so that neighbours on drives are asked for together.
fn chosen(len: usize, is_chosen: impl Fn(usize) -> bool) -> Vec<u32> {
    (0..len as u32).filter(|&vertex| is_chosen(vertex as usize)).collect()
}

/// A Kronecker graph as Graph500 makes it: 2^scale vertices and `edges_per_vertex` edges for each, with the initiator
/// 0.57, 0.19, 0.19, 0.05. Its edges are drawn anew for each pass over them, so they take no memory.
#[derive(Clone, Copy, Debug)]
pub struct Kronecker {
    /// The binary logarithm of the number of vertices, below 32.
    pub scale: u32,
    /// Edges for each vertex.
    pub edges_per_vertex: u64,
    /// Another seed makes another graph.
    pub seed: u64,
}

impl Kronecker {
    /// Calls `each` with every edge.
    fn edges(self, mut each: impl FnMut(u32, u32)) {
        let mut state = self.seed;
        let mut draw = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        for _ in 0..self.edges_per_vertex << self.scale {
            let (mut from, mut to) = (0_u32, 0_u32);
            for bit in 0..self.scale {
                let drawn = draw() % 100;
                let (down, right) = (drawn >= 76, (57..76).contains(&drawn) || drawn >= 95);
                from |= u32::from(down) << bit;
                to |= u32::from(right) << bit;
            }
            each(self.scattered(from), self.scattered(to));
        }
    }

    /// Another number for a vertex, so that those with many neighbours are not the first ones: a bijection.
    fn scattered(self, vertex: u32) -> u32 {
        let mask = ((1_u64 << self.scale) - 1) as u32;
        let once = vertex.wrapping_add(0x5bd1_e995).wrapping_mul(0x9e37_79b1) & mask;
        (once ^ (once >> (self.scale / 2))).wrapping_mul(0x85eb_ca6b) & mask
    }

    /// The starts of all lists, and the lists, each sorted. An edge is in the lists of both its ends. Edges from a
    /// vertex to itself are left out.
    pub fn build(self) -> (Vec<u64>, Vec<u32>) {
        let mut starts = vec![0_u64; (1 << self.scale) + 1];
        self.edges(|from, to| {
            if from != to {
                starts[from as usize + 1] += 1;
                starts[to as usize + 1] += 1;
            }
        });
        (1..starts.len()).for_each(|vertex| starts[vertex] += starts[vertex - 1]);
        let mut filled = starts.clone();
        let mut lists = vec![0; starts[starts.len() - 1] as usize];
        self.edges(|from, to| {
            for (from, to) in [(from, to), (to, from)] {
                if from != to {
                    lists[filled[from as usize] as usize] = to;
                    filled[from as usize] += 1;
                }
            }
        });
        for ends in starts.windows(2) {
            lists[ends[0] as usize..ends[1] as usize].sort_unstable();
        }
        (starts, lists)
    }
}

/// The finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
