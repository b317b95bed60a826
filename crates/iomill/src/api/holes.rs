//! [`File::next_data`]: the ranges of a file that may hold data, so that a copy can skip the others. Non-goals: making
//! holes.

use std::ops::Range;

use super::file::File;
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::exec::users_code;
use crate::file::Entered;
use crate::file::backing::Part;

/// The next data of a part: a range that may hold data, and the offset from which the part was searched for it. Between
/// the offset and the range is a hole. All are in bytes of the part.
#[derive(Clone, Copy, Default)]
struct Known {
    from: u64,
    start: u64,
    end: u64,
}

impl Known {
    /// Whether the part may hold data in a range.
    fn has_data(&mut self, part: &Part, range: Range<u64>) -> Result<bool> {
        if range.start < self.from || range.start >= self.end {
            let (start, end) = match &part.open {
                // The part is missing or empty. A read finds out which.
                None => (range.start, u64::MAX),
                Some(open) => open
                    .fs()
                    .next_data(open.handle(), range.start)
                    .map_err(|error| Error::io("look for holes in", part.path(), error))?,
            };
            *self = Known { from: range.start, start, end };
        }
        Ok(range.end > self.start)
    }
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES as u64
}

impl File {
    /// The first range at or after `offset` that may hold bytes other than zero. It has at most `most` bytes. The bytes
    /// between `offset` and the range read as zero, and take no space on the drives. `None` if no such range follows.
    /// So a copy skips holes:
    ///
    /// ```no_run
    /// # fn main() -> iomill::Result<()> {
    /// # let file = iomill::Array::open("/mnt/ssd0")?.open_file("sparse")?;
    /// # let mut buffer = vec![0; 1 << 20];
    /// let mut at = 0;
    /// while let Some(data) = file.next_data(at, buffer.len() as u64)? {
    ///     let len = (data.end - data.start) as usize;
    ///     file.read_at(&mut buffer[..len], data.start)?;
    ///     at = data.end;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The call first writes dirty pages to the drives. Ranges are made of whole blocks. If the file system of a drive
    /// reports no holes, all of its bytes are data. Writes at the same time may be seen or not.
    pub fn next_data(&self, offset: u64, most: u64) -> Result<Option<Range<u64>>> {
        users_code::check_may_block("next_data")?;
        let here = self.here()?;
        here.state.write_back(&here.reported)?;
        let file = &here.state.file;
        let _entered = Entered::enter(file)?;
        let len = file.len();
        if offset >= len || most == 0 {
            return Ok(None);
        }
        if file.is_list() || file.is_small() || file.parts().is_empty() {
            return Ok(Some(offset..len.min(offset.saturating_add(most))));
        }
        let mut known = vec![Known::default(); file.parts().len()];
        let (mut at, mut found): (u64, Option<u64>) = (offset, None);
        let end = |start: u64| len.min(start.saturating_add(most));
        while at < found.map_or(len, end) {
            let (part, place) = file.locate(at);
            let left = place.left.min(len - at);
            let has_data = known[place.part].has_data(part, place.offset..place.offset + left)?
                // A drive that has lost bytes may report a hole in their place. A read finds that out.
                || file.sums().map_or(Ok(false), |sums| sums.has_some(page_of(at)..page_of(at + left - 1) + 1))?;
            match (has_data, found) {
                (true, None) => found = Some(at),
                (false, Some(_)) => break,
                _ => {}
            }
            at += left;
        }
        Ok(found.map(|start| start..end(start).min(at)))
    }
}
