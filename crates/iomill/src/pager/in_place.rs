//! Access to cached bytes without a copy: a [`PinnedPage`], a [`PinnedRange`], and tasks over a range. Non-goals: the
//! bookkeeping of pins (`cache::pins`, `local`).

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::Paged;
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, Want};
use crate::cache::{Held, HeldParts};
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::exec::cell::SharedCell;
use crate::exec::pools::Pool;
use crate::exec::task::spawn;
use crate::file::Entered;
use crate::sys::process::Home;

/// A pinned page of the cache: its address and its bytes stay the same until the pin is dropped. `Deref` gives its
/// bytes: 4,096, or fewer for the last page of the file. Later writes to the page use another frame: later reads see
/// them, and this pin does not.
///
/// A pin may be sent to another thread and dropped there. All threads together may pin an eighth of the cache at a
/// time, and in a page set no more than its pages. If a set is full of pins, a call for one more waits a tenth of a
/// second or more until one is dropped. Then it returns an error. A thread without pins uses up no slots for pins.
#[derive(Debug)]
pub struct PinnedPage<'a> {
    held: Held<'a>,
    /// Bytes of the page that are within the file.
    len: usize,
}

impl<'a> PinnedPage<'a> {
    #[inline(always)]
    pub(super) fn new(held: Held<'a>, len: usize) -> PinnedPage<'a> {
        PinnedPage { held, len }
    }

    /// To pass the pin in registers.
    #[inline(always)]
    pub(crate) fn into_parts(self) -> (HeldParts<'a>, usize) {
        (self.held.into_parts(), self.len)
    }

    #[inline(always)]
    pub(crate) fn from_parts((held, len): (HeldParts<'a>, usize)) -> PinnedPage<'a> {
        PinnedPage { held: Held::from_parts(held), len }
    }
}

impl Deref for PinnedPage<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.held.bytes()[..self.len]
    }
}

impl AsRef<[u8]> for PinnedPage<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The bytes of a page of a range.
#[derive(Debug)]
enum PagePlace<'a> {
    Pinned(PinnedPage<'a>),
    /// A copy, because it could not be pinned.
    Copied(Vec<u8>),
}

impl PagePlace<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            PagePlace::Pinned(pin) => pin,
            PagePlace::Copied(bytes) => bytes,
        }
    }
}

/// The cached bytes of a range, page by page, for the task of [`File::read_with`](crate::File::read_with).
#[derive(Debug)]
pub struct PinnedRange<'a> {
    paged: &'a Paged,
    home: Home,
    places: Vec<PagePlace<'a>>,
    /// The offset of the range in its first page, and its length in bytes, at most up to the end of the last page.
    within: usize,
    len: usize,
}

impl<'a> PinnedRange<'a> {
    fn new(paged: &'a Paged, mut places: Vec<PagePlace<'a>>, within: usize, len: usize) -> PinnedRange<'a> {
        // If the file was cut meanwhile, the range ends at the first short page.
        let whole = places.iter().take_while(|place| place.bytes().len() == PAGE_BYTES).count();
        places.truncate(whole + 1);
        let there = places.iter().map(|place| place.bytes().len()).sum::<usize>();
        let len = len.min(there.saturating_sub(within));
        if len == 0 {
            places.clear();
        }
        PinnedRange { paged, home: Home::here(), places, within, len }
    }

    /// Length of the range in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in order, in slices of up to a page.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.within + self.len;
        self.places.iter().enumerate().map(move |(index, place)| {
            let from = if index == 0 { self.within } else { 0 };
            &place.bytes()[from..(end - index * PAGE_BYTES).min(PAGE_BYTES)]
        })
    }
}

impl Drop for PinnedRange<'_> {
    /// Returns the slots, so that a thread that once pins many pages does not keep slots from other threads.
    fn drop(&mut self) {
        let several = self.places.len() > 1;
        self.places.clear();
        if several && self.home.is_here() {
            self.paged.pager.with_local(|local| local.give_back_pins(&self.paged.pager));
        }
    }
}

/// A range in place has at most 1/`RANGE_SHARE` of the cache's pages. A few pages are always allowed: the range may
/// take copies.
const RANGE_SHARE: u64 = 8;
const RANGE_LEAST: u64 = 16;

/// The number of times that a call for a pin in a full set looks for a frame, with pauses of a twentieth of a
/// millisecond.
const ROOM_TRIES: u32 = 2000;

/// The number of times that a task reads its pages again without blocking, if they were evicted.
const ROUNDS: u32 = 4;

