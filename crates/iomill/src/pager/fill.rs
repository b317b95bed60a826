//! [`Fills`]: the pages of a wave that one call fills, planned into as few I/Os as possible. Non-goals: running the I/O
//! (`complete`).

use std::ops::{Deref, Range};

use super::Paged;
use super::span::{Span, Want};
use crate::cache::{Cache, Fill, Outcome};
use crate::drive::{Class, NoSum, PAGE_BYTES, PIECE_BYTES, PageSum, Piece};
use crate::engine::{MAX_SEGMENTS, Memory, Op, Segment};
use crate::exec::FirstFailure;
use crate::file::FileState;
use crate::file::split::{IoRange, Lies, Splitter};
use crate::file::summed::doubted;
use crate::file::sums::Sums;
use crate::sys::copy::copy_bytes;
use crate::sys::sync::{AtomicU32, Ordering};

/// The number of pages by which the prefetch of memory for fills is ahead.
pub(super) const FETCH_AHEAD: usize = 4;

/// Pages that one call fills, each with its spans.
///
/// Every fill ends exactly once: by [`Fills::end_run`] for each run of `pieces`, by [`Fills::abandon`], or when this is
/// dropped, as by a panic (rule 6 of the cache). It is dropped after its pieces have ended.
#[derive(Debug)]
pub struct Fills<P: Deref<Target = Paged>> {
    paged: P,
    /// The use that the call makes of the pages once they are filled.
    want: Want,
    lists: FillLists,
    /// Pages with pieces of their own: only lists of files have them.
    across: Option<Box<Across>>,
}

/// The lists of [`Fills`]. A thread reuses those of earlier calls (`Local::spare_lists`).
#[derive(Debug, Default)]
pub(super) struct FillLists {
    /// In the order of pages.
    entries: Vec<PageFill>,
    /// The spans of entries after their first ones.
    more: Vec<Span>,
    runs: Vec<FillRun>,
    /// The frames of runs with several entries, as scattered memory.
    frames: Vec<Segment>,
    /// For a file with sums: that of each entry.
    sums: Vec<PageSum>,
}

impl FillLists {
    /// Frees the memory for spans of pages with many rows, if there were more than `most`.
    pub fn shorten(&mut self, most: usize) {
        if self.more.capacity() > most {
            self.more = Vec::new();
        }
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.more.clear();
        self.runs.clear();
        self.frames.clear();
        self.sums.clear();
    }
}

/// A page that the call fills.
#[derive(Debug)]
struct PageFill {
    fill: Fill,
    /// The first span of the page.
    span: Span,
    /// The range of its other spans in `Fills::more`.
    more: Range<usize>,
}

/// Pages of a list of files that straddle pages of their parts, or span several parts. Each is a run of its own.
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
    /// The number of pieces that have not ended.
    left: AtomicU32,
    first: FirstFailure,
}

impl AcrossRun {
    /// Counts a piece that has ended. The last piece returns the outcome of all.
    fn end(&self, outcome: Outcome) -> Option<Outcome> {
        self.first.keep(outcome);
        // AcqRel: the thread that ends the last piece sees the failures of the others, and their bytes.
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last.then(|| self.first.take().map_or(Ok(()), Err))
    }
}

/// Entries that one piece reads.
#[derive(Debug)]
struct FillRun {
    first: usize,
    count: usize,
    /// Index of its first frame in `FillLists::frames`, if it has several.
    listed: usize,
    /// Bytes to read. The last page of a part that is open for reading only may be short.
    len: usize,
    /// The number of its fills that have ended. Relaxed: only one thread ends a run.
    ended: AtomicU32,
}

// SAFETY: the pointers are to frames, which a fill owns, and to the memory of spans, which the call keeps valid until
// its end.
unsafe impl<P: Deref<Target = Paged> + Send> Send for Fills<P> {}
// SAFETY: after `plan` nothing changes by `&self` except `ended`, which is atomic.
unsafe impl<P: Deref<Target = Paged> + Sync> Sync for Fills<P> {}

