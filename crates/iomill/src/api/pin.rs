//! Pins and tasks in place.

use std::sync::Arc;

use super::file::File;
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::exec::pools;
use crate::pager::Paged;
use crate::pager::ahead::CHUNK_PAGES;
use crate::pager::local::Local;

pub use crate::pager::{PinnedPage, PinnedRange};

impl File {
    /// Pins a page, by its number: bytes `page * 4096` and on. The file's last page may be shorter. Takes as long as a short read
    /// where the page is in the cache, and reads it where it is not.
    #[inline(always)]
    pub fn pin(&self, page: u64) -> Result<PinnedPage<'_>> {
        // In parts, that is in registers, up to the very end. A pin that is put together in memory and read back at once, by wider
        // loads, waits for its stores, and they for all loads before them: that would end the overlap of pins.
        let parts = match self.pin_found(page) {
            Some(pin) => pin.into_parts(),
            None => self.pin_any(page)?.into_parts(),
        };
        Ok(PinnedPage::from_parts(parts))
    }

    /// `pin` for what is not pinned by a look.
    #[inline(never)]
    fn pin_any(&self, page: u64) -> Result<PinnedPage<'_>> {
        pools::check_may_block("pin")?;
        let paged = self.paged("pin")?;
        self.state.exec().check_open()?;
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
    fn pin_found(&self, page: u64) -> Option<PinnedPage<'_>> {
        let paged = self.state.paged.as_ref()?;
        match paged.pager.last_local_as::<true>() {
            Some(local) => self.pin_found_in::<true>(paged, local, page),
            None => self.pin_found_in_any_shape(paged, page),
        }
    }

    #[inline(never)]
    fn pin_found_in_any_shape<'a>(&'a self, paged: &'a Paged, page: u64) -> Option<PinnedPage<'a>> {
        self.pin_found_in::<false>(paged, paged.pager.last_local()?, page)
    }

    #[inline(always)]
    fn pin_found_in<'a, const DEFAULT: bool>(
        &'a self,
        paged: &'a Paged,
        local: &Local,
        page: u64,
    ) -> Option<PinnedPage<'a>> {
        let pin = self.state.pin_found::<DEFAULT>(paged, local, page)?;
        if (page + 1).is_multiple_of(CHUNK_PAGES) {
            self.passed_chunk((page + 1) * PAGE_BYTES as u64);
        }
        Some(pin)
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
    pub fn read_with<R>(&self, offset: u64, len: usize, task: impl FnOnce(&PinnedRange<'_>) -> R) -> Result<R> {
        pools::check_may_block("read_with")?;
        let paged = self.paged("read_with")?;
        self.state.file.range_end(offset, len as u64)?;
        self.state.exec().check_open()?;
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
        task: impl FnOnce(Result<&PinnedRange<'_>>) + Send + 'static,
    ) -> Result<()> {
        self.state.exec().check_open()?;
        let paged = self.paged("submit_with")?;
        self.state.file.range_end(offset, len as u64)?;
        self.look_ahead(offset, len);
        self.state.submit_in_place(paged, offset, len, self.class, Box::new(task))
    }
}
