//! What can go wrong with traces, in words that say what, where, and what to do.

use std::io;

/// A result of this crate.
pub type Result<T, E = TraceError> = std::result::Result<T, E>;

/// Every way in which a trace fails.
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
        /// Why not.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{path}, line {line}: {what}; expected {expected}")]
    Line {
        /// The trace.
        path: String,
        /// Counted from 1, after unpacking.
        line: u64,
        /// What is wrong.
        what: String,
        /// The form of a right line.
        expected: &'static str,
    },
    /// The file as a whole is not what it should be.
    #[error("{path}: {why}")]
    Whole {
        /// The trace, or the file that goes with it.
        path: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The array, or the machine.
    #[error("{0}")]
    Array(#[from] iomill::Error),
}

/// What to do about it.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => "; it ends too soon: fetch or pack it again",
        _ => "",
    }
}
