//! The errors of this crate. Each has the failed operation, its place, and advice.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

mod kinds;
mod told;
mod words;

pub use kinds::ErrorKind;
pub(crate) use told::told;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The advice after damage.
pub(crate) const CHECK: &str = "check the array";

/// An error of iomill. Its text says what failed and where, and ends with advice ([`Error::advice`]). Programs match on
/// [`Error::kind`]. `{:?}` prints the text too, so that a `main` that returns an error shows its advice. `{:#?}` also has
/// the kind, the errno and the error behind it.
#[non_exhaustive]
pub enum Error {
    /// The kernel refused or failed an operation.
    #[non_exhaustive]
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

    /// A read ended before the known end of a part. Another program cut the part, or the drive was removed (reads of a
    /// removed NVMe drive end early).
    #[non_exhaustive]
    PartCut {
        /// The part.
        path: PathBuf,
        /// The offset of the first missing byte.
        offset: u64,
        /// The number of bytes of the read that are missing from there on.
        missing: u64,
    },

    /// A read ended before the end that a plain file had when it was opened: another program cut the file.
    #[non_exhaustive]
    FileCut {
        /// The file.
        path: PathBuf,
        /// The offset of the first missing byte.
        offset: u64,
        /// The number of bytes of the read that are missing from there on.
        missing: u64,
    },

    /// The path of a drive names no directory.
    #[non_exhaustive]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },

