//! [`gets`]: the missing granules that become one GET. A pure function of the granules and the [`Cost`]. Non-goals:
//! sending the GETs (`fetch`).
//!
//! A request that is joined with its neighbour saves its share of the latency, and its price. In return the bytes
//! between them take time. As long as all requests are in flight together, the latency is paid once anyway, and only
//! short gaps are worth it.

use std::ops::Range;

use crate::options::Cost;

/// Granules to request, from the first to behind the last.
pub type Run = Range<u64>;

/// Joins granules, which are in order and without repetition, to GETs.
pub fn gets(granules: &[u64], granule_bytes: u64, cost: &Cost) -> Vec<Run> {
    let longest = (cost.get_bytes / granule_bytes).max(1);
    let mut runs: Vec<Run> = Vec::new();
    for granule in granules {
        match runs.last_mut() {
            Some(run) if (granule - run.end) * granule_bytes <= cost.gap_bytes => run.end = granule + 1,
            _ => runs.push(*granule..granule + 1),
        }
    }
    let slots = cost.in_flight.max(1);
    if runs.len() > slots {
        runs = joined(runs, granule_bytes, cost, slots);
    }
    cut(&runs, granules, longest)
}

/// Closes the shortest gaps first, as long as each saves more than it costs, and more runs are left than may be in
/// flight.
fn joined(runs: Vec<Run>, granule_bytes: u64, cost: &Cost, slots: usize) -> Vec<Run> {
    let saved = cost.latency.as_secs_f64() / slots as f64;
    let worth = (saved * cost.bytes_per_second as f64) as u64 / granule_bytes;
    let mut gaps: Vec<(u64, usize)> =
        runs.windows(2).enumerate().map(|(n, pair)| (pair[1].start - pair[0].end, n)).collect();
    gaps.sort_unstable();
    let mut closes = vec![false; runs.len()];
    for (gap, n) in gaps.into_iter().take(runs.len() - slots) {
        closes[n] = gap <= worth;
    }
    let mut out: Vec<Run> = Vec::new();
    for (n, run) in runs.into_iter().enumerate() {
        match out.last_mut() {
            Some(last) if closes[n - 1] => last.end = run.end,
            _ => out.push(run),
        }
    }
    out
}

/// Cuts runs that are too long for a GET. Each GET begins and ends with a requested granule.
fn cut(runs: &[Run], granules: &[u64], longest: u64) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    let mut runs = runs.iter().peekable();
    let mut begins = true;
    for granule in granules {
        while runs.next_if(|run| run.end <= *granule).is_some() {
            begins = true;
        }
        match out.last_mut() {
            Some(get) if !begins && granule + 1 - get.start <= longest => get.end = granule + 1,
            _ => out.push(*granule..granule + 1),
        }
        begins = false;
    }
    out
}

#[cfg(test)]
// A list of GETs may have one element.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const GRANULE: u64 = 16 << 10;

    fn cost() -> Cost {
        Cost::default().in_flight(4).get_bytes(8 * GRANULE)
    }

    #[test]
    fn neighbours_are_one_get_and_a_long_run_is_cut() {
        assert_eq!(gets(&[3, 4, 5], GRANULE, &cost()), [3..6]);
        assert_eq!(gets(&[0, 2, 9], GRANULE, &cost()), [0..3, 9..10]);
        let long: Vec<u64> = (0..20).collect();
        assert_eq!(gets(&long, GRANULE, &cost()), [0..8, 8..16, 16..20]);
        assert_eq!(gets(&[], GRANULE, &cost()), [0..0; 0]);
    }

    #[test]
    fn gaps_are_closed_only_where_requests_would_wait() {
        // Four are in flight together: no gap is worth its bytes.
        assert_eq!(gets(&[0, 5, 10, 15], GRANULE, &cost()).len(), 4);
        // Two more would wait. The shortest gaps are closed.
        assert_eq!(gets(&[0, 3, 10, 20, 23, 40], GRANULE, &cost()), [0..4, 10..11, 20..24, 40..41]);
        // The bytes of these gaps take longer than a request.
        let slow = cost().bytes_per_second(1 << 20).latency(Duration::from_millis(1));
        assert_eq!(gets(&[0, 3, 10, 20, 23, 40], GRANULE, &slow).len(), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn each_granule_is_in_one_get(granules in prop::collection::btree_set(0..500u64, 0..100), in_flight in 1..40usize) {
            let granules: Vec<u64> = granules.into_iter().collect();
            let runs = gets(&granules, GRANULE, &cost().in_flight(in_flight));
            for granule in &granules {
                prop_assert_eq!(runs.iter().filter(|run| run.contains(granule)).count(), 1);
            }
            prop_assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for run in runs {
                prop_assert!(run.end - run.start <= 8);
                prop_assert!(granules.iter().any(|granule| run.contains(granule)), "nothing was asked for");
            }
        }
    }
}
