//! [`Advice`]: what a program knows of its reads, and the cache cannot know. Non-goals: read-ahead itself (`pager::ahead`).

use std::ops::{Bound, Range, RangeBounds};

use super::file::File;
use crate::drive::PAGE_BYTES;
use crate::error::Result;
use crate::pager::ahead::Pattern;

/// What a program says about a range of a file, or about its next reads: [`File::advise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Read-ahead when reads turn out to be sequential. A new handle has this advice.
    Normal,
    /// Reads will be random: no read-ahead.
    Random,
    /// Reads will be sequential: read-ahead from the first one that misses, in windows that are twice as large.
    Sequential,
    /// The range will be read soon: its pages come into the cache in the background.
    WillNeed,
    /// The range will not be read for long: its pages leave the cache.
    DontNeed,
}

impl File {
    /// Tells the cache what comes next. The range is in bytes. Only speed depends on it. Without a cache it has no effect.
    ///
    /// `Normal`, `Random` and `Sequential` apply to this handle and its clones, for any range. `WillNeed` returns at once. Pages come in
    /// while the file is open, as background I/O. At most half of the cache's pages come in for one range, and of all ranges and files
    /// together a 16th of the cache at a time. `DontNeed` removes clean pages that are completely in the range. Dirty pages stay: call
    /// [`File::sync`] before.
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
