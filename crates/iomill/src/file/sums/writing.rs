//! [`Writing`]: whole pages on their way to the drives, with their sums. Non-goals: the I/O.

use std::collections::{BTreeMap, BTreeSet};

use super::Sums;
use super::page::UNKNOWN;
use super::zones::ZONE_PAGES;
use crate::error::Result;

/// Pages that are being written (rules 2 and 4). When this is dropped, all writes have ended. The parts are marked as
/// written before that.
#[derive(Debug)]
pub struct Writing<'a> {
    sums: &'a Sums,
    /// Page numbers in rising order, with the sums that they will have.
    pages: Vec<(u64, u32)>,
    /// The zones, by part. None for a small file.
    zones: BTreeMap<usize, BTreeSet<u64>>,
    /// How many parts count this write, or that the small file does.
    begun: usize,
    is_small: bool,
}

impl<'a> Writing<'a> {
    /// Whole pages with their sums. Nothing else writes to them, or reads them past the cache.
    pub fn begin(sums: &'a Sums, mut pages: Vec<(u64, u32)>) -> Result<Writing<'a>> {
        pages.sort_unstable();
        let mut zones: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
        let small = sums.small();
        if small.is_none() {
            for (page, _) in &pages {
                sums.load(*page)?;
                let (part, at) = sums.place(*page);
                zones.entry(part).or_default().insert(at / ZONE_PAGES);
            }
        }
        let mut writing = Writing { sums, pages, zones, begun: 0, is_small: small.is_some() };
        if let Some(small) = small {
            small.begin(|| sums.epoch())?;
            writing.begun = 1;
        }
        for (part, zones) in &writing.zones {
            sums.part(sums.parts(), *part)?.begin(zones, || sums.epoch(), || sums.marks())?;
            writing.begun += 1;
        }
        writing.pages.iter().for_each(|(page, _)| sums.set(*page, UNKNOWN));
        Ok(writing)
    }

    /// So many pages from this one on have been written.
    pub fn written(&self, first: u64, count: usize) {
        let from = self.pages.partition_point(|(page, _)| *page < first);
        let of_run = self.pages[from..].iter().take_while(|(page, _)| *page < first + count as u64);
        of_run.for_each(|(page, sum)| self.sums.set(*page, *sum));
    }

    /// All pages have been written.
    pub fn all_written(&self) {
        self.pages.iter().for_each(|(page, sum)| self.sums.set(*page, *sum));
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
