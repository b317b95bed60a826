//! [`SumsMemory`]: the bound on the pages of sums in memory, for all files of an array together. Non-goals: writing
//! them, which `part` does.
//!
//! The pages of sums are in a queue. The one at its head leaves memory, unless an operation holds it, or has used it
//! since the last look. Then it goes to the end of the queue. So a page of sums that a scan uses once leaves first.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::page::Chunk;
use crate::drive::PAGE_BYTES;
use crate::error::Result;
use crate::sys::sync::{Mutex, lock};

/// The bound without a cache, and with a small one, in pages of sums: 16 MiB, for 16 GiB of data.
const LEAST: usize = (16 << 20) / PAGE_BYTES;
/// Pages of the cache for each page of sums. Random reads use a page of sums a thousand times as often as a page.
const CACHE_SHARE: u64 = 16;

/// See the module.
#[derive(Debug)]
pub struct SumsMemory {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Of each page of sums in memory. Those of some others stay for a while.
    entries: VecDeque<QueuedChunk>,
    /// The number of the next entry.
    next: u64,
}

#[derive(Debug)]
struct QueuedChunk {
    part: Weak<dyn HasPages>,
    chunk: u64,
    number: u64,
}

/// What has pages of sums in memory.
pub trait HasPages: std::fmt::Debug + Send + Sync {
    /// Removes the page of sums of an entry from memory, unless an operation holds it, or has used it since the last
    /// call. If it differs from the drive, it is written there first. Returns whether it is not in memory any more.
    /// After an error it stays.
    fn forget(&self, number: u64, entry: u64) -> Result<bool>;
}

impl SumsMemory {
    /// Room for `most` pages of sums, and for those that operations hold.
    pub fn new(most: usize) -> Arc<SumsMemory> {
        Arc::new(SumsMemory { most: most.max(1), queue: Mutex::default() })
    }

    /// Room for the pages of sums of an array with a cache of this size.
    pub fn beside_cache(cache_pages: u64) -> Arc<SumsMemory> {
        SumsMemory::new(LEAST.max((cache_pages / CACHE_SHARE) as usize))
    }

    /// A page of sums has come to memory. Others leave it, if there are too many. The caller may hold this page, and
    /// has no lock of a part but `written`.
    pub fn enter(&self, part: Weak<dyn HasPages>, number: u64, chunk: &Chunk) {
        let mut looks = {
            let mut queue = lock(&self.queue);
            let entry = QueuedChunk { part, chunk: number, number: queue.next };
            chunk.set_entry(entry.number);
            queue.next += 1;
            queue.entries.push_back(entry);
            // Each page is looked at twice: the first look takes its note of use.
            2 * queue.entries.len()
        };
        // The queue is free while a page of sums is written, so other threads go on.
        while looks > 0
            && let Some(entry) = self.next()
        {
            looks -= 1;
            let forgotten = entry.part.upgrade().map_or(Ok(true), |part| part.forget(entry.chunk, entry.number));
            if !matches!(forgotten, Ok(true)) {
                lock(&self.queue).entries.push_back(entry);
            }
            if forgotten.is_err() {
                // Its drive may be full. Further pages of sums are tried later (`PartSums::check_memory`).
                break;
            }
        }
    }

    /// The entry at the head of the queue, if there are too many.
    fn next(&self) -> Option<QueuedChunk> {
        let mut queue = lock(&self.queue);
        if queue.entries.len() > self.most { queue.entries.pop_front() } else { None }
    }

    /// Whether pages of sums had to stay in memory.
    pub fn is_over(&self) -> bool {
        lock(&self.queue).entries.len() > self.most
    }
}
