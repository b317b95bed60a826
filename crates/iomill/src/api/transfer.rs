//! [`Transfer`]: the future of a call, which owns the caller's buffer. [`Moving`]: an operation in flight that owns a
//! buffer. [`Later`]: a result that another thread or a poll delivers. Non-goals: futures without a buffer (`answer`),
//! and beginning operations (`future`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::{Error, Result};
use crate::exec::Promised;
use crate::exec::cell::SharedCell;
use crate::pager::{DirectReading, Failed, Returned};
use crate::sys::process::Home;

/// The future of a read into a buffer or a write from one. It owns the buffer until it resolves to `T`: the buffer, or
/// the buffer and a number of bytes. An error returns the buffer, too ([`Failed`]).
///
/// The call has begun when the future exists, and continues if the future is dropped.
#[must_use = "the call continues, but its errors are lost"]
pub struct Transfer<B, T = B>(State<B, T>);

enum State<B, T> {
    /// The result, until it is taken.
    Now(Option<T>),
    /// The error with which the call failed to begin, until it is taken.
    Failed(Option<Failed<B>>),
    Later(Moving<B>),
}

impl<B, T> Transfer<B, T> {
    #[inline]
    pub(super) fn now(result: T) -> Transfer<B, T> {
        Transfer(State::Now(Some(result)))
    }

    pub(super) fn failed(error: Error, buffer: B) -> Transfer<B, T> {
        Transfer::refused(Failed::new(error, Some(buffer)))
    }

    pub(super) fn refused(failed: Failed<B>) -> Transfer<B, T> {
        Transfer(State::Failed(Some(failed)))
    }

    pub(super) fn later(moving: Moving<B>) -> Transfer<B, T> {
        Transfer(State::Later(moving))
    }

    /// `poll` of a future that was made without its result. `end` makes the result from that of the operation.
    #[inline(never)]
    fn poll_later(
        &mut self,
        context: &mut Context<'_>,
        end: fn((B, usize)) -> T,
    ) -> Poll<std::result::Result<T, Failed<B>>> {
        match &mut self.0 {
            State::Now(_) => Poll::Ready(Err(Failed::new(polled_again(), None))),
            State::Failed(failed) => {
                Poll::Ready(Err(failed.take().unwrap_or_else(|| Failed::new(polled_again(), None))))
            }
            State::Later(moving) => moving.poll(context).map(|ended| ended.map(end)),
        }
    }

    #[inline]
    fn take_now(&mut self) -> Option<T> {
        match &mut self.0 {
            State::Now(now) => now.take(),
            State::Failed(_) | State::Later(_) => None,
        }
    }
}

impl<B> Transfer<B, (B, usize)> {
    pub(super) fn of_read(begun: std::result::Result<NowOrLater<B>, Failed<B>>) -> Transfer<B, (B, usize)> {
        match begun {
            Ok(NowOrLater::Now(buffer, len)) => Transfer::now((buffer, len)),
            Ok(NowOrLater::Later(moving)) => Transfer::later(moving),
            Err(failed) => Transfer::refused(failed),
        }
    }
}

impl<B> Transfer<B> {
    /// The result, or the operation in flight. Only for a future that was not polled.
    pub(super) fn into_begun(self, len: usize) -> std::result::Result<NowOrLater<B>, Failed<B>> {
        match self.0 {
            State::Now(Some(buffer)) => Ok(NowOrLater::Now(buffer, len)),
            State::Failed(Some(failed)) => Err(failed),
            State::Now(None) | State::Failed(None) => Err(Failed::new(polled_again(), None)),
            State::Later(moving) => Ok(NowOrLater::Later(moving)),
        }
    }
}

/// Resolves to the buffer.
impl<B> Future for Transfer<B> {
    type Output = std::result::Result<B, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.take_now() {
            Some(buffer) => Poll::Ready(Ok(buffer)),
            None => self.poll_later(context, |(buffer, _)| buffer),
        }
    }
}

