//! Reading pages into the cache before a call needs them: read-ahead of a handle ([`ReadAhead`]), and ranges of the
//! advice `WillNeed` (`wanted`).
//!
//! Goals: a sequential reader finds its pages in the cache; random reads have no measurable extra cost. Non-goals:
//! guessing strides, and reading backwards.
//!
//! A handle keeps a few streams: positions from which a thread seems to read one page after the other. A read checks
//! them when it misses a page. A hit checks them only if it reaches the end of a chunk of the file, and only while a
//! stream has a window. All other hits cost the same as without read-ahead.
//!
//! Rules:
//! 1. Pages in flight that no call has asked for are at most an eighth of the cache (`AheadQuota`), so that they do not
//!    evict each other.
//! 2. No thread waits to begin read-ahead: if a lock is taken, the gate is closed or the quota is used up, read-ahead
//!    is skipped. Advice is queued again while the quota is used up, and the end of a quota resumes it.
//! 3. A read-ahead is a spawned operation: it owns itself, and holds the file inside its gate until it has ended.

use std::ops::Range;
use std::sync::Arc;

use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, Want};
use super::wanted::Then;
use super::{Paged, Pager};
use crate::drive::{Class, PAGE_BYTES};
use crate::error::Result;
use crate::exec::pools::Pool;
use crate::exec::task::spawn;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// The number of pages in a stream's first window.
const FIRST_PAGES: u64 = 4;

/// `FIRST_PAGES` for a handle with the advice `Sequential`.
const SEQUENTIAL_FIRST_PAGES: u64 = 32;

/// The factor by which the windows of such a handle are larger.
const SEQUENTIAL_TIMES: u64 = 2;

/// The number of pages in the largest window.
const WINDOW_MAX_PAGES: u64 = 1024;

/// The largest window has 1/`WINDOW_SHARE` of the cache.
const WINDOW_SHARE: u64 = 16;

/// See rule 1.
const ON_ITS_WAY_SHARE: u64 = 8;

/// A range with the advice `WillNeed` brings in at most 1/`NEEDED_SHARE` of the cache.
const NEEDED_SHARE: u64 = 2;

/// Streams of a handle.
const STREAMS: usize = 8;

/// Only a hit that reaches a multiple of this many pages checks whether its stream needs the next window.
pub const CHUNK_PAGES: u64 = 16;

/// The advice for a handle's reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// No advice: read-ahead follows from the reads.
    Unknown,
    /// At random.
    Random,
    /// One page after the other.
    Sequential,
}

/// The read-ahead of a handle.
#[derive(Debug)]
pub struct ReadAhead {
    /// Pages of the largest window; 0 for no read-ahead.
    window_pages: u64,
    pattern: AtomicU32,
    /// Whether any stream has a window.
    active: AtomicU32,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    all: [Stream; STREAMS],
    clock: u64,
}

/// A position from which a thread reads, or may read, one page after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The last page that is known to have been read.
    last: u64,
    /// The end of the last window.
    end: u64,
    /// Pages of the last window; 0 before the first.
    window: u64,
    /// The next window begins when a read reaches this page.
    mark: u64,
    /// The clock's value at the last read that continued the stream; 0 for none.
    used: u64,
}

/// The sizes of windows in pages.
#[derive(Clone, Copy, Debug)]
struct Windows {
    first: u64,
    most: u64,
    /// Whether the first window begins at the first miss, without a second read that follows it.
    at_once: bool,
}

impl Stream {
    /// Whether a read from `page` on continues this stream.
    fn goes_on(&self, page: u64) -> bool {
        self.used > 0 && page >= self.last && page <= self.end.max(self.last + 1)
    }

    /// Notes that a read has reached `last`. Returns the pages to read ahead now.
    fn come_to(&mut self, last: u64, windows: Windows) -> Option<Range<u64>> {
        self.last = last;
        if self.window > 0 && last < self.mark {
            return None;
        }
        self.window = if self.window == 0 { windows.first } else { self.window * 2 }.min(windows.most);
        self.mark = self.end.max(last + 1);
        self.end = self.mark + self.window;
        Some(self.mark..self.end)
    }
}

