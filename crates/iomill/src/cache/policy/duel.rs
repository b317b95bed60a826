//! Set duelling (Qureshi, Jaleel, Patt, Steely, Emer, ISCA 2007) between LRU and W-TinyLFU. Some sets always follow
//! LRU, and as many always follow W-TinyLFU. A counter tells which of the two misses more, and all other sets follow
//! the better one.
//!
//! Both policies note the same of a page: its stamp and its segment. So a set can change its policy at any moment.

use std::io;

use super::lru::Lru;
use super::w_tinylfu::WTinyLfu;
use super::{HitRule, Locked, Policy, Scale};
use crate::cache::key::KeyHash;
use crate::sys::sync::{AtomicU32, Ordering};

/// One set in so many leads for LRU, and one for W-TinyLFU, in a large cache.
const STRIDE_MAX: u32 = 32;
/// The same in a small cache. There fewer leaders would say more about their own pages than about the policies.
const STRIDE_MIN: u32 = 8;
/// So many leaders of each policy are enough.
const LEADERS: u32 = 8;
/// W-TinyLFU leads while the score is above this, per leader. The score goes from 0 to twice as much.
const MIDDLE_PER_LEADER: u32 = 32;
const MIDDLE_MIN: u32 = 128;
const MIDDLE_MAX: u32 = 512;

/// See the head of this file.
#[derive(Debug)]
pub struct Duel {
    tiny: WTinyLfu,
    /// One set in so many leads for each policy.
    stride: AtomicU32,
    middle: AtomicU32,
    /// Goes up when a set misses that leads for LRU, and down when a set misses that leads for W-TinyLFU. Two misses at
    /// the same moment may count as one.
    score: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    LeadsLru,
    LeadsTiny,
    Follows,
}

impl Duel {
    /// The policy, with a W-TinyLFU of its own.
    pub fn new(scale: Scale) -> io::Result<Duel> {
        let tiny = WTinyLfu::new(scale)?;
        let duel = Duel {
            tiny,
            stride: AtomicU32::new(1),
            middle: AtomicU32::new(MIDDLE_MIN),
            score: AtomicU32::new(MIDDLE_MIN),
        };
        duel.share_roles(scale.sets);
        duel.score.store(duel.middle.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(duel)
    }

    fn share_roles(&self, sets: u32) {
        // A single set leads for LRU: there is nothing to compare, and LRU is safer when so few pages fit.
        let stride = (sets / LEADERS).clamp(STRIDE_MIN, STRIDE_MAX).min(sets.max(1));
        let middle = (sets / stride * MIDDLE_PER_LEADER).clamp(MIDDLE_MIN, MIDDLE_MAX);
        self.stride.store(stride, Ordering::Relaxed);
        self.middle.store(middle, Ordering::Relaxed);
    }

    fn role(&self, index: u32) -> Role {
        let stride = self.stride.load(Ordering::Relaxed);
        match index % stride {
            0 => Role::LeadsLru,
            at if at == stride / 2 => Role::LeadsTiny,
            _ => Role::Follows,
        }
    }

    fn is_tiny(&self, index: u32) -> bool {
        match self.role(index) {
            Role::LeadsLru => false,
            Role::LeadsTiny => true,
            Role::Follows => self.score.load(Ordering::Relaxed) > self.middle.load(Ordering::Relaxed),
        }
    }
}

impl Policy for Duel {
    fn on_hit(&self) -> HitRule {
        self.tiny.on_hit()
    }

    fn wants_feed(&self) -> bool {
        true
    }

    fn feed(&self, hashes: &[KeyHash]) {
        self.tiny.feed(hashes);
    }

    fn resized(&self, sets: u32, ways: usize) {
        self.tiny.resized(sets, ways);
        self.share_roles(sets);
    }

    fn missed(&self, index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) {
        let most = 2 * self.middle.load(Ordering::Relaxed);
        let score = self.score.load(Ordering::Relaxed);
        let after = match self.role(index) {
            Role::LeadsLru => (score + 1).min(most),
            Role::LeadsTiny => score.saturating_sub(1),
            Role::Follows => return,
        };
        if after != score {
            self.score.store(after, Ordering::Relaxed);
        }
    }

    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: KeyHash) -> usize {
        if self.is_tiny(index) {
            self.tiny.victim(index, set, candidates, incoming)
        } else {
            Lru.victim(index, set, candidates, incoming)
        }
    }

    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash) {
        self.tiny.inserted(index, set, way, incoming);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        self.tiny.moved(from, from_way, to, to_way);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    /// Both policies have leaders, with few sets and with many, and their numbers differ by at most one. In a large
    /// cache a 32nd of the sets lead.
    #[test]
    fn both_have_leaders() {
        for sets in (2..1000).chain([50_000]) {
            let duel =
                Duel::new(Scale { sets: 1, first_sets: 1, ways: 12, pages_max: 100, hash_mask: u64::MAX }).unwrap();
            duel.resized(sets, 12);
            let count = |role| (0..sets).filter(|&index| duel.role(index) == role).count() as u32;
            let (lru, tiny) = (count(Role::LeadsLru), count(Role::LeadsTiny));
            assert!(lru >= 1 && tiny >= 1 && lru.abs_diff(tiny) <= 1, "{sets}: {lru} {tiny}");
            assert!(sets < 300 || lru <= sets / 32 + 1, "{sets}: {lru}");
            assert!(sets < 64 || lru >= LEADERS, "{sets}: {lru}");
        }
    }
}
