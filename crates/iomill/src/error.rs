//! What can go wrong, in words that say what, where, and what to do.

use std::io;
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every way in which iomill fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused or failed an operation.
    #[error("cannot {action} {}{}: {source}{}", path.display(), at(*offset), advice(source))]
    Io {
        /// What was tried, as a verb: `read`, `write`, `create`.
        action: &'static str,
        /// The file or directory, drive included.
        path: PathBuf,
        /// Offset within that file in bytes, where there is one.
        offset: Option<u64>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A read ended inside the known size of a part. Another program cut the part, or the drive is gone (a removed NVMe drive
    /// answers so).
    #[error(
        "{} ended at offset {offset}, {missing} bytes before its known end: the drive failed or the file was cut; \
         run `iomill check`", path.display()
    )]
    PartCut {
        /// The part.
        path: PathBuf,
        /// Where the read ended, in bytes.
        offset: u64,
        /// How many bytes were missing.
        missing: u64,
    },

    /// A drive is not there, is not a drive of this array, or cannot be used as it is.
    #[error("drive {}: {why}", path.display())]
    Drive {
        /// The drive's directory.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// A label, record or length does not hold what it should.
    #[error("{}: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// Another process uses the array.
    #[error("the array at {} is in use by another process ({wanted}); close it there first", path.display())]
    Locked {
        /// The drive that the other process has locked.
        path: PathBuf,
        /// What was wanted: `opened for writing`.
        wanted: &'static str,
    },

    /// No file of that name.
    #[error("no file named {name:?} in the array; `iomill ls` lists what there is")]
    NotFound {
        /// The name.
        name: String,
    },

    /// A file of that name exists.
    #[error("a file named {name:?} exists already; remove it first or choose another name")]
    Exists {
        /// The name.
        name: String,
    },

    /// The file is open, so it cannot be deleted or replaced.
    #[error("file {name:?} is open in this process; close it first")]
    Busy {
        /// The name.
        name: String,
    },

    /// An argument makes no sense.
    #[error("{what}: {why}")]
    Invalid {
        /// Which argument, with its value.
        what: String,
        /// Why not, and what would be right.
        why: String,
    },

    /// The array or file does not take changes.
    #[error("read-only: {why}")]
    ReadOnly {
        /// Why, and what to do.
        why: String,
    },

    /// An earlier sync failed: the contents of the drives are no longer known.
    #[error("file {name:?} takes no more writes since an earlier error ({why}); close it and open it again")]
    Poisoned {
        /// The file.
        name: String,
        /// The earlier error.
        why: String,
    },

    /// A change of the catalog failed on some drives and could not be taken back: after the next open it is either
    /// done or not.
    #[error("the outcome of {what} is not known: {source}; open the array again to see it")]
    OutcomeUnknown {
        /// The change.
        what: String,
        /// The failure.
        source: Box<Error>,
    },

    /// A call that blocks was made inside a callback or a waker, where only calls that return at once are allowed.
    #[error(
        "`{call}` blocks, so callbacks and wakers cannot call it; use `submit` or a future there, or another thread"
    )]
    BlockingCall {
        /// The call.
        call: &'static str,
    },

    /// The array has been closed.
    #[error("the array is closed")]
    Closed,

    /// The array belongs to the process that this one was forked from.
    #[error("the array was opened before this process was forked; open it again after the fork")]
    Forked,

    /// The machine refuses something that iomill needs.
    #[error("{what}: {why}")]
    Machine {
        /// What was needed.
        what: String,
        /// Why the machine refuses it, and what to do.
        why: String,
    },
}

impl Error {
    /// An [`Error::Io`] without an offset.
    pub fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Error {
        Error::Io { action, path: path.into(), offset: None, source }
    }

    /// An [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Invalid { what: what.into(), why: why.into() }
    }

    /// The kernel's error number behind this error, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            Error::OutcomeUnknown { source, .. } => source.errno(),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::NotFound { .. } => io::ErrorKind::NotFound,
            Error::Exists { .. } => io::ErrorKind::AlreadyExists,
            Error::Invalid { .. } => io::ErrorKind::InvalidInput,
            Error::Corrupt { .. } => io::ErrorKind::InvalidData,
            Error::PartCut { .. } => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |o| format!(" at offset {o}"))
}

/// What to do about errors that have an answer.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC) => "; free space on that drive, then try again",
        Some(libc::EFBIG) => "; the limit of file sizes (`ulimit -f`) or the file system does not allow it",
        Some(libc::EDQUOT) => "; the quota of that drive is used up, free space or raise it",
        Some(libc::EROFS) => "; that file system is mounted read-only, mount it for writing",
        Some(libc::EACCES | libc::EPERM) => "; check the owner and mode of that directory",
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(libc::ENFILE) => "; raise the system's limit of open files (`fs.file-max`)",
        Some(libc::EIO) => "; the drive failed, see the kernel's log",
        Some(libc::ELOOP) => "; symbolic links are not followed inside a drive, put the file itself there",
        _ => "",
    }
}
