//! Lookups: methods of [`Paged`] that copy the cached bytes of a range. Non-goals: missing pages (`wave`, `complete`).

use super::Paged;
use super::local::Local;
use super::span::Span;
use crate::cache::key::{Key, KeyHash};
use crate::cache::{Cache, CacheMemory, Hint};
use crate::counters::Counter;
use crate::drive::PAGE_BYTES;
use crate::file::split::IoRange;

/// The number of lookups of a batch at one stage.
const OVERLAP: usize = 8;

impl Paged {
    /// Copies the cached bytes of one I/O range, and appends the rest to `missing`.
    ///
    /// # Safety
    /// The I/O range's memory is writable, and nothing else uses it.
    pub unsafe fn read(&self, io_range: IoRange, missing: &mut Vec<Span>) {
        // SAFETY: the caller's promise.
        unsafe { self.read_many(std::iter::once(io_range), missing) };
    }

    /// As `read`, for a range within one page that a look by its hint has not found.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_rest(&self, io_range: IoRange, missing: &mut Vec<Span>) {
        let mut spans = super::span::spans(io_range);
        let (Some(span), None) = (spans.next(), spans.next()) else {
            // SAFETY: the caller's promise.
            return unsafe { self.read(io_range, missing) };
        };
        self.pager.with_local(|local| {
            local.tally.add(Counter::BytesRead, io_range.len as u64);
            let place = self.key(span.page);
            let (key, hash, cache) = place;
            // SAFETY: as above.
            let found = self.looks_itself(cache) && unsafe { self.read_span(local, place, span) };
            if !found {
                cache.prefetch_to_fill(key, hash);
                local.missed(missing, span);
            }
        });
    }

    /// Copies a span, if the cache has its page, which is named as by `key`.
    ///
    /// # Safety
    /// As for `read`.
    pub(super) unsafe fn read_span(
        &self,
        local: &Local,
        (key, hash, cache): (Key, KeyHash, &Cache),
        span: Span,
    ) -> bool {
        // SAFETY: a span is within its page, and its memory is the caller's.
        let found = unsafe { cache.read(key, hash, span.within.into(), span.buf, span.len.into()) };
        if found {
            local.hit(self, key);
        }
        found
    }

    /// As `read`, for many I/O ranges: the processor's cache misses of several lookups overlap.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_many(&self, io_ranges: impl Iterator<Item = IoRange>, missing: &mut Vec<Span>) {
        let before = missing.len();
        let io_ranges = match self.leave_to_nodes(io_ranges, missing) {
            Err(io_ranges) => io_ranges,
            Ok(mut near) => {
                let far = missing.len();
                missing.append(&mut near);
                return self.pager.with_local(|local| {
                    local.tally.add(Counter::BytesRead, missing[far..].iter().map(|span| u64::from(span.len)).sum());
                    // SAFETY: the caller's promise.
                    unsafe { self.read_in_sets(local, missing, far) };
                });
            }
        };
        self.pager.with_local(|local| {
            let mut batch = OverlappingReads::new(self, local, missing);
            let mut bytes = 0;
            for io_range in io_ranges {
                bytes += io_range.len;
                let within = io_range.offset as usize % PAGE_BYTES;
                if io_range.len.wrapping_sub(1) < PAGE_BYTES - within {
                    let (page, len) = (io_range.offset / PAGE_BYTES as u64, io_range.len as u16);
                    // SAFETY: the caller's promise.
                    unsafe { batch.push(Span { page, within: within as u16, len, buf: io_range.buf }) };
                } else {
                    for span in super::span::spans(io_range) {
                        // SAFETY: as above.
                        unsafe { batch.push(span) };
                    }
                }
            }
            // SAFETY: as above.
            unsafe { batch.end() };
            local.tally.add(Counter::BytesRead, bytes as u64);
            if missing.len() > before {
                // SAFETY: as above.
                unsafe { self.read_in_sets(local, missing, before) };
            }
        });
    }

    /// Looks up the spans of `missing` from `first` on in their sets, and keeps those that are not cached.
    ///
    /// # Safety
    /// As for `read`, for the memory of these spans.
    #[inline(never)]
    unsafe fn read_in_sets(&self, local: &Local, missing: &mut Vec<Span>, first: usize) {
        let mut kept = first;
        for at in first..missing.len() {
            if let Some(later) = missing.get(at + OVERLAP) {
                let (_, hash, cache) = self.key(later.page);
                cache.prefetch(hash);
            }
            let span = missing[at];
            // SAFETY: the caller's promise.
            if !unsafe { self.read_span(local, self.key(span.page), span) } {
                missing[kept] = span;
                kept += 1;
            }
        }
        missing.truncate(kept);
        if missing.is_empty() {
            local.keep_spans(std::mem::take(missing));
        }
    }

    /// Whether a page is in the cache.
    pub fn is_there(&self, page: u64) -> bool {
        let (key, hash, cache) = self.key(page);
        cache.directory().find(key, hash).is_some()
    }
}

