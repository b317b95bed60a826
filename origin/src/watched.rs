//! [`Watched`]: the blocking call on a drive in this process that is in flight, and its time so far. A call cannot be
//! cancelled, so all others stop waiting for it. Rule D2 of `docs/origin.md`. Non-goals: reads of granules, which have
//! futures (`bounded`).

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::notices::locked;

/// See the module. There is one call at a time, under the lock of the drive.
#[derive(Debug)]
pub struct Watched {
    within: Duration,
    in_flight: Mutex<Option<Call>>,
}

/// A call in flight.
#[derive(Debug)]
struct Call {
    /// The last look at it.
    seen: Instant,
    /// Its time until then.
    took: Duration,
}

impl Watched {
    pub fn new(within: Duration) -> Watched {
        Watched { within, in_flight: Mutex::default() }
    }

    pub fn within(&self) -> Duration {
        self.within
    }

    /// Makes a call.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        *locked(&self.in_flight) = Some(Call { seen: Instant::now(), took: Duration::ZERO });
        let ended = call();
        *locked(&self.in_flight) = None;
        ended
    }

    /// The time of the call in flight so far, in whole bounds. From one look to the next, at most one bound counts: the
    /// process may have been stopped, and the call ends soon after it continues.
    pub fn bounds_passed(&self) -> u64 {
        let mut in_flight = locked(&self.in_flight);
        let Some(call) = in_flight.as_mut() else { return 0 };
        let now = Instant::now();
        call.took = call.took.saturating_add((now - call.seen).min(self.within));
        call.seen = now;
        u64::try_from(call.took.as_nanos() / self.within.as_nanos().max(1)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_call_that_is_under_way_is_late() {
        let watched = Watched::new(Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(watched.bounds_passed(), 0, "nothing is under way");
        let within = watched.call(|| {
            let (at_first, begun) = (watched.bounds_passed(), Instant::now());
            while watched.bounds_passed() < 4 {
                std::thread::sleep(Duration::from_millis(1));
            }
            (at_first, begun.elapsed())
        });
        assert!(within.0 < 4 && within.1 >= Duration::from_millis(5), "{within:?}");
        assert_eq!(watched.bounds_passed(), 0);
        let patient = Watched::new(Duration::MAX);
        assert_eq!(patient.call(|| patient.bounds_passed()), 0);
    }

    /// The process is stopped in the middle of a call. Seen to fail when all of the time counted: the drive was left out.
    #[test]
    fn the_time_of_a_stopped_process_counts_as_one_bound() {
        let watched = Watched::new(Duration::from_millis(5));
        let passed = watched.call(|| {
            std::thread::sleep(Duration::from_millis(200));
            watched.bounds_passed()
        });
        assert_eq!(passed, 1);
    }
}
