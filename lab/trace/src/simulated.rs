//! The trait of a simulated cache.

use crate::pages::Access;

/// A cache that is given accesses one by one.
pub trait Simulated {
    /// Makes an access. Returns whether it hit. After a miss the page is in the cache.
    fn access(&mut self, access: Access) -> bool;

    /// Makes several accesses. Returns the number of hits.
    fn hits(&mut self, accesses: impl Iterator<Item = Access>) -> usize
    where
        Self: Sized,
    {
        accesses.filter(|access| self.access(*access)).count()
    }
}
