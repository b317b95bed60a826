//! [`End`]: the end of an operation, for the future that waits for it. Non-goals: the result.

use std::task::Waker;

use crate::sys::sync::{AtomicBool, Mutex, Ordering, lock};

/// See the module.
#[derive(Debug)]
pub struct End {
    /// Set under the lock of `waker`.
    has_come: AtomicBool,
    /// The waker of the task that waits. `None` before a poll has left it, and after the end.
    waker: Mutex<Option<Waker>>,
}

impl Default for End {
    fn default() -> End {
        End { has_come: AtomicBool::new(false), waker: Mutex::new(None) }
    }
}

impl End {
    /// Notes the end. Returns the waker of the task that waits, which the caller wakes.
    pub fn come(&self) -> Option<Waker> {
        let mut waker = lock(&self.waker);
        // Release: pairs with the Acquire in `has_come`.
        self.has_come.store(true, Ordering::Release);
        waker.take()
    }

    /// Whether the operation has ended. Then the caller sees what was done before the end.
    #[inline]
    pub fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Has the end wake a task. `false` if it has come.
    pub fn wait(&self, waker: &Waker) -> bool {
        if lock(&self.waker).as_ref().is_some_and(|before| before.will_wake(waker)) {
            return true;
        }
        // Wakers are code of the user: none is cloned or dropped under the lock.
        let mut waker = Some(waker.clone());
        let mut before = lock(&self.waker);
        if self.has_come() {
            return false;
        }
        std::mem::swap(&mut *before, &mut waker);
        drop(before);
        drop(waker);
        true
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use std::task::Wake;

    use super::*;
    use crate::sys::sync::{AtomicU32, model};
    use loom::sync::{Arc, Notify};

    struct Woken(Notify);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.notify();
        }
    }

    /// A task that waits for the end is woken, or sees the end, and then what was done before it. Loom reports a lost
    /// wake.
    ///
    /// Seen to fail when `wait` did not look for the end again under the lock, and when the store in `come` was Relaxed.
    #[test]
    fn loom_end_is_seen() {
        model(|| {
            let shared = Arc::new((End::default(), AtomicU32::new(0)));
            let theirs = Arc::clone(&shared);
            let ending = loom::thread::spawn(move || {
                theirs.1.store(1, Ordering::Relaxed);
                if let Some(waker) = theirs.0.come() {
                    waker.wake();
                }
            });
            let woken = std::sync::Arc::new(Woken(Notify::new()));
            let waker = Waker::from(std::sync::Arc::clone(&woken));
            while !shared.0.has_come() && shared.0.wait(&waker) {
                woken.0.wait();
            }
            assert_eq!(shared.1.load(Ordering::Relaxed), 1);
            ending.join().unwrap();
        });
    }
}
