//! [`Finding`]: a violation of a rule. Non-goals: the rules.

use std::fmt;

/// The file of exceptions: violations that still exist.
pub const EXCEPTIONS: &str = "crates/xtask/tidy.toml";

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub path: String,
    /// From 1; 0 means the whole file.
    pub line: usize,
    pub what: String,
}

impl Finding {
    pub fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}
