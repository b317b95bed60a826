//! [`Commits`]: callers that make their changes durable together (C16 to C19).
//!
//! Goals: one fsync for all queued changes, without a thread of its own. Non-goals: the changes and their fsync. The
//! caller supplies the queue `Q` and the leader's turn.
//!
//! Rules:
//! 1. There is at most one leader. It takes all that is queued, and works without the lock.
//! 2. A change is durable when the turn that took it has ended well. Tickets count the changes, so a turn covers all up
//!    to the ticket that was the last when it began.
//! 3. A turn that ends wakes all that wait. Each that is not covered and finds no leader becomes the leader.
//! 4. After a turn that failed nothing more is taken or queued. All that is not durable by then has failed. A turn may
//!    also end *put off*: what it took is kept by its leader's caller, and is durable with the next turn that ends
//!    well.
//! 5. A leader that panics has failed.
//! 6. A leader that waits gives way a few times, until as many changes are queued as its forerunner took. Callers that
//!    were woken together come back together. Without this the first of them leads a turn of its own, and all others
//!    wait for it.

use crate::sys::sync::{Condvar, Mutex, give_way, lock, wait};

/// How often a leader gives way (rule 6).
const GIVES_WAY: u32 = if cfg!(iomill_models) { 1 } else { 8 };

/// The place of a change among all changes. Zero is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What changes are queued in.
pub trait CommitQueue: Default {
    /// Removes all changes and keeps the memory, so that turns do not allocate.
    fn empty(&mut self);

    /// How much is in it, for callers of [`Commits::queue_beside`].
    fn weight(&self) -> u64 {
        0
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All that it took is durable, and all that was put off before.
    Durable,
    /// Rule 4.
    PutOff,
    /// Rule 4.
    Failed,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Commits<Q> {
    state: Mutex<State<Q>>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State<Q> {
    queue: Q,
    /// An empty queue of the last turn, for the next one.
    spare: Q,
    /// That of the last change in `queue`, or taken from it.
    last: Ticket,
    /// All up to this one are durable (rule 2).
    durable: Ticket,
    /// The number of changes that the last turn took.
    company: u64,
    /// The weight of the changes in the present turn.
    taken: u64,
    is_led: bool,
    has_failed: bool,
}

/// The turn that has covered, or should have covered, a change failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// The state of a change.
#[derive(Debug)]
pub enum Standing<'a, Q: CommitQueue> {
    /// It is durable.
    Durable,
    /// It has failed.
    Failed,
    /// The caller leads now.
    Leads(Turn<'a, Q>),
}

/// The right and duty of the leader to make `queue` durable. A drop without `end` is a failure (rule 5).
#[derive(Debug)]
pub struct Turn<'a, Q: CommitQueue> {
    commits: &'a Commits<Q>,
    /// The queued changes.
    pub queue: Q,
    covers: Ticket,
}

impl<Q: CommitQueue> Commits<Q> {
    /// Adds a change to the queue. `Err` after a failure (rule 4). `add` may refuse, too: then nothing is queued.
    pub fn queue<E: From<Failed>>(&self, add: impl FnOnce(&mut Q) -> Result<(), E>) -> Result<Ticket, E> {
        self.queue_beside(|queue, _| add(queue))
    }

    /// `queue` with an `add` that also gets the weight of the changes in the present turn.
    pub fn queue_beside<E: From<Failed>>(&self, add: impl FnOnce(&mut Q, u64) -> Result<(), E>) -> Result<Ticket, E> {
        let mut state = lock(&self.state);
        if state.has_failed {
            return Err(Failed.into());
        }
        let taken = state.taken;
        add(&mut state.queue, taken)?;
        state.last.0 += 1;
        Ok(state.last)
    }

    /// The last change that was queued.
    pub fn last(&self) -> Ticket {
        lock(&self.state).last
    }

    /// Whether a change is durable.
    pub fn is_durable(&self, ticket: Ticket) -> bool {
        lock(&self.state).durable >= ticket
    }

    /// Whether a turn has failed.
    pub fn has_failed(&self) -> bool {
        lock(&self.state).has_failed
    }

    /// Waits until a change is durable or has failed, or until the caller leads.
    pub fn wait(&self, ticket: Ticket) -> Standing<'_, Q> {
        let mut state = lock(&self.state);
        while state.is_led && state.durable < ticket && !state.has_failed {
            state = wait(&self.ended, state);
        }
        if state.durable >= ticket || state.has_failed {
            return self.stand(&mut state, ticket);
        }
        state.is_led = true;
        let mut times = 0;
        while state.last.0 - state.durable.0 < state.company && times < GIVES_WAY {
            drop(state);
            give_way();
            state = lock(&self.state);
            times += 1;
        }
        self.stand(&mut state, ticket)
    }

    /// There is no leader but the caller, or `ticket` needs none.
    fn stand(&self, state: &mut State<Q>, ticket: Ticket) -> Standing<'_, Q> {
        if state.durable >= ticket {
            return Standing::Durable;
        }
        if state.has_failed {
            return Standing::Failed;
        }
        state.is_led = true;
        let spare = std::mem::take(&mut state.spare);
        let queue = std::mem::replace(&mut state.queue, spare);
        state.taken = queue.weight();
        Standing::Leads(Turn { commits: self, queue, covers: state.last })
    }

