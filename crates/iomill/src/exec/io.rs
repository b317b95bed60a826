//! The I/O and waits of an operation: [`Io`] starts pieces, a [`Landing`] waits for them, a [`Sink`] receives their
//! ends.
//!
//! Non-goals: the polling of spawned operations (`task`).
//!
//! Rules:
//! 1. A blocking operation blocks inside the wait itself. So it is polled once, and ends in that poll.
//! 2. A spawned operation blocks no thread. The thread that completes the last of its pieces wakes it, once it has left
//!    the context. All other wakes come from a thread of the pool `resumes`, because the end of a page is reported
//!    under locks, and on threads of other callers.
//! 3. The pieces' memory and sink stay until all pieces have ended, also when a panic drops the operation: the drop of
//!    a [`Landing`] waits for the pieces.

use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::cell::SharedCell;
use super::{Exec, Within, pools, telling};
use crate::cache::{Outcome, Waiter};
use crate::drive::inline::Source;
use crate::drive::shares::Owner;
use crate::drive::{Failure, Fault, Piece};
use crate::engine::Op;
use crate::error::Result;
use crate::sys::sync::{AtomicBool, Mutex, Ordering, lock};

/// Receives the end of each piece once, by its tag, on the thread that completes the piece.
pub trait Sink: Sync {
    /// A piece has ended. The call must not block.
    fn piece_done(&self, tag: u32, outcome: Outcome);
}

/// A sink that keeps only the first failure.
#[derive(Debug, Default)]
pub struct FirstFailure {
    is_some: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl FirstFailure {
    /// Whether no piece has failed so far.
    pub fn is_none(&self) -> bool {
        !self.is_some.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Option<Failure> {
        if self.is_none() { None } else { lock(&self.failure).take() }
    }

    pub fn keep(&self, outcome: Outcome) {
        if let Err(failure) = outcome {
            lock(&self.failure).get_or_insert(failure);
            // Relaxed: read on this thread, or after the flight has landed (ordered by the lock in
            // `Flight::share_done`).
            self.is_some.store(true, Ordering::Relaxed);
        }
    }
}

impl Sink for FirstFailure {
    fn piece_done(&self, _tag: u32, outcome: Outcome) {
        self.keep(outcome);
    }
}

/// The failure for an error before any I/O.
pub fn failure(op: Op, errno: i32) -> Failure {
    Failure { op, key: 0, offset: 0, fault: Fault::Errno(errno) }
}

/// The means of an operation to do I/O and to wait.
#[derive(Clone, Copy, Debug)]
pub struct Io<'a> {
    exec: &'a Exec,
    /// The shared context of a spawned operation. `None` if the operation blocks (rule 1): the calling thread's own
    /// engines then do its I/O.
    cell: Option<&'a Arc<SharedCell>>,
}

impl Exec {
    /// The I/O of a blocking call.
    pub fn blocking(&self) -> Io<'_> {
        Io { exec: self, cell: None }
    }

    /// The I/O of a spawned operation ([`super::task::spawn`]), in a cell from [`Exec::cell_for`].
    pub fn spawned<'a>(&'a self, cell: &'a Arc<SharedCell>) -> Io<'a> {
        Io { exec: self, cell: Some(cell) }
    }

    /// Runs an operation to its end on the calling thread. All its waits block ([`Exec::blocking`], or the like).
    pub fn run_to_end<T>(operation: impl Future<Output = T>) -> T {
        let mut operation = std::pin::pin!(operation);
        match operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("a blocking operation waits inside its only poll (rule 1)"),
        }
    }
}

impl<'a> Io<'a> {
    /// Whether waits block the calling thread.
    pub fn blocks(&self) -> bool {
        self.cell.is_none()
    }