impl Streams {
    /// Notes a read of these pages that has missed. Returns the pages to read ahead.
    fn missed(&mut self, pages: Range<u64>, windows: Windows) -> Option<Range<u64>> {
        self.clock += 1;
        let (clock, last) = (self.clock, pages.end.saturating_sub(1).max(pages.start));
        if let Some(stream) = self.all.iter_mut().find(|stream| stream.goes_on(pages.start)) {
            stream.used = clock;
            return stream.come_to(last, windows);
        }
        let stream = self.all.iter_mut().min_by_key(|stream| stream.used)?;
        *stream = Stream { last, used: clock, ..Stream::default() };
        if windows.at_once { stream.come_to(last, windows) } else { None }
    }

    /// Notes a hit that has reached the end of this page. Returns the pages to read ahead.
    fn passed(&mut self, page: u64, windows: Windows) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let stream = self.all.iter_mut().find(|stream| stream.window > 0 && stream.goes_on(page))?;
        stream.used = clock;
        stream.come_to(page, windows)
    }

    /// Notes that a window was not begun.
    fn take_back(&mut self, range: &Range<u64>) {
        if let Some(stream) = self.all.iter_mut().find(|stream| stream.window > 0 && stream.end == range.end) {
            (stream.end, stream.window) = (range.start, 0);
        }
    }

    fn is_active(&self) -> bool {
        self.all.iter().any(|stream| stream.window > 0)
    }
}

impl ReadAhead {
    /// For a new handle, with windows of up to `window_bytes`.
    pub fn new(window_bytes: u64) -> ReadAhead {
        ReadAhead {
            window_pages: window_bytes.div_ceil(PAGE_BYTES as u64).min(WINDOW_MAX_PAGES),
            pattern: AtomicU32::new(Pattern::Unknown as u32),
            active: AtomicU32::new(0),
            streams: Mutex::default(),
        }
    }

    /// Notes the advice for the handle.
    pub fn expect(&self, pattern: Pattern) {
        self.pattern.store(pattern as u32, Ordering::Relaxed);
        if pattern == Pattern::Random {
            *lock(&self.streams) = Streams::default();
            self.active.store(0, Ordering::Relaxed);
        }
    }

    /// Takes over the advice of another handle, without its lock.
    pub fn expect_as(&self, other: &ReadAhead) {
        self.pattern.store(other.pattern.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The sizes of this handle's windows with this cache. `None` for no read-ahead.
    fn windows(&self, pager: &Pager) -> Option<Windows> {
        let pattern = self.pattern.load(Ordering::Relaxed);
        if self.window_pages == 0 || pattern == Pattern::Random as u32 {
            return None;
        }
        let at_once = pattern == Pattern::Sequential as u32;
        let (first, times) = if at_once { (SEQUENTIAL_FIRST_PAGES, SEQUENTIAL_TIMES) } else { (FIRST_PAGES, 1) };
        let room = (pager.pages() / WINDOW_SHARE).min(WINDOW_MAX_PAGES);
        let most = (self.window_pages * times).min(room);
        (most > 0).then(|| Windows { first: first.min(most), most, at_once })
    }

    /// Notes a read of these pages of a file that has missed at least one.
    pub fn missed(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, pages: Range<u64>) {
        let Some(windows) = self.windows(&paged.pager) else { return };
        self.look(file, paged, |streams| streams.missed(pages, windows));
    }

    /// Notes a read that has found all its pages, and reaches the end of a chunk at this page.
    pub fn passed(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, page: u64) {
        if self.active.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(windows) = self.windows(&paged.pager) else { return };
        self.look(file, paged, |streams| streams.passed(page, windows));
    }

    fn look(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, next: impl FnOnce(&mut Streams) -> Option<Range<u64>>) {
        // If another thread that reads by this handle has the lock, this check is skipped (rule 2).
        let Ok(mut streams) = self.streams.try_lock() else { return };
        let range = next(&mut streams);
        if let Some(range) = &range
            && range.start >= file.end_page()
        {
            return;
        }
        let active = u32::from(streams.is_active());
        if self.active.load(Ordering::Relaxed) != active {
            self.active.store(active, Ordering::Relaxed);
        }
        // Begun without the lock, because in the inline mode this call does the whole read.
        drop(streams);
        let Some(range) = range else { return };
        match file.start_ahead(paged, range.clone(), None) {
            Ok(Start::Done) => {}
            Ok(_) => lock(&self.streams).take_back(&range),
            Err(error) => {
                self.expect(Pattern::Random);
                file.exec().notice(format!("no read-ahead of {:?}: {error}", file.file.name()));
            }
        }
    }
}

/// A count of pages in flight that no call has asked for (rule 1).
#[derive(Debug)]
pub struct AheadQuota {
    pager: Arc<Pager>,
    pages: u64,
}

impl AheadQuota {
    fn take(pager: &Arc<Pager>, pages: u64) -> Option<AheadQuota> {
        let more = |before| Some(before + pages).filter(|&all| all <= AheadQuota::most(pager));
        pager.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(AheadQuota { pager: Arc::clone(pager), pages })
    }

    /// The most pages of all quotas together.
    fn most(pager: &Pager) -> u64 {
        pager.pages() / ON_ITS_WAY_SHARE
    }
}

impl Drop for AheadQuota {
    fn drop(&mut self) {
        // AcqRel: pairs with the Acquire in `go_on`.
        self.pager.ahead.fetch_sub(self.pages, Ordering::AcqRel);
        if let Some(resume) = self.pager.wanted.take_resume() {
            resume();
        }
    }
}

/// The result of an attempt to read ahead.
enum Start {
    /// It has begun, or there was nothing to do.
    Done,
    /// The quota is used up.
    NoQuota,
    /// The file's length is being changed, the array is being closed, or a drive has no room for background work.
    NotNow,
}

/// Runs `Then` when it is dropped, also by a panic.
struct AtEnd(Option<Then>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|then| then());
    }
}

