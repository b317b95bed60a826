//! The number of a drive's slots to use: the least that gives its best throughput.
//!
//! Goals: enough in flight for (nearly) the best throughput of the drive, and no more: the excess only waits in the
//! drive. Non-goals: sharing a drive between threads or processes.
//!
//! The law. Let X(n) be the throughput with n in flight. By Little's law the latency is L = n / X, so that the
//! throughput alone tells both. Let e = d ln X / d ln n. One percent more in flight brings e percent more throughput
//! and 1 - e percent more latency. e is 1 for a drive that idles and 0 for one that is saturated. TCP Vegas uses the
//! same quantity as n (1 - L0 / L), the queue of the bottleneck (Brakmo, Peterson, 1995). But Vegas needs L0, which
//! cannot be measured on a shared drive. So the limit climbs, as the thread pool of .NET does (Hellerstein, Morrison,
//! Eilebrecht, FeBID 2008):
//!
//! 1. Throughput is measured in epochs. An epoch consists of stretches in which only the limit kept pieces waiting;
//!    other times say nothing.
//! 2. Half as much again is tried. It is kept where e is `RISE` or more, and tried again.
//! 3. Otherwise a third less is tried. It is kept where e is below `FALL`, and tried again. `FALL` is below `RISE`, so
//!    that noise does not drive the limit to and fro.
//! 4. Then the limit rests. Each rest that follows no change is longer.
//!
//! A drive that saturates at k in flight is held between k and 1.5 k. A drive that works on k at a time, randomly
//! chosen, has X = n / (n + k - 1). It is held at 4 to 9 k, where a fifth to a tenth could still be gained.

use std::sync::Arc;

use crate::sys::clock::Clock;

/// The least relative gain of throughput that keeps a higher limit.
const RISE: f64 = 0.2;

/// The largest relative loss of throughput that keeps a lower limit.
const FALL: f64 = 0.1;

/// An epoch lasts at least so long, and at least `EPOCH_TURNS` times the limit in requests.
const EPOCH_NS: u64 = 2_000_000;
const EPOCH_TURNS: u64 = 8;

/// Epochs of rest.
const REST: u32 = 8;
const REST_MAX: u32 = 128;

/// The limit to begin with.
const BEGIN: u32 = 32;

/// What a request costs beside its bytes, in bytes: so requests of different lengths compare.
const REQUEST_BYTES: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// Measures the present limit.
    Base,
    Rise,
    Fall,
    Rest(u32),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    clock: Arc<dyn Clock>,
    most: u32,
    limit: u32,
    step: Trial,
    /// The limit that the step is compared with, and its throughput.
    base: (u32, f64),
    /// The base has changed since the last rest.
    moved: bool,
    /// It has risen since then.
    rose: bool,
    rest: u32,
    /// When the present stretch began.
    since_ns: Option<u64>,
    /// Time, requests and work of the epoch so far.
    time_ns: u64,
    ended: u64,
    work: u64,
}

impl Pace {
    pub fn new(clock: Arc<dyn Clock>, most: u32) -> Pace {
        let (limit, step) = (BEGIN.min(most), Trial::Base);
        Pace {
            clock,
            most,
            limit,
            step,
            base: (limit, 0.0),
            moved: false,
            rose: false,
            rest: REST,
            since_ns: None,
            time_ns: 0,
            ended: 0,
            work: 0,
        }
    }

    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// A request of `bytes` bytes has ended.
    pub fn ended(&mut self, bytes: u32) {
        if self.since_ns.is_some() {
            self.ended += 1;
            self.work += REQUEST_BYTES + u64::from(bytes);
        }
    }

    /// Called after each dispatch: whether the limit keeps pieces waiting.
    pub fn turn(&mut self, full: bool) {
        let due = self.ended >= EPOCH_TURNS * u64::from(self.limit);
        let now = match self.since_ns {
            None if full => return self.since_ns = Some(self.clock.now_ns()),
            Some(_) if due || !full => self.clock.now_ns(),
            _ => return,
        };
        self.time_ns += now.saturating_sub(self.since_ns.unwrap_or(now));
        self.since_ns = full.then_some(now);
        if due && self.time_ns >= EPOCH_NS {
            let rate = self.work as f64 / self.time_ns as f64;
            (self.time_ns, self.ended, self.work) = (0, 0, 0);
            self.climb(rate);
        }
    }

