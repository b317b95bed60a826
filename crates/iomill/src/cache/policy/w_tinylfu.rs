//! W-TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 2017), within a set. New pages come into a window.
//! A page that leaves the window competes with a page of the main part, and takes its place only if its recent accesses
//! are more. A sketch that all sets share counts accesses. The main part is a segmented LRU: pages that were hit on
//! probation become protected.
//!
//! A hit notes only a stamp and a flag. The page becomes protected later, at the next eviction.

use std::io;

use super::super::set::{HitRule, Locked};
use super::rule::{Policy, Scale};
use super::sketch::Sketch;
use super::stamps::{Field, lowest, ways_flagged, ways_with};
use crate::cache::key::KeyHash;
use crate::cache::lanes::ways_of;

/// The lowest bit of `aux`: the page was hit, and the flag of `meta` that said so was cleared. Only ARC reads it.
pub const WAS_HIT: u8 = 1;
/// The segments of pages, as in `aux` above the lowest bit.
const WINDOW: u8 = 0;
const PROBATION: u8 = 1 << 1;
const PROTECTED: u8 = 2 << 1;

/// The rule, for a size of sets and of windows.
#[derive(Clone, Copy, Debug)]
pub struct Segmented {
    window_ways: u32,
    protected_ways: u32,
}

/// Masks of the ways in each segment.
struct Segments {
    window: u32,
    probation: u32,
    protected: u32,
}

fn segments(set: &Locked<'_>) -> Segments {
    let (present, segment) = (set.present(), set.auxes().map(|aux| aux & !WAS_HIT));
    let (window, probation) = (present & ways_with(&segment, WINDOW), present & ways_with(&segment, PROBATION));
    Segments { window, probation, protected: present & !window & !probation }
}

/// Moves a page to a segment. Earlier hits do not count there, but the page keeps its stamp.
fn enter(set: &mut Locked<'_>, way: usize, segment: u8) {
    let (meta, aux) = (set.meta(way), set.aux(way));
    set.set_meta(way, meta & !1);
    set.set_aux(way, segment | (aux | meta) & WAS_HIT);
}

impl Segmented {
    /// The rule for sets of `ways` ways. The first `window_ways` are the window.
    pub fn new(ways: usize, window_ways: usize) -> Segmented {
        let protected_ways = (ways - window_ways) * 4 / 5;
        Segmented { window_ways: window_ways as u32, protected_ways: protected_ways as u32 }
    }

    /// The rule with the window of the policy `w-tinylfu`, a quarter. The paper's hundredth is less than one page of a
    /// set. A quarter gains more on pages that are used again soon than it loses on others.
    pub fn usual(ways: usize) -> Segmented {
        Segmented::new(ways, (ways / 4).max(1))
    }

    /// Brings the segments to their sizes. Pages that were hit on probation become protected. If too many are
    /// protected, the least recently used of them go back to probation. The window may be too large, because the set
    /// has just been filled, or another rule has ruled it: its oldest pages then leave it without a competition.
    fn settle(self, set: &mut Locked<'_>) -> Segments {
        let mut masks = segments(set);
        let were_hit = masks.probation & ways_flagged(&set.metas());
        ways_of(were_hit).for_each(|way| enter(set, way, PROTECTED));
        masks.probation &= !were_hit;
        masks.protected |= were_hit;
        while masks.protected.count_ones() > self.protected_ways {
            let way = Field::Meta.oldest(set, masks.protected);
            enter(set, way, PROBATION);
            masks.protected &= !(1 << way);
            masks.probation |= 1 << way;
        }
        while masks.window.count_ones() > self.window_ways {
            let way = Field::Meta.oldest(set, masks.window);
            set.set_aux(way, PROBATION | set.aux(way) & WAS_HIT);
            masks.window &= !(1 << way);
            masks.probation |= 1 << way;
        }
        masks
    }

    /// As [`Policy::victim`]. `count` returns the number of recent accesses to the page of a way.
    pub fn victim(self, set: &mut Locked<'_>, candidates: u32, count: impl Fn(&Locked<'_>, usize) -> u8) -> usize {
        let segments = self.settle(set);
        let metas = set.metas();
        let in_main = match segments.probation & candidates {
            0 => segments.protected & candidates,
            probation => probation,
        };
        let in_window = segments.window & candidates;
        if in_main == 0 {
            return lowest(&metas, candidates);
        }
        let from_main = lowest(&metas, in_main);
        if in_window == 0 || segments.window.count_ones() < self.window_ways {
            return from_main;
        }
        let from_window = lowest(&metas, in_window);
        if count(set, from_window) <= count(set, from_main) {
            return from_window;
        }
        enter(set, from_window, PROBATION);
        from_main
    }
}

/// As [`Policy::inserted`]; `flag` is [`WAS_HIT`] or 0.
pub fn inserted(set: &mut Locked<'_>, way: usize, flag: u8) {
    let clock = Field::Meta.tick(set);
    set.set_meta(way, clock << 1);
    set.set_aux(way, WINDOW | flag);
}

/// The hits' byte has the stamp and the flag for "hit". `aux` has the segment.
#[derive(Debug)]
pub struct WTinyLfu {
    sketch: Sketch,
    hash_mask: u64,
    rule: Segmented,
}

impl WTinyLfu {
    /// The policy, with a sketch of its own.
    pub fn new(scale: Scale) -> io::Result<WTinyLfu> {
        let sketch = Sketch::new(scale.pages_max, scale.first_sets)?;
        sketch.resize(u64::from(scale.sets) * scale.ways as u64);
        Ok(WTinyLfu { sketch, hash_mask: scale.hash_mask, rule: Segmented::usual(scale.ways) })
    }
}

impl Policy for WTinyLfu {
    fn on_hit(&self) -> HitRule {
        HitRule::Stamp
    }

    fn wants_feed(&self) -> bool {
        true
    }

    fn feed(&self, hashes: &[KeyHash]) {
        for &hash in hashes {
            self.sketch.add(hash);
        }
    }

    fn resized(&self, sets: u32, ways: usize) {
        self.sketch.resize(u64::from(sets) * ways as u64);
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        let count = |set: &Locked<'_>, way| self.sketch.count(set.key(way).hash().masked(self.hash_mask));
        self.rule.victim(set, candidates, count)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        inserted(set, way, 0);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Meta.carry(from, from_way, to, to_way);
    }
}
