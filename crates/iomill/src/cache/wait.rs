//! Waiting for a page that somebody else is working on, and the pages that are read past a full set.
//!
//! Rules:
//! 1. A waiter is entered while its page's set is locked and the page is seen to be worked on; whoever ends the work looks for waiters
//!    under the same lock. So none is missed.
//! 2. A waiter is told of the outcome, and a failure is its own too: it does not try again what has just failed for another. What
//!    failed before anybody had asked for it is nobody's failure: who waits tries for himself.
//! 3. All that wait for a page share one waiter. So a set has at most as many waiters as it has ways and pages in transit, however many
//!    threads wait, and its count never overflows.
//! 4. While a page is in transit it has no way in its set; a fill or a new page of that name waits until it is not.

use std::sync::Arc;

use super::key::Key;
use super::set::Locked;
use crate::drive::Failure;
use crate::sys::sync::{Condvar, Mutex, lock, wait};

#[cfg(not(iomill_models))]
const STRIPES: usize = 64;
#[cfg(iomill_models)]
const STRIPES: usize = 1;

/// Pages in transit at a time, at most, per stripe.
const TRANSIT_MAX: usize = 64;

/// How the work on a page ended.
pub type Outcome = std::result::Result<(), Failure>;

/// What all that wait for a page share.
#[derive(Debug, Default)]
pub struct Waiter {
    outcome: Mutex<Option<Outcome>>,
    told: Condvar,
}

impl Waiter {
    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        *lock(&self.outcome)
    }

    /// Blocks until it has ended.
    pub fn wait(&self) -> Outcome {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = *outcome {
                return outcome;
            }
            outcome = wait(&self.told, outcome);
        }
    }

    fn tell(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
        self.told.notify_all();
    }
}

#[derive(Debug, Default)]
struct Stripe {
    waiters: Vec<(Key, Arc<Waiter>)>,
    transit: Vec<Key>,
}

/// All waiters of a cache, and the pages in transit, by key.
#[derive(Debug)]
pub struct Waiters {
    stripes: Box<[Mutex<Stripe>]>,
}

impl Default for Waiters {
    fn default() -> Self {
        Waiters { stripes: (0..STRIPES).map(|_| Mutex::default()).collect() }
    }
}

impl Waiters {
    /// By key and not by set, so that a set may be split meanwhile.
    fn stripe(&self, key: Key) -> &Mutex<Stripe> {
        &self.stripes[(key.hash().0 >> 16) as usize % STRIPES]
    }

    /// The waiter of a page that is being worked on (rules 1 and 3).
    pub fn enter(&self, set: &mut Locked<'_>, key: Key) -> Arc<Waiter> {
        let mut stripe = lock(self.stripe(key));
        if set.waiters() > 0
            && let Some((_, waiter)) = stripe.waiters.iter().find(|(theirs, _)| *theirs == key)
        {
            return Arc::clone(waiter);
        }
        let waiter = Arc::new(Waiter::default());
        set.set_waiters(set.waiters() + 1);
        stripe.waiters.push((key, Arc::clone(&waiter)));
        waiter
    }

    /// Tells the waiter of a page that the work on it has ended.
    pub fn tell(&self, set: &mut Locked<'_>, key: Key, outcome: Outcome) {
        if set.waiters() == 0 {
            return;
        }
        let mut stripe = lock(self.stripe(key));
        if let Some(place) = stripe.waiters.iter().position(|(theirs, _)| *theirs == key) {
            let (_, waiter) = stripe.waiters.swap_remove(place);
            waiter.tell(outcome);
            set.set_waiters(set.waiters() - 1);
        }
    }

    /// Whether a page is in transit.
    pub fn in_transit(&self, set: &Locked<'_>, key: Key) -> bool {
        set.transit() > 0 && lock(self.stripe(key)).transit.contains(&key)
    }

    /// Tells how many waiters and pages in transit there are of pages that `chosen` picks. It picks pages of locked sets only.
    pub fn count(&self, chosen: impl Fn(Key) -> bool) -> (u16, u8) {
        let (mut waiters, mut transit) = (0, 0);
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            waiters += stripe.waiters.iter().filter(|(key, _)| chosen(*key)).count();
            transit += stripe.transit.iter().filter(|key| chosen(**key)).count();
        }
        // Of one set there are not more (rule 3).
        (waiters as u16, transit as u8)
    }

    /// Begins a transit of a page that is neither in the set nor in transit; not if there are too many.
    pub fn begin_transit(&self, set: &mut Locked<'_>, key: Key) -> bool {
        let mut stripe = lock(self.stripe(key));
        if stripe.transit.len() >= TRANSIT_MAX || set.transit() == u8::MAX {
            return false;
        }
        stripe.transit.push(key);
        set.set_transit(set.transit() + 1);
        true
    }

    /// Ends it.
    pub fn end_transit(&self, set: &mut Locked<'_>, key: Key, outcome: Outcome) {
        lock(self.stripe(key)).transit.retain(|theirs| *theirs != key);
        set.set_transit(set.transit() - 1);
        self.tell(set, key, outcome);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use crate::cache::key::Key;
    use crate::cache::policy::PolicyKind;
    use crate::cache::{Begun, Cache, Plan};
    use crate::drive::PAGE_BYTES;

    /// More waiters of a page than a 16-bit count holds, and one of another page of the set.
    #[test]
    fn more_waiters_than_a_set_can_count_are_all_told() {
        let bytes = 4 * PAGE_BYTES as u64;
        let plan = Plan { bytes, bytes_max: bytes, set_size: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        let cache = Cache::new(plan).unwrap();
        let fill = |page| {
            let key = Key::new(1, page).unwrap();
            match cache.begin_fill(key, key.hash()) {
                Begun::Yours(fill) => fill,
                other => panic!("page {page}: {other:?}"),
            }
        };
        let (crowded, other) = (fill(0), fill(1));
        let wait = |key: Key| cache.waiter(key, key.hash(), false).expect("somebody is at the page");
        let waiters: Vec<_> = (0..65_536).map(|_| wait(crowded.key)).collect();
        let lone = wait(other.key);
        cache.end_fill(crowded, Ok(()), false);
        let told = waiters.iter().filter(|waiter| waiter.outcome().is_some()).count();
        assert_eq!((told, lone.outcome()), (65_536, None));
        cache.end_fill(other, Ok(()), false);
        assert_eq!(lone.outcome(), Some(Ok(())));
    }
}
