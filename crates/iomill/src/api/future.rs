//! Futures of reads, writes and syncs ([`Reading`], [`ReadingAt`], [`Transfer`], [`Syncing`]), and callbacks. Their operations own the buffers:
//! dropping a future frees no memory that the kernel still writes to. Non-goals: running operations (`exec`), and batches (`pager::batch`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::{Answer, FutureState, polled_again};
use super::file::{File, check_sizes, sum_of_lengths};
use crate::drive::shares::begin_serving;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{Within, pools, promise};
use crate::file::split::{Extent, extents};
use crate::pager::batch::{Batch, BatchReceiver, Buffers, Callback, Owned, Requester, Unread, with_room};
use crate::pager::{DirectReading, Failed, IoBuffer, IoBytes, Kept, OpenFile, Outcome, Span};

pub use crate::pager::batch::Request;

impl File {
    /// Reads `len` bytes at an offset in bytes. The future resolves to the bytes, fewer than asked for only at the end of the file. Bytes that
    /// are in the cache are read when this returns, and the future is ready at its first poll. Otherwise the read begins within 5 ms, whether
    /// the future is polled or not. Until then it may wait for others of the thread, to begin by one system call with them. It does not wait
    /// longer than until the future's second poll, for which the first one asks.
    #[inline]
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        if len.wrapping_sub(1) >= PAGE_BYTES - offset as usize % PAGE_BYTES {
            return self.read_pages(offset, len);
        }
        let mut bytes = match with_room(len) {
            Ok(bytes) => Unfilled(bytes),
            Err(error) => return Reading::now(Err(error)),
        };
        // SAFETY: the memory is as long as the range, and nothing else has it.
        let Some(end) = (unsafe { self.read_page(bytes.memory().cast(), len, offset) }) else {
            return self.read_missing_page(bytes, offset, len);
        };
        self.passed_page(end);
        // SAFETY: all of it was read.
        Reading::now(Ok(unsafe { bytes.filled(len) }))
    }

    /// `read` of a range that is not within one page.
    #[inline(never)]
    fn read_pages(&self, offset: u64, len: usize) -> Reading {
        let general = || Reading(ReadingState::Later(self.begin_one(Batch::up_to_end(offset, len))));
        if self.state.paged.is_some() || self.state.exec().check_home().is_err() {
            return general();
        }
        // A buffer for no more than there is.
        let within = self.len().saturating_sub(offset).min(len as u64) as usize;
        match with_room(within) {
            Ok(bytes) if within > 0 => self.read_missing_page(Unfilled(bytes), offset, within),
            _ => general(),
        }
    }

    /// `read` of a range within one page that its hint has not found.
    #[inline(never)]
    fn read_missing_page(&self, bytes: Unfilled, offset: u64, len: usize) -> Reading {
        let file = match self.here() {
            Ok(file) => file,
            Err(forked) => return Reading::now(Err(forked)),
        };
        match file.begin_direct(bytes, offset, len) {
            // SAFETY: so many bytes were read.
            Ok(Begun::Now(Ok((bytes, read)))) => Reading::now(Ok(unsafe { bytes.filled(read) })),
            Ok(Begun::Now(Err(failed))) => Reading::now(Err(failed.into())),
            Ok(Begun::Direct(reading, within)) => Reading(ReadingState::Direct(reading, within)),
            Err(_unused) => Reading(ReadingState::Later(file.begin_one(Batch::up_to_end(offset, len)))),
        }
    }

    /// Begins to read a range, within one page that its hint has not found if there is a cache. Gives the memory back if that takes the general way.
    fn begin_direct<B: IoBuffer>(&self, mut bytes: B, offset: u64, len: usize) -> std::result::Result<Begun<B>, B> {
        let within = self.len().saturating_sub(offset).min(len as u64) as usize;
        if within == 0 {
            return Err(bytes);
        }
        if !self.state.exec().is_open() {
            return Ok(Begun::Now(Err(Failed::new(Error::Closed, Some(bytes)))));
        }
        let _never_waits = begin_serving();
        let Some(paged) = &self.state.paged else {
            let reading = OpenFile::begin_direct(&self.state, self.class, (offset, within), bytes)?;
            return Ok(Begun::Direct(reading, within));
        };
        if self.class != Class::Foreground {
            return Err(bytes);
        }
        let place = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        let span = Span { page: place.0, within: place.1 as u16, len: within as u16, buf: bytes.memory().cast() };
        // SAFETY: the memory is as long as the range, and nothing else has it.
        if unsafe { self.state.read_in_set(span) } {
            self.passed(offset, within);
            return Ok(Begun::Now(Ok((bytes, within))));
        }
        let reading = OpenFile::begin_direct(&self.state, self.class, (offset, within), bytes)?;
        self.missed(paged, offset, within);
        Ok(Begun::Direct(reading, within))
    }

    /// [`File::read_at`] as a future, into a buffer that it owns meanwhile. The future resolves to the buffer and the number of bytes that were
    /// read: fewer than the buffer has only at the end of the file. It starts as [`File::read`] does. If the future is dropped, the read goes
    /// on, and the buffer is dropped after its end.
    #[inline]
    pub fn read_at_async<B: IoBuffer>(&self, mut buf: B, offset: u64) -> ReadingAt<B> {
        let memory = buf.memory();
        let len = memory.len();
        // SAFETY: the memory is the buffer's, and nothing else has it.
        let Some(end) = (unsafe { self.read_page(memory.cast(), len, offset) }) else {
            return self.read_any_async(buf, len, offset);
        };
        self.passed_page(end);
        ReadingAt(ReadingAtState::Hit(Some(buf), len))
    }

    /// `read_at_async` for all ranges but those within one cached page.
    #[inline(never)]
    fn read_any_async<B: IoBuffer>(&self, buf: B, len: usize, offset: u64) -> ReadingAt<B> {
        let file = match self.here() {
            Ok(file) => file,
            Err(forked) => return ReadingAt::now(Err(Failed::new(forked, Some(buf)))),
        };
        let is_direct = len > 0 && (file.state.paged.is_none() || len <= PAGE_BYTES - offset as usize % PAGE_BYTES);
        let begun = if is_direct { file.begin_direct(buf, offset, len) } else { Err(buf) };
        let buf = match begun {
            Ok(Begun::Now(outcome)) => return ReadingAt::now(outcome),
            Ok(Begun::Direct(reading, within)) => return ReadingAt(ReadingAtState::Direct(reading, within)),
            Err(buf) => buf,
        };
        file.look_ahead(offset, (len as u64).min(file.len().saturating_sub(offset)) as usize);
        let (promise, promised) = promise();
        let _never_waits = begin_serving();
        match file.requester().begin_up_to_end(buf, offset, BatchReceiver::promise(promise)) {
            Ok(cell) => ReadingAt(ReadingAtState::Later(FutureState::of_cell(promised, cell))),
            Err(failed) => ReadingAt::now(Err(failed.map(|(buf, _)| buf))),
        }
    }

    /// [`File::read_many`] as a future, into a buffer that it owns meanwhile and resolves to. What is in the cache is in the buffer when this
    /// returns, and the rest is read from then on. `offsets` are not needed any more by then. If the future is dropped, the read goes on.
    pub fn read_many_async<B: IoBuffer>(&self, out: B, offsets: &[u64], record_len: usize) -> Transfer<B> {
        let needed = offsets.len().checked_mul(record_len);
        self.begin_read(out, needed, offsets.iter().map(|&offset| (offset, record_len)))
    }

    /// [`File::read_ranges`] as a future, as [`File::read_many_async`].
    pub fn read_ranges_async<B: IoBuffer>(&self, out: B, ranges: &[(u64, usize)]) -> Transfer<B> {
        self.begin_read(out, sum_of_lengths(ranges), ranges.iter().copied())
    }

    fn begin_read<B: IoBuffer>(
        &self,
        mut out: B,
        needed: Option<usize>,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Transfer<B> {
        let file = check_sizes(needed, out.memory().len(), "out").and_then(|()| self.here());
        match file {
            Ok(file) => file.begin_gather(out, ranges.clone(), || file.state.file.check_within(ranges.clone())),
            Err(error) => Transfer::failed(error, out),
        }
    }

    /// [`File::write_at`] as a future, of bytes that it owns meanwhile and resolves to. The write has begun when this returns. If the future is
    /// dropped, the write goes on.
    pub fn write<B: IoBytes>(&self, bytes: B, offset: u64) -> Transfer<B> {
        let len = bytes.bytes().len();
        self.begin_write(bytes, Some(len), std::iter::once((offset, len)))
    }

    /// [`File::write_many`] as a future, as [`File::write`].
    pub fn write_many_async<B: IoBytes>(&self, bytes: B, offsets: &[u64], record_len: usize) -> Transfer<B> {
        let needed = offsets.len().checked_mul(record_len);
        self.begin_write(bytes, needed, offsets.iter().map(|&offset| (offset, record_len)))
    }

    /// [`File::write_ranges`] as a future, as [`File::write`].
    pub fn write_ranges_async<B: IoBytes>(&self, bytes: B, ranges: &[(u64, usize)]) -> Transfer<B> {
        self.begin_write(bytes, sum_of_lengths(ranges), ranges.iter().copied())
    }

    fn begin_write<B: IoBytes>(
        &self,
        bytes: B,
        needed: Option<usize>,
        ranges: impl Iterator<Item = (u64, usize)>,
    ) -> Transfer<B> {
        let checked = check_sizes(needed, bytes.bytes().len(), "bytes").and_then(|()| self.here());
        let file = match checked {
            Ok(file) => file,
            Err(error) => return Transfer::failed(error, bytes),
        };
        let mut bytes = Kept::new(bytes);
        let memory = bytes.get().bytes();
        // Writes only read the memory.
        let writes: Vec<Extent> =
            extents(ranges, memory.cast::<u8>().cast_mut()).filter(|extent| extent.len > 0).collect();
        let fits =
            writes.iter().try_for_each(|write| file.state.file.range_end(write.offset, write.len as u64).map(drop));
        if let Err(error) = fits {
            return Transfer::failed(error, bytes.into_inner());
        }
        // SAFETY: the extents are in the memory of `bytes`, which is as `IoBytes` promises.
        let owned = unsafe { Owned::new(bytes, within(memory), Unread::default(), Some(writes)) };
        file.begin_transfer(owned)
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
    /// wakers, which may run on any thread that does I/O.
    pub fn submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<()> {
        let file = self.here()?;
        let exec = file.state.exec();
        let requester = file.requester();
        while pools::may_wait() && requester.is_full_here() {
            exec.pause_for_io();
        }
        let callback: Callback<Buffers> = Box::new(|outcome| callback(outcome.map_err(Error::from)));
        let callback = match requests[..] {
            [Request::Read { offset, len }] => match file.submit_read(offset, len, callback)? {
                Some(callback) => callback,
                None => return Ok(()),
            },
            _ => callback,
        };
        let done = BatchReceiver::callback(&exec.callbacks, callback)?;
        requester.begin(Batch::of(requests), done).map(drop)
    }

    /// `submit` of one read. Gives the callback back if it takes the general way.
    fn submit_read(&self, offset: u64, len: usize, callback: Callback<Buffers>) -> Result<Option<Callback<Buffers>>> {
        let is_there = offset.checked_add(len as u64).is_some_and(|end| end <= self.len());
        let is_in_page = len <= PAGE_BYTES - offset as usize % PAGE_BYTES;
        if len == 0 || !is_there || (self.state.paged.is_some() && (!is_in_page || self.class != Class::Foreground)) {
            return Ok(Some(callback));
        }
        let exec = self.state.exec();
        exec.check_open()?;
        exec.callbacks.get_ready()?;
        let mut bytes = Unfilled(with_room(len)?);
        if self.state.paged.is_some() {
            let (page, within) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
            let span = Span { page, within: within as u16, len: len as u16, buf: bytes.memory().cast() };
            // SAFETY: the memory is as long as the range, and nothing else has it.
            if unsafe { self.state.read_in_set(span) } {
                self.passed(offset, len);
                // SAFETY: all of it was read.
                let bytes = unsafe { bytes.filled(len) };
                exec.callbacks.call(Box::new(move || callback(Ok(vec![bytes]))));
                return Ok(None);
            }
        }
        let callback: Callback<Unfilled> = Box::new(move |outcome| {
            // SAFETY: the read has filled so many bytes.
            callback(
                outcome.map(|bytes| vec![unsafe { bytes.filled(len) }]).map_err(|failed| failed.map(|_| Vec::new())),
            )
        });
        let begun = OpenFile::submit_direct(&self.state, self.class, (offset, len), bytes, callback);
        let Err((_unused, callback)) = begun else {
            if let Some(paged) = &self.state.paged {
                self.missed(paged, offset, len);
            }
            return Ok(None);
        };
        let one = |mut buffers: Buffers| Unfilled(buffers.pop().unwrap_or_default());
        Ok(Some(Box::new(move |outcome| callback(outcome.map(one).map_err(|failed| failed.map(one))))))
    }

    /// [`File::submit`], unless the calling thread has some thousand batches unfinished, for which `submit` would wait. Then the requests come back
    /// (`Ok(Some(requests))`), and nothing has begun.
    pub fn try_submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Request>>> {
        let file = self.here()?;
        if file.requester().is_full_here() {
            return Ok(Some(requests));
        }
        file.submit(requests, callback).map(|()| None)
    }

    /// Begins to read ranges, (offset, length) in bytes each, into `out`, which is as long as they are together. `check` says whether they are
    /// within the file.
    pub(super) fn begin_gather<B: IoBuffer>(
        &self,
        out: B,
        ranges: impl Iterator<Item = (u64, usize)>,
        check: impl Fn() -> Result<()>,
    ) -> Transfer<B> {
        if let Err(error) = self.state.exec().check_open().and_then(|()| check()) {
            return Transfer::failed(error, out);
        }
        let mut out = Kept::new(out);
        let memory = out.get().memory();
        let reads = extents(ranges, memory.cast());
        // SAFETY: the memory is the buffer's, and as long as the ranges.
        let unread = unsafe { Unread::new(&self.state, reads) };
        if unread.is_empty() {
            return Transfer::now(Ok(out.into_inner()));
        }
        // SAFETY: the extents are in the memory of `out`, which is as `IoBuffer` promises.
        self.begin_transfer(unsafe { Owned::new(out, within(memory), unread, None) })
    }

    fn begin_transfer<B: Send + 'static>(&self, owned: Owned<B>) -> Transfer<B> {
        let (promise, promised) = promise();
        let _never_waits = begin_serving();
        match self.requester().begin_owned(owned, BatchReceiver::promise(promise)) {
            Ok(cell) => Transfer(TransferState::Later(FutureState::of_cell(promised, cell))),
            Err(failed) => Transfer::now(Err(failed)),
        }
    }

    fn requester(&self) -> Requester {
        Requester::new(self.state.clone(), self.class)
    }

    /// Begins a batch of one request.
    fn begin_one(&self, batch: Batch) -> FutureState<Outcome<Buffers>> {
        match self.here() {
            Ok(file) => file.begin_one_here(batch),
            Err(forked) => FutureState::now(Err(forked)),
        }
    }

    fn begin_one_here(&self, batch: Batch) -> FutureState<Outcome<Buffers>> {
        if let [Request::Read { offset, len }] = batch.requests() {
            self.look_ahead(*offset, (*len as u64).min(self.len().saturating_sub(*offset)) as usize);
        }
        let (promise, promised) = promise();
        let _never_waits = begin_serving();
        match self.requester().begin(batch, BatchReceiver::promise(promise)) {
            Ok(cell) => FutureState::of_cell(promised, cell),
            Err(error) => FutureState::now(Err(error)),
        }
    }
}

