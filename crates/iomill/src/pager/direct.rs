//! [`DirectRead`]: an asynchronous read that consists of its pieces alone: of any range without a cache, or within one
//! missing page. Most asynchronous reads are direct.
//!
//! Goals: one allocation besides the buffer, and two locks. Non-goals: all other cases. If the page is not simply
//! missing, or the gate is closed, the caller takes the general path (`batch`), an operation of `exec`.
//!
//! Rules:
//! 1. The fill's frame, the buffer and the file stay valid until all pieces have ended: the share of the pieces holds
//!    this.
//! 2. `piece_done` is called once for each piece, then `share_done` once, by threads that have the context's lock, or
//!    had it. No other code uses `fill`, `ended`, `file` and `buffer` before the state says that the read has ended.
//! 3. If no piece could begin, dropping this abandons the fill (rule 6 of the cache).

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Paged;
use super::batch::Callback;
use super::io_buffer::{Failed, IoBuffer, Kept};
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::Span;
use crate::cache::{Begun, Fill, Outcome};
use crate::counters::Counter;
use crate::drive::shares::Owner;
use crate::drive::{Class, Failure, PAGE_BYTES, Piece};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::exec::Within;
use crate::exec::cell::SharedCell;
use crate::exec::pools::{self, Pool};
use crate::file::Entered;
use crate::file::split::{Extent, Splitter};
use crate::sys::copy::copy_bytes;
use crate::sys::process::Home;
use crate::sys::sync::{Mutex, Ordering, lock};

/// The state of a read.
enum State<B> {
    /// A future waits. The waker, if it has been polled.
    Open(Option<Waker>),
    /// A callback waits, to be called on a thread of this pool.
    Callback(Arc<Pool>, Callback<B>),
    Ended,
    /// The result was taken.
    Taken,
}

/// See the module.
pub struct DirectRead<B> {
    state: Mutex<State<B>>,
    /// The fill, and the span of the page to copy. `None` without a cache, and after the end of the fill.
    fill: UnsafeCell<Option<(Fill, Span)>>,
    /// The first failure.
    ended: UnsafeCell<Result<()>>,
    /// `None` after the end.
    file: UnsafeCell<Option<EnteredFile>>,
    /// `None` after the result was taken.
    buffer: UnsafeCell<Option<Kept<B>>>,
}

// SAFETY: one thread at a time uses the cells (rule 2), and passes them on by `state`. The fill and the span describe
// memory that they own.
unsafe impl<B: Send> Sync for DirectRead<B> {}
// SAFETY: as above.
unsafe impl<B: Send> Send for DirectRead<B> {}

/// The future's side of a read in flight.
pub struct DirectReading<B> {
    read: Arc<DirectRead<B>>,
    cell: Arc<SharedCell>,
    is_polled: bool,
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
        let (read, cell) =
            begin(file, class, (offset, len), buffer, State::Open(None), None).map_err(|(buffer, _)| buffer)?;
        Ok(DirectReading { read, cell, is_polled: false, home: Home::here() })
    }

    /// `begin_direct` with a callback, which it returns together with the buffer.
    pub fn submit_direct<B: IoBuffer>(
        file: &OpenRef,
        class: Class,
        range: (u64, usize),
        buffer: B,
        callback: Callback<B>,
    ) -> std::result::Result<(), (B, Callback<B>)> {
        let callbacks = Arc::clone(&file.exec().callbacks);
        let host = file.exec().cell_to_post_to(class);
        let is_posted = host.is_some();
        match begin(file, class, range, buffer, State::Callback(callbacks, callback), host) {
            Ok((_, cell)) => {
                if is_posted {
                    file.exec().callbacks.wake_host();
                } else {
                    cell.leave_soon();
                }
                Ok(())
            }
            Err((buffer, State::Callback(_, callback))) => Err((buffer, callback)),
            Err(_) => unreachable!("the state comes back as it was"),
        }
    }
}