/// Resolves to the buffer and the number of bytes read.
impl<B> Future for Transfer<B, (B, usize)> {
    type Output = std::result::Result<(B, usize), Failed<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.take_now() {
            Some(read) => Poll::Ready(Ok(read)),
            None => self.poll_later(context, |read| read),
        }
    }
}

/// The buffer is not pinned: operations use the memory that it points to.
impl<B, T> Unpin for Transfer<B, T> {}

/// The state of a call with a buffer when its future is made.
pub(super) enum NowOrLater<B> {
    /// The call has ended, with a number of bytes.
    Now(B, usize),
    Later(Moving<B>),
}

/// An operation in flight that owns a buffer. It resolves to the buffer and the number of bytes that were moved.
#[derive(Debug)]
pub(super) enum Moving<B> {
    /// A direct read, with its length in bytes.
    Direct(DirectReading<B>, usize),
    /// A read up to the end of the file.
    UpToEnd(Later<Returned<(B, usize)>>),
    /// A transfer that moves this number of bytes, or fails.
    Whole(Later<Returned<B>>, usize),
}

impl<B> Moving<B> {
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(B, usize), Failed<B>>> {
        match self {
            Moving::Direct(reading, len) => reading.poll(context).map(|ended| match ended {
                (Ok(()), Some(buffer)) => Ok((buffer, *len)),
                (Ok(()), None) => Err(Failed::new(polled_again(), None)),
                (Err(error), buffer) => Err(Failed::new(error, buffer)),
            }),
            Moving::UpToEnd(later) => {
                later.poll(context).map(|ended| outcome(ended).map_err(|failed| failed.map(|(buffer, _)| buffer)))
            }
            Moving::Whole(later, len) => later.poll(context).map(|ended| outcome(ended).map(|buffer| (buffer, *len))),
        }
    }
}

/// The outcome of an operation. If it has none, the error of its future.
fn outcome<K>(ended: Result<Returned<K>>) -> Returned<K> {
    ended.unwrap_or_else(|error| Err(Failed::new(error, None)))
}

#[cold]
pub(super) fn polled_again() -> Error {
    Error::invalid("a future", "polled again after it resolved")
}

/// A result that is delivered later.
#[derive(Debug)]
pub(super) struct Later<T> {
    /// `None` in a forked child after a poll.
    promised: Option<Promised<Result<T>>>,
    /// The shared context in which the operation began, if it is in one.
    cell: Option<Arc<SharedCell>>,
    is_polled: bool,
    /// The process that began it.
    home: Home,
}

impl<T> Later<T> {
    /// The result of an operation. `cell` is the shared context in which the calling thread has begun it, if it has:
    /// then polls drive its I/O.
    pub fn new(promised: Promised<Result<T>>, cell: Option<Arc<SharedCell>>) -> Later<T> {
        Later { promised: Some(promised), cell, is_polled: false, home: Home::here() }
    }

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        if !self.home.is_here() {
            // Rule 3 of the fork (`exec`).
            std::mem::forget(self.promised.take());
            return Poll::Ready(Err(Error::Forked));
        }
        let Some(promised) = &mut self.promised else { return Poll::Ready(Err(polled_again())) };
        let polled = Pin::new(&mut *promised).poll(context);
        let (Some(cell), Poll::Pending) = (&self.cell, &polled) else {
            return polled.map(|kept| kept.and_then(|result| result));
        };
        cell.advance(context, !std::mem::replace(&mut self.is_polled, true));
        Pin::new(promised).poll(context).map(|kept| kept.and_then(|result| result))
    }
}

impl<T> Drop for Later<T> {
    /// The operation continues without its future. No poll drives it any more.
    fn drop(&mut self) {
        if let (Some(cell), Some(promised)) = (&self.cell, &self.promised)
            && self.home.is_here()
            && promised.is_open()
        {
            cell.leave();
        }
    }
}