/// The memory of a buffer, for engines that know it.
fn within(memory: *const [u8]) -> Within {
    Within::new(memory.cast(), memory.len())
}

/// What a read within one page has come to.
enum Begun<B> {
    /// The cache had it.
    Now(std::result::Result<(B, usize), Failed<B>>),
    /// With its length in bytes.
    Direct(DirectReading<B>, usize),
}

/// The future of [`File::read`].
#[derive(Debug)]
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Reading(ReadingState);

#[derive(Debug)]
enum ReadingState {
    /// The result, until it is taken.
    Now(Option<Result<Vec<u8>>>),
    /// With its length in bytes.
    Direct(DirectReading<Unfilled>, usize),
    Later(FutureState<Outcome<Buffers>>),
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

// SAFETY: the bytes of a vector are on the heap, and stay there while the vector is moved. Nothing writes or reads them before they were
// read from a file, so they need not be initialised.
unsafe impl IoBytes for Unfilled {
    fn bytes(&self) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.0.as_ptr(), self.0.capacity())
    }
}

// SAFETY: as above.
unsafe impl IoBuffer for Unfilled {
    #[inline]
    fn memory(&mut self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.0.as_mut_ptr(), self.0.capacity())
    }
}

/// The future of [`File::read_at_async`]. It resolves to the buffer and the number of bytes.
#[derive(Debug)]
#[must_use = "the read goes on, but its bytes are lost"]
pub struct ReadingAt<B: IoBuffer>(ReadingAtState<B>);

