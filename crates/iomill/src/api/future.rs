//! Futures ([`Reading`], [`Writing`], [`Syncing`]) and callbacks. Their operations own the buffers: dropping a future frees no memory that
//! the kernel still writes to. Non-goals: running operations (`exec`), and batches (`pager::batch`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::{Answer, FutureState, polled_again};
use super::file::{File, check_sizes, sum_of_lengths};
use crate::drive::serve::begin_serving;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{pools, promise};
use crate::file::split::extents;
use crate::pager::batch::{Batch, BatchReceiver, Buffers, Requester, Unread, with_room};
use crate::pager::{IoBuffer, OpenFile, PageReading, Span};
use crate::sys::thread::Raised;

pub use crate::pager::batch::Request;

impl File {
    /// Reads `len` bytes at an offset in bytes. The future resolves to the bytes, fewer than asked for only at the end of the file. Bytes that
    /// are in the cache are read when this returns, and the future is ready at its first poll. Otherwise the read begins at the latest
    /// when the future is first polled, together with others of the thread.
    #[inline]
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        if len.wrapping_sub(1) >= PAGE_BYTES - offset as usize % PAGE_BYTES {
            return Reading(ReadingState::Later(self.begin_one(Batch::up_to_end(offset, len))));
        }
        let mut bytes = match with_room(len) {
            Ok(bytes) => Unfilled(bytes),
            Err(error) => return Reading::now(Err(error)),
        };
        // SAFETY: the memory is as long as the range, and nothing else has it.
        let Some(end) = (unsafe { self.read_page(bytes.address(), len, offset) }) else {
            return self.read_missing_page(bytes, offset, len);
        };
        self.passed_page(end);
        // SAFETY: all of it was read.
        Reading::now(Ok(unsafe { bytes.filled(len) }))
    }

    /// `read` of a range within one page that its hint has not found.
    #[inline(never)]
    fn read_missing_page(&self, mut bytes: Unfilled, offset: u64, len: usize) -> Reading {
        let file = match self.here() {
            Ok(file) => file,
            Err(forked) => return Reading::now(Err(forked)),
        };
        let within = file.len().saturating_sub(offset).min(len as u64) as usize;
        if within == 0 || file.class != Class::Foreground {
            return Reading(ReadingState::Later(file.begin_one(Batch::up_to_end(offset, len))));
        }
        if !file.state.exec().is_open() {
            return Reading::now(Err(Error::Closed));
        }
        let place = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        let span = Span { page: place.0, within: place.1 as u16, len: within as u16, buf: bytes.address() };
        // SAFETY: the memory is as long as the range, and nothing else has it.
        if unsafe { file.state.read_in_set(span) } {
            file.passed(offset, within);
            // SAFETY: so many bytes were read.
            return Reading::now(Ok(unsafe { bytes.filled(within) }));
        }
        match OpenFile::begin_page_read(&file.state, (offset, within), bytes) {
            Ok(reading) => {
                if let Some(paged) = &file.state.paged {
                    let _never_waits = file.never_waits();
                    file.missed(paged, offset, within);
                }
                Reading(ReadingState::Page(reading, within))
            }
            Err(_unused) => Reading(ReadingState::Later(file.begin_one(Batch::up_to_end(offset, len)))),
        }
    }

    /// [`File::read_ranges`] as a future, into a buffer that is as long as the ranges together. The future resolves to the buffer. The
    /// read does not need `ranges` any more when this returns, and bytes that are in the cache are in the buffer by then. What is missing
    /// is read from then on.
    pub fn read_ranges_async(&self, out: Vec<u8>, ranges: &[(u64, usize)]) -> Reading {
        let begun = check_sizes(sum_of_lengths(ranges), out.len(), "out").and_then(|()| {
            let file = self.here()?;
            let within = || file.state.file.check_within(ranges.iter().copied());
            file.begin_gather(out, ranges.iter().copied(), within)
        });
        Reading::begun(begun)
    }

    /// Writes bytes at an offset in bytes. The future resolves to the same buffer, for further use. The write has begun when this returns.
    pub fn write(&self, bytes: Vec<u8>, offset: u64) -> Writing {
        Writing(self.begin_one(Batch::of(vec![Request::Write { offset, bytes }])))
    }

    /// [`File::sync`] as a future.
    pub fn sync_async(&self) -> Syncing {
        Syncing(match self.here() {
            Ok(file) => {
                let reported = file.reported.share();
                File::answer_later(file.state.clone(), move |state| state.sync_and_report(&reported))
            }
            Err(forked) => Answer::now(Err(forked)),
        })
    }

    /// Begins a batch of requests. A callback thread calls `callback` with the outcome: for each request the bytes that it read, or the
    /// buffer that it wrote; or the first error of the batch. If the batch cannot begin, this returns the error and drops the callback.
    ///
    /// Inside the callback blocking calls return [`Error::BlockingCall`](crate::Error::BlockingCall). It may submit more. The same holds for
    /// wakers, which may run on a drive thread.
    pub fn submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<()> {
        let file = self.here()?;
        let exec = file.state.exec();
        while pools::may_wait() && exec.is_full_here() {
            exec.pause_for_io();
        }
        let done = BatchReceiver::callback(&exec.callbacks, Box::new(callback))?;
        file.requester().begin(Batch::of(requests), done)
    }

    /// [`File::submit`], unless a drive that the requests need has a full queue. Then they come back (`Ok(Some(requests))`), and nothing
    /// has begun. Each drive has a queue of its own, for some thousand requests. So a program with work for other drives need not wait for
    /// a slow one.
    pub fn try_submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Request>>> {
        let file = self.here()?;
        if !file.requester().has_room(&requests) {
            return Ok(Some(requests));
        }
        file.submit(requests, callback).map(|()| None)
    }

    /// Begins to read ranges, (offset, length) in bytes each, into `bytes`, which is as long as they are together. `check` says whether
    /// they are within the file.
    pub(super) fn begin_gather(
        &self,
        mut bytes: Vec<u8>,
        ranges: impl Iterator<Item = (u64, usize)>,
        check: impl Fn() -> Result<()>,
    ) -> Result<FutureState<Buffers>> {
        self.state.exec().check_open()?;
        check()?;
        let reads = extents(ranges, bytes.as_mut_ptr());
        // SAFETY: `bytes` is on the heap, and as long as the ranges.
        let unread = unsafe { Unread::new(&self.state, reads) };
        if unread.is_empty() {
            return Ok(FutureState::now(Ok(vec![bytes])));
        }
        let (promise, promised) = promise();
        let _never_waits = self.never_waits();
        // SAFETY: as above.
        unsafe { self.requester().begin_rest(bytes, unread, BatchReceiver::promise(promise)) }?;
        Ok(FutureState::of_cell(promised, self.state.exec()))
    }

    /// A call that makes a future waits for nothing. What would have to wait begins on another thread.
    fn never_waits(&self) -> Option<Raised> {
        (!self.state.exec().runs_inline()).then(begin_serving)
    }

    fn requester(&self) -> Requester {
        Requester::new(self.state.clone(), self.class)
    }

    /// Begins a batch of one request.
    fn begin_one(&self, batch: Batch) -> FutureState<Buffers> {
        match self.here() {
            Ok(file) => file.begin_one_here(batch),
            Err(forked) => FutureState::now(Err(forked)),
        }
    }

    fn begin_one_here(&self, batch: Batch) -> FutureState<Buffers> {
        if let [Request::Read { offset, len }] = batch.requests() {
            self.look_ahead(*offset, (*len as u64).min(self.len().saturating_sub(*offset)) as usize);
        }
        let (promise, promised) = promise();
        let _never_waits = self.never_waits();
        match self.requester().begin(batch, BatchReceiver::promise(promise)) {
            Ok(()) => FutureState::of_cell(promised, self.state.exec()),
            Err(error) => FutureState::now(Err(error)),
        }
    }
}

