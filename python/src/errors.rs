//! Errors of the library as exceptions, with the library's messages. Users expect `OSError`, `ValueError` and
//! `MemoryError`, so there are no classes of our own. Non-goals: row numbers out of bounds (`ids`).

use std::ffi::OsString;
use std::io;

use iomill::{Error, ErrorKind};
use pyo3::exceptions::{PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::words::words;

const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const EROFS: i32 = 30;
/// What was opened is not there any more, or is not what it was.
pub const ESTALE: i32 = 116;

/// Python's text for ENOENT.
const MISSING: &str = "No such file or directory";

/// The exception for an error of the library. An `OSError` has the parts of Python's own: the number, the text with the
/// advice, and the path of the file or drive, or the name of the file on drives.
pub fn exception(error: Error) -> PyErr {
    match &error {
        Error::Invalid { .. } | Error::Closed => return PyValueError::new_err(words(&error.to_string())),
        Error::Memory { .. } => return PyMemoryError::new_err(words(&error.to_string())),
        _ => {}
    }
    let (text, place) = parts(&error);
    os_error(errno(&error), words(&text), place)
}

/// An `OSError`. Python makes `FileNotFoundError` and similar exceptions from the number.
pub fn os_error(errno: i32, text: String, place: Option<OsString>) -> PyErr {
    match place {
        Some(place) => PyOSError::new_err((errno, text, place)),
        None => PyOSError::new_err((errno, text)),
    }
}

fn errno(error: &Error) -> i32 {
    let by_kind = || match error.kind() {
        ErrorKind::NotFound => ENOENT,
        ErrorKind::AlreadyExists => EEXIST,
        ErrorKind::InUse => EBUSY,
        ErrorKind::ReadOnly => EROFS,
        // The drive has not failed: it is foreign or of another set.
        ErrorKind::Drive => EINVAL,
        _ => EIO,
    };
    error.errno().unwrap_or_else(by_kind)
}

/// The text of an error without its place, and the place.
fn parts(error: &Error) -> (String, Option<OsString>) {
    let (fact, place) = match error {
        Error::Io { action, path, offset, source, .. } => (of_system(action, *offset, source), path.as_os_str()),
        Error::NoDirectory { path, .. } => (MISSING.to_owned(), path.as_os_str()),
        Error::NoArray { path, why, .. }
        | Error::ArrayExists { path, why, .. }
        | Error::DriveMissing { path, why, .. }
        | Error::Drive { path, why, .. }
        | Error::Corrupt { path, why, .. } => (why.clone(), path.as_os_str()),
        Error::NotFound { name, .. } => (format!("{MISSING} on the drives"), name.as_ref()),
        Error::Exists { name, .. } => ("File exists on the drives".to_owned(), name.as_ref()),
        Error::Busy { name, .. } => ("it is open in this process".to_owned(), name.as_ref()),
        Error::PartCut { path, .. } | Error::FileCut { path, .. } => {
            return (without(error, &format!("{} ", path.display())), Some(path.into()));
        }
        Error::Locked { path, .. } => return (without(error, &format!(" at {}", path.display())), Some(path.into())),
        Error::CorruptPage { file, .. } => return (without(error, &format!(" of {file:?}")), Some(file.into())),
        Error::Conflict { name, .. } | Error::Poisoned { name, .. } => {
            return (without(error, &format!("file {name:?} ")), Some(name.into()));
        }
        _ => return (error.to_string(), None),
    };
    let text = match error.advice() {
        Some(advice) => format!("{fact}; {advice}"),
        None => fact,
    };
    (text, Some(place.to_owned()))
}

/// The text of an error without its place.
fn without(error: &Error, place: &str) -> String {
    error.to_string().replacen(place, "", 1)
}

/// The kernel's text, as Python has it. An operation other than the opening of the file comes first.
pub fn of_system(action: &str, offset: Option<u64>, source: &io::Error) -> String {
    let mut text = source.to_string();
    if let Some(number) = source.raw_os_error() {
        text = text.trim_end_matches(&format!(" (os error {number})")).to_owned();
    }
    match offset {
        _ if action == "open" => text,
        None => format!("cannot {action} it: {text}"),
        Some(offset) => format!("cannot {action} it at offset {offset}: {text}"),
    }
}

/// The exception for a use of a closed object, with the text of Python's own files.
pub fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

/// The exception for a change through a handle for reading.
pub fn read_only(name: &str) -> PyErr {
    os_error(EROFS, "it was opened for reading; open it with mode=\"r+\"".to_owned(), Some(name.into()))
}

/// The exception for an object in use.
pub fn busy(why: &str) -> PyErr {
    os_error(EBUSY, why.to_owned(), None)
}

/// The exception for a file that no longer existed when its drives were reopened.
pub fn lost() -> PyErr {
    let why = "another process changed the set of drives when this one opened it again for writing or reading; open the file again";
    os_error(ESTALE, why.to_owned(), None)
}

/// The exception for a use of drives that could not be opened again, and of its files.
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
