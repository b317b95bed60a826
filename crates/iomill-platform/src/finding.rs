//! What was found: what is, what should be, why, and who says so.

use serde::Serialize;

/// How a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It costs, and `tune --apply` mends it.
    Mend,
    /// It costs, and only its owner can mend it: a kernel parameter, a remount, a limit of the session.
    Advise,
    /// Worth knowing; nothing to do.
    Note,
    /// It is as it should be.
    Good,
    /// It could not be found out.
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

/// A file of the machine and what it is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The path in the [`crate::tree::Tree`].
    pub path: String,
    /// What to write.
    pub value: String,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A drive's name, a mount point, or `machine`.
    pub subject: String,
    /// What was looked at: one of [`crate::findings::NAMES`].
    pub what: &'static str,
    /// How it is to be taken.
    pub verdict: Verdict,
    /// What is.
    pub is: String,
    /// What should be, or what to do.
    pub should: String,
    /// Why.
    pub why: String,
    /// Who says so: a paper, a page of the kernel's documentation, a standard.
    pub source: &'static str,
    /// What to write where; also where all is good, for who wants it kept.
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

    /// All is well.
    pub(crate) fn good(mut self) -> Finding {
        self.verdict = Verdict::Good;
        self.should = self.is.clone();
        self
    }

    /// With a verdict, what should be, and why.
    pub(crate) fn verdict(mut self, verdict: Verdict, should: impl Into<String>, why: impl Into<String>) -> Finding {
        self.verdict = verdict;
        self.should = should.into();
        self.why = why.into();
        self
    }

    /// It could not be found out.
    pub(crate) fn unknown(self, why: impl Into<String>) -> Finding {
        self.verdict(Verdict::Unknown, "", why)
    }

    /// With a file to write.
    pub(crate) fn set(mut self, path: impl Into<String>, value: impl Into<String>) -> Finding {
        self.settings.push(Setting { path: path.into(), value: value.into() });
        self
    }
}
