//! Pins and tasks in place: the cached bytes themselves, without a copy.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::cached::{CHUNK_PAGES, Paged, Seat, Span, Want};
use super::callbacks::{self, Callbacks};
use super::file::{File, Inside};
use super::hold::Hold;
use super::state::FileState;
use crate::cache::{Held, HeldParts};
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::sys::process::Home;

/// A page that stays where it is, and as it is, while this lives: `Deref` to its bytes. What is written to the page meanwhile
/// goes to a new frame and is seen by later reads, not by this.
///
/// It may be passed to other threads and dropped there. How many there may be at a time is bounded, by an eighth of the cache, and by the size
/// of a page set: who asks for one more in a set that is full of pins gets an error, after some time in which none of them has ended.
/// Any number of threads share that room: a thread that pins nothing keeps none of it from the others.
#[derive(Debug)]
pub struct Pin<'a> {
    held: Held<'a>,
    /// Bytes of the page that are within the file.
    len: usize,
}

impl<'a> Pin<'a> {
    #[inline(always)]
    fn into_parts(self) -> (HeldParts<'a>, usize) {
        (self.held.into_parts(), self.len)
    }
}

impl Deref for Pin<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.held.bytes()[..self.len]
    }
}

impl AsRef<[u8]> for Pin<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Where a page of a range is.
#[derive(Debug)]
enum Place<'a> {
    Pinned(Pin<'a>),
    /// A copy, because it could not be pinned.
    Copied(Vec<u8>),
}

impl Place<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Place::Pinned(pin) => pin,
            Place::Copied(bytes) => bytes,
        }
    }
}

/// The cached bytes of a range, page by page: what [`File::read_with`] hands out.
#[derive(Debug)]
pub struct Pages<'a> {
    paged: &'a Paged,
    home: Home,
    places: Vec<Place<'a>>,
    /// Where the range begins in the first page, and its length in bytes: at most to the end of the last one.
    within: usize,
    len: usize,
}

impl<'a> Pages<'a> {
    fn new(paged: &'a Paged, mut places: Vec<Place<'a>>, within: usize, len: usize) -> Pages<'a> {
        // Should the file have been cut meanwhile, it ends with the first page that is short.
        let whole = places.iter().take_while(|place| place.bytes().len() == PAGE_BYTES).count();
        places.truncate(whole + 1);
        let there = places.iter().map(|place| place.bytes().len()).sum::<usize>();
        let len = len.min(there.saturating_sub(within));
        if len == 0 {
            places.clear();
        }
        Pages { paged, home: Home::here(), places, within, len }
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

impl Drop for Pages<'_> {
    /// A thread that pins many pages once does not keep their slots from others.
    fn drop(&mut self) {
        let several = self.places.len() > 1;
        self.places.clear();
        if several && self.home.is_here() {
            self.paged.cached.with_seat(|seat| seat.give_back_pins(&self.paged.cached));
        }
    }
}

