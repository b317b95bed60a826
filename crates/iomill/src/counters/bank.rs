//! [`Bank`]: the words of one owner, and what each of them counts.

use std::sync::atomic::AtomicU64;

/// The number of words in a bank. A bank is then eight pairs of cache lines, and no two banks share one.
pub(super) const BANK_WORDS: usize = 128;
pub(super) const BANK_BYTES: usize = BANK_WORDS * 8;
/// The most banks on a board. Later owners count in plain memory.
pub(super) const BANKS_MAX: usize = 1 << 14;

/// The memory of all banks in bytes.
pub(crate) const BANKS_BYTES: u64 = (BANKS_MAX * BANK_BYTES) as u64;

/// The word of a bank that holds its kind: 0 is none yet.
pub(super) const KIND_WORD: usize = 0;
pub(super) const KIND_THREAD: u64 = 1;
/// The kind of drive 0's banks. Drive 1's is one more, and so on.
pub(super) const KIND_DRIVE: u64 = 2;
/// The first word of the histogram in a drive's bank.
pub(super) const LATENCY_WORD: usize = 16;

#[repr(C, align(1024))]
pub(super) struct Bank(pub(super) [AtomicU64; BANK_WORDS]);

/// The counters of a thread for an array. Their numbers are part of the published format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Pages found in the cache.
    Hits = 1,
    /// Pages that a call needed and the cache did not have.
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
    /// Pages read into frames before a call needed them.
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
pub(super) enum DriveCounter {
    Reads = 1,
    Writes = 2,
    Syncs = 3,
    ReadBytes = 4,
    WriteBytes = 5,
    Errors = 6,
    InFlight = 7,
    LatencySumNs = 8,
}
