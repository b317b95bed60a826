//! The standard streams of a caller that has closed them, or opened them the wrong way.
//!
//! Goals: output that goes nowhere is an error, and a missing input is not taken for an empty one. Neither is so by
//! Rust's own means: its start opens /dev/null in place of a closed stream, and its `stdout` and `stdin` take EBADF for
//! success. Non-goals: the standard error, which has no better place for a message.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

/// Runs before Rust's start, which would hide that a stream is closed.
// SAFETY: the section is an array of functions without arguments that the C library calls once, and this is one.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_START: extern "C" fn() = refuse_closed;

/// Puts a descriptor in the place of a closed standard input or output. Reads of that input and writes to that output
/// fail with EBADF, as they would without it.
extern "C" fn refuse_closed() {
    for (stream, way) in [(libc::STDIN_FILENO, libc::O_WRONLY), (libc::STDOUT_FILENO, libc::O_RDONLY)] {
        // SAFETY: both are system calls of the C library, which is ready before it calls what is in `.init_array`. No
        // thread was started yet, and nothing of Rust's library is used. The text ends with a zero byte. The new
        // descriptor is the lowest free one, which is `stream`: those below it are open by now.
        unsafe {
            if libc::fcntl(stream, libc::F_GETFD) < 0 {
                libc::open(c"/dev/null".as_ptr(), way);
            }
        }
    }
}

/// The standard output, without a buffer. Fails with EBADF if it is closed.
pub fn stdout() -> io::Result<File> {
    opened(&io::stdout(), OFlags::RDONLY)
}

/// The standard input, without a buffer. Fails with EBADF if it is closed.
pub fn stdin() -> io::Result<File> {
    opened(&io::stdin(), OFlags::WRONLY)
}

/// A descriptor of our own for a stream, unless it was opened only for the other direction.
fn opened(stream: &impl AsFd, refused: OFlags) -> io::Result<File> {
    match fcntl_getfl(stream)? & OFlags::RWMODE {
        way if way == refused => Err(Errno::BADF.into()),
        _ => Ok(stream.as_fd().try_clone_to_owned()?.into()),
    }
}
