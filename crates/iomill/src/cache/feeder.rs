//! The last hits of a thread. The policy learns of them when a page needs room.
//!
//! Hits must not store to anything that threads share. So each thread notes its hits in a ring of its own. It hands
//! them over at a miss, when it has to take a lock anyway. Hits that are overwritten between two misses are lost. A
//! policy that compares ages and frequencies hardly notices that. A warm cache has no misses, so it loses nothing.

use std::cell::Cell;

use super::key::KeyHash;

/// Hits that a feeder remembers.
pub const FEEDER_LEN: usize = 64;

/// Hits that the policy learns of at a time: a cache line of hashes. Between two misses there are mostly few.
const FED_LEN: usize = 8;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Feeder {
    hashes: [Cell<KeyHash>; FEEDER_LEN],
    /// The way of each.
    ways: [Cell<u8>; FEEDER_LEN],
    /// Hits since the last drain, overwritten ones included.
    count: Cell<usize>,
}

impl Default for Feeder {
    fn default() -> Feeder {
        Feeder {
            hashes: [const { Cell::new(KeyHash(0)) }; FEEDER_LEN],
            ways: [const { Cell::new(0) }; FEEDER_LEN],
            count: Cell::new(0),
        }
    }
}

impl Feeder {
    /// Notes a hit. Returns `true` once in [`FEEDER_LEN`] hits.
    #[inline(always)]
    pub fn push(&self, way: u32, hash: KeyHash) -> bool {
        let count = self.count.get();
        self.hashes[count % FEEDER_LEN].set(hash);
        self.ways[count % FEEDER_LEN].set(way as u8);
        self.count.set(count + 1);
        count % FEEDER_LEN == FEEDER_LEN - 1
    }

    /// Hits noted since the last drain.
    pub fn count(&self) -> usize {
        self.count.get()
    }

    /// Hands out the hits that are remembered, in order, and forgets them. Each hit's hash and way go to `hit`. Then
    /// the hashes of several hits go to `feed` together.
    pub fn drain(&self, mut hit: impl FnMut(KeyHash, usize), mut feed: impl FnMut(&[KeyHash])) {
        let count = self.count.replace(0);
        let mut next = count - count.min(FEEDER_LEN);
        while next < count {
            let mut hashes = [KeyHash(0); FED_LEN];
            let len = FED_LEN.min(count - next);
            for place in &mut hashes[..len] {
                let (hash, way) = (self.hashes[next % FEEDER_LEN].get(), self.ways[next % FEEDER_LEN].get());
                hit(hash, way.into());
                *place = hash;
                next += 1;
            }
            feed(&hashes[..len]);
        }
    }
}