#[derive(Debug)]
enum ReadingAtState<B: IoBuffer> {
    /// A hit, until it is taken.
    Hit(Option<B>, usize),
    /// The outcome, until it is taken.
    Now(Option<std::result::Result<(B, usize), Failed<B>>>),
    /// With its length in bytes.
    Direct(DirectReading<B>, usize),
    Later(FutureState<Outcome<(B, usize)>>),
}

/// The future of a call that reads into a buffer, or writes from one, that it owns meanwhile. It resolves to the buffer. An error has the buffer,
/// too ([`Failed`]).
#[derive(Debug)]
#[must_use = "the call goes on, but its errors are lost"]
pub struct Transfer<B>(TransferState<B>);

#[derive(Debug)]
enum TransferState<B> {
    /// The outcome, until it is taken.
    Now(Option<Outcome<B>>),
    Later(FutureState<Outcome<B>>),
}

/// The future of [`File::sync_async`].
#[derive(Debug)]
#[must_use = "the sync goes on, but its errors are lost"]
pub struct Syncing(Answer<()>);

impl Reading {
    #[inline]
    fn now(result: Result<Vec<u8>>) -> Reading {
        Reading(ReadingState::Now(Some(result)))
    }
}

impl<B: IoBuffer> ReadingAt<B> {
    #[inline]
    fn now(outcome: std::result::Result<(B, usize), Failed<B>>) -> ReadingAt<B> {
        ReadingAt(ReadingAtState::Now(Some(outcome)))
    }
}

