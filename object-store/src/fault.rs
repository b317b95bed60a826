//! [`Fault`]: what can go wrong, before it becomes an error of one version of `object_store`. Non-goals: those errors (`versioned::convert`).

use std::io;

/// What a fault is to users of the trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotFound,
    AlreadyExists,
    /// The object does not have the version that the call demands.
    Precondition,
    /// The store cannot do that, whatever the object.
    NotSupported,
    /// The array was opened for reading, or the system denies the access to a file.
    PermissionDenied,
    Other,
}

/// A failure with its kind.
#[derive(Debug)]
pub struct Fault {
    pub kind: Kind,
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub fn new(kind: Kind, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        Fault { kind, source: why.into() }
    }

    pub fn other(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        Fault::new(Kind::Other, why)
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
        Fault { kind, source: error.into() }
    }
}

impl<B: Send + Sync + 'static> From<iomill::Failed<B>> for Fault {
    fn from(failed: iomill::Failed<B>) -> Fault {
        iomill::Error::from(failed).into()
    }
}

/// What the kernel's answer to a path means.
pub fn kind_of_io(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Kind::NotFound,
        io::ErrorKind::PermissionDenied => Kind::PermissionDenied,
        _ => Kind::Other,
    }
}
