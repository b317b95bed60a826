//! The loads: the files of each, its data in memory, and its timed parts.

mod graph;
mod kv;
mod labels;
mod train;
mod vectors;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{Contender, Job, Measure, Result};

/// A program that is a load.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Load {
    /// A key-value store under the loads of YCSB.
    Kv,
    /// Graph algorithms with the lists of neighbours on drives.
    Graph,
    /// Unaligned small writes from 16 threads.
    Labels,
    /// Vector search with the vectors on drives.
    Vectors,
    /// Shuffled epochs over rows.
    Train,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 5] = [Load::Kv, Load::Graph, Load::Labels, Load::Vectors, Load::Train];

    /// The name in tables and documents.
    pub fn name(self) -> &'static str {
        match self {
            Load::Kv => "kv",
            Load::Graph => "graph",
            Load::Labels => "labels",
            Load::Vectors => "vectors",
            Load::Train => "train",
        }
    }

    /// The contenders that take part.
    pub fn contenders(self) -> &'static [Contender] {
        use Contender::{Iomill, Lmdb, Mmap, Mmap16, Pread16, Pread256, Redb, RocksDb, Uring, WiredTiger};
        match self {
            Load::Kv => &[Iomill, Mmap, Pread16, RocksDb, Lmdb, WiredTiger, Redb],
            Load::Graph => &[Iomill, Mmap16, Pread16, Pread256],
            Load::Labels => &[Iomill, Mmap, Pread16],
            Load::Vectors => &[Iomill, Mmap, Mmap16, Pread16, Pread256, Uring],
            Load::Train => &[Iomill, Mmap, Mmap16, Pread16, Pread256],
        }
    }

    /// The data are this multiple of the memory.
    pub fn share(self) -> u64 {
        if self == Load::Train { 4 } else { 8 }
    }

    /// The most memory that its program uses while it runs, besides its memory when the data are open.
    pub(crate) fn own_bytes(self, size_bytes: u64) -> u64 {
        // Buffers, stacks, rings and lists.
        let usual = 16 << 20;
        match self {
            // About 24 bytes for each vertex; its lists take 128.
            Load::Graph => usual + size_bytes / 128 * 24,
            // Each of 16 threads scans up to 100 pages.
            Load::Kv => usual + (8 << 20),
            _ => usual,
        }
    }

    /// Whether it changes its data, so that each contender needs some of its own.
    pub(crate) fn is_changed(self) -> bool {
        matches!(self, Load::Kv | Load::Labels)
    }
}

/// A load with its data open, and its data in memory.
pub(crate) trait Ready {
    /// Runs the load, and returns its times.
    fn run(&mut self, seed: u64) -> Result<Vec<Measure>>;
}

/// Makes the data of a load.
pub(crate) fn make(job: &Job, array: Option<&iomill::Array>) -> Result<()> {
    match job.load {
        Load::Kv => kv::make(job, array),
        Load::Graph => graph::make(job, array),
        Load::Labels => labels::make(job, array),
        Load::Vectors => vectors::make(job, array),
        Load::Train => train::make(job, array),
    }
}

/// Opens the data of a load.
pub(crate) fn open(job: &Job, array: Option<&iomill::Array>) -> Result<Box<dyn Ready>> {
    Ok(match job.load {
        Load::Kv => kv::open(job, array)?,
        Load::Graph => Box::new(graph::open(job, array)?),
        Load::Labels => Box::new(labels::open(job, array)?),
        Load::Vectors => Box::new(vectors::open(job, array)?),
        Load::Train => Box::new(train::open(job, array)?),
    })
}

/// Times a part of a load. Returns the number of its operations, and its result.
fn timed(name: &str, unit: &str, work: impl FnOnce() -> Result<(u64, Option<u64>)>) -> Result<Measure> {
    let (cpu, start) = (cpu_seconds()?, Instant::now());
    let (operations, digest) = work()?;
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    Ok(Measure { name: name.to_owned(), unit: unit.to_owned(), operations, seconds, cpu_seconds, digest })
}

/// CPU time of this process, of all its threads, in seconds.
fn cpu_seconds() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one `rusage`, which the call fills.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: zeroes are a valid value of this plain struct, and the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// A number for a list of numbers, which depends on each and on its place.
fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, number| (sum ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(29))
}
