//! Names of cached pages, and the one hash that places them.

use std::hint::select_unpredictable;

/// The number of bits of a key that hold the page's number. The other bits hold the file's number.
const PAGE_BITS: u32 = 40;

/// The number of pages of a file that have keys: those of the longest file.
pub const FILE_PAGES: u64 = 1 << PAGE_BITS;

/// The base-2 logarithm of the number of adjacent pages that share a node: 64 KiB of pages. So one I/O still reads or
/// writes neighbours, and a call for a few pages involves few nodes.
const GROUP_BITS: u32 = 4;

/// The base-2 logarithm of the number of pages in a stretch: 64 GiB of pages. Their places form one even
/// sequence.
const STRETCH_BITS: u32 = 24;

/// The bits of a hash that choose the split set.
const SPLIT_MASK: u64 = (1 << 24) - 1;

/// The fraction of the golden ratio, in units of 2^-64, rounded to an odd number.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The base-2 logarithm of the least number of first sets. A cache with fewer sets has fewer.
const FIRST_BITS: u32 = 8;

/// The highest number of a file in the cache. Numbers begin at 1, so that no key is 0.
pub const FILE_MAX: u32 = (1 << (u64::BITS - PAGE_BITS)) - 1;

/// A page of a file, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    /// The key of no page.
    pub const NOTHING: Key = Key(0);

    /// The key of a page. `None` for pages from number 2^40 (4 PiB) on, which no file has.
    #[inline]
    pub fn new(file: u32, page: u64) -> Option<Key> {
        (page < FILE_PAGES).then(|| Key::first(file).page_after(page))
    }

    /// The key of a file's page 0.
    #[inline]
    pub fn first(file: u32) -> Key {
        debug_assert!((1..=FILE_MAX).contains(&file));
        Key(u64::from(file) << PAGE_BITS)
    }

    /// The key of a page of the same file; `self` is the key of page 0. The page is below [`FILE_PAGES`]: a number from
    /// there on would name a page of another file.
    #[inline(always)]
    pub fn page_after(self, page: u64) -> Key {
        debug_assert!(page < FILE_PAGES);
        Key(self.0 | page)
    }

    /// The key from its word, as returned by [`Key::word`].
    #[inline]
    pub fn from_word(word: u64) -> Key {
        Key(word)
    }

    /// The key as a word; never 0.
    #[inline]
    pub fn word(self) -> u64 {
        self.0
    }

    /// The file's number.
    pub fn file(self) -> u32 {
        (self.0 >> PAGE_BITS) as u32
    }

    /// The page's number in its file.
    pub fn page(self) -> u64 {
        self.0 & ((1 << PAGE_BITS) - 1)
    }

    /// The node to which the page belongs, of `nodes` nodes. It depends on nothing else, so a resize does not change
    /// it. It is independent of the page's hash, so each node's pages spread evenly over its sets.
    #[inline]
    pub fn node(self, nodes: usize) -> usize {
        (((Key(self.0 >> GROUP_BITS).mixed() >> 32) * nodes as u64) >> 32) as usize
    }

    /// The key's hash. It places the pages of one stretch of 64 GiB evenly: multiples of the golden ratio choose the
    /// base set (Knuth, The Art of Computer Programming 3, section 6.4), and pages take the split sets in turn. So a
    /// file of 85% of the cache's size stays in the cache. With random places, 6% of its pages would find their set
    /// full. Each stretch begins at a place of its own, so no stride meets the same sets in all of them.
    #[inline(always)]
    pub fn hash(self) -> KeyHash {
        let (start, page) = (Key(self.0 >> STRETCH_BITS).mixed(), self.0 & ((1 << STRETCH_BITS) - 1));
        let base = page.wrapping_mul(GOLDEN).wrapping_add(start) >> 32 << 32;
        let split = page.wrapping_add(start) & SPLIT_MASK;
        KeyHash(base | self.mixed() & !SPLIT_MASK & u64::from(u32::MAX) | split)
    }

    /// A hash of the key with bits that look random: two rounds of a multiplication folded on itself.
    #[inline(always)]
    fn mixed(self) -> u64 {
        let fold = |word: u64, by: u64| {
            let wide = u128::from(word) * u128::from(by);
            wide as u64 ^ (wide >> 64) as u64
        };
        fold(fold(self.0 ^ GOLDEN, 0xD6E8_FEB8_6659_FD93), 0xA076_1D64_78BD_642F)
    }
}

