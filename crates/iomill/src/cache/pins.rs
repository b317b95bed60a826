//! Pins: holds on pages that keep their frames as they are, at the price of two plain stores.
//!
//! A pin is a slot that holds the frame's number. Slots belong to threads. A thread fills its slots without a lock, and
//! without a store that other processors must see at once. In return, a thread that changes or reuses a frame that may
//! be pinned looks through all slots, after a heavy fence. Only frames of marked ways can be pinned, so this look is
//! not needed where no page was pinned.
//!
//! Rules (hazard pointers, Michael 2004, with a fence on one side only):
//! 1. To pin: find a marked frame that holds the page, without a lock. Store the frame into a slot. Light fence. Load
//!    the frame's version again. If it has changed, empty the slot and begin again.
//! 2. To change or reuse a marked frame: lock its set; make the frame *changing* (`occupants`); heavy fence; look
//!    through all slots. If no slot holds the frame, it is not pinned, and a pin that has begun fails: it loads the
//!    version again after the fence, and finds it changed. Unmark the frame before unlocking.
//! 3. Only its thread fills a slot. The holder of the pin empties it, on any thread.
//! 4. A thread gives empty blocks back, except its first (`pager::local`). Blocks are small where there are few slots.
//! 5. If no slot is left, blocks with empty slots are taken away from their threads. Set `gone` under the lock on all
//!    blocks; heavy fence; look through the block's slots. The pins found there stay valid, and count. No pin follows
//!    them: after rule 1's light fence a pinning thread also looks whether the block is gone. If it is, the thread
//!    begins again in another block.
//! 6. A gone block is never used again, but looked through until its last pin has ended. Its thread may still store to
//!    a slot for a moment, before it looks. The thread drops the block when it finds it gone.

use std::sync::Arc;

use super::hints::Hint;
use crate::sys::barrier;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// The number of slots in a block, which is then a cache line.
const BLOCK_SLOTS: usize = 14;

/// The number of threads that can each have a block before any block is taken away, if there are as many slots.
const BLOCKS_LEAST: u32 = 64;

/// The number of slots that are taken away at a time, so that one fence serves several.
const TAKE_SLOTS: u32 = 16;

/// Some slots of one thread.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PinBlock {
    /// 1 once the block was taken away from its thread (rule 5). Relaxed: ordered by the fences `barrier::heavy` in
    /// `take_away` and `barrier::light` in `announce`.
    gone: AtomicU32,
    /// The number of slots in use: at least one, but 0 in a block of `PinBlock::none`.
    count: u32,
    /// Each 0 if empty, else a frame's number, doubled as in a hint.
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
    /// Every block in which there may be pins, gone ones too.
    all: Vec<Arc<PinBlock>>,
    /// The blocks without a thread. They are in `all`, too.
    free: Vec<Arc<PinBlock>>,
    /// The index in `all` at which the next search for blocks to take away begins, so that all threads take turns.
    hand: usize,
}

impl PinBlocks {
    /// Forgets gone blocks without pins (rule 6). Returns the number of slots in the others. A gone block counts only
    /// its slots with a pin.
    fn slots(&mut self) -> u32 {
        self.all.retain(|block| !block.is_gone() || !block.is_empty());
        self.all.iter().map(|block| if block.is_gone() { block.used() } else { block.count }).sum()
    }

    /// Takes blocks with empty slots away until `slots` slots are free (rule 5), blocks without a pin first.
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
        // After the fence all earlier pins are visible, and no later one succeeds. Pairs with the light fence in
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
    /// Room for one pin at a time.
    pub fn new() -> Pins {
        // The kernel is asked for heavy fences here, once. If it has them, light fences are free.
        barrier::available();
        Pins { blocks: Mutex::default(), slots_max: AtomicU32::new(0) }
    }

    /// The most pins at a time.
    pub fn max(&self) -> u32 {
        self.slots_max.load(Ordering::Relaxed).max(1)
    }

    /// Changes one cache's share of the most pins. Present blocks stay.
    pub fn change_max(&self, before: u32, now: u32) {
        self.slots_max.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A block with an empty slot for the calling thread; `None` if the most pages are pinned.
    pub fn block(&self) -> Option<Arc<PinBlock>> {
        let mut blocks = lock(&self.blocks);
        if let Some(index) = blocks.free.iter().rposition(|block| block.empty().is_some()) {
            return Some(blocks.free.swap_remove(index));
        }
        let max = self.max();
        let mut count = (max / BLOCKS_LEAST).clamp(1, BLOCK_SLOTS as u32);
        if blocks.slots() + count > max {
            // Near the limit each thread gets one slot at a time, so that more threads get one.
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

    /// Takes a block back from a thread that ends or no longer needs it. Pins in it may last (rule 3).
    pub fn give(&self, block: Arc<PinBlock>) {
        let mut blocks = lock(&self.blocks);
        if !block.is_gone() {
            blocks.free.push(block);
        }
    }

    /// The pinned frames, after a heavy fence (rule 2), which pairs with the light fence in `announce`. Acquire: pairs
    /// with the Release in `announce` and `end`.
    pub fn pinned(&self) -> Pinned {
        barrier::heavy();
        let blocks = lock(&self.blocks);
        let slots = blocks.all.iter().flat_map(|block| block.used_slots());
        Pinned(slots.map(|slot| slot.load(Ordering::Acquire)).filter(|&frame| frame != 0).collect())
    }
}

impl PinBlock {
    /// A block without an empty slot, for threads without a block.
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
        // Acquire: pairs with the Release in `end`. The next pin in the slot comes after the last use of the former
        // pin, perhaps by another thread.
        (slot.load(Ordering::Acquire) == 0).then_some(slot)
    }

    /// An empty slot, if there is one.
    pub fn empty(&self) -> Option<&AtomicU32> {
        // Acquire: as in `first`.
        self.used_slots().iter().find(|slot| slot.load(Ordering::Acquire) == 0)
    }

    /// The number of pins in the block.
    fn used(&self) -> u32 {
        self.used_slots().iter().filter(|slot| slot.load(Ordering::Acquire) != 0).count() as u32
    }

    /// Whether there is no pin in the block.
    pub fn is_empty(&self) -> bool {
        self.used() == 0
    }

    /// Whether the block was taken away (rule 5). A thread asks this after it has announced a pin.
    #[inline(always)]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) != 0
    }
}

/// Announces a pin (rule 1). The caller then checks the frame's version, and whether the block is gone (rule 5). The
/// light fence pairs with the heavy fences in `Pins::pinned` and `PinBlocks::take_away`.
#[inline(always)]
pub fn announce(slot: &AtomicU32, hint: Hint, light: fn()) {
    // Release: pairs with the Acquire in `Pins::pinned`. That thread may not have seen the end of the slot's former
    // pin. If it sees this pin, all reads through the former one come before.
    slot.store(in_slot(hint), Ordering::Release);
    light();
}

/// The value of a slot that pins a frame. No frame has number 0.
#[inline(always)]
fn in_slot(hint: Hint) -> u32 {
    hint.doubled() as u32
}

/// Ends a pin. Release: pairs with the Acquire in `Pins::pinned` and `PinBlock::empty`, so that all reads through the
/// pin come before a reuse of the frame or slot.
#[inline(always)]
pub fn end(slot: &AtomicU32) {
    slot.store(0, Ordering::Release);
}
