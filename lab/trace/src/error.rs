//! The errors of this crate. Their texts say what failed, where, and what to do.

use std::io;

use iomill_cli::failure::Failure;

/// A result of this crate.
pub type Result<T, E = TraceError> = std::result::Result<T, E>;

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be read or unpacked.
    #[error("cannot read {path}{packing}: {source}{}", advice(source))]
    Read {
        /// The trace.
        path: String,
        /// ` (gzip)` and so on, or nothing.
        packing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A line is wrong.
    #[error("{path}, line {line}: {what}; expected {expected}")]
    Line {
        /// The trace.
        path: String,
        /// Counted from 1, after unpacking.
        line: u64,
        /// The fault.
        what: String,
        /// The form of a correct line.
        expected: &'static str,
    },
    /// The file as a whole is wrong.
    #[error("{path}: {why}")]
    Whole {
        /// The trace, or a file that belongs to it.
        path: String,
        /// The fault, and advice.
        why: String,
    },
    /// An error of the array or the machine.
    #[error("{0}")]
    Array(#[from] iomill::Error),
}

/// The advice.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => "; it ends too soon: fetch or pack it again",
        _ => "",
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Failure {
        match error {
            TraceError::Array(error) => Failure::Library(error),
            error => Failure::Trace(error.to_string()),
        }
    }
}
