//! A wave of fills: pages that one call is to fill, read by as few I/Os as they take.

use super::flush::Over;
use super::{Paged, Span};
use crate::api::state::FileState;
use crate::cache::{Fill, Outcome};
use crate::counters::Id;
use crate::drive::{Class, PAGE_BYTES, PIECE_BYTES, Piece};
use crate::engine::{MAX_SEGMENTS, Memory, Op, Segment};
use crate::error::Result;
use crate::sys::sync::{Mutex, Ordering, lock};

/// Pages that belong to one call to fill, each with what the call wants of it.
///
/// Every fill in it ends exactly once: by [`Fills::end_run`] for each run of `pieces`, or by [`Fills::fail`].
#[derive(Debug)]
pub struct Fills {
    /// In the order of pages once it is planned; taken out as they end. A lock, because drive threads end runs side by side.
    entries: Mutex<Vec<Option<(Fill, Span)>>>,
    runs: Vec<Run>,
    /// The frames of all entries, in their order, as scattered memory.
    list: Vec<Segment>,
    op: Op,
}

/// Entries that one piece reads.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: usize,
    count: usize,
    /// Bytes to read; the last page of a part that is only read may be short.
    len: usize,
}

// SAFETY: the pointers are frames', which a fill owns, and the memory of spans, for which the call vouches until its end.
unsafe impl Send for Fills {}
// SAFETY: what threads share is behind a lock, and `list` does not change once it is planned.
unsafe impl Sync for Fills {}

impl Fills {
    /// No pages yet; `op` is what is to be done with them once they are there.
    pub fn new(op: Op) -> Fills {
        Fills { entries: Mutex::default(), runs: Vec::new(), list: Vec::new(), op }
    }

    /// Adds a page and what the call wants of it.
    pub fn push(&mut self, fill: Fill, span: Span) {
        lock(&self.entries).push(Some((fill, span)));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.entries).len()
    }

    /// How many pieces it takes to fill them, once it is planned.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins adjacent pages of a block into runs. Nothing is added after this.
    pub fn plan(&mut self, file: &FileState, paged: &Paged) {
        let mut entries = lock(&self.entries);
        let page_of = |entry: &Option<(Fill, Span)>| entry.as_ref().map_or(0, |(fill, _)| fill.key.page());
        if !entries.is_sorted_by_key(page_of) {
            entries.sort_unstable_by_key(page_of);
        }
        let block_pages = file.block_bytes / PAGE_BYTES as u64;
        let mut last: Option<(u64, bool)> = None;
        for (index, (fill, _)) in entries.iter().flatten().enumerate() {
            let page = fill.key.page();
            let cache = paged.cached.cache_of(fill.key);
            let frame = cache.filling(fill);
            self.list.push(Segment { buf: frame, len: PAGE_BYTES });
            let has = file.page_bytes(page);
            if has < PAGE_BYTES {
                cache.put_zeroes(fill, has);
            }
            let whole = has == PAGE_BYTES;
            let adjacent = last
                .is_some_and(|(before, all)| all && whole && before + 1 == page && !page.is_multiple_of(block_pages));
            match self.runs.last_mut() {
                Some(run) if adjacent && run.count < MAX_SEGMENTS && run.len + PAGE_BYTES <= PIECE_BYTES => {
                    run.count += 1;
                    run.len += PAGE_BYTES;
                }
                _ => self.runs.push(Run { first: index, count: 1, len: has }),
            }
            last = Some((page, whole));
        }
    }

    /// One piece for each run, with the run's number for a tag.
    pub fn pieces<'a>(&'a self, file: &'a FileState, class: Class) -> impl Iterator<Item = (u16, Piece)> + 'a {
        let pages: Vec<u64> = {
            let entries = lock(&self.entries);
            self.runs.iter().map(|run| entries[run.first].as_ref().map_or(0, |(fill, _)| fill.key.page())).collect()
        };
        self.runs.iter().zip(pages).enumerate().map(move |(tag, (run, page))| {
            let memory = match run.count {
                1 => Memory::one(self.list[run.first].buf),
                _ => Memory::scatter(&self.list[run.first..run.first + run.count]),
            };
            let (drive, piece) = file.page_piece(Op::Read, class, page, run.len, memory);
            (drive, Piece { tag: tag as u32, ..piece })
        })
    }

    /// Ends the fills of a run: does with the pages what the call wants, and shows them to everybody. Those whose sets want to be
    /// flushed now are appended to `over`.
    pub fn end_run(&self, paged: &Paged, run: u32, outcome: Outcome, over: &mut Vec<u64>) {
        let Run { first, count, .. } = self.runs[run as usize];
        over.extend((first..first + count).filter_map(|index| self.end(paged, index, outcome)));
    }

    /// Ends all fills that have not ended, because they could not be begun.
    pub fn fail(&self, paged: &Paged, outcome: Outcome) {
        (0..self.len()).for_each(|index| {
            self.end(paged, index, outcome);
        });
    }

    /// Ends a fill; its page, if its set wants to be flushed now.
    fn end(&self, paged: &Paged, index: usize, outcome: Outcome) -> Option<u64> {
        let (fill, span) = lock(&self.entries)[index].take()?;
        let cache = paged.cached.cache_of(fill.key);
        let (within, len) = (usize::from(span.within), usize::from(span.len));
        if outcome.is_ok() {
            let bytes = cache.filling(&fill).wrapping_add(within);
            // SAFETY: the frame is ours until the fill ends, the span's memory is the call's until its end, and the range is
            // within a page.
            unsafe {
                match self.op {
                    Op::Read => std::ptr::copy_nonoverlapping(bytes, span.buf, len),
                    Op::Write => cache.put(&fill, within, span.buf, len),
                    Op::Sync => {}
                }
            }
        }
        let dirty = cache.end_fill(fill, outcome, outcome.is_ok() && self.op == Op::Write);
        (self.op == Op::Write && dirty > paged.cached.limits().set_dirty).then_some(span.page)
    }
}

