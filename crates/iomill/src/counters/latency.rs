//! Histograms of latencies, with four buckets to each power of two, so that any quantile is known to within an eighth.

use std::fmt;

/// The number of buckets of a histogram. The first ends at 1.28 us, the last begins at 15 s and has no end.
pub const BUCKETS: usize = 96;

/// The first bucket's power of two, in ns.
const FIRST_BITS: u32 = 10;

/// The bucket of a latency.
pub(super) fn bucket(latency_ns: u64) -> usize {
    let ns = latency_ns.max(1 << FIRST_BITS);
    let bits = ns.ilog2();
    let quarter = (ns >> (bits - 2)) & 3;
    (((bits - FIRST_BITS) * 4) as usize + quarter as usize).min(BUCKETS - 1)
}

/// The end of a bucket in nanoseconds. Latencies in the bucket are below it.
pub(super) fn end_ns(bucket: usize) -> u64 {
    (5 + bucket as u64 % 4) << (FIRST_BITS - 2 + bucket as u32 / 4)
}

/// The start of a bucket in nanoseconds.
fn start_ns(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { end_ns(bucket - 1) }
}

#[cfg(feature = "serde")]
fn as_list<S: serde::Serializer>(counts: &[u64; BUCKETS], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(counts)
}

/// A histogram of the latencies of timed requests.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Latency {
    /// The number of requests in each bucket.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_list"))]
    pub(crate) counts: [u64; BUCKETS],
    /// The sum of all latencies in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl fmt::Debug for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency").field("count", &self.count()).field("sum_ns", &self.sum_ns).finish_non_exhaustive()
    }
}

impl Latency {
    /// The number of timed requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// The latency in microseconds that a share of the requests (0 to 1) did not exceed; `None` if none was timed.
    /// Latencies are assumed to be spread evenly within a bucket.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let wanted = share.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0.0;
        let mut last = None;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (start, end) = (start_ns(bucket) as f64, end_ns(bucket) as f64);
            let within = ((wanted - below) / *count as f64).clamp(0.0, 1.0);
            below += *count as f64;
            last = Some((start + (end - start) * within) / 1e3);
            if below >= wanted {
                break;
            }
        }
        last
    }

    /// The latencies that were timed after `earlier`.
    pub fn since(&self, earlier: &Latency) -> Latency {
        let counts = std::array::from_fn(|bucket| self.counts[bucket].saturating_sub(earlier.counts[bucket]));
        Latency { counts, sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gaps() {
        for index in 0..BUCKETS - 1 {
            assert_eq!(bucket(start_ns(index)), index, "{index}");
            assert_eq!(bucket(end_ns(index) - 1), index, "{index}");
            assert_eq!(bucket(end_ns(index)), index + 1, "{index}");
        }
        assert_eq!((end_ns(0), start_ns(BUCKETS - 1)), (1280, 15_032_385_536));
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_near() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_us(0.5), None);
        for us in 1..=10_000u64 {
            latency.counts[bucket(us * 1000)] += 1;
        }
        for (share, us) in [(0.0, 0.0), (0.5, 5_000.0), (0.99, 9_900.0), (0.999, 9_990.0), (1.0, 10_000.0)] {
            let found = latency.quantile_us(share).unwrap();
            assert!((found - us).abs() <= us / 8.0 + 1.3, "{share}: {found}");
        }
        assert_eq!(latency.since(&latency), Latency::default());
    }
}