    /// Waits until a change is durable. A leader makes its queue durable by `lead`. `Err(None)`: another leader failed.
    pub fn commit<E>(&self, ticket: Ticket, lead: impl FnOnce(&mut Q) -> Result<(), E>) -> Result<(), Option<E>> {
        self.commit_or_put_off(ticket, lead, |_| false)
    }

    /// `commit` with `is_put_off`, which says whether an error puts the turn off.
    pub fn commit_or_put_off<E>(
        &self,
        ticket: Ticket,
        lead: impl FnOnce(&mut Q) -> Result<(), E>,
        is_put_off: impl FnOnce(&E) -> bool,
    ) -> Result<(), Option<E>> {
        match self.wait(ticket) {
            Standing::Durable => Ok(()),
            Standing::Failed => Err(None),
            Standing::Leads(mut turn) => {
                // All that this ticket needs is in the turn's queue, because earlier turns have ended.
                let led = lead(&mut turn.queue);
                turn.end(match &led {
                    Ok(()) => End::Durable,
                    Err(error) if is_put_off(error) => End::PutOff,
                    Err(_) => End::Failed,
                });
                led.map_err(Some)
            }
        }
    }
}

impl<Q: CommitQueue> Turn<'_, Q> {
    /// Ends the turn, and wakes all waiting callers (rule 3).
    pub fn end(mut self, end: End) {
        self.finish(end);
        std::mem::forget(self);
    }

    fn finish(&mut self, end: End) {
        let mut emptied = std::mem::take(&mut self.queue);
        emptied.empty();
        let mut state = lock(&self.commits.state);
        state.spare = emptied;
        (state.is_led, state.taken) = (false, 0);
        match end {
            End::Durable => {
                state.company = self.covers.0 - state.durable.0;
                state.durable = self.covers;
            }
            End::PutOff => {}
            End::Failed => state.has_failed = true,
        }
        drop(state);
        self.commits.ended.notify_all();
    }
}

impl<Q: CommitQueue> Drop for Turn<'_, Q> {
    fn drop(&mut self) {
        self.finish(End::Failed);
    }
}

