//! Claims: a process announces the granules that it fetches, so that other processes wait for them instead of fetching
//! them, too. Rules F2 and F3 of `docs/origin.md`. Non-goals: tasks of one process (`flights`).
//!
//! A claim is a hint with an end: the process may be killed. If the bucket of a granule is full of claims, it is
//! fetched unclaimed.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{CLAIMS, Index, SLOTS};

/// The result of an attempt to claim a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// This process fetches it, and releases the claim.
    Mine(Claim),
    /// Another process fetches it, for a while.
    Others,
    /// It cannot be claimed. This process fetches it.
    No,
}

/// The right to release a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    at: usize,
    word: u64,
}

impl Index {
    /// Claims a granule for at most `bound`. Rule F2. A claim of this process itself counts as another's: its tasks
    /// share their fetches in `flights`.
    pub fn claim(&self, tag: u64, bound: Duration) -> Claimed {
        self.claim_at(tag, bound, now_ms())
    }

    fn claim_at(&self, tag: u64, bound: Duration, now: u64) -> Claimed {
        let first = self.shape.claims + (tag >> 40) as usize % (CLAIMS / SLOTS) * SLOTS;
        let mut free = None;
        for at in first..first + SLOTS {
            let seen = self.word(at).load(Relaxed);
            let is_free = !(now..now + LONGEST_MS).contains(&(seen & END));
            if !is_free && (seen ^ tag << END_BITS) >> END_BITS == 0 {
                return Claimed::Others;
            }
            free = free.or(is_free.then_some((at, seen)));
        }
        let Some((at, seen)) = free else { return Claimed::No };
        let bound = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX).min(LONGEST_MS - 1);
        let word = tag << END_BITS | (now + bound) & END;
        // AcqRel: of two processes that find a word free, one gets it. The other one fetches unclaimed, which is rare
        // and costs a GET.
        match self.word(at).compare_exchange(seen, word, AcqRel, Relaxed) {
            Ok(_) => Claimed::Mine(Claim { at, word }),
            Err(_) => Claimed::No,
        }
    }

    /// Releases a claim: the granule is in the index, or will not be.
    pub fn unclaim(&self, claim: Claim) {
        // If it has expired, another process may have the word by now.
        let _ended = self.word(claim.at).compare_exchange(claim.word, 0, AcqRel, Relaxed);
    }
}

/// Bits of a claim for its end in milliseconds: 34 years of a clock that begins with the machine, like the index. The
/// other bits are of the tag.
const END_BITS: u32 = 40;
const END: u64 = (1 << END_BITS) - 1;
/// A word with a later end is damaged, and no claim.
const LONGEST_MS: u64 = 1 << 30;

/// All processes of the machine have this clock.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64) * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Geometry;
    use crate::label::Label;

    /// A claim of a killed process expires, however long the machine runs.
    #[test]
    fn a_claim_that_has_ended_stays_ended() {
        let dir = tempfile::tempdir().unwrap();
        let label = Label { cache: 1, drive: 2, geometry: Geometry::new(16_384, 1 << 20, 4).unwrap() };
        let index = Index::open(dir.path(), &label).unwrap();
        let (second, day) = (Duration::from_secs(1), 86_400_000);
        let begun = 5 * day;
        assert!(matches!(index.claim_at(9 << 41, second, begun), Claimed::Mine(_)));
        assert_eq!(index.claim_at(9 << 41, second, begun + 999), Claimed::Others);
        for days in [1, 24, 25, 26, 40, 49, 50, 75, 3000] {
            let later = begun + days * day;
            let Claimed::Mine(claim) = index.claim_at(9 << 41, second, later) else {
                panic!("claimed after {days} days")
            };
            assert_eq!(index.claim_at(9 << 41, second, later), Claimed::Others);
            // The next round finds the expired claim of a killed process.
            let _left = claim;
        }
    }

    /// With any words in a bucket, a granule can be claimed within the longest time of a valid claim.
    #[test]
    fn a_damaged_word_is_no_claim() {
        let dir = tempfile::tempdir().unwrap();
        let label = Label { cache: 1, drive: 2, geometry: Geometry::new(16_384, 1 << 20, 4).unwrap() };
        let index = Index::open(dir.path(), &label).unwrap();
        let (tag, now, second) = (u64::MAX, 5 << 32, Duration::from_secs(1));
        let of_tag = tag << END_BITS;
        let damaged = [u64::MAX, of_tag | (now + LONGEST_MS), of_tag | (now + (1 << 35)), of_tag, of_tag | (now - 1)];
        for word in damaged {
            (0..CLAIMS).for_each(|n| index.word(index.shape.claims + n).store(word, Relaxed));
            assert!(matches!(index.claim_at(tag, second, now), Claimed::Mine(_)), "{word:x}");
        }
        // A random word that looks like a claim counts as one, for the longest time of a claim.
        let longest = of_tag | (now + LONGEST_MS - 1);
        (0..CLAIMS).for_each(|n| index.word(index.shape.claims + n).store(longest, Relaxed));
        assert_eq!(index.claim_at(tag, second, now), Claimed::Others);
        assert!(matches!(index.claim_at(tag, second, now + LONGEST_MS), Claimed::Mine(_)));
    }
}
