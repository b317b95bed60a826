//! Pins and ranges in place: the cached bytes themselves, without a copy.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::Paged;
use super::local::Local;
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, Want};
use crate::cache::{Held, HeldParts};
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::exec::pools::Pool;
use crate::file::Entered;
use crate::sys::process::Home;

/// A page that stays where it is, and as it is, while this lives: `Deref` to its bytes. What is written to the page meanwhile
/// goes to a new frame and is seen by later reads, not by this.
///
/// It may be passed to other threads and dropped there. How many there may be at a time is bounded, by an eighth of the cache, and by the size
/// of a page set: who asks for one more in a set that is full of pins gets an error, after some time in which none of them has ended.
/// Any number of threads share that room: a thread that pins nothing keeps none of it from the others.
#[derive(Debug)]
pub struct PinnedPage<'a> {
    held: Held<'a>,
    /// Bytes of the page that are within the file.
    len: usize,
}

impl<'a> PinnedPage<'a> {
    /// For passing it on in registers.
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

/// Where a page of a range is.
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

/// The cached bytes of a range, page by page: what [`File::read_with`](crate::File::read_with) hands out.
#[derive(Debug)]
pub struct PinnedRange<'a> {
    paged: &'a Paged,
    home: Home,
    places: Vec<PagePlace<'a>>,
    /// Where the range begins in the first page, and its length in bytes: at most to the end of the last one.
    within: usize,
    len: usize,
}

impl<'a> PinnedRange<'a> {
    fn new(paged: &'a Paged, mut places: Vec<PagePlace<'a>>, within: usize, len: usize) -> PinnedRange<'a> {
        // Should the file have been cut meanwhile, it ends with the first page that is short.
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

    /// The bytes, in pieces of up to a page.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.within + self.len;
        self.places.iter().enumerate().map(move |(index, place)| {
            let from = if index == 0 { self.within } else { 0 };
            &place.bytes()[from..(end - index * PAGE_BYTES).min(PAGE_BYTES)]
        })
    }
}

impl Drop for PinnedRange<'_> {
    /// A thread that pins many pages once does not keep their slots from others.
    fn drop(&mut self) {
        let several = self.places.len() > 1;
        self.places.clear();
        if several && self.home.is_here() {
            self.paged.pager.with_local(|local| local.give_back_pins(&self.paged.pager));
        }
    }
}

/// A range in place has one part in so many of the cache's pages at most, or a few, because it may take copies.
const RANGE_SHARE: u64 = 8;
const RANGE_LEAST: u64 = 16;

/// How often who wants a pin in a full set looks whether there is room, a twentieth of a millisecond apart.
const ROOM_TRIES: u32 = 2000;

/// How often the pages of a task that did not stay are brought in again without blocking.
const ROUNDS: u32 = 4;

