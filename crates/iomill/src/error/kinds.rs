//! [`ErrorKind`]: what programs match on ([`Error::kind`]); the kernel's number of an error, and conversions from and to
//! [`io::Error`]. Non-goals: the texts (`words`).

use std::io;
use std::path::PathBuf;

use super::Error;
use super::told::number;

/// What kind of error it is: [`Error::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no such file, array or directory.
    ///
    /// The array of a drive that is not mounted is not found either: its mount point is an empty directory. So a program
    /// that makes an array whenever this kind is returned may make it on the disk below the mount point.
    /// [`ArrayOptions::open_or_create`](crate::ArrayOptions::open_or_create) opens or makes an array without that risk.
    NotFound,
    /// A file of that name exists, or the drives have an array already.
    AlreadyExists,
    /// A file has another version than the expected one.
    Conflict,
    /// Another process, or a handle of this one, uses the array or the file.
    InUse,
    /// An argument makes no sense.
    InvalidInput,
    /// The array, the file or the file system takes no changes.
    ReadOnly,
    /// The kernel does not let this process do that: the owner and mode of a file, or a policy, forbid it.
    PermissionDenied,
    /// The contents of a drive are damaged, or a file was cut.
    Corrupt,
    /// A drive is missing, or cannot be used as it is.
    Drive,
    /// The kernel refused or failed an operation, and no other kind fits. [`Error::errno`] has its answer.
    Io,
    /// The contents of the drives are unknown: open the file or the array again.
    Uncertain,
    /// A call that blocks was made inside a callback, a waker, or a subscriber of events.
    BlockingCall,
    /// The array was closed.
    Closed,
    /// The call was made in a forked child, on a handle that only its parent may use.
    Forked,
    /// The machine or the process lacks memory, threads, descriptors or pins.
    Resources,
    /// Anything else.
    Other,
}

impl Error {
    /// The error of a call of the kernel on a file or directory inside an array. If it is missing, the array is damaged:
    /// the kind is not that of a missing file, which a program may answer by making the file.
    pub(crate) fn in_array(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Error {
        if source.kind() != io::ErrorKind::NotFound {
            return Error::io(action, path, source);
        }
        Error::corrupt(path, format!("iomill cannot {action} it, because it or its directory is missing"))
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::NotFound { .. } | Error::NoDirectory { .. } | Error::NoArray { .. } => ErrorKind::NotFound,
            Error::Exists { .. } | Error::ArrayExists { .. } => ErrorKind::AlreadyExists,
            Error::Conflict { .. } => ErrorKind::Conflict,
            Error::Locked { .. } | Error::Busy { .. } => ErrorKind::InUse,
            Error::Invalid { .. } => ErrorKind::InvalidInput,
            Error::ReadOnly { .. } => ErrorKind::ReadOnly,
            Error::Corrupt { .. } | Error::CorruptPage { .. } | Error::PartCut { .. } | Error::FileCut { .. } => {
                ErrorKind::Corrupt
            }
            Error::DriveMissing { .. } | Error::Drive { .. } => ErrorKind::Drive,
            // A file or directory that the caller has named. Of one inside an array it is `Error::Corrupt`
            // (`Error::in_array`).
            Error::Io { source, .. } => of_number(source).unwrap_or(ErrorKind::Io),
            Error::Other { source } => of_number(source).unwrap_or(ErrorKind::Other),
            Error::Poisoned { .. } | Error::OutcomeUnknown { .. } => ErrorKind::Uncertain,
            Error::BlockingCall { .. } => ErrorKind::BlockingCall,
            Error::Closed => ErrorKind::Closed,
            Error::Forked => ErrorKind::Forked,
            Error::Memory { .. }
            | Error::MemoryKept { .. }
            | Error::Random { .. }
            | Error::Thread { .. }
            | Error::Engine { .. }
            | Error::Topology { .. }
            | Error::Pins { .. }
            | Error::PinnedSet { .. } => ErrorKind::Resources,
            Error::NodeThread { .. } | Error::Panicked => ErrorKind::Other,
            #[cfg(feature = "internals")]
            Error::Tool { .. } => ErrorKind::Other,
        }
    }

