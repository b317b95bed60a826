//! Which page is read next.
//!
//! Goals: a draw costs a multiplication, so that a loop measures only the kernel's work. Non-goals: cryptography.

/// The unit of direct I/O.
pub const PAGE_BYTES: usize = 4096;

/// Up to this number of pages, each is read once, in a shuffled order. With more pages the order is random.
const SHUFFLED_MAX: u64 = 1 << 20;

/// A small fast generator (wyrand).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// The next number.
    #[inline(always)]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// Bytes that do not compress. A drive that compresses would be faster with others.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.draw().to_le_bytes()));
    }
}

/// A bijection that maps near numbers far apart.
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Pages in an order that helps no cache and no read-ahead, each at most once.
#[derive(Debug)]
pub enum Pages {
    /// The pages that are left; the last one is the next.
    Shuffled(Vec<u32>),
    /// Enough pages that one comes twice only by accident.
    Drawn(Rng, u64),
}

impl Pages {
    /// The pages from 0 to `count`.
    pub fn new(count: u64) -> Pages {
        let mut rng = Rng::new(7);
        if count > SHUFFLED_MAX {
            return Pages::Drawn(rng, count);
        }
        let mut pages: Vec<u32> = (0..count as u32).collect();
        for last in (1..pages.len()).rev() {
            pages.swap(last, (rng.draw() % (last as u64 + 1)) as usize);
        }
        Pages::Shuffled(pages)
    }

    /// The next page; `None` if all were drawn.
    pub fn draw(&mut self) -> Option<u64> {
        match self {
            Pages::Shuffled(pages) => pages.pop().map(u64::from),
            Pages::Drawn(rng, count) => Some(rng.draw() % *count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_comes_once() {
        let mut pages = Pages::new(1000);
        let mut drawn: Vec<u64> = std::iter::from_fn(|| pages.draw()).collect();
        assert!(!drawn.is_sorted());
        drawn.sort_unstable();
        assert_eq!(drawn, (0..1000).collect::<Vec<_>>());
        let mut pages = Pages::new(1 << 30);
        assert!((0..100).all(|_| pages.draw().unwrap() < 1 << 30));
    }

    #[test]
    fn what_is_written_does_not_repeat() {
        let mut bytes = vec![0; 5 * PAGE_BYTES];
        Rng::new(3).fill(&mut bytes);
        let words: std::collections::HashSet<&[u8]> = bytes.chunks(8).collect();
        assert_eq!(words.len(), 5 * PAGE_BYTES / 8);
    }
}
