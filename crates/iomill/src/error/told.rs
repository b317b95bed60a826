//! Errors with a text and an errno, inside an [`io::Error`]. Non-goals: the errors of calls (`error`).

use std::error::Error as StdError;
use std::{fmt, io};

/// An error with a text, and the errno that the kernel uses for the same failure.
#[derive(Debug)]
struct Told {
    errno: i32,
    why: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl StdError for Told {}

/// Makes an error with a text and an errno ([`Error::errno`]).
pub(crate) fn told(errno: i32, why: impl Into<String>) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), Told { errno, why: why.into() })
}

/// The errno of an error of the kernel, or of [`told`].
pub(super) fn number(error: &io::Error) -> Option<i32> {
    let told = || Some(error.get_ref()?.downcast_ref::<Told>()?.errno);
    error.raw_os_error().or_else(told)
}