impl File {
    /// Pins a page, by its number: bytes `page * 4096` and on. The file's last page may be shorter. Takes as long as a short read
    /// where the page is in the cache, and reads it where it is not.
    #[inline(always)]
    pub fn pin(&self, page: u64) -> Result<Pin<'_>> {
        // In parts, that is in registers, up to the very end. A pin that is put together in memory and read back at once, by wider
        // loads, waits for its stores, and they for all loads before them: that would end the overlap of pins.
        let (held, len) = match self.pin_found(page) {
            Some(pin) => pin.into_parts(),
            None => self.pin_any(page)?.into_parts(),
        };
        Ok(Pin { held: Held::from_parts(held), len })
    }

    /// `pin` for what is not pinned by a look.
    #[inline(never)]
    fn pin_any(&self, page: u64) -> Result<Pin<'_>> {
        callbacks::check_may_block("pin")?;
        let paged = self.paged("pin")?;
        self.state.array().check_open()?;
        // It may have come since.
        match self.state.pin_held(paged, page, true)? {
            Some(pin) => Ok(pin),
            None => {
                self.missed(paged, page * PAGE_BYTES as u64, PAGE_BYTES);
                self.state.pin_filled(paged, page, self.class)
            }
        }
    }

    /// Pins a page that is in the cache.
    #[inline(always)]
    fn pin_found(&self, page: u64) -> Option<Pin<'_>> {
        let paged = self.state.paged.as_ref()?;
        match paged.cached.last_seat_as::<true>() {
            Some(seat) => self.pin_found_in::<true>(paged, seat, page),
            None => self.pin_found_in_any_shape(paged, page),
        }
    }

    #[inline(never)]
    fn pin_found_in_any_shape<'a>(&'a self, paged: &'a Paged, page: u64) -> Option<Pin<'a>> {
        self.pin_found_in::<false>(paged, paged.cached.last_seat()?, page)
    }

    #[inline(always)]
    fn pin_found_in<'a, const DEFAULT: bool>(&'a self, paged: &'a Paged, seat: &Seat, page: u64) -> Option<Pin<'a>> {
        // That there is a key bounds the page's number, and no length is near 2^63.
        let (key, hash, cache) = paged.key_as::<DEFAULT>(page)?;
        let left = self.state.len().wrapping_sub(page * PAGE_BYTES as u64) as i64;
        if left <= 0 {
            return None;
        }
        let held = seat.pin_found::<DEFAULT>(&paged.cached, cache, key, hash)?;
        // Here, where the pin is not made yet: making it and then moving it costs more than all the rest.
        if (page + 1).is_multiple_of(CHUNK_PAGES) {
            self.passed_chunk((page + 1) * PAGE_BYTES as u64);
        }
        Some(Pin { held, len: left.min(PAGE_BYTES as i64) as usize })
    }

    /// The file's part of the cache; an error without one.
    pub(super) fn paged(&self, call: &'static str) -> Result<&Arc<Paged>> {
        self.state.paged.as_ref().ok_or_else(|| {
            let why = "the array was opened without a cache; open it with one (`ArrayOptions::cache_bytes`)";
            Error::invalid(format!("{call} on {:?}", self.name()), why)
        })
    }

    /// Runs a task over the cached bytes of a range, in place: no copy is made. What is missing is read first, all of it in
    /// one batch; what cannot be pinned beside the pins of others is copied. The range may be an eighth of the cache, and 16 pages at least;
    /// where the file ends it is shorter. The task may read, write and pin.
    pub fn read_with<R>(&self, offset: u64, len: usize, task: impl FnOnce(&Pages<'_>) -> R) -> Result<R> {
        callbacks::check_may_block("read_with")?;
        let paged = self.paged("read_with")?;
        self.state.range_end(offset, len as u64)?;
        self.state.array().check_open()?;
        self.look_ahead(offset, len);
        let pages = self.state.pages(paged, offset, len, self.class)?;
        Ok(task(&pages))
    }

    /// As [`File::read_with`], but returns at once; the task runs on a callback thread when the bytes are there. It gets an error
    /// where they could not be read. Inside it calls that block are refused; it may ask for more by `submit` and `submit_with`.
    pub fn submit_with(
        &self,
        offset: u64,
        len: usize,
        task: impl FnOnce(Result<&Pages<'_>>) + Send + 'static,
    ) -> Result<()> {
        self.state.array().check_open()?;
        let paged = Arc::clone(self.paged("submit_with")?);
        self.state.range_end(offset, len as u64)?;
        // Errors that are seen before the task is on its way are the caller's.
        self.state.page_numbers(&paged, offset, len)?;
        self.look_ahead(offset, len);
        self.state.get_ready_to_touch()?;
        let job = Job { file: self.state.clone(), paged, offset, len, class: self.class, rounds: ROUNDS };
        match Inside::enter_if_open(&self.state)? {
            Some(inside) => job.start(inside, Box::new(task)),
            // The gate is closed to a waker (rule 3 of `callbacks`).
            None => self.state.array().callbacks.run(Box::new(move || job.enter(Box::new(task)))),
        }
        Ok(())
    }
}

/// A range in place has one part in so many of the cache's pages at most, or a few, because it may take copies.
const RANGE_SHARE: u64 = 8;
const RANGE_LEAST: u64 = 16;

/// How often who wants a pin in a full set looks whether there is room, a twentieth of a millisecond apart.
const ROOM_TRIES: u32 = 2000;

/// How often the pages of a task that did not stay are brought in again without blocking.
const ROUNDS: u32 = 4;

type Task = Box<dyn FnOnce(Result<&Pages<'_>>) + Send>;

/// A task on its way: its pages are brought in by the drive threads, and then it runs on a callback thread. It holds no handle of
/// the file, so that whoever learns of the end from the task may close the file and delete it.
struct Job {
    file: Hold,
    paged: Arc<Paged>,
    offset: u64,
    len: usize,
    class: Class,
    rounds: u32,
}

impl Job {
    /// Starts when the gate is open.
    fn enter(self, task: Task) {
        let file = self.file.clone();
        match Inside::enter(&file) {
            Ok(inside) => self.start(inside, task),
            Err(error) => Callbacks::call_here(|| task(Err(error))),
        }
    }

    fn start(self, inside: Inside<'_>, task: Task) {
        let (file, paged, class) = (self.file.clone(), Arc::clone(&self.paged), self.class);
        let numbers = numbers(self.offset, self.len as u64);
        file.start_touch(inside, &paged, numbers, class, move |result| match result {
            Ok(()) => self.go_on(task),
            Err(error) => Callbacks::call_here(|| task(Err(error))),
        });
    }

    /// The pages have come in; they may be gone again, where the cache is small and busy.
    fn go_on(mut self, task: Task) {
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
            Ok(pages) => Callbacks::call_here(|| task(Ok(&pages))),
            Err(error) => Callbacks::call_here(|| task(Err(error))),
        }
    }
}

/// The pages of a range.
fn numbers(offset: u64, len: u64) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    if len == 0 { 0..0 } else { offset / page..(offset + len).div_ceil(page) }
}

