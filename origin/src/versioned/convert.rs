//! Errors and what is known of objects, in the types of one version of `object_store`.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::object_store::path::Path;
use super::object_store::{Attributes, Error, ObjectMeta};
use crate::fault::{Fault, Kind};
use crate::origin::Meta;

/// The name of the store in errors.
const STORE: &str = "iomill-origin";

/// An error that several calls got.
#[derive(Debug)]
struct SharedError(Arc<dyn StdError + Send + Sync>);

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for SharedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// The error of a call on one object.
pub fn error(fault: &Fault, location: &Path) -> Error {
    let (path, source) = (location.to_string(), Box::new(SharedError(Arc::clone(&fault.source))));
    match fault.kind {
        Kind::NotFound => Error::NotFound { path, source },
        Kind::AlreadyExists => Error::AlreadyExists { path, source },
        Kind::Precondition => Error::Precondition { path, source },
        Kind::NotModified => Error::NotModified { path, source },
        Kind::PermissionDenied => Error::PermissionDenied { path, source },
        Kind::Unauthenticated => Error::Unauthenticated { path, source },
        Kind::NotSupported => Error::NotSupported { source },
        Kind::Other => Error::Generic { store: STORE, source },
    }
}

/// What an error of the origin is to the cache.
pub fn fault(error: Error) -> Fault {
    let kind = match &error {
        Error::NotFound { .. } => Kind::NotFound,
        Error::AlreadyExists { .. } => Kind::AlreadyExists,
        Error::Precondition { .. } => Kind::Precondition,
        Error::NotModified { .. } => Kind::NotModified,
        Error::PermissionDenied { .. } => Kind::PermissionDenied,
        Error::Unauthenticated { .. } => Kind::Unauthenticated,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => Kind::NotSupported,
        _ => Kind::Other,
    };
    Fault::new(kind, error)
}

pub fn meta_of(meta: &ObjectMeta, attributes: &Attributes) -> Meta {
    Meta {
        size: meta.size,
        e_tag: meta.e_tag.clone(),
        version: meta.version.clone(),
        modified: meta.last_modified,
        attributes: Arc::new(attributes.clone()),
    }
}

pub fn object_meta(location: &Path, meta: &Meta) -> ObjectMeta {
    ObjectMeta {
        location: location.clone(),
        last_modified: meta.modified,
        size: meta.size,
        e_tag: meta.e_tag.clone(),
        version: meta.version.clone(),
    }
}
