//! An array in a process that was forked from the one that opened it.
//!
//! The child has a copy of all memory, but no threads, and shares descriptors: locks, rings, the file of counters. What it did to its copy
//! would undo what the parent has done since. It flushes nothing, unlocks nothing, waits for nothing.
//!
//! Rules:
//! 1. Every call asks `check_home` before it takes a lock, which a thread that the child does not have may hold.
//! 2. What takes locks, tells others or touches shared memory when it is dropped asks too, and leaves all as it is in a child.
//! 3. What has such parts is not dropped in a child: each handle leaves its share of the count behind.
//! 4. A hit in the cache asks nothing. It finds its thread's seat by `seat::LAST`, which the C library has cleared in the child.

use super::array::ArrayInner;
use crate::error::{Error, Result};

impl ArrayInner {
    /// An error where another process has the array open, and this is its child.
    #[inline]
    pub fn check_home(&self) -> Result<()> {
        if self.home.is_here() { Ok(()) } else { Err(Error::Forked) }
    }
}
