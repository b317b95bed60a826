//! The memory of the pages: a slab of frames, those that are free, and those that wait for a pin to end.

use std::io;

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
    /// Frames in use or free: those below it. Memory above it is given back.
    limit: u32,
    /// Frames that never were in use begin here; so that memory which is not needed is not touched.
    fresh: u32,
    /// Frames that were in use and are free. All are below `limit`.
    free: Vec<u32>,
    /// Frames that left their set while they may have been pinned.
    limbo: Vec<u32>,
}

impl Frames {
    /// Room for `limit` frames now and `most` ever; `pins_max` of them may be pinned at a time.
    pub fn new(limit: u32, most: u32, pins_max: u32) -> io::Result<Frames> {
        let slab = Slab::new(most as usize * PAGE_BYTES)?;
        // Without huge pages it works as well, only slower.
        let _advised = slab.advise_huge();
        let state = State { limit, fresh: 0, free: Vec::new(), limbo: Vec::new() };
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
        // A frame above a limit that has sunk is not used again.
        if frame < state.limit {
            state.free.push(frame);
        } else {
            self.retire(frame);
        }
    }

    fn retire(&self, frame: u32) {
        let start = frame as usize * PAGE_BYTES;
        // Giving memory back is a kindness to others: where the kernel refuses, the frame stays unused all the same.
        // SAFETY: the frame is in no set, neither pinned nor being filled, and never used again below this limit.
        let _released = unsafe { self.slab.release(start..start + PAGE_BYTES) };
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
