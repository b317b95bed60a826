//! The promises of the default policy, on synthetic loads: it holds on if reuse is uniform, it follows a load that
//! turns, and it is nowhere far below its contenders.

// Helpers of tests may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

use crate::cache::directory::{Directory, DirectoryConfig};
use crate::cache::feeder::Feeder;
use crate::cache::key::Key;
use crate::cache::policy::PolicyKind;

const WAYS: u64 = 12;

struct Cache {
    directory: Directory,
    feeder: Feeder,
}

impl Cache {
    fn new(sets: u64, kind: PolicyKind) -> Cache {
        let directory = Directory::new(DirectoryConfig::fixed(sets * WAYS, WAYS as usize, kind)).unwrap();
        Cache { directory, feeder: Feeder::default() }
    }

    /// The share of hits among some accesses.
    fn rate(&mut self, pages: impl Iterator<Item = u64>) -> f64 {
        let (mut hits, mut all) = (0, 0);
        for page in pages {
            hits += u32::from(self.directory.touch(&mut self.feeder, Key::new(1, page).unwrap()));
            all += 1;
        }
        f64::from(hits) / f64::from(all)
    }
}

/// All pages once, in a new order.
fn epoch(random: &mut fastrand::Rng, pages: u64) -> impl Iterator<Item = u64> + use<> {
    let mut order: Vec<u64> = (0..pages).collect();
    random.shuffle(&mut order);
    order.into_iter()
}

/// Skewed accesses, of which most go to few pages: a page's rank is a power of a random number.
fn skewed(random: &mut fastrand::Rng, pages: u64) -> u64 {
    1_000_000 + (pages as f64).powf(random.f64()) as u64 * 7919 % 1_000_003
}

/// Pages that are asked for a few times again soon, and then never again.
fn recent(random: &mut fastrand::Rng, at: u64, span: u64) -> u64 {
    at / 4 + random.u64(..span)
}

/// A cache for a share of the pages hits nearly that share in each round from the third on.
fn hits_its_share(name: &str, mut round: impl FnMut(u64) -> Box<dyn Iterator<Item = u64>>) {
    for pages in [1_200, 6_000] {
        for share in [10, 25, 33, 50, 66, 75, 80, 90] {
            let sets = pages * share / 100 / WAYS;
            let mut cache = Cache::new(sets, PolicyKind::Duel);
            let rates: Vec<f64> = (0..10).map(|_| cache.rate(round(pages))).collect();
            let has = (sets * WAYS) as f64 / pages as f64;
            let least = rates[2..].iter().copied().fold(1.0, f64::min);
            assert!(least >= 0.95 * has, "{name} of {pages} pages, {sets} sets: {least:.3} of {has:.3}, {rates:.3?}");
        }
    }
}

#[test]
fn epochs_hit_their_share() {
    let mut random = fastrand::Rng::with_seed(7);
    hits_its_share("epochs", |pages| Box::new(epoch(&mut random, pages)));
}

/// A loop has long runs of hits, and the policy learns only the last 64 of a run.
#[test]
fn loops_hit_their_share() {
    hits_its_share("loops", |pages| Box::new(0..pages));
}

/// Pages of an earlier load do not stay for ever in a cache that holds on.
#[test]
fn epochs_after_another_load_hit_their_share() {
    for share in [25, 50, 75] {
        let (pages, sets) = (6_000, 6_000 * share / 100 / WAYS);
        let mut random = fastrand::Rng::with_seed(11);
        let mut cache = Cache::new(sets, PolicyKind::Duel);
        let before: Vec<u64> = (0..20 * sets * WAYS).map(|_| skewed(&mut random, 20 * sets * WAYS)).collect();
        cache.rate(before.into_iter());
        let rates: Vec<f64> = (0..12).map(|_| cache.rate(epoch(&mut random, pages))).collect();
        let has = (sets * WAYS) as f64 / pages as f64;
        assert!(rates[9..].iter().all(|&rate| rate >= 0.95 * has), "{sets} sets: {has:.3}, {rates:.3?}");
    }
}

/// A page that is asked for again at once, by reads of neighbours in it, is admitted although the cache holds on.
#[test]
fn a_page_that_is_asked_for_twice_comes_in() {
    let mut random = fastrand::Rng::with_seed(13);
    let mut cache = Cache::new(50, PolicyKind::Duel);
    (0..4).for_each(|_| _ = cache.rate(epoch(&mut random, 2_400)));
    // Too few pages for any contender to gain on the leader.
    let new = 10_000..10_040;
    let rates = [cache.rate(new.clone()), cache.rate(new)];
    assert!(rates[1] < 0.05, "the cache holds on: {rates:?}");
    let hits: Vec<f64> = (20_000..20_008).map(|page| cache.rate([page; 3].into_iter())).collect();
    assert!(hits.iter().all(|&rate| (rate - 1.0 / 3.0).abs() < 0.01), "the third access is a hit: {hits:?}");
}

/// The hit rate of a load after another one, without its first cache-fulls.
fn after(first: &[u64], second: &[u64], sets: u64, skipped: u64) -> f64 {
    let mut cache = Cache::new(sets, PolicyKind::Duel);
    let (turn, counted) = second.split_at((skipped * sets * WAYS) as usize);
    cache.rate(first.iter().chain(turn).copied());
    cache.rate(counted.iter().copied())
}

