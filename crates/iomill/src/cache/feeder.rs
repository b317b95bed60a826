//! A thread's last hits, for the policy. It gets them at the thread's next miss.
//!
//! A hit must not store to memory that threads share. So each thread notes its hits in a ring of its own, and hands
//! them over at a miss, when it takes a lock anyway. Hits that are overwritten between two misses are lost. This hardly
//! matters to a policy, which compares ages and frequencies. A warm cache has no misses, and so needs no policy.

use std::cell::Cell;

use super::key::Key;

/// The number of hits in a ring.
pub const FEEDER_LEN: usize = 64;

/// The most hits that the policy is told at a time: a cache line of keys. Mostly there are few between two misses.
pub const DRAIN_LEN: usize = 8;

/// The ring of a thread's last hits. Its owner counts the hits, as it does anyway, and passes its count to each call.
#[derive(Clone, Debug)]
pub struct RecentHits {
    keys: [Cell<Key>; FEEDER_LEN],
    /// The owner's count at the last drain.
    drained: Cell<u64>,
}

impl RecentHits {
    /// An empty ring, for an owner with the count `count`.
    pub fn new(count: u64) -> RecentHits {
        RecentHits { keys: [const { Cell::new(Key::NOTHING) }; FEEDER_LEN], drained: Cell::new(count) }
    }

    /// Notes a hit. `count` is the owner's count before it. Returns `true` once in [`FEEDER_LEN`] hits.
    #[inline(always)]
    pub fn push(&self, count: u64, key: Key) -> bool {
        let at = count as u32 % FEEDER_LEN as u32;
        self.keys[at as usize].set(key);
        at == FEEDER_LEN as u32 - 1
    }

    /// The number of hits since the last drain that were overwritten. The owner's count is `count`.
    #[inline]
    pub fn lost(&self, count: u64) -> u64 {
        (count - self.drained.get()).saturating_sub(FEEDER_LEN as u64)
    }

    /// Passes the noted hits to `hits`, in order and up to [`DRAIN_LEN`] at a time, and empties the ring. The owner's
    /// count is `count`.
    pub fn drain(&self, count: u64, mut hits: impl FnMut(&[Key])) {
        let mut next = self.drained.replace(count).max(count.saturating_sub(FEEDER_LEN as u64));
        while next < count {
            let mut keys = [Key::NOTHING; DRAIN_LEN];
            let len = DRAIN_LEN.min((count - next) as usize);
            for key in &mut keys[..len] {
                *key = self.keys[next as usize % FEEDER_LEN].get();
                next += 1;
            }
            hits(&keys[..len]);
        }
    }
}

/// A ring with a count of its own, for simulations.
#[derive(Clone, Debug)]
pub struct Feeder {
    recent: RecentHits,
    count: u64,
}

impl Default for Feeder {
    fn default() -> Feeder {
        Feeder { recent: RecentHits::new(0), count: 0 }
    }
}

impl Feeder {
    /// Notes a hit.
    #[inline]
    pub fn push(&mut self, key: Key) {
        self.recent.push(self.count, key);
        self.count += 1;
    }

    /// As [`RecentHits::lost`].
    pub fn lost(&self) -> u64 {
        self.recent.lost(self.count)
    }

    /// As [`RecentHits::drain`].
    pub fn drain(&mut self, hits: impl FnMut(&[Key])) {
        self.recent.drain(self.count, hits);
    }
}
