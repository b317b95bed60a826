//! [`Fills`]: the pages of a wave that one call fills, with as few I/Os as possible. Non-goals: running the I/O (`complete`).

use std::ops::{Deref, Range};

use super::Paged;
use super::span::{Span, Want};
use crate::cache::{Cache, Fill, Outcome};
use crate::drive::{Class, PAGE_BYTES, PIECE_BYTES, Piece};
use crate::engine::{MAX_SEGMENTS, Memory, Op, Segment};
use crate::exec::FirstFailure;
use crate::file::FileState;
use crate::file::split::{Extent, Lies, Splitter};
use crate::sys::copy::copy_bytes;
use crate::sys::sync::{AtomicU32, Ordering};

/// How many pages ahead the memory for filling a page is prefetched.
pub(super) const FETCH_AHEAD: usize = 4;

/// Pages that one call fills, each with what the call wants of it.
///
/// Every fill in it ends exactly once: by [`Fills::end_run`] for each run of `pieces`, by [`Fills::abandon`], or when this is dropped, as
/// by a panic (rule 6 of the cache). It is dropped after its pieces have ended.
#[derive(Debug)]
pub struct Fills<P: Deref<Target = Paged>> {
    paged: P,
    /// What the call does with the pages when they are there.
    want: Want,
    /// In the order of pages after `plan`.
    entries: Vec<Entry>,
    /// What entries want beside their first spans.
    more: Vec<Span>,
    runs: Vec<Run>,
    /// The frames of runs with several entries, as scattered memory.
    list: Vec<Segment>,
    /// Pages that take pieces of their own, if there are any: only lists of files have them.
    across: Option<Box<Across>>,
    /// Most pages that there will be.
    room: usize,
}

/// A page that the call fills.
#[derive(Debug)]
struct Entry {
    fill: Fill,
    /// What the call wants of it.
    span: Span,
    /// Where the rest of that is in `Fills::more`.
    more: Range<usize>,
}

/// Pages of a list of files that lie across pages of their parts, or in several parts. Each is a run of its own.
#[derive(Debug, Default)]
struct Across {
    /// Each with the number of its run as its tag.
    pieces: Vec<(u16, Piece)>,
    /// In the order of their numbers.
    runs: Vec<AcrossRun>,
}

/// The pieces of one page.
#[derive(Debug)]
struct AcrossRun {
    /// Its number.
    run: u32,
    /// How many have not ended.
    left: AtomicU32,
    first: FirstFailure,
}

impl AcrossRun {
    /// Counts a piece that has ended. Returns the outcome of all when the last one has.
    fn end(&self, outcome: Outcome) -> Option<Outcome> {
        self.first.keep(outcome);
        // AcqRel: the thread that ends the last piece sees the failures of the others, and their bytes.
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last.then(|| self.first.take().map_or(Ok(()), Err))
    }
}

/// Entries that one piece reads.
#[derive(Debug)]
struct Run {
    first: usize,
    count: usize,
    /// Index of its first frame in the list, if it has several.
    listed: usize,
    /// Bytes to read. The last page of a part that is open for reading only may be short.
    len: usize,
    /// How many of its fills have ended. Relaxed: only one thread ends a run.
    ended: AtomicU32,
}

// SAFETY: the pointers are to frames, which a fill owns, and to the memory of spans, which the call keeps valid until its end.
unsafe impl<P: Deref<Target = Paged> + Send> Send for Fills<P> {}
// SAFETY: after `plan` nothing changes by `&self` except `ended`, which is atomic.
unsafe impl<P: Deref<Target = Paged> + Sync> Sync for Fills<P> {}

impl Across {
    /// Adds the pieces of a page, of which the file holds `has` bytes, as a run with this number.
    fn add(&mut self, file: &FileState, run: u32, page: u64, has: usize, frame: *mut u8) {
        let extent = Extent { offset: page * PAGE_BYTES as u64, len: has, buf: frame };
        let before = self.pieces.len();
        let pieces = Splitter::new(file, Op::Read, Class::Foreground, std::iter::once(extent));
        self.pieces.extend(pieces.map(|(drive, piece)| (drive, Piece { tag: run, ..piece })));
        let left = AtomicU32::new((self.pieces.len() - before) as u32);
        self.runs.push(AcrossRun { run, left, first: FirstFailure::default() });
    }

    /// Counts a piece of a run that has ended. Returns the outcome of the run if it was the last one.
    #[cold]
    fn end(&self, run: u32, outcome: Outcome) -> Option<Outcome> {
        self.find(run).map_or(Some(outcome), |pieces| pieces.end(outcome))
    }