impl OpenFile {
    /// Begins to read pages into the cache that a call may need soon, if that takes no wait (rule 2). The thread that
    /// completes the read-ahead calls `then`. If the read-ahead has not begun, `then` is not called.
    fn start_ahead(self: &Arc<Self>, paged: &Arc<Paged>, pages: Range<u64>, then: Option<Then>) -> Result<Start> {
        let cell = self.exec().cell_for(Class::Background)?;
        let Some(entered) = EnteredFile::try_enter(self) else { return Ok(Start::NotNow) };
        let pages = pages.start..pages.end.min(self.end_page()).max(pages.start);
        let Some(quota) = AheadQuota::take(&paged.pager, pages.end - pages.start) else { return Ok(Start::NoQuota) };
        let spans: Vec<Span> = pages.filter(|&page| !paged.is_there(page)).map(Span::of_page).collect();
        if spans.is_empty() && then.is_none() {
            return Ok(Start::Done);
        }
        if self.exec().is_full_behind() {
            return Ok(Start::NotNow);
        }
        let (paged, its_cell) = (Arc::clone(paged), Arc::clone(&cell));
        spawn(&cell, async move {
            let at_end = AtEnd(then);
            let io = entered.exec().spawned(&its_cell);
            // SAFETY: the spans have no memory but frames, which are their fills' until these have ended.
            let ran = unsafe { entered.complete(&io, &paged, Want::Ahead, spans, Class::Background).await };
            // No call has asked for these pages, so an error is dropped. A call that needs them reads them itself.
            drop(ran);
            drop(quota);
            entered.leave(move || drop(at_end));
        });
        Ok(Start::Done)
    }

    /// The number of pages of the file. The last one may be short.
    pub fn end_page(&self) -> u64 {
        self.file.len().div_ceil(PAGE_BYTES as u64)
    }

    /// Reads pages into the cache on advice, one wave after the other, after the ranges of earlier advice.
    pub fn will_need(self: &Arc<Self>, paged: &Arc<Paged>, pages: Range<u64>) {
        let most = paged.pager.pages() / NEEDED_SHARE;
        let end = pages.end.min(self.end_page()).min(pages.start.saturating_add(most));
        if pages.start < end && paged.pager.wanted.push(Arc::downgrade(self), pages.start..end) {
            go_on_later(&self.exec().resumes, &paged.pager)();
        }
    }
}

