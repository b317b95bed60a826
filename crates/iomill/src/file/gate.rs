//! A [`Gate`]: I/O enters it freely, and a rare change closes it, with no I/O in flight meanwhile. Non-goals: the
//! change itself.
//!
//! Rules:
//! 1. An operation that enters counts up, and then looks at the flag. A change that closes the gate sets the flag, and
//!    then looks at the count. Both are in one word, so neither can miss the other.
//! 2. A call that finds the gate closed counts down again and waits outside, holding nothing.
//! 3. A call that waits outside leaves a mark (`KEPT_OUT`), which the next call that enters clears. If the gate opens
//!    with that mark, the calls outside get a turn (`TURN`): the gate does not close again before one of them has
//!    entered. So changes in a loop cannot starve them.
//! 4. A call that leaves the mark keeps trying until it has entered. So every turn is taken.

use crate::sys::sync::{AtomicU64, Ordering};

const CLOSED: u64 = 1 << 63;
const KEPT_OUT: u64 = 1 << 62;
const TURN: u64 = 1 << 61;
const INSIDE: u64 = TURN - 1;

/// Counts the operations inside, and keeps new ones out while it is closed.
#[derive(Debug)]
pub struct Gate {
    /// The flags, and the number of operations inside. `CLOSED` and `TURN` are never set together.
    state: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { state: AtomicU64::new(0) }
    }
}

impl Gate {
    /// Enters. Calls `pause` as long as the gate is closed. Each `enter` needs one `leave`.
    #[inline]
    pub fn enter(&self, mut pause: impl FnMut()) {
        while !self.try_enter() {
            self.keep_out();
            pause();
        }
    }

    /// Enters, unless the gate is closed.
    #[inline]
    pub fn try_enter(&self) -> bool {
        // The first check keeps waiting calls from disturbing the closer's count.
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return false;
        }
        // Acquire: pairs with the Release in `Closed::drop`, so that the change is seen.
        let before = self.state.fetch_add(1, Ordering::Acquire);
        if before & CLOSED != 0 {
            self.leave();
            return false;
        }
        if before & (KEPT_OUT | TURN) != 0 {
            self.state.fetch_and(!(KEPT_OUT | TURN), Ordering::Relaxed);
        }
        true
    }

    /// Leaves the mark of a call that waits, if the gate is still closed (rules 3 and 4).
    #[cold]
    fn keep_out(&self) {
        let mark = |state| (state & CLOSED != 0).then_some(state | KEPT_OUT);
        let _open_by_now = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark);
    }

    /// Leaves.
    pub fn leave(&self) {
        // Release: pairs with the Acquire in `close`, so that the change comes after what was done inside.
        let before = self.state.fetch_sub(1, Ordering::Release);
        debug_assert!(before & INSIDE > 0);
    }

    /// Closes the gate until the guard is dropped, and waits (by `pause`) until no operation is inside. Closers exclude
    /// each other.
    pub fn close(&self, mut pause: impl FnMut()) -> Closed<'_> {
        let close = |state| (state & (CLOSED | TURN) == 0).then_some(state | CLOSED);
        // Acquire: pairs with the Release in `Closed::drop`, so that a closer sees the change of the last one.
        while self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, close).is_err() {
            pause();
        }
        // Acquire: pairs with the Release in `leave`.
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
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
        let open =
            |state| Some(if state & KEPT_OUT != 0 { (state | TURN) & !(CLOSED | KEPT_OUT) } else { state & !CLOSED });
        // Release: pairs with the Acquire in `try_enter` and in `close`.
        let _always_opens = self.gate.state.fetch_update(Ordering::Release, Ordering::Relaxed, open);
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

    /// A change in a loop lets a call in that it has kept out (rule 3).
    ///
    /// Seen to fail when `Closed::drop` gave no turn.
    #[test]
    fn loom_gate_gives_turns() {
        model(|| {
            let shared = Arc::new((Gate::default(), AtomicU64::new(0), AtomicU64::new(0)));
            let io = thread::spawn({
                let shared = Arc::clone(&shared);
                move || {
                    let (gate, kept_out, entered) = &*shared;
                    while !gate.try_enter() {
                        gate.keep_out();
                        // Only a mark that was left while the gate was closed counts.
                        if gate.state.load(Ordering::Relaxed) & (CLOSED | KEPT_OUT) == CLOSED | KEPT_OUT {
                            kept_out.store(1, Ordering::SeqCst);
                        }
                        thread::yield_now();
                    }
                    entered.store(1, Ordering::SeqCst);
                    gate.leave();
                }
            });
            let closed = shared.0.close(thread::yield_now);
            let was_kept_out = shared.1.load(Ordering::SeqCst) == 1;
            drop(closed);
            let closed = shared.0.close(thread::yield_now);
            assert!(!was_kept_out || shared.2.load(Ordering::SeqCst) == 1, "it was kept out twice");
            drop(closed);
            io.join().unwrap();
        });
    }
}
