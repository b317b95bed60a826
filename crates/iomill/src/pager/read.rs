//! Look-ups: methods of [`Paged`] that copy what the cache has of a range. Non-goals: pages that are missing (`wave`, `complete`).

use super::Paged;
use super::local::Local;
use super::span::Span;
use crate::cache::SetIndex;
use crate::cache::key::{Key, KeyHash};
use crate::cache::set::Seen;
use crate::counters::Counter;
use crate::drive::PAGE_BYTES;
use crate::file::split::Extent;

/// How many look-ups of a batch are at one stage.
const OVERLAP: usize = 8;

impl Paged {
    /// Copies what the cache has of one extent, and appends the rest to `missing`.
    ///
    /// # Safety
    /// The extent's memory is writable, and nothing else uses it.
    pub unsafe fn read(&self, extent: Extent, missing: &mut Vec<Span>) {
        let extents = match self.leave_to_nodes(std::iter::once(extent), missing) {
            // SAFETY: the caller's promise.
            Ok(near) => return unsafe { self.read_many_in::<false>(near.iter().map(Span::extent), missing) },
            Err(extents) => extents,
        };
        self.pager.with_local(|local| {
            local.tally.add(Counter::BytesRead, extent.len as u64);
            for span in extents.flat_map(super::span::spans) {
                // SAFETY: the caller's promise.
                if !unsafe { self.read_span(local, span) } {
                    missing.push(span);
                }
            }
        });
    }

    /// As `read`, for a caller that has already looked for a range within one page.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_rest(&self, extent: Extent, missing: &mut Vec<Span>) {
        let mut spans = super::span::spans(extent);
        if let (Some(span), None) = (spans.next(), spans.next()) {
            self.prefetch(span.page);
            self.pager.with_local(|local| local.tally.add(Counter::BytesRead, extent.len as u64));
            missing.push(span);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.read(extent, missing) };
    }

    /// Copies a range within one page, if the cache has it. Every instruction counts here: the fewer there are, the more of the next reads
    /// fit into the processor's look-ahead, where their cache misses overlap. With `DEFAULT` there is one cache, of the default shape
    /// ([`Pager::is_default`](super::Pager::is_default)).
    ///
    /// # Safety
    /// `within + len` is at most a page. `to` is writable for `len` bytes, and nothing else uses them.
    #[inline(always)]
    pub unsafe fn read_page<const DEFAULT: bool>(
        &self,
        local: &Local,
        page: u64,
        within: usize,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some((key, hash, cache)) = self.key_to_read::<DEFAULT>(page) else { return false };
        let directory = cache.directory();
        let set = directory.set_as::<DEFAULT>(directory.set_index(hash));
        let Some(seen) = set.find(key, hash) else { return false };
        // SAFETY: the caller's promise.
        let copied = unsafe { cache.copy_seen(seen, within, to, len) };
        if copied {
            local.tally.hit(Counter::BytesRead, len as u64);
            local.note::<DEFAULT>(&self.pager, cache, seen.way, hash);
        }
        copied
    }

    /// # Safety
    /// As for `read`.
    #[inline(always)]
    pub(super) unsafe fn read_span(&self, local: &Local, span: Span) -> bool {
        let Some((key, hash, cache)) = self.key(span.page) else { return false };
        // SAFETY: a span is within its page, and its memory is the caller's.
        let seen = unsafe { cache.read(key, hash, span.within.into(), span.buf, span.len.into()) };
        if let Some(seen) = seen {
            local.hit(&self.pager, cache, seen.way, hash);
        }
        seen.is_some()
    }

    /// As `read`, for many extents: the processor's cache misses of several look-ups overlap.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_many(&self, extents: impl Iterator<Item = Extent>, missing: &mut Vec<Span>) {
        if self.pager.is_default() {
            // SAFETY: the caller's promise.
            return unsafe { self.read_many_in::<true>(extents, missing) };
        }
        match self.leave_to_nodes(extents, missing) {
            // SAFETY: as above.
            Ok(near) => unsafe { self.read_many_in::<false>(near.iter().map(Span::extent), missing) },
            // SAFETY: as above.
            Err(extents) => unsafe { self.read_many_in::<false>(extents, missing) },
        }
    }

    /// # Safety
    /// As for `read`.
    #[inline(always)]
    unsafe fn read_many_in<const DEFAULT: bool>(&self, extents: impl Iterator<Item = Extent>, missing: &mut Vec<Span>) {
        self.pager.with_local(|local| {
            let mut batch = OverlappingReads::<DEFAULT>::new(self, local, missing);
            let mut bytes = 0;
            for extent in extents {
                bytes += extent.len;
                let within = extent.offset as usize % PAGE_BYTES;
                if extent.len.wrapping_sub(1) < PAGE_BYTES - within {
                    let (page, len) = (extent.offset / PAGE_BYTES as u64, extent.len as u16);
                    // SAFETY: the caller's promise.
                    unsafe { batch.push(Span { page, within: within as u16, len, buf: extent.buf }) };
                } else {
                    for span in super::span::spans(extent) {
                        // SAFETY: as above.
                        unsafe { batch.push(span) };
                    }
                }
            }
            // SAFETY: as above.
            unsafe { batch.end() };
            local.tally.add(Counter::BytesRead, bytes as u64);
        });
    }

    /// Whether a page is in the cache.
    pub fn is_there(&self, page: u64) -> bool {
        self.key(page).is_some_and(|(key, hash, cache)| cache.directory().find(key, hash).is_some())
    }
}

