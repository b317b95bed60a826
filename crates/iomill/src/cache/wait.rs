//! Waiting for a page that another thread works on, and the table of the pages that are read past a full set.
//!
//! Rules:
//! 1. A waiter is entered while its page's set is locked and the page is seen to be worked on. The thread that ends the
//!    work looks for waiters under the same lock. So it misses no waiter.
//! 2. A waiter is told the outcome, and a failure is the waiter's failure, too: it does not repeat what has just failed
//!    for another thread. A fill that failed before any call had asked for its page fails no call. A waiter for it
//!    tries by itself.
//! 3. All threads that wait for a page share one waiter. So a set has at most as many waiters as it has ways and pages in
//!    transit. Its count never overflows, however many threads wait.
//! 4. While a page is in transit it has no way in its set. A fill or a new page of that name waits until the transit
//!    has ended.

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

/// The largest number of pages in transit at a time, per stripe.
const TRANSIT_MAX: usize = 64;

/// How the work on a page ended.
pub type Outcome = std::result::Result<(), Failure>;

/// What all operations that wait for a page share.
#[derive(Debug, Default)]
pub struct Waiter {
    state: Mutex<WaiterState>,
    ended: Condvar,
}

#[derive(Default)]
struct WaiterState {
    outcome: Option<Outcome>,
    /// A thread sleeps until there is one. A notification is a system call, also where no thread sleeps.
    has_sleepers: bool,
    /// Called at the end. The set is locked then, so each only hands work to another thread.
    calls: Vec<Call>,
}

type Call = Box<dyn FnOnce() + Send>;

impl fmt::Debug for WaiterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaiterState").field("outcome", &self.outcome).field("calls", &self.calls.len()).finish()
    }
}

impl Waiter {
    /// How the work ended, if it has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        lock(&self.state).outcome
    }

    /// How the work ended; or `call` is called when it ends, with locks held.
    pub fn outcome_or_call(&self, call: Call) -> Option<Outcome> {
        let mut state = lock(&self.state);
        if state.outcome.is_none() {
            state.calls.push(call);
        }
        state.outcome
    }

    /// Blocks until the work has ended.
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

    fn tell(&self, outcome: Outcome) {
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
    /// The stripe depends on the key, not on the set, so that a set may be split meanwhile.
    fn stripe(&self, key: Key) -> &Mutex<Stripe> {
        &self.stripes[(key.hash().0 >> 32) as usize % STRIPES]
    }

    /// The waiter for a page that another thread works on (rules 1 and 3).
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

    /// Counts the waiters, and the pages in transit, of pages that `chosen` picks. It picks only pages of locked sets.
    pub fn count(&self, chosen: impl Fn(Key) -> bool) -> (u16, u8) {
        let (mut waiters, mut transit) = (0, 0);
        for stripe in &self.stripes {
            let stripe = lock(stripe);
            waiters += stripe.waiters.iter().filter(|(key, _)| chosen(*key)).count();
            transit += stripe.transit.iter().filter(|key| chosen(**key)).count();
        }
        // One set has no more than that (rule 3).
        (waiters as u16, transit as u8)
    }

    /// Begins a transit of a page that is neither in the set nor in transit. Returns `false` if there are too many
    /// transits.
    pub fn begin_transit(&self, set: &mut Locked<'_>, key: Key) -> bool {
        let mut stripe = lock(self.stripe(key));
        if stripe.transit.len() >= TRANSIT_MAX || set.transit() == u8::MAX {
            return false;
        }
        stripe.transit.push(key);
        set.set_transit(set.transit() + 1);
        true
    }

    /// Ends a transit.
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

    /// Reads all pages in a new order each time, until the policy holds on and lets a page go past its set. Returns that page's fill.
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

    /// A page that goes past its set is busy for others until the end. Then they are told, its frame is free, and it has no way.
    #[test]
    fn a_page_that_goes_past_its_set_leaves_nothing_behind() {
        let bytes = 96 * PAGE_BYTES as u64;
        let (policy, hash_mask) = (PolicyKind::Duel, u64::MAX);
        for is_abandoned in [false, true] {
            let cache = Cache::new(CacheConfig { bytes, bytes_max: bytes, set_size: 12, policy, hash_mask }).unwrap();
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
            // Asked for again at once, it comes in; a caller that keeps it is never told to let it pass.
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

    /// More waiters of a page than a 16-bit count holds, and one of another page of the set.
    #[test]
    fn more_waiters_than_a_set_can_count_all_hear_of_the_end() {
        let bytes = 4 * PAGE_BYTES as u64;
        let config = CacheConfig { bytes, bytes_max: bytes, set_size: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
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