#[cfg(test)]
impl CommitQueue for Vec<u32> {
    fn empty(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
impl CommitQueue for u64 {
    fn empty(&mut self) {
        *self = 0;
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    fn queue(commits: &Commits<Vec<u32>>, number: u32) -> Ticket {
        let add = |queue: &mut Vec<u32>| {
            queue.push(number);
            Ok::<(), Failed>(())
        };
        commits.queue(add).expect("nothing has failed")
    }

    #[test]
    fn a_leader_takes_all_that_is_queued_in_order() {
        let commits = Commits::default();
        let first = queue(&commits, 1);
        let second = queue(&commits, 2);
        let lead = |queue: &mut Vec<u32>| {
            assert_eq!(queue.as_slice(), [1, 2]);
            Ok::<(), ()>(())
        };
        assert_eq!(commits.commit(second, lead), Ok(()));
        assert_eq!(commits.commit(first, |_| panic!("it is durable")), Ok::<(), Option<()>>(()));
        assert_eq!(commits.commit(Ticket::default(), |_| panic!("there is nothing")), Ok::<(), Option<()>>(()));
        let third = queue(&commits, 3);
        assert_eq!((commits.last(), third > second), (third, true));
    }

    #[test]
    fn after_a_failure_nothing_is_taken() {
        let commits = Commits::default();
        let durable = queue(&commits, 1);
        commits.commit(durable, |_| Ok::<(), ()>(())).unwrap();
        let lost = queue(&commits, 2);
        assert_eq!(commits.commit(lost, |_| Err("full")), Err(Some("full")));
        assert_eq!(commits.commit(lost, |_| panic!("no second try")), Err(None::<()>));
        assert_eq!(commits.commit(durable, |_| panic!("it is durable")), Ok::<(), Option<()>>(()));
        assert_eq!(commits.queue(|_| Ok::<(), Failed>(())), Err(Failed));
        assert!(commits.has_failed());
    }

    /// A change that was put off becomes durable with the next turn. The next waiting caller leads it.
    #[test]
    fn a_turn_that_is_put_off_is_made_good_by_the_next() {
        let commits = Commits::default();
        let (first, second) = (queue(&commits, 1), queue(&commits, 2));
        let mut kept = Vec::new();
        let put_off = |queue: &mut Vec<u32>| {
            kept.append(queue);
            Err("later")
        };
        assert_eq!(commits.commit_or_put_off(first, put_off, |_| true), Err(Some("later")));
        assert!(!commits.has_failed() && !commits.is_durable(first));
        let third = queue(&commits, 3);
        let lead = |queue: &mut Vec<u32>| {
            assert_eq!((kept.as_slice(), queue.as_slice()), ([1, 2].as_slice(), [3].as_slice()));
            Ok::<(), ()>(())
        };
        assert_eq!(commits.commit(second, lead), Ok(()));
        assert!(commits.is_durable(third));
    }

    #[test]
    fn a_refused_change_is_not_queued() {
        let commits: Commits<Vec<u32>> = Commits::default();
        #[derive(Debug, PartialEq)]
        struct Full;
        impl From<Failed> for Full {
            fn from(_: Failed) -> Full {
                Full
            }
        }
        assert_eq!(commits.queue(|_| Err(Full)), Err(Full));
        assert_eq!(commits.last(), Ticket::default());
    }

    #[test]
    fn a_leader_that_panics_has_failed() {
        let commits = Commits::default();
        let ticket = queue(&commits, 1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            commits.commit(ticket, |_| -> Result<(), ()> { panic!("as the test wants") })
        }));
        assert!(panicked.is_err() && commits.has_failed());
        assert!(matches!(commits.wait(ticket), Standing::Failed));
    }

    /// 16 threads share fsyncs.
    #[test]
    fn callers_share_turns() {
        let (commits, turns) = (Commits::default(), AtomicU32::new(0));
        let (threads, rounds) = (16, 200);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let ticket = queue(&commits, round);
                        let lead = |queue: &mut Vec<u32>| {
                            assert!(!queue.is_empty());
                            turns.fetch_add(1, SeqCst);
                            std::thread::yield_now();
                            Ok::<(), ()>(())
                        };
                        commits.commit(ticket, lead).unwrap();
                    }
                });
            }
        });
        assert!(turns.load(SeqCst) <= threads * rounds);
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sys::sync::{Arc, AtomicU32, Ordering, model};

    /// Bits that were made durable, under a lock that only a leader takes.
    struct Drive {
        durable: Mutex<u64>,
        leaders: AtomicU32,
        /// The turn with this bit fails.
        failing: u64,
    }

    struct Log {
        commits: Commits<u64>,
        drive: Drive,
    }

    impl Log {
        fn new(failing: u64) -> Arc<Log> {
            let drive = Drive { durable: Mutex::new(0), leaders: AtomicU32::new(0), failing };
            let commits = Commits { state: Mutex::new(State::default()), ended: Condvar::new() };
            Arc::new(Log { commits, drive })
        }

        fn lead(&self, bits: u64) -> Result<(), ()> {
            assert_eq!(self.drive.leaders.fetch_add(1, Ordering::Relaxed), 0, "two leaders");
            let fails = bits & self.drive.failing != 0;
            if !fails {
                *lock(&self.drive.durable) |= bits;
            }
            self.drive.leaders.fetch_sub(1, Ordering::Relaxed);
            if fails { Err(()) } else { Ok(()) }
        }

        /// Commits a bit. Whether it is durable, as far as the caller hears.
        fn change(&self, bit: u64) -> bool {
            let Ok(ticket) = self.commits.queue(|queue| {
                *queue |= bit;
                Ok::<(), Failed>(())
            }) else {
                return false;
            };
            let is_durable = self.commits.commit(ticket, |bits| self.lead(*bits)).is_ok();
            assert!(!is_durable || *lock(&self.drive.durable) & bit != 0, "bit {bit} is said to be durable");
            is_durable
        }
    }

    fn check(failing: u64) {
        model(move || {
            let log = Log::new(failing);
            let theirs = Arc::clone(&log);
            let thread = thread::spawn(move || [theirs.change(1), theirs.change(2)]);
            let ours = log.change(4);
            let [first, second] = thread.join().unwrap();
            assert_eq!(first && second && ours, failing == 0);
            // What failed with a group stays failed: later changes of the same caller do not succeed.
            assert!(first || !second);
        });
    }

    /// No caller hears that a change is durable that is not, no two lead, and none sleeps for ever.
    ///
    /// Seen to fail when a turn covered `state.last` at its end, when `wait` did not wait for a leader, when `finish`
    /// woke none, and when a turn that failed counted as durable.
    #[test]
    fn loom_commits_are_durable_when_they_return() {
        check(0);
        check(4);
        check(1);
    }
}