/// What is called with the bytes.
pub type InPlace = Box<dyn FnOnce(Result<&PinnedRange<'_>>) + Send>;

/// A call in place on its way: its pages are brought in by the drive threads, and then it runs on a callback thread. It holds no handle of
/// the file, so that code which learns of the end from the call may close the file and delete it.
struct Job {
    file: OpenRef,
    paged: Arc<Paged>,
    offset: u64,
    len: usize,
    class: Class,
    rounds: u32,
}

impl Job {
    /// Starts when the gate is open.
    fn enter(self, task: InPlace) {
        let file = self.file.clone();
        match Entered::enter(&file.file) {
            Ok(entered) => self.start(entered, task),
            Err(error) => Pool::call_here(|| task(Err(error))),
        }
    }

    fn start(self, entered: Entered<'_>, task: InPlace) {
        let entered = EnteredFile::stay(entered, &self.file);
        let end = entered.end_page();
        let spans = numbers(self.offset, self.len as u64).filter(|&page| page < end).map(Span::of_page).collect();
        let exec = Arc::clone(self.file.exec());
        let executor = Arc::clone(&exec);
        executor.spawn(async move {
            let io = exec.spawned();
            // SAFETY: the spans have no memory but frames, which are their fills' until these have ended.
            let touched = unsafe { entered.complete(&io, &self.paged, Want::Touch, spans, self.class).await };
            let callbacks = Arc::clone(&exec.callbacks);
            entered.leave(move || {
                callbacks.run(Box::new(move || match touched {
                    Ok(_full) => self.go_on(task),
                    Err(error) => Pool::call_here(|| task(Err(error))),
                }));
            });
        });
    }

    /// The pages have come in; they may be gone again, where the cache is small and busy.
    fn go_on(mut self, task: InPlace) {
        let (file, paged) = (self.file.clone(), Arc::clone(&self.paged));
        let pages = match file.held_pages(&paged, self.offset, self.len, false) {
            Some(pages) => Ok(pages),
            None if self.rounds > 0 => {
                self.rounds -= 1;
                return self.enter(task);
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
    /// Has `task` called with the bytes of a range, in place, on a callback thread. Errors that are seen before it is on its way are the
    /// caller's.
    pub fn submit_in_place(
        &self,
        paged: &Arc<Paged>,
        offset: u64,
        len: usize,
        class: Class,
        task: InPlace,
    ) -> Result<()> {
        self.page_numbers(paged, offset, len)?;
        self.exec().get_ready()?;
        self.exec().callbacks.get_ready()?;
        let job = Job { file: self.clone(), paged: Arc::clone(paged), offset, len, class, rounds: ROUNDS };
        match Entered::enter_if_open(&self.file)? {
            Some(entered) => job.start(entered, task),
            // The gate is closed to a waker (rule 3 of `pools`).
            None => self.exec().callbacks.run(Box::new(move || job.enter(task))),
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
    /// Brings pages in, all that are missing in one batch, and waits for them; those beyond the file's end are left out. How many found
    /// their set full. A page may be gone again when this returns.
    fn touch(&self, paged: &Paged, pages: impl Iterator<Item = u64>, class: Class) -> Result<usize> {
        let _entered = Entered::enter(&self.file)?;
        let end = self.end_page();
        let spans = pages.filter(|&page| page < end).map(Span::of_page).collect();
        let io = self.exec().blocking();
        // SAFETY: there is no memory.
        Exec::run_to_end(unsafe { self.complete(&io, paged, Want::Touch, spans, class) })
    }

    /// Pins a page that is in the cache, if that takes no more than a look.
    #[inline(always)]
    pub fn pin_found<'a, const DEFAULT: bool>(
        &self,
        paged: &'a Paged,
        local: &Local,
        page: u64,
    ) -> Option<PinnedPage<'a>> {
        // That there is a key bounds the page's number, and no length is near 2^63.
        let (key, hash, cache) = paged.key_as::<DEFAULT>(page)?;
        let left = self.file.len().wrapping_sub(page * PAGE_BYTES as u64) as i64;
        if left <= 0 {
            return None;
        }
        let held = local.pin_found::<DEFAULT>(&paged.pager, cache, key, hash)?;
        Some(PinnedPage { held, len: left.min(PAGE_BYTES as i64) as usize })
    }

    /// The pages of a range as far as it is within the file, and its length. An error if they are too many.
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

    /// Pins a page that is in the cache; counted as found there if `is_hit`.
    pub fn pin_held<'a>(&self, paged: &'a Paged, page: u64, is_hit: bool) -> Result<Option<PinnedPage<'a>>> {
        let left = self.file.len().saturating_sub(page.saturating_mul(PAGE_BYTES as u64));
        if left == 0 {
            let why = format!("file {:?} ends at {} bytes", self.file.name(), self.file.len());
            return Err(Error::invalid(format!("page {page}"), why));
        }
        let Some((key, hash, cache)) = paged.key(page) else {
            return Err(Error::invalid(format!("page {page}"), "pages beyond 2^40 are not cached, so not pinned"));
        };
        let pager = &paged.pager;
        let held = pager.with_local(|local| local.pin(pager, cache, (key, hash), is_hit))?;
        Ok(held.map(|held| PinnedPage { held, len: left.min(PAGE_BYTES as u64) as usize }))
    }

    /// Brings a page in and pins it. Where its set is full, it makes room there: nobody else may come to flush a set that is full of dirty
    /// pages. Where there is nothing to flush, it waits a little for others: not for ever, as they may be pins, and their owners wait
    /// likewise (rule 5 of the cache).
    #[cold]
    pub fn pin_filled<'a>(&self, paged: &'a Paged, page: u64, class: Class) -> Result<PinnedPage<'a>> {
        let mut tries = 0;
        loop {
            let full = self.touch(paged, std::iter::once(page), class)?;
            if let Some(pin) = self.pin_held(paged, page, false)? {
                return Ok(pin);
            }
            if full > 0 && !self.make_room(paged, page)? {
                tries += 1;
                if tries > ROOM_TRIES {
                    return Err(self.set_is_full(paged, page, None));
                }
                self.exec().pause_for_io();
            }
        }
    }

    fn set_is_full(&self, paged: &Paged, page: u64, error: Option<&Error>) -> Error {
        let ways = paged.pager.ways();
        let error = error.map_or_else(String::new, |error| format!(" ({error})"));
        let why = format!(
            "all {ways} pages of the set that it belongs to are pinned, or cannot be written back{error}; drop some pins first, \
             read without a pin, or open the array with a larger cache or larger sets (`set_size`)"
        );
        Error::Machine { what: format!("a pin of page {page} of {:?}", self.file.name()), why }
    }

    /// Flushes the set of a page; whether there was anything to be flushed. Where nothing can be, drives are not asked again and again.
    fn make_room(&self, paged: &Paged, page: u64) -> Result<bool> {
        let _inside = Entered::enter(&self.file)?;
        match Exec::run_to_end(self.flush_sets(&self.exec().blocking(), paged, &[page])) {
            (false, Err(error)) => Err(self.set_is_full(paged, page, Some(&error))),
            (any, _) => Ok(any),
        }
    }

    /// Pins all pages of a range that are in the cache; `None` if one is not, or cannot be pinned.
    fn held_pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, is_hit: bool) -> Option<PinnedRange<'a>> {
        let len = self.file.len().saturating_sub(offset).min(len as u64);
        let pin = |page| Some(PagePlace::Pinned(self.pin_held(paged, page, is_hit).ok()??));
        let places = numbers(offset, len).map(pin).collect::<Option<Vec<_>>>()?;
        Some(PinnedRange::new(paged, places, offset as usize % PAGE_BYTES, len as usize))
    }

    /// Pins all pages of a range, and copies those that cannot be pinned: so nobody who has pins waits for others' (rule 5 of the cache).
    pub fn pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, class: Class) -> Result<PinnedRange<'a>> {
        let (numbers, len) = self.page_numbers(paged, offset, len)?;
        // Counted at the first look alone: what is there by hits, what is not by misses.
        if numbers.clone().all(|page| paged.is_there(page))
            && let Some(pages) = self.held_pages(paged, offset, len, true)
        {
            return Ok(pages);
        }
        self.touch(paged, numbers.clone(), class)?;
        // Gone again, in a set full of pins, or all slots are taken: whatever the reason, a copy does.
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

    /// Reads pages as far as they are within the file; those that are not are empty.
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
