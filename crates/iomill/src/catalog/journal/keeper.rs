//! [`Keeper`]: says when the thread that keeps the log up has to run.
//!
//! Goals: a thread that exists only while there is something to do, and misses nothing. Non-goals: the work.
//!
//! Rules:
//! 1. A round begins after each `wake`, unless the keeper ends. One round may serve several wakes.
//! 2. At most one thread runs. The caller to which `wake` says so starts it.
//! 3. After `end` no thread is started, and the one that runs ends after its step.

use crate::sys::sync::{Mutex, lock};

/// See the module.
#[derive(Debug, Default)]
pub struct Keeper {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_wanted: bool,
    is_running: bool,
    ends: bool,
}

impl Keeper {
    /// Asks for a round. Whether the caller has to start the thread.
    pub fn wake(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_wanted = true;
        let starts = !state.is_running && !state.ends;
        state.is_running |= starts;
        starts
    }

    /// The thread could not be started.
    pub fn has_not_started(&self) {
        lock(&self.state).is_running = false;
    }

    /// For the thread: whether to begin a round. After `false` it has to end.
    pub fn next(&self) -> bool {
        let mut state = lock(&self.state);
        let goes_on = state.is_wanted && !state.ends;
        (state.is_wanted, state.is_running) = (false, goes_on);
        goes_on
    }

    /// Ends the thread, which may still be at work.
    pub fn end(&self) {
        lock(&self.state).ends = true;
    }

    /// Whether it ends.
    pub fn ends(&self) -> bool {
        lock(&self.state).ends
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn one_thread_runs_while_it_is_wanted() {
        let keeper = Keeper::default();
        assert_eq!((keeper.wake(), keeper.wake()), (true, false));
        assert_eq!((keeper.next(), keeper.next()), (true, false));
        assert!(keeper.wake());
        keeper.has_not_started();
        assert!(keeper.wake());
        keeper.end();
        assert_eq!((keeper.wake(), keeper.next(), keeper.ends(), keeper.wake()), (false, false, true, false));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sys::sync::{Arc, AtomicU32, Ordering, model};

    struct Work {
        keeper: Keeper,
        asked: AtomicU32,
        /// What was asked for when the last round began.
        seen: AtomicU32,
        running: AtomicU32,
    }

    fn ask(work: &Arc<Work>) -> Option<thread::JoinHandle<()>> {
        work.asked.fetch_add(1, Ordering::AcqRel);
        let theirs = Arc::clone(work);
        work.keeper.wake().then(|| {
            thread::spawn(move || {
                while theirs.keeper.next() {
                    assert_eq!(theirs.running.fetch_add(1, Ordering::AcqRel), 0, "two threads");
                    theirs.seen.store(theirs.asked.load(Ordering::Acquire), Ordering::Release);
                    theirs.running.fetch_sub(1, Ordering::AcqRel);
                }
            })
        })
    }

    /// Each request is seen by a round that begins after it, and no two threads run.
    ///
    /// Seen to fail when `next` said that it goes on no longer in a second step, and when `wake` asked only if no
    /// thread ran.
    #[test]
    fn loom_keeper_misses_nothing() {
        model(|| {
            let (keeper, zero) = (Keeper { state: Mutex::new(State::default()) }, || AtomicU32::new(0));
            let work = Arc::new(Work { keeper, asked: zero(), seen: zero(), running: zero() });
            let theirs = Arc::clone(&work);
            let other = thread::spawn(move || ask(&theirs));
            let ours = [ask(&work), ask(&work)];
            let started = ours.into_iter().chain([other.join().unwrap()]);
            started.flatten().for_each(|thread| thread.join().unwrap());
            assert_eq!(work.seen.load(Ordering::Acquire), 3);
        });
    }
}
