//! Frequencies of recent accesses to pages: a count-min sketch (Cormode, Muthukrishnan 2005) of 4-bit counters that
//! age.
//!
//! A block of the sketch is one cache line, chosen by the hash's position ([`KeyHash::position`]). So the pages of a
//! set are counted in the same block and age together, and only their counts are ever compared. A block halves its
//! counts after a number of its own accesses, which is the sum of its first layer.
//!
//! So there is no lock, no count that all threads share, and no pass over the whole sketch. Counts are relaxed loads
//! and stores. Some are lost if two threads change a word at the same time: counts are advice. A page with counts that
//! are all saturated is not counted further.

use std::io;

use crate::cache::key::{self, KeyHash};
use crate::cache::words::Words;
use crate::sys::sync::{AtomicU64, Ordering};

/// The number of words in a block. Two words are a layer of 32 counters.
const BLOCK_WORDS: usize = 8;
const LAYERS: usize = 4;
/// The number of pages per block, in a cache of the largest size. A smaller cache has up to twice as many.
const BLOCK_PAGES: u64 = 8;
/// The number of accesses per page of the cache before the first halving. Later halvings come after half as many.
const PERIOD: u64 = 10;
const COUNT_MAX: u8 = 15;
/// The mask that clears the top bit of each counter after a shift: the bit comes from the counter's neighbour.
const HALVES: u64 = 0x7777_7777_7777_7777;

/// See the head of this file.
#[derive(Debug)]
pub struct Sketch {
    words: Words,
    /// The number of blocks in a cache of the largest size.
    blocks: u64,
    /// The directory's first sets, and the factor that replaces a division by them.
    first_sets: u32,
    inverse: u64,
    /// Low 8 bits: the number of low bits of a block's number that are dropped, because the cache is smaller than its
    /// largest size. The bits above: the sum of a block's first layer at which the block is halved.
    now: AtomicU64,
}

impl Sketch {
    /// A sketch for at most `pages_max` pages of a directory with `first_sets` first sets. It has 8 bytes per page.
    /// Untouched words take no memory.
    pub fn new(pages_max: u64, first_sets: u32) -> io::Result<Sketch> {
        let blocks = pages_max.div_ceil(BLOCK_PAGES).max(1);
        let words = Words::new(blocks as usize * BLOCK_WORDS)?;
        let inverse = key::inverse_of(first_sets);
        let sketch = Sketch { words, blocks, first_sets, inverse, now: AtomicU64::new(0) };
        sketch.resize(pages_max);
        Ok(sketch)
    }

    /// Follows a resize of the cache to `pages` pages. Pages that shared a block may now have several, or the other way
    /// round. Counts are not moved: new ones come soon.
    pub fn resize(&self, pages: u64) {
        let needed = pages.div_ceil(BLOCK_PAGES).clamp(1, self.blocks);
        let shift = (self.blocks / needed).ilog2();
        let period = (PERIOD * pages.max(1) / (self.blocks >> shift).max(1)).max(PERIOD);
        self.now.store(period << 8 | u64::from(shift), Ordering::Relaxed);
    }

    fn block(&self, hash: KeyHash, now: u64) -> &[AtomicU64; BLOCK_WORDS] {
        let index = ((u64::from(hash.position(self.first_sets, self.inverse)) * self.blocks) >> 32) >> (now & 0xFF);
        let start = index as usize * BLOCK_WORDS;
        self.words.all()[start..].first_chunk().expect("there are words for all blocks")
    }

    /// The counter of a page in each layer: the index of its word in the block, and its lowest bit in the word.
    fn counters(hash: KeyHash) -> [(usize, u32); LAYERS] {
        // Mixed, because bits of both halves of the hash have chosen the block.
        let mixed = hash.mixed();
        std::array::from_fn(|layer| {
            let bits = (mixed >> (44 + 5 * layer)) as u32;
            (2 * layer + (bits >> 4 & 1) as usize, (bits & 0xF) * 4)
        })
    }

    /// Counts an access.
    pub fn add(&self, hash: KeyHash) {
        let now = self.now.load(Ordering::Relaxed);
        let block = self.block(hash, now);
        let counters = Sketch::counters(hash);
        if least(block, counters) == COUNT_MAX {
            return;
        }
        for (word, shift) in counters {
            let before = block[word].load(Ordering::Relaxed);
            if (before >> shift & 0xF) as u8 != COUNT_MAX {
                block[word].store(before + (1 << shift), Ordering::Relaxed);
            }
        }
        let sum = sum_of(block[0].load(Ordering::Relaxed)) + sum_of(block[1].load(Ordering::Relaxed));
        if sum >= now >> 8 {
            for word in block {
                word.store(word.load(Ordering::Relaxed) >> 1 & HALVES, Ordering::Relaxed);
            }
        }
    }

