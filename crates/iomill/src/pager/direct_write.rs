//! Asynchronous writes to cached pages, by the call that makes the future. Non-goals: all other pages (`batch`).

use super::open::OpenFile;
use super::span::spans;
use crate::counters::Counter;
use crate::file::Entered;
use crate::file::split::IoRange;

impl OpenFile {
    /// Writes I/O ranges to the cache, up to the first page that is not there. Returns the number of bytes written; the
    /// general path writes the rest. Waits for nothing, and begins no I/O. An error, or a file that must become longer
    /// or take a lock first, is left to the general path.
    ///
    /// # Safety
    /// The I/O ranges' memory is readable.
    pub unsafe fn write_cached(&self, io_ranges: impl Iterator<Item = IoRange> + Clone) -> usize {
        let end =
            io_ranges.clone().map(|io_range| io_range.offset.saturating_add(io_range.len as u64)).max().unwrap_or(0);
        let Some(paged) = &self.paged else { return 0 };
        let Some(_entered) = Entered::try_enter(&self.file) else { return 0 };
        let is_simple = end <= self.file.len() && !self.file.is_plain() && self.exec().has_threads();
        // With many dirty pages a write first flushes some.
        let limits = paged.pager.limits();
        if !is_simple || self.file.check_writable().is_err() || paged.pager.dirty() > limits.dirty_pages {
            return 0;
        }
        let (mut written, mut many) = (0, Vec::new());
        paged.pager.with_local(|local| {
            for span in io_ranges.flat_map(spans) {
                let (key, hash, cache) = paged.key(span.page);
                let (within, len) = (usize::from(span.within), usize::from(span.len));
                // SAFETY: a span is within its page, and its memory is readable.
                let Some(dirty) = (unsafe { cache.write_present(key, hash, within, span.buf, len) }) else { break };
                local.hit(paged, key);
                written += len;
                if dirty > limits.set_dirty {
                    many.push(span.page);
                }
            }
            local.tally.add(Counter::BytesWritten, written as u64);
        });
        if !many.is_empty() {
            // If the flusher could not be started, the next write flushes the sets.
            let _is_left = paged.pager.flush_later(self.exec(), paged.keys(&many));
        }
        written
    }
}
