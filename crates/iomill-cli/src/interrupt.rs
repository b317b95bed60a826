//! Signals that end a long copy: a flag to look at between chunks, so that what was written can be removed. A second
//! signal ends the process at once.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Result};

/// Whether a signal came.
#[derive(Clone, Debug)]
pub struct Interrupt {
    /// Its number; 0 if none came.
    signal: Arc<AtomicUsize>,
    /// The same as a flag.
    came: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on signals set the flag.
    pub fn install() -> Result<Interrupt> {
        let interrupt = Interrupt { signal: Arc::default(), came: Arc::default() };
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)) {
            // The order counts: the first signal finds `again` unset, then sets it.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))
                .and_then(|_| flag::register(signal, Arc::clone(&again)))
                .and_then(|_| flag::register(signal, Arc::clone(&interrupt.came)))
                .and_then(|_| flag::register_usize(signal, Arc::clone(&interrupt.signal), signal as usize))
                .map_err(|source| Failure::Local { action: "handle", place: format!("signal {signal}"), source })?;
        }
        Ok(interrupt)
    }

    /// Set when a signal came.
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

/// Whether whoever started this process had the signal ignored (`nohup`, a shell's background jobs): then it stays so.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(ignored_mask("Name:\tx\nSigIgn:\t0000000000001001\n"), Some(0x1001));
        assert_eq!(ignored_mask("Name:\tx\n"), None);
        assert!(ignored_mask(&fs::read_to_string("/proc/self/status").unwrap()).is_some());
    }
}
