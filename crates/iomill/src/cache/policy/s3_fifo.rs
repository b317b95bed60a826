//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi, SOSP 2023), within a set. New pages enter a small queue, and only pages that
//! were hit move on to the main queue. Ghosts remember pages that were evicted from the small queue. A page with a
//! ghost enters the main queue at once.

use super::super::set::{HitRule, Locked};
use super::rule::Policy;
use super::stamps::{Field, lowest, ways_flagged};
use crate::cache::key::KeyHash;

/// The most hits that are noted per page.
const HITS_MAX: u8 = 3;
/// The flag of `aux`, its lowest bit: the page is in the main queue.
const MAIN: u8 = 1;

/// The hits' byte counts hits. `aux` has the queue and the place in it. The scratch is the place of the next ghost.
#[derive(Debug)]
pub struct S3Fifo {
    /// See [`super::rule::Scale::hash_mask`].
    pub hash_mask: u64,
}

/// The ghost of a page: 16 bits of its hash, and never 0.
fn ghost_of(hash: KeyHash) -> u16 {
    ((hash.mixed() >> 48) as u16).max(1)
}

/// The number of ways for the small queue: a fifth. The paper's tenth loses more on pages that are used again soon.
fn small_ways(ways: usize) -> u32 {
    (ways / 5).max(1) as u32
}

fn remember(set: &mut Locked<'_>, hash: KeyHash) {
    let next = set.scratch() as usize % set.ways();
    set.set_ghost(next, ghost_of(hash));
    set.set_scratch(next as u32 + 1);
}

/// Removes the ghost of a page. Whether there was one.
fn recall(set: &mut Locked<'_>, hash: KeyHash) -> bool {
    let found = set.find_ghost(ghost_of(hash));
    if let Some(index) = found {
        set.set_ghost(index, 0);
    }
    found.is_some()
}

/// Puts a page at the end of a queue, with `hits` hits.
fn enqueue(set: &mut Locked<'_>, way: usize, queue: u8, hits: u8) {
    let clock = Field::Aux.tick(set);
    set.set_aux(way, clock << 1 | queue);
    set.set_meta(way, hits);
}

impl Policy for S3Fifo {
    fn on_hit(&self) -> HitRule {
        HitRule::Count(HITS_MAX)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        // Each turn moves a page to the main queue, or takes one hit from a page there. So these turns are enough,
        // unless new hits come meanwhile.
        for _ in 0..set.ways() * usize::from(HITS_MAX + 1) {
            let stamps = set.auxes();
            let small = set.present() & !ways_flagged(&stamps);
            let is_small_full = small.count_ones() >= small_ways(set.ways());
            let (from_small, from_main) = (small & candidates, candidates & !small);
            if from_main == 0 || is_small_full && from_small != 0 {
                let way = lowest(&stamps, from_small);
                if set.meta(way) == 0 {
                    return way;
                }
                enqueue(set, way, MAIN, 0);
            } else {
                let way = lowest(&stamps, from_main);
                let hits = set.meta(way);
                if hits == 0 {
                    return way;
                }
                enqueue(set, way, MAIN, hits - 1);
            }
        }
        Field::Aux.oldest(set, candidates)
    }

    fn evicted(&self, _index: u32, set: &mut Locked<'_>, way: usize) {
        if set.aux(way) & MAIN == 0 {
            let hash = set.key(way).hash().masked(self.hash_mask);
            remember(set, hash);
        }
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash) {
        // While the set fills up, pages beyond the small queue's share enter the main queue without a hit.
        let others = set.present() & !(1 << way);
        let small = others & !ways_flagged(&set.auxes());
        let fills_up = others.count_ones() as usize + 1 < set.ways() && small.count_ones() >= small_ways(set.ways());
        let queue = if recall(set, incoming) || fills_up { MAIN } else { 0 };
        enqueue(set, way, queue, 0);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Aux.carry(from, from_way, to, to_way);
    }
}