impl<B> Transfer<B> {
    fn now(outcome: Outcome<B>) -> Transfer<B> {
        Transfer(TransferState::Now(Some(outcome)))
    }

    pub(super) fn failed(error: Error, buffer: B) -> Transfer<B> {
        Transfer::now(Err(Failed::new(error, Some(buffer))))
    }
}

/// The outcome of an operation, if it has one. Otherwise what has become of its future.
fn outcome<K>(ended: Result<Outcome<K>>) -> Outcome<K> {
    ended.unwrap_or_else(|error| Err(Failed::new(error, None)))
}

fn taken<T, B>(now: &mut Option<std::result::Result<T, Failed<B>>>) -> std::result::Result<T, Failed<B>> {
    now.take().unwrap_or_else(|| Err(Failed::new(polled_again(), None)))
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let ReadingState::Now(Some(_)) = &self.0
            && let ReadingState::Now(Some(result)) = std::mem::replace(&mut self.0, ReadingState::Now(None))
        {
            return Poll::Ready(result);
        }
        self.0.poll_later(context)
    }
}

impl ReadingState {
    /// `poll` of what was no hit.
    #[inline(never)]
    fn poll_later(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        match self {
            ReadingState::Now(_) => Poll::Ready(Err(polled_again())),
            ReadingState::Direct(reading, len) => match reading.poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready((Err(error), _)) => Poll::Ready(Err(error)),
                // SAFETY: the read has filled so many bytes.
                Poll::Ready((Ok(()), Some(bytes))) => Poll::Ready(Ok(unsafe { bytes.filled(*len) })),
                Poll::Ready((Ok(()), None)) => Poll::Ready(Err(polled_again())),
            },
            ReadingState::Later(later) => later.poll(context).map(|ended| {
                let mut buffers = outcome(ended)?;
                Ok(buffers.pop().unwrap_or_default())
            }),
        }
    }
}