/// The user's function over the bytes.
pub type InPlace = Box<dyn FnOnce(Result<&PinnedRange<'_>>) + Send>;

/// A task in place while its pages are read. Then it runs on a callback thread. It holds no handle of the file, so that
/// code that receives its result may close and delete the file.
struct InPlaceJob {
    file: OpenRef,
    paged: Arc<Paged>,
    /// The context of its I/O.
    cell: Arc<SharedCell>,
    offset: u64,
    len: usize,
    class: Class,
    rounds: u32,
}

impl InPlaceJob {
    /// Waits until the gate is open, and starts.
    fn enter(self, task: InPlace) {
        let file = self.file.clone();
        match Entered::enter(&file.file) {
            Ok(entered) => self.start(entered, task),
            Err(error) => file.exec().callbacks.call(move || task(Err(error))),
        }
    }

    fn start(self, entered: Entered<'_>, task: InPlace) {
        let entered = EnteredFile::stay(entered, self.file.clone());
        // If the file has become too long for the range meanwhile, `go_on` finds the error.
        let pages = entered.page_numbers(&self.paged, self.offset, self.len).map_or(0..0, |(pages, _)| pages);
        let spans = pages.map(Span::of_page).collect();
        let cell = Arc::clone(&self.cell);
        spawn(&cell, async move {
            let io = entered.exec().spawned(&self.cell);
            // SAFETY: the spans have no memory but frames, which are their fills' until these have ended.
            let touched = unsafe { entered.complete(&io, &self.paged, Want::Touch, spans, self.class).await };
            let callbacks = Arc::clone(&entered.exec().callbacks);
            entered.leave(move || {
                callbacks.run(Box::new(move || match touched {
                    Ok(_full) => self.go_on(task),
                    Err(error) => Pool::call_here(|| task(Err(error))),
                }));
            });
        });
    }

    /// Runs the task when its pages have been read. They may be evicted again if the cache is small and busy.
    fn go_on(mut self, task: InPlace) {
        let (file, paged) = (self.file.clone(), Arc::clone(&self.paged));
        let pages = match file.held_pages(&paged, self.offset, self.len, false) {
            Some(pages) => Ok(pages),
            None if self.rounds > 0 => {
                self.rounds -= 1;
                // Another thread waits at the gate, which may be closed.
                return file.exec().begins.run(Box::new(move || self.enter(task)));
            }
            None => file.pages(&paged, self.offset, self.len, self.class),
        };
        match pages {
            Ok(pages) => Pool::call_here(|| task(Ok(&pages))),
            Err(error) => Pool::call_here(|| task(Err(error))),
        }
    }
}

impl OpenRef {
    /// Calls `task` with the bytes of a range, in place, on a callback thread. Returns the errors of its beginning.
    pub fn submit_in_place(
        &self,
        paged: &Arc<Paged>,
        offset: u64,
        len: usize,
        class: Class,
        task: InPlace,
    ) -> Result<()> {
        self.page_numbers(paged, offset, len)?;
        let cell = self.exec().cell_for(class)?;
        self.exec().callbacks.get_ready()?;
        self.exec().begins.get_ready()?;
        let (file, paged) = (self.clone(), Arc::clone(paged));
        let job = InPlaceJob { file, paged, cell, offset, len, class, rounds: ROUNDS };
        match Entered::enter_if_open(&self.file)? {
            Some(entered) => job.start(entered, task),
            // The gate is closed to a waker (rule 3 of `pools`).
            None => self.exec().begins.run(Box::new(move || job.enter(task))),
        }
        Ok(())
    }
}

/// The pages of a range.
fn numbers(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if len == 0 { 0..0 } else { offset / page..(offset + len).div_ceil(page) }
}

impl OpenFile {
    /// Reads all missing pages by one batch, and waits for them. Skips pages past the file's end. Returns the number of
    /// pages with a full set. A page may be evicted again when this returns.
    pub(super) fn touch(&self, paged: &Paged, pages: impl Iterator<Item = u64>, class: Class) -> Result<usize> {
        let _entered = Entered::enter(&self.file)?;
        let end = self.end_page();
        let spans = pages.filter(|&page| page < end).map(Span::of_page).collect();
        let io = self.exec().blocking();
        // SAFETY: there is no memory.
        Exec::run_to_end(unsafe { self.complete(&io, paged, Want::Touch, spans, class) })
    }

    /// The pages of a range up to the file's end, and the length of that in bytes. An error if there are too many
    /// pages.
    fn page_numbers(&self, paged: &Paged, offset: u64, len: usize) -> Result<(Range<u64>, usize)> {
        let len = self.file.len().saturating_sub(offset).min(len as u64);
        let numbers = numbers(offset, len);
        let most = (paged.pager.pages() / RANGE_SHARE).max(RANGE_LEAST);
        if numbers.end - numbers.start > most {
            let why = format!("with this cache it is over {} bytes at most", most * PAGE_BYTES as u64);
            return Err(Error::invalid(format!("a task over {len} bytes"), why));
        }
        Ok((numbers, len as usize))
    }

    /// Pins a page that is in the cache. Counts it as a hit if `is_hit`.
    pub fn pin_held<'a>(&self, paged: &'a Paged, page: u64, is_hit: bool) -> Result<Option<PinnedPage<'a>>> {
        let left = self.file.len().saturating_sub(page.saturating_mul(PAGE_BYTES as u64));
        if left == 0 {
            let why = format!("file {:?} ends at {} bytes", self.file.name(), self.file.len());
            return Err(Error::invalid(format!("page {page}"), why));
        }
        let (key, hash, cache) = paged.key(page);
        let pager = &paged.pager;
        let held = pager.with_local(|local| local.pin(paged, cache, (key, hash), is_hit))?;
        Ok(held.map(|held| PinnedPage { held, len: left.min(PAGE_BYTES as u64) as usize }))
    }

    /// Reads a page and pins it. If the set is full, flushes it, because perhaps no other call ever flushes the set. If
    /// there is nothing to flush, waits for other operations for a bounded time: pins may fill the set, and the threads
    /// with these pins may wait here as well (rule 5 of the cache).
    #[cold]
    pub fn pin_filled<'a>(&self, paged: &'a Paged, page: u64, class: Class) -> Result<PinnedPage<'a>> {
        let mut tries = 0;
        loop {
            let full = self.touch(paged, std::iter::once(page), class)?;
            if let Some(pin) = self.pin_held(paged, page, false)? {
                return Ok(pin);
            }
            if full > 0 && !self.make_room_for_pin(paged, page)? {
                tries += 1;
                if tries > ROOM_TRIES {
                    return Err(self.set_is_full(paged, page, None));
                }
                self.exec().pause_for_io();
            }
        }
    }

    fn set_is_full(&self, paged: &Paged, page: u64, source: Option<Error>) -> Error {
        let (file, set_pages) = (self.file.name().to_owned(), paged.pager.ways());
        Error::PinnedSet { file, page, set_pages, source: source.map(Box::new) }
    }

    /// Flushes the set of a page. Returns whether it had dirty pages. If none could be written back, returns an error,
    /// so that the caller does not repeat the writes again and again.
    fn make_room_for_pin(&self, paged: &Paged, page: u64) -> Result<bool> {
        let _inside = Entered::enter(&self.file)?;
        match Exec::run_to_end(self.make_room(&self.exec().blocking(), paged, &[page])) {
            (false, Err(error)) => Err(self.set_is_full(paged, page, Some(error))),
            (any, _) => Ok(any),
        }
    }

    /// Pins all pages of a range. `None` if one is not in the cache, or cannot be pinned.
    fn held_pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, is_hit: bool) -> Option<PinnedRange<'a>> {
        let len = self.file.len().saturating_sub(offset).min(len as u64);
        let pin = |page| Some(PagePlace::Pinned(self.pin_held(paged, page, is_hit).ok()??));
        let places = numbers(offset, len).map(pin).collect::<Option<Vec<_>>>()?;
        Some(PinnedRange::new(paged, places, offset as usize % PAGE_BYTES, len as usize))
    }

    /// Pins all pages of a range, and copies those that cannot be pinned. So a thread with pins never waits for other
    /// pins (rule 5 of the cache).
    pub fn pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, class: Class) -> Result<PinnedRange<'a>> {
        let (numbers, len) = self.page_numbers(paged, offset, len)?;
        // Only the first lookup is counted: cached pages as hits, the others as misses.
        if numbers.clone().all(|page| paged.is_there(page))
            && let Some(pages) = self.held_pages(paged, offset, len, true)
        {
            return Ok(pages);
        }
        self.touch(paged, numbers.clone(), class)?;
        // A page may be evicted again, its set may be full of pins, or all slots may be taken. In each case it is
        // copied.
        let pins: Vec<_> = numbers.clone().map(|page| self.pin_held(paged, page, false).ok().flatten()).collect();
        let missing = numbers.zip(&pins).filter(|(_, pin)| pin.is_none()).map(|(page, _)| page).collect();
        let mut copies = self.copy_pages(paged, missing, class)?.into_iter();
        let place = |pin| match pin {
            Some(pin) => Some(PagePlace::Pinned(pin)),
            None => copies.next().map(PagePlace::Copied),
        };
        let places = pins.into_iter().map_while(place).collect();
        Ok(PinnedRange::new(paged, places, offset as usize % PAGE_BYTES, len))
    }

    /// Reads pages up to the file's end. Pages beyond it are empty.
    fn copy_pages(&self, paged: &Paged, pages: Vec<u64>, class: Class) -> Result<Vec<Vec<u8>>> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let _inside = Entered::enter(&self.file)?;
        let left = |page: u64| self.file.len().saturating_sub(page * PAGE_BYTES as u64).min(PAGE_BYTES as u64);
        let mut copies: Vec<Vec<u8>> = pages.iter().map(|&page| vec![0; left(page) as usize]).collect();
        let spans = pages.iter().zip(&mut copies).filter(|(_, copy)| !copy.is_empty());
        let spans =
            spans.map(|(&page, copy)| Span { buf: copy.as_mut_ptr(), len: copy.len() as u16, ..Span::of_page(page) });
        let io = self.exec().blocking();
        // SAFETY: the copies live until this returns, and nothing else has them.
        Exec::run_to_end(unsafe { self.complete(&io, paged, Want::Read, spans.collect(), class) })?;
        Ok(copies)
    }
}