/// A lookup of a batch.
#[derive(Clone, Copy)]
struct Asking {
    key: Key,
    buf: *mut u8,
    within: u16,
    len: u16,
    /// The page's hint, from the second stage on.
    hint: Hint,
}

impl Asking {
    const NOTHING: Asking =
        Asking { key: Key::NOTHING, buf: std::ptr::null_mut(), within: 0, len: 0, hint: Hint::NOWHERE };

    fn span(&self) -> Span {
        Span { page: self.key.page(), within: self.within, len: self.len, buf: self.buf }
    }
}

/// Lookups that overlap: each is at one of three stages. First its hint is prefetched. After [`OVERLAP`] more lookups
/// the bytes that the hint points to are prefetched, with their proof. After another [`OVERLAP`] lookups they are
/// copied.
struct OverlappingReads<'a> {
    paged: &'a Paged,
    local: &'a Local,
    missing: &'a mut Vec<Span>,
    memory: &'a CacheMemory,
    /// By their number, modulo the length: those that are not copied yet.
    asked: [Asking; 2 * OVERLAP],
    /// Lookups so far.
    count: usize,
}

impl<'a> OverlappingReads<'a> {
    fn new(paged: &'a Paged, local: &'a Local, missing: &'a mut Vec<Span>) -> OverlappingReads<'a> {
        let memory = &*paged.memory;
        OverlappingReads { paged, local, missing, memory, asked: [Asking::NOTHING; 2 * OVERLAP], count: 0 }
    }

    /// Adds a span, and moves two earlier ones to their next stage.
    ///
    /// # Safety
    /// The span's memory is writable until `end`, and nothing else uses it.
    #[inline(always)]
    unsafe fn push(&mut self, span: Span) {
        let key = self.paged.zero.page_after(span.page);
        self.memory.prefetch_hint(self.paged.hints, span.page);
        let Span { within, len, buf, .. } = span;
        self.asked[self.count % (2 * OVERLAP)] = Asking { key, buf, within, len, hint: Hint::NOWHERE };
        self.count += 1;
        if self.count > OVERLAP {
            self.find(self.count - 1 - OVERLAP);
        }
        if self.count >= 2 * OVERLAP {
            // SAFETY: the caller's promise.
            unsafe { self.copy(self.count - 2 * OVERLAP) };
        }
    }

    #[inline(always)]
    fn find(&mut self, number: usize) {
        let asking = &mut self.asked[number % (2 * OVERLAP)];
        asking.hint =
            self.memory.prefetch_hinted(self.paged.hints, asking.key.page(), asking.within.into(), asking.len.into());
    }

    /// # Safety
    /// As for `push`.
    #[inline(always)]
    unsafe fn copy(&mut self, number: usize) {
        let asking = &self.asked[number % (2 * OVERLAP)];
        let (within, len) = (asking.within.into(), asking.len.into());
        // SAFETY: a span is within its page, and its memory is the caller's.
        if unsafe { self.memory.read_hinted(asking.hint, asking.key, within, asking.buf, len) } {
            self.local.hit(self.paged, asking.key);
        } else {
            self.local.missed(self.missing, asking.span());
        }
    }

    /// Moves the remaining lookups through all stages.
    ///
    /// # Safety
    /// As for `push`.
    #[inline(never)]
    unsafe fn end(&mut self) {
        (self.count.saturating_sub(OVERLAP)..self.count).for_each(|number| self.find(number));
        let first = (self.count + 1).saturating_sub(2 * OVERLAP);
        // SAFETY: the caller's promise.
        (first..self.count).for_each(|number| unsafe { self.copy(number) });
    }
}
