//! A gate that I/O passes freely and that closes for the rare change that tolerates none in flight.
//!
//! Rules:
//! 1. Whoever enters counts up, then looks at the flag; whoever closes sets the flag, then looks at the count. Both are
//!    one word, so neither can miss the other.
//! 2. A call that finds the gate closed counts down again and waits outside, holding nothing.

use crate::sys::sync::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;

/// Counts the operations inside.
#[derive(Debug)]
pub struct Gate {
    /// CLOSED and the number inside.
    state: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { state: AtomicU64::new(0) }
    }
}

impl Gate {
    /// Enters; `pause` is called as long as the gate is closed. Every `enter` is followed by one `leave`.
    #[inline]
    pub fn enter(&self, mut pause: impl FnMut()) {
        while !self.try_enter() {
            pause();
        }
    }

    /// Enters unless the gate is closed.
    #[inline]
    pub fn try_enter(&self) -> bool {
        // The first look keeps those who wait from disturbing the closer's count.
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return false;
        }
        let entered = self.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0;
        if !entered {
            self.leave();
        }
        entered
    }

    /// Leaves.
    pub fn leave(&self) {
        let before = self.state.fetch_sub(1, Ordering::Release);
        debug_assert!(before & !CLOSED > 0);
    }

    /// Closes the gate until the guard is dropped, and waits (by `pause`) until nobody is inside. Closers exclude each
    /// other.
    pub fn close(&self, mut pause: impl FnMut()) -> Closed<'_> {
        while self.state.fetch_or(CLOSED, Ordering::Acquire) & CLOSED != 0 {
            pause();
        }
        while self.state.load(Ordering::Acquire) != CLOSED {
            pause();
        }
        Closed { gate: self }
    }
}

/// Keeps a gate closed.
#[derive(Debug)]
pub struct Closed<'a> {
    gate: &'a Gate,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.gate.state.fetch_and(!CLOSED, Ordering::Release);
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// An operation inside and the closer's change never overlap (loom reports it), and see each other's effects.
    #[test]
    fn loom_gate() {
        model(|| {
            let shared = Arc::new((Gate::default(), UnsafeCell::new(0)));
            let io = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    if shared.0.try_enter() {
                        // SAFETY: loom checks that the closer is not at it.
                        shared.1.with(|value| unsafe { assert!(*value != 1) });
                        shared.0.leave();
                    }
                }
            });
            let closed = shared.0.close(thread::yield_now);
            // SAFETY: loom checks that the operation is not at it.
            shared.1.with_mut(|value| unsafe { *value = 1 });
            shared.1.with_mut(|value| unsafe { *value = 2 });
            drop(closed);
            io.join().unwrap();
        });
    }
}