type Begin<B> = std::result::Result<(Arc<DirectRead<B>>, Arc<SharedCell>), (B, State<B>)>;

/// Begins a read in the calling thread's cell, or posts it to `host`.
fn begin<B: IoBuffer>(
    file: &OpenRef,
    class: Class,
    (offset, len): (u64, usize),
    buffer: B,
    state: State<B>,
    host: Option<Arc<SharedCell>>,
) -> Begin<B> {
    let Some(entered) = Entered::try_enter(&file.file) else { return Err((buffer, state)) };
    // The general path reports the error.
    let is_posted = host.is_some();
    let Ok(cell) = host.map_or_else(|| file.exec().cell_for(class), Ok) else { return Err((buffer, state)) };
    // The file may have shrunk before this call was inside.
    if offset.checked_add(len as u64).is_none_or(|end| end > file.file.len()) {
        return Err((buffer, state));
    }
    let mut buffer = Kept::new(buffer);
    let memory = buffer.get().memory();
    let waits = cell.waits();
    let fill = match &file.paged {
        // The bytes of a file with sums are verified page by page.
        None if file.file.sums().is_some() => return Err((buffer.into_inner(), state)),
        None => None,
        Some(paged) => {
            let (page, within) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
            let span = Span { page, within: within as u16, len: len as u16, buf: memory.cast() };
            let is_in_page = within + len <= PAGE_BYTES && !file.file.is_list();
            let fill = if is_in_page && paged.has_sum_of(page) { paged.begin_page(span) } else { None };
            let Some(fill) = fill else { return Err((buffer.into_inner(), state)) };
            if fill.came.is_pressed {
                file.note_pressed(paged, page);
            }
            Some((fill, span))
        }
    };
    let read = Arc::new(DirectRead {
        state: Mutex::new(state),
        fill: UnsafeCell::new(fill),
        ended: UnsafeCell::new(Ok(())),
        file: UnsafeCell::new(Some(EnteredFile::stay(entered, file.clone()))),
        buffer: UnsafeCell::new(Some(buffer)),
    });
    let owner = Arc::clone(&read) as Arc<dyn Owner>;
    let pushed = match (&file.paged, fill) {
        (Some(paged), Some((fill, _))) => {
            let page = fill.key.page();
            let (has, cache) = (file.file.page_bytes(page), paged.pager.cache_of(fill.key));
            if has < PAGE_BYTES {
                cache.put_zeroes(&fill, has);
            }
            let piece = file.file.page_piece(Op::Read, class, page, has, Memory::one(cache.filling(&fill)));
            // SAFETY: the memory is a frame, which the fill owns, and the owner holds the fill and the file until its end (rule 1).
            unsafe { send(&cell, is_posted, owner, Within::SLABS, std::iter::once(piece), waits) }
        }
        _ => {
            file.exec().count_bytes(Op::Read, len as u64);
            let extent = Extent { offset, len, buf: memory.cast() };
            let pieces = Splitter::new(&file.file, Op::Read, class, std::iter::once(extent));
            // SAFETY: the memory is the buffer's, which the owner holds with the file until its end (rule 1).
            unsafe { send(&cell, is_posted, owner, Within::new(memory.cast(), memory.len()), pieces, waits) }
        }
    };
    if let Err(error) = pushed {
        // Not expected: a close of the array waits for operations inside files. Dropping `read` abandons the fill.
        // SAFETY: nothing else has `read`, because its share was not taken.
        unsafe { *read.ended.get() = Err(error) };
        read.end();
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
    /// Whether the sum of a page is in memory, if the file has sums.
    fn has_sum_of(&self, page: u64) -> bool {
        self.sums.as_ref().is_none_or(|sums| sums.is_loaded(page))
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

impl<B: Send + 'static> DirectRead<B> {
    /// Ends the fill with a result. Returns the result, or an error if the bytes could not be verified.
    ///
    /// # Safety
    /// Rule 2: the caller is the only thread that uses this.
    unsafe fn end_fill(&self, paged: &Paged, outcome: Outcome) -> Outcome {
        // SAFETY: the caller's promise.
        let Some((fill, span)) = (unsafe { (*self.fill.get()).take() }) else { return outcome };
        let cache = paged.pager.cache_of(fill.key);
        let outcome = match &paged.sums {
            None => outcome,
            Some(sums) => paged.prove(sums, &fill, outcome),
        };
        if outcome.is_ok() {
            // SAFETY: the fill owns the frame until its end, the range is within a page, and the buffer is this read's (rule 1).
            unsafe {
                copy_bytes(cache.filling(&fill).wrapping_add(span.within.into()), span.buf, span.len.into());
            }
        }
        cache.end_fill(fill, outcome, false);
        outcome
    }

    /// Shows the end to the future and wakes its task, or queues the call of the callback.
    fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Ended);
        match before {
            State::Open(Some(waker)) => pools::wake(waker),
            State::Callback(callbacks, callback) => {
                // SAFETY: the read has ended and has no future, so only this takes its result (rule 2).
                let outcome = match unsafe { self.take() } {
                    (Ok(()), Some(buffer)) => Ok(buffer),
                    (Ok(()), None) => Err(Failed::new(Error::Panicked, None)),
                    (Err(error), buffer) => Err(Failed::new(error, buffer)),
                };
                callbacks.call(Box::new(move || callback(outcome)));
            }
            State::Open(None) | State::Ended | State::Taken => {}
        }
    }
}

