//! [`Answer`]: the future of a call that waits for drives; and [`FutureState`], what every future waits for. Non-goals: reads and writes
//! (`future`), and changes of names (`change`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, Result};
use crate::exec::cell::SharedCell;
use crate::exec::pools::Pool;
use crate::exec::{Promise, Promised, promise};
use crate::sys::process::Home;

/// The future of a call. It resolves to what the call returns.
///
/// The call has begun when the future is made, and goes on if the future is dropped. It runs on threads of the array. So neither the call that
/// makes the future nor a poll waits for a drive.
#[derive(Debug)]
#[must_use = "the call goes on, but its errors are lost"]
pub struct Answer<T>(FutureState<T>);

impl<T> Answer<T> {
    /// An answer that is there.
    pub(super) fn now(result: Result<T>) -> Answer<T> {
        Answer(FutureState::now(result))
    }

    pub(super) fn later(promised: Promised<Result<T>>) -> Answer<T> {
        Answer(FutureState::later(promised))
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.0.poll(context)
    }
}

/// A result that `T` never pins.
impl<T> Unpin for Answer<T> {}

/// Runs a call on a thread of a pool that may wait.
pub(super) fn answer_later<T: Send + 'static>(
    pool: &Pool,
    call: impl FnOnce(Promise<Result<T>>) + Send + 'static,
) -> Answer<T> {
    if let Err(error) = pool.get_ready() {
        return Answer::now(Err(error));
    }
    let (promise, promised) = promise();
    pool.run(Box::new(move || call(promise)));
    Answer::later(promised)
}

/// What a future waits for.
#[derive(Debug)]
pub(super) struct FutureState<T> {
    /// The result, if it is there already: why it could not begin.
    now: Option<Result<T>>,
    later: Option<Promised<Result<T>>>,
    /// The shared context where it began, if it is in one.
    cell: Option<Arc<SharedCell>>,
    is_polled: bool,
    /// The process that began it.
    home: Home,
}

#[cold]
pub(super) fn polled_again() -> Error {
    Error::invalid("a future", "polled again after it resolved")
}

impl<T> FutureState<T> {
    pub fn now(result: Result<T>) -> FutureState<T> {
        FutureState { now: Some(result), later: None, cell: None, is_polled: false, home: Home::here() }
    }

    pub fn later(promised: Promised<Result<T>>) -> FutureState<T> {
        FutureState::of_cell(promised, None)
    }

    /// Of an operation that the calling thread has just begun in `cell`, if it has. Then polls bring its I/O on.
    pub fn of_cell(promised: Promised<Result<T>>, cell: Option<Arc<SharedCell>>) -> FutureState<T> {
        FutureState { now: None, later: Some(promised), cell, is_polled: false, home: Home::here() }
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        if !self.home.is_here() {
            // Rule 3 of the fork (`exec`).
            std::mem::forget(self.later.take());
            return Poll::Ready(Err(Error::Forked));
        }
        let promised = match (self.now.take(), &mut self.later) {
            (Some(result), _) => return Poll::Ready(result),
            (None, Some(promised)) => promised,
            (None, None) => return Poll::Ready(Err(polled_again())),
        };
        let polled = Pin::new(&mut *promised).poll(context);
        let (Some(cell), Poll::Pending) = (&self.cell, &polled) else {
            return polled.map(|kept| kept.and_then(|result| result));
        };
        cell.advance(context, !std::mem::replace(&mut self.is_polled, true));
        Pin::new(promised).poll(context).map(|kept| kept.and_then(|result| result))
    }
}

impl<T> Drop for FutureState<T> {
    /// The operation goes on without its future. No poll brings it on any more.
    fn drop(&mut self) {
        if let (Some(cell), Some(promised)) = (&self.cell, &self.later)
            && self.home.is_here()
            && promised.is_open()
        {
            cell.leave();
        }
    }
}
