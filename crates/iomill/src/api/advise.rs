//! [`Advice`]: a program's knowledge of its next reads, which the cache cannot have. Non-goals: read-ahead itself
//! (`pager::ahead`).

use std::ops::{Bound, Range, RangeBounds};

use super::file::File;
use crate::drive::PAGE_BYTES;
use crate::error::Result;
use crate::pager::ahead::Pattern;

/// Advice about a range of a file, or about the next reads of a handle: [`File::advise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Read-ahead once reads are seen to be sequential. The advice of a new handle.
    Normal,
    /// Reads will be random: no read-ahead.
    Random,
    /// Reads will be sequential: read-ahead from the first miss on, in windows of twice the size.
    Sequential,
    /// The range will be read soon: background I/O reads its pages into the cache.
    WillNeed,
    /// The range will not be read for long: its pages are evicted.
    DontNeed,
}

impl File {
    /// Advises the cache about the next reads. The range is in bytes. Only speed depends on the advice. Without a cache
    /// it has no effect.
    ///
    /// `Normal`, `Random` and `Sequential` apply to this handle and its clones, for any range. `WillNeed` returns at
    /// once. Background I/O reads the pages while the file is open: for one range at most half of the cache's pages,
    /// and for all ranges and files together a 16th of the cache at a time. `DontNeed` evicts clean pages that are
    /// completely in the range. Dirty pages stay: call [`File::sync`] before.
    ///
    /// An error means that the array is closed, or that the parent process opened the file for writing.
    pub fn advise(&self, range: impl RangeBounds<u64>, advice: Advice) -> Result<()> {
        let file = self.here()?;
        file.state.exec().check_open()?;
        let Some(paged) = &file.state.paged else { return Ok(()) };
        match advice {
            Advice::Normal => file.ahead().expect(Pattern::Unknown),
            Advice::Random => file.ahead().expect(Pattern::Random),
            Advice::Sequential => file.ahead().expect(Pattern::Sequential),
            Advice::WillNeed => {
                let bytes = bytes_of(range);
                let page = PAGE_BYTES as u64;
                file.state.will_need(paged, bytes.start / page..bytes.end.div_ceil(page));
            }
            Advice::DontNeed => {
                let bytes = bytes_of(range);
                let page = PAGE_BYTES as u64;
                // The last page counts as completely in the range if the file ends in it.
                let end = if bytes.end >= file.len() { bytes.end.div_ceil(page) } else { bytes.end / page };
                let pages = bytes.start.div_ceil(page)..end;
                if !pages.is_empty() {
                    paged.pager.forget(paged.number(), pages);
                }
            }
        }
        Ok(())
    }
}

fn bytes_of(range: impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}
