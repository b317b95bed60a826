//! Pins: holds on pages that keep their frames as they are, at the price of two plain stores.
//!
//! A pin is a slot that holds the frame's number. Slots belong to threads. A thread takes its slots without a lock, and without a
//! store that other processors must learn of at once. In return, a thread that changes or reuses a frame that may be pinned looks
//! through all slots, after a heavy fence. Only frames of marked ways can be pinned, so no thread looks where no page was pinned.
//!
//! Rules (hazard pointers, Michael 2004, with a fence on one side only):
//! 1. To pin: find a marked frame that holds the page, without a lock. Store the frame into a slot. Light fence. Look whether the
//!    frame's version is still the same. If it is not, empty the slot and begin again.
//! 2. To change or reuse a marked frame: hold the lock of its set; the frame is *changing* (`occupants`); heavy fence; look
//!    through all slots. If no slot holds the frame it is not pinned, and no pin that is under way succeeds. Its second look comes
//!    after the fence and finds the version changed. Unmark the frame before unlocking.
//! 3. Only the slot's thread fills it. The holder of the pin empties it, on any thread.
//! 4. A thread gives its blocks but the first back when it finds them empty (`pager::local`). Blocks are small where there
//!    are few slots.
//! 5. Where no slot is left, blocks are taken away from threads that leave slots of them empty. Set `gone`, with the lock on all
//!    blocks held; heavy fence; look through the block's slots. The pins found there stay, and count. No pin comes after them:
//!    after rule 1's light fence a pinning thread also looks whether the block is gone. If it is, the thread begins again in
//!    another block.
//! 6. A block that is gone is looked through until its last pin has ended, and never used again. Its thread may still store to a
//!    slot for a moment, before it looks. The thread drops the block when it finds it gone.

use std::sync::Arc;

use super::hints::Hint;
use crate::sys::barrier;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// One thread takes room for at most so many pins at a time: a block is a cache line.
const BLOCK_SLOTS: usize = 14;

/// With so many slots or more, so many threads can have a block each before one is taken away from another thread.
const BLOCKS_LEAST: u32 = 64;

/// Slots that are taken away at a time where none is left, so that the fence is paid once for several.
const TAKE_SLOTS: u32 = 16;

/// Some slots of one thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PinBlock {
    /// 1 once it was taken away from its thread (rule 5). Relaxed: the fences order it, `barrier::heavy` in `take_away` and
    /// `barrier::light` in `announce`.
    gone: AtomicU32,
    /// Slots that are used: at least one, but 0 for a block of `PinBlock::none`.
    count: u32,
    /// 0: empty; else a frame, as a hint has it.
    slots: [AtomicU32; BLOCK_SLOTS],
}

/// All slots.
#[derive(Debug)]
pub struct Pins {
    blocks: Mutex<PinBlocks>,
    slots_max: AtomicU32,
}

#[derive(Debug, Default)]
struct PinBlocks {
    /// Every block in which there may be pins, those that are gone included.
    all: Vec<Arc<PinBlock>>,
    /// Blocks that no thread has. They are in `all`.
    free: Vec<Arc<PinBlock>>,
    /// Where in `all` to look first for blocks to take away, so that each thread's turn comes.
    hand: usize,
}

impl PinBlocks {
    /// Forgets blocks that are gone and empty (rule 6). Returns how many slots the others have. A block that is gone counts only
    /// its slots with a pin.
    fn slots(&mut self) -> u32 {
        self.all.retain(|block| !block.is_gone() || !block.is_empty());
        self.all.iter().map(|block| if block.is_gone() { block.used() } else { block.count }).sum()
    }

    /// Takes blocks away that have empty slots, those without a pin first, until so many slots are free (rule 5).
    fn take_away(&mut self, slots: u32) {
        let turn = self.all.len();
        let mut taken: Vec<usize> = Vec::new();
        let mut free = 0;
        for may_have_pins in [false, true] {
            for index in (0..turn).map(|step| (self.hand + step) % turn) {
                let block = &self.all[index];
                let used = block.used();
                if free < slots && !block.is_gone() && used < block.count && (may_have_pins || used == 0) {
                    block.gone.store(1, Ordering::Relaxed);
                    free += block.count - used;
                    taken.push(index);
                }
            }
        }
        let Some(last) = taken.last() else { return };
        self.hand = last + 1;
        self.free.retain(|block| !block.is_gone());
        // Pins that were begun before are visible from now on, and none begins any more. Pairs with the light fence in
        // `announce`.
        barrier::heavy();
    }
}

/// The frames that were pinned at some moment.
#[derive(Debug)]
pub struct Pinned(Vec<u32>);

impl Pinned {
    /// Whether a frame was pinned.
    pub fn contains(&self, frame: u32) -> bool {
        self.0.contains(&in_slot(Hint::of(frame)))
    }
}