/// A key's hash. The high half chooses the base set, bits 0 to 23 choose the split set, and bits 24 to 31 are the tag.
/// Bits for other purposes come from [`KeyHash::mixed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The bits of the hash that `mask` selects, for tests that want a bad hash.
    #[inline]
    pub fn masked(self, mask: u64) -> KeyHash {
        KeyHash(self.0 & mask)
    }

    /// Bits that differ between the pages of a set, the best at the top. Successive pages of a set differ in few bits
    /// of the hash itself.
    #[inline]
    pub fn mixed(self) -> u64 {
        self.0.wrapping_mul(GOLDEN)
    }

    /// The tag: 1 to 255.
    #[inline]
    pub fn tag(self) -> u8 {
        ((self.0 >> 24) as u8).max(1)
    }

    /// The set of the page in a directory of `sets` sets, by linear hashing (Litwin 1980). Hashes spread evenly over
    /// the first `first_sets` sets. Sets 0, 1, 2... are then split in order, and each round of splits uses one more bit
    /// of the hash. `mask` has the bits by which all sets have been split ([`split_mask`]).
    ///
    /// With fewer than `first_sets` sets, each missing set is joined with another. Its number without
    /// its highest bit is the other's.
    #[inline(always)]
    pub fn set(self, first_sets: u32, sets: u32, mask: u32) -> u32 {
        let not_yet = self.even_set(first_sets, mask);
        let split_already = not_yet + first_sets * (self.0 as u32 & (mask + 1));
        // Both are equally likely, so half of the branches would be mispredicted.
        let mut set = select_unpredictable(split_already < sets, split_already, not_yet);
        while set >= sets {
            set ^= (1 << 31) >> set.leading_zeros();
        }
        set
    }

    /// [`KeyHash::set`] if all sets have been split by the bits of `mask`, and none by one more.
    #[inline(always)]
    pub fn even_set(self, first_sets: u32, mask: u32) -> u32 {
        let base = (((self.0 >> 32) * u64::from(first_sets)) >> 32) as u32;
        base + first_sets * (self.0 as u32 & mask)
    }

    /// The hash's position, from 0 to 2^32. The positions of a set's hashes form an interval, whatever the number of
    /// sets. `inverse` is [`inverse_of`] `first_sets`; it saves a division per call.
    #[inline]
    pub fn position(self, first_sets: u32, inverse: u64) -> u32 {
        let base = ((self.0 >> 32) * u64::from(first_sets)) >> 32;
        let line = base << 32 | u64::from((self.0 as u32).reverse_bits());
        ((u128::from(line) * u128::from(inverse)) >> 64) as u32
    }
}

/// The number of first sets of a directory of `sets` sets. It is small, so that the directory can shrink far by
/// halving. Times a power of two it is `sets`, or up to a 256th less, so that all sets are about equally full.
pub fn first_sets(sets: u32) -> u32 {
    sets >> sets.max(1).ilog2().saturating_sub(FIRST_BITS)
}

/// `sets` rounded down to a power of two times `first_sets`, if that is at most a 256th less; else `sets`. With a
/// rounded number a page's set is found faster.
pub fn even_sets(first_sets: u32, sets: u32) -> u32 {
    let even = first_sets.saturating_mul(split_mask(first_sets, sets) + 1);
    if even <= sets && sets - even <= sets / 256 { even } else { sets }
}

/// The factor that replaces a division by `first_sets`, in units of 2^-64, rounded down.
pub fn inverse_of(first_sets: u32) -> u64 {
    u64::MAX / u64::from(first_sets.max(1))
}

/// The bits of a hash by which all sets have been split if there are `sets` sets.
pub fn split_mask(first_sets: u32, sets: u32) -> u32 {
    (1 << (sets / first_sets).max(1).ilog2()) - 1
}

