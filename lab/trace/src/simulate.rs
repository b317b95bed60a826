//! Caches over a trace without I/O: the accesses that hit.
//!
//! Goals: the cache's own code decides, in every requested combination of policy, size and set size, on all CPUs.
//! Caches without sets run beside it for comparison. Non-goals: time; a fill takes none here.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use crate::error::Result;
use crate::global;
use crate::pages::Pages;
use crate::sets::Sets;
use crate::simulated::Simulated;

/// Sizes of caches as shares of a trace's pages, in thousandths, if no sizes are given.
pub const PER_MILLE: [u64; 6] = [1, 10, 50, 100, 200, 400];

/// The smallest of these caches, in pages. Results of smaller ones are too random.
pub const PAGES_MIN: u64 = 64;

/// Pages per set, if not given.
pub const SET_SIZE_DEFAULT: u32 = iomill::cache::set::WAYS_DEFAULT as u32;

/// The number of accesses after which a simulation checks whether it was cancelled.
const LOOK: usize = 1 << 20;

pub use crate::sets::SetPolicy;

/// The page that is evicted for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// In page sets, by one of the cache's policies.
    Sets(SetPolicy),
    /// The least recently used of all pages.
    GlobalLru,
    /// Adaptive replacement over all pages.
    GlobalArc,
    /// The page with the farthest next use, of all pages: no cache is better.
    Optimum,
}

impl Policy {
    /// All policies.
    pub fn all() -> Vec<Policy> {
        let sets = SetPolicy::all().map(Policy::Sets);
        sets.chain([Policy::GlobalLru, Policy::GlobalArc, Policy::Optimum]).collect()
    }

    /// The policy's name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Sets(policy) => policy.name(),
            Policy::GlobalLru => "global-lru",
            Policy::GlobalArc => "global-arc",
            Policy::Optimum => "optimum",
        }
    }

    /// Whether it works in page sets. Other policies ignore a set's size.
    pub fn has_sets(self) -> bool {
        matches!(self, Policy::Sets(_))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Policy, String> {
        let all = Policy::all();
        all.iter().copied().find(|policy| policy.name() == text).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|policy| policy.name()).collect();
            format!("there is no policy {text:?}; give one of {}", names.join(", "))
        })
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The policy.
    pub policy: Policy,
    /// The requested size of the cache, in pages; at least 1.
    pub cache_pages: u64,
    /// Pages per set, at least 1; `None` if the policy has no sets.
    pub set_size: Option<u32>,
}

impl Case {
    /// The number of pages in the cache: whole sets, at least one, and otherwise never more than requested.
    pub fn pages_used(&self) -> u64 {
        match self.set_size {
            Some(size) => (self.cache_pages / u64::from(size)).max(1) * u64::from(size),
            None => self.cache_pages,
        }
    }
}

/// Every combination once.
pub fn cases(policies: &[Policy], cache_pages: &[u64], set_sizes: &[u32]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &policy in policies {
        let sizes: Vec<Option<u32>> = match policy.has_sets() {
            true => set_sizes.iter().copied().map(Some).collect(),
            false => vec![None],
        };
        for set_size in sizes {
            cases.extend(cache_pages.iter().map(|&cache_pages| Case { policy, cache_pages, set_size }));
        }
    }
    let mut seen = std::collections::HashSet::new();
    cases.retain(|case| seen.insert(*case));
    cases
}

/// Sizes of caches for a trace with this number of pages: shares of them ([`PER_MILLE`]), in pages.
pub fn default_sizes(unique: usize) -> Vec<u64> {
    let sizes = PER_MILLE.iter().map(|share| (unique as u64 * share + 500) / 1000);
    let sizes: Vec<u64> = sizes.filter(|size| *size >= PAGES_MIN).collect();
    // A tiny trace still gets one size.
    if sizes.is_empty() { vec![(unique as u64).div_ceil(2)] } else { sizes }
}

