//! The progress of a copy, a check or a measurement: a line on a terminal once the work takes longer than a second.
//!
//! Goals: the line is erased when the work ends, so that messages follow on a clean line. Work that reports its phases
//! reports them without a terminal too, a line each, once it takes longer than two seconds. Non-goals: several lines,
//! colours.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::human;

use crate::arguments::Global;
use crate::terminal;

/// Work that takes less time shows nothing on a terminal.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same for phases without a terminal.
const PATIENCE_OF_LOGS: Duration = Duration::from_secs(2);

/// The line is drawn again after this time.
const TICK: Duration = Duration::from_millis(100);

/// Characters of the bar.
const BAR: u64 = 30;

/// The progress of some work.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    shows: Shows,
    state: State,
    /// When the line was drawn last.
    drawn: Option<Instant>,
    /// Whether the present message was printed as a phase.
    is_told: bool,
}

/// Where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    Nothing,
    /// A line on a terminal, drawn again and again.
    Line,
    /// Each phase as a line of its own, for logs.
    Phases,
}

/// The text of the line.
#[derive(Clone, Debug)]
struct State {
    unit: Unit,
    done: u64,
    /// `None` if it is not known.
    total: Option<u64>,
    message: String,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Bytes,
    Files,
    /// Steps of any kind, which are not shown as a number.
    Steps,
}

impl Progress {
    /// Starts the clock of a copy, in bytes.
    pub fn new(global: &Global, total_bytes: Option<u64>) -> Progress {
        let is_wanted = !global.quiet && !global.wants_document();
        Progress::with(is_wanted, false, Unit::Bytes, total_bytes)
    }

    /// Starts the clock of work on files.
    pub fn of_files(global: &Global) -> Progress {
        Progress::with(!global.quiet && !global.wants_document(), false, Unit::Files, None)
    }

    /// Starts the clock of work in steps.
    pub fn of_steps(global: &Global) -> Progress {
        Progress::with(!global.quiet, false, Unit::Steps, None)
    }

    /// Starts the clock of work that says its phases. Logs get them too.
    pub fn of_phases(global: &Global) -> Progress {
        Progress::with(!global.quiet, !global.wants_document(), Unit::Steps, None)
    }

    fn with(is_wanted: bool, has_phases: bool, unit: Unit, total: Option<u64>) -> Progress {
        let shows = match io::stderr().is_terminal() {
            true if is_wanted => Shows::Line,
            false if is_wanted && has_phases => Shows::Phases,
            _ => Shows::Nothing,
        };
        let state = State { unit, done: 0, total, message: String::new() };
        Progress { started: Instant::now(), shows, state, drawn: None, is_told: true }
    }

    /// Says how much is done, and how much there is.
    pub fn set(&mut self, done: u64, all: u64) {
        (self.state.done, self.state.total) = (done, Some(all));
        self.show();
    }

    /// Adds bytes that are done.
    pub fn advance(&mut self, bytes: u64) {
        self.state.done += bytes;
        self.show();
    }

    /// Says how many files are done of how many. The line is drawn as often as before.
    pub fn count(&mut self, files: usize, of: usize) {
        if self.shows == Shows::Line {
            self.state.message = format!("{files} of {of} files");
        }
        self.show();
    }