impl Pins {
    /// One pin at a time.
    pub fn new() -> Pins {
        // Asked once, here: light fences are cheap where the kernel supports heavy ones.
        barrier::available();
        Pins { blocks: Mutex::default(), slots_max: AtomicU32::new(0) }
    }

    /// How many pins there may be.
    pub fn max(&self) -> u32 {
        self.slots_max.load(Ordering::Relaxed).max(1)
    }

    /// Changes the number of pins that one of the caches allows. Present blocks stay.
    pub fn change_max(&self, before: u32, now: u32) {
        self.slots_max.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A block with an empty slot for the calling thread; `None` if as many pages are pinned as may be.
    pub fn block(&self) -> Option<Arc<PinBlock>> {
        let mut blocks = lock(&self.blocks);
        if let Some(index) = blocks.free.iter().rposition(|block| block.empty().is_some()) {
            return Some(blocks.free.swap_remove(index));
        }
        let max = self.max();
        let mut count = (max / BLOCKS_LEAST).clamp(1, BLOCK_SLOTS as u32);
        if blocks.slots() + count > max {
            // Where slots are short, each thread gets one at a time, so that more threads get some.
            count = 1;
            if blocks.slots() >= max {
                blocks.take_away(TAKE_SLOTS);
            }
            if blocks.slots() >= max {
                return None;
            }
        }
        let slots = std::array::from_fn(|_| AtomicU32::new(0));
        let block = Arc::new(PinBlock { gone: AtomicU32::new(0), count, slots });
        blocks.all.push(Arc::clone(&block));
        Some(block)
    }

    /// Takes a block back from a thread that ends, or does not need it. Pins in it may go on (rule 3).
    pub fn give(&self, block: Arc<PinBlock>) {
        let mut blocks = lock(&self.blocks);
        if !block.is_gone() {
            blocks.free.push(block);
        }
    }

    /// The frames that are pinned, after a heavy fence (rule 2). It pairs with the light fence in `announce`. Acquire: pairs with
    /// the Release in `announce` and `end`.
    pub fn pinned(&self) -> Pinned {
        barrier::heavy();
        let blocks = lock(&self.blocks);
        let slots = blocks.all.iter().flat_map(|block| block.used_slots());
        Pinned(slots.map(|slot| slot.load(Ordering::Acquire)).filter(|&frame| frame != 0).collect())
    }
}

impl PinBlock {
    /// A block that has no empty slot, for threads without a block.
    pub fn none() -> Arc<PinBlock> {
        let slots = std::array::from_fn(|_| AtomicU32::new(1));
        Arc::new(PinBlock { gone: AtomicU32::new(0), count: 0, slots })
    }

    fn used_slots(&self) -> &[AtomicU32] {
        &self.slots[..self.count as usize]
    }

    /// The first slot, if it is empty.
    #[inline(always)]
    pub fn first(&self) -> Option<&AtomicU32> {
        let slot = &self.slots[0];
        // Acquire: pairs with the Release in `end`. What this thread does with the frame that it pins next comes after the last
        // use of the slot's former pin, perhaps by another thread.
        (slot.load(Ordering::Acquire) == 0).then_some(slot)
    }

    /// An empty slot, if there is one.
    pub fn empty(&self) -> Option<&AtomicU32> {
        // Acquire: as in `first`.
        self.used_slots().iter().find(|slot| slot.load(Ordering::Acquire) == 0)
    }

    /// Pins in it.
    fn used(&self) -> u32 {
        self.used_slots().iter().filter(|slot| slot.load(Ordering::Acquire) != 0).count() as u32
    }

    /// Whether nothing is pinned in it.
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    /// Whether it was taken away (rule 5). A thread that has announced a pin asks this.
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) != 0
    }
}

/// Announces a pin (rule 1). After this the caller looks at the frame's version, and whether the block is gone (rule 5). The light
/// fence pairs with the heavy fences in `Pins::pinned` and `PinBlocks::take_away`.
#[inline(always)]
pub fn announce(slot: &AtomicU32, hint: Hint, light: fn()) {
    // Release: pairs with the Acquire in `Pins::pinned`. The slot's former pin may have ended unseen. A thread that sees this pin
    // also sees everything that was read through the former one.
    slot.store(in_slot(hint), Ordering::Release);
    light();
}

/// What a slot holds while a frame is pinned. No frame has number 0.
#[inline(always)]
fn in_slot(hint: Hint) -> u32 {
    hint.doubled() as u32
}

/// Ends a pin. Release: pairs with the Acquire in `Pins::pinned` and `PinBlock::empty`, so that everything read through the pin was
/// read before.
#[inline(always)]
pub fn end(slot: &AtomicU32) {
    slot.store(0, Ordering::Release);
}
