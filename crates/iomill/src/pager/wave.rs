//! The first half of a wave: `Paged::begin_wave` looks up each page, and makes the call the owner of the fills of
//! missing pages. [`Sorted`] has the other spans. Non-goals: I/O (`fill`, `complete`).

use std::ops::Deref;
use std::sync::Arc;

use super::Paged;
use super::fill::{FETCH_AHEAD, Fills};
use super::local::Local;
use super::span::{Span, Want};
use crate::cache::{Begun, Came, Fill, Waiter, Wrote};
use crate::counters::Counter;
use crate::sys::sync::Ordering;

/// The result of the first look at one span.
enum Asked {
    Done,
    /// Another operation works on the page.
    Busy,
    Yours(Fill),
    /// The set is full.
    Full,
}

/// The destination of an unfinished span.
#[derive(Clone, Copy)]
enum Goes {
    Busy,
    Full,
    /// The call fills its page.
    Filled,
}

/// The need of a page's set after the page was looked up.
enum Wants {
    Nothing,
    /// It has many dirty pages.
    Flush,
    /// A clean page had to go in the place of a dirty one.
    FlushNow,
}

/// Pages of sets that need a flush.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// They have many dirty pages.
    pub many: Vec<u64>,
    /// A clean page was evicted instead of a dirty one. A call that writes flushes these sets at once: the flusher is
    /// too slow, and the policy cannot keep the pages that it chose to keep.
    pub pressed: Vec<u64>,
}

/// Spans that are neither done nor being filled.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    pub busy: Vec<Span>,
    pub full: Vec<Span>,
    /// Pages of sets that need a flush.
    pub over: Over,
}

impl Over {
    /// Notes what a page's set needs. The spans of a page come one after the other.
    fn note(&mut self, wants: Wants, page: u64) {
        let pages = match wants {
            Wants::Nothing => return,
            Wants::Flush => &mut self.many,
            Wants::FlushNow => &mut self.pressed,
        };
        if pages.last() != Some(&page) {
            pages.push(page);
        }
    }
}

impl Sorted {
    /// Whether nothing is left to do for the spans.
    pub fn is_empty(&self) -> bool {
        self.busy.is_empty() && self.full.is_empty() && self.over.many.is_empty() && self.over.pressed.is_empty()
    }

    /// Adds the spans and pages of another.
    pub fn extend(&mut self, other: Sorted) {
        self.busy.extend(other.busy);
        self.full.extend(other.full);
        self.over.many.extend(other.over.many);
        self.over.pressed.extend(other.over.pressed);
    }
}

impl Paged {
    /// Asks for one page. Returns also what its set needs.
    ///
    /// # Safety
    /// The span's memory is valid. For reads nothing else uses it.
    unsafe fn ask(&self, local: &Local, want: Want, span: Span, set_dirty: u32) -> (Asked, Wants) {
        let (key, hash, cache) = self.key(span.page);
        if want != Want::Write {
            // A page to be read, or read ahead, was missing a moment ago. For a page to be touched this is the first
            // lookup.
            if want == Want::Touch && cache.directory().find(key, hash).is_some() {
                local.hit(self, key);
                return (Asked::Done, Wants::Nothing);
            }
            let begun = if want == Want::Read { cache.begin_read(key, hash) } else { cache.begin_fill(key, hash) };
            let asked = match begun {
                // SAFETY: the caller's promise.
                Begun::Present if want == Want::Read && unsafe { self.read_span(local, (key, hash, cache), span) } => {
                    Asked::Done
                }
                Begun::Present if want == Want::Ahead => Asked::Done,
                Begun::Present if want == Want::Touch => {
                    local.hit(self, key);
                    Asked::Done
                }
                // The page was evicted again: the next round looks it up again.
                Begun::Present | Begun::Busy => Asked::Busy,
                Begun::Yours(fill) => return yours(fill),
                // Mostly of dirty pages.
                Begun::Full => return (Asked::Full, Wants::Flush),
            };
            return (asked, Wants::Nothing);
        }
        let fresh = || self.is_fresh(span.page);
        // SAFETY: a span is within its page, and its memory is the caller's.
        let wrote = unsafe { cache.write(key, hash, span.within.into(), span.buf, span.len.into(), fresh) };
        match wrote {
            Wrote::Done { dirty, came: None } => {
                local.hit(self, key);
                (Asked::Done, if dirty > set_dirty { Wants::Flush } else { Wants::Nothing })
            }
            Wrote::Done { dirty, came: Some(came) } => {
                local.came(came);
                (Asked::Done, if dirty > set_dirty { Wants::Flush } else { wants(came) })
            }
            Wrote::Busy => (Asked::Busy, Wants::Nothing),
            Wrote::Yours(fill) => yours(fill),
            // The writing call flushes it (`flush_full`).
            Wrote::Full => (Asked::Full, Wants::Nothing),
        }
    }

