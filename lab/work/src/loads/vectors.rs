//! Vector search: walks along a graph, and exact distances of a thousand candidates.

#[path = "../../../../crates/iomill/examples/vectors/vectors.rs"]
mod program;

use program::{Index, Place, RECORD_BYTES, Records, mix};

use super::timed::{Ready, digest, timed};
use crate::bytes::{self, Bytes, Range};
use crate::job::{Job, Measure, Result};

/// Walks of a run, and the number of concurrent walks.
const WALKS: u64 = 256;
const TOGETHER: usize = 16;

/// Queries with exact distances, and the candidates of each.
const RERANKED: u64 = 32;
const CANDIDATES: u64 = 1000;

impl Records for Box<dyn Bytes> {
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()> {
        let range = |number: &u32| (u64::from(*number) * RECORD_BYTES as u64, RECORD_BYTES);
        (**self).gather(out, &numbers.iter().map(range).collect::<Vec<Range>>())
    }
}

/// The side of the largest lattice within the job's `size_bytes`.
fn side(job: &Job) -> u32 {
    ((job.size_bytes / RECORD_BYTES as u64) as f64).powf(0.25) as u32
}

pub fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    let index = Index::new(side(job));
    let file = bytes::open(job, array, "vectors", Some(u64::from(index.len()) * RECORD_BYTES as u64))?;
    for first in (0..index.len()).step_by(256) {
        let records: Vec<u8> = (first..index.len().min(first + 256)).flat_map(|number| index.record(number)).collect();
        file.write(&records, u64::from(first) * RECORD_BYTES as u64)?;
    }
    file.sync()
}

pub struct Open {
    index: Index,
    records: Box<dyn Bytes>,
}

pub fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Open> {
    Ok(Open { index: Index::new(side(job)), records: bytes::open(job, array, "vectors", None)? })
}

impl Ready for Open {
    fn run(&mut self, seed: u64) -> Result<Vec<Measure>> {
        let (index, records) = (&self.index, &self.records);
        let drawn = |number: u64| mix(mix(seed) ^ number);
        let query = |number: u64| index.place(drawn(number) as u32 % index.len()).map(|at| at + 0.2);
        let queries: Vec<Place> = (0..WALKS).map(query).collect();
        Ok(vec![
            timed("walks, 16 together", "walks", || {
                let mut found = Vec::new();
                for queries in queries.chunks(TOGETHER) {
                    found.extend(index.search(records, queries)?);
                }
                let right =
                    queries.iter().zip(&found).filter(|(query, found)| index.nearest(**query) == **found).count();
                if right < found.len() * 9 / 10 {
                    return Err(format!("only {right} of {} walks found the nearest vector", found.len()).into());
                }
                Ok((WALKS, Some(digest(found.into_iter().map(u64::from)))))
            })?,
            timed("exact distances of 1,000", "queries", || {
                let mut found = Vec::new();
                for query in 0..RERANKED {
                    let candidate = |number| drawn(query << 32 | 1 << 31 | number) as u32 % index.len();
                    let candidates: Vec<u32> = (0..CANDIDATES).map(candidate).collect();
                    found.extend(index.rerank(records, &index.vector(queries[query as usize]), &candidates, 10)?);
                }
                Ok((RERANKED, Some(digest(found.into_iter().map(u64::from)))))
            })?,
        ])
    }
}
