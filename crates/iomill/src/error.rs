//! The errors of this crate. Each names what failed and where, and says what to do.

use std::io;
use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of iomill.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused or failed an operation.
    #[error("cannot {action} {}{}: {source}{}", path.display(), at(*offset), advice(source))]
    Io {
        /// The operation, as a verb: `read`, `write`, `create`.
        action: &'static str,
        /// The whole path of the file or directory.
        path: PathBuf,
        /// The offset in that file in bytes, if the operation has one.
        offset: Option<u64>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A read ended before the known end of a part. Another program cut the part, or the drive is gone (a removed NVMe
    /// drive answers so).
    #[error(
        "{} ended at offset {offset}, {missing} bytes before its known end: the drive failed or the file was cut; \
         run `iomill check`", path.display()
    )]
    PartCut {
        /// The part.
        path: PathBuf,
        /// The offset at which the read ended, in bytes.
        offset: u64,
        /// The number of missing bytes.
        missing: u64,
    },

    /// A read ended before the end that a plain file had when it was opened: another program cut the file.
    #[error(
        "{} ended at offset {offset}, {missing} bytes before the end that it had when it was opened: another program cut it; \
         open it again", path.display()
    )]
    FileCut {
        /// The file.
        path: PathBuf,
        /// The offset at which the read ended, in bytes.
        offset: u64,
        /// The number of missing bytes.
        missing: u64,
    },

    /// The path of a drive names no directory.
    #[error("drive {}: there is no such directory; check the path, or make the directory and mount the drive there", path.display())]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },

    /// The directory exists, but has no drive of an array: no array was created there, or the drive is not mounted.
    #[error("drive {}: {why}", path.display())]
    NoArray {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// The array was found, but one of its drives was not: the drive has failed, or is not mounted.
    #[error("drive {}: {why}", path.display())]
    DriveMissing {
        /// The path at which the drive was last seen.
        path: PathBuf,
        /// Its index in the array.
        index: u16,
        /// What is at that path instead, and what to do.
        why: String,
    },

    /// A drive does not belong to this array, or cannot be used as it is.
    #[error("drive {}: {why}", path.display())]
    Drive {
        /// The drive's directory.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// A label, record or length is damaged.
    #[error("{}: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// Another process uses the array.
    #[error("the array at {} is in use by {} ({wanted}); close it there first", path.display(), user(holder))]
    Locked {
        /// The drive that the other process has locked.
        path: PathBuf,
        /// The number of the process that has locked it, if the kernel shows it. It may be this process.
        holder: Option<u32>,
        /// The refused use, such as `it was to be opened for writing`.
        wanted: &'static str,
    },

    /// The array has no file of that name.
    #[error("no file named {name:?} in the array; `iomill ls` lists the files")]
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

    /// A file was to be opened or replaced only at a certain version, and it has another one.
    #[error(
        "file {name:?} {}, but version {expected} was expected: read what is there, then decide again",
        found.map_or_else(|| "does not exist".to_owned(), |found| format!("has version {found}"))
    )]
    Conflict {
        /// The name.
        name: String,
        /// The expected version.
        expected: u64,
        /// The present version. `None` if there is no such file.
        found: Option<u64>,
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
        /// The argument, with its value.
        what: String,
        /// Why it makes no sense, and what would.
        why: String,
    },

    /// The array or file takes no changes.
    #[error("read-only: {why}")]
    ReadOnly {
        /// Why, and what to do.
        why: String,
    },

    /// An earlier sync failed, so it is not known which bytes of the file are on its drives.
    #[error("file {name:?} takes no more writes after an earlier error ({why}); close it and open it again")]
    Poisoned {
        /// The file.
        name: String,
        /// The earlier error.
        why: String,
    },

    /// A change of the catalog failed on some drives and could not be undone: the next open finds it either done or not
    /// done.
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

    /// The array was closed.
    #[error("the array is closed; open it again")]
    Closed,

    /// The parent process opened the array or plain file for writing, and this process was forked from it. Or the call
    /// concerns the parent's array or runtime as a whole.
    #[error(
        "the array, runtime or file was opened before this process was forked: open it again in this process; only a \
         file that is open for reading reopens by itself"
    )]
    Forked,

    /// The machine gives no memory, or no address space.
    #[error("no memory for {what} of {len_bytes} bytes: {source}; ask for less, or let the process use more memory")]
    Memory {
        /// The purpose of the memory, such as `a buffer` or `a cache`.
        what: &'static str,
        /// The size in bytes.
        len_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The system does not take back the memory of a cache that has shrunk.
    #[error("cannot return memory of a cache that has shrunk: {source}; the cache uses it again when it grows")]
    MemoryKept {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The machine gives no random bytes.
    #[error("no random bytes: {source}; allow getrandom(2), which ids, keys and names of temporary files need")]
    Random {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The machine does not start a thread.
    #[error(
        "cannot start the thread {name}: {source}; raise the limit of processes (`ulimit -u`){}",
        if drive.is_some() { " or do without drive threads" } else { "" }
    )]
    Thread {
        /// The thread's name.
        name: String,
        /// The index of the drive for which it was meant, if it was for one.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A thread gets no engine, or its engine has failed.
    #[error(
        "the engine of {thread}{}: {source}; raise the limits of open files and locked memory (`ulimit -n`, `ulimit -l`), \
         or choose another engine",
        drive.map_or_else(String::new, |drive| format!(" for drive {drive}"))
    )]
    Engine {
        /// The thread.
        thread: String,
        /// The index of the drive, if the engine serves only one.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The thread of a NUMA node has not done its share of a call.
    #[error("the thread of a NUMA node has failed: {why}; the call may be done in part, so repeat it")]
    NodeThread {
        /// The reason.
        why: String,
    },

    /// The machine's NUMA nodes cannot be listed.
    #[error("cannot list the machine's NUMA nodes: {source}; choose the topology `one`, which needs no list")]
    Topology {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The most pages that may be pinned at a time are pinned.
    #[error(
        "cannot pin a page: {most} pages are pinned, the most for this cache; drop some pins first, or open the array \
         with a larger cache"
    )]
    Pins {
        /// The most pages that may be pinned at a time.
        most: u32,
    },

    /// No page of a page set can be evicted, so no further page of the set can be pinned.
    #[error(
        "page {page} of {file:?} cannot be pinned: all {set_pages} pages of its set are pinned, or cannot be written back{}; \
         drop some pins first, read without a pin, or open the array with a larger cache or larger sets (`set_size`)",
        source.as_ref().map_or_else(String::new, |source| format!(" ({source})"))
    )]
    PinnedSet {
        /// The file.
        file: String,
        /// The number of the page in the file.
        page: u64,
        /// The number of pages in the set.
        set_pages: usize,
        /// Why pages of the set cannot be written back, if that is the cause.
        source: Option<Box<Error>>,
    },

    /// A panic ended the operation.
    #[error("the operation panicked; the message of the panic says where")]
    Panicked,

    /// An error of a tool. The library itself does not return it.
    #[cfg(feature = "internals")]
    #[error("{what}: {why}")]
    Tool {
        /// The thing that the tool needed.
        what: String,
        /// Why it was not available, and what to do.
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

    /// An [`Error::Memory`].
    pub(crate) fn memory(what: &'static str, len_bytes: u64) -> impl Fn(io::Error) -> Error {
        move |source| Error::Memory { what, len_bytes, source }
    }

    /// The error of `call`, which another call of the library has made for it.
    pub(crate) fn of_call(self, call: &'static str) -> Error {
        match self {
            Error::BlockingCall { .. } => Error::BlockingCall { call },
            other => other,
        }
    }

    /// Whether the cause is a lack of memory or descriptors that may pass, so that a later try may succeed.
    pub(crate) fn passes(&self) -> bool {
        self.errno().is_some_and(passes)
    }

    /// The kernel's error number behind this error, if there is one. An open that finds no array has a number, too:
    /// ENOENT for a missing directory, ENODATA for a directory without an array, ENODEV for a missing drive.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::NoDirectory { .. } => Some(libc::ENOENT),
            Error::NoArray { .. } => Some(libc::ENODATA),
            Error::DriveMissing { .. } => Some(libc::ENODEV),
            Error::Io { source, .. } => number(source),
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

/// An error in words, with the errno that the kernel has for such a case.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct Told {
    errno: i32,
    why: String,
}