    fn find(&self, run: u32) -> Option<&AcrossRun> {
        self.runs.binary_search_by_key(&run, |across| across.run).ok().map(|index| &self.runs[index])
    }
}

/// The pieces of all runs, one for each run but those across. Their tags are the numbers of the runs.
struct Pieces<'a, P: Deref<Target = Paged>> {
    fills: &'a Fills<P>,
    file: &'a FileState,
    class: Class,
    run: usize,
    /// How many pieces of `Across` have come.
    across: usize,
}

impl<P: Deref<Target = Paged>> Iterator for Pieces<'_, P> {
    type Item = (u16, Piece);

    #[inline]
    fn next(&mut self) -> Option<(u16, Piece)> {
        let across = self.fills.across.as_deref();
        while let Some(run) = self.fills.runs.get(self.run) {
            let tag = self.run as u32;
            self.run += 1;
            if across.is_none_or(|across| across.find(tag).is_none()) {
                return Some(self.fills.piece(run, tag, self.file, self.class));
            }
        }
        let &(drive, piece) = across?.pieces.get(self.across)?;
        self.across += 1;
        Some((drive, Piece { class: self.class, ..piece }))
    }
}

impl<P: Deref<Target = Paged>> Fills<P> {
    /// No pages yet. There will be at most `room` pages, and memory for them is allocated with the first one.
    pub fn new(want: Want, paged: P, room: usize) -> Fills<P> {
        let (entries, more, runs, list) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Fills { paged, want, entries, more, runs, list, across: None, room }
    }

    /// What the call does with the pages.
    pub fn want(&self) -> Want {
        self.want
    }

    /// Adds a page and what the call wants of it.
    pub fn push(&mut self, fill: Fill, span: Span) {
        if self.entries.capacity() == 0 {
            self.entries = Vec::with_capacity(self.room);
        }
        let more = self.more.len();
        self.entries.push(Entry { fill, span, more: more..more });
    }

