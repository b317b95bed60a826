//! The frames of one cache, a range of the numbers that all caches share: which are free, and which wait for the end of
//! a pin.
//!
//! A free frame counts as changing (rule 2 of `occupants`).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::hints::Hint;
use super::memory::CacheMemory;
use crate::drive::PAGE_BYTES;
use crate::sys::memory::NodePolicy;
use crate::sys::sync::{Mutex, lock};

/// The number of frames per pin: an eighth of the frames may be pinned.
const PIN_SHARE: u32 = 8;

/// All frames of a cache.
#[derive(Debug)]
pub struct Frames {
    memory: Arc<CacheMemory>,
    /// The numbers. The first one is not used, so that no frame has number 0.
    range: Range<u32>,
    state: Mutex<FreeFrames>,
}

#[derive(Debug)]
struct FreeFrames {
    /// Only frames below this number may be taken.
    limit: u32,
    /// The first frame of those at the end that are free and have no memory: they were never used, or their memory was
    /// released. They are taken last, so that memory is not touched without need.
    fresh: u32,
    /// Free frames below `fresh`, all below `limit`.
    free: Vec<u32>,
    /// Free frames below `fresh` that are at or above `limit`. They are not taken.
    retired: Vec<u32>,
    /// Frames that left their set while they may have been pinned.
    limbo: Vec<u32>,
}

impl Frames {
    /// The frames of this range of numbers. Those below `limit` may be taken.
    pub fn new(memory: &Arc<CacheMemory>, range: Range<u32>, limit: u32) -> Frames {
        let fresh = range.start + 1;
        memory.pins.change_max(0, (limit - range.start) / PIN_SHARE);
        let state = FreeFrames { limit, fresh, free: Vec::new(), retired: Vec::new(), limbo: Vec::new() };
        Frames { memory: Arc::clone(memory), range, state: Mutex::new(state) }
    }

    /// The first number of the range.
    pub fn start(&self) -> u32 {
        self.range.start
    }

