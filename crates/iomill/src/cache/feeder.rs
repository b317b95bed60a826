//! What a thread has hit lately, told to the policy when somebody needs room.
//!
//! Hits must not store to anything that threads share. So each thread notes its hits in a ring of its own, and hands them over
//! when it has to take a lock anyway: at a miss. What is overwritten between two misses is lost, which a policy that compares
//! ages and frequencies hardly notices; a warm cache, which has no misses, notes nothing and loses nothing by it.

use super::directory::{Directory, Place};
use super::key::Hash;

/// Hits that a feeder remembers.
pub const FEEDER_LEN: usize = 64;

/// Hits that are told to the policy at a time: a cache line of hashes. Between two misses there are mostly few.
const TOLD_LEN: usize = 8;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Feeder {
    hits: [(Place, u32, Hash); FEEDER_LEN],
    /// Hits since the last drain, also those that were overwritten since.
    count: usize,
}

impl Default for Feeder {
    fn default() -> Feeder {
        Feeder { hits: [(Place(0), 0, Hash(0)); FEEDER_LEN], count: 0 }
    }
}

impl Feeder {
    /// Takes note of a hit; `true` once in [`FEEDER_LEN`] of them.
    #[inline(always)]
    pub fn push(&mut self, place: Place, way: usize, hash: Hash) -> bool {
        self.hits[self.count % FEEDER_LEN] = (place, way as u32, hash);
        self.count += 1;
        self.count.is_multiple_of(FEEDER_LEN)
    }

    /// Hits noted since the last drain.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tells a directory's policy what is remembered, in its order, and forgets it. A way may hold another page by now: that one
    /// is taken for younger than it is.
    pub fn drain(&mut self, directory: &Directory) {
        let mut next = self.count - self.count.min(FEEDER_LEN);
        while next < self.count {
            let mut hashes = [Hash(0); TOLD_LEN];
            let len = TOLD_LEN.min(self.count - next);
            for told in &mut hashes[..len] {
                let (place, way, hash) = self.hits[next % FEEDER_LEN];
                directory.hit(place, way as usize);
                *told = hash;
                next += 1;
            }
            if directory.wants_feed() {
                directory.policy().feed(&hashes[..len]);
            }
        }
        self.count = 0;
    }
}
