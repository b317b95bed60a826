//! Caches of granules: the hit rates of a cache that keeps parts of pages, such as rows, instead of whole pages.
//!
//! Goals: caches of equal memory, with the headers of all that they keep; hits by request; pages that drives deliver.
//! Only requested granules are kept. Non-goals: such a cache, which the library does not have.

use std::sync::atomic::{AtomicBool, Ordering};

use iomill::cache::set::Shape;

use crate::error::Result;
use crate::pages::{Access, PAGE_BYTES, Pages};
use crate::reader::Reader;
use crate::simulate::{self, Case, Count, SET_SIZE_DEFAULT};
use crate::simulated::Simulated;

/// The bytes that the library's cache needs for each page besides the page and its share of a set's header. They are
/// its key and version (`cache/occupants.rs`), two to four hints of 4 bytes (`cache/hints.rs`), here three, and its
/// counters in the sketch of the default policy (`cache/policy/sketch.rs`).
const BESIDES_BYTES: u64 = 16 + 3 * 4 + 8;

/// The number of requests after which a simulation checks whether it was cancelled.
const LOOK: usize = 1 << 16;

/// The accesses of a trace to granules, request by request.
#[derive(Clone, Debug)]
pub struct Granules {
    /// The numbers of granules take the place of pages' numbers.
    accesses: Pages,
    /// The number of accesses of each request.
    lens: Vec<u32>,
    bytes: u64,
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GranuleCase {
    /// Policy and sets. `cache_pages` is the memory, as the number of pages that would fit with their headers.
    pub memory: Case,
    /// Bytes of a granule.
    pub granule_bytes: u64,
}

/// The result of a combination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GranuleOutcome {
    /// The combination.
    pub case: GranuleCase,
    /// Requests that found all their granules, per request of the second half; the first half warms the cache.
    pub hit_rate_warm: f64,
    /// The same of the whole trace.
    pub hit_rate_whole: f64,
    /// Pages that drives deliver, per request of the second half.
    pub pages_read_warm: f64,
    /// The same of the whole trace.
    pub pages_read_whole: f64,
}

impl GranuleCase {
    /// Bytes of headers that are counted for each page or granule.
    pub fn header_bytes(&self) -> u64 {
        let ways = self.memory.set_size.unwrap_or(SET_SIZE_DEFAULT);
        let stride = Shape::new(ways as usize).map_or(0, |shape| shape.stride) as u64;
        (8 * stride).div_ceil(u64::from(ways)) + BESIDES_BYTES
    }

    /// The number of granules in the cache: whole sets, at least one, and otherwise never more than fit.
    pub fn entries(&self) -> u64 {
        self.cache().pages_used()
    }

    /// The cache, with granules in the place of pages.
    fn cache(&self) -> Case {
        let header = self.header_bytes();
        let fit = self.memory.cache_pages * (PAGE_BYTES + header) / (self.granule_bytes + header);
        Case { cache_pages: fit, ..self.memory }
    }
}

impl Granules {
    /// Loads the first `requests` of a trace. A request touches every granule that it overlaps. `granule_bytes` is a
    /// power of two and at most a page. The errors are those of [`Pages::load`].
    pub fn load(reader: &mut Reader, granule_bytes: u64, requests: u64, memory_bytes: usize) -> Result<Granules> {
        let mut lens = Vec::new();
        // `lens` takes no more memory than the accesses.
        let limits = (requests, memory_bytes / 2);
        let accesses = Pages::load_units(reader, granule_bytes, limits, |len| lens.push(len))?;
        Ok(Granules { accesses, lens, bytes: granule_bytes })
    }

    /// The number of different granules.
    pub fn unique(&self) -> usize {
        self.accesses.unique()
    }
}

/// Runs combinations over a trace, as [`simulate::run`] does.
pub fn run(
    granules: &Granules,
    memories: &[Case],
    cancel: &AtomicBool,
    done: &(dyn Fn(usize) + Sync),
) -> Result<Option<Vec<GranuleOutcome>>> {
    simulate::in_parallel(memories, done, |memory| {
        let case = GranuleCase { memory, granule_bytes: granules.bytes };
        simulate::one(&granules.accesses, case.cache(), HitsByRequest { granules, case, cancel })
    })
}

/// Counts requests.
struct HitsByRequest<'a> {
    granules: &'a Granules,
    case: GranuleCase,
    cancel: &'a AtomicBool,
}

