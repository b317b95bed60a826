//! [`PageRead`]: a read within one page that the cache does not have, which no thread waits for. It is what most reads of records are.
//!
//! Goals: one allocation besides the buffer, and two locks. Non-goals: everything else. Where a page is not simply missing, the caller takes
//! the general way (`batch`), which does the same by an operation of `exec`.
//!
//! Rules:
//! 1. The fill's frame, the span's memory and the file stay until the piece has ended: the share of the piece holds this.
//! 2. `piece_done` is called once, then `share_done` once, by the thread that reaps. Nothing else reaches `ended`, `file` and `buffer` before
//!    the state says that the read has ended.
//! 3. If no piece could begin, dropping this abandons the fill (rule 6 of the cache).

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::io_buffer::{IoBuffer, Kept};
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::Span;
use super::{Paged, Pager};
use crate::cache::{Begun, Fill, Outcome};
use crate::counters::Counter;
use crate::drive::shares::Owner;
use crate::drive::{Class, Failure, PAGE_BYTES};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::exec::cell::SharedCell;
use crate::exec::pools;
use crate::file::Entered;
use crate::sys::copy::copy_bytes;
use crate::sys::process::Home;
use crate::sys::sync::{Mutex, Ordering, lock};

/// What a read has come to.
enum State {
    /// The task that waits, if it has been polled.
    Open(Option<Waker>),
    Ended,
    /// The result was taken.
    Taken,
}

/// See the module.
pub struct PageRead<B> {
    state: Mutex<State>,
    /// The fill, and the part of the page that the read wants. `None` after the end of the fill.
    fill: UnsafeCell<Option<Fill>>,
    span: Span,
    /// The result, from `piece_done` on.
    ended: UnsafeCell<Result<()>>,
    /// `None` after the end.
    file: UnsafeCell<Option<EnteredFile>>,
    /// `None` after the result was taken.
    buffer: UnsafeCell<Option<Kept<B>>>,
}

// SAFETY: what is in cells is reached by one thread at a time (rule 2), which hands it over by `state`. The fill and the span are descriptions
// of memory that is theirs.
unsafe impl<B: Send> Sync for PageRead<B> {}
// SAFETY: as above.
unsafe impl<B: Send> Send for PageRead<B> {}

/// A read under way, as its future has it.
pub struct PageReading<B> {
    read: Arc<PageRead<B>>,
    cell: Arc<SharedCell>,
    is_polled: bool,
    home: Home,
}

impl OpenFile {
    /// Reads a range within one page, if the cache has it and only its hint was wrong.
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

    /// Begins to read `len` bytes, at least one and all in one page of the file, into the start of `buffer`, which is as long, if the page is
    /// missing and nothing is in the way. Else it gives the buffer back.
    pub fn begin_page_read<B: IoBuffer>(
        file: &OpenRef,
        (offset, len): (u64, usize),
        buffer: B,
    ) -> std::result::Result<PageReading<B>, B> {
        let Some(entered) = Entered::try_enter(&file.file) else { return Err(buffer) };
        let cell = if file.file.is_list() { None } else { file.exec().own_cell() };
        let (Some(paged), Some(cell)) = (&file.paged, cell) else { return Err(buffer) };
        if !cell.serves(file.file.parts().iter().map(|part| part.drive)) {
            return Err(buffer);
        }
        let within = offset as usize % PAGE_BYTES;
        // The file may have shrunk before this call was inside.
        if offset.checked_add(len as u64).is_none_or(|end| end > file.file.len()) || within + len > PAGE_BYTES {
            return Err(buffer);
        }
        let page = offset / PAGE_BYTES as u64;
        let mut buffer = Kept::new(buffer);
        let span = Span { page, within: within as u16, len: len as u16, buf: buffer.get().memory().cast() };
        let waits = cell.waits();
        let Some(fill) = paged.begin_page(span) else { return Err(buffer.into_inner()) };
        if fill.came.is_pressed {
            file.note_pressed(paged, page);
        }
        let has = file.file.page_bytes(page);
        let memory = paged.pager.cache_of(fill.key).filling(&fill);
        if has < PAGE_BYTES {
            paged.pager.cache_of(fill.key).put_zeroes(&fill, has);
        }
        let piece = file.file.page_piece(Op::Read, Class::Foreground, page, has, Memory::one(memory));
        let read = Arc::new(PageRead {
            state: Mutex::new(State::Open(None)),
            fill: UnsafeCell::new(Some(fill)),
            span,
            ended: UnsafeCell::new(Err(Error::Panicked)),
            file: UnsafeCell::new(Some(EnteredFile::stay(entered, file.clone()))),
            buffer: UnsafeCell::new(Some(buffer)),
        });
        let (owner, slabs) = (Arc::clone(&read) as Arc<dyn Owner>, (std::ptr::null(), 0));
        // SAFETY: the memory is a frame, which the fill owns, and the owner holds the fill and the file until its end (rule 1).
        let pushed = unsafe { cell.push(owner, slabs, std::iter::once(piece), Some(waits)) };
        if let Err(error) = pushed {
            // The array is being closed, which waits for operations inside files; so this is not expected. Dropping `read` abandons the fill.
            // SAFETY: nothing else has `read`, because its share was not taken.
            unsafe { *read.ended.get() = Err(error) };
            read.end();
        }
        Ok(PageReading { read, cell, is_polled: false, home: Home::here() })
    }
}