    /// Runs all pieces, even after some have failed, and reports each end to `sink`. The returned [`Landing`] waits for
    /// the ends. An error means that no piece was begun. `within` contains the memory of all pieces, except memory in
    /// slabs.
    ///
    /// It is no `async fn`, so that it takes the pieces before the caller's first wait.
    ///
    /// # Safety
    /// The pieces' memory and files are valid until the landing has ended or is dropped. No other code touches memory
    /// that is read into. The landing is not forgotten.
    pub unsafe fn run<'s>(
        &self,
        within: Within,
        pieces: impl Iterator<Item = (u16, Piece)>,
        sink: &'s dyn Sink,
    ) -> Result<Landing<'a, 's>> {
        let landing = |flight| Landing { flight, exec: self.exec, sink: PhantomData };
        let Some(cell) = self.cell else {
            // SAFETY: the caller's promise.
            unsafe { self.exec.run_inline(within.span(), pieces, |end| sink.piece_done(end.tag, end.result)) }?;
            return Ok(landing(None));
        };
        // Collected before the lock is taken and before the sink can be reached, because the iterator is other code.
        let pieces: Vec<(u16, Piece)> = pieces.collect();
        if pieces.is_empty() {
            return Ok(landing(None));
        }
        let flight = Flight::new(sink);
        // Made before the push, which takes a turn: an engine that panics there unwinds over pieces in flight (rule 3).
        let landing = landing(Some(Arc::clone(&flight)));
        // SAFETY: the caller's promise.
        unsafe { cell.push(flight, within, pieces.into_iter(), None) }?;
        Ok(landing)
    }

    /// For a blocking operation: runs the pieces of a source, and reports each end to `done`, by its tag, before it
    /// asks the source again. An error means that no piece was begun.
    ///
    /// # Safety
    /// The pieces' memory and files are valid until this returns. No other code touches memory that is read into.
    pub unsafe fn run_fed(&self, pieces: impl Source, mut done: impl FnMut(u32, Outcome)) -> Result<()> {
        debug_assert!(self.blocks());
        // SAFETY: the caller's promise.
        unsafe { self.exec.run_inline(Within::SLABS.span(), pieces, |end| done(end.tag, end.result)) }
    }

    /// Waits for a page on which another operation works. Returns that operation's outcome.
    pub async fn wait_for_page(&self, waiter: &Arc<Waiter>) -> Outcome {
        if !self.blocks() {
            let _waiting = self.exec.shared.begin_wait();
            self.exec.shared.expedite();
            let look = |context: &mut Context<'_>| {
                let (resumes, waker) = (Arc::clone(&self.exec.resumes), context.waker().clone());
                let resume = move || {
                    if let Some(waker) = telling::wake_later(waker) {
                        resumes.wake(waker);
                    }
                };
                let outcome = waiter.outcome_or_call(Box::new(resume));
                outcome.map_or(Poll::Pending, Poll::Ready)
            };
            return poll_fn(look).await;
        }
        if self.exec.has_threads() {
            return self.exec.shared.wait_for_page(waiter);
        }
        loop {
            if let Some(outcome) = waiter.outcome() {
                return outcome;
            }
            self.exec.pause_for_io();
        }
    }

    /// Continues on a thread where blocking delays no other operation's I/O.
    pub async fn on_blocking_thread(&self) {
        if !self.blocks() {
            let may_block = |context: &mut Context<'_>| {
                if pools::may_resume_blocking() {
                    return Poll::Ready(());
                }
                self.exec.resumes.wake(context.waker().clone());
                Poll::Pending
            };
            poll_fn(may_block).await;
        }
    }

    /// Lets I/O go on for a little while, if there is no specific event to wait for.
    pub async fn pause(&self) {
        self.on_blocking_thread().await;
        self.exec.pause_for_io();
    }
}

/// Pieces in flight in a shared context.
struct Flight {
    /// Valid until the share has ended (rule 3).
    sink: NonNull<dyn Sink>,
    /// Whether the sink has panicked. Ordered by the lock of `state`.
    has_panicked: AtomicBool,
    state: Mutex<FlightState>,
}

#[derive(Default)]
struct FlightState {
    has_landed: bool,
    waker: Option<Waker>,
}

// SAFETY: the sink is `Sync`, and valid while pieces are in flight (rule 3).
unsafe impl Send for Flight {}
// SAFETY: as above.
unsafe impl Sync for Flight {}

