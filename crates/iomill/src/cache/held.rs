//! Pinned pages (the rules are in `pins`).

use std::mem::ManuallyDrop;

use super::hints::{Hint, HintBase};
use super::key::{Key, KeyHash};
use super::memory::CacheMemory;
use super::set::Locked;
use super::{Cache, PinBlock, pins};
use crate::drive::PAGE_BYTES;
use crate::sys::barrier;
use crate::sys::sync::AtomicU32;

/// A page that is pinned.
#[derive(Debug)]
pub struct Held<'a> {
    slot: &'a AtomicU32,
    pub(super) page: *const u8,
}

// SAFETY: the page's bytes belong to no thread, and do not change while the slot is full. Any thread may empty the slot
// (rule 3).
unsafe impl Send for Held<'_> {}
// SAFETY: as above; a shared reference gives read access only.
unsafe impl Sync for Held<'_> {}

/// A [`Held`] taken apart: its slot and its page.
pub type HeldParts<'a> = (&'a AtomicU32, *const u8);

/// The error of a pin in a block that was taken away: the thread needs another block.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

impl<'a> Held<'a> {
    /// Takes the pin apart without ending it. [`Held::from_parts`] puts it together again.
    #[inline(always)]
    pub fn into_parts(self) -> HeldParts<'a> {
        let held = ManuallyDrop::new(self);
        (held.slot, held.page)
    }

    /// Puts the parts of a pin together.
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
    /// Pins a page, if it is in the cache, in an empty slot of a block of the calling thread (rules of `pins`).
    ///
    /// # Errors
    /// The block was taken away.
    ///
    /// # Safety
    /// As for [`CacheMemory::pin`].
    pub unsafe fn pin<'a>(
        &'a self,
        key: Key,
        hash: KeyHash,
        (block, slot): (&PinBlock, &AtomicU32),
    ) -> Result<Option<Held<'a>>, Gone> {
        loop {
            let Some(seen) = self.directory.find(key, hash) else { return Ok(None) };
            match self.memory.occupants.look(Hint::of(seen.frame), key) {
                // The frame is changing, or holds another page by now. The caller's miss asks under the set's lock.
                None => return Ok(None),
                Some(proof) if !proof.is_marked() => {
                    self.mark(key, hash);
                    continue;
                }
                Some(_) => {}
            }
            // SAFETY: the caller's promise.
            let pinned = unsafe { self.memory.pin_hinted(Hint::of(seen.frame), key, (block, slot), barrier::light) };
            if pinned.is_some() {
                self.memory.hints.set(key, seen.frame);
                return Ok(pinned);
            }
            if block.is_gone() {
                return Err(Gone);
            }
        }
    }

    #[cold]
    pub(super) fn mark(&self, key: Key, hash: KeyHash) {
        let (_, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash)
            && !Locked::has(set.filling(), way)
        {
            set.set_marked(way, true);
            self.memory.occupants.set_marked(set.frame(way), true);
        }
    }
}

impl CacheMemory {
    /// Pins a page by its hint, if the hint is right and the page's frame is marked already.
    ///
    /// # Safety
    /// The block comes from [`CacheMemory::pin_block`] and is the calling thread's. The slot is an empty one of the
    /// block. `barrier::available` has returned `true`.
    #[inline(always)]
    pub unsafe fn pin<'a>(
        &'a self,
        key: Key,
        (base, page): (HintBase, u64),
        slot: (&PinBlock, &AtomicU32),
    ) -> Option<Held<'a>> {
        // SAFETY: the caller's promise.
        unsafe { self.pin_hinted(self.hints.get(base, page), key, slot, barrier::light_by_kernel) }
    }

    /// Pins a page in the frame of a hint, if the frame holds the page and is marked.
    ///
    /// # Safety
    /// As for [`CacheMemory::pin`].
    #[inline(always)]
    pub(super) unsafe fn pin_hinted<'a>(
        &'a self,
        hint: Hint,
        key: Key,
        (block, slot): (&PinBlock, &AtomicU32),
        light: fn(),
    ) -> Option<Held<'a>> {
        let proof = self.occupants.look_marked(hint, key)?;
        pins::announce(slot, hint, light);
        if !proof.holds() || block.is_gone() {
            pins::end(slot);
            return None;
        }
        // SAFETY: `Pins` keeps a block, gone or not, while a slot in it is full (rule 6), and a pin does not use its
        // slot after it has emptied it. `Pins` lives as long as the memory, which is borrowed for 'a.
        let slot = unsafe { &*std::ptr::from_ref(slot) };
        Some(Held { slot, page: self.bytes.hinted(hint) })
    }
}
