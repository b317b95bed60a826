//! Asynchronous calls that need no operation of `exec`. A [`DirectRead`] consists of its pieces alone: of any range
//! without a cache, or within one missing page. Reads and writes of cached pages end in the call that makes the future.
//! Most asynchronous calls are direct.
//!
//! Goals: one allocation besides the buffer, which has the callback, too. Non-goals: all other cases. If the page is
//! not simply missing, or the gate is closed, the caller takes the general path (`batch`), an operation of `exec`.
//!
//! Rules of a [`DirectRead`]:
//! 1. The fill's frame, the buffer and the file stay valid until all pieces have ended: the share of the pieces holds
//!    this.
//! 2. `piece_done` is called once for each piece, then `share_done` once, by threads that have the context's lock, or
//!    had it. No other code uses the cells before the end. Then the future takes the result, or the callback, if there
//!    is one.
//! 3. If no piece could begin, dropping this abandons the fill (rule 6 of the cache).

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Paged;
use super::io_buffer::{self, Failed, IoBuffer, Kept};
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, spans};
use crate::cache::{Begun, Fill, Outcome};
use crate::counters::Counter;
use crate::drive::shares::Owner;
use crate::drive::{Class, Failure, NoSum, PAGE_BYTES, PageSum, Piece};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::exec::cell::{Next, SharedCell};
use crate::exec::pools::{HasCallback, Pool};
use crate::exec::users_code;
use crate::exec::{End, Within};
use crate::file::Entered;
use crate::file::split::{IoRange, Splitter};
use crate::sys::copy::copy_bytes;
use crate::sys::process::Home;
use crate::sys::sync::Ordering;

/// The callback of a read: it is called on a thread of the pool, with the function's help.
struct Callback<B, C> {
    pool: Arc<Pool>,
    callback: C,
    call: fn(C, io_buffer::Returned<B>),
}

/// See the module.
pub struct DirectRead<B, C> {
    /// For the future, which takes the result after the end.
    end: End,
    /// `None` if a future waits.
    callback: UnsafeCell<Option<Callback<B, C>>>,
    /// The fill, the span of the page to copy, and the sum of the page, for a file with sums. `None` without a cache,
    /// and after the end of the fill.
    fill: UnsafeCell<Option<(Fill, Span, PageSum)>>,
    /// The first failure.
    ended: UnsafeCell<Result<()>>,
    /// `None` after the end.
    file: UnsafeCell<Option<EnteredFile>>,
    /// `None` after the result was taken.
    buffer: UnsafeCell<Option<Kept<B>>>,
}

// SAFETY: one thread at a time uses the cells (rule 2), and passes them on by `end` or by the queue of the pool.
// The fill and the span describe memory that they own.
unsafe impl<B: Send, C: Send> Sync for DirectRead<B, C> {}
// SAFETY: as above.
unsafe impl<B: Send, C: Send> Send for DirectRead<B, C> {}

/// The future's side of a read in flight.
pub struct DirectReading<B> {
    read: Arc<DirectRead<B, ()>>,
    cell: Arc<SharedCell>,
    is_polled: bool,
    is_taken: bool,
    home: Home,
}

impl OpenFile {
    /// Reads a range within one page, if the page is cached and only its hint was wrong.
    ///
    /// # Safety
    /// The span's memory is writable, and nothing else uses it.
    pub unsafe fn read_in_set(&self, span: Span) -> bool {
        let Some(paged) = &self.paged else { return false };
        paged.pager.with_local(|local| {
            let (key, hash, cache) = paged.key(span.page);
            // SAFETY: the caller's promise.
            let found = unsafe { paged.read_span(local, (key, hash, cache), span) };
            if found {
                local.tally.add(Counter::BytesRead, u64::from(span.len));
            } else {
                cache.prefetch_to_fill(key, hash);
            }
            found
        })
    }

    /// Begins a direct read of `len` bytes into the start of `buffer`, or returns the buffer if the read needs the
    /// general path. There is at least one byte, all are within the file, and `buffer` has room for them. With a cache
    /// the range is in one missing page.
    pub fn begin_direct<B: IoBuffer>(
        file: &OpenRef,
        class: Class,
        (offset, len): (u64, usize),
        buffer: B,
    ) -> std::result::Result<DirectReading<B>, B> {
        let (read, cell) = begin(file, class, (offset, len), buffer, None, None).map_err(|(buffer, _)| buffer)?;
        Ok(DirectReading { read, cell, is_polled: false, is_taken: false, home: Home::here() })
    }

