//! The strengths of each policy, and the guarantees of all.

// Helpers of tests may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

use super::super::key::KeyHash;
use super::super::set::HitRule;
use super::lru::Lru;
use super::*;
use crate::cache::directory::{Directory, DirectoryConfig};
use crate::cache::feeder::Feeder;
use crate::cache::key::Key;
use crate::cache::set::{Set, Shape};
use crate::cache::words::Words;
use crate::sys::property::{check, list};

struct Cache {
    directory: Directory,
    feeder: Feeder,
}

impl Cache {
    fn new(sets: u64, ways: usize, kind: PolicyKind) -> Cache {
        let directory = Directory::new(DirectoryConfig::fixed(sets * ways as u64, ways, kind)).unwrap();
        Cache { directory, feeder: Feeder::default() }
    }

    fn touch(&mut self, page: u64) -> bool {
        self.directory.touch(&mut self.feeder, Key::new(1, page).unwrap())
    }
}

/// The share of hits on 300 hot pages, in a cache of 600. Meanwhile four times as many accesses go to pages that are
/// asked for once.
fn hits_beside_a_scan(kind: PolicyKind) -> f64 {
    let mut cache = Cache::new(50, 12, kind);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        cache.touch(random.u64(..300));
    }
    let (mut hits, mut scan) = (0, 1_000_000);
    for _ in 0..20_000 {
        hits += u32::from(cache.touch(random.u64(..300)));
        for _ in 0..4 {
            cache.touch(scan);
            scan += 1;
        }
    }
    f64::from(hits) / 20_000.0
}

#[test]
fn a_scan_does_not_flush_hot_pages() {
    let lru = hits_beside_a_scan(PolicyKind::Lru);
    assert!(lru < 0.6, "{lru}: the scan is too weak");
    for kind in [PolicyKind::Lfu, PolicyKind::Sieve, PolicyKind::S3Fifo, PolicyKind::WTinyLfu, PolicyKind::Duel] {
        let rate = hits_beside_a_scan(kind);
        assert!(rate > lru + 0.2, "{kind}: {rate}, lru: {lru}");
    }
    assert!(hits_beside_a_scan(PolicyKind::Gclock) > lru + 0.05);
}

/// Fills a set of four with pages 0 to 3, gives each its number of hits, and inserts another page. Returns the evicted
/// page.
fn page_that_goes(kind: PolicyKind, hits: [usize; 4]) -> u64 {
    let mut cache = Cache::new(1, 4, kind);
    (0..4).for_each(|page| assert!(!cache.touch(page)));
    for (page, &hits) in hits.iter().enumerate() {
        (0..hits).for_each(|_| assert!(cache.touch(page as u64)));
    }
    cache.touch(100);
    let gone: Vec<u64> = (0..4).filter(|&page| cache.directory.find(key(page), key(page).hash()).is_none()).collect();
    assert_eq!(gone.len(), 1, "{kind}: {gone:?}");
    gone[0]
}

fn key(page: u64) -> Key {
    Key::new(1, page).unwrap()
}

#[test]
fn each_takes_the_page_that_it_should() {
    // All four pages are used in the same tick, so LRU knows only which page had no hit.
    assert_eq!(page_that_goes(PolicyKind::Lru, [1, 1, 0, 1]), 2);
    assert_eq!(page_that_goes(PolicyKind::Lfu, [9, 3, 4, 8]), 1);
    assert_eq!(page_that_goes(PolicyKind::Lfu, [3, 2, 2, 2]), 1, "the oldest of equals");
    assert_eq!(page_that_goes(PolicyKind::Clock, [5, 1, 0, 0]), 2);
    assert_eq!(page_that_goes(PolicyKind::Clock, [5, 1, 1, 1]), 0, "all had one chance");
    assert_eq!(page_that_goes(PolicyKind::Gclock, [5, 1, 2, 3]), 1);
    assert_eq!(page_that_goes(PolicyKind::Sieve, [1, 0, 1, 0]), 1);
    assert_eq!(page_that_goes(PolicyKind::S3Fifo, [1, 0, 1, 1]), 1);
}

/// SIEVE's hand stays where it was, so it reaches new pages only after all older ones. CLOCK puts a new page in the
/// place of the old one. Its hand reaches new pages a round later, too, but also old pages that were hit again.
#[test]
fn sieve_looks_at_new_pages_last() {
    let mut cache = Cache::new(1, 4, PolicyKind::Sieve);
    (0..4).for_each(|page| assert!(!cache.touch(page)));
    assert!(cache.touch(0) && cache.touch(1));
    // Pages 0 and 1 become unvisited, and 2 is evicted. Then 3 is evicted, then 10, the next in order, though 0 and 1
    // are older and unvisited.
    for (incoming, gone) in [(10, 2), (11, 3), (12, 10), (13, 11)] {
        cache.touch(incoming);
        assert!(cache.directory.find(key(gone), key(gone).hash()).is_none(), "{gone} stays");
    }
    assert!(cache.touch(0) && cache.touch(1));
}