/// The result of a combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The combination.
    pub case: Case,
    /// Hits per access of the second half; the first half warms the cache.
    pub hit_rate_warm: f64,
    /// Hits per access of the whole trace.
    pub hit_rate_whole: f64,
    /// The speed of this simulation, on its one CPU.
    pub accesses_per_s: f64,
}

/// Runs combinations over a trace, as many at a time as there are CPUs. It calls `done` with the number of ended
/// combinations. `None` if it was cancelled.
pub fn run(
    pages: &Pages,
    cases: &[Case],
    cancel: &AtomicBool,
    done: &(dyn Fn(usize) + Sync),
) -> Result<Option<Vec<Outcome>>> {
    in_parallel(cases, done, |case| one(pages, case, HitsByAccess { pages, case, cancel }))
}

/// Runs combinations like [`run`], each by `one`, which returns `None` if it was cancelled.
pub(crate) fn in_parallel<C: Copy + Sync, O: Send>(
    cases: &[C],
    done: &(dyn Fn(usize) + Sync),
    one: impl Fn(C) -> Result<Option<O>> + Sync,
) -> Result<Option<Vec<O>>> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(cases.len());
    let results = Mutex::new(cases.iter().map(|_| Ok(None)).collect::<Vec<_>>());
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(at) else { return };
            let result = one(*case);
            results.lock().unwrap_or_else(PoisonError::into_inner)[at] = result;
            done(finished.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    thread::scope(|scope| {
        // If no thread can start, this thread does the work.
        let helpers =
            (1..threads).map(|_| thread::Builder::new().name("simulate".to_owned()).spawn_scoped(scope, work));
        let _helpers: Vec<_> = helpers.map_while(std::io::Result::ok).collect();
        work();
    });
    let outcomes: Result<Vec<Option<O>>> =
        results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect();
    Ok(outcomes?.into_iter().collect())
}

/// Runs one trace through one cache. `None` if it was cancelled.
pub(crate) trait Count {
    type Outcome;

    fn count(self, cache: impl Simulated) -> Option<Self::Outcome>;
}

/// Makes the cache of a combination, empty, for a trace with these pages.
pub(crate) fn one<C: Count>(pages: &Pages, case: Case, count: C) -> Result<Option<C::Outcome>> {
    // Caches without sets do not need more room than there are pages, and it would take memory.
    let capacity = usize::try_from(case.pages_used()).unwrap_or(usize::MAX);
    let most = capacity.min(pages.unique());
    Ok(match case.policy {
        Policy::Sets(policy) => {
            let set_size = case.set_size.unwrap_or(SET_SIZE_DEFAULT);
            count.count(Sets::new(policy, case.pages_used() / u64::from(set_size), set_size)?)
        }
        Policy::GlobalLru => count.count(global::Lru::new(pages.unique(), most)),
        Policy::GlobalArc => count.count(global::ArcPolicy::new(pages.unique(), capacity)),
        Policy::Optimum => count.count(global::Optimum::new(pages, most)),
    })
}

/// Counts each access to a page.
struct HitsByAccess<'a> {
    pages: &'a Pages,
    case: Case,
    cancel: &'a AtomicBool,
}