impl Paged {
    /// Counts pages that come in.
    pub(super) fn note_fills(&self, fills: &Fills) {
        let count = fills.len() as u64;
        self.cached.taken.fetch_add(count, Ordering::Relaxed);
        self.cached.with_seat(|seat| seat.tally.add(Id::Fills, count));
    }
}

impl FileState {
    /// How many bytes of a page its part holds: a whole page, but at the end of a part that is only read.
    fn page_bytes(&self, page: u64) -> usize {
        let (part, _, start) = self.locate(page * PAGE_BYTES as u64);
        let has = part.reserved.load(Ordering::Relaxed);
        has.saturating_sub(start).clamp(1, PAGE_BYTES as u64) as usize
    }

    /// The piece that moves pages of one block, from `page` on, and its drive.
    pub(super) fn page_piece(&self, op: Op, class: Class, page: u64, len: usize, memory: Memory) -> (u16, Piece) {
        let (part, placement, offset) = self.locate(page * PAGE_BYTES as u64);
        let piece = Piece {
            op,
            class,
            lock: crate::drive::locks::BlockLocks::index(part.file.key, placement.block),
            len: len as u32,
            offset,
            memory,
            ..Piece::sync(part.file)
        };
        (part.drive, piece)
    }

    /// Fills a wave on the calling thread, to the end. Pages whose sets want to be flushed after it are added to `over`.
    ///
    /// # Safety
    /// The memory of all spans is valid until this returns, and (for reads) nobody else's.
    pub(super) unsafe fn run_fills(
        &self,
        paged: &Paged,
        mut fills: Fills,
        class: Class,
        over: &mut Over,
    ) -> Result<()> {
        if fills.is_empty() {
            return Ok(());
        }
        fills.plan(self, paged);
        paged.note_fills(&fills);
        let mut first = Ok(());
        let done = |tag: u32, outcome: Outcome| {
            fills.end_run(paged, tag, outcome, &mut over.many);
            if first.is_ok() {
                first = outcome;
            }
        };
        let nowhere = (std::ptr::null(), 0);
        // SAFETY: the memory is frames, which the fills own until their ends, and lists in `fills`, which lives until then.
        let begun = unsafe { self.array().run_each(nowhere, fills.pieces(self, class), done) };
        if let Err(error) = begun {
            fills.fail(paged, Err(super::run::failure(Op::Read, error.errno().unwrap_or(libc::EIO))));
            return Err(error);
        }
        first.map_err(|failure| self.error(failure))
    }
}
