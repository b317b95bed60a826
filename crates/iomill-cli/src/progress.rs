//! The progress of a copy, shown on a terminal once the copy takes longer than a second.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::arguments::Global;

/// A copy that takes less time shows no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a copy has come.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    /// It counts from the start, so that its rate is right, and is drawn after `PATIENCE`.
    bar: ProgressBar,
    /// Whether it will be drawn but is not yet.
    is_pending: bool,
}

impl Progress {
    /// Starts the clock.
    pub fn new(global: &Global, total_bytes: Option<u64>) -> Progress {
        let is_pending = !global.quiet && !global.wants_document() && io::stderr().is_terminal();
        Progress { started: Instant::now(), bar: new_bar(total_bytes), is_pending }
    }

    /// Adds bytes that are done.
    pub fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        if self.is_pending && self.started.elapsed() >= PATIENCE {
            self.is_pending = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Shows which work is left when all bytes are copied, such as waiting for the drives.
    pub fn say(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
    }
}

impl Drop for Progress {
    /// Clears the bar, so that messages follow on a clean line.
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
        // A test checks that both templates are well formed. Otherwise the default style serves.
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