/// Makes an error in words that also has an errno ([`Error::errno`]).
pub(crate) fn told(errno: i32, why: impl Into<String>) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), Told { errno, why: why.into() })
}

/// The errno of an error of the kernel, or of [`told`].
fn number(error: &io::Error) -> Option<i32> {
    let told = || Some(error.get_ref()?.downcast_ref::<Told>()?.errno);
    error.raw_os_error().or_else(told)
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::NotFound { .. } | Error::NoDirectory { .. } => io::ErrorKind::NotFound,
            Error::Exists { .. } => io::ErrorKind::AlreadyExists,
            Error::Invalid { .. } => io::ErrorKind::InvalidInput,
            Error::Corrupt { .. } => io::ErrorKind::InvalidData,
            Error::PartCut { .. } | Error::FileCut { .. } => io::ErrorKind::UnexpectedEof,
            Error::Memory { .. } => io::ErrorKind::OutOfMemory,
            Error::ReadOnly { .. } => io::ErrorKind::ReadOnlyFilesystem,
            Error::Busy { .. } | Error::Locked { .. } => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |o| format!(" at offset {o}"))
}

/// The user of an array, in words. A process that has just ended has no name any more.
fn user(holder: &Option<u32>) -> String {
    match holder {
        None => "another process".to_owned(),
        Some(number) if *number == std::process::id() => "this process".to_owned(),
        Some(number) => {
            let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            format!("another process, {number} {}", name.trim_end()).trim_end().to_owned()
        }
    }
}

/// What to do about an error, where there is an answer.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOSPC) => "; free space on that drive, then try again",
        Some(libc::EFBIG) => "; the limit of file sizes (`ulimit -f`) or the file system does not allow it",
        Some(libc::EDQUOT) => "; the quota of that drive is used up, free space or raise it",
        Some(libc::ENOENT) => "; check the path",
        Some(libc::EROFS) => "; that file system is mounted read-only, mount it for writing",
        Some(libc::EACCES | libc::EPERM) => "; check its owner and mode, and those of the directories above it",
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(libc::ENFILE) => "; raise the system's limit of open files (`fs.file-max`)",
        Some(libc::EIO) => "; the drive failed, see the kernel's log",
        Some(libc::ELOOP) => "; symbolic links are not followed inside a drive, put the file itself there",
        _ => "",
    }
}

/// Whether an errno means that the process or the machine lacks descriptors or memory at this moment. That is no fault
/// of a drive, and a later try may succeed.
pub(crate) fn passes(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn lack_of_descriptors_and_memory_passes() {
        assert!([libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN].into_iter().all(passes));
        assert!(![libc::EIO, libc::ENOSPC, libc::EROFS, libc::EINTR].into_iter().any(passes));
    }
}
