//! Results and errors of `object_store` as objects of Python. The messages are the store's, with their causes.

use std::error::Error as StdError;
use std::io;

use object_store::path::Path;
use object_store::{Attribute, Attributes, Error, ObjectMeta, PutResult};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{ESTALE, of_system, os_error};

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const EOPNOTSUPP: i32 = 95;

/// The exception for an error of a store.
pub fn exception(error: Error) -> PyErr {
    let (errno, fact) = match &error {
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => {
            return PyValueError::new_err(in_words(&error));
        }
        Error::NotFound { path, source } => (ENOENT, Some(("no such object", path, source))),
        Error::AlreadyExists { path, source } => (EEXIST, Some(("the object exists", path, source))),
        Error::PermissionDenied { path, source } => (EACCES, Some(("the store denies it", path, source))),
        Error::Unauthenticated { path, source } => (EACCES, Some(("the store needs credentials", path, source))),
        Error::Precondition { .. } | Error::NotModified { .. } => (ESTALE, None),
        Error::NotSupported { .. } | Error::NotImplemented { .. } => (EOPNOTSUPP, None),
        _ => (of_kernel(&error).and_then(io::Error::raw_os_error).unwrap_or(EIO), None),
    };
    match fact {
        Some((fact, path, source)) => {
            let text = match of_kernel(&**source) {
                Some(cause) => of_system("open", None, cause),
                None => format!("{fact}: {}", reason(&error, &**source)),
            };
            os_error(errno, text, Some(path.into()))
        }
        None => os_error(errno, in_words(&error), None),
    }
}

/// The cause of an error in words, without the words of the error itself, which some clients repeat.
fn reason(error: &Error, source: &(dyn StdError + 'static)) -> String {
    let whole = error.to_string();
    let own = whole.strip_suffix(&source.to_string()).unwrap_or_default();
    let words = in_words(source);
    // Nothing follows the last colon if the server sends no reason.
    words.strip_prefix(own).unwrap_or(&words).trim_end_matches([':', ' ']).to_owned()
}

/// The kernel's error among the causes of an error.
fn of_kernel<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>() {
            Some(found) if found.raw_os_error().is_some() => return Some(found),
            _ => cause = error.source(),
        }
    }
    None
}

/// The exception for a URL that names no store.
pub fn refused(error: iomill_origin::clients::Error) -> PyErr {
    match error {
        iomill_origin::clients::Error::Store(error) => exception(error),
        error => PyValueError::new_err(error.to_string()),
    }
}

/// A message with all of its causes: a client of HTTP reports the failure first, and the reason last.
fn in_words(error: &(dyn StdError + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(why) = cause {
        let more = why.to_string();
        if !said.contains(&more) {
            said.extend([": ", &more]);
        }
        cause = why.source();
    }
    said
}

/// The metadata of an object from a listing or a head. The path is below `prefix`.
pub fn meta<'py>(py: Python<'py>, meta: &ObjectMeta, prefix: &Path) -> PyResult<Bound<'py, PyDict>> {
    let said = PyDict::new(py);
    said.set_item("path", below(&meta.location, prefix))?;
    // Nanoseconds since the start of 1970: the Python half makes it a time.
    said.set_item("last_modified", meta.last_modified.timestamp_nanos_opt().unwrap_or(0))?;
    said.set_item("size", meta.size)?;
    said.set_item("e_tag", &meta.e_tag)?;
    said.set_item("version", &meta.version)?;
    Ok(said)
}

/// A location without the prefix of its store.
pub fn below(location: &Path, prefix: &Path) -> String {
    match location.prefix_match(prefix) {
        Some(parts) => parts.collect::<Path>().to_string(),
        None => location.to_string(),
    }
}

pub fn put<'py>(py: Python<'py>, put: &PutResult) -> PyResult<Bound<'py, PyDict>> {
    let said = PyDict::new(py);
    said.set_item("e_tag", &put.e_tag)?;
    said.set_item("version", &put.version)?;
    Ok(said)
}

/// Attributes by the names of HTTP's headers.
pub fn attributes<'py>(py: Python<'py>, attributes: &Attributes) -> PyResult<Bound<'py, PyDict>> {
    let said = PyDict::new(py);
    for (key, value) in attributes {
        let name = match key {
            Attribute::ContentDisposition => "Content-Disposition",
            Attribute::ContentEncoding => "Content-Encoding",
            Attribute::ContentLanguage => "Content-Language",
            Attribute::ContentType => "Content-Type",
            Attribute::CacheControl => "Cache-Control",
            Attribute::Metadata(name) => name.as_ref(),
            _ => continue,
        };
        said.set_item(name, value.as_ref())?;
    }
    Ok(said)
}
