//! Bounce memory: a place of `BOUNCE_BYTES` for each slot of a queue. Only places that are used take memory.
//!
//! Goals: all queues of the process together take a bounded amount of memory, for any number of threads. A thread that
//! calls again finds its memory registered. Non-goals: many bounces at a time. Aligned I/O needs none, and all pages of
//! the cache are aligned.
//!
//! Rules:
//! 1. Memory is lent to a queue in chunks of places, when a piece first needs one of them, and counted for the process.
//!    At most `BOUNCE_MAX_BYTES` are lent. If no memory is left, a piece waits, like a piece at a locked block.
//! 2. While more than half of the bound is lent, a queue returns, after a dispatch, the chunks that no piece in flight
//!    uses. It does so also with other I/O in flight, and if its next pieces wait for a block's lock. So at most half
//!    of the bound is unused.
//! 3. Beyond half of the bound, a queue gets a chunk only if it has none. A queue with a chunk needs no other to make
//!    progress: a piece that bounces takes a free slot with a lent place, if there is one. So 512 queues make progress
//!    at a time, whatever the others bounce.
//! 4. A chunk is registered with the queue's engine if it is lent within the first half: such chunks mostly stay lent.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::BOUNCE_BYTES;
use crate::engine::{Engine, NO_REGION};
use crate::sys::memory::Slab;

/// The most bounce memory of all arrays of the process together, in bytes.
pub const BOUNCE_MAX_BYTES: usize = 128 << 20;

/// Places of a chunk: 128 KiB, whole pages of every kernel.
const CHUNK_SLOTS: usize = 8;
const CHUNK_BYTES: usize = CHUNK_SLOTS * BOUNCE_BYTES;

/// Bounce memory that is lent in the process.
static LENT: Purse = Purse { lent: AtomicUsize::new(0), most: BOUNCE_MAX_BYTES };

/// Counts bytes up to a bound. Relaxed everywhere: the count guards no memory.
#[derive(Debug)]
pub struct Purse {
    lent: AtomicUsize,
    most: usize,
}

impl Purse {
    /// For this number of chunks.
    #[cfg(all(test, not(iomill_models)))]
    pub const fn of(chunks: usize) -> Purse {
        Purse { lent: AtomicUsize::new(0), most: chunks * CHUNK_BYTES }
    }

    /// Takes `bytes` bytes, beyond half of `most` only for a first chunk (rule 3). `Some(true)` if at most half is lent
    /// then.
    fn take(&self, bytes: usize, is_first: bool) -> Option<bool> {
        let most = if is_first { self.most } else { self.most / 2 };
        let more = |lent: usize| Some(lent + bytes).filter(|lent| *lent <= most);
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
    chunks: Box<[Chunk]>,
    /// The number of lent chunks.
    lent: usize,
    purse: &'static Purse,
}

#[derive(Clone, Debug, Default)]
struct Chunk {
    /// The engine's number for it, if it is lent.
    lent: Option<u16>,
    /// The number of slots with a piece in flight that uses its place here. A chunk that is not lent has none.
    used: u32,
}

impl Bounce {
    /// Places for this number of slots, without memory.
    pub fn new(slots: u32) -> std::io::Result<Bounce> {
        Bounce::of(&LENT, slots)
    }

    /// `new` with another count of memory.
    pub fn of(purse: &'static Purse, slots: u32) -> std::io::Result<Bounce> {
        let chunks = (slots as usize).div_ceil(CHUNK_SLOTS).max(1);
        let memory = Slab::new(chunks * CHUNK_BYTES)?;
        // A huge page would be many chunks. A kernel that refuses the call has no huge pages.
        let _refused = memory.refuse_huge();
        Ok(Bounce { memory, chunks: vec![Chunk::default(); chunks].into_boxed_slice(), lent: 0, purse })
    }

    /// Takes memory for a slot's place, unless it has some or none is left. Returns whether the place has memory.
    pub fn get_ready(&mut self, slot: u32, engine: &mut dyn Engine) -> bool {
        self.is_ready(slot) || self.borrow(slot as usize / CHUNK_SLOTS, engine)
    }

    /// Whether a slot's place has memory now.
    pub fn is_ready(&self, slot: u32) -> bool {
        self.chunks[slot as usize / CHUNK_SLOTS].lent.is_some()
    }

    /// A piece of a slot that is ready uses its place from now on.
    pub fn begin(&mut self, slot: u32) {
        self.chunks[slot as usize / CHUNK_SLOTS].used += 1;
    }

    /// The piece has ended.
    pub fn end(&mut self, slot: u32) {
        self.chunks[slot as usize / CHUNK_SLOTS].used -= 1;
    }

