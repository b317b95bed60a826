//! Operations that block no thread: [`spawn`], and the `SpawnedOperation` that it makes of an operation. Non-goals: the
//! wakes of a task (`io`).
//!
//! A spawned operation owns its file and its buffers. It lives until it has ended, even if the future or the call that
//! caused it is gone.
//!
//! Rules:
//! 1. One thread at a time polls a task. If a wake comes meanwhile, that thread polls once more ([`RunState`]).
//! 2. The thread that wakes a task polls it. So only threads that may poll wake it (rule 2 of `io`).
//! 3. A panic ends a task. It drops the task's locals, which completes fills, leaves gates and breaks promises.

use std::cell::UnsafeCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::cell::SharedCell;
use crate::sys::sync::{AtomicU32, Ordering};

/// No thread polls the task, and no wake has come since the last poll.
const IDLE: u32 = 0;
/// A thread polls the task.
const RUNNING: u32 = 1;
/// A thread polls the task, and a wake has come meanwhile.
const WOKEN: u32 = 2;
const ENDED: u32 = 3;

/// The state by which one thread at a time polls a task (rule 1).
#[derive(Debug)]
struct RunState(AtomicU32);

impl RunState {
    fn new() -> RunState {
        RunState(AtomicU32::new(IDLE))
    }

    /// Notes a wake. Whether the caller must poll.
    fn begin(&self) -> bool {
        let woken = |state| match state {
            IDLE => Some(RUNNING),
            // Stored even if it is `WOKEN` already, so that each wake is ordered before the poll after it.
            RUNNING | WOKEN => Some(WOKEN),
            _ => None,
        };
        // AcqRel: pairs with `pause` of the thread that polled last, so that its changes of the future are seen.
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, woken) == Ok(IDLE)
    }

    /// Notes the end of a poll after which the task goes on. Whether the caller is done; else a wake has come, and the
    /// caller polls again.
    fn pause(&self) -> bool {
        // AcqRel: pairs with the AcqRel in `begin`.
        let is_idle = self.0.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !is_idle {
            // The state is `WOKEN`: only a wake changes it while a thread polls.
            self.0.swap(RUNNING, Ordering::AcqRel);
        }
        is_idle
    }

    fn end(&self) {
        // Release: pairs with the Acquire in `begin`.
        self.0.store(ENDED, Ordering::Release);
    }
}

/// An operation, with its state and the cell for its I/O.
struct SpawnedOperation<F> {
    state: RunState,
    cell: Arc<SharedCell>,
    /// `None` after the end. Only the thread that polls accesses it (rule 1).
    operation: UnsafeCell<Option<F>>,
}

// SAFETY: one thread at a time accesses `operation` (rule 1), and `state` orders their accesses. So it need only be
// `Send`.
unsafe impl<F: Send> Sync for SpawnedOperation<F> {}

impl<F: Future<Output = ()> + Send + 'static> SpawnedOperation<F> {
    /// Polls the operation, unless another thread does. Whether it waits now.
    fn run(self: &Arc<Self>) -> bool {
        if !self.state.begin() {
            return false;
        }
        let waker = Waker::from(Arc::clone(self));
        loop {
            // Rule 3. The panic message has been printed.
            let polled = catch_unwind(AssertUnwindSafe(|| self.poll(&mut Context::from_waker(&waker))));
            if !matches!(polled, Ok(Poll::Pending)) {
                // SAFETY: this thread polls, until `end`.
                let operation = unsafe { &mut *self.operation.get() };
                // Dropped in place, because it is pinned. A second panic, in the drop of its locals, must not end the
                // thread.
                let _ = catch_unwind(AssertUnwindSafe(|| *operation = None));
                self.state.end();
                return false;
            }
            if self.state.pause() {
                return true;
            }
        }
    }

    /// Polls the operation as `run`, and ensures a turn for its I/O, because no poll of a future will take one.
    fn run_and_watch(self: &Arc<Self>) {
        if self.run() {
            self.cell.watch();
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        // SAFETY: this thread polls (rule 1).
        match unsafe { &mut *self.operation.get() } {
            // SAFETY: the operation is in an `Arc`, from which it is never moved, and is dropped in place.
            Some(operation) => unsafe { Pin::new_unchecked(operation) }.poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for SpawnedOperation<F> {
    fn wake(self: Arc<Self>) {
        self.run_and_watch();
    }
}

fn spawned<F>(cell: &Arc<SharedCell>, operation: F) -> Arc<SpawnedOperation<F>> {
    let (state, cell) = (RunState::new(), Arc::clone(cell));
    Arc::new(SpawnedOperation { state, cell, operation: UnsafeCell::new(Some(operation)) })
}

/// Begins an operation with I/O in a shared context, by [`super::Exec::spawned`]. Returns when the operation has ended
/// or waits for the first time.
pub fn spawn(cell: &Arc<SharedCell>, operation: impl Future<Output = ()> + Send + 'static) {
    spawned(cell, operation).run_and_watch();
}

/// As [`spawn`], for an operation with a future: its polls advance the I/O.
pub fn spawn_polled(cell: &Arc<SharedCell>, operation: impl Future<Output = ()> + Send + 'static) {
    spawned(cell, operation).run();
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{AtomicU32, model};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// The events for which a task waits, the number of its polls, and whether a poll saw all events.
    #[derive(Default)]
    struct Model {
        events: [AtomicU32; 3],
        polls: UnsafeCell<u32>,
        saw_all: UnsafeCell<bool>,
    }

    fn wake(state: &RunState, task: &Model) {
        if !state.begin() {
            return;
        }
        loop {
            // SAFETY: loom checks that one thread at a time is here (rule 1).
            task.polls.with_mut(|polls| unsafe { *polls += 1 });
            let all = task.events.iter().all(|event| event.load(Ordering::Relaxed) == 1);
            if all {
                // SAFETY: as above.
                task.saw_all.with_mut(|saw| unsafe { *saw = true });
                return state.end();
            }
            if state.pause() {
                return;
            }
        }
    }

    /// One thread at a time polls, and a poll after the last event sees all of them (rule 1).
    ///
    /// Seen to fail when a wake that found the task running was dropped, and when `begin` let a second thread poll.
    #[test]
    fn loom_task_sees_every_wake() {
        model(|| {
            let shared = Arc::new((RunState::new(), Model::default()));
            let threads: Vec<_> = (0..3)
                .map(|event| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        shared.1.events[event].store(1, Ordering::Relaxed);
                        wake(&shared.0, &shared.1);
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            // SAFETY: the threads have ended.
            assert!(shared.1.saw_all.with(|saw| unsafe { *saw }));
        });
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::future::poll_fn;
    use std::sync::Mutex;

    use super::*;
    use crate::exec::promise;

    fn start(operation: impl Future<Output = ()> + Send + 'static) {
        spawn(&SharedCell::of_no_drives(), operation);
    }

    #[test]
    fn a_wake_within_a_poll_polls_once_more() {
        let polls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&polls);
        start(poll_fn(move |context| {
            let mut polls = counted.lock().unwrap();
            *polls += 1;
            if *polls == 3 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            context.waker().wake_by_ref();
            Poll::Pending
        }));
        assert_eq!(*polls.lock().unwrap(), 3);
    }

    #[test]
    fn a_task_that_panics_breaks_its_promise_and_nothing_else() {
        let (promise, mut promised) = promise::<u32>();
        start(async move {
            let _promise = promise;
            panic!("a test's own");
        });
        let polled = Pin::new(&mut promised).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Err(crate::Error::Panicked))), "{polled:?}");
    }
}