impl Flight {
    fn new(sink: &dyn Sink) -> Arc<Flight> {
        // SAFETY: this changes only the lifetime. Rule 3 takes its place: no code reaches the sink after the share has
        // ended.
        let sink = unsafe { std::mem::transmute::<NonNull<dyn Sink + '_>, NonNull<dyn Sink>>(NonNull::from(sink)) };
        Arc::new(Flight { sink, has_panicked: AtomicBool::new(false), state: Mutex::default() })
    }
}

impl Owner for Flight {
    fn piece_done(&self, tag: u32, result: Outcome) {
        // SAFETY: the piece's share has not ended, so the sink is valid (rule 3).
        let sink = unsafe { self.sink.as_ref() };
        // A panic's message has been printed, and the operation panics where it waits.
        if catch_unwind(AssertUnwindSafe(|| sink.piece_done(tag, result))).is_err() {
            self.has_panicked.store(true, Ordering::Relaxed);
        }
    }

    fn share_done(self: Arc<Self>, _failure: Option<Failure>) {
        let waker = {
            let mut state = lock(&self.state);
            state.has_landed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the ends of pieces. Its drop waits, too (rule 3).
#[must_use = "its drop blocks"]
pub struct Landing<'a, 's> {
    /// `None` if the pieces have ended already.
    flight: Option<Arc<Flight>>,
    exec: &'a Exec,
    sink: PhantomData<&'s dyn Sink>,
}

impl Future for Landing<'_, '_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(flight) = &self.flight else { return Poll::Ready(()) };
        let mut state = lock(&flight.state);
        if !state.has_landed {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        if flight.has_panicked.load(Ordering::Relaxed) {
            resume_unwind(Box::new("the receiver of the ends of pieces has panicked"));
        }
        Poll::Ready(())
    }
}

impl Landing<'_, '_> {
    /// Whether pieces may be in flight. A context that has none of them, or never took them, does not hold the flight.
    fn is_in_flight(&mut self) -> bool {
        let Some(flight) = &mut self.flight else { return false };
        !lock(&flight.state).has_landed && Arc::get_mut(flight).is_none()
    }
}

impl Drop for Landing<'_, '_> {
    /// While pieces are in flight, only a panic drops a landing. News of ended pieces may wait for an outer caller, so
    /// they are told here.
    fn drop(&mut self) {
        while self.is_in_flight() {
            telling::tell_all();
            self.exec.pause_for_drives();
        }
    }
}

/// Runs two operations at the same time, until both have ended. A panic of one goes on only when the other has ended,
/// too. An earlier drop of the other would wait for its pieces (rule 3), perhaps on the thread that should complete
/// them.
pub async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut a, mut b) = (None, None);
    let ends = poll_fn(move |context| {
        advance(one.as_mut(), &mut a, context);
        advance(other.as_mut(), &mut b, context);
        match (a.take(), b.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (a, b) = (one, other);
                Poll::Pending
            }
        }
    });
    match ends.await {
        (Ok(one), Ok(other)) => (one, other),
        (Err(panic), _) | (_, Err(panic)) => resume_unwind(panic),
    }
}

/// Polls an operation that has not ended, and keeps its result or its panic.
fn advance<F: Future>(
    operation: Pin<&mut F>,
    end: &mut Option<std::thread::Result<F::Output>>,
    context: &mut Context<'_>,
) {
    if end.is_none() {
        *end = match catch_unwind(AssertUnwindSafe(|| operation.poll(context))) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(Ok(result)),
            Err(panic) => Some(Err(panic)),
        };
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    /// A panic of one once dropped the other, which then waited for its pieces on the thread that was to complete them.
    #[test]
    fn a_panic_of_one_waits_for_the_other() {
        let ended = AtomicBool::new(false);
        let mut is_polled = false;
        let other = poll_fn(|_| {
            if !std::mem::replace(&mut is_polled, true) {
                return Poll::Pending;
            }
            ended.store(true, Ordering::Relaxed);
            Poll::Ready(())
        });
        let mut both = std::pin::pin!(both(async { panic!("a test's own") }, other));
        let mut poll =
            || catch_unwind(AssertUnwindSafe(|| both.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
        assert!(matches!(poll(), Ok(Poll::Pending)), "the other has not ended");
        assert!(poll().is_err() && ended.load(Ordering::Relaxed), "the panic must not be lost");
    }
}
