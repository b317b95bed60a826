//! The frames of one cache: a range of the numbers that all caches share. Some are free, and some wait until a pin ends.
//!
//! A free frame counts as changing (rule 2 of `occupants`).

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::PIN_SHARE;
use super::hints::Hint;
use super::memory::Memory;
use crate::drive::PAGE_BYTES;
use crate::sys::memory::NodePolicy;
use crate::sys::sync::{Mutex, lock};

/// All frames of a cache.
#[derive(Debug)]
pub struct Frames {
    memory: Arc<Memory>,
    /// The first number is not used, so that no frame has number 0.
    range: Range<u32>,
    state: Mutex<FreeFrames>,
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
    /// The frames in this range of numbers. Those below `limit` may be taken now.
    pub fn new(memory: &Arc<Memory>, range: Range<u32>, limit: u32) -> Frames {
        let fresh = range.start + 1;
        memory.pins.change_max(0, (limit - range.start) / PIN_SHARE);
        let state = FreeFrames { limit, fresh, free: Vec::new(), retired: Vec::new(), limbo: Vec::new() };
        Frames { memory: Arc::clone(memory), range, state: Mutex::new(state) }
    }

    /// The number from which the frames are counted.
    pub fn start(&self) -> u32 {
        self.range.start
    }

    /// Where the frames are: start and length in bytes.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.at(self.range.start), self.range.len() * PAGE_BYTES)
    }

    /// Binds memory that is untouched so far to a node.
    pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
        self.memory.bytes.bind(self.range.clone(), node, policy)
    }

    /// A frame's memory.
    #[inline]
    pub fn at(&self, frame: u32) -> *mut u8 {
        self.memory.bytes.at(frame)
    }

    /// A free frame. It is changing until a page is published in it.
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

    /// Frees the frames in limbo that no pin holds any more.
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

    /// Frames that may be taken: those below it.
    pub fn limit(&self) -> u32 {
        lock(&self.state).limit
    }

    /// Changes that. A frame at or above it stays where it is in use, and is not taken again once it is free.
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

    /// Gives the memory of frames above the limit back to the system. It releases whole chunks in which all frames are
    /// above the limit, and returns the number of bytes.
    /// It calls `let_go` with each range, in bytes from the start of `span`, before it releases the range. `let_go` ensures that no ring begins
    /// to use the range any more. The limit does not change meanwhile.
    pub fn release(&self, chunk_bytes: usize, let_go: impl Fn(Range<usize>)) -> io::Result<u64> {
        let ranges = self.idle_chunks((chunk_bytes / PAGE_BYTES) as u32);
        let mut released = 0;
        for range in ranges {
            let bytes = range.start as usize * PAGE_BYTES..range.end as usize * PAGE_BYTES;
            let before = self.range.start as usize * PAGE_BYTES;
            let_go(bytes.start - before..bytes.end - before);
            released += bytes.len() as u64;
            // SAFETY: the frames are above the limit and free. So they are in no set, not pinned, not being filled, and
            // no thread takes them. They are changing. A reader that looked at one before copies by `copy_racing`, and
            // does not believe what it copied (rule 1 of `occupants`). No ring uses its registration of the range for an I/O that begins from now on
            // (`let_go`). Every I/O that began in these frames has ended.
            unsafe { self.memory.bytes.release(bytes) }?;
        }
        Ok(released)
    }

    /// Ends what limbo it can. Then it finds the chunks with only retired frames, and joins chunks that are next to
    /// each other into one range. The last frames count as fresh from now on if they are retired. The range of the cache
    /// begins with a chunk.
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

    /// Takes back a frame that is changing, and that no thread can reach any more.
    pub fn give(&self, frame: u32) {
        let mut state = lock(&self.state);
        self.put(&mut state, frame);
    }

    /// Takes back a frame that is changing, and that may still be pinned.
    pub fn give_marked(&self, frame: u32) {
        lock(&self.state).limbo.push(frame);
    }

    /// Copies out of a frame that may be changing (see [`copy_racing`]).
    ///
    /// # Safety
    /// `within + len` is at most a page. `to` is writable for `len` bytes, and no other thread uses it.
    #[inline(always)]
    pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
        debug_assert!(self.range.contains(&frame) && within + len <= PAGE_BYTES);
        // SAFETY: the caller's promise; frames are changed by `copy_in` and the kernel only.
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

    /// The last chunk ends with the last frame, in the midst of a page where the kernel's pages are larger than a frame.
    #[test]
    fn the_last_chunk_goes_whatever_the_kernels_pages() {
        const FRAMES: u32 = 1001;
        for page in [PAGE_BYTES, 16 << 10, 64 << 10] {
            let slab = Slab::of_pages(FRAMES as usize * PAGE_BYTES, page).unwrap();
            let memory = Memory::over(FrameBytes::of(slab), FRAMES, 1000, 1000).unwrap();
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
