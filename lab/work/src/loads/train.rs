//! Shuffled epochs over rows, with memory for a quarter of them.

#[path = "../../../../crates/iomill/examples/train/train.rs"]
mod program;

use program::{ROW_BYTES, Rows, row, train};

use super::timed::{Ready, digest, timed};
use crate::bytes::{self, Bytes, Range};
use crate::job::{Job, Measure, Result};

const EPOCHS: usize = 3;

impl Rows for Box<dyn Bytes> {
    fn gather(&self, out: &mut [u8], numbers: &[u32]) -> Result<()> {
        let range = |number: &u32| (u64::from(*number) * ROW_BYTES as u64, ROW_BYTES);
        (**self).gather(out, &numbers.iter().map(range).collect::<Vec<Range>>())
    }
}

fn count(job: &Job) -> u32 {
    (job.size_bytes / ROW_BYTES as u64).max(1) as u32
}

pub fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    let count = count(job);
    let file = bytes::open(job, array, "rows", Some(u64::from(count) * ROW_BYTES as u64))?;
    for first in (0..count).step_by(4096) {
        let rows: Vec<u8> = (first..count.min(first + 4096)).flat_map(row).collect();
        file.write(&rows, u64::from(first) * ROW_BYTES as u64)?;
    }
    file.sync()
}

pub struct Open {
    rows: Box<dyn Bytes>,
    count: u32,
}

pub fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Open> {
    Ok(Open { rows: bytes::open(job, array, "rows", None)?, count: count(job) })
}

impl Ready for Open {
    fn run(&mut self, _: u64) -> Result<Vec<Measure>> {
        let all = u64::from(self.count) * EPOCHS as u64;
        let trained = timed("3 epochs", "rows", || {
            let losses = train(&self.rows, self.count, EPOCHS)?;
            Ok((all, Some(digest(losses.into_iter().map(|loss| loss.to_bits().into())))))
        })?;
        Ok(vec![trained])
    }
}
