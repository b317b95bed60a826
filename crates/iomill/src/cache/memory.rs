//! [`CacheMemory`], which the caches of all nodes share: the bytes of frames, their occupants, hints, and pins.
//!
//! Goals: a reader that finds a page by its hint needs no set, no policy and no node. Non-goals: which frames are free
//! (`frames`), and which page is where (`directory`).
//!
//! Frames have one numbering over all caches. No frame has number 0: in hints and slots it stands for none.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::hints::{Hint, HintBase, Hints};
use super::key::Key;
use super::occupants::Occupants;
use super::pins::{PinBlock, Pins};
use super::prefetch::prefetch;
use crate::drive::PAGE_BYTES;
use crate::sys::memory::NodePolicy;
use crate::sys::sync::AtomicU64;
pub use bytes::FrameBytes;

/// The number that is the instance of no pager: no thread may read by hints alone.
pub const NO_READERS: u64 = u64::MAX - 1;

/// See the head of this file.
#[derive(Debug)]
pub struct CacheMemory {
    pub(super) bytes: FrameBytes,
    pub(super) occupants: Occupants,
    /// The instance of the pager that lets its threads read by hints alone, or `NO_READERS`.
    pub readers: Arc<AtomicU64>,
    pub(super) hints: Hints,
    pub(super) pins: Pins,
}

impl CacheMemory {
    /// Memory for the frames with numbers below `frames`, and hints for `pages` pages now and at most `pages_max`.
    pub fn new(frames: u32, pages: u64, pages_max: u64) -> io::Result<CacheMemory> {
        CacheMemory::over(FrameBytes::new(frames)?, frames, pages, pages_max)
    }

    pub(super) fn over(bytes: FrameBytes, frames: u32, pages: u64, pages_max: u64) -> io::Result<CacheMemory> {
        let (occupants, hints) = (Occupants::new(frames)?, Hints::new(pages, pages_max)?);
        Ok(CacheMemory { bytes, occupants, readers: Arc::new(AtomicU64::new(NO_READERS)), hints, pins: Pins::new() })
    }

    /// Notes the number of pages that now fit into all caches together.
    pub fn set_pages(&self, pages: u64) -> io::Result<()> {
        self.hints.resize(pages)
    }

    /// The place of a file's first hint.
    pub fn hint_base(&self, file: u32) -> HintBase {
        self.hints.base(file)
    }

    /// Copies bytes of a page out, if its hint is right. If the hint is wrong, `Cache::read` may still find the page.
    ///
    /// # Safety
    /// `within + len` is at most a page. `to` is writable for `len` bytes, and no other thread uses it.
    #[inline(always)]
    pub unsafe fn read(&self, key: Key, (base, page): (HintBase, u64), within: usize, to: *mut u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.read_hinted(self.hints.get(base, page), key, within, to, len) }
    }

    /// Copies bytes out of a frame, if it holds the page (rule 1 of `occupants`).
    ///
    /// # Safety
    /// As for [`CacheMemory::read`].
    #[inline(always)]
    pub unsafe fn read_hinted(&self, hint: Hint, key: Key, within: usize, to: *mut u8, len: usize) -> bool {
        let Some(proof) = self.occupants.look(hint, key) else { return false };
        debug_assert!(within + len <= PAGE_BYTES);
        // SAFETY: the caller's promise.
        unsafe { self.bytes.copy_out(hint, within, to, len) };
        proof.holds()
    }

    /// Prefetches a page's hint.
    #[inline(always)]
    pub fn prefetch_hint(&self, base: HintBase, page: u64) {
        prefetch(std::ptr::from_ref(self.hints.entry(base, page)).cast());
    }

    /// Prefetches bytes and occupant of the frame that a page's hint names. Returns the hint.
    #[inline(always)]
    pub fn prefetch_hinted(&self, base: HintBase, page: u64, within: usize, len: usize) -> Hint {
        let hint = self.hints.get(base, page);
        prefetch(self.occupants.line(hint));
        let start = self.bytes.hinted(hint).wrapping_add(within);
        let mut line = start.wrapping_sub(start as usize % 64);
        // The processor itself prefetches the rest of a long range.
        while line < start.wrapping_add(len.min(256)) {
            prefetch(line);
            line = line.wrapping_add(64);
        }
        hint
    }

    /// A block of pin slots for the calling thread. `None` if the most pages are pinned.
    pub fn pin_block(&self) -> Option<Arc<PinBlock>> {
        self.pins.block()
    }

    /// Takes a thread's block back.
    pub fn give_pin_block(&self, block: Arc<PinBlock>) {
        self.pins.give(block);
    }

    /// The most pins at a time.
    pub fn pins_max(&self) -> u32 {
        self.pins.max()
    }

    /// A word of a frame in a model.
    #[cfg(all(test, iomill_models))]
    pub fn word(&self, frame: u32, index: usize) -> u64 {
        self.bytes.word(frame, index)
    }
}

