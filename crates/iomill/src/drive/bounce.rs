//! Bounce memory: a place of `BOUNCE_BYTES` for each slot of a queue. Only places that are used take memory.
//!
//! Goals: all queues of the process together take a bounded amount of memory, however many threads call. A thread that calls
//! again finds what it has used registered. Non-goals: many bounces at a time. Aligned I/O needs none, and all pages of the cache
//! are aligned.
//!
//! Rules:
//! 1. Memory is lent to a queue in chunks of places, when a piece first needs one of them, and counted for the process. At most
//!    `BOUNCE_MAX_BYTES` are lent. A piece that finds no memory left waits, like a piece at a locked block.
//! 2. A queue with nothing in flight after it has dispatched keeps its chunks only while at most half of the bound is lent. So a
//!    queue that has some of the other half has I/O in flight. It gives the memory back after that I/O has ended. It does so also
//!    where its next pieces wait: for a block's lock, or for the turn of a piece without memory at that lock.
//! 3. A queue that has a chunk needs no other to go on. A piece that bounces takes a free slot with a lent place, where there is
//!    one.
//! 4. A chunk is registered with the queue's engine if it is lent within the first half, which stays.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::BOUNCE_BYTES;
use crate::engine::{Engine, NO_REGION};
use crate::sys::memory::Slab;

/// Bounce memory of all arrays of the process together is at most so many bytes.
pub const BOUNCE_MAX_BYTES: usize = 128 << 20;

/// Places of a chunk: 128 KiB, whole pages of every kernel.
const CHUNK_SLOTS: usize = 8;
const CHUNK_BYTES: usize = CHUNK_SLOTS * BOUNCE_BYTES;

/// Bounce memory that is lent in the process.
static LENT: Purse = Purse { lent: AtomicUsize::new(0), most: BOUNCE_MAX_BYTES };

/// Counts bytes up to a bound. Relaxed everywhere: the count guards no memory.
#[derive(Debug)]
struct Purse {
    lent: AtomicUsize,
    most: usize,
}

impl Purse {
    /// Takes so many bytes; `Some(true)` if at most half of `most` is lent then.
    fn take(&self, bytes: usize) -> Option<bool> {
        let more = |lent: usize| Some(lent + bytes).filter(|lent| *lent <= self.most);
        let before = self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(before + bytes <= self.most / 2)
    }

    fn give(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether more than half are lent.
    fn is_pressed(&self) -> bool {
        self.lent.load(Ordering::Relaxed) > self.most / 2
    }
}

/// The bounce memory of one queue.
///
/// The engine that its chunks are registered with is dropped before it, or unregisters them first (`settle`).
#[derive(Debug)]
pub struct Bounce {
    /// Address space for all places.
    memory: Slab,
    /// The engine's number for each chunk that is lent.
    chunks: Box<[Option<u16>]>,
    /// How many chunks are lent.
    lent: usize,
    purse: &'static Purse,
}

impl Bounce {
    /// Places for so many slots, without memory.
    pub fn new(slots: u32) -> std::io::Result<Bounce> {
        Bounce::of(&LENT, slots)
    }

    fn of(purse: &'static Purse, slots: u32) -> std::io::Result<Bounce> {
        let chunks = (slots as usize).div_ceil(CHUNK_SLOTS).max(1);
        let memory = Slab::new(chunks * CHUNK_BYTES)?;
        // A huge page would be many chunks. A kernel that refuses the call has no huge pages.
        let _refused = memory.refuse_huge();
        Ok(Bounce { memory, chunks: vec![None; chunks].into_boxed_slice(), lent: 0, purse })
    }

    /// Whether a slot's place has memory; takes some where it has none and some is left.
    pub fn get_ready(&mut self, slot: u32, engine: &mut dyn Engine) -> bool {
        self.is_ready(slot) || self.borrow(slot as usize / CHUNK_SLOTS, engine)
    }

    /// Whether a slot's place has memory now.
    pub fn is_ready(&self, slot: u32) -> bool {
        self.chunks[slot as usize / CHUNK_SLOTS].is_some()
    }

    #[cold]
    fn borrow(&mut self, chunk: usize, engine: &mut dyn Engine) -> bool {
        let Some(stays) = self.purse.take(CHUNK_BYTES) else { return false };
        let start = self.memory.base().wrapping_add(chunk * CHUNK_BYTES);
        // SAFETY: the chunk stays mapped while `self` lives. The engine is dropped before that, or unregisters the chunk in
        // `settle`.
        let region = if stays { unsafe { engine.register(start, CHUNK_BYTES) } } else { None };
        self.chunks[chunk] = Some(region.unwrap_or(NO_REGION));
        self.lent += 1;
        true
    }

