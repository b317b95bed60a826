//! SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi, NSDI 2024). Pages are ordered by the time of their admission. A hand
//! goes from the oldest to the newest. The first page that was not visited is evicted, and the visited pages that the
//! hand passes become unvisited. Unlike CLOCK's hand it reaches new pages late. So pages of one use are evicted
//! quickly, and visited pages stay.

use super::super::set::{HitRule, Locked};
use super::rule::Policy;
use super::stamps::{Field, lowest};
use crate::cache::key::KeyHash;

/// The hits' byte means "visited". `aux` is the stamp of the page's admission. The hand is the next stamp to look at.
#[derive(Debug)]
pub struct Sieve;

impl Policy for Sieve {
    fn on_hit(&self) -> HitRule {
        HitRule::Count(1)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, _incoming: KeyHash) -> usize {
        let stamps = set.auxes();
        // Two rounds are enough: after the first no page is visited.
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
