//! [`Parker`]: the sleep of a thread until a descriptor is readable, or another thread wakes it.
//!
//! Goals: no system call for the wake of a thread that is awake. Non-goals: several threads in one parker; each has its
//! own.
//!
//! Rules:
//! 1. The thread announces its sleep (`ASLEEP`), unless a wake has come since the last sleep (`WOKEN`). Only then it
//!    polls the descriptors.
//! 2. A waker sets `WOKEN`. Only a waker that found `ASLEEP` writes to the event descriptor, which ends the sleep.
//! 3. The thread returns to `AWAKE`. If the event descriptor ended the sleep, or a waker has found the thread asleep,
//!    the thread drains the descriptor. The waker's write may still come, and then only ends the next sleep early.
//! 4. Another thread may leave work without a wake if it then finds the thread awake (`is_asleep`): the thread looks
//!    for work once more after it has announced its sleep (`sleep_unless`). So one of the two sees the other.
//! 5. A forked child shares the descriptor with its parent, and does not touch it: each would take the other's wakes.
//!    A sleep that began before the fork, such as in `block_on`, goes on there by short pauses.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

#[cfg(not(iomill_models))]
use super::event::Event;
#[cfg(iomill_models)]
use super::event::model::Event;
use super::process::Home;
use super::sync::{AtomicU32, Ordering, fence};

/// The pause of a forked child in the place of a sleep (rule 5).
const CHILD_PAUSE: Duration = Duration::from_millis(1);

const AWAKE: u32 = 0;
const WOKEN: u32 = 1;
const ASLEEP: u32 = 2;

