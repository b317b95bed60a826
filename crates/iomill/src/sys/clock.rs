//! Time, as a trait, so that a simulation can have a virtual clock.

use std::fmt;
use std::time::{Duration, Instant};

/// A clock that never goes back.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Nanoseconds since a fixed moment.
    fn now_ns(&self) -> u64;
    /// Returns after `time`.
    fn sleep(&self, time: Duration);
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl Default for MonotonicClock {
    fn default() -> Self {
        MonotonicClock { start: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