    /// The directory exists, but has no drive of an array: no array was created there, or the drive is not mounted.
    #[non_exhaustive]
    NoArray {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// The directory has a drive of an array already, so no new array is made there.
    #[non_exhaustive]
    ArrayExists {
        /// The directory.
        path: PathBuf,
        /// Which drive it is.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// The array was found, but one of its drives was not: the drive has failed, or is not mounted.
    #[non_exhaustive]
    DriveMissing {
        /// The path at which the drive was last seen.
        path: PathBuf,
        /// Its index in the array.
        index: u16,
        /// What is at that path instead.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// A drive does not belong to this array, or cannot be used as it is.
    #[non_exhaustive]
    Drive {
        /// The drive's directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// A label, record or length is damaged.
    #[non_exhaustive]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// A page of a file is not what was written to it: the drive returned other bytes. No call has returned any of
    /// them. The other pages of the file can be read.
    #[non_exhaustive]
    CorruptPage {
        /// The name of the file in the array.
        file: String,
        /// The number of the page in the file. Its offset in bytes is 4,096 times the number.
        page: u64,
        /// The index of the drive.
        drive: u16,
        /// The part on that drive.
        path: PathBuf,
        /// The offset of the page in the part, in bytes.
        offset: u64,
    },

    /// A process uses the array: mostly this one, where a handle of the array or of one of its files still lives. A
    /// future that has not ended is such a handle, too.
    #[non_exhaustive]
    Locked {
        /// The drive that the process has locked.
        path: PathBuf,
        /// The number of the process that has locked it, if the kernel shows it. It may be this process.
        holder: Option<u32>,
        /// The refused operation, such as `opened for writing`.
        wanted: &'static str,
    },

    /// The array has no file of that name.
    #[non_exhaustive]
    NotFound {
        /// The name.
        name: String,
    },

    /// A file of that name exists.
    #[non_exhaustive]
    Exists {
        /// The name.
        name: String,
    },

    /// A call was to open or replace a certain version of a file, and the file has another version.
    #[non_exhaustive]
    Conflict {
        /// The name.
        name: String,
        /// The expected version.
        expected: u64,
        /// The present version. `None` if there is no such file.
        found: Option<u64>,
    },

    /// The file is open, so it cannot be deleted or replaced.
    #[non_exhaustive]
    Busy {
        /// The name.
        name: String,
    },

    /// An argument makes no sense.
    #[non_exhaustive]
    Invalid {
        /// The argument, with its value.
        what: String,
        /// Why it makes no sense.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// The array or file takes no changes.
    #[non_exhaustive]
    ReadOnly {
        /// Why.
        why: String,
        /// What to do. It may be empty.
        advice: Cow<'static, str>,
    },

    /// An earlier sync failed, so it is not known which bytes of the file are on its drives.
    #[non_exhaustive]
    Poisoned {
        /// The file.
        name: String,
        /// The earlier error.
        why: String,
    },

    /// A change of the catalog failed on some drives and could not be undone: the next open finds it done or not done.
    #[non_exhaustive]
    OutcomeUnknown {
        /// The change.
        what: String,
        /// The failure.
        source: Box<Error>,
    },

    /// A call that blocks was made inside a callback, a waker, or a subscriber of events of `tracing`, where only calls
    /// that return at once are allowed.
    #[non_exhaustive]
    BlockingCall {
        /// The call.
        call: &'static str,
    },

    /// The array was closed.
    Closed,

    /// This process was forked, and its parent has the array or plain file open for writing. Or the call is one on the
    /// parent's array or runtime as a whole.
    Forked,

    /// The machine gives no memory, or no address space.
    #[non_exhaustive]
    Memory {
        /// The purpose of the memory, such as `a buffer` or `a cache`.
        what: &'static str,
        /// The size in bytes.
        len_bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The system does not take back the memory of a cache that has shrunk.
    #[non_exhaustive]
    MemoryKept {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The machine gives no random bytes.
    #[non_exhaustive]
    Random {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The machine does not start a thread.
    #[non_exhaustive]
    Thread {
        /// The thread's name.
        name: String,
        /// The index of the drive, if the thread was to serve one.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// A thread gets no engine, or its engine has failed.
    #[non_exhaustive]
    Engine {
        /// The thread.
        thread: String,
        /// The index of the drive, if the engine serves only one.
        drive: Option<u16>,
        /// The kernel's answer.
        source: io::Error,
    },

    /// The thread of a NUMA node has not done its share of a call.
    #[non_exhaustive]
    NodeThread {
        /// The reason.
        why: String,
    },

    /// The machine's NUMA nodes cannot be listed.
    #[non_exhaustive]
    Topology {
        /// The kernel's answer.
        source: io::Error,
    },

    /// The most pages that may be pinned at a time are pinned.
    #[non_exhaustive]
    Pins {
        /// The most pages that may be pinned at a time.
        most: u32,
    },

    /// No page of a page set can be evicted, so no further page of the set can be pinned.
    #[non_exhaustive]
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

    /// An error of another library's call, which `?` has made from an [`io::Error`]. No call of this library returns
    /// it.
    #[non_exhaustive]
    Other {
        /// The error.
        source: io::Error,
    },

    /// A panic ended the operation.
    Panicked,

    /// An error of a tool. The library itself does not return it.
    #[cfg(feature = "internals")]
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

    /// An [`Error::Invalid`] without advice.
    pub fn invalid(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Invalid { what: what.into(), why: why.into(), advice: "".into() }
    }

    /// An [`Error::Memory`].
    pub(crate) fn memory(what: &'static str, len_bytes: u64) -> impl Fn(io::Error) -> Error {
        move |source| Error::Memory { what, len_bytes, source }
    }

    /// Renames an error to that of `call`, if another call of the library returned it on behalf of `call`.
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

    /// An [`Error::Corrupt`]. The advice is to check the array, unless [`Error::advise`] replaces it.
    pub(crate) fn corrupt(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::Corrupt { path: path.into(), why: why.into(), advice: CHECK.into() }
    }

    /// An [`Error::Drive`] without advice.
    pub(crate) fn drive(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::Drive { path: path.into(), why: why.into(), advice: "".into() }
    }

    /// The error of a successful fsync after another fsync of its drive has failed (rule 4 of `sys::fsyncs`).
    pub(crate) fn fsync_failed(drive: impl Into<PathBuf>) -> Error {
        let why = "an fsync of this drive failed after the write, so the drive may have lost the bytes";
        Error::drive(drive, why).advise("see the kernel's log")
    }

    /// An [`Error::NoArray`] without advice.
    pub(crate) fn no_array(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::NoArray { path: path.into(), why: why.into(), advice: "".into() }
    }

    /// An [`Error::ArrayExists`] without advice.
    pub(crate) fn array_exists(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::ArrayExists { path: path.into(), why: why.into(), advice: "".into() }
    }

    /// An [`Error::ReadOnly`] without advice.
    pub(crate) fn read_only(why: impl Into<String>) -> Error {
        Error::ReadOnly { why: why.into(), advice: "".into() }
    }

    /// Sets the advice of an error that has it as a field.
    pub(crate) fn advise(mut self, what_to_do: impl Into<Cow<'static, str>>) -> Error {
        match &mut self {
            Error::NoArray { advice, .. }
            | Error::ArrayExists { advice, .. }
            | Error::DriveMissing { advice, .. }
            | Error::Drive { advice, .. }
            | Error::Corrupt { advice, .. }
            | Error::Invalid { advice, .. }
            | Error::ReadOnly { advice, .. } => *advice = what_to_do.into(),
            other => debug_assert!(false, "{other} has its own advice"),
        }
        self
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Io { source, .. }
            | Error::Memory { source, .. }
            | Error::MemoryKept { source }
            | Error::Random { source }
            | Error::Thread { source, .. }
            | Error::Engine { source, .. }
            | Error::Topology { source }
            | Error::Other { source } => Some(source),
            Error::OutcomeUnknown { source, .. } | Error::PinnedSet { source: Some(source), .. } => Some(&**source),
            _ => None,
        }
    }
}

/// Errors of operations that tools do without the library.
#[cfg(feature = "internals")]
impl Error {
    /// An [`Error::Io`] at an offset in bytes.
    pub fn io_at(action: &'static str, path: impl Into<PathBuf>, offset: u64, source: io::Error) -> Error {
        Error::Io { action, path: path.into(), offset: Some(offset), source }
    }

    /// An [`Error::PartCut`]: a read ended at `offset`, `missing` bytes too early.
    pub fn part_cut(path: impl Into<PathBuf>, offset: u64, missing: u64) -> Error {
        Error::PartCut { path: path.into(), offset, missing }
    }

    /// An [`Error::Corrupt`] without advice.
    pub fn damaged(path: impl Into<PathBuf>, why: impl Into<String>) -> Error {
        Error::corrupt(path, why).advise("")
    }

    /// An [`Error::NotFound`].
    pub fn not_found(name: impl Into<String>) -> Error {
        Error::NotFound { name: name.into() }
    }
}

/// Whether an errno means that the process or the machine lacks descriptors or memory at this moment. That is no fault
/// of a drive, and a later try may succeed.
pub(crate) fn passes(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_descriptors_and_memory_passes() {
        assert!([libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN].into_iter().all(passes));
        assert!(![libc::EIO, libc::ENOSPC, libc::EROFS, libc::EINTR].into_iter().any(passes));
    }

    /// The advice is a field of its own, and ends the text.
    #[test]
    fn advice_ends_the_text() {
        let damaged = Error::corrupt("/d/label", "it is cut");
        assert_eq!(damaged.to_string(), "/d/label: it is cut; check the array");
        let found = Error::corrupt("/d/label", "it is cut").advise("take the other one");
        assert_eq!(found.advice().as_deref(), Some("take the other one"));
        assert_eq!(Error::drive("/d", "it is odd").to_string(), "drive /d: it is odd");
        let depth = Error::invalid("depth 0", "it is 1 to 1024");
        assert_eq!((depth.to_string(), depth.advice()), ("depth 0: it is 1 to 1024".to_owned(), None));
        assert_eq!(depth.advise("leave it out").to_string(), "depth 0: it is 1 to 1024; leave it out");
        let full = Error::io("write", "/d/f", io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(full.to_string().ends_with("; free space on that drive, then try again"), "{full}");
        assert_eq!(Error::io("write", "/d/f", io::Error::from_raw_os_error(libc::EINTR)).advice(), None);
    }

    /// Tests and `main` print an error by its `Debug`: the text with the advice, and the parts in the long form.
    #[test]
    fn debug_is_the_text() {
        let missing = Error::io("open", "/d/f", io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(format!("{missing:?}"), missing.to_string());
        let long = format!("{missing:#?}");
        for part in ["NotFound", "cannot open /d/f", "check the path", "2,", "Os {"] {
            assert!(long.contains(part), "{part}: {long}");
        }
    }
}