#[cfg(not(iomill_models))]
mod bytes {
    use super::{Hint, NodePolicy, PAGE_BYTES, Range, io};
    use crate::sys::copy::copy_racing;
    use crate::sys::memory::Slab;

    /// The frames' bytes.
    #[derive(Debug)]
    pub struct FrameBytes(Slab);

    impl FrameBytes {
        pub fn new(most: u32) -> io::Result<FrameBytes> {
            let slab = Slab::new(most as usize * PAGE_BYTES)?;
            // Huge pages only make it faster.
            let _advised = slab.advise_huge();
            Ok(FrameBytes(slab))
        }

        /// The bytes of frames in the caller's slab.
        #[cfg(test)]
        pub fn of(slab: Slab) -> FrameBytes {
            FrameBytes(slab)
        }

        pub fn bind(&self, frames: Range<u32>, node: u32, policy: NodePolicy) -> io::Result<()> {
            self.0.bind(frames.start as usize * PAGE_BYTES..frames.end as usize * PAGE_BYTES, node, policy)
        }

        #[inline]
        pub fn at(&self, frame: u32) -> *mut u8 {
            self.0.base().wrapping_add(frame as usize * PAGE_BYTES)
        }

        /// The start of the frame that a hint names.
        #[inline(always)]
        pub fn hinted(&self, hint: Hint) -> *mut u8 {
            self.0.base().wrapping_add(hint.doubled() * (PAGE_BYTES / 2))
        }

        /// # Safety
        /// No thread uses frames in this range of bytes, and no ring uses its registration of the range.
        pub unsafe fn release(&self, bytes: Range<usize>) -> io::Result<()> {
            // SAFETY: the caller's promise.
            unsafe { self.0.release(bytes) }
        }

        /// # Safety
        /// As for `Frames::copy_out`.
        #[inline]
        pub unsafe fn copy_out(&self, hint: Hint, within: usize, to: *mut u8, len: usize) {
            // SAFETY: the frame is in the slab, which stays mapped, and the caller's promise.
            unsafe { copy_racing(self.hinted(hint).add(within), to, len) };
        }

        /// # Safety
        /// As for `Frames::copy_in`.
        pub unsafe fn copy_in(&self, frame: u32, within: usize, from: *const u8, len: usize) {
            // SAFETY: as above.
            unsafe { copy_racing(from, self.at(frame).add(within), len) };
        }

        /// # Safety
        /// As for `Frames::copy_frame`.
        pub unsafe fn copy(&self, from: u32, to: u32) {
            // SAFETY: two whole frames of the slab.
            unsafe { copy_racing(self.at(from), self.at(to), PAGE_BYTES) };
        }
    }
}

/// For models: a frame has two words, which are copied one by one under loom's watch. Its address is its number.
#[cfg(iomill_models)]
mod bytes {
    use super::{Hint, NodePolicy, Range, io};
    use crate::sys::sync::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug)]
    pub struct FrameBytes(Vec<[AtomicU64; 2]>);

    impl FrameBytes {
        pub fn new(most: u32) -> io::Result<FrameBytes> {
            Ok(FrameBytes((0..most).map(|_| Default::default()).collect()))
        }

        pub fn bind(&self, _frames: Range<u32>, _node: u32, _policy: NodePolicy) -> io::Result<()> {
            Ok(())
        }

        pub fn at(&self, frame: u32) -> *mut u8 {
            std::ptr::without_provenance_mut(frame as usize)
        }

        pub fn hinted(&self, hint: Hint) -> *mut u8 {
            self.at(hint.frame())
        }

        pub fn word(&self, frame: u32, index: usize) -> u64 {
            self.0[frame as usize][index].load(Relaxed)
        }

        pub unsafe fn release(&self, _bytes: Range<usize>) -> io::Result<()> {
            Ok(())
        }

        pub unsafe fn copy_out(&self, hint: Hint, within: usize, to: *mut u8, len: usize) {
            let frame = hint.frame();
            for index in Self::words(within, len) {
                let word = self.word(frame, index);
                // SAFETY: within the caller's `len` bytes.
                unsafe { to.add(index * 8 - within).cast::<u64>().write_unaligned(word) };
            }
        }

        pub unsafe fn copy_in(&self, frame: u32, within: usize, from: *const u8, len: usize) {
            for index in Self::words(within, len) {
                // SAFETY: within the caller's `len` bytes.
                let word = unsafe { from.add(index * 8 - within).cast::<u64>().read_unaligned() };
                self.0[frame as usize][index].store(word, Relaxed);
            }
        }

        pub unsafe fn copy(&self, from: u32, to: u32) {
            (0..2).for_each(|index| self.0[to as usize][index].store(self.word(from, index), Relaxed));
        }

        /// The words that lie wholly in a range.
        fn words(within: usize, len: usize) -> impl Iterator<Item = usize> {
            (0..2).filter(move |index| within <= index * 8 && index * 8 + 8 <= within + len)
        }
    }
}
