//! The second half of a call: `OpenFile::complete` does the part that needs I/O. It fills missing pages in waves, waits
//! for pages of other operations, or bypasses the cache. Non-goals: the lookup of pages (`wave`), and the plan of fills
//! (`fill`).
//!
//! Waves are bounded, so that a call never owns too many pages of the cache. The call waits for pages of other
//! operations after its own fills have ended (rule 4 of the cache). Spans with a full set bypass the cache. Blocking
//! calls of any length do this list by list (`OpenFile::read_long`, `OpenFile::write_lists`).

use super::Paged;
use super::fill::Fills;
use super::open::OpenFile;
use super::pipeline::Pipeline;
use super::span::{Span, Want};
use super::todo::{LIST_SPANS, Todo, halve, split_list};
use super::wave::Over;
use crate::cache::key::{Key, KeyHash};
use crate::cache::{Cache, Outcome};
use crate::counters::Counter;
use crate::drive::{Class, PAGE_BYTES};
use crate::engine::Op;
use crate::error::Result;
use crate::exec::{Exec, FirstFailure, Io, Sink, Within, both};
use crate::file::Entered;
use crate::file::split::{IoRange, Splitter};
use crate::sys::copy::copy_bytes;
use crate::sys::fsyncs::Since;
use crate::sys::sync::{Mutex, lock};

/// A page that bypasses its full set. Dropping it, also by a panic, passes the outcome to waiting operations. After
/// `Ok` they look the page up again.
struct Transit<'a> {
    key: (Key, KeyHash, &'a Cache),
    outcome: Outcome,
}

impl Drop for Transit<'_> {
    fn drop(&mut self) {
        let (key, hash, cache) = self.key;
        cache.end_bypass(key, hash, self.outcome);
    }
}

/// A sink of completions that ends fills when their pieces end.
struct FillEnds<'a> {
    fills: &'a Fills<&'a Paged>,
    first: FirstFailure,
    /// Pages of sets that have many dirty pages now.
    many: Mutex<Vec<u64>>,
}

impl Sink for FillEnds<'_> {
    fn piece_done(&self, tag: u32, outcome: Outcome) {
        let mut many = Vec::new();
        self.first.keep(self.fills.end_run(tag, outcome, &mut many));
        if !many.is_empty() {
            lock(&self.many).append(&mut many);
        }
    }
}

impl OpenFile {
    /// Does the part of a call that needs I/O: fills, waits, bypasses. The caller is inside the gate. Returns the
    /// number of pages that could not be touched, or read ahead, because their set was full.
    ///
    /// # Safety
    /// The spans' memory is valid until this has ended or is dropped. Nothing else uses the memory of reads.
    pub unsafe fn complete(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        todo: Vec<Span>,
        class: Class,
    ) -> impl Future<Output = Result<usize>> {
        // SAFETY: the caller's promise.
        unsafe { self.complete_beside(io, paged, want, todo, class, 1) }
    }

    /// `complete` for one of the lists that a call completes at the same time. Together their waves are as large as
    /// those of one list.
    ///
    /// # Safety
    /// As for `complete`.
    async unsafe fn complete_beside(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        todo: Vec<Span>,
        class: Class,
        lists: usize,
    ) -> Result<usize> {
        let (mut todo, mut untouched) = (Todo::new(todo), 0);
        while !todo.is_empty() {
            let most = (paged.pager.limits().wave_pages / lists).max(1);
            let mut sorted;
            if io.blocks() && most > 1 && todo.len() > most / 2 && paged.pager.spread.is_none() {
                // SAFETY: the caller's promise.
                sorted = unsafe { Pipeline::run(self, io, paged, want, class, &mut todo, most / 2)? };
            } else {
                let wave = todo.next(most);
                let mut fills = Fills::new(want, paged);
                // SAFETY: the caller's promise; this waits for `away`, also when it unwinds.
                let (near, away) = unsafe { self.send_away(io, paged, want, wave, class) };
                // SAFETY: the caller's promise.
                sorted = unsafe { paged.begin_wave(near.as_deref().unwrap_or(wave), &mut fills) };
                let ran = match fills.is_empty() {
                    true => Ok(()),
                    // SAFETY: the caller's promise.
                    false => unsafe { self.run_fills(io, fills, class, &mut sorted.over).await },
                };
                if let Some(away) = away {
                    let (left, result) = away.wait();
                    sorted.extend(left);
                    result?;
                }
                ran?;
            }
            if sorted.is_empty() {
                // Most waves end here.
                continue;
            }
            self.note_dirty(io, paged, if want == Want::Write { Op::Write } else { Op::Read }, &sorted.over).await;
            if want == Want::Write && self.flush_full(io, paged, &sorted.full).await? {
                sorted.full.drain(..).for_each(|span| todo.again(span));
            }
            for of_page in sorted.full.chunk_by(|a, b| a.page == b.page) {
                match want {
                    // SAFETY: the caller's promise.
                    Want::Read | Want::Write => unsafe {
                        self.pass_page(io, paged, want, of_page, class, &mut todo).await?;
                    },
                    Want::Touch | Want::Ahead => untouched += of_page.len(),
                }
            }
            if want != Want::Ahead {
                self.wait_for_busy(io, paged, want, sorted.busy, &mut todo).await?;
            }
        }
        if want == Want::Read {
            paged.pager.with_local(|local| local.keep_spans(todo.into_spans()));
        }
        Ok(untouched)
    }

