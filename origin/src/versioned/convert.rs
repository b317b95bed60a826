//! Errors and what is known of objects, in the types of one version of `object_store`.

use std::sync::Arc;

use super::object_store::path::Path;
use super::object_store::{Attributes, Error, ObjectMeta};
use super::result;
use crate::common::Fault;
use crate::origin::Meta;

/// The name of the store in errors.
const STORE: &str = "iomill-origin";

/// The error of a call on one object.
pub fn error(fault: &Fault, location: &Path) -> Error {
    result::error(fault, location.as_ref(), STORE)
}

/// Whether a change has happened or was refused. Other errors leave it open: an answer that was lost, or a time that ran out.
pub fn is_sure<T>(changed: &Result<T, Error>) -> bool {
    use Error::{
        AlreadyExists, InvalidPath, NotFound, NotImplemented, NotModified, NotSupported, PermissionDenied,
        Precondition, Unauthenticated,
    };
    match changed {
        Ok(_) => true,
        Err(error) => matches!(
            error,
            NotFound { .. }
                | AlreadyExists { .. }
                | Precondition { .. }
                | NotModified { .. }
                | PermissionDenied { .. }
                | Unauthenticated { .. }
                | NotSupported { .. }
                | NotImplemented { .. }
                | InvalidPath { .. }
        ),
    }
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
