//! Waiters for pages on which another thread works, and the table of pages in transit past a full set.
//!
//! Rules:
//! 1. A waiter is entered under the lock of its page's set, after a look that finds the page busy. The thread that ends
//!    the work looks for a waiter under the same lock. So it misses none.
//! 2. A waiter is told the outcome. A failure is the failure of all that wait: they do not repeat what has just failed.
//!    A fill that failed before any call asked for its page fails no call, and those that wait try by themselves. The
//!    same is true if the failed I/O had other pages, too: the failure may be that of another page.
//! 3. All threads that wait for a page share one waiter. So a set has at most as many waiters as ways and pages in
//!    transit, and its count never overflows, however many threads wait.
//! 4. A page in transit has no way in its set. A fill or a write of this page waits until the transit has ended.

use std::fmt;
use std::sync::Arc;

use super::key::Key;
use super::set::Locked;
use crate::drive::Failure;
use crate::sys::sync::{Condvar, Mutex, lock, wait};

#[cfg(not(iomill_models))]
const STRIPES: usize = 64;
#[cfg(iomill_models)]
const STRIPES: usize = 1;

/// The most pages in transit at a time, per stripe.
const TRANSIT_MAX: usize = 64;

/// The result of the work on a page.
pub type Outcome = std::result::Result<(), Failure>;

/// The waiter of a page, which all operations that wait for the page share.
#[derive(Debug, Default)]
pub struct Waiter {
    state: Mutex<WaiterState>,
    ended: Condvar,
}

#[derive(Default)]
struct WaiterState {
    /// `None` until the work has ended.
    outcome: Option<Outcome>,
    /// Whether a thread sleeps on `ended`. Noted because a notification is a system call, also without sleepers.
    has_sleepers: bool,
    /// Called when the work ends, under the set's lock. So each call only hands work to another thread.
    calls: Vec<Call>,
}

type Call = Box<dyn FnOnce() + Send>;

impl fmt::Debug for WaiterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterState").field("outcome", &self.outcome).field("calls", &self.calls.len()).finish()
    }
}

impl Waiter {
    /// The outcome of the work, if it has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        lock(&self.state).outcome
    }

    /// The outcome of the work, if it has ended. Otherwise `call` is called at its end, under locks.
    pub fn outcome_or_call(&self, call: Call) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if state.outcome.is_none() {
            state.calls.push(call);
        }
        state.outcome
    }

    /// Blocks until the work has ended, and returns its outcome.
    pub fn wait(&self) -> Outcome {
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = state.outcome {
                return outcome;
            }
            state.has_sleepers = true;
            state = wait(&self.ended, state);
        }
    }

    /// The work has ended. Called once.
    pub fn tell(&self, outcome: Outcome) {
        let (calls, has_sleepers) = {
            let mut state = lock(&self.state);
            state.outcome = Some(outcome);
            (std::mem::take(&mut state.calls), state.has_sleepers)
        };
        if has_sleepers {
            self.ended.notify_all();
        }
        calls.into_iter().for_each(|call| call());
    }
}

#[derive(Debug, Default)]
struct Stripe {
    waiters: Vec<(Key, Arc<Waiter>)>,
    transit: Vec<Key>,
}

