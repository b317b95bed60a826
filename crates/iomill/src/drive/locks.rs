//! Locks on blocks, so that a read-modify-write of a page never loses another write to it.
//!
//! Rules:
//! 1. A write of whole pages holds its block's lock shared while it is in flight. A read-modify-write holds it
//!    exclusively from before its read until after its write.
//! 2. A piece never waits while it holds a lock: it takes exactly one, by `try_`, and releases it when it ends. So no
//!    order of locks can deadlock.
//! 3. An exclusive taker that fails leaves a mark (`WAITING`) that keeps new sharers out, so that it cannot starve. The
//!    next exclusive taker clears the mark.
//! 4. A sharer that fails leaves a mark, too (`KEPT_OUT`), which the next sharer clears. If an exclusive hold ends with
//!    that mark, the sharers have their turn (`TURN`): no exclusive taker gets the lock before one of them. So
//!    exclusive takers cannot starve them.
//! 5. Every taker that leaves a mark keeps trying until it has the lock (pieces are never given up). A mark is set only
//!    while one of the takers that left it has not had the lock since. So every mark is cleared.
//!
//! Blocks share a fixed number of locks by hash. Two blocks with the same lock only wait for each other more often than
//! necessary.

use crate::sys::sync::{AtomicU32, Ordering};

const EXCLUSIVE: u32 = 1 << 31;
const WAITING: u32 = 1 << 30;
const KEPT_OUT: u32 = 1 << 29;
const TURN: u32 = 1 << 28;
const SHARERS: u32 = TURN - 1;

#[cfg(not(iomill_models))]
const LOCKS: usize = 4096;
#[cfg(iomill_models)]
const LOCKS: usize = 1;

/// The block locks of one array.
#[derive(Debug)]
pub struct BlockLocks {
    /// The flags and a count of sharers. `EXCLUSIVE` and `TURN` never occur together, and neither of them with a count.
    states: Box<[AtomicU32]>,
}

