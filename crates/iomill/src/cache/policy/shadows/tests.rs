//! Each contender alone: its shadows depend on no other contender.

// Helpers of tests may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

use super::*;

const SETS: u32 = SHADOWED_MIN;
const WAYS: usize = 12;
const PAGES: u64 = SETS as u64 * WAYS as u64;

/// A contender's share of hits in the second half of a load, in a cache that consists of its shadows.
fn rate(by: Contender, load: &[u64]) -> f64 {
    let (first_sets, hash_mask) = (SETS, u64::MAX);
    let scale = Scale { sets: SETS, first_sets, ways: WAYS, pages_max: PAGES, hash_mask };
    let (contenders, shadows) = (Contenders::new(scale).unwrap(), Shadows::new(scale).unwrap());
    let mut hits = 0;
    for (at, &page) in load.iter().enumerate() {
        let hash = Key::new(1, page).unwrap().hash();
        contenders.count(hash);
        let place = shadows.place(hash).expect("all sets have shadows");
        let was_there = shadows.touch(&contenders, by, &mut shadows.set(place, by as usize).lock(), hash);
        hits += u32::from(was_there && at >= load.len() / 2);
    }
    f64::from(hits) / (load.len() - load.len() / 2) as f64
}

/// ARC learns how many pages of a set should be pages that were asked for once. If each page comes again exactly once,
/// these are most of the set: seven of twelve. Beside a scan they are few: the pages in use need ten. No fixed number
/// fits both loads.
#[test]
fn the_adaptive_contender_learns_from_ghosts() {
    let mut random = fastrand::Rng::with_seed(2);
    // Each page comes again after this many other new pages.
    let lag = PAGES * 3 / 5;
    let twice: Vec<u64> =
        (0..40 * PAGES).map(|at| if at % 2 == 0 { at } else { at.saturating_sub(2 * lag + 1) }).collect();
    let in_use = |random: &mut fastrand::Rng| random.u64(..PAGES * 4 / 5);
    let scan: Vec<u64> =
        (0..40 * PAGES).map(|at| if at % 3 == 0 { in_use(&mut random) } else { 1_000_000 + at }).collect();
    for (name, load, most) in [("twice", twice, 1.0 / 2.0), ("a scan", scan, 1.0 / 3.0)] {
        let hits = rate(Contender::Adaptive, &load);
        assert!(hits >= 0.9 * most, "{name}: {hits:.3} of {most:.3}");
    }
}
