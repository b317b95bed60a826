//! XXH3, the hash of the formats. [`NumberHasher`], for maps by small numbers. Non-goals: keys that an adversary chooses.

use std::hash::Hasher;

use twox_hash::{XxHash3_64, XxHash3_128};

/// The XXH3 hash of 64 bits with seed 0.
pub fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The XXH3 hash of 128 bits with seed 0.
pub fn xxh3_128(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// The XXH3 hash of 64 bits with a seed.
#[cfg(test)]
pub fn xxh3_64_with_seed(bytes: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// Keys are small numbers that differ, so one multiplication spreads them.
#[derive(Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let spread = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}
