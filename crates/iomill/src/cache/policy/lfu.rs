//! Least frequently used, with ageing as in LFU-Aging (Arlitt, Friedrich, Jin 1999), but by halving. Each page has a
//! count of its hits. All counts of a set are halved after as many new pages as fill the set `PERIOD` times. Otherwise
//! pages that were popular once would never be evicted.

use super::super::set::{HitRule, Locked};
use super::rule::Policy;
use super::stamps::Field;
use crate::cache::key::KeyHash;
use crate::cache::lanes::ways_of;

/// The number of new pages between two halvings, as a multiple of the ways.
const PERIOD: u32 = 4;

/// The hits' byte counts hits. `aux` is the stamp of the page's admission, which decides between equal counts. The
/// scratch is the number of new pages since the last halving.
#[derive(Debug)]
pub struct Lfu;

impl Policy for Lfu {
    fn on_hit(&self) -> HitRule {
        HitRule::Count(u8::MAX)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        let (counts, stamps) = (set.metas(), set.auxes());
        ways_of(candidates).min_by_key(|&way| (counts[way], stamps[way])).unwrap_or(0)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        let clock = Field::Aux.tick(set);
        set.set_aux(way, clock << 1);
        set.set_meta(way, 0);
        let came = set.scratch() + 1;
        if came < PERIOD * set.ways() as u32 {
            return set.set_scratch(came);
        }
        set.set_scratch(0);
        for way in 0..set.ways() {
            let count = set.meta(way);
            set.set_meta(way, count / 2);
        }
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Aux.carry(from, from_way, to, to_way);
    }
}
