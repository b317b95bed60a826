//! Least recently used, as coarse as the set's clock: the clock ticks with every page that comes in, and a hit notes the clock
//! only where it differs. So a page that is hit again and again is stored to once between two misses of its set, and not at all when
//! everything fits.

use super::stamps::Field;
use super::{HitRule, Locked, Policy};
use crate::cache::key::Hash;

/// See the head of this file.
#[derive(Debug)]
pub struct Lru;

impl Policy for Lru {
    fn on_hit(&self) -> HitRule {
        HitRule::Stamp
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: Hash) -> usize {
        Field::Meta.oldest(set, candidates)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: Hash) {
        let clock = Field::Meta.tick(set);
        set.set_meta(way, clock << 1);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Meta.carry(from, from_way, to, to_way);
    }
}
