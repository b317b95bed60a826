//! Least recently used, as coarse as the set's clock: the clock ticks with every page that comes in, and a hit notes the clock
//! only where it differs. So a page that is hit again and again is stored to once between two misses of its set, and not at all when
//! everything fits.

use super::{HitRule, Locked, Policy};
use crate::cache::key::Hash;

/// The clock's last value; it then begins again.
const CLOCK_LAST: u8 = 127;

/// See the head of this file.
#[derive(Debug)]
pub struct Lru;

/// How many ticks ago a way was used last.
pub fn age(set: &Locked<'_>, way: usize) -> u8 {
    set.clock().saturating_sub(set.meta(way) >> 1)
}

/// The oldest of the candidates, a mask that is not empty.
pub fn oldest(set: &Locked<'_>, candidates: u32) -> usize {
    let ways = (0..set.ways()).filter(|way| candidates >> way & 1 == 1);
    ways.min_by_key(|&way| set.meta(way) >> 1).unwrap_or(0)
}

/// Moves the clock on. At its end all stamps are pressed together, their order kept.
pub fn tick(set: &mut Locked<'_>) {
    let clock = set.clock();
    if clock < CLOCK_LAST {
        return set.set_clock(clock + 1);
    }
    let mut stamps: Vec<u8> = (0..set.ways()).map(|way| set.meta(way) >> 1).collect();
    stamps.sort_unstable();
    stamps.dedup();
    for way in 0..set.ways() {
        let meta = set.meta(way);
        let rank = stamps.partition_point(|&stamp| stamp < meta >> 1) as u8;
        set.set_meta(way, rank << 1 | meta & 1);
    }
    set.set_clock(stamps.len() as u8);
}

/// Stamps a way that has just been filled: used now, not hit yet.
pub fn stamp(set: &mut Locked<'_>, way: usize) {
    let clock = set.clock();
    set.set_meta(way, clock << 1);
}

impl Policy for Lru {
    fn on_hit(&self) -> HitRule {
        HitRule::Stamp
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: Hash) -> usize {
        oldest(set, candidates)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: Hash) {
        tick(set);
        stamp(set, way);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let stamp = to.clock().saturating_sub(age(from, from_way));
        let hit = from.meta(from_way) & 1;
        to.set_meta(to_way, stamp << 1 | hit);
        to.set_aux(to_way, from.aux(from_way));
    }
}
