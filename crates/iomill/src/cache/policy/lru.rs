//! Least recently used, as coarse as the set's clock. The clock ticks at each admission of a page. A hit stores the
//! clock only if the page's stamp differs. So a page's stamp is stored at most once between two misses of its set,
//! however often the page is hit. If all pages fit, hits store nothing.

use super::super::set::{HitRule, Locked};
use super::rule::Policy;
use super::stamps::Field;
use crate::cache::key::KeyHash;

/// See the head of this file.
#[derive(Debug)]
pub struct Lru;

impl Policy for Lru {
    fn on_hit(&self) -> HitRule {
        HitRule::Stamp
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        Field::Meta.oldest(set, candidates)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        let clock = Field::Meta.tick(set);
        set.set_meta(way, clock << 1);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Meta.carry(from, from_way, to, to_way);
    }
}
