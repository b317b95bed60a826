//! Errors of the library as exceptions, with the library's messages. Users expect `OSError`, `ValueError` and
//! `MemoryError`, so there are no classes of our own. Non-goals: row numbers out of bounds (`ids`).

use iomill::Error;
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EROFS: i32 = 30;
const ESTALE: i32 = 116;

/// The exception for an error of the library.
pub fn exception(error: Error) -> PyErr {
    let errno = match &error {
        Error::Invalid { .. } | Error::Closed => return PyValueError::new_err(error.to_string()),
        Error::Memory { .. } => return PyMemoryError::new_err(error.to_string()),
        Error::NotFound { .. } => ENOENT,
        Error::Exists { .. } => EEXIST,
        Error::Busy { .. } | Error::Locked { .. } => EBUSY,
        Error::ReadOnly { .. } => EROFS,
        // The drive has not failed: it is missing, foreign or of another array.
        Error::Drive { .. } => EINVAL,
        _ => match error.errno() {
            Some(errno) => errno,
            None => EIO,
        },
    };
    // Python makes `FileNotFoundError` and similar exceptions from the number.
    PyOSError::new_err((errno, error.to_string()))
}

/// The exception for a use of a closed object, with the text of Python's own files.
pub fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// The exception for a change through a handle for reading.
pub fn read_only(name: &str) -> PyErr {
    PyOSError::new_err((EROFS, format!("{name} was opened for reading; open it with mode=\"r+\"")))
}

/// The exception for an object in use.
pub fn busy(why: &str) -> PyErr {
    PyOSError::new_err((EBUSY, why.to_owned()))
}

/// The exception for a file that no longer existed when its array was reopened.
pub fn lost() -> PyErr {
    let why =
        "another process changed the array when this one opened it again for writing or reading; open the file again";
    PyOSError::new_err((ESTALE, why))
}

/// The exception for a use of an array that could not be opened again, and of its files.
pub fn away() -> PyErr {
    busy(
        "the drives could not be opened again when this process began or ended to write; another process may have them \
         open: try again when it has closed them",
    )
}

/// Results of the library with exceptions.
pub trait OrRaise<T> {
    /// This result for Python.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for iomill::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(exception)
    }
}
