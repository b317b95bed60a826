//! Pins and tasks in place: the cached bytes themselves, without a copy.

use std::ops::Deref;

use super::cached::Paged;
use super::callbacks::{self, Callbacks};
use super::file::{File, Inside};
use super::split::Extent;
use crate::cache::Held;
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};

/// A page that stays where it is, and as it is, while this lives: `Deref` to its bytes. What is written to the page meanwhile
/// goes to a new frame and is seen by later reads, not by this.
///
/// It may be passed to other threads and dropped there. How many there may be at a time is bounded, by an eighth of the cache.
#[derive(Debug)]
pub struct Pin<'a> {
    held: Held<'a>,
    /// Bytes of the page that are within the file.
    len: usize,
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

/// The cached bytes of a range, page by page: what [`File::read_with`] hands out.
#[derive(Debug)]
pub struct Pages<'a> {
    pins: Vec<Pin<'a>>,
    /// Where the range begins in the first page, and its length in bytes.
    within: usize,
    len: usize,
}

impl Pages<'_> {
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
        self.pins.iter().enumerate().map(move |(index, pin)| {
            let from = if index == 0 { self.within } else { 0 };
            &pin[from..(end - index * PAGE_BYTES).min(PAGE_BYTES)]
        })
    }
}

impl File {
    /// Pins a page, by its number: bytes `page * 4096` and on. The file's last page may be shorter. Takes as long as a short read
    /// where the page is in the cache, and reads it where it is not.
    #[inline(always)]
    pub fn pin(&self, page: u64) -> Result<Pin<'_>> {
        match self.pin_found(page) {
            Some(pin) => Ok(pin),
            None => self.pin_any(page),
        }
    }

    /// `pin` for what is not pinned by a look.
    #[inline(never)]
    fn pin_any(&self, page: u64) -> Result<Pin<'_>> {
        callbacks::check_may_block("pin")?;
        let paged = self.paged("pin")?;
        self.state.array().check_open()?;
        self.pin_page(paged, page)
    }

    /// Pins a page that is in the cache.
    #[inline(always)]
    fn pin_found(&self, page: u64) -> Option<Pin<'_>> {
        let paged = self.state.paged.as_ref()?;
        if paged.cached.is_default() {
            self.pin_found_in::<true>(paged, page)
        } else {
            self.pin_found_in_any_shape(paged, page)
        }
    }

    #[inline(never)]
    fn pin_found_in_any_shape<'a>(&'a self, paged: &'a Paged, page: u64) -> Option<Pin<'a>> {
        self.pin_found_in::<false>(paged, page)
    }

    #[inline(always)]
    fn pin_found_in<'a, const DEFAULT: bool>(&'a self, paged: &'a Paged, page: u64) -> Option<Pin<'a>> {
        let left = self.state.len().checked_sub(page.checked_mul(PAGE_BYTES as u64)?).filter(|&left| left > 0)?;
        let (key, hash, cache) = paged.key_as::<DEFAULT>(page)?;
        let held = paged.cached.last_seat()?.pin_found::<DEFAULT>(&paged.cached, cache, key, hash)?;
        Some(Pin { held, len: left.min(PAGE_BYTES as u64) as usize })
    }

    #[inline(never)]
    fn pin_page<'a>(&'a self, paged: &'a Paged, page: u64) -> Result<Pin<'a>> {
        loop {
            let start = page.saturating_mul(PAGE_BYTES as u64);
            let left = self.state.len().saturating_sub(start);
            if left == 0 {
                let what = format!("page {page}");
                let why = format!("file {:?} ends at {} bytes", self.name(), self.state.len());
                return Err(Error::invalid(what, why));
            }
            let Some((key, hash, cache)) = paged.key(page) else {
                return Err(Error::invalid(format!("page {page}"), "pages beyond 2^40 are not cached, so not pinned"));
            };
            let cached = &paged.cached;
            if let Some(held) = cached.with_seat(|seat| seat.pin(cached, cache, key, hash))? {
                return Ok(Pin { held, len: left.min(PAGE_BYTES as u64) as usize });
            }
            self.fill_page(paged, start, left)?;
        }
    }

    /// The file's part of the cache; an error without one.
    fn paged(&self, call: &'static str) -> Result<&Paged> {
        self.state.paged.as_deref().ok_or_else(|| {
            let why = "the array was opened without a cache; open it with one (`ArrayOptions::cache_bytes`)";
            Error::invalid(format!("{call} on {:?}", self.name()), why)
        })
    }

    /// Brings a page in, or finds its set full, and then makes room there: nobody else may come to flush a set that is full of dirty
    /// pages. Where there is nothing to flush, it waits a little for pins and fills to end.
    #[cold]
    fn fill_page(&self, paged: &Paged, start: u64, left: u64) -> Result<()> {
        let mut byte = 0u8;
        debug_assert!(left > 0);
        let _inside = Inside::enter(&self.state)?;
        if start >= self.state.len() {
            return Ok(());
        }
        let before = paged.cached.bypasses();
        // SAFETY: the byte is ours for the whole call.
        unsafe { self.gather_inside(paged, std::iter::once(Extent { offset: start, len: 1, buf: &raw mut byte })) }?;
        if paged.cached.bypasses() != before && !self.state.flush_sets(paged, &[start / PAGE_BYTES as u64])? {
            self.state.array().pause_for_io();
        }
        Ok(())
    }

    /// Runs a task over the cached bytes of a range, in place: no copy is made. What is missing is read first, all of it in
    /// one batch. The range may be as long as pins are allowed; where the file ends it is shorter. The task may read, write and pin.
    pub fn read_with<R>(&self, offset: u64, len: usize, task: impl FnOnce(&Pages<'_>) -> R) -> Result<R> {
        callbacks::check_may_block("read_with")?;
        self.paged("read_with")?;
        self.state.range_end(offset, len as u64)?;
        let pages = self.pages(offset, len)?;
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
        self.paged("submit_with")?;
        self.state.range_end(offset, len as u64)?;
        let file = self.clone();
        let callbacks = std::sync::Arc::clone(&self.state.array().callbacks);
        callbacks.run(Box::new(move || match file.pages(offset, len) {
            Ok(pages) => Callbacks::call_here(|| task(Ok(&pages))),
            Err(error) => Callbacks::call_here(|| task(Err(error))),
        }));
        Ok(())
    }

    /// Pins all pages of a range.
    fn pages(&self, offset: u64, len: usize) -> Result<Pages<'_>> {
        let paged = self.paged("read_with")?;
        let len = self.state.len().saturating_sub(offset).min(len as u64) as usize;
        if len == 0 {
            return Ok(Pages { pins: Vec::new(), within: 0, len });
        }
        let page = PAGE_BYTES as u64;
        let numbers = offset / page..(offset + len as u64).div_ceil(page);
        if let Err(most) = paged.check_pins(numbers.clone()) {
            let why = format!("this cache pins {} bytes at a time", most * page);
            return Err(Error::invalid(format!("a task over {len} bytes"), why));
        }
        // One byte of each page asks for all that is missing in one batch.
        let mut bytes = vec![0u8; (numbers.end - numbers.start) as usize];
        {
            let _inside = Inside::enter(&self.state)?;
            let end = self.state.len();
            let extents = numbers.clone().zip(&mut bytes).map(|(number, byte)| (number * page, byte));
            let extents = extents.filter(|(start, _)| *start < end);
            let extents = extents.map(|(offset, byte)| Extent { offset, len: 1, buf: byte });
            // SAFETY: the bytes are ours for the whole call.
            unsafe { self.gather_inside(paged, extents) }?;
        }
        let pins = numbers.map(|number| self.pin_page(paged, number)).collect::<Result<Vec<_>>>()?;
        Ok(Pages { pins, within: (offset % page) as usize, len })
    }
}
