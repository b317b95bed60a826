//! What a thread has asked for lately, for policies that count how often pages are asked for.
//!
//! Hits must not store to anything that threads share. So each thread notes its accesses in a ring of its own, and hands them over
//! when it has to take a lock anyway: at a miss. What hits between two misses overwrite is lost, which a policy that compares
//! frequencies hardly notices; a warm cache, which has no misses, counts nothing and loses nothing by it.

use super::key::Hash;

/// Accesses that a feeder remembers.
pub const FEEDER_LEN: usize = 64;

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Feeder {
    hashes: [Hash; FEEDER_LEN],
    /// Accesses since the last drain, also those that were overwritten since.
    count: usize,
}

impl Default for Feeder {
    fn default() -> Feeder {
        Feeder { hashes: [Hash(0); FEEDER_LEN], count: 0 }
    }
}

impl Feeder {
    /// Takes note of an access, hit or miss.
    #[inline]
    pub fn push(&mut self, hash: Hash) {
        self.hashes[self.count % FEEDER_LEN] = hash;
        self.count = self.count.wrapping_add(1);
    }

    /// Hands what is remembered, in its order, to `feed`, and forgets it.
    #[inline]
    pub fn drain(&mut self, mut feed: impl FnMut(&[Hash])) {
        if self.count > FEEDER_LEN {
            let oldest = self.count % FEEDER_LEN;
            feed(&self.hashes[oldest..]);
            feed(&self.hashes[..oldest]);
        } else {
            feed(&self.hashes[..self.count]);
        }
        self.count = 0;
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    fn drained(feeder: &mut Feeder) -> Vec<u64> {
        let mut all = Vec::new();
        feeder.drain(|hashes| all.extend(hashes.iter().map(|hash| hash.0)));
        all
    }

    #[test]
    fn the_last_accesses_come_out_in_order() {
        let mut feeder = Feeder::default();
        for pushed in [0, 1, 63, 64, 65, 100, 128, 1000] {
            (0..pushed).for_each(|n| feeder.push(Hash(n)));
            assert_eq!(drained(&mut feeder), (pushed.saturating_sub(64)..pushed).collect::<Vec<_>>());
            assert_eq!(drained(&mut feeder), []);
        }
    }
}
