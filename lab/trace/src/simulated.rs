//! The trait of a simulated cache.

use crate::pages::Access;

/// A cache that takes accesses one by one.
pub trait Simulated {
    /// Takes an access. Says whether it hit. After a miss the page is in the cache.
    fn access(&mut self, access: Access) -> bool;

    /// Takes several accesses. Returns how many hit.
    fn hits(&mut self, accesses: impl Iterator<Item = Access>) -> usize
    where
        Self: Sized,
    {
        accesses.filter(|access| self.access(*access)).count()
    }
}
