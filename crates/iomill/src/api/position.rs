//! [`Position`]: where the clones of a handle read and write by `std::io`. Non-goals: those calls (`cursor`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::exec::pools::check_may_block;
use crate::sys::process::PerProcess;
use crate::sys::sync::{Mutex, lock, try_lock};

/// The position that the clones of a handle share. A forked child goes on from where its parent was.
#[derive(Debug)]
pub struct Position {
    /// Held by the call that moves the position. A child has its own, because a thread of its parent may hold this.
    turn: PerProcess<Mutex<()>>,
    offset: AtomicU64,
}

impl Default for Position {
    fn default() -> Position {
        Position { turn: PerProcess::empty(), offset: AtomicU64::new(0) }
    }
}

impl Position {
    /// Calls `step` with the position. It returns a result, and where the position is then. Where `call` must wait for another thread's, that is an
    /// error in callbacks and wakers.
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
