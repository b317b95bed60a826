//! Random rows of a user's own file: gathers by iomill, and loops over a mapping or `pread`, as in today's programs.
//!
//! Rules:
//! 1. The file is opened for reading only, and nothing about it is changed. Its pages in the page cache may be dropped.
//! 2. The bytes are no known pattern. In the checked slice each row is compared with the result of `pread`.
//! 3. All contenders read the same rows in the same order, and no row twice until the list ends. The list is made
//!    before the slice.
//! 4. Held: memory is filled with stretches of the file at random places before the slice, for every contender.
//!
//! Non-goals: popular rows, which `draw` and traces have.

mod gathers;
mod loops;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::contender::{Cache, Sample, Slice};
use crate::machine;
use crate::pattern::PAGE_BYTES;
use crate::target::Target;
use crate::task::{Finds, Task};
use crate::threads::{self, Count, goes_on};
use crate::workload::shuffled;
use iomill_cli::human;

pub use gathers::ReadRows;
pub use loops::{Loops, Way};

/// The fewest rows in a list, unless the file has fewer.
const LISTED: u64 = 1 << 20;

/// Length of the stretches that memory is filled with.
const FILL_BYTES: u64 = 64 << 10;

/// Memory beyond its cache that a contender with limited memory gets, and that the kernel may use for the cache.
const BESIDES_BYTES: u64 = 6 << 20;

/// The description of the reads, the same for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReads {
    /// Bytes of a row. Row 0 begins with the file.
    pub row_bytes: u32,
    /// Rows per call, for contenders that take many in a call.
    pub batch: u32,
    /// Length of the file in bytes.
    pub len_bytes: u64,
    /// Memory for cached bytes. At least the length of the file if all of it should be in memory.
    pub cache_bytes: u64,
}

impl RowReads {
    /// The number of rows in the file.
    pub fn rows(&self) -> u64 {
        self.len_bytes / u64::from(self.row_bytes.max(1))
    }

    /// Whole pages that hold a row which begins with a page.
    pub fn pages_bytes(&self) -> u32 {
        self.row_bytes.next_multiple_of(PAGE_BYTES as u32)
    }

    /// The numbers of rows, each once. There are more of them than pages in memory, so a second pass over the list hits
    /// none.
    fn list(&self) -> Arc<[u64]> {
        let rows = self.rows();
        (0..self.listed()).map(|at| shuffled(at, rows)).collect()
    }

    /// Memory for the list of numbers, in bytes.
    pub fn list_bytes(&self) -> u64 {
        self.listed() * size_of::<u64>() as u64
    }

    fn listed(&self) -> u64 {
        self.rows().min(LISTED.max(4 * (self.cache_bytes / PAGE_BYTES as u64)))
    }

    /// The stretches of the file that fill memory before a slice: offset and length.
    fn stretches(&self) -> impl Iterator<Item = (u64, usize)> {
        let (all, wanted) = (self.len_bytes / FILL_BYTES, self.cache_bytes * 5 / 4 / FILL_BYTES);
        (0..wanted.min(all)).map(move |at| (shuffled(at, all) * FILL_BYTES, FILL_BYTES as usize))
    }
}

impl fmt::Display for RowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row_bytes {
            bytes if bytes.is_multiple_of(1024) => {
                write!(f, "random-rows-{}", human::size(bytes.into()).replace(' ', ""))
            }
            bytes => write!(f, "random-rows-{bytes}B"),
        }
    }
}

impl Task for RowReads {
    fn check(&self) -> Result<()> {
        if !(1..=16 << 20).contains(&self.row_bytes) {
            return Err(Error::invalid(format!("rows of {} bytes", self.row_bytes), "give 1 byte to 16 MiB"));
        }
        if self.batch == 0 || u64::from(self.batch) * u64::from(self.row_bytes) > 1 << 30 {
            let (rows, row) = (self.batch, human::size(self.row_bytes.into()));
            return Err(Error::invalid(
                format!("calls for {rows} rows of {row}"),
                "give at least one, and at most 1 GiB",
            ));
        }
        if self.rows() < 2 {
            let (len, row) = (human::size(self.len_bytes), human::size(self.row_bytes.into()));
            return Err(Error::invalid(
                format!("rows of {row} in a file of {len}"),
                "give a smaller --row-size or a longer file",
            ));
        }
        Ok(())
    }