impl FileState {
    /// The pages of a range as far as it is within the file, and its length. An error if they are too many.
    fn page_numbers(&self, paged: &Paged, offset: u64, len: usize) -> Result<(Range<u64>, usize)> {
        let len = self.len().saturating_sub(offset).min(len as u64);
        let numbers = numbers(offset, len);
        let most = (paged.cached.pages() / RANGE_SHARE).max(RANGE_LEAST);
        if numbers.end - numbers.start > most {
            let why = format!("with this cache it is over {} bytes at most", most * PAGE_BYTES as u64);
            return Err(Error::invalid(format!("a task over {len} bytes"), why));
        }
        Ok((numbers, len as usize))
    }

    /// Pins a page that is in the cache; counted as found there if `is_hit`.
    fn pin_held<'a>(&self, paged: &'a Paged, page: u64, is_hit: bool) -> Result<Option<Pin<'a>>> {
        let left = self.len().saturating_sub(page.saturating_mul(PAGE_BYTES as u64));
        if left == 0 {
            let why = format!("file {:?} ends at {} bytes", self.record.name, self.len());
            return Err(Error::invalid(format!("page {page}"), why));
        }
        let Some((key, hash, cache)) = paged.key(page) else {
            return Err(Error::invalid(format!("page {page}"), "pages beyond 2^40 are not cached, so not pinned"));
        };
        let cached = &paged.cached;
        let held = cached.with_seat(|seat| seat.pin(cached, cache, (key, hash), is_hit))?;
        Ok(held.map(|held| Pin { held, len: left.min(PAGE_BYTES as u64) as usize }))
    }

    /// Brings a page in and pins it. Where its set is full, it makes room there: nobody else may come to flush a set that is full of dirty
    /// pages. Where there is nothing to flush, it waits a little for others: not for ever, as they may be pins, and their owners wait
    /// likewise (rule 5 of the cache).
    #[cold]
    fn pin_filled<'a>(&self, paged: &'a Paged, page: u64, class: Class) -> Result<Pin<'a>> {
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
                self.array().pause_for_io();
            }
        }
    }

    fn set_is_full(&self, paged: &Paged, page: u64, error: Option<&Error>) -> Error {
        let ways = paged.cached.ways();
        let error = error.map_or_else(String::new, |error| format!(" ({error})"));
        let why = format!(
            "all {ways} pages of the set that it belongs to are pinned, or cannot be written back{error}; drop some pins first, \
             read without a pin, or open the array with a larger cache or larger sets (`set_size`)"
        );
        Error::Machine { what: format!("a pin of page {page} of {:?}", self.record.name), why }
    }

    /// Flushes the set of a page; whether there was anything to be flushed. Where nothing can be, drives are not asked again and again.
    fn make_room(&self, paged: &Paged, page: u64) -> Result<bool> {
        let _inside = Inside::enter(self)?;
        match self.flush_sets(paged, &[page]) {
            (false, Err(error)) => Err(self.set_is_full(paged, page, Some(&error))),
            (any, _) => Ok(any),
        }
    }

    /// Pins all pages of a range that are in the cache; `None` if one is not, or cannot be pinned.
    fn held_pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, is_hit: bool) -> Option<Pages<'a>> {
        let len = self.len().saturating_sub(offset).min(len as u64);
        let pin = |page| Some(Place::Pinned(self.pin_held(paged, page, is_hit).ok()??));
        let places = numbers(offset, len).map(pin).collect::<Option<Vec<_>>>()?;
        Some(Pages::new(paged, places, offset as usize % PAGE_BYTES, len as usize))
    }

    /// Pins all pages of a range, and copies those that cannot be pinned: so nobody who has pins waits for others' (rule 5 of the cache).
    fn pages<'a>(&self, paged: &'a Paged, offset: u64, len: usize, class: Class) -> Result<Pages<'a>> {
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
            Some(pin) => Some(Place::Pinned(pin)),
            None => copies.next().map(Place::Copied),
        };
        let places = pins.into_iter().map_while(place).collect();
        Ok(Pages::new(paged, places, offset as usize % PAGE_BYTES, len))
    }

    /// Reads pages as far as they are within the file; those that are not are empty.
    fn copy_pages(&self, paged: &Paged, pages: Vec<u64>, class: Class) -> Result<Vec<Vec<u8>>> {
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let _inside = Inside::enter(self)?;
        let left = |page: u64| self.len().saturating_sub(page * PAGE_BYTES as u64).min(PAGE_BYTES as u64);
        let mut copies: Vec<Vec<u8>> = pages.iter().map(|&page| vec![0; left(page) as usize]).collect();
        let spans = pages.iter().zip(&mut copies).filter(|(_, copy)| !copy.is_empty());
        let spans =
            spans.map(|(&page, copy)| Span { buf: copy.as_mut_ptr(), len: copy.len() as u16, ..Span::of_page(page) });
        // SAFETY: the copies live until this returns, and nobody else has them.
        unsafe { self.complete(paged, Want::Read, spans.collect(), class)? };
        Ok(copies)
    }
}
