//! [`Position`]: the offset of the next `std::io` call of a handle and its clones. Non-goals: those calls (`cursor`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::exec::users_code::check_may_block;
use crate::sys::process::PerProcess;
use crate::sys::sync::{Mutex, lock, try_lock};

/// The position that the clones of a handle share. A forked child begins with its parent's position.
#[derive(Debug)]
pub struct Position {
    /// Held by the call that moves the position. A child has its own lock, because a thread of the parent may hold this
    /// one.
    turn: PerProcess<Mutex<()>>,
    offset: AtomicU64,
}

impl Default for Position {
    fn default() -> Position {
        Position { turn: PerProcess::empty(), offset: AtomicU64::new(0) }
    }
}

impl Position {
    /// Calls `step` with the position. `step` returns a result and the next position. In callbacks and wakers it is an
    /// error if `call` must wait for another thread's call.
    pub fn pass<R>(&self, call: &'static str, step: impl FnOnce(u64) -> Result<(R, u64)>) -> io::Result<R> {
        let turn = self.turn.get();
        let _turn = match try_lock(turn) {
            Some(turn) => turn,
            None => {
                check_may_block(call)?;
                lock(turn)
            }
        };
        let (result, offset) = step(self.offset.load(Ordering::Relaxed))?;
        self.offset.store(offset, Ordering::Relaxed);
        Ok(result)
    }
}