    /// The number of recent accesses to a page: 0 to 15. It is more often too high than too low.
    pub fn count(&self, hash: KeyHash) -> u8 {
        least(self.block(hash, self.now.load(Ordering::Relaxed)), Sketch::counters(hash))
    }
}

fn least(block: &[AtomicU64; BLOCK_WORDS], counters: [(usize, u32); LAYERS]) -> u8 {
    let count = |(word, shift): (usize, u32)| (block[word].load(Ordering::Relaxed) >> shift & 0xF) as u8;
    counters.into_iter().map(count).min().unwrap_or(0)
}

/// The sum of the 16 counters of a word.
fn sum_of(word: u64) -> u64 {
    const EVEN: u64 = 0x0F0F_0F0F_0F0F_0F0F;
    ((word & EVEN) + (word >> 4 & EVEN)).wrapping_mul(0x0101_0101_0101_0101) >> 56
}

#[cfg(all(test, not(iomill_models)))]
// Helpers of tests may unwrap, as tests do.
#[allow(clippy::unwrap_used)]
mod tests {

    use super::*;
    use crate::cache::key::Key;

    fn hash(page: u64) -> KeyHash {
        Key::new(1, page).expect("small pages have keys").hash()
    }

    /// `sum_of` adds pairs up in a byte: 16 full counters make 240.
    #[test]
    fn sums_do_not_overflow() {
        assert_eq!(sum_of(u64::MAX), 240);
        assert_eq!(sum_of(0x1000_0000_0000_0002), 3);
    }

    #[test]
    fn frequent_pages_count_more() {
        let sketch = Sketch::new(10_000, 7).unwrap();
        for page in 0..10_000 {
            sketch.add(hash(page));
        }
        for _ in 0..5 {
            (0..1000).for_each(|page| sketch.add(hash(page)));
        }
        assert!((0..1000).all(|page| sketch.count(hash(page)) >= 6));
        let too_high = (1000..10_000).filter(|&page| sketch.count(hash(page)) > 3).count();
        assert!(too_high < 500, "{too_high}");
        let never = (20_000..30_000).filter(|&page| sketch.count(hash(page)) > 1).count();
        assert!(never < 500, "{never}");
    }

    /// A page that is no longer asked for is forgotten while other pages of its block are.
    #[test]
    fn counts_grow_old() {
        let sketch = Sketch::new(BLOCK_PAGES, 7).unwrap();
        (0..8).for_each(|_| sketch.add(hash(0)));
        assert_eq!(sketch.count(hash(0)), 8);
        let mut page = 1;
        let mut seen = vec![8];
        while *seen.last().unwrap() > 1 {
            sketch.add(hash(page % 5000 + 1));
            page += 1;
            let count = sketch.count(hash(0));
            if count < *seen.last().unwrap() {
                seen.push(count);
            }
            assert!(page < 1000, "{seen:?}");
        }
        assert!(seen.len() >= 2 && page > 40, "{seen:?} after {page}");
    }

    #[test]
    fn a_saturated_page_is_left_alone() {
        let sketch = Sketch::new(1000, 7).unwrap();
        (0..15).for_each(|_| sketch.add(hash(7)));
        assert_eq!(sketch.count(hash(7)), COUNT_MAX);
        let words = |sketch: &Sketch| sketch.words.all().iter().map(|w| w.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = words(&sketch);
        (0..10_000).for_each(|_| sketch.add(hash(7)));
        assert_eq!(words(&sketch), before);
    }

    /// A cache that is far below its largest size uses only the blocks that it needs now. Their counts last for some
    /// accesses per page.
    #[test]
    fn a_small_cache_uses_few_blocks() {
        let sketch = Sketch::new(1 << 20, 7).unwrap();
        for pages in [1, 7, 100, 5000, 1 << 20] {
            sketch.resize(pages);
            let now = sketch.now.load(Ordering::Relaxed);
            let blocks = sketch.blocks >> (now & 0xFF);
            assert!(
                blocks * BLOCK_PAGES * 2 >= pages && blocks <= pages.div_ceil(BLOCK_PAGES) * 2,
                "{pages}: {blocks}"
            );
            assert!((PERIOD..=PERIOD * BLOCK_PAGES * 2).contains(&(now >> 8)), "{pages}: {}", now >> 8);
            (0..5).for_each(|_| sketch.add(hash(pages)));
            assert!(sketch.count(hash(pages)) >= 5);
        }
    }
}