    /// An epoch is over.
    fn climb(&mut self, rate: f64) {
        let (base, base_rate) = self.base;
        // Infinite and undefined values compare as false: then the change is not kept.
        let gain = (rate / base_rate).ln() / (f64::from(self.limit) / f64::from(base)).ln();
        match self.step {
            Trial::Base => {
                self.base = (self.limit, rate);
                self.rise_or_fall();
            }
            Trial::Rise if gain >= RISE => {
                self.keep(rate);
                self.rose = true;
                self.rise_or_fall();
            }
            Trial::Rise if self.rose => self.rest(),
            Trial::Rise => self.fall(),
            Trial::Fall if gain < FALL => {
                self.keep(rate);
                self.fall();
            }
            Trial::Fall => self.rest(),
            Trial::Rest(0) => self.step = Trial::Base,
            Trial::Rest(left) => self.step = Trial::Rest(left - 1),
        }
    }

    fn keep(&mut self, rate: f64) {
        self.base = (self.limit, rate);
        self.moved = true;
    }

    fn rise_or_fall(&mut self) {
        let more = (self.base.0 + self.base.0.div_ceil(2)).min(self.most);
        match more > self.base.0 {
            true => (self.limit, self.step) = (more, Trial::Rise),
            false if self.rose => self.rest(),
            false => self.fall(),
        }
    }

    fn fall(&mut self) {
        let less = self.base.0 - self.base.0.div_ceil(3);
        match less > 0 {
            true => (self.limit, self.step) = (less, Trial::Fall),
            false => self.rest(),
        }
    }

    fn rest(&mut self) {
        self.rest = if self.moved { REST } else { (2 * self.rest).min(REST_MAX) };
        (self.limit, self.step) = (self.base.0, Trial::Rest(self.rest));
        (self.moved, self.rose) = (false, false);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
        fn sleep(&self, _: Duration) {}
    }

    /// The limits that the law rests at, on a drive of that throughput in requests per microsecond.
    fn rests(most: u32, noise: f64, throughput: impl Fn(f64) -> f64) -> Vec<u32> {
        let clock = Arc::new(Hand::default());
        let mut pace = Pace::new(Arc::clone(&clock) as _, most);
        let mut rng = 1_u64;
        let mut rests = Vec::new();
        for _ in 0..400_000 {
            pace.turn(true);
            pace.ended(4096);
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wobble = 1.0 + noise * ((rng >> 33) as f64 / f64::from(1_u32 << 31) - 0.5);
            let ns = 1000.0 * wobble / throughput(f64::from(pace.limit));
            clock.0.fetch_add(ns as u64, Ordering::Relaxed);
            if matches!(pace.step, Trial::Rest(_)) && rests.last() != Some(&pace.limit) {
                rests.push(pace.limit);
            }
        }
        rests
    }

    #[test]
    fn a_drive_that_saturates_gets_what_it_needs_and_little_more() {
        for k in [1.0_f64, 4.0, 16.0, 40.0, 100.0] {
            for noise in [0.0, 1.0] {
                let rests = rests(128, noise, |n| n.min(k) / 100.0);
                let last = f64::from(*rests.last().expect("it rests"));
                assert!((k * 0.9..=(k * 1.6).max(2.0)).contains(&last), "saturates at {k}, rests at {rests:?}");
            }
        }
    }

    #[test]
    fn a_drive_of_many_chips_is_kept_busy() {
        for k in [4.0_f64, 8.0, 16.0] {
            let share = |n: f64| n / (n + k - 1.0);
            let last = f64::from(*rests(512, 0.5, |n| k * share(n) / 100.0).last().expect("it rests"));
            assert!(share(last) > 0.75, "{k} chips, rests at {last}");
            assert!(last <= 16.0 * k, "{k} chips, rests at {last}");
        }
    }

    #[test]
    fn without_demand_it_learns_nothing() {
        let clock = Arc::new(Hand::default());
        let mut pace = Pace::new(Arc::clone(&clock) as _, 128);
        for _ in 0..100_000 {
            pace.turn(false);
            pace.ended(4096);
            clock.0.fetch_add(1000, Ordering::Relaxed);
        }
        assert_eq!((pace.limit(), pace.step), (BEGIN as usize, Trial::Base));
    }
}
