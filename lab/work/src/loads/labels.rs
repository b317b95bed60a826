//! Labels of about 1,000 bytes at unaligned places, by 16 threads.

#[path = "../../../../crates/iomill/examples/labels/labels.rs"]
mod program;

use program::{Labels, Volume};

use super::timed::{Ready, timed};
use crate::bytes::{self, Bytes};
use crate::job::{Job, Measure, Result};

const THREADS: usize = 16;

/// The volume's labels over those of a run.
const SHARE: u64 = 4;

impl Volume for Box<dyn Bytes> {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        (**self).write(bytes, offset)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        (**self).read(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        (**self).sync()
    }
}

pub fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    let file = bytes::open(job, array, "volume", Some(job.size_bytes))?;
    // Labels overwrite earlier bytes: in a file without holes each write reads the rest of its page from a drive.
    let chunk = vec![1; 1 << 20];
    for offset in (0..job.size_bytes).step_by(chunk.len()) {
        file.write(&chunk[..chunk.len().min((job.size_bytes - offset) as usize)], offset)?;
    }
    file.sync()
}

pub struct Open {
    volume: Box<dyn Bytes>,
    labels: Labels,
}

pub fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Open> {
    Ok(Open { volume: bytes::open(job, array, "volume", None)?, labels: Labels::of(job.size_bytes) })
}

impl Ready for Open {
    fn run(&mut self, _: u64) -> Result<Vec<Measure>> {
        let count = self.labels.len() / SHARE;
        let written = timed("written and durable", "labels", || {
            self.labels.write(&self.volume, count, THREADS)?;
            Ok((count, None))
        })?;
        let checked = timed("read and checked", "labels", || {
            self.labels.check(&self.volume, count, THREADS)?;
            Ok((count, None))
        })?;
        Ok(vec![written, checked])
    }
}