    /// The kernel's error number behind this error, if there is one. Some errors about an array have a number, too:
    /// ENOENT for a missing directory, ENODATA for a directory without an array, ENODEV for a missing drive, EEXIST for
    /// a directory with an array.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::NoDirectory { .. } => Some(libc::ENOENT),
            Error::NoArray { .. } => Some(libc::ENODATA),
            Error::DriveMissing { .. } => Some(libc::ENODEV),
            Error::ArrayExists { .. } => Some(libc::EEXIST),
            Error::Io { source, .. } => number(source),
            Error::Other { source } => number(source),
            Error::Memory { source, .. }
            | Error::MemoryKept { source }
            | Error::Random { source }
            | Error::Thread { source, .. }
            | Error::Engine { source, .. }
            | Error::Topology { source } => source.raw_os_error(),
            Error::OutcomeUnknown { source, .. } | Error::PinnedSet { source: Some(source), .. } => source.errno(),
            _ => None,
        }
    }
}

/// The kind of an answer of the kernel, if it has one of its own.
fn of_number(source: &io::Error) -> Option<ErrorKind> {
    Some(match number(source)? {
        libc::ENOENT => ErrorKind::NotFound,
        libc::EEXIST => ErrorKind::AlreadyExists,
        libc::EROFS => ErrorKind::ReadOnly,
        libc::EACCES | libc::EPERM => ErrorKind::PermissionDenied,
        _ => return None,
    })
}

/// Wraps the error, for `downcast` or [`Error::from`], with its errno ([`Error::errno`]).
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } | Error::Other { source } => source.kind(),
            Error::PartCut { .. } | Error::FileCut { .. } => io::ErrorKind::UnexpectedEof,
            Error::Memory { .. } => io::ErrorKind::OutOfMemory,
            error => match error.kind() {
                ErrorKind::NotFound => io::ErrorKind::NotFound,
                ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
                ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
                ErrorKind::Corrupt => io::ErrorKind::InvalidData,
                ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
                ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
                ErrorKind::InUse => io::ErrorKind::ResourceBusy,
                _ => io::ErrorKind::Other,
            },
        };
        io::Error::new(kind, error)
    }
}

/// Unwraps an error of this crate from an [`io::Error`], or wraps another error as [`Error::Other`].
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        error.downcast().unwrap_or_else(|source| Error::Other { source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each answer of the kernel has its kind, and keeps it as an `io::Error`.
    #[test]
    fn answers_of_the_kernel_have_kinds() {
        let kinds = [
            (libc::ENOENT, ErrorKind::NotFound, io::ErrorKind::NotFound),
            (libc::EEXIST, ErrorKind::AlreadyExists, io::ErrorKind::AlreadyExists),
            (libc::EROFS, ErrorKind::ReadOnly, io::ErrorKind::ReadOnlyFilesystem),
            (libc::EACCES, ErrorKind::PermissionDenied, io::ErrorKind::PermissionDenied),
            (libc::EPERM, ErrorKind::PermissionDenied, io::ErrorKind::PermissionDenied),
            (libc::ENOSPC, ErrorKind::Io, io::ErrorKind::StorageFull),
        ];
        for (errno, kind, io_kind) in kinds {
            let answer = || io::Error::from_raw_os_error(errno);
            assert_eq!(Error::io("open", "/d/f", answer()).kind(), kind, "{errno}");
            assert_eq!(io::Error::from(Error::io("open", "/d/f", answer())).kind(), io_kind, "{errno}");
            let of_others = if kind == ErrorKind::Io { ErrorKind::Other } else { kind };
            assert_eq!(Error::from(answer()).kind(), of_others, "{errno}");
        }
        let exists = Error::ArrayExists { path: "/d".into(), why: "it is a drive".to_owned(), advice: "".into() };
        assert_eq!((exists.kind(), exists.errno()), (ErrorKind::AlreadyExists, Some(libc::EEXIST)));
        assert_eq!(io::Error::from(exists).kind(), io::ErrorKind::AlreadyExists);
    }

    /// An error that is wrapped in an `io::Error` and unwrapped is unchanged, with its errno.
    #[test]
    fn errors_pass_through_io() {
        let full = || Error::io("write", "/d/f", io::Error::from_raw_os_error(libc::ENOSPC));
        let packed = io::Error::from(full());
        assert_eq!(packed.kind(), io::ErrorKind::StorageFull);
        let back = Error::from(packed);
        assert_eq!(
            (back.to_string(), back.errno(), back.kind()),
            (full().to_string(), Some(libc::ENOSPC), ErrorKind::Io)
        );
        let other = Error::from(io::Error::from_raw_os_error(libc::EPIPE));
        assert!(matches!(&other, Error::Other { .. }) && other.errno() == Some(libc::EPIPE), "{other:?}");
        assert_eq!(io::Error::from(other).kind(), io::ErrorKind::BrokenPipe);
    }
}