/// All waiters of a cache, and its pages in transit, by key.
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
    /// The stripe of a key. It does not depend on the set, because a set may be split while threads wait.
    fn stripe(&self, key: Key) -> &Mutex<Stripe> {
        &self.stripes[(key.hash().0 >> 32) as usize % STRIPES]
    }

    /// The waiter for a page on which another thread works (rules 1 and 3).
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

    /// Counts the waiters and the pages in transit among the pages that `chosen` picks, all of them of locked sets.
    pub fn count(&self, chosen: impl Fn(Key) -> bool) -> (u16, u8) {
        let (mut waiters, mut transit) = (0, 0);
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            waiters += stripe.waiters.iter().filter(|(key, _)| chosen(*key)).count();
            transit += stripe.transit.iter().filter(|key| chosen(**key)).count();
        }
        // They fit: the pages are all of one set (rule 3).
        (waiters as u16, transit as u8)
    }

    /// Begins the transit of a page that is neither in the set nor in transit. `false` if there are too many already.
    pub fn begin_transit(&self, set: &mut Locked<'_>, key: Key) -> bool {
        let mut stripe = lock(self.stripe(key));
        if stripe.transit.len() >= TRANSIT_MAX || set.transit() == u8::MAX {
            return false;
        }
        stripe.transit.push(key);
        set.set_transit(set.transit() + 1);
        true
    }

    /// Ends a transit, and tells the page's waiter.
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
    use crate::cache::{Begun, Cache, CacheConfig, Fill};
    use crate::drive::PAGE_BYTES;

    /// Reads all pages, each time in a new order, until the policy holds on and lets a page go past its set. Returns
    /// that page's fill.
    fn passing_fill(cache: &Cache) -> Fill {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let mut pages: Vec<u64> = (0..400).collect();
            random.shuffle(&mut pages);
            for key in pages.into_iter().map(|page| Key::new(1, page).expect("small pages have keys")) {
                if cache.directory().find(key, key.hash()).is_some() {
                    cache.directory().hits(&[key]);
                    continue;
                }
                match cache.begin_read(key, key.hash()) {
                    Begun::Yours(fill) if fill.is_passing => return fill,
                    Begun::Yours(fill) => _ = cache.end_fill(fill, Ok(()), false),
                    other => panic!("{key:?}: {other:?}"),
                }
            }
        }
        panic!("no page goes past its set")
    }

    /// A page that goes past its set is busy for other threads until its fill ends. Then they are told, its frame is
    /// free, and it has no way.
    #[test]
    fn a_page_that_goes_past_its_set_leaves_nothing_behind() {
        let bytes = 96 * PAGE_BYTES as u64;
        let (policy, hash_mask) = (PolicyKind::Duel, u64::MAX);
        for is_abandoned in [false, true] {
            let cache = Cache::new(CacheConfig { bytes, max_bytes: bytes, set_pages: 12, policy, hash_mask }).unwrap();
            let fill = passing_fill(&cache);
            let (key, hash) = (fill.key, fill.hash);
            assert!(!fill.came.evicted && matches!(cache.begin_read(key, hash), Begun::Busy));
            assert!(matches!(cache.begin_fill(key, hash), Begun::Busy) && !cache.begin_bypass(key, hash));
            let waiter = cache.waiter(key, hash, false).expect("the page is in transit");
            match is_abandoned {
                true => cache.abandon_fill(fill),
                false => _ = cache.end_fill(fill, Ok(()), false),
            }
            assert_eq!(waiter.outcome(), Some(Ok(())));
            assert!(cache.directory().find(key, hash).is_none() && cache.waiter(key, hash, false).is_none());
            let frames = || std::iter::from_fn(|| cache.frames.take()).collect::<Vec<_>>();
            let free = frames();
            assert!(free.contains(&fill.frame), "{free:?}");
            free.into_iter().for_each(|frame| cache.frames.give(frame));
            // A page that is asked for again at once is admitted. A caller that keeps its page never gets one that
            // passes.
            let Begun::Yours(again) = cache.begin_read(key, hash) else { panic!("no fill") };
            assert!(!again.is_passing);
            cache.end_fill(again, Ok(()), false);
            assert!(cache.directory().find(key, hash).is_some());
            for page in 1000..1100 {
                let key = Key::new(1, page).unwrap();
                let Begun::Yours(fill) = cache.begin_fill(key, key.hash()) else { panic!("no fill") };
                assert!(!fill.is_passing);
                cache.end_fill(fill, Ok(()), false);
            }
        }
    }

    /// A page has more waiting threads than a 16-bit count holds, and another page of the set has one.
    #[test]
    fn more_threads_than_a_set_can_count_all_hear_of_the_end() {
        let bytes = 4 * PAGE_BYTES as u64;
        let config =
            CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        let cache = Cache::new(config).unwrap();
        let fill = |page| {
            let key = Key::new(1, page).unwrap();
            match cache.begin_fill(key, key.hash()) {
                Begun::Yours(fill) => fill,
                other => panic!("page {page}: {other:?}"),
            }
        };
        let (crowded, other) = (fill(0), fill(1));
        let wait = |key: Key| cache.waiter(key, key.hash(), false).expect("a thread works on the page");
        let waiters: Vec<_> = (0..65_536).map(|_| wait(crowded.key)).collect();
        let lone = wait(other.key);
        cache.end_fill(crowded, Ok(()), false);
        let ended = waiters.iter().filter(|waiter| waiter.outcome().is_some()).count();
        assert_eq!((ended, lone.outcome()), (65_536, None));
        cache.end_fill(other, Ok(()), false);
        assert_eq!(lone.outcome(), Some(Ok(())));
    }
}
