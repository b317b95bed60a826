//! Vector search with the vectors on drives: exact distances for many candidates, and a walk along a graph as DiskANN
//! does (Subramanya et al., NeurIPS 2019).
//!
//! A record is a page: a vector, and the numbers of its neighbours. Memory has 8 bytes for each vector, which tell its
//! distance roughly. Non-goals: building the graph of real data. The points here lie on a lattice that is bent into
//! many dimensions, so the graph is known, and so is the right answer.

use std::collections::HashSet;
use std::error::Error;

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Numbers of a vector, and neighbours of a point. Together they fill a record.
pub const DIMENSIONS: usize = 960;
pub const NEIGHBOURS: usize = 64;
pub const RECORD_BYTES: usize = 4096;

/// Coordinates of a point on the lattice.
const AXES: usize = 4;

/// Numbers of a point's code.
const CODE: usize = 2 * AXES;

/// Candidates that a walk keeps, and records that it asks for at a time (L and W of DiskANN).
const KEPT: usize = 32;
const BEAM: usize = 4;

/// A place in which the records lie.
pub trait Records: Sync {
    /// Brings the records of these numbers, one after the other.
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()>;
}

/// A point in the space of the vectors, given by its place on the lattice or between its points.
pub type Place = [f32; AXES];

/// What is in memory: the lattice, and the code of each point.
pub struct Index {
    /// Points along each axis.
    side: u32,
    codes: Vec<[i8; CODE]>,
}

/// A walk towards the nearest point to a query.
struct Walk {
    vector: Vec<f32>,
    code: [i8; CODE],
    /// The candidates that are nearest as far as codes tell, the nearest first, each with whether its record was asked
    /// for.
    candidates: Vec<(f32, u32, bool)>,
    /// All points that ever were candidates.
    seen: HashSet<u32>,
    /// The nearest point among those that were read, and the square of its distance.
    nearest: (f32, u32),
}

impl Walk {
    fn new(index: &Index, query: Place) -> Walk {
        let (vector, code) = (index.vector(query), index.code(query));
        let mut walk = Walk { vector, code, candidates: Vec::new(), seen: HashSet::new(), nearest: (f32::INFINITY, 0) };
        walk.consider(index, 0);
        walk
    }

    /// Makes a point a candidate, unless it was one.
    fn consider(&mut self, index: &Index, number: u32) {
        if self.seen.insert(number) {
            let distance = roughly(&self.code, &index.codes[number as usize]);
            let place = self.candidates.partition_point(|candidate| candidate.0 <= distance);
            self.candidates.insert(place, (distance, number, false));
            self.candidates.truncate(KEPT);
        }
    }

    /// The next candidates to read.
    fn next(&mut self) -> impl Iterator<Item = u32> {
        let unread = self.candidates.iter_mut().filter(|candidate| !candidate.2).take(BEAM);
        unread.map(|candidate| {
            candidate.2 = true;
            candidate.1
        })
    }

    /// Goes on from a record.
    fn read(&mut self, index: &Index, number: u32, record: &[u8; RECORD_BYTES]) {
        let distance = distance(&self.vector, record);
        if distance < self.nearest.0 {
            self.nearest = (distance, number);
        }
        neighbours(record).for_each(|neighbour| self.consider(index, neighbour));
    }
}

impl Index {
    /// The index of a lattice with `side` points along each of its four axes. It has 4 at least, and at most 200.
    pub fn new(side: u32) -> Index {
        let mut index = Index { side, codes: Vec::new() };
        index.codes = (0..index.len()).map(|number| index.code(index.place(number))).collect();
        index
    }

    /// The number of points.
    pub fn len(&self) -> u32 {
        self.side.pow(AXES as u32)
    }

    /// The place of a point.
    pub fn place(&self, number: u32) -> Place {
        std::array::from_fn(|axis| (number / self.side.pow(axis as u32) % self.side) as f32)
    }

    /// The point at a place, or the one that is nearest to it.
    pub fn nearest(&self, place: Place) -> u32 {
        let along = |axis: usize| (place[axis].round() as u32 % self.side) * self.side.pow(axis as u32);
        (0..AXES).map(along).sum()
    }

