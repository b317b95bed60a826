//! The counters of an array. They are cheap, and always on.
//!
//! Goals: a count costs the hot path a plain load, add and store, on a cache line that no other thread writes. Sums
//! never decrease. Other processes can read them (`iomill top`). Non-goals: one moment at which all counters agree.
//! Each is right by itself.
//!
//! - `mod.rs`, `board.rs`: rows, their owners, and the board of all rows.
//! - `latency.rs`: histograms, four buckets to each power of two.
//! - `snapshot.rs`, `metrics.rs`: sums, and their form for Prometheus.
//! - `published.rs`, `runtime.rs`: the file in memory that other processes read.
//!
//! Rules:
//! 1. A row is an array of words in the memory of the array's [`Board`]. One owner at a time writes to it: a [`Tally`]
//!    of a thread, or a [`DriveTally`] of a drive queue. So an addition needs no locked instruction. Every thread and
//!    process may read it.
//! 2. A row is never cleared. When its owner ends, the next owner of the same kind adds to the row's values. So the sum
//!    over all rows never decreases.
//! 3. The words are std's atomics, in models, too: other processes may read their memory, and no protocol depends on
//!    them.
//!
//! A row has 1 KiB. One request in 17 is timed.
//!
//! # What other processes see
//!
//! On the real platform the rows lie in a file in memory, which `iomill top` reads: in `$XDG_RUNTIME_DIR/iomill`, else
//! in `/dev/shm/iomill-<uid>`. The file belongs to the user alone.
//!
//! - The owner locks its file for as long as it lives. A file without a lock is stale. The process that finds it
//!   removes it.
//! - The owner allocates the memory before it touches the mapping. So a full `/dev/shm` costs a notice and not the
//!   process.
//! - The reader maps nothing, and trusts nothing in the file.
//! - A forked child that runs on without `exec` keeps the file of a killed parent, as it keeps the array's lock.

mod board;
mod latency;
mod metrics;
mod published;
mod runtime;
mod snapshot;

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::clock::Clock;

pub use board::{Board, Subject};
pub use latency::{BUCKETS, Latency};
pub use published::{Published, find};
pub use runtime::directories;
pub use snapshot::{Counters, DriveCounters};

/// The number of words in a row. A row is then eight pairs of cache lines, and no two rows share one.
const ROW_WORDS: usize = 128;
const ROW_BYTES: usize = ROW_WORDS * 8;
/// The most rows on a board. Later owners count in plain memory.
const ROWS_MAX: usize = 1 << 14;

/// The memory of all rows in bytes.
pub(crate) const ROWS_BYTES: u64 = (ROWS_MAX * ROW_BYTES) as u64;

/// The word of a row that holds its kind: 0 is none yet.
const KIND_WORD: usize = 0;
const KIND_THREAD: u64 = 1;
/// The kind of drive 0's rows. Drive 1's is one more, and so on.
const KIND_DRIVE: u64 = 2;
/// The first word of the histogram in a drive's row.
const LATENCY_WORD: usize = 16;

/// The number of requests for each one that is timed. It is odd, because batch sizes are powers of two, and would fall
/// into step with an even number.
pub const TIMED_ONE_IN: u32 = 17;

#[repr(C, align(1024))]
struct Row([AtomicU64; ROW_WORDS]);

/// The counters of a thread for an array. Their numbers are part of the published format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Pages found in the cache.
    Hits = 1,
    /// Pages asked for and not found in the cache.
    Misses = 2,
    /// Pages read into frames.
    Fills = 3,
    /// Pages evicted for another page.
    Evictions = 4,
    /// Pages written from frames to their drives.
    Flushes = 5,
    /// Pages read or written past the cache.
    Bypasses = 6,
    /// Waits of calls for a page on which another call worked.
    Waits = 7,
    /// Pins taken.
    Pins = 8,
    /// Bytes that calls have read, or have begun to.
    BytesRead = 9,
    /// Bytes that calls have written, or have begun to.
    BytesWritten = 10,
    /// Pages read into frames before a call asked for them.
    ReadAhead = 11,
}

impl Counter {
    /// All counters.
    pub const ALL: [Counter; 11] = [
        Counter::Hits,
        Counter::Misses,
        Counter::Fills,
        Counter::Evictions,
        Counter::Flushes,
        Counter::Bypasses,
        Counter::Waits,
        Counter::Pins,
        Counter::BytesRead,
        Counter::BytesWritten,
        Counter::ReadAhead,
    ];
}

/// The counters of a drive queue. Their numbers are part of the published format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum DriveCounter {
    Reads = 1,
    Writes = 2,
    Syncs = 3,
    ReadBytes = 4,
    WriteBytes = 5,
    Errors = 6,
    InFlight = 7,
    LatencySumNs = 8,
}

/// The ownership of a row. It is `Send` and not `Sync`, because only the thread that holds it writes (rule 1).
struct Owned {
    board: Arc<Board>,
    /// Valid while the board lives.
    row: NonNull<Row>,
    /// Keeps `&Owned` on one thread.
    not_sync: PhantomData<Cell<u64>>,
}

// SAFETY: the row consists of atomics in the board's memory, which belongs to no thread. A move to another thread
// orders the old owner's stores before the new owner's.
unsafe impl Send for Owned {}