impl Across {
    /// Adds the pieces of a page as a run with this number. The file holds the first `has` bytes of the page.
    fn add(&mut self, file: &FileState, run: u32, page: u64, has: usize, frame: *mut u8) {
        let io_range = IoRange { offset: page * PAGE_BYTES as u64, len: has, buf: frame };
        let before = self.pieces.len();
        let pieces = Splitter::new(file, Op::Read, Class::Foreground, std::iter::once(io_range));
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

/// The progress of an iteration over the pieces of [`Fills`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PiecesAt {
    run: usize,
    /// The number of pieces of `Across`.
    across: usize,
}

impl<P: Deref<Target = Paged>> Fills<P> {
    /// No pages yet.
    pub fn new(want: Want, paged: P) -> Fills<P> {
        Fills { paged, want, lists: FillLists::default(), across: None }
    }

    /// Removes the pages, which have all ended, so that the lists can be reused.
    pub fn clear(&mut self) {
        debug_assert!(self.lists.runs.iter().all(|run| run.ended.load(Ordering::Relaxed) as usize == run.count));
        self.lists.clear();
        self.across = None;
    }

    /// The use that the call makes of the pages.
    pub fn want(&self) -> Want {
        self.want
    }

    /// Adds a page with its first span. Pages are added in the order of the file.
    pub fn push(&mut self, fill: Fill, span: Span) {
        if self.lists.entries.capacity() == 0 {
            self.lists = self.paged.pager.with_local(|local| local.spare_lists());
        }
        let more = self.lists.more.len();
        debug_assert!(self.lists.entries.last().is_none_or(|before| page_of(before) < fill.key.page()));
        self.lists.entries.push(PageFill { fill, span, more: more..more });
    }

    /// Adds another span of the page that was added last. The spans of a page are served in this order.
    pub fn push_more(&mut self, span: Span) {
        if let Some(last) = self.lists.entries.last_mut() {
            self.lists.more.push(span);
            last.more.end = self.lists.more.len();
        }
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.lists.entries.len()
    }

    /// The number of runs of pages, after `plan`.
    pub fn runs(&self) -> usize {
        self.lists.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lists.entries.is_empty()
    }

    /// Joins adjacent pages of a block into runs. Nothing is added after this.
    pub fn plan(&mut self, file: &FileState) {
        if self.paged.sums.is_some() {
            self.take_sums();
        }
        if file.is_list() {
            self.plan_list(file);
        } else {
            let block_pages = file.block_bytes() / PAGE_BYTES as u64;
            self.plan_runs(file, |page| !page.is_multiple_of(block_pages));
        }
        let (pager, FillLists { entries, runs, frames, .. }) = (&self.paged.pager, &mut self.lists);
        let frame = |entry: &PageFill| pager.cache_of(entry.fill.key).filling(&entry.fill);
        for run in runs.iter_mut().filter(|run| run.count > 1) {
            run.listed = frames.len();
            let of_run = entries[run.first..run.first + run.count].iter();
            frames.extend(of_run.map(|entry| Segment { buf: frame(entry), len: PAGE_BYTES }));
        }
    }

    /// Takes the sums of the pages. They stay right, because nothing writes to a page that is being filled (rule 3 of
    /// `file::sums`, which rests on rule 3 of the cache). An error is not lost: it surfaces at the verification of the
    /// page, which has no sum.
    #[cold]
    fn take_sums(&mut self) {
        let FillLists { entries, sums: taken, .. } = &mut self.lists;
        let Some(sums) = &self.paged.sums else { return };
        taken.extend(entries.iter().map(|entry| sums.taken(page_of(entry))));
    }

