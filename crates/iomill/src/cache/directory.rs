//! The directory of the cache: which page is in which frame. It owns the sets and their policy. The number of sets may
//! change during lookups.
//!
//! The directory knows nothing of memory or I/O, so a simulation of policies runs the same code ([`Directory::touch`]).

use super::feeder::{DRAIN_LEN, Feeder};
use super::key::{self, Key, KeyHash};
use super::policy::{self, Policy, PolicyKind, Scale};
use super::prefetch::prefetch;
use super::set::{HitRule, Locked, Seen, Set, Shape};
use super::words::Words;
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU64, Ordering};

/// The settings of a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryConfig {
    /// The number of sets at the beginning, at least 1.
    pub sets: u32,
    /// The most sets after a resize.
    pub sets_max: u32,
    /// Ways of a set: a multiple of 4 from 4 to 32.
    pub ways: usize,
    /// The policy.
    pub policy: PolicyKind,
    /// The bits of a hash that are used: all of them, except in tests that want a bad hash.
    pub hash_mask: u64,
}

impl DirectoryConfig {
    /// The settings for a fixed number of pages, rounded up to whole sets.
    pub fn fixed(pages: u64, ways: usize, policy: PolicyKind) -> DirectoryConfig {
        let sets = pages.div_ceil(ways.max(1) as u64).clamp(1, u64::from(u32::MAX / 4)) as u32;
        DirectoryConfig { sets, sets_max: sets, ways, policy, hash_mask: u64::MAX }
    }
}

/// The directory.
#[derive(Debug)]
pub struct Directory {
    shape: Shape,
    words: Words,
    hash_mask: u64,
    first_sets: u32,
    sets_max: u32,
    /// Low half: the number of sets now. High half: the bits by which all sets have been split, and [`UNEVEN`] as the
    /// highest bit.
    ///
    /// Changes only under the locks of the set that is split off or joined and of its origin. So a page's set is right
    /// if this gives the same set before and after the set is locked.
    size: AtomicU64,
    hit_rule: HitRule,
    wants_feed: bool,
    policy: Box<dyn Policy>,
}

/// The number of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIndex(pub u32);

impl Directory {
    /// An empty directory.
    pub fn new(config: DirectoryConfig) -> Result<Directory> {
        let shape = shape(config.ways)?;
        let sets_max = config.sets_max.max(config.sets).max(1);
        let no_memory = Error::memory("the cache's directory", u64::from(sets_max) * shape.stride as u64 * 8);
        let words = Words::new(sets_max as usize * shape.stride).map_err(&no_memory)?;
        let sets = config.sets.max(1);
        let pages_max = u64::from(sets_max) * config.ways as u64;
        let first_sets = key::first_sets(sets);
        let scale = Scale { sets, first_sets, ways: config.ways, pages_max, hash_mask: config.hash_mask };
        let policy = policy::new(config.policy, scale).map_err(&no_memory)?;
        Ok(Directory {
            shape,
            words,
            hash_mask: config.hash_mask,
            first_sets,
            sets_max,
            size: AtomicU64::new(size_word(first_sets, sets)),
            hit_rule: policy.on_hit(),
            wants_feed: policy.wants_feed(),
            policy,
        })
    }

    /// Binds the headers' memory, which is untouched so far, to a node.
    pub(super) fn bind(&self, node: u32, policy: crate::sys::memory::NodePolicy) -> std::io::Result<()> {
        self.words.bind(node, policy)
    }

    /// The number of sets now.
    pub fn sets(&self) -> u32 {
        self.size.load(Ordering::Relaxed) as u32
    }

    /// Changes the number of sets by one. The caller holds the locks of the set that is added or removed, the last one,
    /// and of its origin.
    pub(super) fn set_sets(&self, sets: u32) {
        debug_assert!((1..=self.sets_max).contains(&sets) && sets.abs_diff(self.sets()) == 1);
        // Release: pairs with the Acquire in `set_index`.
        self.size.store(size_word(self.first_sets, sets), Ordering::Release);
    }

    /// The set of a page when the directory has `sets` sets.
    pub(super) fn set_index_of(&self, hash: KeyHash, sets: u32) -> SetIndex {
        SetIndex(hash.set(self.first_sets, sets, key::split_mask(self.first_sets, sets)))
    }

    /// The origin of a set other than set 0: the set from which it is split, and with which it is joined.
    pub(super) fn origin(&self, set: u32) -> SetIndex {
        SetIndex(key::origin(self.first_sets, set))
    }

    /// [`key::even_sets`] of this directory.
    pub(super) fn even_sets(&self, sets: u32) -> u32 {
        key::even_sets(self.first_sets, sets)
    }

    /// The most sets after a resize.
    pub fn sets_max(&self) -> u32 {
        self.sets_max
    }

    /// Ways of a set.
    pub fn ways(&self) -> usize {
        self.shape.ways
    }

    /// The number of pages that fit now.
    pub fn pages(&self) -> u64 {
        u64::from(self.sets()) * self.shape.ways as u64
    }

    /// The policy.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }

