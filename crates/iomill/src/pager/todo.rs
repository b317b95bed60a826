//! [`Todo`]: the spans that a call has still to move, as waves. Non-goals: what is done with a wave (`complete`).
//!
//! Rules:
//! 1. A wave has all spans of its pages, in the order of pages. So rows of one page are read by one I/O, wherever they are in a gather. Spans
//!    of one page keep their order: of two writes to one byte the later one counts.
//! 2. A span is moved once for each wave that has it, and put in order once. So a gather costs time in proportion to its rows.
//! 3. At most `LIST_SPANS` spans are put in order at a time. A call that does not have its spans in memory yet lists no more at a time
//!    (`read_long`, `write_lists`). So its list has a bounded size, however many rows a gather has. A page is then read by one I/O for each list.

use super::Paged;
use super::open::OpenFile;
use super::span::{Span, Want};
use crate::drive::Class;
use crate::error::Result;
use crate::exec::{Exec, Io};
use crate::file::Entered;
use crate::file::split::Extent;

/// A list takes 24 MiB at most, and as much again for spans that are not in the order of pages.
pub const LIST_SPANS: usize = 1 << 20;

/// See the module.
pub(super) struct Todo {
    spans: Vec<Span>,
    /// Those before it have been in a wave.
    at: usize,
    /// From `at` up to here they are in the order of pages.
    ordered: usize,
    /// Spans of the last wave that are to be in the next.
    again: Vec<Span>,
}

impl Todo {
    pub fn new(spans: Vec<Span>) -> Todo {
        Todo { spans, at: 0, ordered: 0, again: Vec::new() }
    }

    /// Adds a span of the last wave to the next one. The page that it waited for is there now, and may be gone again later.
    pub fn again(&mut self, span: Span) {
        self.again.push(span);
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.at == self.spans.len() && self.again.is_empty()
    }

    /// Puts the next wave of at most `most` pages into `wave`, which then has nothing else.
    #[inline]
    pub fn next(&mut self, most: usize, wave: &mut Vec<Span>) {
        if self.at == 0 && self.spans.len() <= most && self.again.is_empty() {
            // What most calls have.
            *wave = std::mem::take(&mut self.spans);
            order(wave);
        } else {
            self.cut(most, wave);
        }
    }

    #[cold]
    #[inline(never)]
    fn cut(&mut self, most: usize, wave: &mut Vec<Span>) {
        wave.clear();
        if !self.again.is_empty() {
            std::mem::swap(wave, &mut self.again);
            return order(wave);
        }
        if self.at == self.ordered {
            self.ordered += list_len(&self.spans[self.at..]);
            order(&mut self.spans[self.at..self.ordered]);
        }
        let pages = self.spans[self.at..self.ordered].chunk_by(|a, b| a.page == b.page);
        let count: usize = pages.take(most).map(<[Span]>::len).sum();
        wave.extend_from_slice(&self.spans[self.at..self.at + count]);
        self.at += count;
    }
}