/// One cache-full after a turn of the load, the next three hit nearly as often as if there had been no other load.
#[test]
fn a_turn_is_followed_within_one_cache_full() {
    for sets in [16, 64, 500] {
        let pages = sets * WAYS;
        let mut random = fastrand::Rng::with_seed(5);
        let epochs: Vec<u64> = (0..6).flat_map(|_| epoch(&mut random, 4 * pages)).collect();
        let recent: Vec<u64> = (0..20 * pages).map(|at| 500_000 + recent(&mut random, at, pages * 3 / 4)).collect();
        let other: Vec<u64> = recent[..4 * pages as usize].iter().map(|page| page + 1_500_000).collect();
        let skewed: Vec<u64> = (0..4 * pages).map(|_| skewed(&mut random, 20 * pages)).collect();
        let looped: Vec<u64> = (0..12 * pages).map(|at| 5_000_000 + at % (pages * 3 / 2)).collect();
        let turns = [
            ("epochs, skewed", &epochs, &skewed, 0.85),
            ("a loop, skewed", &looped, &skewed, 0.85),
            ("recent, skewed", &recent, &skewed, 0.95),
            ("epochs, recent", &epochs, &other, 0.9),
            ("a loop, recent", &looped, &other, 0.9),
        ];
        for (name, first, second, least) in turns {
            let (turned, alone) = (after(first, second, sets, 1), after(&[], second, sets, 1));
            assert!(turned >= least * alone, "{sets} sets, {name}: {turned:.3}, alone {alone:.3}");
        }
        // No page of a loop is asked for again before the second round, and in the third the shadows learn that holding
        // on helps. The share is two thirds.
        let turned = after(&recent, &looped, sets, 5);
        assert!(turned >= 0.5, "{sets} sets, recent, a loop: {turned:.3}");
    }
}

/// The hit rate of a load's second half, in percent.
fn warm_rate(sets: u64, kind: PolicyKind, load: &[u64]) -> f64 {
    let mut cache = Cache::new(sets, kind);
    let (warm, counted) = load.split_at(load.len() / 2);
    cache.rate(warm.iter().copied());
    100.0 * cache.rate(counted.iter().copied())
}

/// Pages become popular and unpopular again: a load that fits neither LRU nor W-TinyLFU.
#[test]
fn a_drift_is_followed_better_than_by_lru_and_by_frequency() {
    for sets in [16, 33, 127] {
        let pages = sets * WAYS;
        let mut random = fastrand::Rng::with_seed(3);
        let rank = |random: &mut fastrand::Rng| (20.0 * pages as f64).powf(random.f64()) as u64;
        let load: Vec<u64> = (0..60 * pages).map(|at| 1_000_000 + at / 30 + rank(&mut random)).collect();
        let rate = |kind| warm_rate(sets, kind, &load);
        let (lru, tiny, duel) = (rate(PolicyKind::Lru), rate(PolicyKind::WTinyLfu), rate(PolicyKind::Duel));
        assert!(duel >= lru.max(tiny) + 1.5, "{sets} sets: lru {lru:.1}, w-tinylfu {tiny:.1}, duel {duel:.1}");
    }
}

/// Skewed accesses, and between them pages that are asked for once more soon, and then never again.
fn skewed_and_twice(random: &mut fastrand::Rng, sets: u64, len: u64) -> Vec<u64> {
    let (mut load, mut again) = (Vec::new(), std::collections::BTreeMap::<u64, Vec<u64>>::new());
    for at in 0..len {
        while again.first_key_value().is_some_and(|(&when, _)| when <= at) {
            load.extend(again.pop_first().unwrap().1);
        }
        if at % 4 == 0 {
            load.push(5_000_000 + at);
            again.entry(at + 1 + random.u64(..2 * sets)).or_default().push(5_000_000 + at);
        } else {
            load.push(skewed(random, 20 * sets * WAYS));
        }
    }
    load
}

/// The duel is nowhere far below the better of LRU and W-TinyLFU, with few sets, many, and odd numbers of them. Once
/// one policy had more sets than the other, and luckier ones.
#[test]
fn the_duel_follows_the_better() {
    for sets in [8, 10, 16, 33, 127] {
        let pages = sets * WAYS;
        let len = pages * 60;
        let mut random = fastrand::Rng::with_seed(3);
        let loads: [(&str, Vec<u64>); 5] = [
            ("a loop", (0..len).map(|at| at % (pages * 3 / 2)).collect()),
            ("recent", (0..len).map(|at| recent(&mut random, at, pages * 3 / 4)).collect()),
            ("skewed", (0..len).map(|_| skewed(&mut random, 20 * pages)).collect()),
            ("a scan", (0..len).map(|at| if at % 4 == 0 { random.u64(..pages / 2) } else { 1_000_000 + at }).collect()),
            ("skewed and twice", skewed_and_twice(&mut random, sets, len)),
        ];
        for (name, load) in loads {
            let rate = |kind| warm_rate(sets, kind, &load);
            let (lru, tiny) = (rate(PolicyKind::Lru), rate(PolicyKind::WTinyLfu));
            let duel = rate(PolicyKind::Duel);
            assert!(
                duel >= lru.max(tiny) - 2.0,
                "{sets} sets, {name}: lru {lru:.1}, w-tinylfu {tiny:.1}, duel {duel:.1}"
            );
        }
    }
}
