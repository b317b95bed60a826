//! Pins: holds on pages that keep their frames as they are, at the price of two plain stores.
//!
//! A pin is a slot that holds the frame's number. Slots belong to threads, which take them without a lock and without a store
//! that others' processors must hear of at once; in return whoever wants to change or reuse a frame that may be pinned looks through
//! all slots, after a heavy fence. Only frames of ways that are marked can be pinned, so nobody looks where nobody pins.
//!
//! Rules (hazard pointers, Michael 2004, with a fence on one side only):
//! 1. To pin: find the page in a marked way, without the lock; store the frame into a slot; light fence; look whether the set's
//!    version is still the same. If it is not, empty the slot and begin again.
//! 2. To change or reuse the frame of a marked way: hold the set's lock (so the version is odd); heavy fence; look through all
//!    slots. If none holds the frame it is not pinned, and no pin that is under way will succeed, because its second look comes after
//!    the fence and finds the version changed. Unmark the way before unlocking.
//! 3. A slot is filled by its thread only, and emptied by whoever holds the pin, on any thread.
//! 4. A thread keeps its first block for as long as it lives, and gives the others back when it finds them empty (`api::cached::seat`). Blocks
//!    are small where there are few slots, so that many threads can have one.

use std::sync::Arc;

use crate::sys::barrier;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// Pins that one thread takes room for at a time, at most.
const BLOCK_SLOTS: usize = 16;

/// Threads that can have a block each, where there are so many slots.
const BLOCKS_LEAST: u32 = 64;

/// Some slots of one thread.
#[derive(Debug)]
pub struct Block {
    /// 0: empty; else a frame's number and one.
    slots: [AtomicU32; BLOCK_SLOTS],
    /// Slots that are used; at least one.
    count: usize,
}

/// All slots of a cache.
#[derive(Debug)]
pub struct Pins {
    blocks: Mutex<Blocks>,
    slots_max: AtomicU32,
}

#[derive(Debug, Default)]
struct Blocks {
    /// Every block that was ever made; they are used again and never freed, because pins refer to them.
    all: Vec<Arc<Block>>,
    /// Those that no thread has.
    free: Vec<Arc<Block>>,
    /// Slots of all blocks.
    slots: u32,
}

/// The frames that were pinned at some moment.
#[derive(Debug)]
pub struct Pinned(Vec<u32>);

impl Pinned {
    /// Whether a frame is among them.
    pub fn contains(&self, frame: u32) -> bool {
        self.0.contains(&(frame + 1))
    }
}

impl Pins {
    /// At most `slots_max` pins at a time, and one at least.
    pub fn new(slots_max: u32) -> Pins {
        // Light fences are cheap once it is known that they may be.
        barrier::available();
        Pins { blocks: Mutex::default(), slots_max: AtomicU32::new(slots_max) }
    }

    /// How many pins there may be.
    pub fn max(&self) -> u32 {
        self.slots_max.load(Ordering::Relaxed).max(1)
    }

    /// Changes that. Blocks that there are stay.
    pub fn set_max(&self, slots_max: u32) {
        self.slots_max.store(slots_max, Ordering::Relaxed);
    }

    /// A block for the calling thread, unless there are too many.
    pub fn block(&self) -> Option<Arc<Block>> {
        let mut blocks = lock(&self.blocks);
        if let Some(block) = blocks.free.pop() {
            return Some(block);
        }
        let max = self.max();
        let count = (max / BLOCKS_LEAST).clamp(1, BLOCK_SLOTS as u32);
        if blocks.slots + count > max {
            return None;
        }
        let block = Arc::new(Block { slots: std::array::from_fn(|_| AtomicU32::new(0)), count: count as usize });
        blocks.slots += count;
        blocks.all.push(Arc::clone(&block));
        Some(block)
    }

    /// Takes a block back from a thread that ends, or has no use for it; pins in it may go on (rule 3).
    pub fn give(&self, block: Arc<Block>) {
        lock(&self.blocks).free.push(block);
    }

    /// The frames that are pinned, after a heavy fence (rule 2).
    pub fn pinned(&self) -> Pinned {
        barrier::heavy();
        let blocks = lock(&self.blocks);
        let slots = blocks.all.iter().flat_map(|block| &block.slots[..block.count]);
        Pinned(slots.map(|slot| slot.load(Ordering::Acquire)).filter(|&frame| frame != 0).collect())
    }
}

impl Block {
    /// An empty slot, if there is one.
    #[inline(always)]
    pub fn empty(&self) -> Option<&AtomicU32> {
        // An Acquire load, so that what this thread does with the frame it pins next comes after the last use of the slot's
        // former pin, perhaps by another thread.
        if self.slots[0].load(Ordering::Acquire) == 0 { Some(&self.slots[0]) } else { self.empty_beyond_first() }
    }

    #[inline(never)]
    fn empty_beyond_first(&self) -> Option<&AtomicU32> {
        self.slots[..self.count].iter().find(|slot| slot.load(Ordering::Acquire) == 0)
    }

    /// Whether nothing is pinned in it.
    pub fn is_empty(&self) -> bool {
        self.slots[..self.count].iter().all(|slot| slot.load(Ordering::Acquire) == 0)
    }
}

/// Announces a pin (rule 1): the set's version must be looked at after this.
#[inline(always)]
pub fn announce(slot: &AtomicU32, frame: u32) {
    // Release, because the slot's former pin may have ended unseen: whoever looks sees this one, and what was read through that.
    slot.store(frame + 1, Ordering::Release);
    barrier::light();
}

/// Ends a pin. What was read through it was read before.
#[inline(always)]
pub fn end(slot: &AtomicU32) {
    slot.store(0, Ordering::Release);
}
