//! Claims: a process says which granules it fetches, so that others wait for them instead of fetching them too. Rules F2 and F3 of
//! `docs/origin.md`. Non-goals: tasks of one process (`flights`).
//!
//! A claim is a hint with an end: the process may be killed. A granule goes unclaimed if its bucket is full of claims.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{CLAIMS, Index, SLOTS};

/// What became of the wish to fetch a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// This process fetches it, and gives the claim back.
    Mine(Claim),
    /// Another process fetches it, for a while.
    Others,
    /// It cannot be claimed. This process fetches it.
    No,
}

/// The right to give a claim back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    at: usize,
    word: u64,
}

impl Index {
    /// Claims a granule for as long as `bound`. Rule F2. A claim of this process itself is another's, too: its tasks have met before.
    pub fn claim(&self, tag: u64, bound: Duration) -> Claimed {
        let first = self.shape.claims + (tag >> 40) as usize % (CLAIMS / SLOTS) * SLOTS;
        let now = now_ms();
        let mut free = None;
        for at in first..first + SLOTS {
            let seen = self.word(at).load(Relaxed);
            let is_free = seen == 0 || has_passed(seen as u32, now);
            if !is_free && (seen ^ tag << 32) >> 32 == 0 {
                return Claimed::Others;
            }
            free = free.or(is_free.then_some((at, seen)));
        }
        let Some((at, seen)) = free else { return Claimed::No };
        let end = now.wrapping_add(bound.as_millis().min(1 << 30) as u32).max(1);
        let word = tag << 32 | u64::from(end);
        // AcqRel: of two processes that find a word free, one gets it. The other one fetches unclaimed, which is rare and costs a GET.
        match self.word(at).compare_exchange(seen, word, AcqRel, Relaxed) {
            Ok(_) => Claimed::Mine(Claim { at, word }),
            Err(_) => Claimed::No,
        }
    }

    /// Gives a claim back: the granule is there, or will not come.
    pub fn unclaim(&self, claim: Claim) {
        // If it has ended, another process may have the word by now.
        let _ended = self.word(claim.at).compare_exchange(claim.word, 0, AcqRel, Relaxed);
    }
}

/// All processes of the machine have this clock. It begins again every 49 days.
fn now_ms() -> u32 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000) as u32
}

fn has_passed(end: u32, now: u32) -> bool {
    // What is further away than half of the clock is in the past.
    end.wrapping_sub(now) > 1 << 31
}
