//! Belady's policy: evicts the page with the farthest next use. It needs to know the future. No policy that caches each
//! requested page is better.

use std::collections::BinaryHeap;

use crate::pages::{Access, Pages};
use crate::simulated::Simulated;

/// Not used again, or not kept.
const NEVER: u32 = u32::MAX;

/// Knows all accesses of a trace, and must be called with exactly these.
#[derive(Debug)]
pub(crate) struct Optimum {
    /// For each access the number of the next one to the same page.
    next_use: Vec<u32>,
    /// Number of the coming access.
    now: usize,
    capacity: usize,
    kept: usize,
    /// For each page: whether it is kept, and its next use.
    state: Vec<(bool, u32)>,
    /// (next use, page) of all pages that are kept, the farthest on top. It also has outdated entries, which differ
    /// from `state`.
    farthest: BinaryHeap<(u32, u32)>,
}

impl Optimum {
    pub(crate) fn new(pages: &Pages, capacity: usize) -> Optimum {
        let mut next_use = vec![NEVER; pages.len()];
        let mut seen = vec![NEVER; pages.unique()];
        for (at, index) in pages.indices().enumerate().rev() {
            next_use[at] = std::mem::replace(&mut seen[index as usize], at as u32);
        }
        let state = vec![(false, NEVER); pages.unique()];
        Optimum { next_use, now: 0, capacity, kept: 0, state, farthest: BinaryHeap::new() }
    }
}

impl Simulated for Optimum {
    fn access(&mut self, access: Access) -> bool {
        let next = self.next_use[self.now];
        self.now += 1;
        let hit = self.state[access.index as usize].0;
        if !hit {
            if self.kept == self.capacity {
                while let Some((next, page)) = self.farthest.pop() {
                    let state = &mut self.state[page as usize];
                    if *state == (true, next) {
                        state.0 = false;
                        self.kept -= 1;
                        break;
                    }
                }
            }
            self.kept += 1;
        }
        self.state[access.index as usize] = (true, next);
        self.farthest.push((next, access.index));
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_search_for_the_farthest() {
        let mut random = fastrand::Rng::with_seed(7);
        let numbers: Vec<u64> = (0..3000).map(|_| random.u64(0..random.clone().u64(1..60))).collect();
        let pages = Pages::of(numbers.iter().copied());
        for capacity in [1, 3, 20, 100] {
            let (mut cache, mut model) = (Optimum::new(&pages, capacity), Vec::new());
            let (mut hits, mut model_hits) = (0, 0);
            for (at, access) in pages.accesses().enumerate() {
                hits += usize::from(cache.access(access));
                if model.contains(&access.page) {
                    model_hits += 1;
                    continue;
                }
                if model.len() == capacity {
                    let next =
                        |page: &u64| numbers[at..].iter().position(|number| number == page).unwrap_or(usize::MAX);
                    let farthest = (0..capacity).max_by_key(|place| next(&model[*place])).unwrap();
                    model.remove(farthest);
                }
                model.push(access.page);
            }
            assert_eq!(hits, model_hits, "{capacity} pages");
        }
    }
}
