//! The terminal: how wide it is; a page on it that is drawn again and again, and the keys that end it.
//!
//! Goals: the terminal is as it was afterwards, however the command ends. Non-goals: anything but text.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// Before the line's text: after text that fills the line it would take the last character away.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// How many columns the terminal has that the standard output is; `None` where it is none, or does not say.
pub fn width() -> Option<usize> {
    let stdout = io::stdout();
    let size = if stdout.is_terminal() { tcgetwinsize(&stdout).ok() } else { None };
    size.map(|size| size.ws_col.into()).filter(|&columns: &usize| columns > 0)
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The time is over.
    Over,
    /// A key that ends the page.
    Quit,
    /// A signal has come, which the caller knows of.
    Signal,
}

/// Waits; a signal ends it early.
pub fn wait(time: Duration) -> io::Result<Waited> {
    wait_with(time, &mut [])
}

fn wait_with(time: Duration, sources: &mut [PollFd<'_>]) -> io::Result<Waited> {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(sources, Some(&timeout)) {
        Ok(_) => Ok(Waited::Over),
        Err(Errno::INTR) => Ok(Waited::Signal),
        Err(error) => Err(error.into()),
    }
}

/// The terminal, while a page is on it.
pub struct Screen {
    /// How the keyboard was, if it is one.
    keyboard: Option<Termios>,
}

impl Screen {
    /// Takes the terminal; `None` where the standard output is none.
    pub fn take() -> io::Result<Option<Screen>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let stdin = io::stdin();
        let keyboard = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &keyboard {
            // Keys come at once and are not shown; Ctrl-C still is a signal.
            let mut now = before.clone();
            now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(&stdin, OptionalActions::Now, &now)?;
        }
        // From here on it is put back in any case.
        let screen = Screen { keyboard };
        say(ENTER)?;
        Ok(Some(screen))
    }

    /// Draws a page, cut to what fits.
    pub fn draw(&self, page: &str) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout())?;
        say(&fitted(page, size.ws_col.into(), size.ws_row.into()))
    }

    /// Waits, or until `q` is pressed.
    pub fn wait(&self, time: Duration) -> io::Result<Waited> {
        let stdin = io::stdin();
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.keyboard.is_none() {
                return wait(left);
            }
            let mut source = [PollFd::new(&stdin, PollFlags::IN)];
            let waited = wait_with(left, &mut source)?;
            if waited != Waited::Over || source[0].revents().is_empty() {
                return Ok(waited);
            }
            let mut keys = [0; 64];
            // Not through std's buffer, which would hide from `poll` what it holds.
            match rustix::io::read(&stdin, &mut keys) {
                // The terminal has gone.
                Ok(0) => return Ok(Waited::Quit),
                Ok(count) if keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return Ok(Waited::Quit),
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(Waited::Signal),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that does not take this has gone.
        let _ = say(LEAVE);
        if let Some(before) = &self.keyboard {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What draws a page over the one before: lines cut at the right and at the bottom. A size of 0 is one that is not known.
fn fitted(page: &str, columns: usize, rows: usize) -> String {
    let (columns, rows) = (if columns == 0 { 80 } else { columns }, if rows == 0 { 24 } else { rows });
    let mut text = HOME.to_owned();
    // The last row stays empty: a line end there would move the page.
    for line in page.lines().take(rows.saturating_sub(1)) {
        text.push_str(CLEAR_LINE);
        text.extend(line.chars().take(columns));
        text.push_str("\r\n");
    }
    text + CLEAR_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_to_fit() {
        assert_eq!(fitted("abc\nd\ne\n", 2, 3), "\x1b[H\x1b[Kab\r\n\x1b[Kd\r\n\x1b[J");
        assert_eq!(fitted(&"x".repeat(100), 0, 0).matches('x').count(), 80);
        assert_eq!(fitted("a", 5, 1), "\x1b[H\x1b[J");
    }

    #[test]
    fn waits_are_as_long_as_asked() {
        let start = Instant::now();
        assert_eq!(wait(Duration::from_millis(30)).unwrap(), Waited::Over);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
