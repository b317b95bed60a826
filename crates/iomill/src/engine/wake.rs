//! Wakes of an engine that sleeps in the kernel, and the time that is left of its sleep.
//!
//! The rules of a wake, which `EventWake` and the engines that use it keep:
//! 1. A waker sets `pending` first. Only the waker that found it unset writes to the event descriptor.
//! 2. The engine takes `pending` before it sleeps, and does not sleep if it was set.
//! 3. When the descriptor's event arrives, the engine drains the descriptor and then takes `pending` again. If it is
//!    unset, an earlier `wait` has already returned for this wake, and the engine goes on sleeping.
//!
//! So no wake is lost: either rule 2 sees it, or its write to the descriptor comes after rule 2 and ends the sleep.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use super::EngineWake;
use crate::sys::event::Event;

/// A wake by an event descriptor, for engines that wait inside the kernel.
#[derive(Debug)]
pub(super) struct EventWake {
    /// Readable from the write of rule 1 to the drain of rule 3.
    event: Event,
    /// Set while a waker wants the engine's `wait` to return.
    pending: AtomicBool,
}

impl EventWake {
    pub(super) fn new() -> io::Result<Arc<EventWake>> {
        Ok(Arc::new(EventWake { event: Event::new()?, pending: AtomicBool::new(false) }))
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }

    /// The event that a waker sets.
    pub(super) fn event(&self) -> &Event {
        &self.event
    }

    /// Rules 2 and 3: takes a wake. Whether there was one.
    pub(super) fn take(&self) -> bool {
        // AcqRel: pairs with the same in `wake`.
        self.pending.swap(false, Ordering::AcqRel)
    }

    /// Rule 3: makes the descriptor unreadable until the next write.
    pub(super) fn drain(&self) -> io::Result<()> {
        self.event.drain()
    }

    /// Whether the engine is not the only owner of `wake`. If it is, no wake can come while it sleeps, so it may sleep
    /// until there are several completions.
    pub(super) fn is_shared(wake: &Arc<EventWake>) -> bool {
        let shared = Arc::strong_count(wake) > 1;
        // Acquire: pairs with the Release in the drop of the last other `Arc`. That holder's wake came before its drop,
        // so `take` sees it.
        fence(Ordering::Acquire);
        shared
    }
}

impl EngineWake for EventWake {
    fn wake(&self) {
        // AcqRel: pairs with the same in `take`.
        if self.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        self.event.set();
    }
}

/// The end of a wait. Only `left` reads the clock.
#[derive(Debug)]
pub struct Deadline {
    timeout: Option<Duration>,
    end: Option<Instant>,
}

impl Deadline {
    /// A deadline at `timeout` after the first call of `left`. `None` is for ever.
    pub fn new(timeout: Option<Duration>) -> Deadline {
        Deadline { timeout, end: None }
    }

    /// The time that is left: `None` is for ever, zero means that the wait is over.
    pub fn left(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        if timeout.is_zero() {
            return Some(timeout);
        }
        match self.end {
            Some(end) => Some(end.saturating_duration_since(Instant::now())),
            None => {
                // A time beyond the clock's range counts as for ever.
                let Some(end) = Instant::now().checked_add(timeout) else {
                    self.timeout = None;
                    return None;
                };
                self.end = Some(end);
                Some(timeout)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakes_merge_and_are_taken_once() {
        let wake = EventWake::new().unwrap();
        assert!(!EventWake::is_shared(&wake));
        let other = Arc::clone(&wake);
        assert!(EventWake::is_shared(&wake));
        other.wake();
        other.wake();
        drop(other);
        assert!(!EventWake::is_shared(&wake));
        assert!(wake.take());
        assert!(!wake.take());
        wake.drain().unwrap();
        wake.drain().unwrap();
    }

    #[test]
    fn deadlines_count_down() {
        assert_eq!(Deadline::new(None).left(), None);
        assert_eq!(Deadline::new(Some(Duration::ZERO)).left(), Some(Duration::ZERO));
        assert_eq!(Deadline::new(Some(Duration::MAX)).left(), None);
        let mut short = Deadline::new(Some(Duration::from_millis(1)));
        assert_eq!(short.left(), Some(Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(short.left(), Some(Duration::ZERO));
    }
}