    /// The memory of all frames: start and length in bytes.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.at(self.range.start), self.range.len() * PAGE_BYTES)
    }

    /// Binds the frames' memory, untouched so far, to a node.
    pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
        self.memory.bytes.bind(self.range.clone(), node, policy)
    }

    /// A frame's memory.
    #[inline]
    pub fn at(&self, frame: u32) -> *mut u8 {
        self.memory.bytes.at(frame)
    }

    /// Takes a free frame, if there is one. It is changing until a page is published in it.
    pub fn take(&self) -> Option<u32> {
        let mut state = lock(&self.state);
        if let Some(frame) = state.free.pop() {
            return Some(frame);
        }
        if state.fresh < state.limit {
            let frame = state.fresh;
            state.fresh += 1;
            drop(state);
            self.memory.occupants.begin_change(frame);
            return Some(frame);
        }
        if state.limbo.is_empty() {
            return None;
        }
        self.end_limbo(&mut state);
        state.free.pop()
    }

    /// Frees the frames in limbo that are no longer pinned.
    fn end_limbo(&self, state: &mut FreeFrames) {
        let mut waiting = std::mem::take(&mut state.limbo);
        let pinned = self.memory.pins.pinned();
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

    /// The number below which frames may be taken.
    pub fn limit(&self) -> u32 {
        lock(&self.state).limit
    }

    /// Changes the limit. A frame at or above it may stay in use, but once free it is not taken again.
    pub fn set_limit(&self, limit: u32) {
        debug_assert!(self.range.contains(&limit) || limit == self.range.end);
        let mut state = lock(&self.state);
        let share = |limit: u32| (limit - self.range.start) / PIN_SHARE;
        self.memory.pins.change_max(share(state.limit), share(limit));
        state.limit = limit;
        let mut all = std::mem::take(&mut state.free);
        all.append(&mut state.retired);
        (state.free, state.retired) = all.into_iter().partition(|frame| *frame < limit);
    }

    /// Returns the memory of retired frames to the system, in whole chunks, and returns the number of bytes.
    ///
    /// Before it releases a range, it calls `let_go` with it, in bytes from the start of `span`. `let_go` ensures that
    /// no engine begins I/O by its registration of the range any more. The limit does not change meanwhile.
    pub fn release(&self, chunk_bytes: usize, let_go: impl Fn(Range<usize>)) -> io::Result<u64> {
        let ranges = self.idle_chunks((chunk_bytes / PAGE_BYTES) as u32);
        let mut released = 0;
        for range in ranges {
            let bytes = range.start as usize * PAGE_BYTES..range.end as usize * PAGE_BYTES;
            let before = self.range.start as usize * PAGE_BYTES;
            let_go(bytes.start - before..bytes.end - before);
            released += bytes.len() as u64;
            // SAFETY: the frames are above the limit and free. So they are in no set, not pinned, not being filled, and
            // no thread takes them. They are changing: a reader that looked at one before copies by `copy_racing`, and
            // does not believe its copy (rule 1 of `occupants`). Every I/O in these frames has ended, and no engine
            // begins another by its registration of the range (`let_go`).
            unsafe { self.memory.bytes.release(bytes) }?;
        }
        Ok(released)
    }

    /// The chunks with only retired frames; adjacent chunks form one range. Frees the frames in limbo first, if it can.
    /// Retired frames at the end count as fresh from now on. The cache's range begins with a chunk.
    fn idle_chunks(&self, chunk: u32) -> Vec<Range<u32>> {
        let mut state = lock(&self.state);
        self.end_limbo(&mut state);
        state.retired.sort_unstable();
        let mut ranges: Vec<Range<u32>> = Vec::new();
        let first = state.limit.div_ceil(chunk) * chunk;
        for start in (first..state.fresh).step_by(chunk as usize) {
            let end = start.saturating_add(chunk).min(self.range.end);
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

    /// Frees a frame that is changing and not pinned.
    pub fn give(&self, frame: u32) {
        let mut state = lock(&self.state);
        self.put(&mut state, frame);
    }

    /// Frees a frame that is changing, once its pins have ended.
    pub fn give_marked(&self, frame: u32) {
        lock(&self.state).limbo.push(frame);
    }

    /// Copies out of a frame that may be changing (see `sys::copy::copy_racing`).
    ///
    /// # Safety
    /// `within + len` is at most a page. `to` is writable for `len` bytes, and no other thread uses it.
    #[inline(always)]
    pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
        debug_assert!(self.range.contains(&frame) && within + len <= PAGE_BYTES);
        // SAFETY: the caller's promise. Only `copy_in` and the kernel change frames.
        unsafe { self.memory.bytes.copy_out(Hint::of(frame), within, to, len) };
    }

    /// Copies into a frame that other threads may be reading.
    ///
    /// # Safety
    /// `within + len` is at most a page, `from` is readable for `len` bytes, and no other thread writes to the frame.
    pub unsafe fn copy_in(&self, frame: u32, within: usize, from: *const u8, len: usize) {
        debug_assert!(self.range.contains(&frame) && within + len <= PAGE_BYTES);
        // SAFETY: as above.
        unsafe { self.memory.bytes.copy_in(frame, within, from, len) };
    }

    /// Copies a whole frame into another.
    ///
    /// # Safety
    /// No other thread writes to either frame.
    pub unsafe fn copy_frame(&self, from: u32, to: u32) {
        // SAFETY: both are frames, and the caller's promise.
        unsafe { self.memory.bytes.copy(from, to) };
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

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::cache::memory::FrameBytes;
    use crate::sys::memory::Slab;

    /// The last chunk ends with the last frame. Where the kernel's pages are larger than a frame, that is within a
    /// page.
    #[test]
    fn the_last_chunk_goes_whatever_the_kernels_pages() {
        const FRAMES: u32 = 1001;
        for page in [PAGE_BYTES, 16 << 10, 64 << 10] {
            let slab = Slab::of_pages(FRAMES as usize * PAGE_BYTES, page).unwrap();
            let memory = CacheMemory::over(FrameBytes::of(slab), FRAMES, 1000, 1000).unwrap();
            let frames = Frames::new(&Arc::new(memory), 0..FRAMES, FRAMES);
            let all: Vec<u32> = std::iter::from_fn(|| frames.take()).collect();
            assert_eq!(all.len() + 1, FRAMES as usize, "number 0 is no frame");
            frames.set_limit(10);
            all.into_iter().for_each(|frame| frames.give(frame));
            let let_go = std::cell::Cell::new(0..0);
            let released = frames.release(2 << 20, |range| let_go.set(range)).unwrap();
            let expected = 512 * PAGE_BYTES..FRAMES as usize * PAGE_BYTES;
            assert_eq!((released, let_go.take()), (expected.len() as u64, expected), "pages of {page} bytes");
        }
    }
}
