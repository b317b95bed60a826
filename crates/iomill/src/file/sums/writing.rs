//! [`Writing`]: whole pages on their way to the drives, with their sums. Non-goals: the I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::Sums;
use super::page::{CHUNK_PAGES, Chunk, UNKNOWN};
use super::zones::ZONE_PAGES;
use crate::error::Result;

/// Pages that are being written (rules 2 and 4). When this is dropped, all writes have ended. The parts are marked as
/// written before that.
#[derive(Debug)]
pub struct Writing<'a> {
    sums: &'a Sums,
    /// Page numbers in rising order, with the sums that they will have.
    pages: Vec<(u64, u32)>,
    /// None for a small file.
    stretches: Vec<Stretch>,
    /// The zones, by part. None for a small file.
    zones: BTreeMap<usize, BTreeSet<u64>>,
    /// How many parts count this write, or that the small file does.
    begun: usize,
    is_small: bool,
}

/// Pages of one block, one after the other, with sums in one page of sums.
#[derive(Debug)]
struct Stretch {
    /// The index of its first page. It ends where the next one begins.
    first: usize,
    chunk: Arc<Chunk>,
    /// Where the sum of its first page is.
    at: u64,
}

impl<'a> Writing<'a> {
    /// Whole pages in rising order with their sums, which may be [`UNKNOWN`] until `know`. Nothing else writes to them,
    /// or reads them past the cache.
    pub fn begin(sums: &'a Sums, pages: Vec<(u64, u32)>) -> Result<Writing<'a>> {
        debug_assert!(pages.is_sorted());
        let mut writing = Writing::new(sums, pages, BTreeMap::new(), sums.small().is_some());
        match sums.small() {
            Some(small) => {
                small.begin(|| sums.epoch())?;
                writing.begun = 1;
            }
            None => writing.load()?,
        }
        writing.begin_zones()?;
        writing.set(0..writing.pages.len(), |_| UNKNOWN);
        Ok(writing)
    }

    /// A cut, after which the `unused` pages of each part are zeros: ranges in rising order. Their zones are marked, and
    /// busy until the result is dropped. `None` if there is nothing to cut.
    pub fn of_cut(sums: &'a Sums, unused: &[Vec<Range<u64>>]) -> Result<Option<Writing<'a>>> {
        let zones = sums.zones_of_cut(unused)?;
        if zones.is_empty() {
            return Ok(None);
        }
        let mut writing = Writing::new(sums, Vec::new(), zones, false);
        writing.begin_zones()?;
        Ok(Some(writing))
    }

    fn new(
        sums: &'a Sums,
        pages: Vec<(u64, u32)>,
        zones: BTreeMap<usize, BTreeSet<u64>>,
        is_small: bool,
    ) -> Writing<'a> {
        Writing { sums, pages, stretches: Vec::new(), zones, begun: 0, is_small }
    }

    fn begin_zones(&mut self) -> Result<()> {
        let sums = self.sums;
        for (part, zones) in &self.zones {
            sums.part(sums.parts(), *part)?.begin(zones, || sums.epoch(), || sums.marks())?;
            self.begun += 1;
        }
        Ok(())
    }

    /// Loads the sums of the pages.
    fn load(&mut self) -> Result<()> {
        let (sums, pages) = (self.sums, &self.pages);
        let mut first = 0;
        while let Some((page, _)) = pages.get(first) {
            let (part, at) = sums.place(*page);
            let (chunk, at_sum) = (at / CHUNK_PAGES, at % CHUNK_PAGES);
            let of_part = sums.part(sums.parts(), part)?;
            let chunk = of_part.chunk(chunk, sums.pages_of(part))?;
            of_part.check_memory()?;
            self.zones.entry(part).or_default().insert(at / ZONE_PAGES);
            self.stretches.push(Stretch { first, chunk, at: at_sum });
            let most = (sums.block_pages - page % sums.block_pages).min(CHUNK_PAGES - at_sum);
            let follow = pages[first..].iter().zip(*page..page + most).take_while(|((own, _), next)| own == next);
            first += follow.count();
        }
        Ok(())
    }

    /// Sets the sums of pages, by their indexes.
    fn set(&self, indexes: Range<usize>, sum: impl Fn(u32) -> u32) {
        if self.is_small {
            return self.pages[indexes].iter().for_each(|(page, own)| self.sums.small.set(*page, sum(*own)));
        }
        let begin = self.stretches.partition_point(|stretch| stretch.first <= indexes.start).saturating_sub(1);
        for (at, stretch) in self.stretches.iter().enumerate().skip(begin) {
            let end = self.stretches.get(at + 1).map_or(self.pages.len(), |next| next.first).min(indexes.end);
            let start = stretch.first.max(indexes.start);
            if start >= end {
                return;
            }
            for (place, (_, own)) in (stretch.at + (start - stretch.first) as u64..).zip(&self.pages[start..end]) {
                stretch.chunk.set(place, sum(*own));
            }
        }
    }

    /// The page with this index will have this sum.
    pub fn know(&mut self, index: usize, sum: u32) {
        self.pages.iter_mut().skip(index).take(1).for_each(|(_, own)| *own = sum);
    }

    /// So many pages from this one on have been written.
    pub fn written(&self, first: u64, count: usize) {
        let begin = self.pages.partition_point(|(page, _)| *page < first);
        let of_run = self.pages[begin..].iter().take_while(|(page, _)| *page < first + count as u64);
        self.set(begin..begin + of_run.count(), |own| own);
    }

    /// All pages have been written.
    pub fn all_written(&self) {
        self.set(0..self.pages.len(), |own| own);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let epoch = || self.sums.epoch();
        if self.is_small && self.begun > 0 {
            self.sums.small.end(epoch);
        }
        for (part, zones) in self.zones.iter().take(self.begun) {
            self.sums.parts().iter().skip(*part).take(1).for_each(|part| part.end(zones, epoch));
        }
    }
}