impl Count for HitsByRequest<'_> {
    type Outcome = GranuleOutcome;

    fn count(self, mut cache: impl Simulated) -> Option<GranuleOutcome> {
        let HitsByRequest { granules: Granules { accesses, lens, bytes }, case, cancel } = self;
        let (mut accesses, half) = (accesses.accesses(), lens.len() / 2);
        // Of the first and of the second half.
        let (mut hits, mut pages_read) = ([0u64; 2], [0u64; 2]);
        for (at, &len) in lens.iter().enumerate() {
            if at % LOOK == 0 && cancel.load(Ordering::Relaxed) {
                return None;
            }
            let (mut is_hit, mut read, which) = (true, None, usize::from(at >= half));
            for access in accesses.by_ref().take(len as usize) {
                // Numbers of granules may be too large for keys, and indices never are.
                let found = cache.access(Access { page: access.index.into(), ..access });
                is_hit &= found;
                let page = Some(access.page / (PAGE_BYTES / bytes));
                if !found && !access.write && read != page {
                    pages_read[which] += 1;
                    read = page;
                }
            }
            hits[which] += u64::from(is_hit);
        }
        let (warm, whole) = ((lens.len() - half) as f64, lens.len() as f64);
        Some(GranuleOutcome {
            case,
            hit_rate_warm: hits[1] as f64 / warm,
            hit_rate_whole: (hits[0] + hits[1]) as f64 / whole,
            pages_read_warm: pages_read[1] as f64 / warm,
            pages_read_whole: (pages_read[0] + pages_read[1]) as f64 / whole,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Policy, SetPolicy};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn load(text: &str, granule_bytes: u64) -> Granules {
        let mut reader = Reader::new(std::io::Cursor::new(text.to_owned()), "t".into(), None).unwrap();
        Granules::load(&mut reader, granule_bytes, u64::MAX, 1 << 28).unwrap()
    }

    fn outcome(granules: &Granules, policy: Policy, cache_pages: u64) -> GranuleOutcome {
        let set_size = policy.has_sets().then_some(12);
        run(granules, &[Case { policy, cache_pages, set_size }], &NEVER, &|_| ()).unwrap().unwrap()[0]
    }

    #[test]
    fn memory_is_equal_and_headers_are_counted() {
        let case = |granule_bytes, set_size| GranuleCase {
            memory: Case { policy: Policy::Sets(SetPolicy::Duel), cache_pages: 1200, set_size },
            granule_bytes,
        };
        // Four cache lines for a set of 12 pages.
        assert_eq!((case(4096, Some(12)).header_bytes(), case(4096, None).header_bytes()), (22 + 36, 22 + 36));
        assert_eq!(case(4096, Some(4)).header_bytes(), 32 + 36);
        assert_eq!(case(4096, Some(12)).entries(), 1200);
        // 1,200 times 4,154 bytes, of 570 bytes each, in whole sets.
        assert_eq!((case(512, None).entries(), case(512, Some(12)).entries()), (8745, 8736));
    }

    #[test]
    fn a_request_hits_if_all_its_granules_are_there_and_reads_each_page_once() {
        let text = "r,0,512\nr,0,1024\nr,1024,512\nr,3584,1024\n\
                    r,0,1536\nr,3584,1024\nr,4096,4096\nw,8192,512\nw,8300,512\nr,8192,512\n";
        let found = outcome(&load(text, 512), Policy::GlobalLru, 100);
        // In the second half, the request to 4096 misses granules of one page, and the write to 8300 a part of one.
        assert_eq!((found.hit_rate_whole, found.hit_rate_warm), (0.3, 0.4));
        assert_eq!((found.pages_read_whole, found.pages_read_warm), (0.7, 0.4));
        let pages = outcome(&load(text, 4096), Policy::GlobalLru, 100);
        assert_eq!((pages.hit_rate_whole, pages.pages_read_whole), (0.7, 0.3));
    }

    #[test]
    fn granules_of_a_page_are_pages() {
        let mut random = fastrand::Rng::with_seed(3);
        let text: String =
            (0..30_000).map(|_| format!("r,{},4096\n", random.u64(0..random.clone().u64(1..3000)) * 4096)).collect();
        let mut reader = Reader::new(std::io::Cursor::new(text.clone()), "t".into(), None).unwrap();
        let pages = Pages::load(&mut reader, u64::MAX, 1 << 28).unwrap();
        for policy in [Policy::GlobalLru, Policy::GlobalArc, Policy::Optimum] {
            let case = Case { policy, cache_pages: 480, set_size: None };
            let by_access = simulate::run(&pages, &[case], &NEVER, &|_| ()).unwrap().unwrap()[0];
            let by_request = outcome(&load(&text, 4096), policy, 480);
            assert_eq!(by_request.hit_rate_warm, by_access.hit_rate_warm, "{policy}");
            assert!((by_request.pages_read_whole - (1.0 - by_access.hit_rate_whole)).abs() < 1e-9, "{policy}");
        }
        assert!(run(&load(&text, 512), &[], &NEVER, &|_| ()).unwrap().unwrap().is_empty());
        let case = Case { policy: Policy::GlobalLru, cache_pages: 4, set_size: None };
        assert!(run(&load(&text, 512), &[case], &AtomicBool::new(true), &|_| ()).unwrap().is_none());
    }

    #[test]
    fn devices_share_no_granule_however_far_their_offsets() {
        let far = "0,8796093022207,512,r,0\n1,0,512,r,0\n0,8796093022207,512,r,0\n";
        let granules = load(far, 512);
        assert_eq!(granules.unique(), 2);
        assert_eq!(outcome(&granules, Policy::Sets(SetPolicy::Duel), 100).hit_rate_whole, 1.0 / 3.0);
    }

    #[test]
    fn hot_rows_at_random_places_are_kept_by_granules_and_not_by_pages() {
        let mut random = fastrand::Rng::with_seed(5);
        // One row in 16 gets nine of ten requests. Each such row is in a page of its own.
        let text: String = (0..60_000)
            .map(|at| {
                let row = if at % 10 == 0 { random.u64(0..8000) } else { random.u64(0..500) * 16 };
                format!("r,{},512\n", row * 512)
            })
            .collect();
        let by_rows = outcome(&load(&text, 512), Policy::Sets(SetPolicy::Duel), 100);
        let by_pages = outcome(&load(&text, 4096), Policy::Sets(SetPolicy::Duel), 100);
        assert!(by_rows.hit_rate_warm > 0.85 && by_pages.hit_rate_warm < 0.4, "{by_rows:?} {by_pages:?}");
        assert!(by_rows.pages_read_warm < 0.15 && by_pages.pages_read_warm > 0.6, "{by_rows:?} {by_pages:?}");
    }
}