    /// `begin_direct` with a callback, which it returns together with the buffer. `call` calls the callback.
    pub fn submit_direct<B: IoBuffer, C: Send + 'static>(
        file: &OpenRef,
        class: Class,
        range: (u64, usize),
        buffer: B,
        (callback, call): (C, fn(C, io_buffer::Returned<B>)),
    ) -> std::result::Result<(), (B, C)> {
        let callback = Callback { pool: Arc::clone(&file.exec().callbacks), callback, call };
        let host = file.exec().cell_to_post_to(class);
        let is_posted = host.is_some();
        match begin(file, class, range, buffer, Some(callback), host) {
            Ok((_, cell)) => {
                if is_posted {
                    file.exec().callbacks.wake_host();
                } else {
                    cell.leave_soon();
                }
                Ok(())
            }
            Err((buffer, Some(Callback { callback, .. }))) => Err((buffer, callback)),
            Err((_, None)) => unreachable!("the callback comes back"),
        }
    }

    /// Writes I/O ranges to the cache, up to the first page that is not there. Returns the number of bytes written; the
    /// general path writes the rest. Waits for nothing, and begins no I/O. An error, or a file that must become longer
    /// or take a lock first, is left to the general path.
    ///
    /// # Safety
    /// The I/O ranges' memory is readable.
    pub unsafe fn write_cached(&self, io_ranges: impl Iterator<Item = IoRange> + Clone) -> usize {
        let end =
            io_ranges.clone().map(|io_range| io_range.offset.saturating_add(io_range.len as u64)).max().unwrap_or(0);
        let Some(paged) = &self.paged else { return 0 };
        let Some(_entered) = Entered::try_enter(&self.file) else { return 0 };
        let is_simple = end <= self.file.len() && !self.file.is_plain() && self.exec().has_threads();
        // With many dirty pages a write first flushes some.
        let limits = paged.pager.limits();
        if !is_simple || self.file.check_writable().is_err() || paged.pager.dirty() > limits.dirty_pages {
            return 0;
        }
        let (mut written, mut many) = (0, Vec::new());
        paged.pager.with_local(|local| {
            for span in io_ranges.flat_map(spans) {
                let (key, hash, cache) = paged.key(span.page);
                let (within, len) = (usize::from(span.within), usize::from(span.len));
                // SAFETY: a span is within its page, and its memory is readable.
                let Some(dirty) = (unsafe { cache.write_present(key, hash, within, span.buf, len) }) else { break };
                local.hit(paged, key);
                written += len;
                if dirty > limits.set_dirty {
                    many.push(span.page);
                }
            }
            local.tally.add(Counter::BytesWritten, written as u64);
        });
        if !many.is_empty() {
            // If the flusher could not be started, the next write flushes the sets.
            let _is_left = paged.pager.flush_later(self.exec(), paged.keys(&many));
        }
        written
    }
}

type Begin<B, C> = std::result::Result<(Arc<DirectRead<B, C>>, Arc<SharedCell>), (B, Option<Callback<B, C>>)>;