    /// Moves the spans of one page past its full set. Adds to `todo` the spans that must be looked up again.
    ///
    /// # Safety
    /// As for `complete`.
    async unsafe fn pass_page(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        of_page: &[Span],
        class: Class,
        todo: &mut Todo,
    ) -> Result<()> {
        if let ([_, _, ..], Want::Read) = (of_page, want) {
            // SAFETY: the caller's promise. In a box, because an operation has room for all that it may wait for.
            return unsafe { Box::pin(self.pass_rows(io, paged, of_page, class, todo)).await };
        }
        let op = if want == Want::Write { Op::Write } else { Op::Read };
        let (first, others) = join(of_page);
        // SAFETY: the caller's promise.
        let others = if unsafe { self.pass_full(io, paged, op, first, class).await? } { others } else { of_page };
        // The set of the page may have a free frame by now.
        others.iter().for_each(|span| todo.again(*span));
        Ok(())
    }

    /// Reads several spans of a page past its full set, by one I/O.
    ///
    /// # Safety
    /// As for `complete`.
    async unsafe fn pass_rows(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        of_page: &[Span],
        class: Class,
        todo: &mut Todo,
    ) -> Result<()> {
        let [first, ..] = of_page else { return Ok(()) };
        let begin = of_page.iter().map(|span| span.within).min().unwrap_or(first.within);
        let end = of_page.iter().map(|span| span.within + span.len).max().unwrap_or(begin);
        let mut bytes = vec![0_u8; usize::from(end - begin)];
        let all = Span { within: begin, len: end - begin, buf: bytes.as_mut_ptr(), ..*first };
        // SAFETY: the bytes live until this has ended or is dropped, which waits for their I/O, and nothing else has
        // them.
        if !unsafe { self.pass_full(io, paged, Op::Read, all, class).await? } {
            of_page.iter().for_each(|span| todo.again(*span));
            return Ok(());
        }
        for span in of_page {
            let from = &bytes[usize::from(span.within - begin)..][..usize::from(span.len)];
            // SAFETY: the caller's promise, and the bytes are new memory.
            unsafe { copy_bytes(from.as_ptr(), span.buf, from.len()) };
        }
        Ok(())
    }

    /// Waits for pages that other operations work on, and adds their spans to `todo` again. The call owns no unfinished
    /// fills (rule 4 of the cache).
    async fn wait_for_busy(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        want: Want,
        busy: Vec<Span>,
        todo: &mut Todo,
    ) -> Result<()> {
        for span in busy {
            if let Some(waiter) = paged.waiter(span.page) {
                paged.pager.with_local(|local| local.tally.add(Counter::Waits, 1));
                let outcome = io.wait_for_page(&waiter).await;
                // A write of a whole page does not need the bytes that could not be read.
                if want != Want::Write || usize::from(span.len) < PAGE_BYTES {
                    outcome.map_err(|failure| self.file.error(failure))?;
                }
            }
            todo.again(span);
        }
        Ok(())
    }

