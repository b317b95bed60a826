//! Signals that end a long copy. A signal sets a flag; the copy reads it between chunks, and removes what was written. Another
//! signal a second or more after the first ends the process at once. A signal within that second counts as the same wish:
//! `timeout` sends one to the process and one to its group.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::failure::{Failure, Result};

/// Time after the first signal in which others do not end the process.
const GRACE: Duration = Duration::from_secs(1);

/// Stack of the thread that waits for the first signal.
const STACK_BYTES: usize = 64 << 10;

/// Whether a signal came.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// Its number; 0 if none came.
    signal: Arc<AtomicUsize>,
    /// The same as a flag, for loops that only need to stop.
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// Makes signals set the flag from now on.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt { signal: Arc::default(), came: Arc::default() };
        let is_over = Arc::new(AtomicBool::new(false));
        let failed =
            |signal| move |source| Failure::Local { action: "handle", place: format!("signal {signal}"), source };
        let handled: Vec<i32> = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)).collect();
        for &signal in &handled {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&is_over))
                .and_then(|_| flag::register(signal, Arc::clone(&interrupt.came)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&interrupt.signal), signal as usize))
                .map_err(failed(signal))?;
        }
        let mut signals = Signals::new(&handled).map_err(failed(SIGINT))?;
        let end_grace = move || {
            if signals.forever().next().is_some() {
                thread::sleep(GRACE);
                is_over.store(true, Ordering::Relaxed);
            }
        };
        let place = "the thread that watches signals".to_owned();
        let started = thread::Builder::new().name("signals".to_owned()).stack_size(STACK_BYTES).spawn(end_grace);
        started.map_err(|source| Failure::Local { action: "start", place, source })?;
        Ok(interrupt)
    }

    /// The flag, which is set once a signal came.
    pub fn flag(&self) -> &AtomicBool {
        &self.came
    }

    /// Fails if a signal came.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Failure::Interrupted { signal: signal as i32 }),
        }
    }
}

/// Makes a write beyond the limit of file sizes fail like other writes. By default it ends the process.
pub fn fail_at_size_limits() {
    // If no handler can be set, such a write ends the process, as by default.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Whether this process was started with the signal ignored, as `nohup` and a shell's background jobs do. Then it stays ignored.
fn is_ignored(signal: i32) -> bool {
    let mut answer = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call fills one `sigaction`, for which there is room, and changes nothing.
    let answered = unsafe { libc::sigaction(signal, std::ptr::null(), answer.as_mut_ptr()) } == 0;
    // SAFETY: zeroes are a valid value of this plain struct.
    answered && unsafe { answer.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        // SAFETY: no other test uses this signal, and both answers are constants of the C library, not functions.
        let answer = |answer| assert_ne!(unsafe { libc::signal(libc::SIGUSR2, answer) }, libc::SIG_ERR);
        answer(libc::SIG_IGN);
        assert!(is_ignored(libc::SIGUSR2));
        answer(libc::SIG_DFL);
        assert!(!is_ignored(libc::SIGUSR2) && !is_ignored(libc::SIGKILL) && !is_ignored(-1));
    }
}
