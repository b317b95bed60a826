//! What a simulation asks of a cache.

use crate::pages::Access;

/// A cache that takes accesses one by one.
pub trait Simulated {
    /// Takes an access; whether it hit. What missed is in the cache afterwards.
    fn access(&mut self, access: Access) -> bool;

    /// Takes some; how many hit.
    fn hits(&mut self, accesses: impl Iterator<Item = Access>) -> usize
    where
        Self: Sized,
    {
        accesses.filter(|access| self.access(*access)).count()
    }
}