impl Count for HitsByAccess<'_> {
    type Outcome = Outcome;

    fn count(self, mut cache: impl Simulated) -> Option<Outcome> {
        let HitsByAccess { pages, case, cancel } = self;
        let start = Instant::now();
        let (mut accesses, half) = (pages.accesses(), pages.len() / 2);
        let mut hits_of = |mut left: usize| {
            let mut hits = 0;
            while left > 0 {
                if cancel.load(Ordering::Relaxed) {
                    return None;
                }
                let turn = left.min(LOOK);
                hits += cache.hits(accesses.by_ref().take(turn));
                left -= turn;
            }
            Some(hits)
        };
        let (cold, warm) = (hits_of(half)?, hits_of(pages.len() - half)?);
        let rate = |hits: usize, of: usize| hits as f64 / of.max(1) as f64;
        Some(Outcome {
            case,
            hit_rate_warm: rate(warm, pages.len() - half),
            hit_rate_whole: rate(cold + warm, pages.len()),
            accesses_per_s: pages.len() as f64 / start.elapsed().as_secs_f64().max(1e-9),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LRU: Policy = Policy::Sets(SetPolicy::Lru);

    static NEVER: AtomicBool = AtomicBool::new(false);

    /// A page twice in a row, then other pages once.
    fn pages() -> Pages {
        Pages::of([1, 1, 1, 2, 3, 4, 5, 5])
    }

    #[test]
    fn the_first_half_warms() {
        let case = Case { policy: Policy::GlobalLru, cache_pages: 1, set_size: None };
        let outcomes = run(&pages(), &[case], &NEVER, &|_| {}).unwrap().unwrap();
        let Outcome { hit_rate_warm, hit_rate_whole, accesses_per_s, .. } = outcomes[0];
        assert_eq!((hit_rate_warm, hit_rate_whole), (0.25, 3.0 / 8.0));
        assert!(accesses_per_s > 0.0 && outcomes.len() == 1);
    }

    #[test]
    fn combinations_come_once_each_and_in_order() {
        let policies = [LRU, Policy::GlobalLru, LRU];
        let cases = cases(&policies, &[10, 100], &[4, 12]);
        assert_eq!(cases.len(), 2 * 2 + 2);
        assert_eq!(cases[0], Case { policy: LRU, cache_pages: 10, set_size: Some(4) });
        assert_eq!(cases[5], Case { policy: Policy::GlobalLru, cache_pages: 100, set_size: None });
        assert_eq!(cases.iter().map(Case::pages_used).collect::<Vec<_>>(), [8, 100, 12, 96, 10, 100]);
        let many = Pages::of((0..3_000_000).map(|at| at % 70_000));
        let done = AtomicUsize::new(0);
        let outcomes =
            run(&many, &cases, &NEVER, &|count| _ = done.fetch_max(count, Ordering::Relaxed)).unwrap().unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.case).collect::<Vec<_>>(), cases);
        assert_eq!(done.into_inner(), cases.len());
        assert!(run(&many, &cases, &AtomicBool::new(true), &|_| {}).unwrap().is_none());
    }

    #[test]
    fn no_cache_beats_the_optimum_and_a_whole_one_misses_once() {
        let mut random = fastrand::Rng::with_seed(2);
        let pages = Pages::of((0..50_000).map(|_| random.u64(0..random.clone().u64(1..3000))));
        let unique = pages.unique() as u64;
        let outcomes =
            run(&pages, &cases(&Policy::all(), &[100, unique, 20 * unique], &[12]), &NEVER, &|_| {}).unwrap().unwrap();
        let rate = |policy, cache_pages| {
            let found = outcomes.iter().find(|o| (o.case.policy, o.case.cache_pages) == (policy, cache_pages));
            found.unwrap().hit_rate_whole
        };
        for policy in Policy::all() {
            assert!(rate(policy, 100) > 0.05 && rate(policy, 100) <= rate(Policy::Optimum, 100), "{policy}");
            assert_eq!(rate(policy, 20 * unique), 1.0 - unique as f64 / pages.len() as f64, "{policy}");
        }
    }

    #[test]
    fn default_sizes_are_shares_of_the_trace() {
        assert_eq!(default_sizes(186_880), [187, 1869, 9344, 18_688, 37_376, 74_752]);
        assert_eq!(default_sizes(7322), [73, 366, 732, 1464, 2929]);
        assert_eq!(default_sizes(3), [2]);
    }

    #[test]
    fn names_go_back_and_forth() {
        for policy in Policy::all() {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("LRU".parse::<Policy>().unwrap_err().contains("global-lru"));
    }
}