impl Default for BlockLocks {
    fn default() -> Self {
        BlockLocks { states: (0..LOCKS).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl BlockLocks {
    /// The lock of a block.
    pub fn index(file_key: u64, block: u64) -> u32 {
        // The upper bits tell arrays of the process apart (`Exec::next_key`). These locks are of one array, and which
        // of its blocks share a lock must not depend on the arrays that were opened before.
        let file = file_key << 24;
        // Multiplication by odd constants spreads runs of blocks; the high bits are the well-mixed ones.
        let mixed = (file ^ block.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed >> 40) as u32 % LOCKS as u32
    }

    /// Takes the lock together with other sharers, or leaves a mark that a sharer was kept out.
    pub fn try_shared(&self, index: u32) -> bool {
        self.change(index, |seen| {
            let free = seen & TURN != 0 || seen & (EXCLUSIVE | WAITING) == 0;
            match free && seen & SHARERS < SHARERS {
                true => (true, (seen + 1) & !(TURN | KEPT_OUT)),
                false => (false, if free { seen } else { seen | KEPT_OUT }),
            }
        })
    }

    /// Takes the lock alone, or leaves a mark that an exclusive taker waits for it.
    pub fn try_exclusive(&self, index: u32) -> bool {
        self.change(index, |seen| match seen & (EXCLUSIVE | SHARERS | TURN) == 0 {
            true => (true, (seen | EXCLUSIVE) & !WAITING),
            false => (false, seen | WAITING),
        })
    }

    /// Changes a lock's state; `next` says whether the lock is taken, and the new state. Acquire: pairs with the
    /// Release in `release_shared` and `release_exclusive`.
    #[inline]
    fn change(&self, index: u32, next: impl Fn(u32) -> (bool, u32)) -> bool {
        let state = &self.states[index as usize];
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            let (taken, next) = next(seen);
            if seen == next {
                return taken;
            }
            match state.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(now) => seen = now,
            }
        }
    }

    /// Releases a shared hold. Release: pairs with the Acquire in `change`.
    pub fn release_shared(&self, index: u32) {
        let before = self.states[index as usize].fetch_sub(1, Ordering::Release);
        debug_assert!(before & SHARERS > 0 && before & EXCLUSIVE == 0);
    }

    /// Releases an exclusive hold. Sharers that were kept out have their turn (rule 4). An exclusive taker that waits
    /// then leaves its mark again. Release: pairs with the Acquire in `change`.
    pub fn release_exclusive(&self, index: u32) {
        let state = &self.states[index as usize];
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen & EXCLUSIVE != 0 && seen & (SHARERS | TURN) == 0);
            let next = if seen & KEPT_OUT != 0 { TURN } else { seen & !EXCLUSIVE };
            match state.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn sharers_and_exclusive_keep_each_other_out() {
        let locks = BlockLocks::default();
        assert!(locks.try_shared(5) && locks.try_shared(5));
        assert!(!locks.try_exclusive(5));
        assert!(!locks.try_shared(5), "a waiting exclusive taker keeps new sharers out");
        locks.release_shared(5);
        locks.release_shared(5);
        assert!(locks.try_exclusive(5));
        assert!(!locks.try_shared(5) && !locks.try_exclusive(5));
        locks.release_exclusive(5);
        assert!(locks.try_shared(5), "it was kept out, and has its turn");
        locks.release_shared(5);
        assert!(locks.try_exclusive(5));
        locks.release_exclusive(5);
        assert!(locks.try_shared(5));
    }

    /// Two modifiers in turn, and each asks again before the other is done: a sharer gets in between.
    #[test]
    fn exclusive_takers_do_not_starve_a_sharer() {
        let locks = BlockLocks::default();
        assert!(locks.try_exclusive(5));
        assert!(!locks.try_exclusive(5) && !locks.try_shared(5));
        locks.release_exclusive(5);
        assert!(!locks.try_exclusive(5), "the sharer, which was kept out, has its turn");
        assert!(locks.try_shared(5));
        assert!(!locks.try_exclusive(5));
        assert!(!locks.try_shared(5), "one turn, not all of them: an exclusive taker waits");
        locks.release_shared(5);
        assert!(locks.try_exclusive(5), "the turns alternate");
        locks.release_exclusive(5);
        assert!(locks.try_shared(5));
        locks.release_shared(5);
        assert!(locks.try_exclusive(5), "no mark stays behind");
    }

    #[test]
    fn blocks_of_a_file_spread_over_the_locks() {
        let used: std::collections::HashSet<u32> = (0..4096).map(|b| BlockLocks::index(77, b)).collect();
        assert!(used.len() > 2000, "{} of 4096", used.len());
        let files: std::collections::HashSet<u32> = (1..4097).map(|key| BlockLocks::index(key, 0)).collect();
        assert!(files.len() > 2000, "{} of 4096", files.len());
        assert_eq!(BlockLocks::index(77, 5), BlockLocks::index(3 << 40 | 77, 5), "the array's number does not count");
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Block {
        locks: BlockLocks,
        page: UnsafeCell<u32>,
    }

    fn block() -> Arc<Block> {
        Arc::new(Block { locks: BlockLocks::default(), page: UnsafeCell::new(0) })
    }

    /// Rule 1: two modifiers and a sharer. loom reports it when two of them are at the page at once. No modification is
    /// lost.
    #[test]
    fn loom_locks_exclude() {
        model(|| {
            let block = block();
            let modify = |block: Arc<Block>, bit: u32| {
                let taken = block.locks.try_exclusive(0);
                if taken {
                    // SAFETY: loom checks that no other thread is at the page.
                    block.page.with_mut(|page| unsafe { *page |= bit });
                    block.locks.release_exclusive(0);
                }
                if taken { bit } else { 0 }
            };
            let first = thread::spawn({
                let block = Arc::clone(&block);
                move || modify(block, 1)
            });
            let second = thread::spawn({
                let block = Arc::clone(&block);
                move || modify(block, 2)
            });
            if block.locks.try_shared(0) {
                // SAFETY: loom checks that no modifier is at the page.
                block.page.with(|page| unsafe { assert!(*page < 4) });
                block.locks.release_shared(0);
            }
            let done = first.join().unwrap() | second.join().unwrap();
            // SAFETY: all other threads have ended.
            block.page.with(|page| unsafe { assert_eq!(*page, done) });
        });
    }

    /// Rules 4 and 5: a sharer, and a modifier that comes twice, keep trying. Both get the lock, and neither a mark nor
    /// a turn stays behind.
    #[test]
    fn loom_locks_give_turns() {
        model(|| {
            let block = block();
            assert!(block.locks.try_exclusive(0));
            let sharer = thread::spawn({
                let block = Arc::clone(&block);
                move || {
                    while !block.locks.try_shared(0) {
                        thread::yield_now();
                    }
                    block.locks.release_shared(0);
                }
            });
            for _ in 0..2 {
                block.locks.release_exclusive(0);
                while !block.locks.try_exclusive(0) {
                    thread::yield_now();
                }
            }
            block.locks.release_exclusive(0);
            sharer.join().unwrap();
            assert!(block.locks.try_exclusive(0), "a mark or a turn stayed behind");
        });
    }

    /// Rule 3: a modifier that keeps trying gets the lock although a sharer was first, and its mark is cleared.
    #[test]
    fn loom_locks_leave_no_mark() {
        model(|| {
            let block = block();
            assert!(block.locks.try_shared(0));
            let modifier = thread::spawn({
                let block = Arc::clone(&block);
                move || {
                    while !block.locks.try_exclusive(0) {
                        thread::yield_now();
                    }
                    block.locks.release_exclusive(0);
                }
            });
            block.locks.release_shared(0);
            modifier.join().unwrap();
            assert!(block.locks.try_shared(0), "a mark stayed behind");
        });
    }
}