    /// Makes the runs. `is_behind` says whether one piece can move a page together with the page before it.
    #[inline(always)]
    fn plan_runs(&mut self, file: &FileState, is_behind: impl Fn(u64) -> bool) {
        let (pager, FillLists { entries, runs, .. }) = (&self.paged.pager, &mut self.lists);
        let mut last: Option<(u64, bool)> = None;
        for (index, PageFill { fill, .. }) in entries.iter().enumerate() {
            let page = fill.key.page();
            let has = file.page_bytes(page);
            if has < PAGE_BYTES {
                pager.cache_of(fill.key).put_zeroes(fill, has);
            }
            let whole = has == PAGE_BYTES;
            let adjacent = last.is_some_and(|(before, all)| all && whole && before + 1 == page && is_behind(page));
            match runs.last_mut() {
                Some(run) if adjacent && run.count < MAX_SEGMENTS && run.len + PAGE_BYTES <= PIECE_BYTES => {
                    run.count += 1;
                    run.len += PAGE_BYTES;
                }
                _ => runs.push(FillRun { first: index, count: 1, listed: 0, len: has, ended: AtomicU32::new(0) }),
            }
            last = Some((page, whole));
        }
    }

    /// `plan` for a list of files.
    #[cold]
    fn plan_list(&mut self, file: &FileState) {
        self.plan_runs(file, |page| file.lies(page) == Lies::Behind && file.lies(page - 1) != Lies::Across);
        for (number, run) in self.lists.runs.iter().enumerate() {
            let fill = &self.lists.entries[run.first].fill;
            if file.lies(fill.key.page()) == Lies::Across {
                let frame = self.paged.pager.cache_of(fill.key).filling(fill);
                self.across.get_or_insert_default().add(file, number as u32, fill.key.page(), run.len, frame);
            }
        }
    }

    /// The pieces of the runs, tagged with the numbers of the runs.
    pub fn pieces<'a>(&'a self, file: &'a FileState, class: Class) -> impl Iterator<Item = (u16, Piece)> + 'a {
        let mut at = PiecesAt::default();
        std::iter::from_fn(move || self.next_piece(&mut at, file, class))
    }

    /// The next piece: one for each run that is not across.
    #[inline]
    pub fn next_piece(&self, at: &mut PiecesAt, file: &FileState, class: Class) -> Option<(u16, Piece)> {
        let across = self.across.as_deref();
        while let Some(run) = self.lists.runs.get(at.run) {
            let tag = at.run as u32;
            at.run += 1;
            if across.is_none_or(|across| across.find(tag).is_none()) {
                return Some(self.piece(run, tag, file, class));
            }
        }
        let &(drive, piece) = across?.pieces.get(at.across)?;
        at.across += 1;
        Some((drive, Piece { class, ..piece }))
    }

    /// The piece of a run that is not across.
    #[inline]
    fn piece(&self, run: &FillRun, tag: u32, file: &FileState, class: Class) -> (u16, Piece) {
        let (pager, fill) = (&self.paged.pager, &self.lists.entries[run.first].fill);
        let memory = match run.count {
            1 => Memory::one(pager.cache_of(fill.key).filling(fill)),
            _ => Memory::scatter(&self.lists.frames[run.listed..run.listed + run.count]),
        };
        let (drive, piece) = file.page_piece(Op::Read, class, fill.key.page(), run.len, memory);
        (drive, Piece { tag, ..piece })
    }

    /// Ends the fills of a run when its last piece has ended: serves the spans of the pages, and makes the pages
    /// visible to all threads. Appends pages to `over` if their sets need a flush now. Returns the outcome, which is an
    /// error if the bytes of a page could not be verified.
    #[must_use = "the bytes may not be proved"]
    pub fn end_run(&self, run: u32, outcome: Outcome, over: &mut Vec<u64>) -> Outcome {
        let ended = match &self.across {
            None => Some(outcome),
            Some(across) => across.end(run, outcome),
        };
        let Some(outcome) = ended else { return outcome };
        let mut first = outcome;
        let FillRun { first: begin, count, ended, .. } = &self.lists.runs[run as usize];
        // Runs mostly end in the order in which they began.
        if let Some(later) = self.lists.entries.get(begin + count + FETCH_AHEAD) {
            self.paged.prefetch(later.fill.key.page());
        }
        for index in ended.load(Ordering::Relaxed) as usize..*count {
            // Counted before its end: if the end panics, dropping `self` does not end this fill again, but ends the
            // fills after it.
            ended.store(index as u32 + 1, Ordering::Relaxed);
            let entry = &self.lists.entries[begin + index];
            let mut own = outcome;
            if let Some(sums) = &self.paged.sums {
                let sum = self.lists.sums.get(begin + index).copied().unwrap_or(Err(NoSum::Lost));
                own = self.paged.prove(sums, sum, &entry.fill, outcome);
                first = first.and(own);
            }
            let is_shared = outcome.is_err() && *count > 1;
            if let Some(page) = self.end(entry, own, is_shared) {
                over.push(page);
            }
        }
        first
    }

