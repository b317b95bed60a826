//! Reading through the cache.

use super::{Fills, Paged, Seat, Span, Want};
use crate::api::array::ArrayInner;
use crate::api::split::{Extent, Splitter};
use crate::api::state::FileState;
use crate::cache::key::{Hash, Key};
use crate::cache::{Begun, Found, Outcome, Waiter, Wrote};
use crate::counters::Id;
use crate::drive::{Class, PAGE_BYTES};
use crate::engine::Op;
use crate::error::Result;
use crate::sys::sync::Ordering;

/// Look-ups of a batch that overlap.
const OVERLAP: usize = 16;

/// How many pages ahead of the one that is worked on what filling it takes is fetched.
pub(super) const FETCH_AHEAD: usize = 4;

/// Fills the places of a batch that is not full.
const NOTHING: (Span, Key, Hash) =
    (Span { page: 0, within: 0, len: 0, buf: std::ptr::null_mut() }, Key::NOTHING, Hash(0));

/// What became of one span at first sight.
pub(super) enum Asked {
    Done,
    /// Somebody is at the page.
    Busy,
    Yours(crate::cache::Fill),
    /// The set is full.
    Full,
}

impl Paged {
    /// Copies what the cache holds of one extent; what it does not is appended to `missing`.
    ///
    /// # Safety
    /// The extent's memory is writable and nobody else's.
    pub unsafe fn read(&self, extent: Extent, missing: &mut Vec<Span>) {
        self.cached.with_seat(|seat| {
            seat.tally.add(Id::BytesRead, extent.len as u64);
            for span in super::spans(extent) {
                // SAFETY: the caller's promise.
                if !unsafe { self.read_span(seat, span) } {
                    missing.push(span);
                }
            }
        });
    }

