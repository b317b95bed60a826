//! The pages of the file that is read: what is in them, where they are, and the order in which loops read them.
//!
//! Goals: a read that did not happen, or brought another page, is noticed. Drives that compress gain nothing.

use std::ops::Range;

use iomill::{Error, Result};

/// The unit of all reads.
pub const PAGE_BYTES: usize = 4096;

/// Drives of the array that has the file.
pub const DRIVES: usize = 4;

/// The file is striped over the drives in blocks of this length.
pub const BLOCK_BYTES: u32 = 64 << 10;

const BLOCK_PAGES: u64 = BLOCK_BYTES as u64 / PAGE_BYTES as u64;

const SEED: u64 = 0x696f_6d69_6c6c;

/// The part that has a page of the file, and the page's offset there.
#[inline]
pub fn place(page: u64) -> (usize, u64) {
    let (block, within) = (page / BLOCK_PAGES, page % BLOCK_PAGES);
    let in_part = block / DRIVES as u64 * BLOCK_PAGES + within;
    ((block % DRIVES as u64) as usize, in_part * PAGE_BYTES as u64)
}

/// A bijection that maps near numbers far apart.
#[inline]
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The first bytes of a page, which carry its number.
#[inline]
fn first_bytes(page: u64) -> [u8; 8] {
    mix(SEED ^ page).to_le_bytes()
}

/// Writes the content of whole pages, from page `first` on.
pub fn fill(first: u64, bytes: &mut [u8]) {
    for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
        let mut word = u64::from_le_bytes(first_bytes(page));
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes());
            word = mix(word);
        }
    }
}

/// Checks that the first bytes of what was read are those of the page.
#[inline]
pub(crate) fn check(page: u64, first: [u8; 8]) -> Result<()> {
    if first == first_bytes(page) { Ok(()) } else { Err(wrong(page)) }
}

#[cold]
fn wrong(page: u64) -> Error {
    let why = format!(
        "page {page} is not what was written; the drive, its file system, or iomill lost it: please report this"
    );
    Error::damaged("the measured file", why)
}

/// The first bytes of a page. `bytes` has at least those.
#[inline]
pub(crate) fn head(bytes: &[u8]) -> [u8; 8] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// Pages of the file in a random order, which never changes. After the last one the first one comes again.
#[derive(Clone, Debug)]
pub struct Deck {
    /// Not empty.
    pages: Vec<u32>,
    next: usize,
}

impl Deck {
    /// The pages with these numbers. The range must not be empty, nor go beyond 2^32.
    pub fn shuffled(pages: Range<u32>) -> Deck {
        let mut pages: Vec<u32> = pages.collect();
        assert!(!pages.is_empty(), "a deck has a page at least");
        for last in (1..pages.len()).rev() {
            pages.swap(last, mix(last as u64) as usize % (last + 1));
        }
        Deck { pages, next: 0 }
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The next page.
    #[inline]
    pub(crate) fn draw(&mut self) -> u64 {
        let page = self.pages[self.next];
        self.next = if self.next + 1 == self.pages.len() { 0 } else { self.next + 1 };
        page.into()
    }
}

#[cfg(test)]
mod tests {
    use iomill::layout::Map;
    use iomill::{Layout, Result};

    use super::*;

    #[test]
    fn pages_are_where_the_layout_puts_them() -> Result<()> {
        let map = Map::new(Layout::Striping, &[1; DRIVES], 0)?;
        for page in [0, 1, 15, 16, 63, 64, 65, 1000, 123_456] {
            let placed = map.place(page / BLOCK_PAGES);
            let offset = (placed.block * BLOCK_PAGES + page % BLOCK_PAGES) * PAGE_BYTES as u64;
            assert_eq!(place(page), (placed.drive.into(), offset), "{page}");
        }
        Ok(())
    }

    #[test]
    fn a_page_passes_as_itself_only() {
        let mut bytes = vec![0; 2 * PAGE_BYTES];
        fill(7, &mut bytes);
        let (seventh, eighth) = bytes.split_at(PAGE_BYTES);
        assert!(check(7, head(seventh)).is_ok() && check(8, head(eighth)).is_ok());
        assert!(check(8, head(seventh)).is_err_and(|error| error.to_string().contains("page 8")));
        assert!(check(7, [0; 8]).is_err() && check(7, head(&[])).is_err());
        let mut words: Vec<&[u8]> = bytes.chunks(8).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 2 * PAGE_BYTES / 8, "nothing repeats");
    }

    #[test]
    fn a_deck_has_each_page_once_in_no_order() {
        let mut deck = Deck::shuffled(10..1010);
        let drawn: Vec<u64> = (0..1000).map(|_| deck.draw()).collect();
        assert_eq!((deck.pages(), deck.draw()), (1000, drawn[0]));
        let rising = drawn.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((400..600).contains(&rising), "{rising}");
        let mut sorted = drawn;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(10..1010));
    }
}
