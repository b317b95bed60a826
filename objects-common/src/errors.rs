//! Faults as errors of one version of `object_store`, and back.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use super::object_store::Error;
use crate::fault::{Fault, Kind};

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

/// The error of a call on a path. `store` is the name of the store in errors.
pub fn error(fault: &Fault, path: &str, store: &'static str) -> Error {
    let (path, source) = (path.to_owned(), Box::new(SharedError(Arc::clone(&fault.source))));
    match fault.kind {
        Kind::NotFound => Error::NotFound { path, source },
        Kind::AlreadyExists => Error::AlreadyExists { path, source },
        Kind::Precondition => Error::Precondition { path, source },
        Kind::NotModified => Error::NotModified { path, source },
        Kind::PermissionDenied => Error::PermissionDenied { path, source },
        Kind::Unauthenticated => Error::Unauthenticated { path, source },
        Kind::NotSupported => Error::NotSupported { source },
        Kind::Other => Error::Generic { store, source },
    }
}

/// The fault of a store's error.
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