    fn finds(&self) -> Option<Finds> {
        let most = (self.cache_bytes + BESIDES_BYTES) as f64 / self.len_bytes.max(1) as f64;
        // A mapping without advice reads more pages than requested, and a row may overlap one more page.
        Some(Finds { miss_bytes: PAGE_BYTES as u64, share: f64::NEG_INFINITY..=1.1 * most })
    }
}

/// The reason why the file cannot be measured in that state.
fn why_not(target: &Target, cache: Cache) -> Result<Option<String>> {
    if cache != Cache::Warm {
        return target.why_not_cold();
    }
    let (needed, there) = (target.total_bytes().saturating_mul(2), machine::available_memory_bytes()?);
    let (shown, free) = (human::size(needed), human::size(there));
    Ok((needed > there / 10 * 9)
        .then(|| format!("in the page cache and in iomill's it takes {shown}, and {free} is free")))
}

/// One way to read rows.
trait Gather {
    /// Copies the rows of these numbers to `out`, one after the other.
    fn gather(&mut self, ids: &[u64], out: &mut [u8]) -> Result<()>;
}

/// The rows that the slices of a contender read.
#[derive(Debug)]
struct Course<'a> {
    target: &'a Target,
    reads: &'a RowReads,
    list: &'a [u64],
    cache: Cache,
    /// If a call is not over at the end of the slice, it may end after this number of rows. A mapping without advice
    /// may take a minute for a whole call.
    step: usize,
}

impl Course<'_> {
    /// Runs one slice. Calls `ready` when it is set up and before the clock starts.
    fn run<G: Gather>(
        &self,
        slice: &Slice<'_>,
        ready: &mut dyn FnMut() -> Result<()>,
        make: impl Fn() -> Result<G> + Sync,
    ) -> Result<Sample> {
        let (threads, listed) = (slice.threads.max(1), self.list.len());
        threads::run_told(
            &AtomicBool::new(false),
            slice,
            |thread| {
                let list = &self.list[listed * thread / threads..listed * (thread + 1) / threads];
                // Not zero, so that its pages are in memory before the slice.
                let out = vec![1; self.reads.batch as usize * self.reads.row_bytes as usize];
                Ok((make()?, list, out))
            },
            ready,
            |(gather, list, out), stop| self.work(gather, list, out, slice.verify, stop),
        )
    }

    fn work(
        &self,
        gather: &mut impl Gather,
        list: &[u64],
        out: &mut [u8],
        verify: bool,
        stop: &AtomicBool,
    ) -> Result<Count> {
        let (mut count, mut left, row_bytes) = (Count::new()?, list, self.reads.row_bytes as usize);
        while goes_on(count.ops, stop) {
            if left.is_empty() {
                // A cold slice reads no row twice.
                if self.cache == Cache::Cold || list.is_empty() {
                    break;
                }
                left = list;
            }
            let ids = &left[..left.len().min(self.reads.batch as usize)];
            let (mut done, start) = (0, Instant::now());
            for (ids, out) in ids.chunks(self.step).zip(out.chunks_mut(self.step.saturating_mul(row_bytes))) {
                let out = &mut out[..ids.len() * row_bytes];
                gather.gather(ids, out)?;
                black_box(&*out);
                done += ids.len();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            if done == ids.len() {
                count.record(start.elapsed());
            }
            if verify {
                for (&id, row) in ids[..done].iter().zip(out.chunks_exact(row_bytes)) {
                    self.target.verify(0, id * row_bytes as u64, row)?;
                }
            }
            count.ops += done as u64;
            left = &left[done..];
        }
        count.bytes = count.ops * row_bytes as u64;
        Ok(count)
    }
}
