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

    /// A read ended inside the length that a plain file had when it was opened: another program cut it.
    #[error(
        "{} ended at offset {offset}, {missing} bytes before the end that it had when it was opened: another program cut it; \
         open it again", path.display()
    )]
    FileCut {
        /// The file.
        path: PathBuf,
        /// Where the read ended, in bytes.
        offset: u64,
        /// How many bytes were missing.
        missing: u64,
    },

    /// There is no directory where a drive was named.
    #[error("drive {}: there is no such directory; check the path, or make the directory and mount the drive there", path.display())]
    NoDirectory {
        /// What was named.
        path: PathBuf,
    },

    /// The directory is there, and no array has a drive in it: no array has been made yet, or the drive is not mounted.
    #[error("drive {}: {why}", path.display())]
    NoArray {
        /// The directory.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },

    /// The array is there, and one of its drives is not: it has failed, or is not mounted.
    #[error("drive {}: {why}", path.display())]
    DriveMissing {
        /// Where the drive was last seen.
        path: PathBuf,
        /// Its index in the array.
        index: u16,
        /// What is in its place and what to do.
        why: String,
    },

    /// A drive is not a drive of this array, or cannot be used as it is.
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
    #[error("the array at {} is in use by {} ({wanted}); close it there first", path.display(), user(holder))]
    Locked {
        /// The drive that the other process has locked.
        path: PathBuf,
        /// A process that has locked it, by its number, where the kernel says so. It may be this process.
        holder: Option<u32>,
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

    /// A file was to be replaced if it has a certain version, and it has not.
    #[error(
        "file {name:?} {}, and version {expected} was to be replaced: read what is there, and decide again",
        found.map_or_else(|| "does not exist".to_owned(), |found| format!("has version {found}"))
    )]
    Conflict {
        /// The name.
        name: String,
        /// The version that it was to have.
        expected: u64,
        /// The version that it has. `None` if there is no such file.
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

    /// The array or plain file belongs to the process that this one was forked from, which has it open for writing. Or the call is of
    /// the array or runtime as a whole.
    #[error(
        "it was opened before this process was forked, and only files that are open for reading are opened again by themselves; \
         open it again after the fork"
    )]
    Forked,

    /// The machine gives no memory, or no address space.
    #[error("no memory for {what} of {len_bytes} bytes: {source}; ask for less, or let the process use more memory")]
    Memory {
        /// What was to be made: `a buffer`, `a cache`.
        what: &'static str,
        /// How much was asked for.
        len_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The memory of a cache that has shrunk does not go back to the system.
    #[error("cannot give back the memory of a cache that has shrunk: {source}; the cache uses it again when it grows")]
    MemoryKept {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The machine gives no random bytes.
    #[error("no random bytes: {source}; ids, keys and temporary files need getrandom(2)")]
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
        /// Its name.
        name: String,
        /// The drive that it was to serve, by its index.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A thread has no engine, or its engine fails.
    #[error(
        "the engine of {thread}{}: {source}; raise the limits of open files and locked memory (`ulimit -n`, `ulimit -l`), \
         or choose another engine",
        drive.map_or_else(String::new, |drive| format!(" for drive {drive}"))
    )]
    Engine {
        /// The thread.
        thread: String,
        /// The drive, by its index, if the engine serves one only.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The thread of a NUMA node has not done what a call sent to it.
    #[error("the thread of a node: {why}; the call may be done in part, so repeat it")]
    NodeThread {
        /// Why not.
        why: String,
    },

    /// The machine's NUMA nodes cannot be listed.
    #[error("the machine's nodes: {source}; the topology `one` does without them")]
    Topology {
        /// The kernel's answer.
        source: io::Error,
    },

    /// As many pages are pinned as may be.
    #[error(
        "{most} pages may be pinned at a time, and are; drop some pins first, or open the array with a larger cache"
    )]
    Pins {
        /// How many pages may be pinned at a time.
        most: u32,
    },

    /// No page of a page set can leave it, so a page of the set cannot come in to be pinned.
    #[error(
        "page {page} of {file:?} cannot be pinned: all {set_pages} pages of its set are pinned, or cannot be written back{}; \
         drop some pins first, read without a pin, or open the array with a larger cache or larger sets (`set_size`)",
        source.as_ref().map_or_else(String::new, |source| format!(" ({source})"))
    )]
    PinnedSet {
        /// The file.
        file: String,
        /// The page, by its number in the file.
        page: u64,
        /// How many pages the set has.
        set_pages: usize,
        /// Why pages of the set cannot be written back, where that is known.
        source: Option<Box<Error>>,
    },

    /// A panic ended the operation.
    #[error("the operation panicked; the message of the panic says where")]
    Panicked,

    /// A tool failed in a way of its own: the library makes no such error.
    #[cfg(feature = "internals")]
    #[error("{what}: {why}")]
    Tool {
        /// What the tool needed.
        what: String,
        /// Why it did not get it, and what to do.
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

    /// Whether the process or the machine lacks something at this moment, so that a later try may succeed.
    pub(crate) fn passes(&self) -> bool {
        self.errno().is_some_and(passes)
    }

    /// The kernel's error number behind this error, where there is one. What is missing of an array has a number of its own: ENOENT is no
    /// directory, ENODATA no array, and ENODEV a drive that is missing.
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

/// An answer in words, with the number of the kernel's answer in such a case.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct Told {
    errno: i32,
    why: String,
}

/// An error in words that has a number, too ([`Error::errno`]).
pub(crate) fn told(errno: i32, why: impl Into<String>) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), Told { errno, why: why.into() })
}

/// The number of an error of the kernel, or of one in words.
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

/// What uses an array. A process that has just ended has no name any more.
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

/// What to do about errors that have an answer.
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

/// Whether an errno says that this process or the machine lacks something at this moment: descriptors or memory. So it is no fault of a
/// drive, and a later try may succeed.
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
