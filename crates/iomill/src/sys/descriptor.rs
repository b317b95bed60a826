//! Descriptors above 2 for this library. A program may have closed its standard input, output or error. If a file of
//! ours got such a number, a line that the program or a C library prints would overwrite the file.
//!
//! Every descriptor that outlives a call comes from here, or goes through [`raised`]. Non-goals: files of the kernel
//! that are opened for reading only, read, and closed at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// The descriptor of the standard error, the last one that is not ours to use.
const LAST_STANDARD: i32 = 2;

/// The most tries of [`made_above`]. Each try takes one of the three numbers, unless another thread closes one
/// meanwhile.
const TRIES: usize = 64;

/// The same open file, with a number above 2.
pub fn raised(descriptor: OwnedFd) -> Result<OwnedFd, Errno> {
    if descriptor.as_raw_fd() > LAST_STANDARD {
        return Ok(descriptor);
    }
    // The low number is closed when `descriptor` is dropped.
    fcntl_dupfd_cloexec(&descriptor, LAST_STANDARD + 1)
}

/// `openat`, repeated after a signal.
pub fn openat(at: impl AsFd, path: impl AsRef<Path>, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    loop {
        match fs::openat(at.as_fd(), path.as_ref(), flags | OFlags::CLOEXEC, mode) {
            Err(Errno::INTR) => {}
            opened => return raised(opened?),
        }
    }
}

/// `openat2`.
pub fn openat2(at: impl AsFd, path: &str, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    raised(fs::openat2(at.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve)?)
}

/// A new event descriptor that does not block.
pub fn event() -> Result<OwnedFd, Errno> {
    raised(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A value from `make`, with a descriptor above 2, for values that do not let their descriptor be changed. While low
/// numbers are free, event descriptors occupy them.
pub fn made_above<T: AsRawFd>(make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut low = Vec::new();
    for _ in 0..TRIES {
        let made = make()?;
        if made.as_raw_fd() > LAST_STANDARD {
            return Ok(made);
        }
        drop(made);
        low.push(eventfd(0, EventfdFlags::CLOEXEC)?);
    }
    Err(io::Error::other("descriptors 0 to 2 are closed again and again while a ring is made; open them to /dev/null"))
}
