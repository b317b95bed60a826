//! [`Fault`]: what can go wrong in a get, before it becomes an error of one version of `object_store`. Clones are for the calls that waited for
//! the same GET. Non-goals: those errors (`versioned::convert`).

use std::error::Error;
use std::sync::Arc;

/// What a fault is to users of the trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    AlreadyExists,
    /// The object changed, or is not what the caller demands.
    Precondition,
    NotModified,
    NotSupported,
    PermissionDenied,
    Unauthenticated,
    Other,
}

/// A failure with its kind.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub source: Arc<dyn Error + Send + Sync>,
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub fn new(kind: Kind, why: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        Fault { kind, source: Arc::from(why.into()) }
    }

    pub fn other(why: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        Fault::new(Kind::Other, why)
    }

    /// The object has another version than the one that the call began with.
    pub fn changed(path: &str) -> Fault {
        Fault::new(Kind::Precondition, format!("{path:?} was changed while it was read; read it again"))
    }
}
