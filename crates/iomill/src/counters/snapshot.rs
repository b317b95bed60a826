//! The sums of counters at one moment.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bank::{BANK_WORDS, Bank, Counter, DriveCounter, KIND_DRIVE, KIND_THREAD, KIND_WORD, LATENCY_WORD};
use super::latency::{BUCKETS, Latency};

/// The counters of an array since it was opened, summed over all threads. Only the gauges ever decrease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Counters {
    /// Memory for cached pages, in bytes; 0 without a cache. A gauge.
    pub cache_bytes: u64,
    /// Pages found in the cache, counted once for each range that needs the page. So the rows of one page that a call
    /// gathers are several hits, and all of them but the first may be hits of a page that this call has read.
    pub hits: u64,
    /// Pages that a call needed and the cache did not have.
    pub misses: u64,
    /// Pages read into frames.
    pub fills: u64,
    /// Pages evicted for another page.
    pub evictions: u64,
    /// Pages written from frames to their drives.
    pub flushes: u64,
    /// Pages read or written past the cache.
    pub bypasses: u64,
    /// Waits of calls for a page on which another call worked.
    pub waits: u64,
    /// Pins taken.
    pub pins: u64,
    /// Bytes that calls have read, or have begun to.
    pub bytes_read: u64,
    /// Bytes that calls have written, or have begun to.
    pub bytes_written: u64,
    /// Pages read into frames before a call needed them: read-ahead and advice. They count as fills, not as misses.
    pub read_ahead: u64,
    /// The counters of each drive, by its index.
    pub drives: Vec<DriveCounters>,
}

/// The counters of one drive's queues. A request is a piece of a call, as the layout cuts it. Reads of pages only to
/// change bytes in them are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DriveCounters {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Syncs of parts that succeeded.
    pub syncs: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads, writes and syncs that failed, after all retries.
    pub errors: u64,
    /// Requests in flight now. A gauge.
    pub in_flight: u64,
    /// The latencies of reads and writes, of which one in 17 is timed.
    pub latency: Latency,
}

/// The words of a bank at one moment.
pub(super) type BankWords = [u64; BANK_WORDS];

pub(super) fn load(bank: &Bank) -> BankWords {
    std::array::from_fn(|word| AtomicU64::load(&bank.0[word], Ordering::Relaxed))
}

impl Counters {
    /// Counters of an array with `drives` drives, all zero.
    pub(super) fn new(drives: u16) -> Counters {
        Counters { drives: vec![DriveCounters::default(); usize::from(drives)], ..Counters::default() }
    }

    /// Adds a bank; `false` if the bank is invalid.
    pub(super) fn add_bank(&mut self, words: &BankWords) -> bool {
        match words[KIND_WORD] {
            KIND_THREAD => self.add_thread(words),
            kind => {
                let drive = kind.checked_sub(KIND_DRIVE).and_then(|drive| usize::try_from(drive).ok());
                let Some(drive) = drive.and_then(|drive| self.drives.get_mut(drive)) else { return false };
                drive.add(words);
            }
        }
        true
    }

    fn add_thread(&mut self, words: &BankWords) {
        for id in Counter::ALL {
            let sum = self.get_mut(id);
            // A damaged file may have any number.
            *sum = sum.wrapping_add(words[id as usize]);
        }
    }

    fn get_mut(&mut self, id: Counter) -> &mut u64 {
        match id {
            Counter::Hits => &mut self.hits,
            Counter::Misses => &mut self.misses,
            Counter::Fills => &mut self.fills,
            Counter::Evictions => &mut self.evictions,
            Counter::Flushes => &mut self.flushes,
            Counter::Bypasses => &mut self.bypasses,
            Counter::Waits => &mut self.waits,
            Counter::Pins => &mut self.pins,
            Counter::BytesRead => &mut self.bytes_read,
            Counter::BytesWritten => &mut self.bytes_written,
            Counter::ReadAhead => &mut self.read_ahead,
        }
    }

    /// The counts since `earlier`. Gauges have their present values.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let mut passed = self.clone();
        let mut earlier = earlier.clone();
        for id in Counter::ALL {
            let before = *earlier.get_mut(id);
            let sum = passed.get_mut(id);
            *sum = sum.saturating_sub(before);
        }
        for (drive, before) in passed.drives.iter_mut().zip(&earlier.drives) {
            *drive = drive.since(before);
        }
        passed
    }

    /// The share, from 0 to 1, of needed pages that were in the cache; `None` before the first lookup.
    pub fn hit_rate(&self) -> Option<f64> {
        let (hits, misses) = (self.hits as f64, self.misses as f64);
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }
}

impl DriveCounters {
    fn add(&mut self, words: &BankWords) {
        let sums = [
            (&mut self.reads, DriveCounter::Reads),
            (&mut self.writes, DriveCounter::Writes),
            (&mut self.syncs, DriveCounter::Syncs),
            (&mut self.read_bytes, DriveCounter::ReadBytes),
            (&mut self.write_bytes, DriveCounter::WriteBytes),
            (&mut self.errors, DriveCounter::Errors),
            (&mut self.in_flight, DriveCounter::InFlight),
            (&mut self.latency.sum_ns, DriveCounter::LatencySumNs),
        ];
        for (sum, id) in sums {
            *sum = sum.wrapping_add(words[id as usize]);
        }
        for bucket in 0..BUCKETS {
            let sum = &mut self.latency.counts[bucket];
            *sum = sum.wrapping_add(words[LATENCY_WORD + bucket]);
        }
    }

    fn since(&self, earlier: &DriveCounters) -> DriveCounters {
        DriveCounters {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            syncs: self.syncs.saturating_sub(earlier.syncs),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
            errors: self.errors.saturating_sub(earlier.errors),
            in_flight: self.in_flight,
            latency: self.latency.since(&earlier.latency),
        }
    }
}
