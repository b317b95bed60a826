//! [`Todo`]: the remaining spans of a call, as waves. Non-goals: the work on a wave (`complete`).
//!
//! Rules:
//! 1. A wave has all spans of its pages, in the order of pages. So one I/O reads all rows of a page, from anywhere in a
//!    gather. Spans of one page keep their order: of two writes to one byte the later one wins.
//! 2. A span is moved once for each of its waves, and sorted once. So the time of a gather is proportional to its rows.
//! 3. At most `LIST_SPANS` spans are sorted at a time. A call that makes its spans as it goes lists no more at a time
//!    (`OpenFile::read_long`, `OpenFile::write_lists`). So the list of a gather of any length has a bounded size. A
//!    page is then read by one I/O for each list.

use super::span::Span;

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
    /// What was in `again` when the present wave began.
    now: Vec<Span>,
}

impl Todo {
    pub fn new(spans: Vec<Span>) -> Todo {
        Todo { spans, at: 0, ordered: 0, again: Vec::new(), now: Vec::new() }
    }

    /// Adds a span of the last wave to the next one. The page that it waited for is cached now, and may be evicted
    /// later.
    pub fn again(&mut self, span: Span) {
        self.again.push(span);
    }

    /// How many spans are left.
    pub fn len(&self) -> usize {
        self.spans.len() - self.at + self.again.len()
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next wave, of at most `most` pages, or of all spans that come again.
    #[inline]
    pub fn next(&mut self, most: usize) -> &[Span] {
        if self.at > 0 || self.spans.len() > most || !self.again.is_empty() {
            return self.cut(most);
        }
        // What most calls have.
        order(&mut self.spans);
        (self.at, self.ordered) = (self.spans.len(), self.spans.len());
        &self.spans
    }

    #[cold]
    #[inline(never)]
    fn cut(&mut self, most: usize) -> &[Span] {
        if !self.again.is_empty() {
            self.now.clear();
            std::mem::swap(&mut self.now, &mut self.again);
            order(&mut self.now);
            return &self.now;
        }
        if self.at == self.ordered {
            self.ordered += list_len(&self.spans[self.at..]);
            order(&mut self.spans[self.at..self.ordered]);
        }
        let pages = self.spans[self.at..self.ordered].chunk_by(|a, b| a.page == b.page);
        let count: usize = pages.take(most).map(<[Span]>::len).sum();
        self.at += count;
        &self.spans[self.at - count..self.at]
    }

    /// The memory of its list.
    pub fn into_spans(self) -> Vec<Span> {
        self.spans
    }
}

/// Cuts spans into two lists at a page's edge, near the middle.
pub(super) fn halve(mut spans: Vec<Span>) -> (Vec<Span>, Vec<Span>) {
    order(&mut spans);
    let middle = spans.len() / 2;
    let last = spans.get(middle).map(|span| span.page);
    let same = spans[middle..].iter().take_while(|span| Some(span.page) == last).count();
    let second = spans.split_off(middle + same);
    (spans, second)
}

/// Splits off and returns the spans of the last page of `list`: the next list may have more spans of that page. If all
/// spans are of one page, the list stays whole.
pub(super) fn split_list(list: &mut Vec<Span>) -> Vec<Span> {
    let last = list.last().map(|span| span.page);
    let before = list.iter().rposition(|span| Some(span.page) != last);
    before.map_or_else(Vec::new, |before| list.split_off(before + 1))
}

/// The number of spans to sort at a time: `LIST_SPANS`, and the following spans of the last page. Sorted spans are cut
/// between pages.
fn list_len(spans: &[Span]) -> usize {
    let Some(last) = spans.get(LIST_SPANS - 1) else { return spans.len() };
    LIST_SPANS + spans[LIST_SPANS..].iter().take_while(|span| span.page == last.page).count()
}

/// Rule 1.
#[inline]
pub(super) fn order(spans: &mut [Span]) {
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
        let (mut todo, mut waves) = (Todo::new(list), Vec::new());
        while !todo.is_empty() {
            let wave = todo.next(most).to_vec();
            assert_eq!(todo.spans.as_ptr(), place, "the list was copied");
            waves.push(wave);
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
        let wave = todo.next(2).to_vec();
        wave.iter().rev().for_each(|span| todo.again(*span));
        assert_eq!(todo.len(), 5);
        assert_eq!(todo.next(2).iter().map(|span| span.page).collect::<Vec<_>>(), [1, 2]);
        assert!(!todo.is_empty());
        assert_eq!(todo.next(9).len(), 3);
        assert!(todo.is_empty());
    }

    #[test]
    fn halves_have_no_page_in_common() {
        for rows in [0, 1, 2, 7, 100] {
            for same in [1, 3, 1000] {
                let (first, second) = halve(spans((0..rows).rev().map(|row| row / same)));
                assert_eq!(first.len() + second.len(), rows as usize);
                let edge = first.last().zip(second.first());
                assert!(edge.is_none_or(|(last, next)| last.page < next.page), "{rows} {same}");
                assert!(second.len() <= first.len() + 1);
            }
        }
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