    /// Adds what the call also wants of the page that was added last. It does that in the order of the spans.
    pub fn push_more(&mut self, span: Span) {
        if let Some(last) = self.entries.last_mut() {
            self.more.push(span);
            last.more.end = self.more.len();
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many runs of pages they are, after `plan`.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Joins adjacent pages of a block into runs. Nothing is added after this.
    pub fn plan(&mut self, file: &FileState) {
        if !self.entries.is_sorted_by_key(page_of) {
            self.entries.sort_unstable_by_key(page_of);
        }
        self.runs.reserve(self.entries.len());
        if file.is_list() {
            self.plan_list(file);
        } else {
            let block_pages = file.block_bytes() / PAGE_BYTES as u64;
            self.plan_runs(file, |page| !page.is_multiple_of(block_pages));
        }
        for run in self.runs.iter_mut().filter(|run| run.count > 1) {
            let pager = &self.paged.pager;
            run.listed = self.list.len();
            let frames = self.entries[run.first..run.first + run.count].iter();
            self.list.extend(
                frames
                    .map(|Entry { fill, .. }| Segment { buf: pager.cache_of(fill.key).filling(fill), len: PAGE_BYTES }),
            );
        }
    }

    /// Makes the runs. `is_behind` says whether one piece can move a page with the page before it.
    #[inline(always)]
    fn plan_runs(&mut self, file: &FileState, is_behind: impl Fn(u64) -> bool) {
        let pager = &self.paged.pager;
        let mut last: Option<(u64, bool)> = None;
        for (index, Entry { fill, .. }) in self.entries.iter().enumerate() {
            let page = fill.key.page();
            let has = file.page_bytes(page);
            if has < PAGE_BYTES {
                pager.cache_of(fill.key).put_zeroes(fill, has);
            }
            let whole = has == PAGE_BYTES;
            let adjacent = last.is_some_and(|(before, all)| all && whole && before + 1 == page && is_behind(page));
            match self.runs.last_mut() {
                Some(run) if adjacent && run.count < MAX_SEGMENTS && run.len + PAGE_BYTES <= PIECE_BYTES => {
                    run.count += 1;
                    run.len += PAGE_BYTES;
                }
                _ => self.runs.push(Run { first: index, count: 1, listed: 0, len: has, ended: AtomicU32::new(0) }),
            }
            last = Some((page, whole));
        }
    }

    /// The same for a list of files.
    #[cold]
    fn plan_list(&mut self, file: &FileState) {
        self.plan_runs(file, |page| file.lies(page) == Lies::Behind && file.lies(page - 1) != Lies::Across);
        for (number, run) in self.runs.iter().enumerate() {
            let fill = &self.entries[run.first].fill;
            if file.lies(fill.key.page()) == Lies::Across {
                let frame = self.paged.pager.cache_of(fill.key).filling(fill);
                self.across.get_or_insert_default().add(file, number as u32, fill.key.page(), run.len, frame);
            }
        }
    }

    /// The pieces that fill the runs, with the numbers of the runs as their tags.
    pub fn pieces<'a>(&'a self, file: &'a FileState, class: Class) -> impl Iterator<Item = (u16, Piece)> + 'a {
        Pieces { fills: self, file, class, run: 0, across: 0 }
    }

    /// The piece of a run that is not across.
    #[inline]
    fn piece(&self, run: &Run, tag: u32, file: &FileState, class: Class) -> (u16, Piece) {
        let (pager, fill) = (&self.paged.pager, &self.entries[run.first].fill);
        let memory = match run.count {
            1 => Memory::one(pager.cache_of(fill.key).filling(fill)),
            _ => Memory::scatter(&self.list[run.listed..run.listed + run.count]),
        };
        let (drive, piece) = file.page_piece(Op::Read, class, fill.key.page(), run.len, memory);
        (drive, Piece { tag, ..piece })
    }

    /// Ends the fills of a run when its last piece has ended: does with the pages what the call wants, and shows them to all threads.
    /// Appends pages to `over` if their sets need a flush now.
    pub fn end_run(&self, run: u32, outcome: Outcome, over: &mut Vec<u64>) {
        let ended = match &self.across {
            None => Some(outcome),
            Some(across) => across.end(run, outcome),
        };
        let Some(outcome) = ended else { return };
        let Run { first, count, ended, .. } = &self.runs[run as usize];
        // Runs mostly end in the order in which they began.
        if let Some(later) = self.entries.get(first + count + FETCH_AHEAD) {
            self.paged.prefetch(later.fill.key.page());
        }
        for index in ended.load(Ordering::Relaxed) as usize..*count {
            // Counted before its end: if the end panics, dropping `self` does not end it again, but ends those after it.
            ended.store(index as u32 + 1, Ordering::Relaxed);
            if let Some(page) = self.end(&self.entries[first + index], outcome) {
                over.push(page);
            }
        }
    }

    /// Ends all fills that have not ended, without a result: their pieces could not begin. The caller reports the error. Waiting operations
    /// look again.
    pub fn abandon(&self) {
        for run in &self.runs {
            let ended = run.ended.swap(run.count as u32, Ordering::Relaxed) as usize;
            self.abandon_entries(run.first + ended..run.first + run.count);
        }
    }

    fn abandon_entries(&self, entries: Range<usize>) {
        let fills = self.entries[entries].iter().map(|entry| &entry.fill);
        fills.for_each(|fill| self.paged.pager.cache_of(fill.key).abandon_fill(*fill));
    }

    /// Does with a page that is there what the call wants of it. Its fill has not ended.
    #[inline(always)]
    fn copy(&self, cache: &Cache, fill: &Fill, span: &Span) {
        let (within, len) = (usize::from(span.within), usize::from(span.len));
        // SAFETY: the fill owns the frame until its end, the call keeps the span's memory valid, and the range is within a page.
        unsafe {
            match self.want {
                Want::Read => copy_bytes(cache.filling(fill).wrapping_add(within), span.buf, len),
                Want::Write => cache.put(fill, within, span.buf, len),
                Want::Touch | Want::Ahead => {}
            }
        }
    }

    /// Ends a fill. Returns its page if the set needs a flush now.
    fn end(&self, entry: &Entry, outcome: Outcome) -> Option<u64> {
        let (paged, Entry { fill, span, more }) = (&*self.paged, entry);
        let cache = paged.pager.cache_of(fill.key);
        if outcome.is_ok() {
            self.copy(cache, fill, span);
            for span in &self.more[more.clone()] {
                self.copy(cache, fill, span);
            }
        }
        if outcome.is_err() && self.want == Want::Ahead {
            cache.abandon_fill(*fill);
            return None;
        }
        let dirty = cache.end_fill(*fill, outcome, outcome.is_ok() && self.want == Want::Write);
        (self.want == Want::Write && dirty > paged.pager.limits().set_dirty).then_some(span.page)
    }
}

impl<P: Deref<Target = Paged>> Drop for Fills<P> {
    fn drop(&mut self) {
        self.abandon();
        // Entries without a plan.
        let planned = self.runs.last().map_or(0, |run| run.first + run.count);
        self.abandon_entries(planned..self.entries.len());
    }
}

fn page_of(entry: &Entry) -> u64 {
    entry.fill.key.page()
}