impl OpenFile {
    /// Reads extents through the cache, list by list. The calling thread waits, and is not inside the gate. `check` says whether the extents are within
    /// the file: the file may have shrunk before this call is inside.
    ///
    /// # Safety
    /// The extents' memory is writable, and nothing else uses it until this returns.
    #[cold]
    #[inline(never)]
    pub unsafe fn read_long(
        &self,
        paged: &Paged,
        extents: &mut dyn Iterator<Item = Extent>,
        class: Class,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let (io, mut missing, mut entered) = (self.exec().blocking(), Vec::new(), None);
        loop {
            let (most, mut taken) = (LIST_SPANS - missing.len(), 0);
            // SAFETY: the caller's promise.
            unsafe { paged.read_many((&mut *extents).take(most).inspect(|_| taken += 1), &mut missing) };
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
}

/// Leaves a list in `list`, and returns the spans of its last page: they belong to the next one, which may have more of them. All spans of one page are
/// a list whatever comes.
fn split_list(list: &mut Vec<Span>) -> Vec<Span> {
    let last = list.last().map(|span| span.page);
    let before = list.iter().rposition(|span| Some(span.page) != last);
    before.map_or_else(Vec::new, |before| list.split_off(before + 1))
}

/// How many of some spans are put in order at a time: `LIST_SPANS`, and those of the last page that follow. Spans in order are cut between pages.
fn list_len(spans: &[Span]) -> usize {
    let Some(last) = spans.get(LIST_SPANS - 1) else { return spans.len() };
    LIST_SPANS + spans[LIST_SPANS..].iter().take_while(|span| span.page == last.page).count()
}

/// Rule 1.
#[inline]
fn order(spans: &mut [Span]) {
    if spans.len() > 1 && !spans.is_sorted_by_key(|span| span.page) {
        spans.sort_by_key(|span| span.page);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Spans of pages. Each names its place in the list by its address.
    fn spans(pages: impl Iterator<Item = u64>) -> Vec<Span> {
        let span = |(number, page)| Span { buf: std::ptr::without_provenance_mut(number), ..Span::of_page(page) };
        pages.enumerate().map(span).collect()
    }

    /// All waves of a list, and how many spans were in them together.
    fn waves(list: Vec<Span>, most: usize) -> (Vec<Vec<Span>>, usize) {
        let place = list.as_ptr();
        let (mut todo, mut wave, mut waves) = (Todo::new(list), Vec::new(), Vec::new());
        while !todo.is_empty() {
            todo.next(most, &mut wave);
            waves.push(wave.clone());
            assert!(todo.spans.is_empty() || todo.spans.as_ptr() == place, "the list was copied");
        }
        let moved = waves.iter().map(Vec::len).sum();
        (waves, moved)
    }

    /// Each wave copied the spans that were left, and had one span of each page.
    #[test]
    fn each_span_is_in_one_wave_and_each_page_too() {
        let mut random = fastrand::Rng::with_seed(7);
        for (rows, pages, most) in [(1, 1, 1), (5000, 100, 7), (5000, 5000, 1024), (70, 3, 100), (100, 1, 1)] {
            for is_sorted in [false, true] {
                let mut wanted: Vec<u64> = (0..rows).map(|_| random.u64(0..pages)).collect();
                if is_sorted {
                    wanted.sort_unstable();
                }
                let (waves, moved) = waves(spans(wanted.iter().copied()), most);
                assert_eq!(moved, rows);
                let of_wave = |wave: &Vec<Span>| wave.iter().map(|span| span.page).collect::<BTreeSet<u64>>();
                let distinct: Vec<BTreeSet<u64>> = waves.iter().map(of_wave).collect();
                assert!(distinct.iter().all(|pages| pages.len() <= most));
                let all: BTreeSet<u64> = wanted.iter().copied().collect();
                assert_eq!(distinct.iter().map(BTreeSet::len).sum::<usize>(), all.len(), "a page is in two waves");
                for wave in &waves {
                    let place = |span: &Span| (span.page, span.buf.addr());
                    assert!(wave.is_sorted_by_key(place), "of one page the first comes first");
                }
            }
        }
    }

    /// A list that is cut takes what lies in order to the end of a page, and otherwise no more than a list.
    #[test]
    fn a_long_list_is_cut_between_pages() {
        let rows = 2 * LIST_SPANS + 100;
        let (waves, moved) = waves(spans((0..rows as u64).map(|row| row / 3)), 1024);
        assert_eq!(moved, rows);
        let starts = waves.iter().map(|wave| wave[0].page).collect::<BTreeSet<u64>>();
        assert_eq!(starts.len(), waves.len());
        assert!(waves.windows(2).all(|two| two[0].last().unwrap().page < two[1][0].page));
    }

    #[test]
    fn spans_that_come_again_are_the_next_wave() {
        let mut todo = Todo::new(spans([5, 4, 3, 2, 1].into_iter()));
        let mut wave = Vec::new();
        todo.next(2, &mut wave);
        wave.iter().rev().for_each(|span| todo.again(*span));
        todo.next(2, &mut wave);
        assert_eq!(wave.iter().map(|span| span.page).collect::<Vec<_>>(), [1, 2]);
        assert!(!todo.is_empty());
        todo.next(9, &mut wave);
        assert_eq!(wave.len(), 3);
        assert!(todo.is_empty());
    }

    #[test]
    fn lists_are_split_between_pages() {
        let mut list = spans((0..100).map(|row| row / 3));
        let rest = split_list(&mut list);
        assert_eq!((list.len(), rest.len(), rest[0].page), (99, 1, 33));
        let mut same = spans(std::iter::repeat_n(1, 100));
        assert!(split_list(&mut same).is_empty() && same.len() == 100);
        assert!(split_list(&mut Vec::new()).is_empty());
    }
}