    /// Moves one span past the cache. An error means that the transfer has not begun, or that a file with sums has
    /// reported its failure.
    async unsafe fn move_span(&self, io: &Io<'_>, op: Op, class: Class, span: Span, ends: &FirstFailure) -> Result<()> {
        if let Some(sums) = self.file.sums() {
            let io_range = std::iter::once(span.io_range());
            let (reads, writes) = if op == Op::Read { (Some(io_range), None) } else { (None, Some(io_range)) };
            let (reads, writes) = (reads.into_iter().flatten(), writes.into_iter().flatten());
            // The call has counted the bytes. In a box, because an operation has room for all that it may wait for.
            // SAFETY: the caller's promise.
            return unsafe { Box::pin(self.file.transfer_proved(io, class, sums, reads, writes)) }.await;
        }
        // SAFETY: the caller's promise.
        let landing = unsafe {
            let pieces = Splitter::new(&self.file, op, class, std::iter::once(span.io_range()));
            io.run(Within::SLABS, pieces, ends)?
        };
        landing.await;
        Ok(())
    }

    /// Writes spans. The caller is inside the gate, and has allocated space for them.
    ///
    /// # Safety
    /// The spans' memory is readable until this has ended or is dropped.
    async unsafe fn write_spans(&self, io: &Io<'_>, paged: &Paged, spans: Vec<Span>, class: Class) -> Result<()> {
        count_written(paged, &spans);
        // SAFETY: the caller's promise.
        unsafe { self.complete(io, paged, Want::Write, spans, class).await }.map(drop)
    }

