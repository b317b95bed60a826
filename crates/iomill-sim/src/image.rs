//! The bytes of one file, stored sparsely, and the space that it takes.
//!
//! Goals: holes and large allocations cost nothing; copies share pages. Non-goals: durability (see `disk`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A page: the unit that drives write atomically, unless sectors tear.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A sector: the unit that no drive tears.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Splits `len` bytes from `offset` on at multiples of `granule`. Returns the number of each granule, and the range of
/// the bytes in it.
pub(crate) fn granules(offset: u64, len: usize, granule: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let room = granule - at % granule;
        let start = done;
        done = len.min(start + room as usize);
        Some((at / granule, start..done))
    })
}

/// The pages of a file that have space on the drive, as runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    /// The end of each run, by its first page. Runs are not empty and do not touch.
    runs: BTreeMap<u64, u64>,
}

impl Space {
    /// The number of pages of `start..end` without space.
    pub fn missing(&self, start: u64, end: u64) -> u64 {
        let mut missing = end.saturating_sub(start);
        for (&first, &after) in self.runs.range(..end).rev() {
            if after <= start {
                break;
            }
            missing -= after.min(end) - first.max(start);
        }
        missing
    }

    /// Allocates the space of `start..end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return;
        }
        while let Some((&first, &after)) = self.runs.range(..=end).next_back() {
            if after < start {
                break;
            }
            self.runs.remove(&first);
            start = start.min(first);
            end = end.max(after);
        }
        self.runs.insert(start, end);
    }

    /// Frees the space from page `end` on.
    pub fn cut(&mut self, end: u64) {
        while let Some((&first, &after)) = self.runs.last_key_value() {
            if after <= end {
                break;
            }
            self.runs.remove(&first);
            if first < end {
                self.runs.insert(first, end);
            }
        }
    }

    /// Frees the space of `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        let rest: Vec<(u64, u64)> = self.runs.range(..end).map(|(&first, &after)| (first, after)).collect();
        for (first, after) in rest.into_iter().filter(|(_, after)| *after > start) {
            self.runs.remove(&first);
            if first < start {
                self.runs.insert(first, start);
            }
            if after > end {
                self.runs.insert(end, after);
            }
        }
    }

    /// The number of pages with space.
    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|(first, after)| after - first).sum()
    }
}

type Page = [u8; PAGE_BYTES as usize];

/// One state of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    len: u64,
    /// The pages that were written. All others read as zero. No page begins at or after `len`. Bytes of the last page
    /// after `len` are zero.
    pages: BTreeMap<u64, Arc<Page>>,
    space: Space,
}

impl Image {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Reads up to the end of the file. Returns the number of bytes.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (number, range) in granules(offset, len, PAGE_BYTES) {
            let start = ((offset + range.start as u64) % PAGE_BYTES) as usize;
            match self.pages.get(&number) {
                Some(page) => buf[range.clone()].copy_from_slice(&page[start..start + range.len()]),
                None => buf[range].fill(0),
            }
        }
        len
    }

    /// Writes within the file's length, and drops bytes beyond it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let len = self.len.saturating_sub(offset).min(bytes.len() as u64) as usize;
        for (number, range) in granules(offset, len, PAGE_BYTES) {
            let start = ((offset + range.start as u64) % PAGE_BYTES) as usize;
            let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
            Arc::make_mut(page)[start..start + range.len()].copy_from_slice(&bytes[range]);
        }
        if len > 0 {
            self.space.insert(offset / PAGE_BYTES, (offset + len as u64).div_ceil(PAGE_BYTES));
        }
    }

    /// Makes the file at least `len` long.
    pub fn extend(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Cuts the file or extends it with a hole.
    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            drop(self.pages.split_off(&len.div_ceil(PAGE_BYTES)));
            self.space.cut(len.div_ceil(PAGE_BYTES));
            let tail = (len % PAGE_BYTES) as usize;
            if tail > 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE_BYTES))
            {
                Arc::make_mut(page)[tail..].fill(0);
            }
        }
        self.len = len;
    }

    /// Frees the space of whole pages. They read as zero.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let (first, after) = (offset.div_ceil(PAGE_BYTES), (offset + len) / PAGE_BYTES);
        let gone: Vec<u64> = self.pages.range(first..after.max(first)).map(|(page, _)| *page).collect();
        gone.iter().for_each(|page| drop(self.pages.remove(page)));
        self.space.remove(first, after.max(first));
    }

    /// Allocates the space of a range, and makes the file at least that long.
    pub fn allocate(&mut self, offset: u64, len: u64) {
        self.space.insert(offset / PAGE_BYTES, (offset + len).div_ceil(PAGE_BYTES));
        self.extend(offset + len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_counts_like_a_set() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut space = Space::default();
        let mut model = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let start = rng.u64(0..100);
            let end = start + rng.u64(0..20);
            assert_eq!(space.missing(start, end), (start..end).filter(|page| !model.contains(page)).count() as u64);
            if rng.u8(0..5) == 0 {
                space.remove(start, end);
                model.retain(|page| *page < start || *page >= end);
            } else if rng.u8(0..5) == 0 {
                space.cut(end);
                model.retain(|page| *page < end);
            } else {
                space.insert(start, end);
                model.extend(start..end);
            }
            assert_eq!(space.pages(), model.len() as u64);
        }
    }

    #[test]
    fn image_behaves_like_a_vector() {
        let mut rng = fastrand::Rng::with_seed(8);
        let mut image = Image::default();
        let mut model: Vec<u8> = Vec::new();
        for _ in 0..2000 {
            let offset = rng.usize(0..20_000);
            let len = rng.usize(0..9_000);
            match rng.u8(0..4) {
                0 => {
                    image.set_len(offset as u64);
                    model.resize(offset, 0);
                }
                1 => {
                    image.allocate(offset as u64, len as u64);
                    model.resize(model.len().max(offset + len), 0);
                }
                2 => {
                    let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
                    image.extend((offset + len) as u64);
                    image.write(offset as u64, &bytes);
                    model.resize(model.len().max(offset + len), 0);
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
                _ => {
                    let mut buf = vec![1; len];
                    let read = image.read(offset as u64, &mut buf);
                    let expected = &model[offset.min(model.len())..(offset + len).min(model.len())];
                    assert_eq!(&buf[..read], expected);
                }
            }
            assert_eq!(image.len(), model.len() as u64);
        }
    }
}
