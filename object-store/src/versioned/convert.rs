//! Errors and metadata in the types of one version of `object_store`.

use super::object_store::path::Path;
use super::object_store::{Error, ObjectMeta};
use super::{object_store, result};
use crate::common::Fault;
use crate::known::Meta;

/// The name of the store in errors.
const STORE: &str = "iomill";

/// The error of a call on one object.
pub fn error(fault: Fault, location: &Path) -> Error {
    failed(fault, location.as_ref())
}

/// The same where `path` is no path of an object.
pub fn failed(fault: Fault, path: &str) -> Error {
    result::error(&fault, path, STORE)
}

pub fn unsupported(why: impl Into<String>) -> Error {
    Error::NotSupported { source: why.into().into() }
}

pub fn object_meta(location: Path, meta: &Meta) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: meta.last_modified,
        size: meta.len_bytes,
        e_tag: Some(meta.e_tag.clone()),
        // No earlier content of a name can be read.
        version: None,
    }
}

/// The path of an entry of a listing.
pub fn path_of(location: &str) -> object_store::Result<Path> {
    Ok(Path::parse(location)?)
}