/// A look-up of a batch.
#[derive(Clone, Copy)]
struct Asking {
    key: Key,
    hash: KeyHash,
    buf: *mut u8,
    set_index: SetIndex,
    within: u16,
    len: u16,
}

impl Asking {
    const NOTHING: Asking = Asking {
        key: Key::NOTHING,
        hash: KeyHash(0),
        buf: std::ptr::null_mut(),
        set_index: SetIndex(0),
        within: 0,
        len: 0,
    };

    fn span(&self) -> Span {
        Span { page: self.key.page(), within: self.within, len: self.len, buf: self.buf }
    }
}

/// Look-ups that overlap: each is at one of three stages. First its set is prefetched. After [`OVERLAP`] more look-ups the page is
/// looked up, and its bytes are prefetched. After as many again they are copied.
struct OverlappingReads<'a, const DEFAULT: bool> {
    paged: &'a Paged,
    local: &'a Local,
    missing: &'a mut Vec<Span>,
    /// By their number, modulo the length: those that are not copied yet.
    asked: [Asking; 2 * OVERLAP],
    /// What was found for them, in the same places.
    seen: [Option<Seen<'a>>; 2 * OVERLAP],
    /// Look-ups so far.
    count: usize,
    hits: u64,
}

impl<'a, const DEFAULT: bool> OverlappingReads<'a, DEFAULT> {
    fn new(paged: &'a Paged, local: &'a Local, missing: &'a mut Vec<Span>) -> OverlappingReads<'a, DEFAULT> {
        let (asked, seen) = ([Asking::NOTHING; 2 * OVERLAP], [const { None }; 2 * OVERLAP]);
        OverlappingReads { paged, local, missing, asked, seen, count: 0, hits: 0 }
    }

    /// Adds a span, and moves two earlier ones to their next stage.
    ///
    /// # Safety
    /// The span's memory is writable until `end`, and nothing else uses it.
    #[inline(always)]
    unsafe fn push(&mut self, span: Span) {
        let Some((key, hash, cache)) = self.paged.key_as::<DEFAULT>(span.page) else { return self.missing.push(span) };
        let set_index = cache.prefetch::<DEFAULT>(hash);
        let Span { within, len, buf, .. } = span;
        self.asked[self.count % (2 * OVERLAP)] = Asking { key, hash, buf, set_index, within, len };
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
        let asking = &self.asked[number % (2 * OVERLAP)];
        let cache = self.paged.pager.cache_as::<DEFAULT>(asking.key);
        // The page may have moved to another set meanwhile; then it is not found.
        let set = cache.directory().set_as::<DEFAULT>(asking.set_index);
        let seen = set.guess(asking.hash);
        if let Some(seen) = seen {
            cache.prefetch_seen(set.key_address(seen.way), seen, asking.within.into(), asking.len.into());
        }
        self.seen[number % (2 * OVERLAP)] = seen;
    }

    /// # Safety
    /// As for `push`.
    #[inline(always)]
    unsafe fn copy(&mut self, number: usize) {
        let asking = &self.asked[number % (2 * OVERLAP)];
        let cache = self.paged.pager.cache_as::<DEFAULT>(asking.key);
        let set = cache.directory().set_as::<DEFAULT>(asking.set_index);
        let seen = match self.seen[number % (2 * OVERLAP)] {
            // About one tag in a hundred is that of another page.
            Some(guessed) if !set.has_key(guessed.way, asking.key) => set.find(asking.key, asking.hash),
            guessed => guessed,
        };
        if let Some(seen) = seen
            // SAFETY: a span is within its page, and its memory is the caller's.
            && unsafe { cache.copy_seen(seen, asking.within.into(), asking.buf, asking.len.into()) }
        {
            self.hits += 1;
            self.local.note::<DEFAULT>(&self.paged.pager, cache, seen.way, asking.hash);
        } else {
            self.missing.push(asking.span());
        }
    }

    /// Moves the remaining look-ups through all stages.
    ///
    /// # Safety
    /// As for `push`.
    #[inline(never)]
    unsafe fn end(&mut self) {
        (self.count.saturating_sub(OVERLAP)..self.count).for_each(|number| self.find(number));
        // SAFETY: the caller's promise.
        ((self.count + 1).saturating_sub(2 * OVERLAP)..self.count).for_each(|number| unsafe { self.copy(number) });
        self.local.tally.add(Counter::Hits, self.hits);
    }
}
