//! [`Position`]: where the clones of a handle read and write by `std::io`. Non-goals: those calls (`cursor`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::sys::sync::{Mutex, lock};

/// The position that the clones of a handle share.
#[derive(Debug, Default)]
pub struct Position {
    /// Held by the call that moves the position.
    turn: Mutex<()>,
    offset: AtomicU64,
}

impl Position {
    /// Begins where another position is. It takes no lock, for a forked child.
    pub fn begin_at(&self, other: &Position) {
        self.offset.store(other.offset.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Calls `step` with the position. It returns a result, and where the position is then.
    pub fn pass<R>(&self, step: impl FnOnce(u64) -> Result<(R, u64)>) -> io::Result<R> {
        let _turn = lock(&self.turn);
        let (result, offset) = step(self.offset.load(Ordering::Relaxed))?;
        self.offset.store(offset, Ordering::Relaxed);
        Ok(result)
    }
}
