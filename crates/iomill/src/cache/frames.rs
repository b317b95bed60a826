//! The memory of the pages: a slab of frames. Some are free, and some wait until a pin ends.

use std::io;
use std::ops::Range;

use super::pins::Pins;
use crate::drive::PAGE_BYTES;
use crate::sys::memory::NodePolicy;
use crate::sys::sync::{Mutex, lock};
use memory::FrameMemory;

/// All frames of a cache.
#[derive(Debug)]
pub struct Frames {
    memory: FrameMemory,
    state: Mutex<FreeFrames>,
    /// The largest number of frames that there may ever be.
    most: u32,
    pub pins: Pins,
}

#[derive(Debug)]
struct FreeFrames {
    /// Only frames below this number may be taken.
    limit: u32,
    /// Frames from here on have never been used, or their memory was given back since. So memory that is not needed is
    /// not touched.
    fresh: u32,
    /// Free frames below `fresh`. All are below `limit`.
    free: Vec<u32>,
    /// Free frames at or above `limit`, which are not taken.
    retired: Vec<u32>,
    /// Frames that left their set while a pin may have held them.
    limbo: Vec<u32>,
}

impl Frames {
    /// Room for `limit` frames now and `most` ever. Up to `pins_max` of them may be pinned at a time.
    pub fn new(limit: u32, most: u32, pins_max: u32) -> io::Result<Frames> {
        Ok(Frames::over(FrameMemory::new(most)?, limit, most, pins_max))
    }

    fn over(memory: FrameMemory, limit: u32, most: u32, pins_max: u32) -> Frames {
        let state = FreeFrames { limit, fresh: 0, free: Vec::new(), retired: Vec::new(), limbo: Vec::new() };
        Frames { memory, state: Mutex::new(state), most, pins: Pins::new(pins_max) }
    }

    /// Where the slab is: start and length in bytes.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.memory.at(0), self.most as usize * PAGE_BYTES)
    }

    /// Binds memory that is untouched so far to a node.
    pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
        self.memory.bind(node, policy)
    }

    /// A frame's memory.
    #[inline]
    pub fn at(&self, frame: u32) -> *mut u8 {
        self.memory.at(frame)
    }

    /// A word of a frame in a model.
    #[cfg(all(test, iomill_models))]
    pub fn word(&self, frame: u32, index: usize) -> u64 {
        self.memory.word(frame, index)
    }

    /// A free frame.
    pub fn take(&self) -> Option<u32> {
        let mut state = lock(&self.state);
        if let Some(frame) = state.free.pop() {
            return Some(frame);
        }
        if state.fresh < state.limit {
            state.fresh += 1;
            return Some(state.fresh - 1);
        }
        if state.limbo.is_empty() {
            return None;
        }
        self.end_limbo(&mut state);
        state.free.pop()
    }

    /// Frees the frames in limbo that no pin holds any more.
    fn end_limbo(&self, state: &mut FreeFrames) {
        let mut waiting = std::mem::take(&mut state.limbo);
        let pinned = self.pins.pinned();
        waiting.retain(|frame| {
            let stays = pinned.contains(*frame);
            if !stays {
                self.put(state, *frame);
            }
            stays
        });
        state.limbo = waiting;
    }

    fn put(&self, state: &mut FreeFrames, frame: u32) {
        if frame < state.limit {
            state.free.push(frame);
        } else {
            state.retired.push(frame);
        }
    }

    /// Frames that may be taken: those below it.
    pub fn limit(&self) -> u32 {
        lock(&self.state).limit
    }

    /// Changes that. A frame at or above it stays where it is in use, and is not taken again once it is free.
    pub fn set_limit(&self, limit: u32) {
        debug_assert!(limit <= self.most);
        let mut state = lock(&self.state);
        state.limit = limit;
        let mut all = std::mem::take(&mut state.free);
        all.append(&mut state.retired);
        (state.free, state.retired) = all.into_iter().partition(|frame| *frame < limit);
    }

    /// Gives the memory of frames above the limit back to the system. It releases whole chunks in which all frames are
    /// above the limit, and returns the number of bytes.
    /// It calls `let_go` with each range, in bytes, before it releases the range. `let_go` ensures that no ring begins
    /// to use the range any more. The limit does not change meanwhile.
    pub fn release(&self, chunk_bytes: usize, let_go: impl Fn(Range<usize>)) -> io::Result<u64> {
        let ranges = self.idle_chunks((chunk_bytes / PAGE_BYTES) as u32);
        let mut released = 0;
        for range in ranges {
            let bytes = range.start as usize * PAGE_BYTES..range.end as usize * PAGE_BYTES;
            let_go(bytes.clone());
            released += bytes.len() as u64;
            // SAFETY: the frames are above the limit and free. So they are in no set, not pinned, not being filled, and
            // no thread takes them. A reader that looked at a set before it changed copies by `copy_racing`, and does
            // not believe what it copied. No ring uses its registration of the range for an I/O that begins from now on
            // (`let_go`). Every I/O that began in these frames has ended.
            unsafe { self.memory.release(bytes) }?;
        }
        Ok(released)
    }

    /// Ends what limbo it can. Then it finds the chunks with only retired frames, and joins chunks that are next to
    /// each other into one range. The last frames count as fresh from now on if they are retired.
    fn idle_chunks(&self, chunk: u32) -> Vec<Range<u32>> {
        let mut state = lock(&self.state);
        self.end_limbo(&mut state);
        state.retired.sort_unstable();
        let mut ranges: Vec<Range<u32>> = Vec::new();
        let first = state.limit.div_ceil(chunk) * chunk;
        for start in (first..state.fresh).step_by(chunk as usize) {
            let end = start.saturating_add(chunk).min(self.most);
            let used_end = end.min(state.fresh);
            let retired = |frame| state.retired.partition_point(|retired| *retired < frame) as u32;
            if retired(used_end) - retired(start) < used_end - start {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        while state.retired.last().is_some_and(|frame| frame + 1 == state.fresh) {
            state.retired.pop();
            state.fresh -= 1;
        }
        ranges
    }

    /// Takes back a frame that no thread can reach any more.
    pub fn give(&self, frame: u32) {
        let mut state = lock(&self.state);
        self.put(&mut state, frame);
    }

    /// Takes back a frame that left its set and may still be pinned.
    pub fn give_marked(&self, frame: u32) {
        lock(&self.state).limbo.push(frame);
    }

    /// Copies out of a frame that may be changing (see [`copy_racing`]).
    ///
    /// # Safety
    /// `within + len` is at most a page. `to` is writable for `len` bytes, and no other thread uses it.
    #[inline(always)]
    pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
        debug_assert!(frame < self.most && within + len <= PAGE_BYTES);
        // SAFETY: the caller's promise; frames are changed by `copy_in` and the kernel only.
        unsafe { self.memory.copy_out(frame, within, to, len) };
    }

    /// Copies into a frame that other threads may be reading.
    ///
    /// # Safety
    /// `within + len` is at most a page, `from` is readable for `len` bytes, and no other thread writes to the frame.
    pub unsafe fn copy_in(&self, frame: u32, within: usize, from: *const u8, len: usize) {
        debug_assert!(frame < self.most && within + len <= PAGE_BYTES);
        // SAFETY: as above.
        unsafe { self.memory.copy_in(frame, within, from, len) };
    }

    /// Copies a whole frame into another.
    ///
    /// # Safety
    /// No other thread writes to either frame.
    pub unsafe fn copy_frame(&self, from: u32, to: u32) {
        // SAFETY: both are frames, and the caller's promise.
        unsafe { self.memory.copy(from, to) };
    }

    /// Zeroes part of a frame that other threads may be reading.
    ///
    /// # Safety
    /// `within + len` is at most a page, and no other thread writes to the frame.
    pub unsafe fn zero(&self, frame: u32, within: usize, len: usize) {
        static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        // SAFETY: the caller's promise, and `ZEROES` is long enough.
        unsafe { self.copy_in(frame, within, ZEROES.as_ptr(), len) };
    }
}

