//! SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi, NSDI 2024). Pages stand in the order in which they came. A hand goes
//! from the oldest to the newest. It takes the first page that was not visited, and makes the visited pages that it
//! passes unvisited. Unlike CLOCK's hand it reaches new pages late. So pages of one use go quickly, and visited pages
//! stay.

use super::stamps::{Field, lowest};
use super::{HitRule, Locked, Policy};
use crate::cache::key::KeyHash;

/// The hits' byte says "visited". `aux` says when the page came in. The hand is the stamp that it looks at next.
#[derive(Debug)]
pub struct Sieve;

impl Policy for Sieve {
    fn on_hit(&self) -> HitRule {
        HitRule::Count(1)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        let stamps = set.auxes();
        // Two rounds are enough: the first leaves no page visited.
        let mut left = candidates;
        for _ in 0..=2 * set.ways() {
            let hand = set.hand() << 1;
            // The first page from the hand on. The pages before the hand come after all others.
            let way = lowest(&stamps.map(|stamp| stamp.wrapping_sub(hand)), left);
            if left == 0 || stamps[way] < hand {
                set.set_hand(0);
                left = candidates;
                continue;
            }
            set.set_hand(stamps[way] >> 1);
            if set.meta(way) == 0 {
                return way;
            }
            set.set_meta(way, 0);
            left &= !(1 << way);
        }
        Field::Aux.oldest(set, candidates)
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, _incoming: KeyHash) {
        let clock = Field::Aux.tick(set);
        set.set_aux(way, clock << 1);
        set.set_meta(way, 0);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Aux.carry(from, from_way, to, to_way);
    }
}