    /// Ends all unfinished fills without a result: their pieces could not begin. The caller reports the error. Waiting
    /// operations look their pages up again.
    pub fn abandon(&self) {
        for run in &self.lists.runs {
            let ended = run.ended.swap(run.count as u32, Ordering::Relaxed) as usize;
            self.abandon_entries(run.first + ended..run.first + run.count);
        }
    }

    fn abandon_entries(&self, entries: Range<usize>) {
        let fills = self.lists.entries[entries].iter().map(|entry| &entry.fill);
        fills.for_each(|fill| self.paged.pager.cache_of(fill.key).abandon_fill(*fill));
    }

    /// Serves the spans of a page once its bytes are in the frame. Its fill has not ended.
    #[inline(always)]
    fn copy(&self, cache: &Cache, fill: &Fill, span: &Span) {
        let (within, len) = (usize::from(span.within), usize::from(span.len));
        // SAFETY: the fill owns the frame until its end, the call keeps the span's memory valid, and the range is
        // within a page.
        unsafe {
            match self.want {
                Want::Read => copy_bytes(cache.filling(fill).wrapping_add(within), span.buf, len),
                Want::Write => cache.put(fill, within, span.buf, len),
                Want::Touch | Want::Ahead => {}
            }
        }
    }

    /// Ends a fill. Returns its page if the set needs a flush now. `is_shared` says that its I/O had other pages, too, and
    /// has failed.
    fn end(&self, entry: &PageFill, outcome: Outcome, is_shared: bool) -> Option<u64> {
        let (paged, PageFill { fill, span, more }) = (&*self.paged, entry);
        let cache = paged.pager.cache_of(fill.key);
        if outcome.is_ok() {
            self.copy(cache, fill, span);
            for span in &self.lists.more[more.clone()] {
                self.copy(cache, fill, span);
            }
        }
        // In both cases it is no failure of those that wait (rule 2 of `cache::wait`).
        if outcome.is_err() && (is_shared || self.want == Want::Ahead) {
            cache.abandon_fill(*fill);
            return None;
        }
        let dirty = cache.end_fill(*fill, outcome, outcome.is_ok() && self.want == Want::Write);
        (self.want == Want::Write && dirty > paged.pager.limits().set_dirty).then_some(span.page)
    }
}

impl<P: Deref<Target = Paged>> Drop for Fills<P> {
    fn drop(&mut self) {
        if self.lists.entries.capacity() == 0 {
            return;
        }
        self.abandon();
        // Entries without a plan.
        let planned = self.lists.runs.last().map_or(0, |run| run.first + run.count);
        self.abandon_entries(planned..self.lists.entries.len());
        let lists = std::mem::take(&mut self.lists);
        self.paged.pager.with_local(|local| local.keep_lists(lists));
    }
}

impl Paged {
    /// Verifies the bytes that were read into a frame, which should have this sum.
    #[cold]
    pub(super) fn prove(&self, sums: &Sums, sum: PageSum, fill: &Fill, outcome: Outcome) -> Outcome {
        outcome?;
        let frame = self.pager.cache_of(fill.key).filling(fill);
        // SAFETY: the fill owns the frame until its end.
        let bytes = unsafe { std::slice::from_raw_parts(frame.cast_const(), PAGE_BYTES) };
        let page = fill.key.page();
        sums.check_against(sum, page, bytes).map_err(|doubt| doubted(page, doubt))
    }
}

fn page_of(entry: &PageFill) -> u64 {
    entry.fill.key.page()
}