    /// As `read`, for who has looked already whether it is one page that the cache has.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_rest(&self, extent: Extent, missing: &mut Vec<Span>) {
        let mut spans = super::spans(extent);
        if let (Some(span), None) = (spans.next(), spans.next()) {
            self.prefetch(span.page);
            self.cached.with_seat(|seat| seat.tally.add(Id::BytesRead, extent.len as u64));
            missing.push(span);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.read(extent, missing) };
    }

    /// Copies a range within one page, if the cache has it.
    ///
    /// # Safety
    /// `within + len` is at most a page, and `to` is writable for `len` bytes and nobody else's.
    #[inline(always)]
    pub unsafe fn read_page(&self, page: u64, within: usize, to: *mut u8, len: usize) -> bool {
        // A thread's first read takes the longer way.
        let (Some((key, hash)), Some(seat)) = (self.key(page), self.cached.last_seat()) else { return false };
        let Some(found) = self.cached.cache.find(key, hash) else { return false };
        // SAFETY: the caller's promise.
        let copied = unsafe { self.cached.cache.copy_found(found, within, to, len) };
        if copied {
            seat.hit(&self.cached, found, hash);
            seat.tally.add(Id::BytesRead, len as u64);
        }
        copied
    }

    /// # Safety
    /// As for `read`.
    #[inline(always)]
    unsafe fn read_span(&self, seat: &Seat, span: Span) -> bool {
        let Some((key, hash)) = self.key(span.page) else { return false };
        // SAFETY: a span is within its page, and its memory is the caller's.
        let found = unsafe { self.cached.cache.read(key, hash, span.within.into(), span.buf, span.len.into()) };
        if let Some(found) = found {
            seat.hit(&self.cached, found, hash);
        }
        found.is_some()
    }

    /// As `read`, for many extents: the processor's cache misses of several look-ups overlap.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_many(&self, extents: impl Iterator<Item = Extent>, missing: &mut Vec<Span>) {
        let cache = &self.cached.cache;
        let mut bytes = 0;
        let mut spans = extents.flat_map(super::spans);
        self.cached.with_seat(|seat| {
            loop {
                let mut batch = [NOTHING; OVERLAP];
                let mut found: [Option<Found>; OVERLAP] = [None; OVERLAP];
                let mut count = 0;
                while count < OVERLAP
                    && let Some(span) = spans.next()
                {
                    bytes += u64::from(span.len);
                    let Some((key, hash)) = self.key(span.page) else {
                        missing.push(span);
                        continue;
                    };
                    cache.prefetch(hash);
                    batch[count] = (span, key, hash);
                    count += 1;
                }
                if count == 0 {
                    break;
                }
                for ((span, key, hash), place) in batch[..count].iter().zip(&mut found) {
                    *place = cache.find(*key, *hash);
                    if let Some(found) = *place {
                        cache.prefetch_found(found, span.within.into(), span.len.into());
                    }
                }
                for ((span, _, hash), place) in batch[..count].iter().zip(&found) {
                    let copied = place.is_some_and(|found| {
                        // SAFETY: a span is within its page, and its memory is the caller's.
                        let still = unsafe { cache.copy_found(found, span.within.into(), span.buf, span.len.into()) };
                        if still {
                            seat.hit(&self.cached, found, *hash);
                        }
                        still
                    });
                    if !copied {
                        missing.push(*span);
                    }
                }
            }
            seat.tally.add(Id::BytesRead, bytes);
        });
    }

    /// Asks for one page: what became of that, and how many dirty pages its set has if that was written to.
    ///
    /// # Safety
    /// The span's memory is valid, and (for reads) nobody else's.
    unsafe fn ask(&self, seat: &Seat, want: Want, span: Span) -> (Asked, u32) {
        let Some((key, hash)) = self.key(span.page) else { return (Asked::Full, 0) };
        let cache = &self.cached.cache;
        if want != Want::Write {
            // A page to be read was not found a moment ago; the others are asked for here first.
            if want != Want::Read
                && let Some(found) = cache.find(key, hash)
            {
                if want == Want::Touch {
                    seat.hit(&self.cached, found, hash);
                }
                return (Asked::Done, 0);
            }
            let asked = match cache.begin_fill(key, hash) {
                // SAFETY: the caller's promise.
                Begun::Present if want == Want::Read && unsafe { self.read_span(seat, span) } => Asked::Done,
                Begun::Present if want == Want::Ahead => Asked::Done,
                Begun::Present if want == Want::Touch => {
                    seat.tally.add(Id::Hits, 1);
                    Asked::Done
                }
                // It goes and comes: the next round looks again.
                Begun::Present | Begun::Busy => Asked::Busy,
                Begun::Yours(fill) => Asked::Yours(fill),
                Begun::Full => Asked::Full,
            };
            return (asked, 0);
        }
        let fresh = || self.is_fresh(span.page);
        // SAFETY: a span is within its page, and its memory is the caller's.
        let wrote = unsafe { cache.write(key, hash, span.within.into(), span.buf, span.len.into(), fresh) };
        match wrote {
            Wrote::Done { dirty, was: Ok((place, way)) } => {
                seat.hit_at(&self.cached, place, way, hash);
                (Asked::Done, dirty)
            }
            Wrote::Done { dirty, was: Err(evicted) } => {
                seat.came(evicted);
                (Asked::Done, dirty)
            }
            Wrote::Busy => (Asked::Busy, 0),
            Wrote::Yours(fill) => (Asked::Yours(fill), 0),
            Wrote::Full => (Asked::Full, 0),
        }
    }

    /// Fetches ahead what filling a page will read and write.
    #[inline]
    pub(super) fn prefetch(&self, page: u64) {
        if let Some((_, hash)) = self.key(page) {
            self.cached.cache.prefetch_to_fill(hash);
        }
    }

    /// Whether a page is in the cache.
    pub fn is_there(&self, page: u64) -> bool {
        self.key(page).is_some_and(|(key, hash)| self.cached.cache.find(key, hash).is_some())
    }

    /// What to wait on while somebody is at a page.
    pub(super) fn waiter(&self, page: u64, to_flush: bool) -> Option<std::sync::Arc<Waiter>> {
        let (key, hash) = self.key(page)?;
        self.cached.cache.waiter(key, hash, to_flush)
    }
}

/// Waits as the platform can: a simulation steps.
pub(super) fn wait(array: &ArrayInner, waiter: &Waiter) -> Outcome {
    if array.has_threads() {
        return waiter.wait();
    }
    loop {
        if let Some(outcome) = waiter.outcome() {
            return outcome;
        }
        array.pause_for_io();
    }
}

/// Spans by what became of them.
#[derive(Default)]
pub(super) struct Sorted {
    pub busy: Vec<Span>,
    pub full: Vec<Span>,
}

