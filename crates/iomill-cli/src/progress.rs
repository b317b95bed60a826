//! The progress of a copy or a check, shown on a terminal once it takes longer than a second.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::arguments::Global;

/// What takes less time shows no progress.
const PATIENCE: Duration = Duration::from_secs(1);

/// How far a copy or a check has come.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    /// It counts from the start, so that its rate is right, and is drawn after `PATIENCE`.
    bar: ProgressBar,
    /// Whether it will be drawn but is not yet.
    is_pending: bool,
}

impl Progress {
    /// Starts the clock of a copy, in bytes.
    pub fn new(global: &Global, total_bytes: Option<u64>) -> Progress {
        let template = if total_bytes.is_some() { KNOWN } else { UNKNOWN };
        Progress::with(global, new_bar(total_bytes, template))
    }

    /// Starts the clock of work on files.
    pub fn of_files(global: &Global) -> Progress {
        Progress::with(global, new_bar(Some(0), FILES))
    }

    fn with(global: &Global, bar: ProgressBar) -> Progress {
        let is_pending = !global.quiet && !global.wants_document() && io::stderr().is_terminal();
        Progress { started: Instant::now(), bar, is_pending }
    }

    /// Says how many files are done, and how many there are.
    pub fn set(&mut self, done: u64, all: u64) {
        self.bar.set_length(all);
        self.bar.set_position(done);
        self.show();
    }

    /// Adds bytes that are done.
    pub fn advance(&mut self, bytes: u64) {
        self.bar.inc(bytes);
        self.show();
    }

    fn show(&mut self) {
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
const FILES: &str = "{bar:30} {percent:>3}%  {human_pos} of {human_len} files  {eta} left";
const UNKNOWN: &str = "{binary_bytes}  {binary_bytes_per_sec}  {elapsed} {msg}";

fn new_bar(total: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        // A test checks that all templates are well formed. Otherwise the default style serves.
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_well_formed() {
        for template in [KNOWN, UNKNOWN, FILES] {
            ProgressStyle::with_template(template).unwrap();
        }
        assert_eq!((new_bar(Some(10), KNOWN).length(), new_bar(None, UNKNOWN).length()), (Some(10), None));
    }
}