impl<B> DirectRead<B> {
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

impl<B: Send + 'static> Owner for DirectRead<B> {
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

impl<B> Drop for DirectRead<B> {
    fn drop(&mut self) {
        // Rule 3.
        let file = self.file.get_mut();
        if let (Some((fill, _)), Some(paged)) =
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
        if let Some(ended) = self.look(context) {
            return Poll::Ready(ended);
        }
        self.cell.advance(context, !std::mem::replace(&mut self.is_polled, true));
        match self.look(context) {
            Some(ended) => Poll::Ready(ended),
            None => Poll::Pending,
        }
    }

    /// The result, if the read has ended. Otherwise its end wakes the task of `context`.
    fn look(&self, context: &mut Context<'_>) -> Option<(Result<()>, Option<B>)> {
        let mut state = lock(&self.read.state);
        match &mut *state {
            State::Open(waker) => {
                if waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
                    drop(state);
                    return self.look_again(context);
                }
                None
            }
            State::Ended => {
                *state = State::Taken;
                drop(state);
                // SAFETY: the read has ended, and this takes its result alone (rule 2).
                Some(unsafe { self.read.take() })
            }
            State::Taken | State::Callback(..) => {
                Some((Err(Error::invalid("a future", "polled again after it resolved")), None))
            }
        }
    }

    fn look_again(&self, context: &mut Context<'_>) -> Option<(Result<()>, Option<B>)> {
        // Wakers are code of the user: none is cloned or dropped under the lock.
        let mut waker = Some(context.waker().clone());
        let is_open = match &mut *lock(&self.read.state) {
            State::Open(before) => {
                std::mem::swap(before, &mut waker);
                true
            }
            State::Callback(..) | State::Ended | State::Taken => false,
        };
        drop(waker);
        if is_open { None } else { self.look(context) }
    }
}

impl<B> Drop for DirectReading<B> {
    /// The read continues without its future. No poll drives it any more.
    fn drop(&mut self) {
        if self.home.is_here() && matches!(&*lock(&self.read.state), State::Open(_)) {
            self.cell.leave();
        }
    }
}

impl<B> std::fmt::Debug for DirectReading<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectReading").field("is_polled", &self.is_polled).finish_non_exhaustive()
    }
}