impl FileState {
    /// Does what could not be done from the cache alone, to the end: fills, waits, bypasses. The caller is inside the gate. How many
    /// pages that were to be touched found their set full.
    ///
    /// # Safety
    /// The spans' memory is valid until this returns, and (for reads) nobody else's.
    pub unsafe fn complete(&self, paged: &Paged, want: Want, mut todo: Vec<Span>, class: Class) -> Result<usize> {
        let mut untouched = 0;
        while !todo.is_empty() {
            let count = todo.len().min(paged.cached.limits().wave_pages);
            let mut fills = Fills::new(want);
            // SAFETY: the caller's promise.
            let sorted = unsafe { self.begin_wave(paged, &todo[..count], &mut fills) };
            todo.drain(..count);
            // SAFETY: the caller's promise.
            unsafe { self.run_fills(paged, fills, class)? };
            for span in &sorted.full {
                match want {
                    // SAFETY: the caller's promise.
                    Want::Read if !unsafe { self.pass_full(paged, Op::Read, *span, class)? } => todo.push(*span),
                    // SAFETY: the caller's promise.
                    Want::Write if !unsafe { self.pass_full(paged, Op::Write, *span, class)? } => todo.push(*span),
                    Want::Read | Want::Write => {}
                    Want::Touch | Want::Ahead => untouched += 1,
                }
            }
            // Nothing of ours is unfinished: we may wait for others (rule 4 of the cache).
            for span in sorted.busy {
                if let Some(waiter) = paged.waiter(span.page, false) {
                    paged.cached.with_seat(|seat| seat.tally.add(Id::Waits, 1));
                    let outcome = wait(self.array(), &waiter);
                    // A whole page needs nothing of what could not be read.
                    if want != Want::Write || usize::from(span.len) < PAGE_BYTES {
                        outcome.map_err(|failure| self.error(failure))?;
                    }
                }
                todo.push(span);
            }
        }
        Ok(untouched)
    }

    /// Asks for the pages of a wave: what is there is done, what is ours to fill goes into `fills`.
    ///
    /// # Safety
    /// As for `complete`, until the fills have ended.
    pub(super) unsafe fn begin_wave(&self, paged: &Paged, spans: &[Span], fills: &mut Fills) -> Sorted {
        let (mut sorted, mut over) = (Sorted::default(), Vec::new());
        let set_dirty = paged.cached.limits().set_dirty;
        paged.cached.with_seat(|seat| {
            seat.tell(&paged.cached);
            let mut evictions = 0;
            for (index, &span) in spans.iter().enumerate() {
                if let Some(later) = spans.get(index + FETCH_AHEAD) {
                    paged.prefetch(later.page);
                }
                // SAFETY: the caller's promise.
                let (asked, dirty) = unsafe { paged.ask(seat, fills.want(), span) };
                if dirty > set_dirty {
                    over.push(span.page);
                }
                match asked {
                    Asked::Done => {}
                    Asked::Busy => sorted.busy.push(span),
                    Asked::Full => sorted.full.push(span),
                    Asked::Yours(fill) => {
                        evictions += u64::from(fill.evicted);
                        fills.push(fill, span);
                    }
                }
            }
            let came = fills.len() as u64;
            if came > 0 {
                paged.cached.taken.fetch_add(came, Ordering::Relaxed);
                seat.tally.add(Id::Fills, came);
                seat.tally.add(Id::Evictions, evictions);
                seat.tally.add(if fills.want() == Want::Ahead { Id::ReadAhead } else { Id::Misses }, came);
            }
        });
        self.note_dirty(paged, &over, fills.is_empty());
        sorted
    }

    /// Does one span past its full set, or makes room there; `false` asks for another round.
    ///
    /// # Safety
    /// As for `complete`.
    unsafe fn pass_full(&self, paged: &Paged, op: Op, span: Span, class: Class) -> Result<bool> {
        let key = paged.key(span.page);
        if op == Op::Write
            && let Some((_, hash)) = key
            && self.flush_set(paged, hash)?
        {
            return Ok(false);
        }
        if let Some((key, hash)) = key
            && !paged.cached.cache.begin_bypass(key, hash)
        {
            // There by now, or somebody is at it, or too many are in transit.
            self.array().pause_for_io();
            return Ok(false);
        }
        paged.cached.with_seat(|seat| {
            seat.tally.add(Id::Misses, 1);
            seat.tally.add(Id::Bypasses, 1);
        });
        if op == Op::Write {
            paged.on_its_way(span.page);
        }
        let pieces = Splitter::new(self, op, class, std::iter::once(span.extent()));
        let mut outcome = Ok(());
        // SAFETY: the caller's promise.
        let begun = unsafe {
            self.array().run_each((std::ptr::null(), 0), pieces, |_, end| {
                if outcome.is_ok() {
                    outcome = end;
                }
            })
        };
        if op == Op::Write {
            self.note_written(span.page);
        }
        if let Some((key, hash)) = key {
            paged.cached.cache.end_bypass(key, hash, outcome);
        }
        begun?;
        outcome.map_err(|failure| self.error(failure))?;
        Ok(true)
    }
}
