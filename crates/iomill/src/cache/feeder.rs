//! The last hits of a thread. The policy learns of them when a page needs room.
//!
//! Hits must not store to anything that threads share. So each thread notes its hits in a ring of its own. It hands
//! them over at a miss, when it has to take a lock anyway. Hits that are overwritten between two misses are lost. A
//! policy that compares ages and frequencies hardly notices that. A warm cache has no misses, so it loses nothing.

use std::cell::Cell;

use super::key::Key;

/// Hits that a feeder remembers.
pub const FEEDER_LEN: usize = 64;

/// Hits that the policy learns of at a time: a cache line of keys. Between two misses there are mostly few.
pub const DRAIN_LEN: usize = 8;

/// The keys of a thread's last hits. The owner counts the hits, because it does so anyway.
#[derive(Clone, Debug)]
pub struct RecentHits {
    keys: [Cell<Key>; FEEDER_LEN],
    /// The owner's count at the last drain.
    drained: Cell<u64>,
}

impl RecentHits {
    /// No hits, for an owner that has counted `count` until now.
    pub fn new(count: u64) -> RecentHits {
        RecentHits { keys: [const { Cell::new(Key::NOTHING) }; FEEDER_LEN], drained: Cell::new(count) }
    }

    /// Notes a hit of an owner that had counted `count` before it. Returns `true` once in [`FEEDER_LEN`] hits.
    #[inline(always)]
    pub fn push(&self, count: u64, key: Key) -> bool {
        let at = count as u32 % FEEDER_LEN as u32;
        self.keys[at as usize].set(key);
        at == FEEDER_LEN as u32 - 1
    }

    /// Hits since the last drain that are not remembered. The owner has counted `count`.
    #[inline]
    pub fn lost(&self, count: u64) -> u64 {
        (count - self.drained.get()).saturating_sub(FEEDER_LEN as u64)
    }

    /// Hands out the hits that are remembered, in order and several at a time, and forgets them. The owner has counted `count`.
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

/// The same with a count of its own, for simulations.
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
