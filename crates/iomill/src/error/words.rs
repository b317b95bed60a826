//! The texts of errors: what failed and where ([`Error`]'s `Display`), and what to do ([`Error::advice`]). Non-goals:
//! the kinds of errors (`error`).

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use super::{CHECK, Error};

impl Error {
    /// Advice, if there is any. It ends the text of the error.
    pub fn advice(&self) -> Option<Cow<'_, str>> {
        let fixed = match self {
            Error::NoArray { advice, .. }
            | Error::ArrayExists { advice, .. }
            | Error::DriveMissing { advice, .. }
            | Error::Drive { advice, .. }
            | Error::Corrupt { advice, .. }
            | Error::Invalid { advice, .. }
            | Error::ReadOnly { advice, .. } => return (!advice.is_empty()).then(|| Cow::Borrowed(&**advice)),
            Error::Thread { drive, .. } => {
                let instead = if drive.is_some() { " or do without drive threads" } else { "" };
                return Some(format!("raise the limit of processes (`ulimit -u`){instead}").into());
            }
            Error::Io { source, .. } => advice_of(source)?,
            Error::PartCut { .. } => CHECK,
            Error::CorruptPage { .. } => {
                "write the page anew or bring the file back from a copy, and see the kernel's log: the drive may be failing"
            }
            Error::FileCut { .. } => "open it again",
            Error::NoDirectory { .. } => "check the path, or make the directory and mount the drive there",
            Error::Locked { holder: Some(holder), .. } if *holder == std::process::id() => {
                "a handle of it still lives: call `Array::close`, or drop the array, its files and its futures"
            }
            Error::Locked { .. } => "close it there first",
            Error::NotFound { .. } => "list the files to see their names",
            Error::Exists { .. } => "remove it first or choose another name",
            Error::Conflict { .. } => "read what is there, then decide again",
            Error::Busy { .. } => "close it first",
            Error::Poisoned { .. } => "close it and open it again",
            Error::OutcomeUnknown { .. } => "open the array again to see it",
            Error::BlockingCall { .. } => "use `submit` or a future there, or another thread",
            Error::Closed => "open it again",
            Error::Forked => "open it again in this process; only a file that is open for reading reopens by itself",
            Error::Memory { .. } => "ask for less, or let the process use more memory",
            Error::MemoryKept { .. } => "the cache uses it again when it grows",
            Error::Random { .. } => "allow getrandom(2), which ids, keys and names of temporary files need",
            Error::Engine { .. } => {
                "raise the limits of open files and locked memory (`ulimit -n`, `ulimit -l`), or choose another engine"
            }
            Error::NodeThread { .. } => "the call may be done in part, so repeat it",
            Error::Topology { .. } => "take the machine as one node (`one_node`), which needs no list",
            Error::Pins { .. } => "drop some pins first, or open the array with a larger cache",
            Error::PinnedSet { .. } => {
                "drop some pins first, read without a pin, or open the array with a larger cache or larger sets (`set_pages`)"
            }
            Error::Panicked => "the message of the panic says where",
            Error::Other { .. } => return None,
            #[cfg(feature = "internals")]
            Error::Tool { .. } => return None,
        };
        Some(Cow::Borrowed(fixed))
    }

    /// The text without the advice.
    fn write_fact(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { action, path, offset, source } => {
                write!(f, "cannot {action} {}{}: {source}", path.display(), at(*offset))
            }
            Error::PartCut { path, offset, missing } => write!(
                f,
                "{} lacks {missing} bytes from offset {offset} on, which were there before: the drive failed or the file \
                 was cut",
                path.display()
            ),
            Error::FileCut { path, offset, missing } => write!(
                f,
                "{} lacks {missing} bytes from offset {offset} on, which it had when it was opened: another program cut it",
                path.display()
            ),
            Error::NoDirectory { path } => write!(f, "drive {}: there is no such directory", path.display()),
            Error::NoArray { path, why, .. }
            | Error::ArrayExists { path, why, .. }
            | Error::DriveMissing { path, why, .. }
            | Error::Drive { path, why, .. } => write!(f, "drive {}: {why}", path.display()),
            Error::Corrupt { path, why, .. } => write!(f, "{}: {why}", path.display()),
            Error::CorruptPage { file, page, drive, path, offset } => write!(
                f,
                "page {page} of {file:?} is not what was written: drive {drive} returned other bytes at offset {offset} of {}",
                path.display()
            ),
            Error::Locked { path, holder, wanted } => {
                write!(f, "the array at {} is in use by {}, so it cannot be {wanted}", path.display(), user(holder))
            }
            Error::NotFound { name } => write!(f, "no file named {name:?} in the array"),
            Error::Exists { name } => write!(f, "a file named {name:?} exists already"),
            Error::Conflict { name, expected, found: Some(found) } => {
                write!(f, "file {name:?} has version {found}, but version {expected} was expected")
            }
            Error::Conflict { name, expected, found: None } => {
                write!(f, "file {name:?} does not exist, but version {expected} was expected")
            }
            Error::Busy { name } => write!(f, "file {name:?} is open in this process"),
            Error::Invalid { what, why, .. } => write!(f, "{what}: {why}"),
            Error::ReadOnly { why, .. } => write!(f, "read-only: {why}"),
            Error::Poisoned { name, why } => {
                write!(f, "file {name:?} takes no more writes after an earlier error ({why})")
            }
            Error::OutcomeUnknown { what, source } => write!(f, "the outcome of {what} is not known: {source}"),
            Error::BlockingCall { call } => {
                write!(f, "`{call}` blocks, so callbacks, wakers and subscribers of events cannot call it")
            }
            other => other.write_fact_of_process(f),
        }
    }

    /// `write_fact` for errors of the process and the machine.
    fn write_fact_of_process(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Closed => f.write_str("the array is closed"),
            Error::Forked => f.write_str("the array, runtime or file was opened before this process was forked"),
            Error::Memory { what, len_bytes, source } => {
                write!(f, "no memory for {what} of {len_bytes} bytes: {source}")
            }
            Error::MemoryKept { source } => write!(f, "cannot return memory of a cache that has shrunk: {source}"),
            Error::Random { source } => write!(f, "no random bytes: {source}"),
            Error::Thread { name, source, .. } => write!(f, "cannot start the thread {name}: {source}"),
            Error::Engine { thread, drive: None, source } => write!(f, "the engine of {thread}: {source}"),
            Error::Engine { thread, drive: Some(drive), source } => {
                write!(f, "the engine of {thread} for drive {drive}: {source}")
            }
            Error::NodeThread { why } => write!(f, "the thread of a NUMA node has failed: {why}"),
            Error::Topology { source } => write!(f, "cannot list the machine's NUMA nodes: {source}"),
            Error::Pins { most } => write!(f, "cannot pin a page: {most} pages are pinned, the most for this cache"),
            Error::PinnedSet { file, page, set_pages, source } => {
                let cause = source.as_ref().map_or_else(String::new, |source| format!(" ({source})"));
                write!(
                    f,
                    "page {page} of {file:?} cannot be pinned: all {set_pages} pages of its set are pinned, or cannot be \
                     written back{cause}"
                )
            }
            #[cfg(feature = "internals")]
            Error::Tool { what, why } => write!(f, "{what}: {why}"),
            Error::Other { source } => write!(f, "{source}"),
            _ => f.write_str("the operation panicked"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_fact(f)?;
        match self.advice() {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

/// The text, as `Display` prints it. The long form `{:#?}` has the parts by their names. It prints no fields of variants:
/// a derived form would be a second list of all variants, and the text has their values.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.kind())
            .field("errno", &self.errno())
            .field("text", &format_args!("{self}"))
            .field("source", &self.source())
            .finish()
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |o| format!(" at offset {o}"))
}

/// The process that uses an array, as text. A process that has just ended has no name.
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

/// Advice for an error of the kernel, if there is any.
fn advice_of(source: &io::Error) -> Option<&'static str> {
    Some(match source.raw_os_error()? {
        libc::ENOSPC => "free space on that drive, then try again",
        libc::EFBIG => "the limit of file sizes (`ulimit -f`) or the file system does not allow it",
        libc::EDQUOT => "the quota of that drive is used up, free space or raise it",
        libc::ENOENT => "check the path",
        libc::EROFS => "that file system is mounted read-only, mount it for writing",
        libc::EACCES | libc::EPERM => "check its owner and mode, and those of the directories above it",
        libc::EMFILE => "raise the limit of open files (`ulimit -n`)",
        libc::ENFILE => "raise the system's limit of open files (`fs.file-max`)",
        libc::EIO => "the drive failed, see the kernel's log",
        libc::ELOOP => "symbolic links are not followed inside a drive, put the file itself there",
        _ => return None,
    })
}
