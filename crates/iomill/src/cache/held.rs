//! Pinning pages (the rules are in `pins`).

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::key::{Key, KeyHash};
use super::set::{Locked, Seen};
use super::{Cache, PinBlock, pins};
use crate::drive::PAGE_BYTES;
use crate::sys::sync::AtomicU32;

/// A page that is pinned.
#[derive(Debug)]
pub struct Held<'a> {
    slot: &'a AtomicU32,
    pub(super) page: *const u8,
}

// SAFETY: the page's bytes belong to no thread, and do not change while the slot is full. Any thread may empty the slot (rule 3).
unsafe impl Send for Held<'_> {}
// SAFETY: as above; a shared reference gives read access only.
unsafe impl Sync for Held<'_> {}

/// A [`Held`] taken apart: its slot and its page.
pub type HeldParts<'a> = (&'a AtomicU32, *const u8);

/// The block of slots was taken away from its thread, which needs another one.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

impl<'a> Held<'a> {
    /// Takes the pin apart. It ends only after [`Held::from_parts`] has put it together again.
    #[inline(always)]
    pub fn into_parts(self) -> HeldParts<'a> {
        let held = ManuallyDrop::new(self);
        (held.slot, held.page)
    }

    /// Puts a pin together that was taken apart.
    #[inline(always)]
    pub fn from_parts((slot, page): HeldParts<'a>) -> Held<'a> {
        Held { slot, page }
    }

    /// The page's bytes, which never change while this value lives.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a whole frame in the slab, which outlives the slot. The frame is pinned, and pinned frames are
        // neither written to nor reused (rule 2). So it is immutable while the slot holds its number, and the slot
        // holds it while `self` lives.
        unsafe { std::slice::from_raw_parts(self.page, PAGE_BYTES) }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        pins::end(self.slot);
    }
}

impl Cache {
    /// A block of pin slots for the calling thread. `None` if the most pages that may be pinned are pinned.
    pub fn pin_block(&self) -> Option<Arc<PinBlock>> {
        self.frames.pins.block()
    }

    /// Takes a thread's block back.
    pub fn give_pin_block(&self, block: Arc<PinBlock>) {
        self.frames.pins.give(block);
    }

    /// Pages that may be pinned at a time.
    pub fn pins_max(&self) -> u32 {
        self.frames.pins.max()
    }

    /// Pins a page, if it is there, in an empty slot of a block of the calling thread (rules of `pins`). Says where the page was.
    /// An error means that the block was taken away.
    ///
    /// # Safety
    /// This cache gave the block to the calling thread ([`Cache::pin_block`]), and the slot is in it.
    pub unsafe fn pin<'a>(
        &'a self,
        key: Key,
        hash: KeyHash,
        (block, slot): (&PinBlock, &AtomicU32),
    ) -> Result<Option<(Held<'a>, Seen<'a>)>, Gone> {
        loop {
            let Some(seen) = self.directory.find(key, hash) else { return Ok(None) };
            if !seen.is_marked() {
                self.mark(key, hash);
                continue;
            }
            // SAFETY: the caller's promise.
            let pinned = unsafe { self.pin_found::<false>(key, hash, (block, slot)) };
            if pinned.is_some() {
                return Ok(pinned);
            }
            if block.is_gone() {
                return Err(Gone);
            }
        }
    }

    /// Pins a page that is there and marked already.
    ///
    /// # Safety
    /// As for [`Cache::pin`].
    #[inline(always)]
    pub unsafe fn pin_found<'a, const DEFAULT: bool>(
        &'a self,
        key: Key,
        hash: KeyHash,
        (block, slot): (&PinBlock, &AtomicU32),
    ) -> Option<(Held<'a>, Seen<'a>)> {
        let seen = self.directory.set_as::<DEFAULT>(self.directory.set_index(hash)).find(key, hash)?;
        if !seen.is_marked() {
            return None;
        }
        pins::announce(slot, seen.frame());
        // One branch for both.
        if !seen.is_still() | block.is_gone() {
            pins::end(slot);
            return None;
        }
        // SAFETY: `Pins` keeps a block, gone or not, as long as a slot in it is full (rule 6). The pin does not use the slot
        // after it has emptied it. `Pins` is the cache's, which is borrowed for 'a.
        let slot = unsafe { &*std::ptr::from_ref(slot) };
        Some((Held { slot, page: self.frames.at(seen.frame()) }, seen))
    }

    #[cold]
    pub(super) fn mark(&self, key: Key, hash: KeyHash) {
        let (_, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash)
            && !Locked::has(set.filling(), way)
        {
            set.set_marked(way, true);
        }
    }
}