    /// The vector at a place: for each axis waves of rising frequency and falling height, so that near places have near
    /// vectors.
    pub fn vector(&self, place: Place) -> Vec<f32> {
        let waves = DIMENSIONS / CODE;
        let mut vector = Vec::with_capacity(DIMENSIONS);
        for wave in 1..=waves {
            for coordinate in place {
                let angle = std::f32::consts::TAU * coordinate / self.side as f32 * wave as f32;
                vector.extend([angle.cos() / wave as f32, angle.sin() / wave as f32]);
            }
        }
        vector
    }

    fn code(&self, place: Place) -> [i8; CODE] {
        let angle = |axis: usize| std::f32::consts::TAU * place[axis] / self.side as f32;
        std::array::from_fn(|at| {
            let wave = if at % 2 == 0 { angle(at / 2).cos() } else { angle(at / 2).sin() };
            (wave * 127.0) as i8
        })
    }

    /// The record of a point: its vector and its neighbours, near ones and far ones.
    pub fn record(&self, number: u32) -> Vec<u8> {
        let place = self.place(number);
        let moved = |steps: &[(usize, i32)]| {
            let mut place = place;
            for (axis, step) in steps {
                place[*axis] = (place[*axis] as i32 + step).rem_euclid(self.side as i32) as f32;
            }
            self.nearest(place)
        };
        let mut neighbours = Vec::with_capacity(NEIGHBOURS);
        for axis in 0..AXES {
            neighbours.extend([-8, -4, -2, -1, 1, 2, 4, 8].map(|step| moved(&[(axis, step)])));
            for other in axis + 1..AXES {
                let corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)];
                neighbours.extend(corners.map(|(step, aside)| moved(&[(axis, step), (other, aside)])));
            }
        }
        let far = (neighbours.len() as u64..NEIGHBOURS as u64).map(|at| mix(u64::from(number) << 8 | at));
        neighbours.extend(far.map(|drawn| drawn as u32 % self.len()));
        let vector = self.vector(place).into_iter().flat_map(f32::to_le_bytes);
        vector.chain(neighbours.into_iter().flat_map(u32::to_le_bytes)).collect()
    }

    /// The `found` candidates with the nearest vectors to the query, the nearest first. All records are read in one
    /// gather.
    pub fn rerank(&self, records: &impl Records, query: &[f32], candidates: &[u32], found: usize) -> Result<Vec<u32>> {
        let mut bytes = vec![0; candidates.len() * RECORD_BYTES];
        records.gather(&mut bytes, candidates)?;
        let distances = bytes.as_chunks::<RECORD_BYTES>().0.iter().map(|record| distance(query, record));
        let mut ranked: Vec<(f32, u32)> = distances.zip(candidates.iter().copied()).collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(ranked.into_iter().take(found).map(|(_, number)| number).collect())
    }

    /// The point that a walk finds nearest to each query. All walks go on together: each step is one gather for all of
    /// them.
    pub fn search(&self, records: &impl Records, queries: &[Place]) -> Result<Vec<u32>> {
        let mut walks: Vec<Walk> = queries.iter().map(|query| Walk::new(self, *query)).collect();
        let mut bytes = Vec::new();
        loop {
            let mut asked = Vec::new();
            for (walk, state) in walks.iter_mut().enumerate() {
                asked.extend(state.next().map(|number| (walk, number)));
            }
            if asked.is_empty() {
                return Ok(walks.into_iter().map(|walk| walk.nearest.1).collect());
            }
            let numbers: Vec<u32> = asked.iter().map(|(_, number)| *number).collect();
            bytes.resize(asked.len() * RECORD_BYTES, 0);
            records.gather(&mut bytes, &numbers)?;
            for ((walk, number), record) in asked.into_iter().zip(bytes.as_chunks::<RECORD_BYTES>().0) {
                walks[walk].read(self, number, record);
            }
        }
    }
}

/// The square of the distance between a query and the vector of a record.
fn distance(query: &[f32], record: &[u8; RECORD_BYTES]) -> f32 {
    let numbers = record.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    query.iter().zip(numbers).map(|(query, number)| (query - number) * (query - number)).sum()
}

/// About the same from codes alone.
fn roughly(query: &[i8; CODE], code: &[i8; CODE]) -> f32 {
    let apart = |at: usize| f32::from(i16::from(query[at]) - i16::from(code[at])) / 127.0;
    (0..CODE).map(|at| apart(at) * apart(at)).sum()
}

fn neighbours(record: &[u8; RECORD_BYTES]) -> impl Iterator<Item = u32> {
    let bytes = &record[DIMENSIONS * 4..];
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