/// The future of [`File::read`] and [`File::read_rows_async`].
#[derive(Debug)]
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Reading(ReadingState);

#[derive(Debug)]
enum ReadingState {
    /// The result, until it is taken.
    Now(Option<Result<Vec<u8>>>),
    /// A read within one page, with its length in bytes.
    Page(PageReading<Unfilled>, usize),
    Later(FutureState<Buffers>),
}

/// Memory for bytes that are about to be read: empty, with room for them.
#[derive(Debug)]
struct Unfilled(Vec<u8>);

impl Unfilled {
    /// The bytes.
    ///
    /// # Safety
    /// The first `len` bytes, at most as many as there is room for, were written.
    #[inline]
    unsafe fn filled(mut self, len: usize) -> Vec<u8> {
        // SAFETY: the caller's promise.
        unsafe { self.0.set_len(len) };
        self.0
    }
}

// SAFETY: the bytes of a vector are on the heap, and stay there while the vector is moved.
unsafe impl IoBuffer for Unfilled {
    #[inline]
    fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
}

/// The future of [`File::write`].
#[derive(Debug)]
#[must_use = "the write goes on, but its errors are lost"]
pub struct Writing(FutureState<Buffers>);

/// The future of [`File::sync_async`].
#[derive(Debug)]
#[must_use = "the sync goes on, but its errors are lost"]
pub struct Syncing(Answer<()>);

impl Reading {
    #[inline]
    fn now(result: Result<Vec<u8>>) -> Reading {
        Reading(ReadingState::Now(Some(result)))
    }

    /// Of one buffer that is being read into, or the reason why that has not begun.
    pub(super) fn begun(begun: Result<FutureState<Buffers>>) -> Reading {
        Reading(ReadingState::Later(begun.unwrap_or_else(|error| FutureState::now(Err(error)))))
    }
}

fn the_one(buffers: Result<Buffers>) -> Result<Vec<u8>> {
    buffers.map(|mut buffers| buffers.pop().unwrap_or_default())
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ReadingState::Now(result) => Poll::Ready(result.take().unwrap_or_else(|| Err(polled_again()))),
            ReadingState::Page(reading, len) => match reading.poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready((Err(error), _)) => Poll::Ready(Err(error)),
                // SAFETY: the read has filled so many bytes.
                Poll::Ready((Ok(()), Some(bytes))) => Poll::Ready(Ok(unsafe { bytes.filled(*len) })),
                Poll::Ready((Ok(()), None)) => Poll::Ready(Err(polled_again())),
            },
            ReadingState::Later(later) => later.poll(context).map(the_one),
        }
    }
}

impl Future for Writing {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(the_one)
    }
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
