//! Calls without a copy: `File::pin`, `read_with` and `submit_with`. Non-goals: the pins themselves
//! (`pager::in_place`).

use std::sync::Arc;

use super::file::File;
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::exec::users_code;
use crate::pager::Paged;
use crate::pager::ahead::CHUNK_PAGES;

pub use crate::pager::{PinnedPage, PinnedRange};

impl File {
    /// Pins a page, by its number: 4,096 bytes from `page * 4096` on. The file's last page may be shorter. For a cached
    /// page a pin takes as long as a short read. Another page is read first.
    ///
    /// A pin has a price later. The next write to the page, and often its eviction, interrupts all processors that run
    /// threads of this process (`membarrier`), which takes microseconds. So pin pages of data that are in the cache and
    /// are seldom written to, and read others by [`File::read_at`].
    ///
    /// It is an error if the array has no cache, if the page is past the end of the file, or if too many pages are
    /// pinned.
    #[inline(always)]
    pub fn pin(&self, page: u64) -> Result<PinnedPage<'_>> {
        // In parts, which stay in registers up to the end. If a pin were stored to memory, and read back at once by
        // wider loads, these would wait for the stores. The stores wait for all loads before them, so pins would not
        // overlap.
        let parts = match self.pin_found(page) {
            Some(pin) => pin.into_parts(),
            None => self.pin_any(page)?.into_parts(),
        };
        Ok(PinnedPage::from_parts(parts))
    }

    /// `pin` for a page that the first lookup could not pin.
    #[inline(never)]
    fn pin_any(&self, page: u64) -> Result<PinnedPage<'_>> {
        users_code::check_may_block("pin")?;
        let file = self.here()?;
        if !std::ptr::eq(file, self) {
            return file.pin(page);
        }
        let paged = self.paged("pin")?;
        self.state.exec().check_open()?;
        // Another thread may have read the page since.
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
        let pin = self.state.pin_hinted(page)?;
        if (page + 1).is_multiple_of(CHUNK_PAGES) {
            self.passed_chunk((page + 1) * PAGE_BYTES as u64);
        }
        Some(pin)
    }

    /// The file's part of the cache; an error without a cache.
    pub(super) fn paged(&self, call: &'static str) -> Result<&Arc<Paged>> {
        self.state.paged.as_ref().ok_or_else(|| {
            let help = "give the array or the runtime one (`cache_bytes` of its options)";
            Error::invalid(format!("{call} on {:?}", self.name()), "there is no cache").advise(help)
        })
    }

    /// Runs a task over the cached bytes of a range, in place, without a copy. It first reads all missing pages in one
    /// batch. Pages that cannot be pinned because of other pins are copied. `offset` and `len` are in bytes. The range
    /// may be as long as an eighth of the cache, or 16 pages if that is more. At the end of the file it is shorter. The
    /// task may read, write and pin.
    pub fn read_with<R>(&self, offset: u64, len: usize, task: impl FnOnce(&PinnedRange<'_>) -> R) -> Result<R> {
        users_code::check_may_block("read_with")?;
        let file = self.here()?;
        let paged = file.paged("read_with")?;
        file.state.file.range_end(offset, len as u64)?;
        file.state.exec().check_open()?;
        file.look_ahead(offset, len);
        let pages = file.state.pages(paged, offset, len, file.class)?;
        Ok(task(&pages))
    }

    /// [`File::read_with`], but returns at once. The task runs on a callback thread when the bytes have been read, or
    /// gets the error if they could not be read. Inside the task, blocking calls return [`Error::BlockingCall`], and
    /// `submit` and `submit_with` are allowed.
    pub fn submit_with(
        &self,
        offset: u64,
        len: usize,
        task: impl FnOnce(Result<&PinnedRange<'_>>) + Send + 'static,
    ) -> Result<()> {
        let file = self.here()?;
        file.state.exec().check_open()?;
        let paged = file.paged("submit_with")?;
        file.state.file.range_end(offset, len as u64)?;
        file.look_ahead(offset, len);
        file.state.submit_in_place(paged, offset, len, file.class, Box::new(task))
    }
}