/// Begins a read in the calling thread's cell, or posts it to `host`.
fn begin<B: IoBuffer, C: Send + 'static>(
    file: &OpenRef,
    class: Class,
    (offset, len): (u64, usize),
    buffer: B,
    callback: Option<Callback<B, C>>,
    host: Option<Arc<SharedCell>>,
) -> Begin<B, C> {
    let Some(entered) = Entered::try_enter(&file.file) else { return Err((buffer, callback)) };
    let is_posted = host.is_some();
    let Ok(cell) = host.map_or_else(|| file.exec().cell_for(class), Ok) else { return Err((buffer, callback)) };
    // The file may have shrunk before this call was inside.
    if offset.checked_add(len as u64).is_none_or(|end| end > file.file.len()) {
        return Err((buffer, callback));
    }
    let mut buffer = Kept::new(buffer);
    let memory = buffer.get().memory();
    let waits = cell.waits();
    let fill = match &file.paged {
        // The bytes of a file with sums are verified page by page.
        None if file.file.sums().is_some() => return Err((buffer.into_inner(), callback)),
        None => None,
        Some(paged) => {
            let (page, within) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
            let span = Span { page, within: within as u16, len: len as u16, buf: memory.cast() };
            let is_in_page = within + len <= PAGE_BYTES && !file.file.is_list();
            let fill = if is_in_page { paged.begin_summed_page(span) } else { None };
            let Some((fill, sum)) = fill else { return Err((buffer.into_inner(), callback)) };
            if fill.came.is_pressed {
                file.note_pressed(paged, page);
            }
            Some((fill, span, sum))
        }
    };
    let read = Arc::new(DirectRead {
        end: End::default(),
        callback: UnsafeCell::new(callback),
        fill: UnsafeCell::new(fill),
        ended: UnsafeCell::new(Ok(())),
        file: UnsafeCell::new(Some(EnteredFile::stay(entered, file.clone()))),
        buffer: UnsafeCell::new(Some(buffer)),
    });
    let owner = Arc::clone(&read) as Arc<dyn Owner>;
    let pushed = match (&file.paged, fill) {
        (Some(paged), Some((fill, ..))) => {
            let page = fill.key.page();
            let (has, cache) = (file.file.page_bytes(page), paged.pager.cache_of(fill.key));
            if has < PAGE_BYTES {
                cache.put_zeroes(&fill, has);
            }
            let piece = file.file.page_piece(Op::Read, class, page, has, Memory::one(cache.filling(&fill)));
            // SAFETY: the memory is the fill's frame, and the owner holds the fill and the file until its end (rule 1).
            unsafe { send(&cell, is_posted, owner, Within::SLABS, std::iter::once(piece), waits) }
        }
        _ => {
            file.exec().count_bytes(Op::Read, len as u64);
            let io_range = IoRange { offset, len, buf: memory.cast() };
            let pieces = Splitter::new(&file.file, Op::Read, class, std::iter::once(io_range));
            // SAFETY: the memory is the buffer's, which the owner holds with the file until its end (rule 1).
            unsafe { send(&cell, is_posted, owner, Within::new(memory.cast(), memory.len()), pieces, waits) }
        }
    };
    if let Err(error) = pushed {
        // Not expected: a close of the array waits for operations inside files. Dropping `read` abandons the fill.
        // SAFETY: nothing else has `read`, because its share was not taken.
        unsafe { *read.ended.get() = Err(error) };
        Arc::clone(&read).end();
    }
    Ok((read, cell))
}

/// Queues pieces for the next turn of a cell.
///
/// # Safety
/// As for [`SharedCell::push`].
unsafe fn send(
    cell: &Arc<SharedCell>,
    is_posted: bool,
    owner: Arc<dyn Owner>,
    within: Within,
    pieces: impl Iterator<Item = (u16, Piece)>,
    waits: u32,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if is_posted { cell.post(owner, within, pieces, waits) } else { cell.push(owner, within, pieces, Some(waits)) }
    }
}

impl Paged {
    /// `begin_page` with the sum of the page, if the file has sums. `None` also if the sum is not in memory.
    fn begin_summed_page(&self, span: Span) -> Option<(Fill, PageSum)> {
        let Some(sums) = &self.sums else { return Some((self.begin_page(span)?, Err(NoSum::Lost))) };
        sums.sum(span.page)?;
        let fill = self.begin_page(span)?;
        // Not before the fill has begun: until then the page may be written to. If the sum has left memory meanwhile,
        // which is rare, this waits for its drive.
        Some((fill, sums.taken(span.page)))
    }

    /// Makes the caller the owner of a page's fill, if the page is missing and its set has a frame for it.
    fn begin_page(&self, span: Span) -> Option<Fill> {
        let (key, hash, cache) = self.key(span.page);
        self.pager.with_local(|local| {
            local.tell(&self.pager);
            let Begun::Yours(fill) = cache.begin_read(key, hash) else { return None };
            self.pager.taken.fetch_add(1, Ordering::Relaxed);
            local.tally.add(Counter::BytesRead, u64::from(span.len));
            local.tally.add(Counter::Fills, 1);
            local.came(fill.came);
            Some(fill)
        })
    }
}

impl<B: Send + 'static, C: Send + 'static> DirectRead<B, C> {
    /// Ends the fill with a result. Returns the result, or an error if the bytes could not be verified.
    ///
    /// # Safety
    /// Rule 2: the caller is the only thread that uses this.
    unsafe fn end_fill(&self, paged: &Paged, outcome: Outcome) -> Outcome {
        // SAFETY: the caller's promise.
        let Some((fill, span, sum)) = (unsafe { (*self.fill.get()).take() }) else { return outcome };
        let cache = paged.pager.cache_of(fill.key);
        let outcome = match &paged.sums {
            None => outcome,
            Some(sums) => paged.prove(sums, sum, &fill, outcome),
        };
        if outcome.is_ok() {
            // SAFETY: the fill owns the frame until its end, the range is within a page, and the buffer is this read's
            // (rule 1).
            unsafe {
                copy_bytes(cache.filling(&fill).wrapping_add(span.within.into()), span.buf, span.len.into());
            }
        }
        cache.end_fill(fill, outcome, false);
        outcome
    }