impl<B: IoBuffer> Future for ReadingAt<B> {
    type Output = std::result::Result<(B, usize), Failed<B>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let ReadingAtState::Hit(buffer, len) = &mut self.0
            && let Some(buffer) = buffer.take()
        {
            return Poll::Ready(Ok((buffer, *len)));
        }
        self.0.poll_later(context)
    }
}

impl<B: IoBuffer> ReadingAtState<B> {
    /// `poll` of what was no hit.
    #[inline(never)]
    fn poll_later(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(B, usize), Failed<B>>> {
        match self {
            ReadingAtState::Hit(..) => Poll::Ready(Err(Failed::new(polled_again(), None))),
            ReadingAtState::Now(now) => Poll::Ready(taken(now)),
            ReadingAtState::Direct(reading, len) => reading.poll(context).map(|ended| match ended {
                (Ok(()), Some(buffer)) => Ok((buffer, *len)),
                (Ok(()), None) => Err(Failed::new(polled_again(), None)),
                (Err(error), buffer) => Err(Failed::new(error, buffer)),
            }),
            ReadingAtState::Later(later) => {
                later.poll(context).map(|ended| outcome(ended).map_err(|failed| failed.map(|(buffer, _)| buffer)))
            }
        }
    }
}

/// The buffer is not pinned: the memory that operations use is where it leads to.
impl<B: IoBuffer> Unpin for ReadingAt<B> {}

/// The same holds here.
impl<B> Unpin for Transfer<B> {}

impl<B> Future for Transfer<B> {
    type Output = std::result::Result<B, Failed<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            TransferState::Now(now) => Poll::Ready(taken(now)),
            TransferState::Later(later) => later.poll(context).map(outcome),
        }
    }
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
