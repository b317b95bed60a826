//! Vector search with the vectors in a file of an array: exact distances of a thousand candidates, and walks along a
//! graph.
//!
//! `cargo run --release -p iomill --example vectors [DIRECTORY [SIDE]]`: SIDE^4 vectors of 960 numbers, 4 KiB each. The
//! lab runs the same search on rivals: `iomill-lab work vectors`.

#[path = "../common/scratch.rs"]
mod scratch;
mod vectors;

use std::path::PathBuf;

use iomill::{ArrayOptions, File, FileOptions};
use scratch::{Result, on_drives};
use vectors::{Index, Place, RECORD_BYTES, Records, mix};

/// Walks that go on together.
const TOGETHER: usize = 16;

impl Records for File {
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()> {
        Ok(self.read_rows(out, numbers, RECORD_BYTES, 0)?)
    }
}

fn main() -> Result<()> {
    on_drives(8, |drives, side| run(drives, side as u32))
}

fn run(drives: &[PathBuf], side: u32) -> Result<()> {
    let index = Index::new(side);
    let bytes = u64::from(index.len()) * RECORD_BYTES as u64;
    // Memory for an eighth of the vectors.
    let array = ArrayOptions::new().cache_bytes((bytes / 8).max(4 << 20)).create(drives)?;
    let file = array.create_file("vectors", &FileOptions::new())?;
    for first in (0..index.len()).step_by(256) {
        let records: Vec<u8> = (first..index.len().min(first + 256)).flat_map(|number| index.record(number)).collect();
        file.write_at(&records, u64::from(first) * RECORD_BYTES as u64)?;
    }
    file.sync()?;

    // Places near a point of the lattice, so that it is the right answer.
    let queries: Vec<Place> = (0..4 * TOGETHER as u64)
        .map(|query| index.place(mix(query) as u32 % index.len()).map(|at| at + (mix(query) % 64) as f32 / 200.0))
        .collect();
    let mut right = 0;
    for queries in queries.chunks(TOGETHER) {
        let found = index.search(&file, queries)?;
        right += queries.iter().zip(found).filter(|(place, found)| index.nearest(**place) == *found).count();
    }
    println!("{right} of {} walks found the nearest vector", queries.len());

    let candidates: Vec<u32> = (0..1000).map(|candidate| candidate * 7919 % index.len()).collect();
    let ranked = index.rerank(&file, &index.vector(queries[0]), &candidates, 10)?;
    println!("the nearest of {} candidates to {:?} are {ranked:?}", candidates.len(), queries[0]);
    Ok(array.close()?)
}