/// The origin of a set: the set from which it is split, and with which it is joined again. `set` is not 0.
pub fn origin(first_sets: u32, set: u32) -> u32 {
    if set < first_sets { set - (1 << set.ilog2()) } else { set - (first_sets << (set / first_sets).ilog2()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_file_and_page() {
        let key = Key::new(FILE_MAX, (1 << 40) - 1).unwrap();
        assert_eq!((key.file(), key.page()), (FILE_MAX, (1 << 40) - 1));
        assert_eq!(Key::from_word(key.word()), key);
        assert_eq!(Key::new(1, 1 << 40), None);
    }

    /// Runs of pages spread over sets and tags as random numbers would.
    #[test]
    fn runs_of_pages_spread() {
        let sets = 1000;
        for stride in [1, 16, 4096, 1 << 20] {
            let mut in_set = vec![0u32; sets as usize];
            let mut tags = [0u32; 256];
            for page in 0..12_000 {
                let hash = Key::new(3, page * stride).unwrap().hash();
                in_set[hash.set(sets, sets, 0) as usize] += 1;
                tags[usize::from(hash.tag())] += 1;
            }
            // Poisson with mean 12: more than 36 in a set of 1,000 has a chance of 1e-6.
            assert!(in_set.iter().all(|&n| n < 36), "stride {stride}: {:?}", in_set.iter().max());
            assert!(tags[2..].iter().all(|&n| (15..100).contains(&n)), "stride {stride}: {tags:?}");
        }
    }

    /// A file of 85% of the pages overfills hardly any set of 12 ways, and a file of 90% few. With random places, 6%
    /// and 7% of the pages would find no way.
    #[test]
    fn a_file_that_is_smaller_than_the_cache_fits() {
        for (sets, file, start) in [(300, 1, 0), (1000, 2, 77), (4096, 3, 1 << 23), (20_000, 9, 5), (100_000, 1, 0)] {
            let first = first_sets(sets);
            let even = first * (split_mask(first, sets) + 1);
            let beyond = |percent: u32| {
                let mut in_set = vec![0u32; even as usize];
                for page in 0..u64::from(even * 12 * percent / 100) {
                    let hash = Key::new(file, start + page).unwrap().hash();
                    in_set[hash.even_set(first, split_mask(first, even)) as usize] += 1;
                }
                in_set.iter().map(|&pages| pages.saturating_sub(12)).sum::<u32>()
            };
            assert_eq!(beyond(75), 0, "{sets}");
            assert!(beyond(85) < even / 300, "{sets}: {}", beyond(85));
            assert!(beyond(90) < even / 4, "{sets}: {}", beyond(90));
        }
    }

    /// Groups of pages spread over nodes, and the pages of a node over its sets.
    #[test]
    fn nodes_get_as_much_and_fill_their_sets() {
        for nodes in [2, 3, 4, 7] {
            let keys = || (0..64_000).map(|page| Key::new(9, page).unwrap());
            let mut of = vec![0; nodes];
            keys().for_each(|key| of[key.node(nodes)] += 1);
            let mean = 64_000 / nodes;
            // 4,000 groups: a deviation of less than 32 groups, or 512 pages.
            assert!(of.iter().all(|&pages| mean.abs_diff(pages) < 5 * 512), "{of:?}");
            assert!(keys().all(|key| key.node(nodes) == Key(key.0 & !15).node(nodes)), "a group stays together");
            let mut in_set = vec![0; 256];
            let mine = keys().filter(|key| key.node(nodes) == nodes - 1);
            mine.for_each(|key| in_set[key.hash().set(256, 256, 0) as usize] += 1);
            let most = mean / 256;
            assert!(in_set.iter().all(|&pages| (most / 3..most * 2).contains(&pages)), "{nodes}: {in_set:?}");
        }
        assert_eq!(Key::new(5, 77).unwrap().node(1), 0);
    }

    /// Growing by one set moves pages of one set only, and only to the new one.
    #[test]
    fn growing_splits_one_set() {
        for first in [1, 2, 5, 8, 37] {
            for sets in 1..100 {
                let from = origin(first, sets);
                for page in 0..2000 {
                    let hash = Key::new(1, page).unwrap().hash();
                    let before = hash.set(first, sets, split_mask(first, sets));
                    let after = hash.set(first, sets + 1, split_mask(first, sets + 1));
                    assert!(before < sets);
                    assert!(after == before || (before == from && after == sets), "{sets}: {before} -> {after}");
                }
            }
        }
    }

    /// If the number of sets is a power of two times the first sets, all sets are about equally full, and each has an
    /// interval of positions.
    #[test]
    fn all_sets_are_as_full() {
        for (sets, pages) in [(300, 60_000), (1000, 200_000), (4096, 800_000)] {
            let first = first_sets(sets);
            assert!((256..512).contains(&first) && sets - first * (split_mask(first, sets) + 1) <= sets / 256);
            let even = first * (split_mask(first, sets) + 1);
            let mut in_set = vec![(0, u32::MAX, 0); even as usize];
            for page in 0..pages {
                let hash = Key::new(1, page).unwrap().hash();
                let (count, low, high) = &mut in_set[hash.set(first, even, split_mask(first, even)) as usize];
                let position = hash.position(first, inverse_of(first));
                (*count, *low, *high) = (*count + 1, position.min(*low), position.max(*high));
            }
            let width = u64::from(u32::MAX) / u64::from(even) + 1;
            assert!(in_set.iter().all(|(_, low, high)| u64::from(high - low) <= width), "{sets}");
            // The mean is 200 or more, so the deviation is 14 or more.
            assert!(in_set.iter().all(|(count, ..)| (100..310).contains(count)), "{sets}");
        }
    }
}
