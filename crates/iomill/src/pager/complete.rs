//! Calls to their ends: what could not be done from the cache alone is read and written in waves, or waited for.
//!
//! A wave is bounded, so that a call never owns more of a set than there is. What another operation works on is waited for after the call's
//! own fills have ended (rule 4 of the cache). What finds its set full goes past the cache.

use super::Paged;
use super::fill::Fills;
use super::open::OpenFile;
use super::span::{Span, Want};
use super::wave::Over;
use crate::cache::key::{Hash, Key};
use crate::cache::{Cache, Outcome};
use crate::counters::Id;
use crate::drive::{Class, PAGE_BYTES};
use crate::engine::Op;
use crate::error::Result;
use crate::exec::{FirstFailure, Io, Sink, Within};
use crate::file::split::Splitter;
use crate::sys::sync::{Mutex, lock};

/// A page on its way past its full set. When it is dropped, by a panic too, waiting operations are told of the outcome: without one, to look
/// again.
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

/// Ends fills as their pieces end.
struct FillEnds<'a> {
    fills: &'a Fills<&'a Paged>,
    first: FirstFailure,
    /// Pages whose sets have many dirty pages now.
    many: Mutex<Vec<u64>>,
}

impl Sink for FillEnds<'_> {
    fn piece_done(&self, tag: u32, outcome: Outcome) {
        let mut many = Vec::new();
        self.fills.end_run(tag, outcome, &mut many);
        self.first.keep(outcome);
        if !many.is_empty() {
            lock(&self.many).append(&mut many);
        }
    }
}

impl OpenFile {
    /// Does what could not be done from the cache alone, to the end: fills, waits, bypasses. The caller is inside the gate. How many
    /// pages that were to be touched found their set full.
    ///
    /// # Safety
    /// The spans' memory is valid until this has ended or is dropped, and (for reads) nothing else's.
    pub async unsafe fn complete(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        todo: Vec<Span>,
        class: Class,
    ) -> Result<usize> {
        let (mut todo, mut untouched) = (todo, 0);
        while !todo.is_empty() {
            let mut wave = todo;
            let most = paged.pager.limits().wave_pages;
            todo = if wave.len() > most { wave.split_off(most) } else { Vec::new() };
            let mut fills = Fills::new(want, paged, wave.len());
            // SAFETY: the caller's promise; `away` is waited for here, also when this unwinds.
            let away = unsafe { self.send_away(io, paged, want, &mut wave, class) };
            // SAFETY: the caller's promise.
            let mut sorted = unsafe { paged.begin_wave(&wave, &mut fills) };
            // SAFETY: the caller's promise.
            let ran = unsafe { self.run_fills(io, fills, class, &mut sorted.over).await };
            if let Some(away) = away {
                let (left, result) = away.wait();
                sorted.extend(left);
                result?;
            }
            ran?;
            self.note_dirty(io, paged, if want == Want::Write { Op::Write } else { Op::Read }, &sorted.over).await;
            if want == Want::Write && self.flush_full(io, paged, &sorted.full).await? {
                todo.append(&mut sorted.full);
            }
            for span in &sorted.full {
                match want {
                    // SAFETY: the caller's promise.
                    Want::Read if !unsafe { self.pass_full(io, paged, Op::Read, *span, class).await? } => {
                        todo.push(*span);
                    }
                    // SAFETY: the caller's promise.
                    Want::Write if !unsafe { self.pass_full(io, paged, Op::Write, *span, class).await? } => {
                        todo.push(*span);
                    }
                    Want::Read | Want::Write => {}
                    Want::Touch | Want::Ahead => untouched += 1,
                }
            }
            if want != Want::Ahead {
                self.wait_for_busy(io, paged, want, sorted.busy, &mut todo).await?;
            }
        }
        Ok(untouched)
    }

    /// Waits for pages that other operations work on, and has them looked at again. Nothing of the call's is unfinished (rule 4 of the
    /// cache).
    async fn wait_for_busy(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        busy: Vec<Span>,
        todo: &mut Vec<Span>,
    ) -> Result<()> {
        for span in busy {
            if let Some(waiter) = paged.waiter(span.page, false) {
                paged.pager.with_local(|local| local.tally.add(Id::Waits, 1));
                let outcome = io.wait_for_page(&waiter).await;
                // A whole page needs nothing of what could not be read.
                if want != Want::Write || usize::from(span.len) < PAGE_BYTES {
                    outcome.map_err(|failure| self.file.error(failure))?;
                }
            }
            todo.push(span);
        }
        Ok(())
    }

