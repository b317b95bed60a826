//! The sets with pages that are dirty or being flushed, as a bit for each set.
//!
//! Goals: a sync of a file looks at these sets, and at no others. Non-goals: the pages and their files (the set's
//! header has them).
//!
//! Rule: the bit of a set changes only under the set's lock, after a change of the set's masks. So the bit is set from
//! a write until a flush has cleaned the set.

use std::io;

use super::directory::SetIndex;
use super::set::Locked;
use super::words::Words;
use crate::sys::sync::Ordering;

/// The number of sets in a word.
const BITS: u32 = u64::BITS;

/// A bit for each set.
#[derive(Debug)]
pub struct DirtySets(Words);

impl DirtySets {
    /// The bits of `sets_max` clean sets.
    pub fn new(sets_max: u32) -> io::Result<DirtySets> {
        Ok(DirtySets(Words::new(sets_max.div_ceil(BITS) as usize)?))
    }

    /// Notes whether a locked set has such pages.
    #[inline]
    pub fn note(&self, SetIndex(index): SetIndex, set: &Locked<'_>) {
        let (word, bit) = (&self.0.all()[(index / BITS) as usize], 1 << (index % BITS));
        let is_dirty = set.dirty() | set.flushing() != 0;
        // The set's lock protects this bit, so a change of the others does not matter to the load.
        match (word.load(Ordering::Relaxed) & bit != 0, is_dirty) {
            (false, true) => _ = word.fetch_or(bit, Ordering::Relaxed),
            // Release: pairs with the Acquire in `all`.
            (true, false) => _ = word.fetch_and(!bit, Ordering::Release),
            _ => {}
        }
    }

    /// The sets below number `sets`, rounded up to a word, that have their bit. If a set is not among them, the caller
    /// sees everything that the threads that cleaned it had seen.
    pub fn all(&self, sets: u32) -> impl Iterator<Item = SetIndex> {
        let words = self.0.all()[..sets.div_ceil(BITS) as usize].iter().zip(0..);
        words.flat_map(move |(word, at)| {
            // Acquire: pairs with the Release in `note`.
            let mut bits = word.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let index = (bits != 0).then(|| at * BITS + bits.trailing_zeros())?;
                bits &= bits - 1;
                Some(SetIndex(index))
            })
        })
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::cache::key::Key;
    use crate::cache::policy::PolicyKind;
    use crate::cache::{Cache, CacheConfig, Flush, Wrote};
    use crate::drive::PAGE_BYTES;

    /// A sync looks at no clean set, and at each dirty one until its pages are on their drives.
    #[test]
    fn exactly_the_dirty_sets_are_looked_at() {
        let bytes = 4000 * PAGE_BYTES as u64;
        let config =
            CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        let cache = Cache::new(config).unwrap();
        let dirty = || cache.dirty_sets.all(cache.directory.sets()).map(|SetIndex(index)| index).collect::<Vec<_>>();
        let key = |page| Key::new(1, page).unwrap();
        let set_index = |page| cache.directory.set_index(key(page).hash()).0;
        let (page, mut copy) = ([7; PAGE_BYTES], [0; PAGE_BYTES]);
        for number in 0..20 {
            // SAFETY: a whole page.
            let wrote = unsafe { cache.write(key(number), key(number).hash(), 0, page.as_ptr(), PAGE_BYTES, || true) };
            assert!(matches!(wrote, Wrote::Done { .. }));
        }
        let places = |from| {
            let mut places: Vec<u32> = (from..20).map(set_index).collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        for flushed in 0..18 {
            assert_eq!(dirty(), places(flushed));
            // SAFETY: a whole page, and ours.
            assert_eq!(unsafe { cache.begin_flush(key(flushed), copy.as_mut_ptr()) }, Flush::Begun);
            assert_eq!(dirty(), places(flushed), "it is on its way");
            cache.end_flush(key(flushed), Ok(()));
        }
        cache.discard(1, 0);
        assert_eq!(dirty(), []);
    }
}
