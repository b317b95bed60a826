//! [`Fair`]: a mutex that threads get in the order in which they asked, for locks that are held during I/O.
//!
//! A thread that releases std's mutex may take it again before the thread that it woke. If it holds the mutex during
//! I/O and does so in a loop, it keeps the others out for ever. Non-goals: speed without contention; each lock takes
//! two mutexes.
//!
//! Rules:
//! 1. A thread that asks draws a ticket, and waits for its ticket's turn. The holder passes the turn on at its release.
//! 2. The turn is passed before the value's mutex is released. So the next thread may wait there for a moment, but no
//!    other thread does.

use std::ops::{Deref, DerefMut};

use super::sync::{Condvar, Mutex, MutexGuard, lock, wait};

/// A mutex that serves threads in order.
#[derive(Debug, Default)]
pub struct Fair<T> {
    turns: Mutex<Turns>,
    passed: Condvar,
    /// Locked by the thread that has the turn.
    value: Mutex<T>,
}

#[derive(Debug, Default)]
struct Turns {
    /// The ticket that has the turn.
    now: u64,
    /// The next ticket to be drawn.
    next: u64,
}

/// Holds a [`Fair`].
#[derive(Debug)]
pub struct FairGuard<'a, T> {
    fair: &'a Fair<T>,
    value: MutexGuard<'a, T>,
}

impl<T> Fair<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Fair<T> {
        Fair { turns: Mutex::default(), passed: Condvar::new(), value: Mutex::new(value) }
    }

    /// Locks the mutex, after all threads that asked before.
    pub fn lock(&self) -> FairGuard<'_, T> {
        let mut turns = lock(&self.turns);
        let ticket = turns.next;
        turns.next += 1;
        while turns.now != ticket {
            turns = wait(&self.passed, turns);
        }
        drop(turns);
        FairGuard { fair: self, value: lock(&self.value) }
    }

    /// The number of threads that hold the mutex or wait for it.
    #[cfg(test)]
    pub fn asked(&self) -> u64 {
        let turns = lock(&self.turns);
        turns.next - turns.now
    }
}

impl<T> Deref for FairGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FairGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for FairGuard<'_, T> {
    fn drop(&mut self) {
        let mut turns = lock(&self.fair.turns);
        turns.now += 1;
        // Wakes all, because a waiting thread knows only its own ticket; and none if no thread waits, because a
        // notification is a system call in any case.
        if turns.now != turns.next {
            self.fair.passed.notify_all();
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    /// A thread that locks again right after its release does not overtake a thread that waits. With std's mutex it
    /// did.
    #[test]
    fn a_thread_that_waits_is_not_overtaken() {
        let fair = Fair::new(Vec::new());
        std::thread::scope(|scope| {
            let held = fair.lock();
            for name in 1..4 {
                let fair = &fair;
                scope.spawn(move || fair.lock().push(name));
                while fair.asked() <= name {
                    std::thread::yield_now();
                }
            }
            drop(held);
            assert_eq!(*fair.lock(), [1, 2, 3]);
        });
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{Arc, model};
    use loom::thread;

    /// One thread at a time has the value, every thread gets it, and none overtakes a thread that waits (rule 1).
    ///
    /// Seen to fail when the guard woke no thread, and when `lock` did not wait for its turn.
    #[test]
    fn loom_fair_serves_in_order() {
        model(|| {
            let fair = Arc::new(Fair::new(0));
            let other = thread::spawn({
                let fair = Arc::clone(&fair);
                move || (0..2).for_each(|_| *fair.lock() += 1)
            });
            let asked = lock(&fair.turns).next;
            let seen = *fair.lock();
            assert!(seen >= asked, "the other had asked {asked} times before, and has had it {seen} times");
            other.join().unwrap();
            assert_eq!(*fair.lock(), 2);
        });
    }
}
