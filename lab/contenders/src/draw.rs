//! The choice of the next of many equal slots: a random one, one by a zipf law, one with a given share of hits, or the
//! next in order.
//!
//! Goals: popular slots are scattered over all slots, so that no two of them are neighbours by design. Non-goals:
//! traces of real programs.

use crate::pattern::{Rng, mix};
use crate::workload::shuffled;

/// Exponent of the zipf law. Measurements of key-value stores usually take this one.
pub const ZIPF_EXPONENT: f64 = 0.99;

/// With a share `h` of hits, the hot slots take `h / HOT_PART` of the memory. Then an LRU cache sees a hot slot 8 times
/// on average before the cold slots have evicted it. Only one request in e^8 misses its hot slot.
const HOT_PART: u64 = 8;

/// Draws ranks `1..=n` in proportion to `rank^-ZIPF_EXPONENT`, by rejection-inversion (Hörmann and Derflinger 1996). It
/// is exact and needs no table.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: f64,
    /// The integral of the law at 1.5, less the mass of rank 1. `high` is the integral at n + 1/2. Uniform numbers are
    /// drawn between them.
    low: f64,
    high: f64,
    /// A rank at most this far above its point is accepted without evaluating the density.
    margin: f64,
}

impl Zipf {
    pub(crate) fn new(n: u64) -> Zipf {
        let n = n.max(1) as f64;
        let margin = 2.0 - inverse(integral(2.5) - density(2.0));
        Zipf { n, low: integral(1.5) - 1.0, high: integral(n + 0.5), margin }
    }

    #[inline]
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.high + unit(rng) * (self.low - self.high);
            let x = inverse(u);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.margin || u >= integral(rank + 0.5) - density(rank) {
                return rank as u64;
            }
        }
    }
}

fn density(x: f64) -> f64 {
    (-ZIPF_EXPONENT * x.ln()).exp()
}

/// The integral of the density from 1 to x.
fn integral(x: f64) -> f64 {
    let power = 1.0 - ZIPF_EXPONENT;
    (power * x.ln()).exp_m1() / power
}

fn inverse(y: f64) -> f64 {
    let power = 1.0 - ZIPF_EXPONENT;
    ((power * y).ln_1p() / power).exp()
}

/// Uniform in `0.0..1.0`.
#[inline]
fn unit(rng: &mut Rng) -> f64 {
    (rng.draw() >> 11) as f64 / (1u64 << 53) as f64
}

#[inline]
fn below(rng: &mut Rng, n: u64) -> u64 {
    ((u128::from(rng.draw()) * u128::from(n)) >> 64) as u64
}

/// How slots are chosen.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Choice {
    /// All slots with equal probability.
    Uniform,
    /// By a zipf law with exponent [`ZIPF_EXPONENT`].
    Zipf,
    /// This percentage of requests, 0 to 100, goes to a few slots that stay in memory. The other requests take all
    /// other slots in turn, so that memory no longer has any of them at its next request.
    Hits(u8),
    /// One after the other; each thread starts at its own slot.
    Sequential,
}

/// One thread's endless sequence of slots.
#[derive(Clone, Debug)]
pub struct Draws {
    rng: Rng,
    slots: u64,
    way: Way,
    /// Number of slots that fit in memory.
    held: u64,
    thread: u64,
    threads: u64,
}

#[derive(Clone, Debug)]
enum Way {
    Uniform,
    Zipf(Zipf),
    Hits {
        percent: u64,
        /// Slots `shuffled(0..hot)` are hot, the others are cold.
        hot: u64,
        /// Counts this thread's cold requests.
        cold: u64,
    },
    Sequential {
        next: u64,
    },
}

impl Draws {
    /// The sequence of thread `thread` of `threads`, over `slots` slots (at least two). Memory holds `held` of them.
    pub fn new(choice: Choice, slots: u64, held: u64, thread: usize, threads: usize) -> Draws {
        let slots = slots.max(2);
        let (thread, threads) = (thread as u64, threads.max(1) as u64);
        let way = match choice {
            Choice::Uniform => Way::Uniform,
            Choice::Zipf => Way::Zipf(Zipf::new(slots)),
            Choice::Hits(percent) => {
                let percent = u64::from(percent.min(100));
                let hot = (held * percent / 100 / HOT_PART).clamp(1, slots / 2);
                Way::Hits { percent, hot, cold: 0 }
            }
            Choice::Sequential => Way::Sequential { next: slots / threads * thread },
        };
        let rng = Rng::new(mix(thread) ^ u64::from(std::process::id()));
        Draws { rng, slots, way, held: held.min(slots), thread, threads }
    }

