//! The bytes in the pages of a measured file, so that a check can detect a read that did not happen.
//!
//! Goals: the first 8 bytes of a page identify its position. The rest is incompressible, because a drive or zram that
//! compresses would be faster than with real data. Non-goals: cryptography, checking every byte.

use std::path::PathBuf;

use iomill::{Error, Result};
pub use iomill_loops::draw::{PAGE_BYTES, Rng, mix};

/// The first 8 bytes (little endian) of page `page` of the file with seed `seed`.
pub fn stamp(seed: u64, page: u64) -> u64 {
    mix(mix(seed) ^ page)
}

/// Writes the whole pattern of a page.
///
/// `bytes` must have at least one page. Only its first page is written.
pub fn fill_page(seed: u64, page: u64, bytes: &mut [u8]) {
    let stamp = stamp(seed, page);
    let mut rng = Rng::new(stamp);
    let mut word = stamp;
    for chunk in bytes.chunks_exact_mut(8).take(PAGE_BYTES / 8) {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = rng.draw();
    }
}

/// Fills the memory from which pages are written. Its bytes compress as little as those of the file. Otherwise these
/// writes would be cheaper than writes of real data.
pub(crate) fn fill_to_write(bytes: &mut [u8]) {
    for (index, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
        fill_page(u64::MAX, index as u64, page);
    }
}

/// Writes the pattern for `bytes.len()` bytes from any `offset` of a file.
pub fn fill_bytes(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut page = [0; PAGE_BYTES];
    let (mut at, mut left) = (offset, bytes);
    while !left.is_empty() {
        let within = (at % PAGE_BYTES as u64) as usize;
        let (now, rest) = left.split_at_mut((PAGE_BYTES - within).min(left.len()));
        fill_page(seed, at / PAGE_BYTES as u64, &mut page);
        now.copy_from_slice(&page[within..within + now.len()]);
        at += now.len() as u64;
        left = rest;
    }
}

/// Whether all bytes read at `offset` are the pattern.
pub fn holds(seed: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill_bytes(seed, offset, &mut expected);
    expected == bytes
}

/// The error if the bytes at `offset` are not those that were written there. `name` is the file's name or its path.
#[cold]
pub fn wrong(name: impl Into<PathBuf>, what: &str, offset: u64) -> Error {
    let why = format!("the {what} at offset {offset} is not what was written; write the file anew and run again");
    Error::damaged(name, why)
}

/// Checks the stamp of every page of a block that was read from a file with the pattern of `seed`.
pub(crate) fn check_stamps(name: &str, seed: u64, offset: u64, block: &[u8]) -> Result<()> {
    let pages = (offset / PAGE_BYTES as u64..).zip(block.chunks(PAGE_BYTES));
    match pages.into_iter().find(|(page, bytes)| stamp_in(bytes) != Some(stamp(seed, *page))) {
        Some((page, _)) => Err(wrong(name, "page", page * PAGE_BYTES as u64)),
        None => Ok(()),
    }
}

/// The stamp that a page holds; `None` if there are fewer than 8 bytes.
pub fn stamp_in(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<8>().map(|first| u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn stamps_differ_between_pages_and_files() {
        let mut seen = HashSet::new();
        for seed in [0, 1, 2, u64::MAX] {
            for page in 0..1000 {
                assert!(seen.insert(stamp(seed, page)), "seed {seed} page {page}");
            }
        }
    }

    #[test]
    fn any_stretch_of_the_pattern_can_be_checked() {
        let mut whole = vec![0; 3 * PAGE_BYTES];
        for (index, page) in whole.chunks_mut(PAGE_BYTES).enumerate() {
            fill_page(7, 10 + index as u64, page);
        }
        let base = 10 * PAGE_BYTES as u64;
        for (start, len) in [(0, 1), (128, 128), (4000, 200), (5, 3 * PAGE_BYTES - 5), (4096, 4096), (77, 0)] {
            assert!(holds(7, base + start as u64, &whole[start..start + len]), "{start} {len}");
        }
        whole[5000] ^= 1;
        assert!(!holds(7, base + 4990, &whole[4990..5010]) && !holds(8, base, &whole[..8]));
        assert!(holds(7, base + 5001, &whole[5001..5500]));
    }

    #[test]
    fn what_is_written_does_not_repeat() {
        let mut bytes = vec![0; 5 * PAGE_BYTES];
        fill_to_write(&mut bytes);
        let words: HashSet<&[u8]> = bytes.chunks(8).collect();
        assert_eq!(words.len(), 5 * PAGE_BYTES / 8);
    }

    #[test]
    fn a_page_holds_its_stamp_and_no_repetition() {
        let mut page = vec![0; PAGE_BYTES];
        fill_page(7, 42, &mut page);
        assert_eq!(stamp_in(&page), Some(stamp(7, 42)));
        let words: HashSet<&[u8]> = page.chunks(8).collect();
        assert_eq!(words.len(), PAGE_BYTES / 8);
        assert_eq!(stamp_in(&page[..7]), None);
    }
}