#[test]
fn s3_fifo_remembers_pages_that_left() {
    let mut cache = Cache::new(1, 12, PolicyKind::S3Fifo);
    (0..13).for_each(|page| assert!(!cache.touch(page)));
    // Page 0 is evicted, is admitted again to the main queue, and outlives pages of one use.
    assert!(!cache.touch(0));
    (100..150).for_each(|page| assert!(!cache.touch(page)));
    assert!(cache.touch(0));
    // Page 5 entered the main queue, because it came while the set filled up and the small queue had its share. Page
    // 11, the last, entered the small queue.
    assert!(cache.touch(5));
    assert!(!cache.touch(11));
}

/// Two sets under a policy, as in the cache.
struct World {
    shape: Shape,
    words: Words,
    policy: Box<dyn Policy>,
    next: u64,
}

impl World {
    fn new(kind: PolicyKind, ways: usize) -> World {
        let shape = Shape::new(ways).unwrap();
        let scale = Scale { sets: 2, first_sets: 2, ways, pages_max: 2 * ways as u64, hash_mask: u64::MAX };
        let words = Words::new(2 * shape.stride).unwrap();
        World { shape, words, policy: new(kind, scale).unwrap(), next: 0 }
    }

    fn set(&self, index: u32) -> Set<'_> {
        let start = index as usize * self.shape.stride;
        Set::new(&self.shape, &self.words.all()[start..start + self.shape.stride])
    }

    fn miss(&mut self, index: u32, mask: u32) {
        // Some pages are asked for again.
        self.next += 1;
        let key = key(if mask & 1 == 1 { self.next } else { self.next.saturating_sub(u64::from(mask % 64)) });
        self.policy.feed(&[key.hash()]);
        let mut set = self.set(index).lock();
        if set.find(key, key.hash()).is_some() {
            return;
        }
        self.policy.missed(index, &mut set, key.hash());
        let candidates = if mask & set.present() == 0 { set.present() } else { mask & set.present() };
        let way = if set.free() != 0 {
            set.free().trailing_zeros() as usize
        } else {
            let way = self.policy.victim(index, &mut set, candidates, key.hash());
            assert!(way < 32 && candidates >> way & 1 == 1, "way {way} of {candidates:#b}");
            self.policy.evicted(index, &mut set, way);
            way
        };
        set.set_present(way, key, key.hash());
        self.policy.inserted(index, &mut set, way, key.hash());
    }

    fn step(&mut self, what: u8, index: u32, mask: u32) {
        let way = mask as usize % self.shape.ways;
        let is_present = self.set(index).lock().present() >> way & 1 == 1;
        match what {
            0..6 => self.miss(index, mask),
            6 if is_present => self.set(index).hit(way, self.policy.on_hit()),
            7 if is_present => self.set(index).lock().set_free(way),
            8 if is_present => self.shift(index, way),
            _ => {}
        }
        for index in 0..2 {
            let set = self.set(index).lock();
            assert!(set.clock() < 128 && set.hand() < 128);
            assert!(
                (0..set.ways()).all(|way| set.meta(way) >> 1 <= set.clock() || self.policy.on_hit() != HitRule::Stamp)
            );
        }
    }

    /// Moves a page to a free way of the other set, if there is one.
    fn shift(&mut self, index: u32, way: usize) {
        let (mut from, mut to) = (self.set(index).lock(), self.set(1 - index).lock());
        if to.free() == 0 {
            return;
        }
        let (to_way, key) = (to.free().trailing_zeros() as usize, from.key(way));
        to.set_present(to_way, key, key.hash());
        self.policy.moved(&mut from, way, &mut to, to_way);
        from.set_free(way);
    }
}

#[test]
fn victims_are_candidates_and_notes_stay_in_range() {
    let step = |bytes: &mut arbitrary::Unstructured<'_>| {
        Ok((bytes.int_in_range(0..=8u8)?, bytes.int_in_range(0..=1u32)?, bytes.arbitrary::<u32>()?))
    };
    let make = |bytes: &mut arbitrary::Unstructured<'_>| {
        let (ways, kind) = (bytes.int_in_range(1..=8usize)?, *bytes.choose(&PolicyKind::ALL)?);
        Ok((ways, kind, list(bytes, 1..=600, step)?))
    };
    check(256, make, |(ways, kind, steps)| {
        let mut world = World::new(kind, 4 * ways);
        for (what, index, mask) in steps {
            world.step(what, index, mask);
        }
    });
}

/// Pages that move to an empty set are evicted in the same order as in the old set.
#[test]
fn order_survives_a_move() {
    for kind in [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::Sieve, PolicyKind::WTinyLfu, PolicyKind::Duel] {
        let mut world = World::new(kind, 12);
        (0..300).for_each(|_| world.miss(0, u32::MAX));
        (0..12).for_each(|way| world.shift(0, way));
        let mut set = world.set(1).lock();
        let mut went = Vec::new();
        while set.present() != 0 {
            let candidates = set.present();
            let way = Lru.victim(1, &mut set, candidates, KeyHash(0));
            let by_kind = if matches!(kind, PolicyKind::Lru | PolicyKind::WTinyLfu | PolicyKind::Duel) {
                way
            } else {
                world.policy.victim(1, &mut set, candidates, KeyHash(0))
            };
            went.push(set.key(by_kind).page());
            set.set_free(by_kind);
        }
        assert!(went.is_sorted() && went.len() == 12, "{kind}: {went:?}");
    }
}

#[test]
fn names_are_read_back() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse::<PolicyKind>().unwrap(), kind);
    }
    let error = "mru".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.contains("mru") && error.contains("w-tinylfu"), "{error}");
}