    /// The same sequence for a slice after other threads have filled the memory: it begins where the cold slots of
    /// their `warm_up` end.
    #[must_use]
    pub fn after_warm_up(mut self) -> Draws {
        if let Way::Hits { cold, .. } = &mut self.way {
            *cold = (self.held + self.held / 8).div_ceil(self.threads) + 1;
        }
        self
    }

    /// The next slot.
    #[inline(always)]
    pub fn draw(&mut self) -> u64 {
        match &mut self.way {
            Way::Uniform => below(&mut self.rng, self.slots),
            Way::Zipf(zipf) => shuffled(zipf.draw(&mut self.rng) - 1, self.slots),
            Way::Hits { percent, hot, cold } => {
                let index = if below(&mut self.rng, 100) < *percent {
                    below(&mut self.rng, *hot)
                } else {
                    *cold += 1;
                    *hot + ((*cold - 1) * self.threads + self.thread) % (self.slots - *hot)
                };
                shuffled(index, self.slots)
            }
            Way::Sequential { next } => {
                let slot = *next;
                *next = if slot + 1 < self.slots { slot + 1 } else { 0 };
                slot
            }
        }
    }

    /// The accesses of a thread before a slice. They fill the memory with the pages that it would have in the long run.
    pub fn warm_up(&mut self) -> Vec<u64> {
        let threads = self.threads;
        let share = |count: u64| count.div_ceil(threads);
        match self.way {
            // All slots fit. Random draws would leave some out.
            Way::Uniform if self.held >= self.slots => {
                (self.thread..self.slots).step_by(self.threads as usize).collect()
            }
            Way::Uniform | Way::Sequential { .. } => (0..share(self.held * 5 / 4)).map(|_| self.draw()).collect(),
            Way::Zipf(_) => (0..share(self.held * 4)).map(|_| self.draw()).collect(),
            Way::Hits { hot, .. } => {
                let (first, step) = (self.thread, self.threads as usize);
                let cold = (0..share(self.held)).map(|_| self.next_cold()).collect::<Vec<_>>();
                // Twice, because caches that count uses then see that these slots are used again.
                let hot = (0..2).flat_map(|_| (first..hot).step_by(step)).map(|index| shuffled(index, self.slots));
                let hot: Vec<u64> = hot.collect();
                let mix = (0..share(self.held / 8)).map(|_| self.draw()).collect::<Vec<_>>();
                [cold, hot, mix].concat()
            }
        }
    }