    /// The memory of a slot that is ready, and the engine's number for it.
    pub fn at(&self, slot: u32) -> (*mut u8, u16) {
        let region = self.chunks[slot as usize / CHUNK_SLOTS].unwrap_or(NO_REGION);
        (self.memory.base().wrapping_add(slot as usize * BOUNCE_BYTES), region)
    }

    /// Gives memory back where others may need it (rule 2). No slot is in flight.
    #[inline]
    pub fn settle(&mut self, engine: &mut dyn Engine) {
        if self.lent > 0 && self.purse.is_pressed() {
            self.give_back(engine);
        }
    }

    #[cold]
    fn give_back(&mut self, engine: &mut dyn Engine) {
        for region in self.chunks.iter_mut().filter_map(Option::take).filter(|region| *region != NO_REGION) {
            engine.unregister(region);
        }
        let lent = std::mem::take(&mut self.lent);
        // SAFETY: no slot is in flight, so nothing uses the memory, and the engine has let it go.
        let released = unsafe { self.memory.release(0..self.memory.len()) };
        // If the release fails, the memory stays with the queue until its next use. It cannot fail: the mapping is the queue's
        // own, in whole pages.
        debug_assert!(released.is_ok(), "{released:?}");
        self.purse.give(lent * CHUNK_BYTES);
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.purse.give(self.lent * CHUNK_BYTES);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::{Completion, EngineKind, EngineWake, IoRequest};

    /// An engine that counts what is registered.
    #[derive(Default)]
    struct Counting {
        registered: Vec<u16>,
    }

    impl Engine for Counting {
        fn kind(&self) -> EngineKind {
            EngineKind::Simulated
        }
        unsafe fn push(&mut self, _: &[IoRequest]) {}
        fn wait(&mut self, _: usize, _: Option<Duration>, _: &mut Vec<Completion>) -> std::io::Result<()> {
            unreachable!("nothing is in flight")
        }
        fn waker(&self) -> std::sync::Arc<dyn EngineWake> {
            unreachable!("no thread sleeps")
        }
        fn forget(&mut self, _: u64) {}
        unsafe fn register(&mut self, _: *mut u8, len: usize) -> Option<u16> {
            assert_eq!(len, CHUNK_BYTES);
            self.registered.push(self.registered.len() as u16);
            self.registered.last().copied()
        }
        fn unregister(&mut self, region: u16) {
            self.registered.retain(|registered| *registered != region);
        }
    }

    /// Any number of queues take no more than the bound. Queues without I/O in flight leave half of it to others.
    #[test]
    fn queues_share_a_bounded_amount() {
        static PURSE: Purse = Purse { lent: AtomicUsize::new(0), most: 8 * CHUNK_BYTES };
        let lent = || PURSE.lent.load(Ordering::Relaxed) / CHUNK_BYTES;
        let mut engine = Counting::default();
        let mut queues: Vec<Bounce> = (0..20).map(|_| Bounce::of(&PURSE, 20).unwrap()).collect();
        let begun: Vec<bool> = queues.iter_mut().map(|queue| queue.get_ready(19, &mut engine)).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), 8);
        assert_eq!((lent(), engine.registered.len()), (8, 4), "half of it is registered");
        assert!(queues[0].get_ready(16, &mut engine), "the same chunk");
        assert!(!queues[0].get_ready(0, &mut engine));
        queues.iter_mut().for_each(|queue| queue.settle(&mut engine));
        assert_eq!(lent(), 4, "queues gave memory back until half of the bound was lent");
        // The other queues come one after the other.
        for queue in &mut queues[8..] {
            for slot in [0, 8, 16] {
                assert!(queue.get_ready(slot, &mut engine));
                let (start, region) = queue.at(slot);
                assert!(start.addr().is_multiple_of(4096) && region == NO_REGION);
                // SAFETY: the place is the slot's, and no other slot uses it.
                unsafe { start.write_bytes(7, BOUNCE_BYTES) };
            }
            queue.settle(&mut engine);
            assert!(lent() <= 4);
        }
        drop(queues);
        assert_eq!(lent(), 0);
    }
}
