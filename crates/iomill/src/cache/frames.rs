//! The memory of the pages: a slab of frames, those that are free, and those that wait for a pin to end.

use std::io;
use std::ops::Range;

use super::copy::copy_racing;
use super::pins::Pins;
use crate::drive::PAGE_BYTES;
use crate::sys::memory::Slab;
use crate::sys::sync::{Mutex, lock};

/// All frames of a cache.
#[derive(Debug)]
pub struct Frames {
    slab: Slab,
    state: Mutex<State>,
    /// Frames there may ever be.
    most: u32,
    pub pins: Pins,
}

#[derive(Debug)]
struct State {
    /// Frames that may be taken: those below it.
    limit: u32,
    /// Frames that were not in use since their memory was given back, if they ever were, begin here; so that memory which is not
    /// needed is not touched.
    fresh: u32,
    /// Frames below `fresh` that are free. All are below `limit`.
    free: Vec<u32>,
    /// The same at or above `limit`, which are not taken.
    retired: Vec<u32>,
    /// Frames that left their set while they may have been pinned.
    limbo: Vec<u32>,
}

impl Frames {
    /// Room for `limit` frames now and `most` ever; `pins_max` of them may be pinned at a time.
    pub fn new(limit: u32, most: u32, pins_max: u32) -> io::Result<Frames> {
        let slab = Slab::new(most as usize * PAGE_BYTES)?;
        // Without huge pages it works as well, only slower.
        let _advised = slab.advise_huge();
        let state = State { limit, fresh: 0, free: Vec::new(), retired: Vec::new(), limbo: Vec::new() };
        Ok(Frames { slab, state: Mutex::new(state), most, pins: Pins::new(pins_max) })
    }

    /// Where the slab is: start and length in bytes.
    pub fn span(&self) -> (*mut u8, usize) {
        (self.slab.base(), self.most as usize * PAGE_BYTES)
    }

    /// A frame's memory.
    #[inline]
    pub fn at(&self, frame: u32) -> *mut u8 {
        self.slab.base().wrapping_add(frame as usize * PAGE_BYTES)
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

    /// Frees the frames in limbo that nobody pins any more.
    fn end_limbo(&self, state: &mut State) {
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

    fn put(&self, state: &mut State, frame: u32) {
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

    /// Changes that. Frames at or above it stay with whoever has them, and are not taken again when they come back.
    pub fn set_limit(&self, limit: u32) {
        debug_assert!(limit <= self.most);
        let mut state = lock(&self.state);
        state.limit = limit;
        let mut all = std::mem::take(&mut state.free);
        all.append(&mut state.retired);
        (state.free, state.retired) = all.into_iter().partition(|frame| *frame < limit);
    }

    /// Gives memory of frames above the limit back to the system, in whole chunks that have no other frames; how many bytes. `let_go` is
    /// told of each range first, in bytes, and sees to it that no ring begins to use it any more. The limit is not changed meanwhile.
    pub fn release(&self, chunk_bytes: usize, let_go: impl Fn(Range<usize>)) -> io::Result<u64> {
        let ranges = self.idle_chunks((chunk_bytes / PAGE_BYTES) as u32);
        let mut released = 0;
        for range in ranges {
            let bytes = range.start as usize * PAGE_BYTES..range.end as usize * PAGE_BYTES;
            let_go(bytes.clone());
            released += bytes.len() as u64;
            // SAFETY: the frames are above the limit and free, so they are in no set and not pinned, nobody fills them and nobody
            // takes them. Readers that looked at a set before it changed copy by `copy_racing`, and do not believe what they
            // copied. No ring uses its registration of the range for anything that begins from now on (`let_go`), and what began
            // in these frames has ended.
            unsafe { self.slab.release(bytes) }?;
        }
        Ok(released)
    }

    /// Ends what limbo there is, and finds the chunks, next to each other in one range, whose frames are all retired. The last frames
    /// count as fresh from now on if they are retired.
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

    /// Takes back a frame that nobody can reach any more.
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
    /// `within + len` is at most a page, and `to` is writable for `len` bytes and nobody else's.
    #[inline(always)]
    pub unsafe fn copy_out(&self, frame: u32, within: usize, to: *mut u8, len: usize) {
        debug_assert!(frame < self.most && within + len <= PAGE_BYTES);
        // SAFETY: the frame is in the slab, which stays mapped; frames are changed by `copy_in` and the kernel only.
        unsafe { copy_racing(self.at(frame).add(within), to, len) };
    }

    /// Copies into a frame that others may be reading.
    ///
    /// # Safety
    /// `within + len` is at most a page, `from` is readable for `len` bytes, and nobody else writes to the frame.
    pub unsafe fn copy_in(&self, frame: u32, within: usize, from: *const u8, len: usize) {
        debug_assert!(frame < self.most && within + len <= PAGE_BYTES);
        // SAFETY: as above.
        unsafe { copy_racing(from, self.at(frame).add(within), len) };
    }

    /// Zeroes part of a frame that others may be reading.
    ///
    /// # Safety
    /// `within + len` is at most a page, and nobody else writes to the frame.
    pub unsafe fn zero(&self, frame: u32, within: usize, len: usize) {
        static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        // SAFETY: the caller's promise, and there are enough zeroes.
        unsafe { self.copy_in(frame, within, ZEROES.as_ptr(), len) };
    }
}
