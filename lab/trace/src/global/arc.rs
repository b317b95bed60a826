//! Adaptive replacement (Megiddo and Modha, FAST 2003). Pages that were used once and pages that were used again share
//! the cache. The last evicted pages of each group decide their shares.

use super::lists::Lists;
use crate::pages::Access;
use crate::simulated::Simulated;

/// Pages in the cache, used once since they were cached.
const ONCE: usize = 0;
/// Pages in the cache, used again.
const AGAIN: usize = 1;
/// Pages that `ONCE` has evicted: their names are kept.
const ONCE_GONE: usize = 2;
/// Pages that `AGAIN` has evicted.
const AGAIN_GONE: usize = 3;

/// The four lists, each with the last used page at its front. `ONCE` and `AGAIN` together have at most `capacity`
/// pages, and so have `ONCE` and `ONCE_GONE`. All four have at most twice as many.
#[derive(Debug)]
pub(crate) struct ArcPolicy {
    lists: Lists<4>,
    capacity: usize,
    /// The number of pages that `ONCE` should have: 0 to `capacity`.
    target: usize,
}

impl ArcPolicy {
    pub(crate) fn new(unique: usize, capacity: usize) -> ArcPolicy {
        ArcPolicy { lists: Lists::new(unique), capacity, target: 0 }
    }

    /// Evicts one page to make room.
    fn replace(&mut self, wanted_again: bool) {
        let once = self.lists.len(ONCE);
        let from_once = once > 0 && (once > self.target || (wanted_again && once == self.target));
        let (from, to) = if from_once { (ONCE, ONCE_GONE) } else { (AGAIN, AGAIN_GONE) };
        if let Some(index) = self.lists.pop_back(from) {
            self.lists.push_front(to, index);
        }
    }

    /// Makes room for a page without a kept name.
    fn make_room(&mut self) {
        let len = |list| self.lists.len(list);
        let (once, kept) = (len(ONCE) + len(ONCE_GONE), len(ONCE) + len(AGAIN));
        let all = once + len(AGAIN) + len(AGAIN_GONE);
        if once == self.capacity {
            if len(ONCE) == self.capacity {
                // The name of the page is not kept either.
                self.lists.pop_back(ONCE);
                return;
            }
            self.lists.pop_back(ONCE_GONE);
        } else if all == 2 * self.capacity {
            self.lists.pop_back(AGAIN_GONE);
        }
        if kept == self.capacity {
            self.replace(false);
        }
    }
}

impl Simulated for ArcPolicy {
    fn access(&mut self, access: Access) -> bool {
        let index = access.index;
        let list = self.lists.of(index);
        let (once_gone, again_gone) = (self.lists.len(ONCE_GONE), self.lists.len(AGAIN_GONE));
        match list {
            None => {
                self.make_room();
                self.lists.push_front(ONCE, index);
                return false;
            }
            Some(ONCE | AGAIN) => self.lists.remove(index),
            Some(ONCE_GONE) => {
                self.target = (self.target + (again_gone / once_gone).max(1)).min(self.capacity);
                self.replace(false);
                self.lists.remove(index);
            }
            Some(_) => {
                self.target = self.target.saturating_sub((once_gone / again_gone).max(1));
                self.replace(true);
                self.lists.remove(index);
            }
        }
        self.lists.push_front(AGAIN, index);
        matches!(list, Some(ONCE | AGAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn the_lists_keep_their_bounds() {
        let mut random = fastrand::Rng::with_seed(5);
        let pages = Pages::of((0..50_000u64).map(|at| if at % 3 == 0 { at } else { random.u64(0..300) }));
        for capacity in [1, 2, 40, 200] {
            let mut cache = ArcPolicy::new(pages.unique(), capacity);
            for access in pages.accesses() {
                let before = cache.lists.of(access.index);
                assert_eq!(cache.access(access), matches!(before, Some(ONCE | AGAIN)));
                assert_eq!(cache.lists.of(access.index), Some(if before.is_some() { AGAIN } else { ONCE }));
                let [once, again, once_gone, again_gone] =
                    [ONCE, AGAIN, ONCE_GONE, AGAIN_GONE].map(|list| cache.lists.len(list));
                assert!(once + again <= capacity && once + once_gone <= capacity);
                assert!(once + again + once_gone + again_gone <= 2 * capacity && cache.target <= capacity);
            }
        }
    }

    #[test]
    fn a_scan_does_not_wash_out_what_is_used_again() {
        let hot = 0..50u64;
        let accesses = hot.clone().chain(hot.clone()).chain(1000..2000).chain(hot);
        let pages = Pages::of(accesses);
        let hits = |cache: &mut dyn Simulated| pages.accesses().filter(|access| cache.access(*access)).count();
        assert_eq!(hits(&mut ArcPolicy::new(pages.unique(), 100)), 100);
        assert_eq!(hits(&mut super::super::Lru::new(pages.unique(), 100)), 50);
    }
}