/// Continues with the wanted ranges on a thread of `resumes`. The completing thread may be a drive's, which must not
/// wait for free slots in queues, and must not close files.
fn go_on_later(resumes: &Arc<Pool>, pager: &Arc<Pager>) -> Then {
    let (resumes, pager) = (Arc::clone(resumes), Arc::downgrade(pager));
    Box::new(move || {
        let go_on = move || pager.upgrade().iter().for_each(go_on);
        resumes.run(Box::new(go_on));
    })
}

fn go_on(pager: &Arc<Pager>) {
    let most = (pager.pages() / WINDOW_SHARE).clamp(1, WINDOW_MAX_PAGES);
    while let Some((file, pages)) = pager.wanted.next(most) {
        // If no user has the file open any more, it is skipped: read-ahead must not delay its deletion.
        let Some(file) = file.upgrade().map(OpenRef::new).filter(|file| file.is_held()) else { continue };
        let Some(paged) = file.paged.clone() else { continue };
        let resumes = &file.exec().resumes;
        match file.start_ahead(&paged, pages.clone(), Some(go_on_later(resumes, pager))) {
            Ok(Start::Done) => return,
            Ok(Start::NoQuota) if pages.end - pages.start <= AheadQuota::most(pager) => {
                pager.wanted.put_back(Arc::downgrade(&*file), pages, go_on_later(resumes, pager));
                // The next end of a quota takes `resume`. If the last quota has just ended, this thread takes it back
                // and continues. Acquire: pairs with the AcqRel in `AheadQuota::drop`.
                if pager.ahead.load(Ordering::Acquire) > 0 || pager.wanted.take_resume().is_none() {
                    return;
                }
            }
            // The cache is tiny, or the file is being resized or closed: this wave is skipped.
            Ok(_) => {}
            Err(error) => file.exec().notice(format!("reading {:?} as advised: {error}", file.file.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { first: 4, most: 64, at_once: false };

    /// Reads one page after the other. Pages that were read ahead are hits, which check at the ends of chunks.
    fn read_on(streams: &mut Streams, pages: Range<u64>) -> (u64, Vec<Range<u64>>) {
        let (mut there, mut misses, mut ranges) = (0, 0, Vec::new());
        for page in pages {
            let next = if page < there {
                if (page + 1) % CHUNK_PAGES == 0 { streams.passed(page, WINDOWS) } else { None }
            } else {
                misses += 1;
                streams.missed(page..page + 1, WINDOWS)
            };
            if let Some(range) = next {
                assert!(range.start <= there.max(page + 1), "no hole before {range:?}");
                there = range.end;
                ranges.push(range);
            }
        }
        (misses, ranges)
    }

    #[test]
    fn windows_double_and_stay_ahead_of_the_reader() {
        let mut streams = Streams::default();
        let (misses, ranges) = read_on(&mut streams, 0..4096);
        assert!(misses <= 6, "{misses} misses");
        let lengths: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
        assert_eq!(lengths[..5], [4, 8, 16, 32, 64]);
        assert!(lengths[5..].iter().all(|&len| len == 64));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "nothing is asked for twice: {ranges:?}");
    }

    #[test]
    fn random_reads_are_no_stream() {
        let mut streams = Streams::default();
        for step in 0..1000u64 {
            let page = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30;
            assert_eq!(streams.missed(page..page + 1, WINDOWS), None);
        }
        assert!(!streams.is_active());
    }

    #[test]
    fn several_streams_side_by_side() {
        let mut streams = Streams::default();
        for page in 0..2 {
            for stream in 0..STREAMS as u64 {
                let start = stream * 10_000 + page;
                assert_eq!(streams.missed(start..start + 1, WINDOWS).is_some(), page == 1);
            }
        }
        // One more stream replaces the least recently used one.
        assert_eq!(streams.missed(99_999..100_000, WINDOWS), None);
        assert_eq!(streams.missed(6..7, WINDOWS), None);
    }

    #[test]
    fn advice_of_sequential_reads_starts_read_ahead_at_once() {
        let mut streams = Streams::default();
        let windows = Windows { first: 32, most: 128, at_once: true };
        assert_eq!(streams.missed(7..9, windows), Some(9..41));
        streams.take_back(&(9..41));
        assert_eq!(streams.missed(9..10, windows), Some(10..42));
    }
}
