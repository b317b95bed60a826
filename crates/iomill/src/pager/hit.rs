//! [`HitPath`]: the path of a hit, by its page's hint alone.
//!
//! Goals: the fewest instructions. The fewer they are, the more of the next reads fit into the processor's look-ahead,
//! where their cache misses overlap. So the path is inlined into the user's loop, and each pointer is loaded once:
//! after a load of an atomic the compiler loads pointers again. `cargo xtask budget` counts the instructions.
//! Non-goals: pages that are not found (`read`, `in_place`).

use super::in_place::PinnedPage;
use super::local::Local;
use super::{OpenFile, Paged, Pager};
use crate::cache::CacheMemory;
use crate::counters::Counter;
use crate::drive::PAGE_BYTES;
use crate::sys::sync::Ordering;

/// The state that a call needs to find its page by a hint.
#[derive(Clone, Copy)]
pub struct HitPath<'a> {
    paged: &'a Paged,
    memory: &'a CacheMemory,
    local: &'a Local,
}

impl OpenFile {
    /// The path of a hit for the calling thread. `None` in a thread's first call, without a cache, after the array was
    /// closed, inside a callback, and if pages of other nodes are read by message. One comparison checks all of these.
    #[inline(always)]
    pub fn hit_path(&self) -> Option<HitPath<'_>> {
        // Relaxed: the value only says whether the array is open, and a call may see it late. SAFETY: `readers` holds
        // the instance of this file's pager, which is borrowed for as long, or one that no local has.
        let local = unsafe { Pager::last_local_if(self.readers.load(Ordering::Relaxed)) }?;
        // SAFETY: `readers` holds the instance of a pager only if there is one.
        let paged = unsafe { self.paged.as_deref().unwrap_unchecked() };
        Some(HitPath { paged, memory: &paged.memory, local })
    }

    /// Pins a cached page, if its hint is enough.
    #[inline(always)]
    pub fn pin_hinted(&self, page: u64) -> Option<PinnedPage<'_>> {
        const LAST_BYTE: u64 = PAGE_BYTES as u64 - 1;
        let HitPath { paged, memory, local } = self.hit_path()?;
        let len = self.file.len();
        // `div_ceil` would take seven instructions. No file is so long that the sum overflows.
        if page >= (len + LAST_BYTE) / PAGE_BYTES as u64 {
            return None;
        }
        let held = local.pin_hinted(paged, memory, paged.zero.page_after(page), page)?;
        Some(PinnedPage::new(held, (len - page * PAGE_BYTES as u64).min(PAGE_BYTES as u64) as usize))
    }
}

impl HitPath<'_> {
    /// Copies a range within one cached page, if the page's hint is right.
    ///
    /// # Safety
    /// The page is in the file. `within + len` is at most a page. `to` is writable for `len` bytes, and nothing else
    /// uses them.
    #[inline(always)]
    pub unsafe fn read(self, page: u64, within: usize, to: *mut u8, len: usize) -> bool {
        let HitPath { paged, memory, local } = self;
        let key = paged.zero.page_after(page);
        // SAFETY: the caller's promise.
        let copied = unsafe { memory.read(key, (paged.hints, page), within, to, len) };
        if copied {
            local.hit_and(paged, key, (Counter::BytesRead, len as u64));
        }
        copied
    }
}