/// Adds to a word of the calling thread's row.
#[inline(always)]
fn add(word: &AtomicU64, amount: u64) {
    // Only the row's owner writes (rule 1), so nothing is lost between the load and the store.
    word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Counts a hit. `note` gets the number of hits before it.
#[inline(always)]
fn hit<R>(hits: &AtomicU64, note: impl FnOnce(u64) -> R) -> R {
    let noted = note(hits.load(Ordering::Relaxed));
    add(hits, 1);
    noted
}

impl Owned {
    fn words(&self) -> &[AtomicU64; ROW_WORDS] {
        // SAFETY: `self` holds the board, so the row is valid. It consists of atomics, which may be shared.
        unsafe { &self.row.as_ref().0 }
    }

    #[inline(always)]
    fn add(&self, word: usize, amount: u64) {
        add(&self.words()[word], amount);
    }

    fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Relaxed);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child leaves the row to the parent. The pool's lock may be held for ever there, by a thread that
        // only the parent has.
        if self.board.is_here() {
            self.board.give_back(self.row);
        }
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.row).finish()
    }
}

/// A thread's counters for one array. [`Board::tally`] finds them.
#[derive(Clone, Debug)]
pub struct Tally {
    /// A copy of `owned.row`, which saves a hit one load.
    row: NonNull<Row>,
    owned: Rc<Owned>,
}

impl Tally {
    fn new(owned: Owned) -> Tally {
        Tally { row: owned.row, owned: Rc::new(owned) }
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64; ROW_WORDS] {
        // SAFETY: the row is valid while `owned` lives. It consists of atomics, which may be shared.
        unsafe { &self.row.as_ref().0 }
    }

    /// The value of a counter in this row: of this thread and of the row's earlier owners.
    #[inline(always)]
    pub fn get(&self, id: Counter) -> u64 {
        self.words()[id as usize].load(Ordering::Relaxed)
    }

    /// Adds to a counter.
    #[inline(always)]
    pub fn add(&self, id: Counter, amount: u64) {
        add(&self.words()[id as usize], amount);
    }

    /// Counts a hit. `note` gets the number of hits before it.
    #[inline(always)]
    pub fn hit<R>(&self, note: impl FnOnce(u64) -> R) -> R {
        hit(&self.words()[Counter::Hits as usize], note)
    }

    /// Counts a hit as [`Tally::hit`], and adds to another counter.
    #[inline(always)]
    pub fn hit_and<R>(&self, other: Counter, amount: u64, note: impl FnOnce(u64) -> R) -> R {
        // Loaded once: after a store to the words the compiler would load `row` again.
        let words = self.words();
        add(&words[other as usize], amount);
        hit(&words[Counter::Hits as usize], note)
    }
}

/// A drive queue's counters.
#[derive(Debug)]
pub struct DriveTally(Owned);

impl DriveTally {
    /// Counts a read that succeeded.
    #[inline]
    pub fn read(&self, bytes: u64) {
        self.0.add(DriveCounter::Reads as usize, 1);
        self.0.add(DriveCounter::ReadBytes as usize, bytes);
    }

    /// Counts a write that succeeded.
    #[inline]
    pub fn wrote(&self, bytes: u64) {
        self.0.add(DriveCounter::Writes as usize, 1);
        self.0.add(DriveCounter::WriteBytes as usize, bytes);
    }

    /// Counts a sync that succeeded.
    pub fn synced(&self) {
        self.0.add(DriveCounter::Syncs as usize, 1);
    }

    /// Counts a read, write or sync that failed, after all retries.
    #[cold]
    pub fn failed(&self) {
        self.0.add(DriveCounter::Errors as usize, 1);
    }

    /// Sets the number of requests in flight.
    #[inline]
    pub fn set_in_flight(&self, count: usize) {
        self.0.set(DriveCounter::InFlight as usize, count as u64);
    }

    /// Adds the latency of a timed read or write.
    pub fn took(&self, latency_ns: u64) {
        self.0.add(LATENCY_WORD + latency::bucket(latency_ns), 1);
        self.0.add(DriveCounter::LatencySumNs as usize, latency_ns);
    }
}

impl Drop for DriveTally {
    fn drop(&mut self) {
        // The row stays in the sums, so its gauge is cleared. A forked child leaves the row to the parent.
        if self.0.board.is_here() {
            self.set_in_flight(0);
        }
    }
}

/// The source of counters for the queues of one drive.
#[derive(Clone, Debug)]
pub struct Meter {
    board: Arc<Board>,
    drive: u16,
    clock: Arc<dyn Clock>,
}

impl Meter {
    /// A meter for one drive, with times from `clock`.
    pub fn new(board: &Arc<Board>, drive: u16, clock: &Arc<dyn Clock>) -> Meter {
        Meter { board: Arc::clone(board), drive, clock: Arc::clone(clock) }
    }

    /// The counters and the stopwatch of one queue.
    pub fn probe(&self) -> Probe {
        let tally = self.board.take_drive(self.drive);
        Probe { tally, clock: Arc::clone(&self.clock), until_timed: TIMED_ONE_IN }
    }
}

/// The counters of one queue, and a stopwatch for some of its requests.
#[derive(Debug)]
pub struct Probe {
    /// The counters.
    pub tally: DriveTally,
    clock: Arc<dyn Clock>,
    until_timed: u32,
}

impl Probe {
    /// Called when a request starts. Returns a stamp for [`Probe::stop`], or 0 if the request is not timed.
    #[inline]
    pub fn start(&mut self) -> u64 {
        self.until_timed -= 1;
        if self.until_timed > 0 {
            return 0;
        }
        self.until_timed = TIMED_ONE_IN;
        // At least 1, because 0 stands for "not timed".
        self.clock.now_ns().max(1)
    }

    /// Called when a request has succeeded.
    #[inline]
    pub fn stop(&self, stamp: u64) {
        if stamp != 0 {
            self.tally.took(self.clock.now_ns().saturating_sub(stamp));
        }
    }
}

#[cfg(test)]
mod tests;