    /// Shows the end to the future and wakes its task, or queues the call of the callback.
    fn end(self: Arc<Self>) {
        // SAFETY: rule 2.
        if let Some(Callback { pool, .. }) = unsafe { &*self.callback.get() } {
            let pool = Arc::clone(pool);
            return pool.call_back(self);
        }
        if let Some(waker) = self.end.come() {
            users_code::wake(waker);
        }
    }
}

impl<B: Send + 'static, C: Send + 'static> HasCallback for DirectRead<B, C> {
    fn call_back(&self) {
        // SAFETY: the read has ended and has no future, so only this takes its result (rule 2).
        let (callback, ended) = unsafe { ((*self.callback.get()).take(), self.take()) };
        let Some(Callback { callback, call, .. }) = callback else { return };
        let outcome = match ended {
            (Ok(()), Some(buffer)) => Ok(buffer),
            (Ok(()), None) => Err(Failed::new(Error::Panicked, None)),
            (Err(error), buffer) => Err(Failed::new(error, buffer)),
        };
        call(callback, outcome);
    }
}

impl<B, C> DirectRead<B, C> {
    /// The result, with the buffer.
    ///
    /// # Safety
    /// The read has ended, and nothing else takes its result.
    unsafe fn take(&self) -> (Result<()>, Option<B>) {
        // SAFETY: the caller's promise.
        let (ended, buffer) =
            unsafe { (std::mem::replace(&mut *self.ended.get(), Ok(())), (*self.buffer.get()).take()) };
        (ended, buffer.map(Kept::into_inner))
    }
}

impl<B: Send + 'static, C: Send + 'static> Owner for DirectRead<B, C> {
    fn piece_done(&self, _tag: u32, result: std::result::Result<(), Failure>) {
        // SAFETY: rule 2. The file is held until `share_done`.
        let Some(file) = (unsafe { &*self.file.get() }) else { return };
        // SAFETY: rule 2. A panic leaves the error in place, so that unread bytes never count as read.
        unsafe {
            let before = std::mem::replace(&mut *self.ended.get(), Err(Error::Panicked));
            let result = file.paged.as_ref().map_or(result, |paged| self.end_fill(paged, result));
            *self.ended.get() = before.and(result.map_err(|failure| file.file.error(failure)));
        }
    }

    fn share_done(self: Arc<Self>, _failure: Option<Failure>) {
        // SAFETY: rule 2.
        let file = unsafe { (*self.file.get()).take() };
        match file {
            Some(file) => file.leave(move || self.end()),
            None => self.end(),
        }
    }
}

impl<B, C> Drop for DirectRead<B, C> {
    fn drop(&mut self) {
        // Rule 3.
        let file = self.file.get_mut();
        if let (Some((fill, ..)), Some(paged)) =
            (self.fill.get_mut().take(), file.as_ref().and_then(|file| file.paged.as_ref()))
        {
            paged.pager.cache_of(fill.key).abandon_fill(fill);
        }
    }
}

impl<B> DirectReading<B> {
    /// The result with the buffer, once the read has ended. Until then a poll drives I/O, and waits for nothing.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Result<()>, Option<B>)> {
        if !self.home.is_here() {
            return Poll::Ready((Err(Error::Forked), None));
        }
        if self.is_taken {
            return Poll::Ready((Err(Error::invalid("a future", "polled again after it resolved")), None));
        }
        let is_first = !std::mem::replace(&mut self.is_polled, true);
        let end = &self.read.end;
        // The next poll comes in any case after the first one has asked for it. So this one leaves no waker.
        if !end.has_come() && self.cell.advance(context, is_first) == Next::Poll {
            return Poll::Pending;
        }
        if !end.has_come() && end.wait(context.waker()) {
            return Poll::Pending;
        }
        self.is_taken = true;
        // SAFETY: the read has ended, and this takes its result alone (rule 2).
        Poll::Ready(unsafe { self.read.take() })
    }
}

impl<B> Drop for DirectReading<B> {
    /// The read continues without its future. No poll drives it any more.
    fn drop(&mut self) {
        if self.home.is_here() && !self.read.end.has_come() {
            self.cell.leave();
        }
    }
}

impl<B> std::fmt::Debug for DirectReading<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectReading").field("is_polled", &self.is_polled).finish_non_exhaustive()
    }
}
