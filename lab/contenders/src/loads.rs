//! Reads of single pages in batches: random, strided, sequential, mixed.
//!
//! Goals: batches large enough for merging, and nothing in the loop but the draw and the call. Non-goals: writes.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use iomill::{Array, Buffer, File, Result};

use crate::arena::SEED;
use crate::pattern::{self, PAGE_BYTES, Rng, mix};
use crate::threads::{Count, goes_on};

/// Pages of a batch: 32 times the longest merged I/O, so that the drives stay busy when requests merge.
pub const BATCH_PAGES: usize = 2048;

/// With this distance in pages between requests there is nothing to merge.
const STRIDE_PAGES: u64 = 2;

/// The pages that are read, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Random pages.
    Random,
    /// Every other page, ascending.
    Strided,
    /// Page after page.
    Sequential,
    /// Alternately the next page of a sequential stream and a random page.
    Mixed,
}

impl Load {
    /// All loads.
    pub const ALL: [Load; 4] = [Load::Random, Load::Strided, Load::Sequential, Load::Mixed];
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Load::Random => "random-read-4KiB",
            Load::Strided => "strided-read-4KiB",
            Load::Sequential => "sequential-read-4KiB",
            Load::Mixed => "mixed-read-4KiB",
        })
    }
}

/// Draws the pages of a load.
struct Places {
    load: Load,
    pages: u64,
    next: u64,
    /// In a mixed load: whether the last page was random.
    at_random: bool,
    rng: Rng,
}

impl Places {
    fn draw(&mut self) -> u64 {
        self.at_random = match self.load {
            Load::Random => true,
            Load::Strided | Load::Sequential => false,
            Load::Mixed => !self.at_random,
        };
        if self.at_random {
            return ((u128::from(self.rng.draw()) * u128::from(self.pages)) >> 64) as u64;
        }
        let page = self.next % self.pages;
        self.next = page + if self.load == Load::Strided { STRIDE_PAGES } else { 1 };
        page
    }
}

/// A thread that reads.
pub struct Worker {
    file: File,
    places: Places,
    offsets: Vec<u64>,
    buffer: Buffer,
}

impl Worker {
    /// Thread `thread` of `threads`. The first read makes the rings before the clock starts.
    pub fn new(array: &Array, file: &File, load: Load, (thread, threads): (usize, usize)) -> Result<Worker> {
        let pages = file.len() / PAGE_BYTES as u64;
        let mut buffer = array.buffer(BATCH_PAGES * PAGE_BYTES)?;
        let next = pages / threads.max(1) as u64 * thread as u64;
        let rng = Rng::new(mix(thread as u64) ^ u64::from(std::process::id()));
        file.read_at(&mut buffer[..PAGE_BYTES], 0)?;
        let places = Places { load, pages, next, at_random: false, rng };
        Ok(Worker { file: file.clone(), places, offsets: Vec::new(), buffer })
    }

    /// Reads until `stop`, and counts. Returns the error of a read or of its check.
    pub fn work(&mut self, stop: &AtomicBool, verify: bool) -> Result<Count> {
        let mut count = Count::new()?;
        while goes_on(count.ops, stop) {
            self.offsets.clear();
            self.offsets.extend((0..BATCH_PAGES).map(|_| self.places.draw() * PAGE_BYTES as u64));
            let start = Instant::now();
            self.file.read_many(&mut self.buffer, &self.offsets, PAGE_BYTES)?;
            count.record(start.elapsed());
            count.ops += BATCH_PAGES as u64;
            count.bytes += (BATCH_PAGES * PAGE_BYTES) as u64;
            if !verify {
                continue;
            }
            for (&offset, page) in self.offsets.iter().zip(self.buffer.chunks(PAGE_BYTES)) {
                pattern::check_stamps(self.file.name(), SEED, offset, page)?;
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_what_they_say() {
        let draw = |load| {
            let mut places = Places { load, pages: 8, next: 0, at_random: false, rng: Rng::new(5) };
            (0..12).map(|_| places.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(Load::Sequential), [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(draw(Load::Strided)[..5], [0, 2, 4, 6, 0]);
        assert_eq!(draw(Load::Mixed).into_iter().skip(1).step_by(2).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(draw(Load::Random).iter().all(|&page| page < 8));
        assert!(!draw(Load::Random).is_sorted());
    }
}