thread_local! {
    /// A parker of this thread that is not in use.
    static SPARE: RefCell<Option<Arc<Parker>>> = const { RefCell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub struct Parker {
    home: Home,
    state: AtomicU32,
    event: Event,
}

/// A parker in use by the calling thread.
#[derive(Debug)]
pub struct Parked(Arc<Parker>);

impl Parked {
    /// A parker for the calling thread.
    pub fn new() -> io::Result<Parked> {
        // Not one from before a fork: the child would share its parent's descriptor.
        if let Ok(Some(spare)) = SPARE.try_with(|spare| spare.borrow_mut().take().filter(|spare| spare.home.is_here()))
        {
            return Ok(Parked(spare));
        }
        Ok(Parked(Arc::new(Parker { home: Home::here(), state: AtomicU32::new(AWAKE), event: Event::new()? })))
    }

    /// The parker, for wakers. A late wake ends a later sleep early.
    pub fn parker(&self) -> &Arc<Parker> {
        &self.0
    }

    /// Takes a wake. Whether there was one.
    pub fn take(&self) -> bool {
        // Acquire: pairs with the Release in `wake_thread`.
        self.0.state.swap(AWAKE, Ordering::Acquire) == WOKEN
    }

    /// Whether there is a wake that was not taken.
    pub fn is_woken(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == WOKEN
    }

    /// Sleeps until a wake comes, or one of the descriptors is readable. The wake is left for `take`.
    pub fn sleep(&self, readable: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.sleep_unless(readable, || false)
    }

    /// As `sleep`, but returns at once if `has_work`, which is asked after the announcement (rule 4).
    pub fn sleep_unless(&self, readable: &[BorrowedFd<'_>], has_work: impl FnOnce() -> bool) -> io::Result<()> {
        let Parker { home, state, event } = &*self.0;
        if !home.is_here() {
            // Rule 5.
            std::thread::sleep(CHILD_PAUSE);
            return Ok(());
        }
        // Rule 1. Acquire, here and below: pairs with the Release in `wake_thread`.
        if state.compare_exchange(AWAKE, ASLEEP, Ordering::Acquire, Ordering::Acquire).is_err() {
            return Ok(());
        }
        // Pairs with the fence in `is_asleep`.
        fence(Ordering::SeqCst);
        let slept = if has_work() { Ok(false) } else { event.wait(readable, None) };
        // Rule 3. No wake is lost by the drain: one that this thread has yet to see has set `WOKEN`.
        let is_woken = state.compare_exchange(ASLEEP, AWAKE, Ordering::Acquire, Ordering::Acquire).is_err();
        if is_woken || matches!(slept, Ok(true)) {
            event.drain()?;
        }
        slept.map(drop)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        #[cfg(not(iomill_models))]
        let _kept_if_there_is_a_place = SPARE.try_with(|spare| *spare.borrow_mut() = Some(Arc::clone(&self.0)));
    }
}

impl Parker {
    /// Whether the thread sleeps, or has announced it. The caller has left work before (rule 4).
    pub fn is_asleep(&self) -> bool {
        // Pairs with the fence in `sleep_unless`.
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == ASLEEP
    }

    /// Ends the thread's sleep, or its next one if it is awake.
    pub fn wake_thread(&self) {
        // Release: pairs with the Acquire in `take` and `sleep`.
        if self.state.swap(WOKEN, Ordering::Release) == ASLEEP && self.home.is_here() {
            self.event.set();
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_thread();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_thread();
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{AtomicU32, model};
    use loom::sync::Arc;

    /// Two events happen, each with a wake. The thread sees both, however it sleeps. Loom reports a sleep without an
    /// end.
    ///
    /// Seen to fail when a waker that found the thread asleep set no event, and when the thread announced no sleep.
    #[test]
    fn loom_parker_loses_no_wake() {
        model(|| {
            let (home, state, event) = (Home::here(), AtomicU32::new(AWAKE), Event::new().unwrap());
            let parked = Parked(std::sync::Arc::new(Parker { home, state, event }));
            let happened = Arc::new(AtomicU32::new(0));
            let (theirs, parker) = (Arc::clone(&happened), std::sync::Arc::clone(parked.parker()));
            let thread = loom::thread::spawn(move || {
                for _ in 0..2 {
                    theirs.fetch_add(1, Ordering::Relaxed);
                    parker.wake_thread();
                }
            });
            loop {
                parked.take();
                if happened.load(Ordering::Relaxed) == 2 {
                    break;
                }
                parked.sleep(&[]).unwrap();
            }
            thread.join().unwrap();
        });
    }

    /// Another thread leaves work, and wakes only a thread that is asleep: the work is done (rule 4). Loom reports a
    /// sleep without an end.
    ///
    /// Seen to fail without either fence, and if the thread looks for work before it announces its sleep.
    #[test]
    fn loom_parker_sees_what_is_left_without_a_wake() {
        model(|| {
            let (home, state, event) = (Home::here(), AtomicU32::new(AWAKE), Event::new().unwrap());
            let parked = Parked(std::sync::Arc::new(Parker { home, state, event }));
            let left = Arc::new(AtomicU32::new(0));
            let (theirs, parker) = (Arc::clone(&left), std::sync::Arc::clone(parked.parker()));
            let thread = loom::thread::spawn(move || {
                theirs.store(1, Ordering::Relaxed);
                if parker.is_asleep() {
                    parker.wake_thread();
                }
            });
            while left.load(Ordering::Relaxed) == 0 {
                parked.take();
                parked.sleep_unless(&[], || left.load(Ordering::Relaxed) == 1).unwrap();
            }
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn no_wake_is_lost() {
        let parked = Parked::new().unwrap();
        let begun = Instant::now();
        thread::scope(|scope| {
            let parker = Arc::clone(parked.parker());
            scope.spawn(move || {
                for round in 0..1_000 {
                    if round % 100 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    parker.wake_thread();
                    while parker.state.load(Ordering::Relaxed) == WOKEN {
                        thread::yield_now();
                    }
                }
            });
            for _ in 0..1_000 {
                while !parked.take() {
                    parked.sleep(&[]).unwrap();
                }
            }
        });
        assert!(begun.elapsed() < Duration::from_secs(600));
    }

    /// A waker sets the event descriptor after the thread has returned. The descriptor then ended every later sleep, so
    /// the thread took a CPU for itself.
    #[test]
    fn a_late_wake_ends_one_sleep() {
        let parked = Parked::new().unwrap();
        // The late half of a wake: the thread has taken the wake, and drained the descriptor too early.
        parked.parker().event.set();
        parked.sleep(&[]).unwrap();
        let woken = AtomicU32::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                woken.store(1, Ordering::Relaxed);
                parked.parker().wake_thread();
            });
            parked.sleep(&[]).unwrap();
            assert_eq!(woken.load(Ordering::Relaxed), 1, "the thread sleeps no more");
        });
    }

    /// Parent and child sleep at the same time, and the parent is woken. The child took its parent's wakes (rule 5). The
    /// child has no threads: the thread sanitizer ends a child that begins one.
    #[test]
    fn a_child_takes_no_wake_of_its_parent() {
        for _ in 0..20 {
            let parked = Parked::new().unwrap();
            // SAFETY: the child runs what follows, and `_exit` ends it.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: it only ends the child, which would sleep for ever if it waited for its parent's wakes.
                unsafe { libc::alarm(60) };
                let slept = (0..30).all(|_| parked.sleep(&[]).is_ok() && !parked.take());
                parked.parker().wake_thread();
                // SAFETY: as above.
                unsafe { libc::_exit(i32::from(!slept || !parked.take())) };
            }
            let parker = Arc::clone(parked.parker());
            let waking = thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                parker.wake_thread();
            });
            while !parked.take() {
                parked.sleep(&[]).unwrap();
            }
            waking.join().unwrap();
            let mut status = 0;
            // SAFETY: `status` is there.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0, "a wake was lost");
        }
    }

    #[test]
    fn a_descriptor_ends_the_sleep() {
        let parked = Parked::new().unwrap();
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        parked.sleep(&[event.as_fd()]).unwrap();
        assert!(!parked.take());
    }
}
