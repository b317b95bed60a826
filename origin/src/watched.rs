//! [`Watched`]: the blocking call on a drive in this process that is in flight, and its time so far. A call cannot be
//! cancelled, so all others stop waiting for it. Rule D2 of `docs/origin.md`. Non-goals: reads of granules, which have
//! futures (`bounded`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// See the module. There is one call at a time, under the lock of the drive.
#[derive(Debug)]
pub struct Watched {
    made: Instant,
    within: Duration,
    /// The begin of the call, in nanoseconds since `made`, plus one. 0: no call is in flight.
    begun: AtomicU64,
}

impl Watched {
    pub fn new(within: Duration) -> Watched {
        Watched { made: Instant::now(), within, begun: AtomicU64::new(0) }
    }

    pub fn within(&self) -> Duration {
        self.within
    }

    /// Makes a call.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.begun.store(self.now(), Relaxed);
        let ended = call();
        self.begun.store(0, Relaxed);
        ended
    }

    fn now(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// The time of the call in flight so far, in whole bounds.
    pub fn bounds_passed(&self) -> u64 {
        let begun = self.begun.load(Relaxed);
        if begun == 0 {
            return 0;
        }
        let bound = u64::try_from(self.within.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.now().saturating_sub(begun) / bound
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
            let at_first = watched.bounds_passed();
            std::thread::sleep(Duration::from_millis(20));
            (at_first, watched.bounds_passed())
        });
        assert!(within.0 < within.1 && within.1 >= 4, "{within:?}");
        assert_eq!(watched.bounds_passed(), 0);
        let patient = Watched::new(Duration::MAX);
        assert_eq!(patient.call(|| patient.bounds_passed()), 0);
    }
}