    /// Reads I/O ranges through the cache, list by list. The calling thread waits, and is not inside the gate. `check`
    /// says whether the I/O ranges are within the file: the file may have shrunk before this call is inside.
    ///
    /// # Safety
    /// The I/O ranges' memory is writable, and nothing else uses it until this returns.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_long(
        &self,
        paged: &Paged,
        io_ranges: &mut dyn Iterator<Item = IoRange>,
        class: Class,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let (io, mut missing, mut entered) = (self.exec().blocking(), Vec::new(), None);
        loop {
            let (most, mut taken) = (LIST_SPANS - missing.len(), 0);
            // SAFETY: the caller's promise.
            unsafe { paged.read_many((&mut *io_ranges).take(most).inspect(|_| taken += 1), &mut missing) };
            let is_last = taken < most;
            if !missing.is_empty() && entered.is_none() {
                entered = Some(Entered::enter(&self.file)?);
                check()?;
            }
            if is_last || missing.len() >= LIST_SPANS {
                let next = if is_last { Vec::new() } else { split_list(&mut missing) };
                let list = std::mem::replace(&mut missing, next);
                // SAFETY: as above; `run_to_end` returns only after all I/O has ended.
                Exec::run_to_end(unsafe { self.complete(&io, paged, Want::Read, list, class) })?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Writes spans through the cache, list by list, as [`OpenFile::write_spans`] does. The calling thread waits.
    ///
    /// # Safety
    /// The spans' memory is readable until this returns.
    pub unsafe fn write_lists(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        spans: &mut impl Iterator<Item = Span>,
        class: Class,
    ) -> Result<()> {
        // SAFETY: the caller's promise; `run_to_end` returns only after all I/O has ended.
        let write = |list| Exec::run_to_end(unsafe { self.write_spans(io, paged, list, class) });
        let mut list: Vec<Span> = spans.take(LIST_SPANS).collect();
        while list.len() >= LIST_SPANS {
            let next = split_list(&mut list);
            write(std::mem::replace(&mut list, next))?;
            list.extend(spans.take(LIST_SPANS.saturating_sub(list.len())));
        }
        write(list)
    }

    /// Reads missing spans, and writes others at the same time. The caller is inside the gate, and has allocated space.
    /// Returns when both have ended.
    ///
    /// # Safety
    /// The spans' memory is valid until this has ended or is dropped. Nothing else uses the memory that reads fill.
    pub async unsafe fn read_and_write(
        &self,
        io: &Io<'_>,
        paged: &Paged,
        reads: Vec<Span>,
        writes: Vec<Span>,
        class: Class,
    ) -> Result<()> {
        count_written(paged, &writes);
        let lists = if reads.is_empty() || writes.is_empty() {
            let (want, spans) = if writes.is_empty() { (Want::Read, reads) } else { (Want::Write, writes) };
            if spans.len() <= paged.pager.limits().wave_pages {
                // SAFETY: the caller's promise.
                return unsafe { self.complete(io, paged, want, spans, class) }.await.map(drop);
            }
            // Two lists, so that the drives have work while a wave of one ends.
            let (first, second) = halve(spans);
            [(want, first), (want, second)]
        } else {
            [(Want::Read, reads), (Want::Write, writes)]
        };
        // Boxed, because an operation's future has the size of every future that it may await, and most await no two
        // lists.
        let [first, second] = lists.map(|(want, spans)| {
            // SAFETY: the caller's promise.
            Box::pin(unsafe { self.complete_beside(io, paged, want, spans, class, 2) })
        });
        let (first, second) = both(first, second).await;
        first.and(second).map(drop)
    }

    /// Fills the pages of a wave, at least one, until all fills have ended. Adds the pages of sets that need a flush to
    /// `over`.
    ///
    /// # Safety
    /// The memory of all spans is valid until this has ended or is dropped. For reads nothing else uses it.
    async unsafe fn run_fills(
        &self,
        io: &Io<'_>,
        mut fills: Fills<&Paged>,
        class: Class,
        over: &mut Over,
    ) -> Result<()> {
        fills.plan(&self.file);
        let ends = FillEnds { fills: &fills, first: FirstFailure::default(), many: Mutex::default() };
        // SAFETY: the memory is frames, which the fills own until their ends, and lists in `fills`. Dropping the
        // landing waits for all ends, and it is dropped before `ends` and `fills`.
        let begun = unsafe { io.run(Within::SLABS, fills.pieces(&self.file, class), &ends) };
        let begun = match begun {
            Ok(landing) => {
                landing.await;
                Ok(())
            }
            Err(error) => Err(error),
        };
        over.many.append(&mut lock(&ends.many));
        // If no piece has begun, dropping `fills` abandons them.
        begun?;
        ends.first.take().map_or(Ok(()), |failure| Err(self.file.error(failure)))
    }

    /// Frees frames in sets that a write found full. Returns whether another round may find one. If not, because other
    /// pages cannot be written back, the write bypasses the cache.
    async fn flush_full(&self, io: &Io<'_>, paged: &Paged, full: &[Span]) -> Result<bool> {
        if full.is_empty() {
            return Ok(false);
        }
        let pages: Vec<u64> = full.iter().map(|span| span.page).collect();
        let (mut any, _reported_by_their_handles) = Box::pin(self.make_room(io, paged, &pages)).await;
        if !any {
            // A page may be in its set without a free frame beside it, because pins hold all other frames. A write
            // bypasses such a page only when the page is clean. If its flush fails, that is an error of this write.
            for page in pages {
                any |= Box::pin(self.flush_page(io, paged, page)).await?;
            }
        }
        Ok(any)
    }

    /// Moves one span past its full set. `false` asks for another round.
    ///
    /// # Safety
    /// As for `complete`.
    async unsafe fn pass_full(&self, io: &Io<'_>, paged: &Paged, op: Op, span: Span, class: Class) -> Result<bool> {
        let (key, hash, cache) = paged.key(span.page);
        if !cache.begin_bypass(key, hash) {
            // The page is cached now, or another operation works on it, or too many pages are in transit.
            io.pause().await;
            return Ok(false);
        }
        let mut transit = Transit { key: (key, hash, cache), outcome: Ok(()) };
        paged.pager.with_local(|local| {
            local.tally.add(Counter::Misses, 1);
            local.tally.add(Counter::Bypasses, 1);
        });
        if op == Op::Write {
            paged.on_its_way(span.page);
        }
        let (ends, since) = (FirstFailure::default(), Since::now());
        // SAFETY: the caller's promise.
        let begun = unsafe { self.move_span(io, op, class, span, &ends) }.await;
        let failure = ends.take();
        if op == Op::Write {
            self.file.mark_part_of(span.offset(), since);
        } else if let Some(failure) = failure {
            // A reader that waits for this read gets the same failure. An operation that waits for a write looks the
            // page up again.
            transit.outcome = Err(failure);
        }
        drop(transit);
        begun?;
        failure.map_or(Ok(true), |failure| Err(self.file.error(failure)))
    }
}

/// Joins the first span of a page with the spans that continue it, in the page and in memory. Returns the other spans,
/// too.
fn join(of_page: &[Span]) -> (Span, &[Span]) {
    let [first, others @ ..] = of_page else { unreachable!("a page has a span") };
    let mut first = *first;
    let goes_on = |span: &&Span| {
        let is_next = span.within == first.within + first.len && span.buf == first.buf.wrapping_add(first.len.into());
        first.len += if is_next { span.len } else { 0 };
        is_next
    };
    let joined = others.iter().take_while(goes_on).count();
    (first, &others[joined..])
}

fn count_written(paged: &Paged, spans: &[Span]) {
    let bytes = spans.iter().map(|span| u64::from(span.len)).sum();
    paged.pager.with_local(|local| local.tally.add(Counter::BytesWritten, bytes));
}