impl Paged {
    /// Makes the caller the owner of the fill of a page, if it is missing and there is room for it.
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

impl<B> PageRead<B> {
    /// Ends the fill with a result.
    ///
    /// # Safety
    /// Rule 2: the caller is the only thread at it.
    unsafe fn end_fill(&self, pager: &Pager, outcome: Outcome) {
        // SAFETY: the caller's promise.
        let Some(fill) = (unsafe { (*self.fill.get()).take() }) else { return };
        let cache = pager.cache_of(fill.key);
        if outcome.is_ok() {
            let (within, len) = (usize::from(self.span.within), usize::from(self.span.len));
            // SAFETY: the fill owns the frame until its end, the range is within a page, and the buffer is this read's (rule 1).
            unsafe {
                copy_bytes(cache.filling(&fill).wrapping_add(within), self.span.buf, len);
            }
        }
        cache.end_fill(fill, outcome, false);
    }

    /// Shows the end to the future, and wakes its task.
    fn end(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), State::Ended);
        if let State::Open(Some(waker)) = before {
            pools::wake(waker);
        }
    }
}

impl<B: Send + 'static> Owner for PageRead<B> {
    fn piece_done(&self, _tag: u32, result: std::result::Result<(), Failure>) {
        // SAFETY: rule 2. The file is there until `share_done`.
        let file = unsafe { &*self.file.get() };
        let Some((file, paged)) = file.as_ref().and_then(|file| Some((file, file.paged.as_ref()?))) else { return };
        // SAFETY: rule 2.
        unsafe {
            self.end_fill(&paged.pager, result);
            *self.ended.get() = result.map_err(|failure| file.file.error(failure));
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

impl<B> Drop for PageRead<B> {
    fn drop(&mut self) {
        // Rule 3.
        let file = self.file.get_mut();
        if let (Some(fill), Some(paged)) =
            (self.fill.get_mut().take(), file.as_ref().and_then(|file| file.paged.as_ref()))
        {
            paged.pager.cache_of(fill.key).abandon_fill(fill);
        }
    }
}

impl<B: IoBuffer> PageReading<B> {
    /// The result with the buffer, when the read has ended. Meanwhile the poll brings I/O on, and waits for nothing.
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

    /// The result, if it is there. Else the task of `context` is woken when it is.
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
                let (ended, buffer) = unsafe {
                    (std::mem::replace(&mut *self.read.ended.get(), Ok(())), (*self.read.buffer.get()).take())
                };
                Some((ended, buffer.map(Kept::into_inner)))
            }
            State::Taken => Some((Err(Error::invalid("a future", "polled again after it resolved")), None)),
        }
    }

    fn look_again(&self, context: &mut Context<'_>) -> Option<(Result<()>, Option<B>)> {
        // Wakers are a user's code: none is made or dropped under the lock.
        let mut waker = Some(context.waker().clone());
        let is_open = match &mut *lock(&self.read.state) {
            State::Open(before) => {
                std::mem::swap(before, &mut waker);
                true
            }
            State::Ended | State::Taken => false,
        };
        drop(waker);
        if is_open { None } else { self.look(context) }
    }
}

impl<B> Drop for PageReading<B> {
    /// The read goes on without its future. No poll of it sends it any more.
    fn drop(&mut self) {
        if self.home.is_here() && matches!(&*lock(&self.read.state), State::Open(_)) {
            self.cell.leave();
        }
    }
}

impl<B> std::fmt::Debug for PageReading<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageReading").field("page", &self.read.span.page).finish_non_exhaustive()
    }
}
