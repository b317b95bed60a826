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

/// Where a page is, in `aux`.
const WINDOW: u8 = 0;
const PROBATION: u8 = 1;
const PROTECTED: u8 = 2;

/// The hits' byte has the stamp and whether there was a hit. `aux` has the segment.
#[derive(Debug)]
pub struct WTinyLfu {
    sketch: Sketch,
    hash_mask: u64,
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
    let (present, segment) = (set.present(), set.auxes());
    let (window, probation) = (present & ways_with(&segment, WINDOW), present & ways_with(&segment, PROBATION));
    Segments { window, probation, protected: present & !window & !probation }
}

/// Clears the note that a page was hit, but not its stamp.
fn forget_hit(set: &mut Locked<'_>, way: usize) {
    let meta = set.meta(way);
    set.set_meta(way, meta & !1);
}

impl WTinyLfu {
    /// The policy, with a sketch of its own.
    pub fn new(scale: Scale) -> io::Result<WTinyLfu> {
        // The paper's window of a hundredth is less than one page of a set. A quarter gains more on pages that are used
        // again soon than it loses elsewhere.
        let window_ways = (scale.ways as u32 / 4).max(1);
        let sketch = Sketch::new(scale.pages_max, scale.first_sets)?;
        sketch.resize(u64::from(scale.sets) * scale.ways as u64);
        let protected_ways = (scale.ways as u32 - window_ways) * 4 / 5;
        Ok(WTinyLfu { sketch, hash_mask: scale.hash_mask, window_ways, protected_ways })
    }

    fn count(&self, set: &Locked<'_>, way: usize) -> u8 {
        self.sketch.count(set.key(way).hash().masked(self.hash_mask))
    }

    /// Protects the pages that were hit on probation. If too many are protected, the least recently used ones go back
    /// to probation.
    fn protect(&self, set: &mut Locked<'_>) -> Segments {
        let mut masks = segments(set);
        let were_hit = masks.probation & ways_flagged(&set.metas());
        for way in ways_of(were_hit) {
            forget_hit(set, way);
            set.set_aux(way, PROTECTED);
        }
        masks.probation &= !were_hit;
        masks.protected |= were_hit;
        while masks.protected.count_ones() > self.protected_ways {
            let way = Field::Meta.oldest(set, masks.protected);
            forget_hit(set, way);
            set.set_aux(way, PROBATION);
            masks.protected &= !(1 << way);
            masks.probation |= 1 << way;
        }
        masks
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
        let segments = self.protect(set);
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
        if self.count(set, from_window) <= self.count(set, from_main) {
            return from_window;
        }
        set.set_aux(from_window, PROBATION);
        forget_hit(set, from_window);
        from_main
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        let clock = Field::Meta.tick(set);
        set.set_meta(way, clock << 1);
        set.set_aux(way, WINDOW);
        // While a set fills up, a page need not win against another to leave the window.
        let before = segments(set).window & !(1 << way);
        if before.count_ones() >= self.window_ways {
            let oldest = Field::Meta.oldest(set, before);
            set.set_aux(oldest, PROBATION);
        }
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Meta.carry(from, from_way, to, to_way);
    }
}
