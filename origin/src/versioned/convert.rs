//! Errors and metadata of objects, in the types of one version of `object_store`.

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

/// Whether a change has happened or was refused. After other errors its outcome is unknown: a lost answer, or an
/// expired time.
pub fn is_sure<T>(changed: &Result<T, Error>) -> bool {
    changed.as_ref().map_or_else(|error| refusal(error).is_some(), |_| true)
}

/// If the origin has refused a change, so that it does not happen: the path of the object, or the paths of a bulk of
/// deletes. It is empty if the error does not name it. A missing object is a refusal, too.
pub fn refusal(error: &Error) -> Option<String> {
    match error {
        Error::NotFound { path, source }
        | Error::AlreadyExists { path, source }
        | Error::Precondition { path, source }
        | Error::NotModified { path, source }
        | Error::PermissionDenied { path, source }
        | Error::Unauthenticated { path, source } => (!was_repeated(&source.to_string())).then(|| path.clone()),
        Error::NotSupported { .. } | Error::NotImplemented { .. } | Error::InvalidPath { .. } => Some(String::new()),
        Error::Generic { source, .. } => refusal_of(&source.to_string()),
        _ => None,
    }
}

/// Whether a client has sent the request more than once. Only the last one was refused: an earlier one without an
/// answer may still happen.
fn was_repeated(text: &str) -> bool {
    text.contains(" retries, max_retries: ")
}

/// Clients of HTTP have no kind of error for most statuses, nor for one object of a bulk of deletes. So the text
/// counts: that of a status from 400 to 499, or of a key with such a code, or with S3's `AccessDenied`.
fn refusal_of(text: &str) -> Option<String> {
    const STATUS: &str = "Server returned non-2xx status code: ";
    const KEY: &str = " request failed for key ";
    let after = |mark: &str| text.find(mark).map(|place| &text[place + mark.len()..]);
    let is_refused = |code: &str| code.starts_with('4') || code.starts_with("AccessDenied)");
    match (after(STATUS), after(KEY)) {
        _ if was_repeated(text) => None,
        (Some(status), _) => is_refused(status).then(String::new),
        (None, Some(key)) => key.rsplit_once("(code: ").filter(|(_, code)| is_refused(code)).map(|_| key.to_owned()),
        (None, None) => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Error {
        Error::Generic { store: "S3", source: text.into() }
    }

    /// The texts of clients of object_store. Other failures leave the outcome open.
    #[test]
    fn a_refusal_is_known_by_its_kind_or_its_text() {
        let denied = |path: &str| Error::PermissionDenied { path: path.into(), source: "403".into() };
        let key = "DeleteObjects request failed for key a/b: Access Denied (code: AccessDenied)";
        let blob = "Bulk delete request failed for key a: forbidden (code: 403)";
        let status = |code: &str| {
            format!("Error performing PUT http://x/a in 1ms - Server returned non-2xx status code: {code}")
        };
        for (error, named) in [
            (denied("a,b"), Some("a,b")),
            (generic(key), Some("a/b: Access Denied (code: AccessDenied)")),
            (generic(blob), Some("a: forbidden (code: 403)")),
            (generic(&status("400 Bad Request: no")), Some("")),
            (generic(&status("429 Too Many Requests: ")), Some("")),
            (generic(&status("503 Service Unavailable: status code: 400")), None),
            (generic("DeleteObjects request failed for key a: no (code: InternalError)"), None),
            (generic("Bulk delete request failed for key a (code: 4): late (code: 500)"), None),
            (generic("the connection was lost"), None),
            (generic(&format!("after 2 retries, max_retries: 10, retry_timeout: 1s  - {}", status("400"))), None),
            (Error::NotFound { path: "a".into(), source: " after 1 retries, max_retries: 9, ...".into() }, None),
        ] {
            assert_eq!(refusal(&error).as_deref(), named, "{error}");
        }
        assert!(is_sure(&Ok(())) && is_sure::<()>(&Err(denied("a"))) && !is_sure::<()>(&Err(generic("lost"))));
    }
}
