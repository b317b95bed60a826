//! The loops that `iomill bench quick` times: random reads of pages by iomill, by io_uring by hand, by `pread` and by
//! `mmap`.
//!
//! Goals: each loop is what an expert writes for these reads. Each page that a loop reads is checked.
//! Non-goals: rounds, figures, tables. The command has them.

mod calls;
mod memory;
mod pages;
mod ring;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iomill::Result;

pub use calls::{Gather, OneByOne};
pub use pages::{BLOCK_BYTES, DRIVES, Deck, PAGE_BYTES, fill, place};
pub use ring::Ring;

/// Reads pages in a loop.
pub trait Reads {
    /// Reads pages of the deck within the limits, checks them, and adds to the count.
    fn run(&mut self, deck: &mut Deck, limits: &Limits<'_>, count: &mut Count) -> Result<()>;
}

/// What ends a loop.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// How long it runs.
    pub duration: Duration,
    /// How many pages it starts to read.
    pub pages_max: u64,
    /// Ends it soon once it is set.
    pub stop: &'a AtomicBool,
}

impl Limits<'_> {
    /// Whether a loop that ends at `end` goes on.
    #[inline]
    fn goes_on(&self, end: Instant, now: Instant) -> bool {
        now < end && !self.stop.load(Ordering::Relaxed)
    }
}

/// What a loop has done.
#[derive(Clone, Debug, Default)]
pub struct Count {
    /// Pages that were read and are right.
    pub pages: u64,
    /// How long single reads took. Only loops with one read in flight time them.
    pub latencies_ns: Vec<u32>,
}

impl Count {
    #[inline]
    fn add(&mut self, latency: Duration) {
        self.latencies_ns.push(latency.as_nanos().min(u32::MAX.into()) as u32);
    }
}

#[cfg(test)]
mod tests;
