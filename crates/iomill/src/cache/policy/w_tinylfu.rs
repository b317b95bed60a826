//! W-TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 2017), within a set. New pages come into a window.
//! A page that leaves the window competes with a page of the main part. It takes that page's place only if it was asked
//! for more often lately. A sketch that all sets share counts that. The main part is a segmented LRU: pages that were
//! hit on probation become protected.
//!
//! Hits leave only a stamp and a flag. Pages become protected later, when a page has to go.

use std::io;

use super::sketch::Sketch;
use super::stamps::{Field, lowest, ways_flagged, ways_with};
use super::{HitRule, Locked, Policy, Scale};
use crate::cache::key::KeyHash;
use crate::cache::lanes::ways_of;

/// The lowest bit of `aux`: a hit of the page was noted, and the note was cleared since. The rule itself has no use for it.
pub const WAS_HIT: u8 = 1;
/// Where a page is, in `aux` above the lowest bit.
const WINDOW: u8 = 0;
const PROBATION: u8 = 1 << 1;
const PROTECTED: u8 = 2 << 1;

/// The rule, for sets of a size and windows of a size.
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

/// Moves a page to a segment. Only hits from now on count there, but its stamp stays.
fn enter(set: &mut Locked<'_>, way: usize, segment: u8) {
    let (meta, aux) = (set.meta(way), set.aux(way));
    set.set_meta(way, meta & !1);
    set.set_aux(way, segment | (aux | meta) & WAS_HIT);
}

impl Segmented {
    /// The rule for sets of `ways` ways, with a window of `window_ways` of them.
    pub fn new(ways: usize, window_ways: usize) -> Segmented {
        let protected_ways = (ways - window_ways) * 4 / 5;
        Segmented { window_ways: window_ways as u32, protected_ways: protected_ways as u32 }
    }

    /// The window of the policy by itself. The paper's hundredth is less than one page of a set. A quarter gains more on pages that are used
    /// again soon than it loses elsewhere.
    pub fn usual(ways: usize) -> Segmented {
        Segmented::new(ways, (ways / 4).max(1))
    }

    /// Brings the segments to their sizes. Pages that were hit on probation become protected. If too many are, the least recently used ones go
    /// back to probation. Pages came into the window without a limit while the set filled up, or while another rule chose: the oldest of them
    /// leave it, and need not win against others.
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

    /// As [`Policy::victim`]. `count` says how often the page of a way was asked for lately.
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

/// As [`Policy::inserted`], with the page's flag.
pub fn inserted(set: &mut Locked<'_>, way: usize, flag: u8) {
    let clock = Field::Meta.tick(set);
    set.set_meta(way, clock << 1);
    set.set_aux(way, WINDOW | flag);
}

/// The hits' byte has the stamp and whether there was a hit. `aux` has the segment.
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
