//! [`Answer`]: the future of a call that owns no buffer of the caller. [`Unfilled`]: new memory for the bytes of a
//! read. Non-goals: futures with a buffer of the caller (`transfer`), and changes of names (`change`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::transfer::{Later, Moving, NowOrLater, polled_again};
use crate::error::{Error, Result};
use crate::exec::pools::Pool;
use crate::exec::{Promise, Promised, promise};
use crate::pager::batch::with_room;
use crate::pager::{Failed, IoBuffer, IoBytes};
use crate::sys::events::Span;

/// The future of a call. It resolves to the result of the call.
///
/// The call has begun when the future exists, and continues if the future is dropped. Neither the call that makes the
/// future nor a poll waits for a drive: threads of the array wait.
#[must_use = "the call continues, but its result and its errors are lost"]
pub struct Answer<T>(State<T>);

enum State<T> {
    /// The result, until it is taken.
    Now(Option<Result<T>>),
    Later(Later<T>),
    /// A read into new memory, and the function that makes the result from the memory.
    Reading(Moving<Unfilled>, fn(Unfilled, usize) -> T),
}

impl<T> Answer<T> {
    /// An answer with its result.
    #[inline]
    pub(super) fn now(result: Result<T>) -> Answer<T> {
        Answer(State::Now(Some(result)))
    }

    pub(super) fn later(promised: Promised<Result<T>>) -> Answer<T> {
        Answer(State::Later(Later::new(promised, None)))
    }
}

impl Answer<Vec<u8>> {
    /// The answer of a read into new memory.
    pub(super) fn of_read(begun: std::result::Result<NowOrLater<Unfilled>, Failed<Unfilled>>) -> Answer<Vec<u8>> {
        // An operation returns the number of bytes that it has written to the memory.
        let filled: fn(Unfilled, usize) -> Vec<u8> = |bytes, len| {
            // SAFETY: as above.
            unsafe { bytes.filled(len) }
        };
        match begun {
            Ok(NowOrLater::Now(bytes, len)) => Answer::now(Ok(filled(bytes, len))),
            Ok(NowOrLater::Later(moving)) => Answer(State::Reading(moving, filled)),
            Err(failed) => Answer::now(Err(failed.into())),
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let State::Now(now) = &mut self.0
            && let Some(result) = now.take()
        {
            return Poll::Ready(result);
        }
        self.0.poll_later(context)
    }
}

impl<T> State<T> {
    /// `poll` of an answer that was made without its result.
    #[inline(never)]
    fn poll_later(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self {
            State::Now(_) => Poll::Ready(Err(polled_again())),
            State::Later(later) => later.poll(context),
            State::Reading(moving, end) => {
                moving.poll(context).map(|ended| ended.map(|(bytes, len)| end(bytes, len)).map_err(Error::from))
            }
        }
    }
}

/// A result that `T` never pins.
impl<T> Unpin for Answer<T> {}

/// Runs a call on a thread of a pool, where the call may wait.
pub(super) fn answer_later<T: Send + 'static>(
    pool: &Pool,
    call: impl FnOnce(Promise<Result<T>>) + Send + 'static,
) -> Answer<T> {
    if let Err(error) = pool.get_ready() {
        return Answer::now(Err(error));
    }
    let (promise, promised) = promise();
    let caller = Span::here();
    pool.run(Box::new(move || caller.run(|| call(promise))));
    Answer::later(promised)
}

/// Memory for `len` bytes that are about to be read. It is not zeroed: for a long gather, zeroing costs as much as the
/// hits.
#[derive(Debug)]
pub(super) struct Unfilled {
    bytes: Vec<u8>,
    len: usize,
}

impl Unfilled {
    #[inline]
    pub fn new(len: usize) -> Result<Unfilled> {
        Ok(Unfilled { bytes: with_room(len)?, len })
    }

    /// The bytes.
    ///
    /// # Safety
    /// The first `len` bytes were written, and `len` is at most the length given to `new`.
    #[inline]
    pub unsafe fn filled(mut self, len: usize) -> Vec<u8> {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.set_len(len) };
        self.bytes
    }

    /// `filled` with the length given to `new`.
    ///
    /// # Safety
    /// All bytes were written.
    pub unsafe fn all_filled(self) -> Vec<u8> {
        let len = self.len;
        // SAFETY: the caller's promise.
        unsafe { self.filled(len) }
    }
}

// SAFETY: the bytes of a vector are on the heap, and stay there while the vector is moved. Nothing reads them before an
// operation has written them, so they need not be initialised.
unsafe impl IoBytes for Unfilled {
    fn bytes(&self) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.bytes.as_ptr(), self.len)
    }
}

// SAFETY: as above, and the vector owns its bytes alone.
unsafe impl IoBuffer for Unfilled {
    #[inline]
    fn memory(&mut self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.bytes.as_mut_ptr(), self.len)
    }
}