    /// Whether the policy wants the hashes of the pages that are asked for.
    pub fn wants_feed(&self) -> bool {
        self.wants_feed
    }

    /// A page's hash.
    #[inline(always)]
    pub fn hash(&self, key: Key) -> KeyHash {
        key.hash().masked(self.hash_mask)
    }

    /// The number of a page's set at this moment.
    #[inline(always)]
    pub fn set_index(&self, hash: KeyHash) -> SetIndex {
        // Acquire: pairs with the Release in `set_sets`.
        let size = self.size.load(Ordering::Acquire);
        if size & UNEVEN != 0 {
            return self.uneven_set_index(hash, size & !UNEVEN);
        }
        SetIndex(hash.even_set(self.first_sets, (size >> 32) as u32))
    }

    #[cold]
    #[inline(never)]
    fn uneven_set_index(&self, hash: KeyHash, size: u64) -> SetIndex {
        SetIndex(hash.set(self.first_sets, size as u32, (size >> 32) as u32))
    }

    /// Cache lines of a header.
    #[inline]
    pub fn header_lines(&self) -> usize {
        self.shape.stride / 8
    }

    /// The set with this number.
    #[inline(always)]
    pub fn set(&self, set_index: SetIndex) -> Set<'_> {
        let start = set_index.0 as usize * self.shape.stride;
        // SAFETY: numbers of sets come from `set_index` and from counting below `sets`. Both are below `sets_max`, the
        // number of sets for which there are words.
        Set::new(&self.shape, unsafe { self.words.all().get_unchecked(start..start + self.shape.stride) })
    }

    /// The set of a page at this moment.
    #[inline(always)]
    pub fn set_of(&self, hash: KeyHash) -> Set<'_> {
        self.set(self.set_index(hash))
    }

    /// Looks a page up without a lock, as [`Set::find`] does.
    #[inline(always)]
    pub fn find(&self, key: Key, hash: KeyHash) -> Option<Seen> {
        self.set_of(hash).find(key, hash)
    }

    /// Locks the set that a page belongs to.
    pub fn lock(&self, hash: KeyHash) -> (SetIndex, Locked<'_>) {
        loop {
            let set_index = self.set_index(hash);
            let locked = self.set(set_index).lock();
            // The set may have been split or joined while this thread waited for its lock.
            if self.set_index(hash) == set_index {
                return (set_index, locked);
            }
        }
    }

    /// Tells the policy of a miss. The page is about to be admitted.
    pub fn missed(&self, SetIndex(index): SetIndex, set: &mut Locked<'_>, hash: KeyHash) {
        if self.wants_feed {
            self.policy.feed(&[hash]);
        }
        self.policy.missed(index, set, hash);
    }

    /// Whether a missed page should go past its set. Only a page of a full set does.
    #[inline]
    pub fn passes(&self, SetIndex(index): SetIndex, set: &mut Locked<'_>, hash: KeyHash) -> bool {
        set.free() == 0 && self.policy.passes(index, set, hash)
    }

    /// Tells the policy of the noted hits of a simulated thread. A page that was evicted meanwhile counts as asked for,
    /// but not as hit.
    pub fn take_hits(&self, feeder: &mut Feeder) {
        self.unseen(feeder.lost());
        feeder.drain(|keys| self.hits(keys));
    }

    /// Tells the policy of `hits` hits of unknown pages, older than the hits that it is told next.
    #[inline]
    pub fn unseen(&self, hits: u64) {
        if hits > 0 {
            self.policy.unseen(hits);
        }
    }

    /// Tells the policy of at most [`DRAIN_LEN`] hits.
    pub fn hits(&self, keys: &[Key]) {
        let mut hashes = [KeyHash(0); DRAIN_LEN];
        let hashes = &mut hashes[..keys.len()];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(*key);
            prefetch(self.set_of(*hash).line(0));
        }
        for (hash, key) in hashes.iter().zip(keys) {
            let set = self.set_of(*hash);
            if let Some(seen) = set.find(*key, *hash) {
                set.hit(seen.way as usize, self.hit_rule);
            }
        }
        if self.wants_feed {
            self.policy.feed(hashes);
        }
    }

    /// One access of a simulation. Whether it was a hit. After a miss the page is in the directory, unless the policy
    /// kept it out. `feeder` is the simulated thread's, as in the real cache.
    pub fn touch(&self, feeder: &mut Feeder, key: Key) -> bool {
        self.touch_hashed(feeder, key, self.hash(key))
    }

    /// Prefetches the lines of a page's set that an access may touch.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        let set = self.set(self.set_index(hash));
        (0..self.shape.stride / 8).for_each(|line| prefetch(set.line(line)));
    }

    /// [`Directory::touch`] for a caller that has the hash already.
    pub fn touch_hashed(&self, feeder: &mut Feeder, key: Key, hash: KeyHash) -> bool {
        if self.find(key, hash).is_some() {
            feeder.push(key);
            return true;
        }
        self.take_hits(feeder);
        let (SetIndex(index), mut set) = self.lock(hash);
        self.missed(SetIndex(index), &mut set, hash);
        let way = match set.free() {
            0 if self.policy.passes(index, &mut set, hash) => return false,
            0 => {
                let all = set.all();
                let way = self.policy.victim(index, &mut set, all, hash);
                self.policy.evicted(index, &mut set, way);
                way
            }
            free => free.trailing_zeros() as usize,
        };
        set.set_present(way, key, hash);
        self.policy.inserted(index, &mut set, way, hash);
        false
    }
}

