//! The failures of a command: their messages, exit codes, and words for programs.

use std::io;
use std::path::Path;

use iomill::{Error, ErrorKind};
use rustix::io::Errno;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error of the library.
    #[error("{0}{run}", run = command(.0))]
    Library(#[from] Error),
    /// Recorded accesses, or figures to compare with, that cannot be used.
    #[error("{0}")]
    Trace(String),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file exists where the command wants to make one.
    #[error("{what} exists already; --force replaces it")]
    Exists {
        /// What, with its name.
        what: String,
    },
    /// An attribute that a file does not have.
    #[error("{0}")]
    NoAttribute(String),
    /// A file outside the array, or one of the standard streams.
    #[error("cannot {action} {place}: {source}{}", advice(source))]
    Local {
        /// The action that failed: a verb, with its preposition.
        action: &'static str,
        /// The file.
        place: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A problem that the answer already explains: `check` left problems, or a soak took too much memory.
    #[error("{0}")]
    Unsound(String),
    /// A signal.
    #[error("interrupted")]
    Interrupted {
        /// Its number.
        signal: i32,
    },
    /// The reader of the standard output has gone. No message says so.
    #[error("the reader of the standard output has gone")]
    BrokenPipe,
    /// A failure, and the state that it left.
    #[error("{cause}; {aftermath}")]
    Undone {
        /// The failure.
        cause: Box<Failure>,
        /// That state, as a clause of the message.
        aftermath: String,
    },
}

/// What is done to a file that is only looked at. If it fails, another file may be good.
const LOOKS: [&str; 4] = ["read", "open", "measure", "look for holes in"];

/// Whether the next file would meet the same: a full or read-only file system, or a limit of the process.
fn ends_all(source: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(source),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::MFILE | Errno::NFILE)
    )
}

/// The command that does what the advice of an error says. The library knows of no commands.
fn command(error: &Error) -> &'static str {
    let is_repair = error.advice().is_some_and(|advice| advice.contains("repair the array"));
    match error {
        Error::NotFound { .. } => " (`iomill ls`)",
        Error::NoArray { .. } => " (`iomill init`)",
        _ if is_repair => " (`iomill check --repair`)",
        Error::CorruptPage { .. } => " (`iomill check --data`)",
        // An error without advice is not one of an array: a profile has wrong contents.
        _ if error.kind() == ErrorKind::Corrupt && error.advice().is_some() => " (`iomill check`)",
        _ => "",
    }
}

/// A result of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// For `map_err`: a failure with a file outside the array.
    pub fn local(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
        let place = path.display().to_string();
        move |source| Failure::Local { action, place, source }
    }

    /// For `map_err`: a failure of the standard output.
    pub fn stdout(source: io::Error) -> Failure {
        Failure::write("standard output", source)
    }

    /// The failure of a write. If the reader of a pipe went away, it is no error to talk about.
    pub fn write(place: impl Into<String>, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::Local { action: "write to", place: place.into(), source },
        }
    }

    /// This failure, with the state that it left.
    pub fn and(self, aftermath: impl Into<String>) -> Failure {
        Failure::Undone { cause: Box::new(self), aftermath: aftermath.into() }
    }

    /// The exit code.
    pub fn exit_code(&self) -> u8 {
        const SIGPIPE: u8 = 13;
        match self {
            Failure::Usage(_) | Failure::Library(Error::Invalid { .. }) => 2,
            Failure::Interrupted { signal } => 128 + (*signal as u8 & 0x7f),
            // The code that a shell shows for a tool that SIGPIPE ended.
            Failure::BrokenPipe => 128 + SIGPIPE,
            Failure::Undone { cause, .. } => cause.exit_code(),
            _ => 1,
        }
    }

    /// Whether it concerns one file of several, so that the others may succeed. One sector that cannot be read, or one
    /// damaged page, must not keep the other files on a drive.
    pub fn is_of_one_file(&self) -> bool {
        match self {
            Failure::Library(Error::Io { action, source, .. }) => LOOKS.contains(action) && !ends_all(source),
            Failure::Library(error) => {
                matches!(
                    error,
                    Error::NotFound { .. }
                        | Error::Exists { .. }
                        | Error::Conflict { .. }
                        | Error::Busy { .. }
                        | Error::PartCut { .. }
                        | Error::Corrupt { .. }
                        | Error::CorruptPage { .. }
                )
            }
            Failure::Exists { .. } => true,
            Failure::Local { action, source, .. } => {
                let is_io = Errno::from_io_error(source) == Some(Errno::IO);
                !ends_all(source) && (!is_io || LOOKS.contains(action))
            }
            Failure::Undone { cause, .. } => cause.is_of_one_file(),
            _ => false,
        }
    }

    /// A stable word for programs (`docs/json.md`).
    pub fn kind(&self) -> &'static str {
        match self {
            Failure::Library(error) => library_kind(error),
            Failure::Trace(_) => "trace",
            Failure::Usage(_) => "usage",
            Failure::Exists { .. } => "exists",
            Failure::NoAttribute(_) => "not_found",
            Failure::Local { .. } => "local",
            Failure::Unsound(_) => "unsound",
            Failure::Interrupted { .. } => "interrupted",
            Failure::BrokenPipe => "broken_pipe",
            Failure::Undone { cause, .. } => cause.kind(),
        }
    }
}

fn library_kind(error: &Error) -> &'static str {
    match error {
        Error::Io { .. } => "io",
        Error::PartCut { .. } => "part_cut",
        Error::FileCut { .. } => "file_cut",
        Error::NoDirectory { .. } => "no_directory",
        Error::NoArray { .. } => "no_array",
        Error::DriveMissing { .. } => "drive_missing",
        Error::Drive { .. } => "drive",
        Error::Corrupt { .. } | Error::CorruptPage { .. } => "corrupt",
        Error::Locked { .. } => "locked",
        Error::NotFound { .. } => "not_found",
        Error::Exists { .. } | Error::ArrayExists { .. } => "exists",
        Error::Busy { .. } => "busy",
        Error::Invalid { .. } => "invalid",
        Error::ReadOnly { .. } => "read_only",
        Error::Poisoned { .. } => "poisoned",
        Error::OutcomeUnknown { .. } => "outcome_unknown",
        Error::Tool { .. } => "machine",
        _ => "other",
    }
}

/// Advice to the user about some errors of the kernel.
fn advice(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::MFILE) => "; raise the limit of open files (`ulimit -n`)",
        Some(Errno::FBIG) => "; the limit of file sizes (`ulimit -f`) or the file system does not allow it",
        Some(Errno::NOSPC) => "; free space there, then try again",
        _ => "",
    }
}

/// A path in messages: quoted, with escapes.
pub fn shown(path: &Path) -> String {
    format!("{path:?}")
}