    #[cold]
    fn borrow(&mut self, chunk: usize, engine: &mut dyn Engine) -> bool {
        let Some(stays) = self.purse.take(CHUNK_BYTES, self.lent == 0) else { return false };
        let start = self.memory.base().wrapping_add(chunk * CHUNK_BYTES);
        // SAFETY: the chunk stays mapped while `self` lives. The engine is dropped before that, or unregisters the
        // chunk in `give_back`.
        let region = if stays { unsafe { engine.register(start, CHUNK_BYTES) } } else { None };
        self.chunks[chunk].lent = Some(region.unwrap_or(NO_REGION));
        self.lent += 1;
        true
    }

    /// The memory of a slot that is ready, and the engine's number for it.
    pub fn at(&self, slot: u32) -> (*mut u8, u16) {
        let region = self.chunks[slot as usize / CHUNK_SLOTS].lent.unwrap_or(NO_REGION);
        (self.memory.base().wrapping_add(slot as usize * BOUNCE_BYTES), region)
    }

    /// Returns unused memory that other queues may need (rule 2).
    #[inline]
    pub fn settle(&mut self, engine: &mut dyn Engine) {
        if self.lent > 0 && self.purse.is_pressed() {
            self.give_back(engine);
        }
    }

    #[cold]
    fn give_back(&mut self, engine: &mut dyn Engine) {
        for (index, chunk) in self.chunks.iter_mut().enumerate().filter(|(_, chunk)| chunk.used == 0) {
            let Some(region) = chunk.lent.take() else { continue };
            if region != NO_REGION {
                engine.unregister(region);
            }
            let start = index * CHUNK_BYTES;
            // SAFETY: no piece in flight uses the chunk, and the engine has let it go.
            let released = unsafe { self.memory.release(start..start + CHUNK_BYTES) };
            // If the release fails, the memory stays with the queue until its next use. It cannot fail: the mapping is
            // the queue's own, in whole pages.
            debug_assert!(released.is_ok(), "{released:?}");
            self.lent -= 1;
            self.purse.give(CHUNK_BYTES);
            if !self.purse.is_pressed() {
                return;
            }
        }
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
        unsafe fn register(&mut self, _: *mut u8, len: usize) -> Option<u16> {
            assert_eq!(len, CHUNK_BYTES);
            self.registered.push(self.registered.len() as u16);
            self.registered.last().copied()
        }
        fn unregister(&mut self, region: u16) {
            self.registered.retain(|registered| *registered != region);
        }
    }

    fn lent(purse: &Purse) -> usize {
        purse.lent.load(Ordering::Relaxed) / CHUNK_BYTES
    }

    /// Any number of queues take no more than the bound. Queues leave half of it to others when they do not use it.
    #[test]
    fn queues_share_a_bounded_amount() {
        static PURSE: Purse = Purse::of(8);
        let mut engine = Counting::default();
        let mut queues: Vec<Bounce> = (0..20).map(|_| Bounce::of(&PURSE, 20).unwrap()).collect();
        let begun: Vec<bool> = queues.iter_mut().map(|queue| queue.get_ready(19, &mut engine)).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), 8);
        assert_eq!((lent(&PURSE), engine.registered.len()), (8, 4), "half of it is registered");
        assert!(queues[0].get_ready(16, &mut engine), "the same chunk");
        assert!(!queues[0].get_ready(0, &mut engine));
        queues.iter_mut().for_each(|queue| queue.settle(&mut engine));
        assert_eq!(lent(&PURSE), 4, "queues gave memory back until half of the bound was lent");
        // The other queues come one after the other.
        for queue in &mut queues[8..] {
            for slot in [0, 3] {
                assert!(queue.get_ready(slot, &mut engine));
                let (start, region) = queue.at(slot);
                assert!(start.addr().is_multiple_of(4096) && region == NO_REGION);
                // SAFETY: the place is the slot's, and no other slot uses it.
                unsafe { start.write_bytes(7, BOUNCE_BYTES) };
            }
            queue.settle(&mut engine);
            assert!(lent(&PURSE) <= 4);
        }
        drop(queues);
        assert_eq!(lent(&PURSE), 0);
    }

    /// Two queues that always bounce took all of the bound, and no other queue ever got any.
    #[test]
    fn busy_queues_leave_each_queue_a_chunk() {
        static PURSE: Purse = Purse::of(8);
        let mut engine = Counting::default();
        let mut busy: Vec<Bounce> = (0..2).map(|_| Bounce::of(&PURSE, 80).unwrap()).collect();
        for slot in 0..80 {
            for queue in &mut busy {
                if queue.get_ready(slot, &mut engine) {
                    queue.begin(slot);
                }
            }
        }
        busy.iter_mut().for_each(|queue| queue.settle(&mut engine));
        assert_eq!(lent(&PURSE), 4);
        let mut others: Vec<Bounce> = (0..4).map(|_| Bounce::of(&PURSE, 20).unwrap()).collect();
        for queue in &mut others {
            assert!(queue.get_ready(7, &mut engine) && !queue.get_ready(8, &mut engine), "one chunk, and one only");
        }
        assert!(busy.iter().all(|queue| queue.is_ready(0)), "what is in use stays");
    }
}
