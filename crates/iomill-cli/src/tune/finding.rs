//! Findings: the present state, the wanted state, the reason, and the source.

use serde::Serialize;

/// The subject of findings about the whole machine.
pub const MACHINE: &str = "machine";

/// The meaning of a finding for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It has a cost, and `tune --apply` mends it.
    Mend,
    /// It has a cost, and only the user can mend it: a kernel parameter, a remount, a limit of the session.
    Advise,
    /// Worth knowing, with nothing to do.
    Note,
    /// The state is as wanted.
    Good,
    /// The state could not be determined.
    Unknown,
}

impl Verdict {
    /// A word for people.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Mend => "mend",
            Verdict::Advise => "advice",
            Verdict::Note => "note",
            Verdict::Good => "good",
            Verdict::Unknown => "unknown",
        }
    }
}

/// A file of the machine, and the value to write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The path in the [`iomill_platform::tree::Tree`].
    pub path: String,
    /// What to write.
    pub value: String,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A drive's name, a mount point, or `machine`.
    pub subject: String,
    /// The check: one of [`crate::tune::findings::NAMES`].
    pub what: &'static str,
    /// Its meaning for the user.
    pub verdict: Verdict,
    /// The present state.
    pub is: String,
    /// The wanted state, or what to do.
    pub should: String,
    /// The reason.
    pub why: String,
    /// The source: a paper, a page of the kernel's documentation, a standard.
    pub source: &'static str,
    /// The files to write, and their values. A good finding has them, too, for `--persist`.
    #[serde(skip)]
    pub settings: Vec<Setting>,
}

impl Finding {
    /// A finding without settings.
    pub(crate) fn new(subject: &str, what: &'static str, is: impl Into<String>, source: &'static str) -> Finding {
        Finding {
            subject: subject.to_owned(),
            what,
            verdict: Verdict::Note,
            is: is.into(),
            should: String::new(),
            why: String::new(),
            source,
            settings: Vec::new(),
        }
    }

    /// Makes the verdict good.
    pub(crate) fn good(mut self) -> Finding {
        self.verdict = Verdict::Good;
        self.should = self.is.clone();
        self
    }

    /// Adds a verdict, the wanted state, and the reason.
    pub(crate) fn verdict(mut self, verdict: Verdict, should: impl Into<String>, why: impl Into<String>) -> Finding {
        self.verdict = verdict;
        self.should = should.into();
        self.why = why.into();
        self
    }

    /// Makes the verdict unknown.
    pub(crate) fn unknown(self, why: impl Into<String>) -> Finding {
        self.verdict(Verdict::Unknown, "", why)
    }

    /// Adds a file to write.
    pub(crate) fn set(mut self, path: impl Into<String>, value: impl Into<String>) -> Finding {
        self.settings.push(Setting { path: path.into(), value: value.into() });
        self
    }
}