#[cfg(not(iomill_models))]
mod memory {
    use super::{NodePolicy, PAGE_BYTES, Range, io};
    use crate::cache::copy::copy_racing;
    use crate::sys::memory::Slab;

    /// The frames' bytes.
    #[derive(Debug)]
    pub struct FrameMemory(pub(super) Slab);

    impl FrameMemory {
        pub fn new(most: u32) -> io::Result<FrameMemory> {
            let slab = Slab::new(most as usize * PAGE_BYTES)?;
            // Without huge pages it works as well, only slower.
            let _advised = slab.advise_huge();
            Ok(FrameMemory(slab))
        }

        pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
            self.0.bind(0..self.0.len(), node, policy)
        }

        #[inline]
        pub fn at(&self, frame: u32) -> *mut u8 {
            self.0.base().wrapping_add(frame as usize * PAGE_BYTES)
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
        pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
            // SAFETY: the frame is in the slab, which stays mapped, and the caller's promise.
            unsafe { copy_racing(self.at(frame).add(within), to, len) };
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

/// For models: the first two words of each page, copied one by one, which loom watches. A frame's address is its
/// number.
#[cfg(iomill_models)]
mod memory {
    use super::{NodePolicy, io};
    use crate::sys::sync::{AtomicU64, Ordering::Relaxed};

    #[derive(Debug)]
    pub struct FrameMemory(Vec<[AtomicU64; 2]>);

    impl FrameMemory {
        pub fn new(most: u32) -> io::Result<FrameMemory> {
            Ok(FrameMemory((0..most).map(|_| Default::default()).collect()))
        }

        pub fn bind(&self, _node: u32, _policy: NodePolicy) -> io::Result<()> {
            Ok(())
        }

        pub fn at(&self, frame: u32) -> *mut u8 {
            std::ptr::without_provenance_mut(frame as usize)
        }

        pub fn word(&self, frame: u32, index: usize) -> u64 {
            self.0[frame as usize][index].load(Relaxed)
        }

        pub unsafe fn release(&self, _bytes: std::ops::Range<usize>) -> io::Result<()> {
            Ok(())
        }

        pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
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

        /// The words that lie in a range completely.
        fn words(within: usize, len: usize) -> impl Iterator<Item = usize> {
            (0..2).filter(move |index| within <= index * 8 && index * 8 + 8 <= within + len)
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::sys::memory::Slab;

    /// The last chunk ends with the last frame, in the midst of a page where the kernel's pages are larger than a frame.
    #[test]
    fn the_last_chunk_goes_whatever_the_kernels_pages() {
        const FRAMES: u32 = 1001;
        for page in [PAGE_BYTES, 16 << 10, 64 << 10] {
            let slab = Slab::of_pages(FRAMES as usize * PAGE_BYTES, page).unwrap();
            let frames = Frames::over(FrameMemory(slab), FRAMES, FRAMES, 1);
            let all: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
            assert_eq!(all.len(), FRAMES as usize);
            frames.set_limit(10);
            all.into_iter().for_each(|frame| frames.give(frame));
            let let_go = std::cell::Cell::new(0..0);
            let released = frames.release(2 << 20, |range| let_go.set(range)).unwrap();
            let expected = 512 * PAGE_BYTES..FRAMES as usize * PAGE_BYTES;
            assert_eq!((released, let_go.take()), (expected.len() as u64, expected), "pages of {page} bytes");
        }
    }
}
