//! Waking an engine that sleeps in the kernel, and counting down how long it may sleep.
//!
//! The rules of a wake, kept by `EventWake` and the engines that use it:
//! 1. A waker sets `pending` first; only the one that found it unset writes to the event descriptor.
//! 2. The engine takes `pending` before it sleeps, and does not sleep when it was set.
//! 3. When the descriptor's event arrives, the engine drains the descriptor and then takes `pending` again; unset means
//!    that an earlier `wait` already returned for it, and it goes on sleeping.
//!
//! So a wake is never lost: it is seen by 2, or its write comes after 2 and ends the sleep.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::Wake;

/// A wake by an event descriptor, for engines that wait inside the kernel.
#[derive(Debug)]
pub(super) struct EventWake {
    /// Non-blocking. Readable from the write of rule 1 to the drain of rule 3.
    fd: OwnedFd,
    /// Somebody wants the engine's `wait` to return.
    pending: AtomicBool,
}

impl EventWake {
    pub(super) fn new() -> io::Result<Arc<EventWake>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(EventWake { fd, pending: AtomicBool::new(false) }))
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Rules 2 and 3: whether somebody wanted a wake; it counts as delivered now.
    pub(super) fn take(&self) -> bool {
        self.pending.swap(false, Ordering::AcqRel)
    }

    /// Rule 3: makes the descriptor unreadable until the next write.
    pub(super) fn drain(&self) -> io::Result<()> {
        let mut count = [0u8; 8];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut count)) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anybody but the engine itself holds `wake`. Without such a one no wake can come while the engine sleeps,
    /// so that it may sleep until several completions are there.
    pub(super) fn is_shared(wake: &Arc<EventWake>) -> bool {
        let shared = Arc::strong_count(wake) > 1;
        // Pairs with the release of the last other holder, whose wake came before: `take` then sees it.
        fence(Ordering::Acquire);
        shared
    }
}

impl Wake for EventWake {
    fn wake(&self) {
        if self.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, &1u64.to_ne_bytes()));
        // EAGAIN: the counter is full, so the descriptor is readable, which is all that is wanted.
        debug_assert!(matches!(written, Ok(8) | Err(Errno::AGAIN)), "writing to an event descriptor: {written:?}");
    }
}

/// The end of a wait. The clock is read only when somebody asks how much is left.
#[derive(Debug)]
pub(super) struct Deadline {
    timeout: Option<Duration>,
    end: Option<Instant>,
}

impl Deadline {
    pub(super) fn new(timeout: Option<Duration>) -> Deadline {
        Deadline { timeout, end: None }
    }

    /// How long to sleep now: `None` is for ever, zero is not at all.
    pub(super) fn left(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        if timeout.is_zero() {
            return Some(timeout);
        }
        match self.end {
            Some(end) => Some(end.saturating_duration_since(Instant::now())),
            None => {
                // A time beyond the clock's reach is for ever.
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
