//! Summaries: the list of the granules of a region, on its drive. An index is made from them. Rules S1 and S2 of
//! `docs/origin.md`. Non-goals: reading and writing them (`append`, `load`).
//!
//! A page of a summary has little-endian numbers: a checksum of the rest, a magic number, the drive's id (16 bytes),
//! the number and the salt of the region's life, the region, the page. The number of entries and their length follow.
//! Then come the entries. An entry is the tag of a granule and its sums.

use twox_hash::XxHash3_64;

use crate::geometry::{Geometry, SUMMARY_HEAD_BYTES};
use crate::identity::{PAGE_BYTES, PAGES_MAX, Sums};

const MAGIC: u64 = u64::from_le_bytes(*b"iomill/1");

/// The time from one emptying of a region to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Grows with each life of a region of the drive. Never 0.
    pub number: u64,
    /// Random, so that a page from an earlier use of the drive is no page of this life.
    pub salt: u64,
}

/// A granule in a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub tag: u64,
    pub sums: Sums,
}

/// The place of a page of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub drive: u128,
    pub region: u32,
    pub page: u32,
}

/// The words of an entry, in summaries and indexes.
pub fn words_of(entry: &Entry, pages: usize) -> impl Iterator<Item = u64> {
    let pairs = entry.sums.chunks(2).take(pages.div_ceil(2));
    let pairs = pairs.map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect::<Vec<_>>();
    std::iter::once(entry.tag).chain(pairs)
}

/// The sums, two in each word.
pub fn sums_of(words: impl Iterator<Item = u64>) -> Sums {
    let mut sums = [0; PAGES_MAX];
    for (pair, word) in sums.chunks_mut(2).zip(words) {
        pair[0] = word as u32;
        pair[1] = (word >> 32) as u32;
    }
    sums
}

/// Writes a page of a summary into `out`, which is one page. Rule S1: the page has its place and its life.
pub fn encode(out: &mut [u8], geometry: &Geometry, at: Place, life: Life, entries: &[Entry]) {
    out.fill(0);
    let mut cursor = 8;
    let mut put = |bytes: &[u8]| {
        out[cursor..cursor + bytes.len()].copy_from_slice(bytes);
        cursor += bytes.len();
    };
    put(&MAGIC.to_le_bytes());
    put(&at.drive.to_le_bytes());
    put(&life.number.to_le_bytes());
    put(&life.salt.to_le_bytes());
    put(&at.region.to_le_bytes());
    put(&at.page.to_le_bytes());
    put(&(entries.len() as u32).to_le_bytes());
    put(&(geometry.entry_words() as u32 * 8).to_le_bytes());
    for entry in entries {
        words_of(entry, geometry.pages()).for_each(|word| put(&word.to_le_bytes()));
    }
    let sum = XxHash3_64::oneshot(&out[8..PAGE_BYTES]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Reads a page of a summary. Rule S2: `None` unless all of it is as it was written, for this place.
pub fn decode(page: &[u8], geometry: &Geometry, at: Place) -> Option<(Life, Vec<Entry>)> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| page[at + n]));
    if page.len() != PAGE_BYTES || word(0) != XxHash3_64::oneshot(&page[8..]) || word(8) != MAGIC {
        return None;
    }
    let drive = u128::from(word(16)) | u128::from(word(24)) << 64;
    let life = Life { number: word(32), salt: word(40) };
    let (region, number) = (word(48) as u32, (word(48) >> 32) as u32);
    let (count, entry_bytes) = (word(56) as u32, (word(56) >> 32) as usize);
    let found = Place { drive, region, page: number };
    if found != at
        || life.number == 0
        || entry_bytes != geometry.entry_words() * 8
        || count > geometry.entries_of_page()
    {
        return None;
    }
    let entry = |n: u32| {
        let begin = SUMMARY_HEAD_BYTES + n as usize * entry_bytes;
        let sums = (1..geometry.entry_words()).map(|n| word(begin + 8 * n));
        Entry { tag: word(begin), sums: sums_of(sums) }
    };
    Some((life, (0..count).map(entry).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Geometry, Place, Life, Vec<Entry>) {
        let geometry = Geometry::new(16_384, 1 << 20, 3).unwrap();
        let entry = |n: u32| Entry { tag: u64::from(n) + 1, sums: sums_of([u64::from(n) << 33 | 5, 9].into_iter()) };
        let entries = (0..40).map(entry).collect();
        (geometry, Place { drive: 1 << 100 | 7, region: 2, page: 0 }, Life { number: 9, salt: 4 }, entries)
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let (geometry, at, life, entries) = sample();
        let mut page = vec![1; PAGE_BYTES];
        encode(&mut page, &geometry, at, life, &entries);
        assert_eq!(decode(&page, &geometry, at), Some((life, entries)));
    }

    #[test]
    fn a_page_with_a_wrong_bit_or_in_another_place_is_none() {
        let (geometry, at, life, entries) = sample();
        let mut page = vec![0; PAGE_BYTES];
        encode(&mut page, &geometry, at, life, &entries);
        for bit in 0..PAGE_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&page, &geometry, at), None, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        for elsewhere in [Place { drive: 7, ..at }, Place { region: 1, ..at }, Place { page: 1, ..at }] {
            assert_eq!(decode(&page, &geometry, elsewhere), None);
        }
        let other = Geometry::new(32_768, 1 << 20, 3).unwrap();
        assert_eq!(decode(&page, &other, at), None);
        assert_eq!(decode(&[0; PAGE_BYTES], &geometry, at), None);
        assert_eq!(decode(&page[..100], &geometry, at), None);
    }

    #[test]
    fn a_full_page_has_room_for_its_entries() {
        for granule in [4096, 8192, 16_384, 32_768, 65_536] {
            let geometry = Geometry::new(granule, 4 << 20, 3).unwrap();
            let at = Place { drive: 1, region: 0, page: 0 };
            let sums = std::array::from_fn(|n| if n < geometry.pages() { n as u32 + 1 } else { 0 });
            let entries: Vec<_> = (0..geometry.entries_of_page()).map(|n| Entry { tag: n.into(), sums }).collect();
            let mut page = vec![0; PAGE_BYTES];
            encode(&mut page, &geometry, at, Life { number: 1, salt: 1 }, &entries);
            assert_eq!(decode(&page, &geometry, at).unwrap().1, entries);
        }
    }
}