    /// Counts one more span of a page that the call fills. A call for it would hit.
    fn note_more(&self, local: &Local, want: Want, span: Span) {
        if want != Want::Ahead {
            local.hit(self, self.zero.page_after(span.page));
        }
    }

    /// Prefetches the memory that filling a page will read and write.
    #[inline]
    pub(super) fn prefetch(&self, page: u64) {
        let (key, hash, cache) = self.key(page);
        cache.prefetch_to_fill(key, hash);
    }

    /// A waiter for a page that another operation fills, or moves past the cache.
    pub(super) fn waiter(&self, page: u64) -> Option<Arc<Waiter>> {
        let (key, hash, cache) = self.key(page);
        cache.waiter(key, hash, false)
    }

    /// Asks for the pages of a wave. Spans with cached pages are done. Pages that the call must fill go into `fills`,
    /// each with all its spans. Those of a page come one after the other.
    ///
    /// # Safety
    /// The spans' memory is valid until the fills have ended. For reads nothing else uses it.
    pub(super) unsafe fn begin_wave<P: Deref<Target = Paged>>(&self, spans: &[Span], fills: &mut Fills<P>) -> Sorted {
        let mut sorted = Sorted::default();
        let set_dirty = self.pager.limits().set_dirty;
        self.pager.with_local(|local| {
            local.tell(&self.pager);
            let (mut evictions, mut last) = (0, None);
            for (index, &span) in spans.iter().enumerate() {
                if let Some(later) = spans.get(index + FETCH_AHEAD) {
                    self.prefetch(later.page);
                }
                // Spans of one page come one after the other (`todo`). What comes after one that is not done goes with
                // it.
                if let Some((page, goes)) = last
                    && page == span.page
                {
                    match goes {
                        Goes::Busy => sorted.busy.push(span),
                        Goes::Full => sorted.full.push(span),
                        Goes::Filled => {
                            self.note_more(local, fills.want(), span);
                            fills.push_more(span);
                        }
                    }
                    continue;
                }
                // SAFETY: the caller's promise.
                let (asked, wants) = unsafe { self.ask(local, fills.want(), span, set_dirty) };
                sorted.over.note(wants, span.page);
                let goes = match asked {
                    Asked::Done => None,
                    Asked::Busy => {
                        sorted.busy.push(span);
                        Some(Goes::Busy)
                    }
                    Asked::Full => {
                        sorted.full.push(span);
                        Some(Goes::Full)
                    }
                    Asked::Yours(fill) => {
                        evictions += u64::from(fill.came.evicted);
                        fills.push(fill, span);
                        Some(Goes::Filled)
                    }
                };
                last = goes.map(|goes| (span.page, goes));
            }
            let came = fills.len() as u64;
            if came > 0 {
                self.pager.taken.fetch_add(came, Ordering::Relaxed);
                local.tally.add(Counter::Fills, came);
                local.tally.add(Counter::Evictions, evictions);
                local.tally.add(if fills.want() == Want::Ahead { Counter::ReadAhead } else { Counter::Misses }, came);
            }
        });
        sorted
    }
}

fn yours(fill: Fill) -> (Asked, Wants) {
    let wants = wants(fill.came);
    (Asked::Yours(fill), wants)
}

fn wants(came: Came) -> Wants {
    if came.is_pressed { Wants::FlushNow } else { Wants::Nothing }
}
