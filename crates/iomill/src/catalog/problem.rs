//! [`Problem`]: something wrong that a check has found.

use std::path::PathBuf;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Traces of an interrupted change; the next writer removes them.
    Note,
    /// A copy is lost, or a file is not iomill's. All data can be read.
    Warning,
    /// Data is lost, or no rule can decide.
    Error,
}

impl Severity {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A problem.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
    /// How bad that is.
    pub severity: Severity,
    /// Whether a repair has corrected it.
    pub repaired: bool,
    /// What to do about it.
    pub advice: String,
}
