//! [`Shares`]: the drive of a granule. All processes compute the same table from the drives' ids and lengths.
//! Non-goals: the place on the drive.
//!
//! If a drive leaves, its buckets go to the others, and no other bucket moves. A drive that comes takes its share of
//! each.

use crate::identity::mixed;

const BUCKETS: usize = 4096;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Drives by bucket. Empty if there is no drive.
    drives: Vec<u16>,
}

impl Shares {
    /// `weights` has the id and the granules of each drive, or `None` for a drive without a share.
    pub fn new(weights: &[Option<(u128, u64)>]) -> Shares {
        let taking_part = || weights.iter().enumerate().filter_map(|(n, drive)| drive.map(|drive| (n as u16, drive)));
        let best = |bucket: usize| {
            let score = |(_, (id, weight)): &(u16, (u128, u64))| {
                let hash = mixed(*id as u64 ^ mixed((*id >> 64) as u64 ^ mixed(bucket as u64 + 1)));
                // In (0, 1). The weight makes the chance of the greatest value.
                let unit = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                *weight as f64 / -unit.ln()
            };
            let scored = taking_part().map(|drive| (score(&drive), drive.0));
            scored.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, drive)| drive)
        };
        Shares { drives: (0..BUCKETS).filter_map(best).collect() }
    }

    /// `None` if no drive is left.
    pub fn drive(&self, tag: u64) -> Option<usize> {
        // The index uses both ends of the tag, so these bits are mixed once more.
        let bucket = (mixed(tag ^ 0x9e37_79b9_7f4a_7c15) >> 52) as usize;
        self.drives.get(bucket).map(|drive| usize::from(*drive))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(shares: &Shares, drives: usize) -> Vec<usize> {
        let mut counts = vec![0; drives];
        (0..100_000u64).for_each(|n| counts[shares.drive(mixed(n + 1)).unwrap()] += 1);
        counts
    }

    #[test]
    fn drives_have_granules_by_their_length() {
        let counts = count(&Shares::new(&[Some((1, 100)), Some((2, 100)), Some((3, 200))]), 3);
        for (found, wanted) in counts.iter().zip([25_000, 25_000, 50_000]) {
            assert!(found.abs_diff(wanted) < 3000, "{counts:?}");
        }
    }

    #[test]
    fn a_drive_that_leaves_moves_only_its_own_granules() {
        let all = Shares::new(&[Some((1, 9)), Some((2, 9)), Some((3, 9))]);
        let left = Shares::new(&[Some((1, 9)), None, Some((3, 9))]);
        for n in 1..10_000u64 {
            let (before, after) = (all.drive(mixed(n)).unwrap(), left.drive(mixed(n)).unwrap());
            assert!(before == after || before == 1);
            assert_ne!(after, 1);
        }
        assert_eq!(Shares::new(&[None]).drive(5), None);
    }
}
