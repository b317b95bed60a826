//! [`Event`]: ends the sleep of a thread that waits for descriptors. Non-goals: which wakes are worth a system call
//! (`parker`, `engine::wake`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, retry_on_intr, write};

use super::descriptor;

/// An event descriptor that does not block.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event that is not set.
    pub fn new() -> io::Result<Event> {
        Ok(Event(descriptor::event()?))
    }

    /// Makes the descriptor readable.
    pub fn set(&self) {
        let written = retry_on_intr(|| write(&self.0, &1u64.to_ne_bytes()));
        // EAGAIN means that the counter is full: the descriptor is readable, which is enough.
        debug_assert!(matches!(written, Ok(8) | Err(Errno::AGAIN)), "writing to an event descriptor: {written:?}");
    }

    /// Makes the descriptor unreadable until it is set again.
    pub fn drain(&self) -> io::Result<()> {
        let mut count = [0u8; 8];
        match retry_on_intr(|| read(&self.0, &mut count)) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until the event is set, one of the descriptors is readable, `timeout` is over, or a signal comes. Whether
    /// the event is set.
    pub fn wait(&self, readable: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(readable.len() + 1);
        polled.push(PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN));
        polled.extend(readable.iter().map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // A time beyond the kernel's range counts as for ever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => Ok(!polled[0].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A model's event descriptor.
#[cfg(iomill_models)]
pub mod model {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use crate::sys::sync::{Condvar, Mutex, lock, wait};

    /// See the module.
    #[derive(Debug)]
    pub struct Event(Mutex<bool>, Condvar);

    impl Event {
        pub fn new() -> io::Result<Event> {
            Ok(Event(Mutex::new(false), Condvar::new()))
        }

        pub fn set(&self) {
            *lock(&self.0) = true;
            self.1.notify_one();
        }

        pub fn drain(&self) -> io::Result<()> {
            *lock(&self.0) = false;
            Ok(())
        }

        pub fn wait(&self, _readable: &[BorrowedFd<'_>], _timeout: Option<Duration>) -> io::Result<bool> {
            let mut is_set = lock(&self.0);
            while !*is_set {
                is_set = wait(&self.1, is_set);
            }
            Ok(true)
        }
    }
}
