//! Reading through the cache.

use std::collections::VecDeque;
use std::ops::Deref;

use super::flush::Over;
use super::{Fills, Paged, Seat, Span, Want};
use crate::api::array::ArrayInner;
use crate::api::split::{Extent, Splitter};
use crate::api::state::FileState;
use crate::cache::key::{Hash, Key};
use crate::cache::set::Seen;
use crate::cache::{Begun, Cache, Came, Fill, Outcome, Place, Waiter, Wrote};
use crate::counters::Id;
use crate::drive::{Class, PAGE_BYTES};
use crate::engine::Op;
use crate::error::Result;
use crate::sys::sync::Ordering;

/// Look-ups at one stage of a batch.
const OVERLAP: usize = 8;

/// How many pages ahead of the one that is worked on what filling it takes is fetched.
pub(super) const FETCH_AHEAD: usize = 4;

/// What became of one span at first sight.
pub(super) enum Asked {
    Done,
    /// Somebody is at the page.
    Busy,
    Yours(Fill),
    /// The set is full.
    Full,
}

/// What a page's set wants after the page was asked for.
pub(super) enum Wants {
    Nothing,
    /// It has many dirty pages.
    Flush,
    /// A clean page had to go in the place of a dirty one.
    FlushNow,
}

impl Paged {
    /// Copies what the cache holds of one extent; what it does not is appended to `missing`.
    ///
    /// # Safety
    /// The extent's memory is writable and nobody else's.
    pub unsafe fn read(&self, extent: Extent, missing: &mut Vec<Span>) {
        let extents = match self.leave_to_nodes(std::iter::once(extent), missing) {
            // SAFETY: the caller's promise.
            Ok(near) => return unsafe { self.read_many_in::<false>(near.iter().map(Span::extent), missing) },
            Err(extents) => extents,
        };
        self.cached.with_seat(|seat| {
            seat.tally.add(Id::BytesRead, extent.len as u64);
            for span in extents.flat_map(super::spans) {
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

    /// Copies a range within one page, if the cache has it. Every instruction counts here: the processor overlaps a read's cache
    /// misses with those of as many reads after it as it can look ahead. With `DEFAULT` there is one cache, of the default shape
    /// ([`Cached::is_default`](super::Cached::is_default)).
    ///
    /// # Safety
    /// `within + len` is at most a page, and `to` is writable for `len` bytes and nobody else's.
    #[inline(always)]
    pub unsafe fn read_page<const DEFAULT: bool>(
        &self,
        seat: &Seat,
        page: u64,
        within: usize,
        to: *mut u8,
        len: usize,
    ) -> bool {
        let Some((key, hash, cache)) = self.key_to_read::<DEFAULT>(page) else { return false };
        let directory = cache.directory();
        let set = directory.set_as::<DEFAULT>(directory.place(hash));
        let Some(seen) = set.find(key, hash) else { return false };
        // SAFETY: the caller's promise.
        let copied = unsafe { cache.copy_seen(seen, within, to, len) };
        if copied {
            seat.tally.hit(Id::BytesRead, len as u64);
            seat.note::<DEFAULT>(&self.cached, cache, seen.way, hash);
        }
        copied
    }

    /// # Safety
    /// As for `read`.
    #[inline(always)]
    unsafe fn read_span(&self, seat: &Seat, span: Span) -> bool {
        let Some((key, hash, cache)) = self.key(span.page) else { return false };
        // SAFETY: a span is within its page, and its memory is the caller's.
        let seen = unsafe { cache.read(key, hash, span.within.into(), span.buf, span.len.into()) };
        if let Some(seen) = seen {
            seat.hit(&self.cached, cache, seen.way, hash);
        }
        seen.is_some()
    }

    /// As `read`, for many extents: the processor's cache misses of several look-ups overlap.
    ///
    /// # Safety
    /// As for `read`.
    pub unsafe fn read_many(&self, extents: impl Iterator<Item = Extent>, missing: &mut Vec<Span>) {
        if self.cached.is_default() {
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
        self.cached.with_seat(|seat| {
            let mut batch = Batch::<DEFAULT>::new(self, seat, missing);
            let mut bytes = 0;
            for extent in extents {
                bytes += extent.len;
                let within = extent.offset as usize % PAGE_BYTES;
                if extent.len.wrapping_sub(1) < PAGE_BYTES - within {
                    let (page, len) = (extent.offset / PAGE_BYTES as u64, extent.len as u16);
                    // SAFETY: the caller's promise.
                    unsafe { batch.push(Span { page, within: within as u16, len, buf: extent.buf }) };
                } else {
                    for span in super::spans(extent) {
                        // SAFETY: as above.
                        unsafe { batch.push(span) };
                    }
                }
            }
            // SAFETY: as above.
            unsafe { batch.end() };
            seat.tally.add(Id::BytesRead, bytes as u64);
        });
    }

    /// Asks for one page; and what its set wants.
    ///
    /// # Safety
    /// The span's memory is valid, and (for reads) nobody else's.
    unsafe fn ask(&self, seat: &Seat, want: Want, span: Span, set_dirty: u32) -> (Asked, Wants) {
        let Some((key, hash, cache)) = self.key(span.page) else { return (Asked::Full, Wants::Nothing) };
        if want != Want::Write {
            // A page to be read was not found a moment ago; the others are asked for here first.
            if want != Want::Read
                && let Some(seen) = cache.directory().find(key, hash)
            {
                if want == Want::Touch {
                    seat.hit(&self.cached, cache, seen.way, hash);
                }
                return (Asked::Done, Wants::Nothing);
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
                Begun::Yours(fill) => return yours(fill),
                // Of dirty pages, as a rule.
                Begun::Full => return (Asked::Full, Wants::Flush),
            };
            return (asked, Wants::Nothing);
        }
        let fresh = || self.is_fresh(span.page);
        // SAFETY: a span is within its page, and its memory is the caller's.
        let wrote = unsafe { cache.write(key, hash, span.within.into(), span.buf, span.len.into(), fresh) };
        match wrote {
            Wrote::Done { dirty, was: Ok(way) } => {
                seat.hit(&self.cached, cache, way, hash);
                (Asked::Done, if dirty > set_dirty { Wants::Flush } else { Wants::Nothing })
            }
            Wrote::Done { dirty, was: Err(came) } => {
                seat.came(came);
                (Asked::Done, if dirty > set_dirty { Wants::Flush } else { wants(came) })
            }
            Wrote::Busy => (Asked::Busy, Wants::Nothing),
            Wrote::Yours(fill) => yours(fill),
            // Whoever writes flushes it (`flush_full`).
            Wrote::Full => (Asked::Full, Wants::Nothing),
        }
    }

    /// Fetches ahead what filling a page will read and write.
    #[inline]
    pub(super) fn prefetch(&self, page: u64) {
        if let Some((_, hash, cache)) = self.key(page) {
            cache.prefetch_to_fill(hash);
        }
    }

    /// Whether a page is in the cache.
    pub fn is_there(&self, page: u64) -> bool {
        self.key(page).is_some_and(|(key, hash, cache)| cache.directory().find(key, hash).is_some())
    }

    /// What to wait on while somebody is at a page.
    pub(super) fn waiter(&self, page: u64, to_flush: bool) -> Option<std::sync::Arc<Waiter>> {
        let (key, hash, cache) = self.key(page)?;
        cache.waiter(key, hash, to_flush)
    }
}

fn yours(fill: Fill) -> (Asked, Wants) {
    let wants = wants(fill.came);
    (Asked::Yours(fill), wants)
}

fn wants(came: Came) -> Wants {
    if came.is_pressed { Wants::FlushNow } else { Wants::Nothing }
}

/// A page of a batch that is asked for.
#[derive(Clone, Copy)]
struct Asking {
    key: Key,
    hash: Hash,
    buf: *mut u8,
    place: Place,
    within: u16,
    len: u16,
}

impl Asking {
    const NOTHING: Asking =
        Asking { key: Key::NOTHING, hash: Hash(0), buf: std::ptr::null_mut(), place: Place(0), within: 0, len: 0 };

    fn span(&self) -> Span {
        Span { page: self.key.page(), within: self.within, len: self.len, buf: self.buf }
    }
}

/// Look-ups that overlap: each is at one of three stages. First its set is fetched ahead; [`OVERLAP`] look-ups later the page is
/// looked for and its bytes are fetched ahead; and as many later they are copied.
struct Batch<'a, const DEFAULT: bool> {
    paged: &'a Paged,
    seat: &'a Seat,
    missing: &'a mut Vec<Span>,
    /// By their number, modulo the length: those from `copied` on.
    asked: [Asking; 2 * OVERLAP],
    /// Those of them that were found.
    seen: [Option<Seen<'a>>; 2 * OVERLAP],
    /// Look-ups so far.
    count: usize,
    hits: u64,
}

impl<'a, const DEFAULT: bool> Batch<'a, DEFAULT> {
    fn new(paged: &'a Paged, seat: &'a Seat, missing: &'a mut Vec<Span>) -> Batch<'a, DEFAULT> {
        let (asked, seen) = ([Asking::NOTHING; 2 * OVERLAP], [const { None }; 2 * OVERLAP]);
        Batch { paged, seat, missing, asked, seen, count: 0, hits: 0 }
    }

    /// Adds a span, and moves two that came earlier on by a stage.
    ///
    /// # Safety
    /// The span's memory is writable and nobody else's, until `end`.
    #[inline(always)]
    unsafe fn push(&mut self, span: Span) {
        let Some((key, hash, cache)) = self.paged.key_as::<DEFAULT>(span.page) else { return self.missing.push(span) };
        let place = cache.prefetch::<DEFAULT>(hash);
        let Span { within, len, buf, .. } = span;
        self.asked[self.count % (2 * OVERLAP)] = Asking { key, hash, buf, place, within, len };
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
        let cache = self.paged.cached.cache_as::<DEFAULT>(asking.key);
        // The page may have moved to another set meanwhile; then it is not found.
        let set = cache.directory().set_as::<DEFAULT>(asking.place);
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
        let cache = self.paged.cached.cache_as::<DEFAULT>(asking.key);
        let set = cache.directory().set_as::<DEFAULT>(asking.place);
        let seen = match self.seen[number % (2 * OVERLAP)] {
            // A tag is right but for about one in a hundred.
            Some(guessed) if !set.has_key(guessed.way, asking.key) => set.find(asking.key, asking.hash),
            guessed => guessed,
        };
        if let Some(seen) = seen
            // SAFETY: a span is within its page, and its memory is the caller's.
            && unsafe { cache.copy_seen(seen, asking.within.into(), asking.buf, asking.len.into()) }
        {
            self.hits += 1;
            self.seat.note::<DEFAULT>(&self.paged.cached, cache, seen.way, asking.hash);
        } else {
            self.missing.push(asking.span());
        }
    }

    /// Moves all that are left on to their end.
    ///
    /// # Safety
    /// As for `push`.
    #[inline(never)]
    unsafe fn end(&mut self) {
        (self.count.saturating_sub(OVERLAP)..self.count).for_each(|number| self.find(number));
        // SAFETY: the caller's promise.
        ((self.count + 1).saturating_sub(2 * OVERLAP)..self.count).for_each(|number| unsafe { self.copy(number) });
        self.seat.tally.add(Id::Hits, self.hits);
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
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub busy: Vec<Span>,
    pub full: Vec<Span>,
    /// Pages whose sets want to be flushed.
    pub over: Over,
}

impl Sorted {
    /// Adds what became of others.
    pub fn extend(&mut self, other: Sorted) {
        self.busy.extend(other.busy);
        self.full.extend(other.full);
        self.over.many.extend(other.over.many);
        self.over.pressed.extend(other.over.pressed);
    }
}

/// A page on its way past its full set. When it is dropped, by a panic too, who waits is told of the outcome: without one, to look again.
struct Transit<'a> {
    key: Option<(Key, Hash, &'a Cache)>,
    outcome: Outcome,
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        if let Some((key, hash, cache)) = self.key {
            cache.end_bypass(key, hash, self.outcome);
        }
    }
}

impl FileState {
    /// Does what could not be done from the cache alone, to the end: fills, waits, bypasses. The caller is inside the gate. How many
    /// pages that were to be touched found their set full.
    ///
    /// # Safety
    /// The spans' memory is valid until this returns, and (for reads) nobody else's.
    pub unsafe fn complete(&self, paged: &Paged, want: Want, todo: Vec<Span>, class: Class) -> Result<usize> {
        let (mut todo, mut untouched) = (VecDeque::from(todo), 0);
        while !todo.is_empty() {
            let count = todo.len().min(paged.cached.limits().wave_pages);
            let mut fills = Fills::new(want, paged);
            let mut wave = todo.drain(..count).collect();
            // SAFETY: the caller's promise; `away` is waited for here, also when this unwinds.
            let away = unsafe { self.send_away(paged, want, &mut wave, class) };
            // SAFETY: the caller's promise.
            let mut sorted = unsafe { self.begin_wave(paged, &wave, &mut fills) };
            // SAFETY: the caller's promise.
            let ran = unsafe { self.run_fills(fills, class, &mut sorted.over) };
            if let Some(away) = away {
                let (left, result) = away.wait();
                sorted.extend(left);
                result?;
            }
            ran?;
            self.note_dirty(paged, if want == Want::Write { Op::Write } else { Op::Read }, &sorted.over);
            if want == Want::Write && self.flush_full(paged, &sorted.full)? {
                todo.extend(sorted.full.drain(..));
            }
            for span in &sorted.full {
                match want {
                    // SAFETY: the caller's promise.
                    Want::Read if !unsafe { self.pass_full(paged, Op::Read, *span, class)? } => todo.push_back(*span),
                    // SAFETY: the caller's promise.
                    Want::Write if !unsafe { self.pass_full(paged, Op::Write, *span, class)? } => todo.push_back(*span),
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
                todo.push_back(span);
            }
        }
        Ok(untouched)
    }

    /// Asks for the pages of a wave: what is there is done, what is ours to fill goes into `fills`.
    ///
    /// # Safety
    /// As for `complete`, until the fills have ended.
    pub(super) unsafe fn begin_wave<P: Deref<Target = Paged>>(
        &self,
        paged: &Paged,
        spans: &[Span],
        fills: &mut Fills<P>,
    ) -> Sorted {
        let mut sorted = Sorted::default();
        let set_dirty = paged.cached.limits().set_dirty;
        paged.cached.with_seat(|seat| {
            seat.tell(&paged.cached);
            let mut evictions = 0;
            for (index, &span) in spans.iter().enumerate() {
                if let Some(later) = spans.get(index + FETCH_AHEAD) {
                    paged.prefetch(later.page);
                }
                // SAFETY: the caller's promise.
                let (asked, wants) = unsafe { paged.ask(seat, fills.want(), span, set_dirty) };
                match wants {
                    Wants::Nothing => {}
                    Wants::Flush => sorted.over.many.push(span.page),
                    Wants::FlushNow => sorted.over.pressed.push(span.page),
                }
                match asked {
                    Asked::Done => {}
                    Asked::Busy => sorted.busy.push(span),
                    Asked::Full => sorted.full.push(span),
                    Asked::Yours(fill) => {
                        evictions += u64::from(fill.came.evicted);
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
        sorted
    }

    /// Makes room where a write found sets full; whether that is worth another round. Where other pages cannot be written back, the
    /// write goes past the cache.
    fn flush_full(&self, paged: &Paged, full: &[Span]) -> Result<bool> {
        if full.is_empty() {
            return Ok(false);
        }
        let pages: Vec<u64> = full.iter().map(|span| span.page).collect();
        let (mut any, _told_to_their_handles) = self.flush_sets(paged, &pages);
        if !any {
            // A page that is here (pins have all frames) goes past it only when it is clean, and that it cannot be is its own failure.
            for page in pages {
                any |= self.flush_page(paged, page)?;
            }
        }
        Ok(any)
    }

    /// Does one span past its full set; `false` asks for another round.
    ///
    /// # Safety
    /// As for `complete`.
    unsafe fn pass_full(&self, paged: &Paged, op: Op, span: Span, class: Class) -> Result<bool> {
        let key = paged.key(span.page);
        if let Some((key, hash, cache)) = key
            && !cache.begin_bypass(key, hash)
        {
            // There by now, or somebody is at it, or too many are in transit.
            self.array().pause_for_io();
            return Ok(false);
        }
        let mut transit = Transit { key, outcome: Ok(()) };
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
        transit.outcome = outcome;
        drop(transit);
        begun?;
        outcome.map_err(|failure| self.error(failure))?;
        Ok(true)
    }
}
