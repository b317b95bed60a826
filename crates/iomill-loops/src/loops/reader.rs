//! What the loops have in common: the reads, a thread of a loop, and its failures.

use std::sync::atomic::AtomicBool;

use iomill::{Error, Result};

/// Reads per system call of the loops that have several in flight. From 16 to 128 the CPU time per read differs by less
/// than 4% on drives that answer at once. Larger batches leave a drive idle for longer.
pub(super) const BATCH: usize = 32;

/// What is read at random.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Threads that read at the same time.
    pub threads: usize,
    /// Reads in flight on each drive for each thread. `pread` has one.
    pub depth: u32,
    /// Bytes per read: whole pages.
    pub request_bytes: u32,
}

/// Why a loop yielded nothing.
#[derive(Debug)]
pub enum Failed {
    /// The kernel or the file system refuses this loop. Another one may work.
    Refused(String),
    /// A read failed, or the machine lacks something that each loop needs.
    Error(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Error(error)
    }
}

/// What one thread of a loop has set up.
pub(super) trait Reader {
    /// Reads until `stop` is set, or all was read. Returns the number of reads. On a busy machine `stop` may be set before it starts.
    /// It then reads one batch, because a point without reads says nothing.
    fn read(&mut self, stop: &AtomicBool) -> Result<u64>;
}