    /// Moves one span past the cache. An error means that it was not begun.
    async unsafe fn move_span(&self, io: &Io<'_>, op: Op, class: Class, span: Span, ends: &FirstFailure) -> Result<()> {
        // SAFETY: the caller's promise.
        let landing = unsafe {
            let pieces = Splitter::new(&self.file, op, class, std::iter::once(span.extent()));
            io.run(Within::SLABS, pieces, ends)?
        };
        landing.await;
        Ok(())
    }

    /// Writes spans. The caller is inside the gate, and has made room for them.
    ///
    /// # Safety
    /// The spans' memory is readable until this has ended or is dropped.
    pub async unsafe fn write_spans(&self, io: &Io<'_>, paged: &Paged, spans: Vec<Span>, class: Class) -> Result<()> {
        let bytes = spans.iter().map(|span| u64::from(span.len)).sum();
        paged.pager.with_local(|local| local.tally.add(Id::BytesWritten, bytes));
        // SAFETY: the caller's promise.
        unsafe { self.complete(io, paged, Want::Write, spans, class).await }.map(drop)
    }

    /// Fills the pages of a wave, to the end. Pages whose sets want to be flushed after it are added to `over`.
    ///
    /// # Safety
    /// The memory of all spans is valid until this has ended or is dropped, and (for reads) nothing else's.
    async unsafe fn run_fills(
        &self,
        io: &Io<'_>,
        mut fills: Fills<&Paged>,
        class: Class,
        over: &mut Over,
    ) -> Result<()> {
        if fills.is_empty() {
            return Ok(());
        }
        fills.plan(&self.file);
        let ends = FillEnds { fills: &fills, first: FirstFailure::default(), many: Mutex::default() };
        // SAFETY: the memory is frames, which the fills own until their ends, and lists in `fills`. Dropping `run` waits for all ends, and
        // it goes before `ends` and `fills`.
        let begun = unsafe { io.run(Within::SLABS, fills.pieces(&self.file, class), &ends) };
        let begun = match begun {
            Ok(landing) => {
                landing.await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        over.many.append(&mut lock(&ends.many));
        // If none was begun, `fills` abandons them.
        begun?;
        ends.first.take().map_or(Ok(()), |failure| Err(self.file.error(failure)))
    }

    /// Makes room where a write found sets full; whether that is worth another round. Where other pages cannot be written back, the
    /// write goes past the cache.
    async fn flush_full(&self, io: &Io<'_>, paged: &Paged, full: &[Span]) -> Result<bool> {
        if full.is_empty() {
            return Ok(false);
        }
        let pages: Vec<u64> = full.iter().map(|span| span.page).collect();
        let (mut any, _told_to_their_handles) = self.flush_sets(io, paged, &pages).await;
        if !any {
            // A page that is here (pins have all frames) goes past it only when it is clean, and that it cannot be is its own failure.
            for page in pages {
                any |= self.flush_page(io, paged, page).await?;
            }
        }
        Ok(any)
    }

    /// Does one span past its full set; `false` asks for another round.
    ///
    /// # Safety
    /// As for `complete`.
    async unsafe fn pass_full(&self, io: &Io<'_>, paged: &Paged, op: Op, span: Span, class: Class) -> Result<bool> {
        let key = paged.key(span.page);
        if let Some((key, hash, cache)) = key
            && !cache.begin_bypass(key, hash)
        {
            // There by now, or another operation works on it, or too many are in transit.
            io.pause().await;
            return Ok(false);
        }
        let mut transit = Transit { key, outcome: Ok(()) };
        paged.pager.with_local(|local| {
            local.tally.add(Id::Misses, 1);
            local.tally.add(Id::Bypasses, 1);
        });
        if op == Op::Write {
            paged.on_its_way(span.page);
        }
        let ends = FirstFailure::default();
        // SAFETY: the caller's promise.
        let begun = unsafe { self.move_span(io, op, class, span, &ends) }.await;
        let failure = ends.take();
        if op == Op::Write {
            self.file.mark_part_of(span.offset());
        } else if let Some(failure) = failure {
            // A reader that waits would meet the same. One that waits for a write looks for itself.
            transit.outcome = Err(failure);
        }
        drop(transit);
        begun?;
        failure.map_or(Ok(true), |failure| Err(self.file.error(failure)))
    }
}
