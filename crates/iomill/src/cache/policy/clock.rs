//! CLOCK (Corbató 1968) and GCLOCK (Smith 1978). A hand goes round the ways. The first page without a hit is evicted,
//! and each page that the hand passes loses one hit. CLOCK notes one hit per page, GCLOCK several.

use super::super::set::{HitRule, Locked};
use super::rule::Policy;
use crate::cache::key::KeyHash;
use crate::cache::lanes::ways_of;

/// The hits' byte counts hits. The hand is the next way to look at.
#[derive(Debug)]
pub struct ClockPolicy {
    /// The most hits that are noted per page.
    pub most: u8,
}

impl Policy for ClockPolicy {
    fn on_hit(&self) -> HitRule {
        HitRule::Count(self.most)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        let ways = set.ways();
        let mut way = usize::from(set.hand()) % ways;
        // After these steps no page has a hit left, unless new hits come meanwhile.
        for _ in 0..=ways * usize::from(self.most) + ways {
            let next = (way + 1) % ways;
            if candidates >> way & 1 == 1 {
                let hits = set.meta(way);
                if hits == 0 {
                    set.set_hand(next as u8);
                    return way;
                }
                set.set_meta(way, hits - 1);
            }
            way = next;
        }
        ways_of(candidates).min_by_key(|&way| set.meta(way)).unwrap_or(0)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        set.set_meta(way, 0);
    }
}
