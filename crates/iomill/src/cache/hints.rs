//! Hints: the frame in which a page probably is. A hit begins here, and needs no hash, no set and no policy.
//!
//! All caches share one table, with two to four entries per page. The pages of a file have adjacent entries, from a
//! place that depends on the file's number. So neighbours share cache lines, and the pages of a file of up to twice the
//! cache's size share no entry with each other. Pages that do share an entry take it from each other: the entry is the
//! last found page's, and the others are found in their sets. A hint is never a proof (`occupants` has that), so it may
//! be lost, out of date, or another page's.

use std::io;

use super::key::Key;
use super::words::Words;
use crate::sys::sync::{AtomicU32, Ordering};

/// The number of entries per page of the cache, before rounding down to a power of two.
const SHARE: u64 = 4;
/// The base-2 logarithm of the fewest entries.
const LEAST_BITS: u32 = 6;

/// The table.
#[derive(Debug)]
pub struct Hints {
    /// Each holds a [`Hint`].
    entries: Words<AtomicU32>,
    /// The length of the table now, minus 1. The length is a power of two, and at most that of `entries`.
    mask: AtomicU32,
}

/// The value of an entry: a frame's number, doubled, or 0. The doubled number is the index of the frame's key among the
/// words of `occupants`, so that a hit computes less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(u32);

impl Hint {
    /// The hint that names no frame.
    pub const NOWHERE: Hint = Hint(0);

    /// The hint that names a frame.
    #[inline(always)]
    pub fn of(frame: u32) -> Hint {
        debug_assert!(frame < 1 << 31, "there are no more frames");
        Hint(2 * frame)
    }

    /// The frame's number, or 0.
    #[inline(always)]
    pub fn frame(self) -> u32 {
        self.0 / 2
    }

    /// Twice the frame's number.
    #[inline(always)]
    pub fn doubled(self) -> usize {
        self.0 as usize
    }
}

/// The index of a file's first entry, before it is masked by the length.
#[derive(Clone, Copy, Debug)]
pub struct HintBase(u32);

/// The base-2 logarithm of the length of a table for `pages` pages.
fn bits_of(pages: u64) -> u32 {
    (pages * SHARE).max(1).ilog2().clamp(LEAST_BITS, 31)
}

impl Hints {
    /// An empty table for a cache of `pages` pages now, and `pages_max` ever.
    pub fn new(pages: u64, pages_max: u64) -> io::Result<Hints> {
        let entries = Words::new(1 << bits_of(pages_max.max(pages)))?;
        Ok(Hints { entries, mask: AtomicU32::new((1 << bits_of(pages)) - 1) })
    }

    /// The place of a file's first hint. Files with successive numbers are far apart in a table of the greatest length
    /// (Fibonacci hashing, Knuth 1973).
    pub fn base(&self, file: u32) -> HintBase {
        let bits = self.entries.all().len().ilog2();
        HintBase(file.wrapping_mul(0x9E37_79B9) >> (32 - bits))
    }

    /// Changes the number of pages, to at most `pages_max`. If the length changes, most hints are lost. The memory of
    /// entries that are no longer used returns to the system.
    pub fn resize(&self, pages: u64) -> io::Result<()> {
        let len = 1usize << bits_of(pages);
        assert!(len <= self.entries.all().len(), "the table is too short");
        let mask = len as u32 - 1;
        let before = self.mask.swap(mask, Ordering::Relaxed);
        if mask < before { self.entries.release_from(len) } else { Ok(()) }
    }

    /// The entry of a page.
    #[inline(always)]
    pub fn entry(&self, base: HintBase, page: u64) -> &AtomicU32 {
        let at = base.0.wrapping_add(page as u32) & self.mask.load(Ordering::Relaxed);
        let all = self.entries.all();
        debug_assert!((at as usize) < all.len());
        // SAFETY: `resize` keeps `mask` below the number of entries.
        unsafe { all.get_unchecked(at as usize) }
    }

    /// A page's hint.
    #[inline(always)]
    pub fn get(&self, base: HintBase, page: u64) -> Hint {
        Hint(self.entry(base, page).load(Ordering::Relaxed))
    }

    /// Notes a page's frame (rule 3 of `occupants`).
    #[inline]
    pub fn set(&self, key: Key, frame: u32) {
        let entry = self.entry(self.base(key.file()), key.page());
        // Loaded first: a store to a line that other processors read costs more than a load.
        let Hint(hint) = Hint::of(frame);
        if entry.load(Ordering::Relaxed) != hint {
            entry.store(hint, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    /// Files have places of their own, and the pages of a file of up to the table's length share no entry.
    #[test]
    fn pages_have_entries_of_their_own() {
        for (pages, pages_max) in
            [1u64, 12, 1000, 1 << 20].into_iter().flat_map(|pages| [(pages, pages), (pages, 2 * pages)])
        {
            let hints = Hints::new(pages, pages_max).unwrap();
            let len = u64::from(hints.mask.load(Ordering::Relaxed)) + 1;
            assert!(len.is_power_of_two() && len <= (SHARE * pages).max(1 << LEAST_BITS) && len * 2 > SHARE * pages);
            let different = |places: &mut dyn Iterator<Item = (u32, u64)>| {
                let at = |(file, page)| std::ptr::from_ref(hints.entry(hints.base(file), page)).addr();
                let mut all: Vec<usize> = places.map(at).collect();
                all.sort_unstable();
                all.dedup();
                all.len() as u64
            };
            assert_eq!(different(&mut (0..len.min(5000)).map(|page| (7, page))), len.min(5000));
            // Eight files that together fill the cache share no entry, and few if the table is shorter than it may
            // become.
            let each = pages / 8;
            let shared = 8 * each - different(&mut (1..=8).flat_map(|file| (0..each).map(move |page| (file, page))));
            assert!(
                shared <= if pages == pages_max { 0 } else { each },
                "{pages} of {pages_max} pages: {shared} are shared"
            );
        }
    }

    #[test]
    fn a_change_of_the_length_only_loses_hints() {
        let hints = Hints::new(1000, 100_000).unwrap();
        let key = Key::new(3, 77).unwrap();
        hints.set(key, 9);
        assert_eq!(hints.get(hints.base(3), 77), Hint::of(9));
        for pages in [100_000, 1, 1000] {
            hints.resize(pages).unwrap();
            assert!([0, 9].contains(&hints.get(hints.base(3), 77).frame()));
            hints.set(key, 9);
            assert_eq!(hints.get(hints.base(3), 77), Hint::of(9));
        }
    }
}
