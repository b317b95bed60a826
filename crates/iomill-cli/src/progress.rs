//! The progress of a copy, on a terminal, once it takes long enough to wonder.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::arguments::Global;

/// Shorter work shows none.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a copy has come.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    /// Counts from the start, so that its rate is right, and is drawn once `PATIENCE` is over.
    bar: ProgressBar,
    /// Whether it is to be drawn and is not yet.
    is_pending: bool,
}

impl Progress {
    /// Begins now.
    pub fn new(global: &Global, total_bytes: Option<u64>) -> Progress {
        let is_pending = !global.quiet && !global.wants_document() && io::stderr().is_terminal();
        Progress { started: Instant::now(), bar: new_bar(total_bytes), is_pending }
    }

    /// So much more is done.
    pub fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        if self.is_pending && self.started.elapsed() >= PATIENCE {
            self.is_pending = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The copy is done; what is left is waiting for the drives.
    pub fn say(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
    }
}

impl Drop for Progress {
    /// Leaves the terminal as it was: messages follow.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

const KNOWN: &str =
    "{bar:30} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left {msg}";
const UNKNOWN: &str = "{binary_bytes}  {binary_bytes_per_sec}  {elapsed} {msg}";

fn new_bar(total_bytes: Option<u64>) -> ProgressBar {
    let (bar, template) = match total_bytes {
        Some(total) => (ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden()), KNOWN),
        None => (ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), UNKNOWN),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        // A test makes sure that both are well formed; the default style would do.
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        for template in [KNOWN, UNKNOWN] {
            ProgressStyle::with_template(template).unwrap();
        }
        assert_eq!((new_bar(Some(10)).length(), new_bar(None).length()), (Some(10), None));
    }
}
