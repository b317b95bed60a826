//! The terminal: its width, a page that is drawn on it repeatedly, and the keys that end the page.
//!
//! Goals: the terminal's old state returns, however the command ends. Non-goals: anything except text.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::streams;

/// The alternate screen, with the cursor hidden.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// Sent before a line's text: after a text that fills the line it would erase the last character.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The number of columns, if the standard output is a terminal that reports it.
pub fn width() -> Option<usize> {
    width_of(&io::stdout())
}

/// The same for another stream.
pub fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let size = if stream.is_terminal() { tcgetwinsize(stream).ok() } else { None };
    size.map(|size| size.ws_col.into()).filter(|&columns: &usize| columns > 0)
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// The time is over.
    Over,
    /// A key that ends the page.
    Quit,
    /// A signal has come. The caller checks which one.
    Signal,
}

/// Waits for a time. A signal ends the wait early.
pub fn wait(time: Duration) -> io::Result<WaitEnd> {
    wait_with(time, &mut [])
}

fn wait_with(time: Duration, sources: &mut [PollFd<'_>]) -> io::Result<WaitEnd> {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    match poll(sources, Some(&timeout)) {
        Ok(_) => Ok(WaitEnd::Over),
        Err(Errno::INTR) => Ok(WaitEnd::Signal),
        Err(error) => Err(error.into()),
    }
}

/// The terminal, while a page is shown on it.
pub struct Screen {
    /// The keyboard's settings before, if the standard input is a terminal.
    keyboard: Option<Termios>,
}

impl Screen {
    /// Takes the terminal over, or returns `None` if the standard output is no terminal.
    pub fn take() -> io::Result<Option<Screen>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let stdin = io::stdin();
        let keyboard = if stdin.is_terminal() { Some(tcgetattr(&stdin)?) } else { None };
        if let Some(before) = &keyboard {
            // Keys arrive at once and are not echoed. Ctrl-C is still a signal.
            let mut now = before.clone();
            now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(&stdin, OptionalActions::Now, &now)?;
        }
        // From here on `drop` restores the terminal in any case.
        let screen = Screen { keyboard };
        say(ENTER)?;
        Ok(Some(screen))
    }

    /// Draws a page, cut to the terminal's size.
    pub fn draw(&self, page: &str) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout())?;
        say(&fitted(page, size.ws_col.into(), size.ws_row.into()))
    }

    /// Waits for a time, or until `q` is pressed.
    pub fn wait(&self, time: Duration) -> io::Result<WaitEnd> {
        let stdin = io::stdin();
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.keyboard.is_none() {
                return wait(left);
            }
            let mut source = [PollFd::new(&stdin, PollFlags::IN)];
            let waited = wait_with(left, &mut source)?;
            if waited != WaitEnd::Over || source[0].revents().is_empty() {
                return Ok(waited);
            }
            let mut keys = [0; 64];
            // Not through the buffer of std: `poll` does not see what that holds.
            match rustix::io::read(&stdin, &mut keys) {
                // The terminal has gone.
                Ok(0) => return Ok(WaitEnd::Quit),
                Ok(count) if keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return Ok(WaitEnd::Quit),
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(WaitEnd::Signal),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal does not take this, it has gone.
        let _ = say(LEAVE);
        if let Some(before) = &self.keyboard {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn say(text: &str) -> io::Result<()> {
    streams::stdout()?.write_all(text.as_bytes())
}

/// The output that draws a page over the previous one, cut at the right and at the bottom. A size of 0 means unknown.
fn fitted(page: &str, columns: usize, rows: usize) -> String {
    let (columns, rows) = (if columns == 0 { 80 } else { columns }, if rows == 0 { 24 } else { rows });
    let mut text = HOME.to_owned();
    // The last row stays empty: a line end there would scroll the page.
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
        assert_eq!(wait(Duration::from_millis(30)).unwrap(), WaitEnd::Over);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
