//! Evicts the least recently used page.

use super::lists::Lists;
use crate::pages::Access;
use crate::simulated::Simulated;

/// Its list begins with the last used page.
#[derive(Debug)]
pub(crate) struct Lru {
    list: Lists<1>,
    capacity: usize,
}

impl Lru {
    pub(crate) fn new(unique: usize, capacity: usize) -> Lru {
        Lru { list: Lists::new(unique), capacity }
    }
}

impl Simulated for Lru {
    fn access(&mut self, access: Access) -> bool {
        let hit = self.list.of(access.index).is_some();
        if hit {
            self.list.remove(access.index);
        } else if self.list.len(0) == self.capacity {
            self.list.pop_back(0);
        }
        self.list.push_front(0, access.index);
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;

    #[test]
    fn agrees_with_a_plain_vector() {
        let mut random = fastrand::Rng::with_seed(3);
        let pages = Pages::of((0..20_000).map(|_| random.u64(0..random.clone().u64(1..200))));
        for capacity in [1, 2, 17, 150, 500] {
            let mut cache = Lru::new(pages.unique(), capacity);
            let mut model: Vec<u32> = Vec::new();
            for access in pages.accesses() {
                let at = model.iter().position(|index| *index == access.index);
                if let Some(at) = at {
                    model.remove(at);
                }
                model.insert(0, access.index);
                model.truncate(capacity);
                assert_eq!(cache.access(access), at.is_some());
            }
        }
    }
}