    /// Shows the present action, such as waiting for the drives.
    pub fn say(&mut self, what: impl Into<String>) {
        let what = what.into();
        if what != self.state.message {
            (self.state.message, self.drawn, self.is_told) = (what, None, false);
        }
        self.show();
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn show(&mut self) {
        let (elapsed, is_told) = (self.started.elapsed(), self.is_told);
        match self.shows {
            Shows::Line if elapsed >= PATIENCE && self.drawn.is_none_or(|drawn| drawn.elapsed() >= TICK) => {
                let line = self.state.line(elapsed);
                let width = terminal::width_of(&io::stderr()).unwrap_or(80);
                let line: String = line.chars().take(width.saturating_sub(1)).collect();
                to_stderr(&format!("\r\x1b[K{line}"));
                self.drawn = Some(Instant::now());
            }
            Shows::Phases if elapsed >= PATIENCE_OF_LOGS && !is_told => {
                to_stderr(&format!("{}\n", self.state.message));
                self.is_told = true;
            }
            _ => {}
        }
    }
}

impl Drop for Progress {
    /// Clears the line.
    fn drop(&mut self) {
        if self.shows == Shows::Line && self.started.elapsed() >= PATIENCE {
            to_stderr("\r\x1b[K");
        }
    }
}

impl State {
    /// The line after so much time.
    fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let mut parts = Vec::new();
        let amount = |amount: u64| match self.unit {
            Unit::Bytes => human::size(amount),
            _ => amount.to_string(),
        };
        match (self.total, self.unit) {
            (Some(total), _) => {
                let share =
                    |of: u64| (u128::from(self.done.min(total)) * u128::from(of) / u128::from(total.max(1))) as u64;
                let full = share(BAR) as usize;
                let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR as usize - full));
                parts.push(format!("{bar} {:>3}%", share(100)));
                match self.unit {
                    Unit::Bytes => parts.push(format!("{} of {}", amount(self.done), amount(total))),
                    Unit::Files => parts.push(format!("{} of {} files", amount(self.done), amount(total))),
                    Unit::Steps => {}
                }
            }
            (None, Unit::Bytes) => parts.push(amount(self.done)),
            (None, _) => {}
        }
        if matches!(self.unit, Unit::Bytes) {
            parts.push(human::rate(self.done as f64 / seconds));
        }
        match self.total {
            Some(total) if self.done > 0 && self.done < total => {
                let left = seconds * (total - self.done) as f64 / self.done as f64;
                parts.push(format!("{} left", time(left)));
            }
            None if matches!(self.unit, Unit::Bytes) => parts.push(time(seconds)),
            _ => {}
        }
        if !self.message.is_empty() {
            parts.push(self.message.clone());
        }
        parts.join("  ")
    }
}

/// Whole seconds, minutes or hours, for a glance.
fn time(seconds: f64) -> String {
    match seconds.round() as u64 {
        seconds if seconds < 100 => format!("{seconds} s"),
        seconds if seconds < 100 * 60 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} h", (seconds + 1800) / 3600),
    }
}

/// Ignores errors: progress that cannot be shown is no failure of the work.
fn to_stderr(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(unit: Unit, done: u64, total: Option<u64>, message: &str) -> String {
        State { unit, done, total, message: message.to_owned() }.line(Duration::from_secs(10))
    }

    #[test]
    fn lines_say_how_much_is_done_and_how_long_it_takes() {
        let (full, empty) = ("█".repeat(15), "░".repeat(15));
        let half = format!("{full}{empty}");
        let mib = 1 << 20;
        assert_eq!(
            line(Unit::Bytes, 20 * mib, Some(40 * mib), "syncing"),
            format!("{half}  50%  20 MiB of 40 MiB  2 MiB/s  10 s left  syncing")
        );
        assert_eq!(line(Unit::Bytes, 20 * mib, None, ""), "20 MiB  2 MiB/s  10 s");
        assert_eq!(line(Unit::Files, 3, Some(6), ""), format!("{half}  50%  3 of 6 files  10 s left"));
        assert_eq!(line(Unit::Steps, 1, Some(2), "reading"), format!("{half}  50%  10 s left  reading"));
        assert_eq!(line(Unit::Steps, 0, None, "reading"), "reading");
    }

    #[test]
    fn ends_are_no_trap() {
        assert!(line(Unit::Steps, 0, Some(0), "").starts_with(&"░".repeat(30)));
        let over = line(Unit::Bytes, u64::MAX, Some(5), "");
        assert!(over.starts_with(&"█".repeat(30)) && over.contains("100%") && !over.contains("left"), "{over}");
    }

    #[test]
    fn times_are_short() {
        let shown = [0.4, 99.0, 100.0, 5999.0, 6000.0, 86_400.0].map(time);
        assert_eq!(shown, ["0 s", "99 s", "2 min", "100 min", "2 h", "24 h"]);
    }
}
