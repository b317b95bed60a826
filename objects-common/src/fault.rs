//! [`Fault`]: a failure, before it becomes an error of one version of `object_store`. Clones are for calls that waited
//! for one read. Non-goals: those errors (`errors`).

use std::error::Error;
use std::io;
use std::sync::Arc;

/// The kind of a fault for users of the trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The object does not exist.
    NotFound,
    /// The object exists already.
    AlreadyExists,
    /// The object changed, or does not have the version that the call demands.
    Precondition,
    /// The object still has the caller's version.
    NotModified,
    /// The store cannot do that with any object.
    NotSupported,
    /// The caller may not do that.
    PermissionDenied,
    /// The caller gave no identity.
    Unauthenticated,
    /// Anything else.
    Other,
}

/// A failure with its kind.
#[derive(Debug)]
pub struct Fault {
    /// The kind for users.
    pub kind: Kind,
    /// The cause.
    pub source: Arc<dyn Error + Send + Sync>,
}

/// A result of a call below the trait.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    /// A fault with a reason.
    pub fn new(kind: Kind, why: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        Fault { kind, source: Arc::from(why.into()) }
    }

    /// A fault of kind [`Kind::Other`].
    pub fn other(why: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        Fault::new(Kind::Other, why)
    }

    /// The object has another version than the one that the call began with.
    pub fn changed(path: &str) -> Fault {
        Fault::new(Kind::Precondition, format!("{path:?} was changed while it was read; read it again"))
    }
}

impl From<iomill::Error> for Fault {
    fn from(error: iomill::Error) -> Fault {
        use iomill::Error;
        let kind = match &error {
            Error::NotFound { .. } => Kind::NotFound,
            Error::Exists { .. } => Kind::AlreadyExists,
            Error::Conflict { .. } => Kind::Precondition,
            Error::ReadOnly { .. } => Kind::PermissionDenied,
            Error::Io { source, .. } => kind_of_io(source),
            _ => Kind::Other,
        };
        Fault::new(kind, error)
    }
}

impl<B: Send + Sync + 'static> From<iomill::Failed<B>> for Fault {
    fn from(failed: iomill::Failed<B>) -> Fault {
        iomill::Error::from(failed).into()
    }
}

/// The kind of an error of the kernel.
pub fn kind_of_io(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Kind::NotFound,
        io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        _ => Kind::Other,
    }
}