/// The shape of a set of `ways` ways, or an error if no set has so many.
pub fn shape(ways: usize) -> Result<Shape> {
    let why = || Error::invalid(format!("set size {ways}"), "a set size is a multiple of 4, from 4 to 32");
    Shape::new(ways).ok_or_else(why)
}

/// A bit of [`Directory::size`], set if the sets have not all been split by the same bits. The number of sets is then
/// not a power of two times the first sets. A new cache is even (`key::even_sets`). A resize makes it uneven, and may
/// leave it so.
const UNEVEN: u64 = 1 << 63;

fn size_word(first_sets: u32, sets: u32) -> u64 {
    let mask = key::split_mask(first_sets, sets);
    let uneven = if sets == first_sets * (mask + 1) { 0 } else { UNEVEN };
    uneven | u64::from(mask) << 32 | u64::from(sets)
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_page_is_evicted() {
        for ways in [4, 8, 12, 16, 20, 32] {
            let directory = Directory::new(DirectoryConfig::fixed(ways as u64, ways, PolicyKind::Lru)).unwrap();
            let (key, mut feeder) = (|page| Key::new(1, page).unwrap(), Feeder::default());
            for page in 0..ways as u64 {
                assert!(!directory.touch(&mut feeder, key(page)));
            }
            for page in 0..ways as u64 {
                assert!(directory.touch(&mut feeder, key(page)), "{ways} ways, page {page}");
            }
            for page in 1000..5000 {
                assert!(!directory.touch(&mut feeder, key(page)));
                assert!(directory.touch(&mut feeder, key(page)));
                assert!(page < 1003 || directory.touch(&mut feeder, key(page - 1)));
                assert!(page < 1003 || directory.touch(&mut feeder, key(page - 2)));
            }
        }
    }

    #[test]
    fn odd_set_sizes_are_refused() {
        for ways in [0, 1, 6, 36] {
            assert!(Directory::new(DirectoryConfig::fixed(100, ways, PolicyKind::Lru)).is_err());
        }
    }

    /// If all pages fit, hits soon store nothing, under any policy.
    #[test]
    fn a_warm_cache_is_only_read() {
        for kind in PolicyKind::all() {
            let directory = Directory::new(DirectoryConfig::fixed(1200, 12, kind)).unwrap();
            let mut feeder = Feeder::default();
            let mut round =
                || (0..600).filter(|&page| directory.touch(&mut feeder, Key::new(1, page).unwrap())).count();
            let rounds: Vec<usize> = (0..300).map(|_| round()).collect();
            assert_eq!(rounds[299], 600, "{kind}");
            let words = || directory.words.all().iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
            let before = words();
            assert_eq!(round(), 600);
            assert_eq!(words(), before, "{kind}");
        }
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{Arc, model};

    impl Directory {
        /// Splits the only set in two. Like any split, it holds the locks of both while the pages move and the size
        /// changes.
        fn split(&self) {
            let (mut from, mut to) = (self.set(SetIndex(0)).lock(), self.set(SetIndex(1)).lock());
            for way in (0..from.ways()).filter(|&way| from.present() >> way & 1 == 1).collect::<Vec<_>>() {
                let hash = self.hash(from.key(way));
                if hash.set(1, 2, 1) == 1 {
                    to.set_frame(way, from.frame(way));
                    to.set_present(way, from.key(way), hash);
                    from.set_free(way);
                }
            }
            // Release: pairs with the Acquire in `set_index`.
            self.size.store(2 | 1 << 32, Ordering::Release);
        }
    }

    /// A thread that locks a page's set finds the page in it, although the set is split meanwhile.
    ///
    /// Seen to fail without the second look of `lock`.
    #[test]
    fn loom_directory_split_against_look_up() {
        model(|| {
            let config =
                DirectoryConfig { sets: 1, sets_max: 2, ways: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
            let directory = Arc::new(Directory::new(config).unwrap());
            let key = (0..).map(|page| Key::new(1, page).unwrap()).find(|key| key.hash().set(1, 2, 1) == 1).unwrap();
            let hash = key.hash();
            {
                let (_, mut set) = directory.lock(hash);
                set.set_frame(2, 7);
                set.set_present(2, key, hash);
            }
            let splitter = loom::thread::spawn({
                let directory = Arc::clone(&directory);
                move || directory.split()
            });
            {
                let (_, set) = directory.lock(hash);
                let way = set.find(key, hash).expect("a page does not vanish");
                assert_eq!(set.frame(way), 7);
            }
            splitter.join().unwrap();
        });
    }
}