    fn next_cold(&mut self) -> u64 {
        let Way::Hits { hot, cold, .. } = &mut self.way else { return self.draw() };
        *cold += 1;
        shuffled(*hot + ((*cold - 1) * self.threads + self.thread) % (self.slots - *hot), self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet, VecDeque};

    #[test]
    fn zipf_has_the_law_it_should() {
        let (n, draws) = (1000, 400_000);
        let zipf = Zipf::new(n);
        let mut rng = Rng::new(5);
        let mut seen = vec![0u64; n as usize + 1];
        (0..draws).for_each(|_| seen[zipf.draw(&mut rng) as usize] += 1);
        assert_eq!(seen[0], 0);
        let mass: f64 = (1..=n).map(|rank| density(rank as f64)).sum();
        for rank in [1, 2, 3, 10, 100] {
            let expected = density(rank as f64) / mass * draws as f64;
            let off = (seen[rank] as f64 - expected).abs();
            assert!(off < 6.0 * expected.sqrt(), "rank {rank}: {} for {expected}", seen[rank]);
        }
        let tail: u64 = seen[501..].iter().sum();
        let expected: f64 = (501..=n).map(|rank| density(rank as f64)).sum::<f64>() / mass * draws as f64;
        assert!((tail as f64 - expected).abs() < 6.0 * expected.sqrt(), "{tail} for {expected}");
        assert_eq!(Zipf::new(1).draw(&mut rng), 1);
    }

    #[test]
    fn popular_slots_lie_apart() {
        let slots = 1 << 16;
        let mut draws = Draws::new(Choice::Zipf, slots, 0, 0, 1);
        let mut seen: HashMap<u64, u32> = HashMap::new();
        (0..100_000).for_each(|_| *seen.entry(draws.draw()).or_default() += 1);
        let mut ranked: Vec<(u32, u64)> = seen.into_iter().map(|(slot, count)| (count, slot)).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        assert!(ranked.iter().all(|&(_, slot)| slot < slots));
        let top: HashSet<u64> = ranked[..64].iter().map(|&(_, slot)| slot / 32).collect();
        assert!(top.len() > 55, "{} groups of 32 hold the 64 most popular", top.len());
    }

    #[test]
    fn other_sequences_do_not_find_what_filled_the_memory() {
        let (slots, held) = (10_000, 1_000);
        for percent in [0, 80] {
            let mut filler = Draws::new(Choice::Hits(percent), slots, held, 0, 1);
            let hot: HashSet<u64> =
                (0..held * u64::from(percent) / 100 / HOT_PART).map(|at| shuffled(at, slots)).collect();
            let filled: HashSet<u64> = filler.warm_up().into_iter().collect();
            for lane in [1, 2, 64] {
                let mut lane = Draws::new(Choice::Hits(percent), slots, held, lane, 65).after_warm_up();
                let found =
                    (0..50).map(|_| lane.draw()).filter(|slot| filled.contains(slot) && !hot.contains(slot)).count();
                // One slot is hot, also if the share of hits is 0.
                assert!(found <= usize::from(percent == 0), "{found} cold slots were read before, at {percent}%");
            }
        }
    }

    /// The share of hits in a simple LRU cache.
    fn hit_share(choice: Choice, slots: u64, held: u64) -> f64 {
        let mut draws = Draws::new(choice, slots, held, 0, 1);
        let (mut stamps, mut order, mut now) = (HashMap::new(), VecDeque::new(), 0u64);
        let mut ask = |slot: u64| {
            now += 1;
            let hit = stamps.insert(slot, now).is_some();
            order.push_back((slot, now));
            while stamps.len() as u64 > held {
                let (oldest, stamp) = order.pop_front().unwrap();
                if stamps.get(&oldest) == Some(&stamp) {
                    stamps.remove(&oldest);
                }
            }
            hit
        };
        draws.warm_up().into_iter().for_each(|slot| _ = ask(slot));
        (0..100_000).filter(|_| ask(draws.draw())).count() as f64 / 100_000.0
    }

    #[test]
    fn the_share_of_hits_is_what_was_asked_for() {
        for percent in [0, 20, 40, 60, 80, 90, 95, 99] {
            let share = hit_share(Choice::Hits(percent), 32768, 4096);
            assert!((share - f64::from(percent) / 100.0).abs() < 0.01, "{percent}%: {share}");
        }
        let share = hit_share(Choice::Uniform, 32768, 4096);
        assert!((share - 0.125).abs() < 0.01, "{share}");
        assert_eq!(hit_share(Choice::Uniform, 4096, 4096), 1.0, "all of it fits");
    }

    #[test]
    fn one_after_the_other_each_thread_from_its_own_place() {
        let mut draws = Draws::new(Choice::Sequential, 10, 4, 1, 2);
        assert_eq!(draws.warm_up(), [5, 6, 7]);
        assert_eq!((0..4).map(|_| draws.draw()).collect::<Vec<_>>(), [8, 9, 0, 1]);
    }

    #[test]
    fn threads_share_the_cold_slots() {
        let mut seen = HashSet::new();
        for thread in 0..4 {
            let mut draws = Draws::new(Choice::Hits(0), 4001, 100, thread, 4);
            for _ in 0..1000 {
                let slot = draws.draw();
                assert!(slot < 4001 && seen.insert(slot), "slot {slot} twice");
            }
        }
    }
}
