//! Signals that end a long copy. A signal sets a flag; the copy reads it between chunks, and removes what was written.
//! Another signal a second or more after the first ends the process at once. A signal within that second counts as the
//! same wish: `timeout` sends one to the process and one to its group.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use iomill::Error;
use libc::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ, c_int};

use crate::failure::{Failure, Result};

/// Time after the first signal in which others do not end the process.
const GRACE_MS: u64 = 1000;

/// Longest wait between two checks for signals.
const LOOK: Duration = Duration::from_millis(100);

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
        let first_ms = Arc::new(AtomicU64::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)) {
            let (interrupt, first_ms) = (interrupt.clone(), first_ms.clone());
            let act = move || {
                let now = now_ms();
                match first_ms.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
                    // SAFETY: the call may be made in a handler of signals. It ends the process without running
                    // anything else of it.
                    Err(first) if now >= first + GRACE_MS => unsafe { libc::_exit(128 + signal) },
                    Ok(_) | Err(_) => {}
                }
                interrupt.signal.store(signal as usize, Ordering::Relaxed);
                interrupt.came.store(true, Ordering::Relaxed);
            };
            // SAFETY: the action makes two calls that a handler may make, and stores to atomics. It takes no lock and
            // allocates nothing.
            unsafe { on_signal(signal, act) }.map_err(|source| Failure::Local {
                action: "handle",
                place: format!("signal {signal}"),
                source,
            })?;
        }
        Ok(interrupt)
    }

    /// As after this signal, or before any if it is 0.
    #[cfg(test)]
    pub fn after(signal: c_int) -> Interrupt {
        Interrupt { signal: Arc::new(AtomicUsize::new(signal as usize)), came: Arc::new(AtomicBool::new(signal != 0)) }
    }

    /// The flag, which is set once a signal came.
    pub fn flag(&self) -> &AtomicBool {
        &self.came
    }

    /// Runs a call that may wait for ever, such as opening a pipe, on a thread of its own. Fails if a signal comes. The
    /// thread is then left behind, and ends with the process.
    pub fn outlast<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (give, take) = sync_channel(1);
        // If nothing takes the answer, a signal came.
        let run = move || give.send(call()).unwrap_or_default();
        let started = thread::Builder::new().name("waiting".to_owned()).spawn(run);
        let machine = |why: String| Error::Tool { what: "a thread that waits".to_owned(), why };
        started.map_err(|error| machine(error.to_string()))?;
        loop {
            self.check()?;
            match take.recv_timeout(LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(machine("it panicked".to_owned()).into()),
            }
        }
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
    // SAFETY: an action that does nothing is safe in a handler.
    let _ = unsafe { on_signal(SIGXFSZ, || ()) };
}

/// Runs an action at each signal of a kind, from now until the process ends.
///
/// # Safety
///
/// The action runs in a handler of signals: no locks, no allocations.
unsafe fn on_signal(signal: c_int, action: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { signal_hook_registry::register(signal, action) }.map(drop)
}

/// Milliseconds of the monotonic clock, at least 1.
fn now_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills one `timespec`. It may be made in a handler of signals, and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// Whether this process was started with the signal ignored, as `nohup` and a shell's background jobs do. Then it stays
/// ignored.
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
