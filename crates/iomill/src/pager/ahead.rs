//! Bringing pages in before they are asked for: read-ahead where access is sequential, and on advice.
//!
//! Goals: a sequential reader finds its pages in the cache; who reads at random pays nothing that counts. Non-goals: guessing strides,
//! or reading backwards.
//!
//! A handle keeps a few streams, roles at which somebody reads one page after the other. They are looked at when a page is not in the
//! cache, and at hits only where a read comes to the end of a chunk of the file, and then only while a stream is ahead. All else about a
//! hit is as if there was no read-ahead.
//!
//! Rules:
//! 1. What is on its way before anybody has asked for it is an eighth of the cache at most (`Share`), so that it does not push out what it
//!    was fetched with.
//! 2. Nobody waits to begin it: where a lock is taken, the gate closed or the share used up, it is left. What is asked for by advice is put
//!    back while the share is used up, and gone on with by whose share ends.
//! 3. It belongs to itself, as every operation, and holds the file inside its gate until it has ended.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, Want};
use super::{Paged, Pager};
use crate::drive::{Class, PAGE_BYTES, PIECE_BYTES};
use crate::error::Result;
use crate::exec::pools::Pool;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// Pages of a stream's first window.
const FIRST_PAGES: u64 = 4;

/// The same where the reader has said that it will read on.
const SEQUENTIAL_FIRST_PAGES: u64 = 32;

/// How much larger windows get then.
const SEQUENTIAL_TIMES: u64 = 2;

/// Pages of the largest window.
const WINDOW_MAX_PAGES: u64 = 1024;

/// One part in so many of the cache is the largest window.
const WINDOW_SHARE: u64 = 16;

/// See rule 1.
const ON_ITS_WAY_SHARE: u64 = 8;

/// Of a range that will be needed, one part in so many of the cache is brought in.
const NEEDED_SHARE: u64 = 2;

/// Ranges that are asked for by advice and not yet begun, at most.
const WANTED_MAX: usize = 4096;

/// Streams of a handle.
const STREAMS: usize = 8;

/// A hit whose read comes to the end of so many pages looks whether its stream is to go on.
pub const CHUNK_PAGES: u64 = 16;

/// How a handle is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// It shows.
    Unknown,
    /// At random.
    Random,
    /// One page after the other.
    Sequential,
}

/// What a handle knows of how it is read.
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

/// Somebody who reads one page after the other, or may.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The last page that it is known to have read.
    last: u64,
    /// It was read ahead up to here.
    end: u64,
    /// Pages of the last window; 0 before the first.
    window: u64,
    /// The next window is begun when it comes to this page.
    mark: u64,
    /// When it was last found; 0 for never.
    used: u64,
}

/// The sizes of windows in pages.
#[derive(Clone, Copy, Debug)]
struct Windows {
    first: u64,
    most: u64,
    /// Whether the first window is begun before two reads have followed each other.
    at_once: bool,
}

impl Stream {
    /// Whether a read from `page` on goes on where it is.
    fn goes_on(&self, page: u64) -> bool {
        self.used > 0 && page >= self.last && page <= self.end.max(self.last + 1)
    }

    /// Notes that it has come to `last`, and says what to read now.
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
    /// A read of these pages has missed: what to read ahead.
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

    /// A read has come to the end of this page, which was there.
    fn passed(&mut self, page: u64, windows: Windows) -> Option<Range<u64>> {
        self.clock += 1;
        let clock = self.clock;
        let stream = self.all.iter_mut().find(|stream| stream.window > 0 && stream.goes_on(page))?;
        stream.used = clock;
        stream.come_to(page, windows)
    }

    /// What was to be read was not begun.
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
    /// Of a handle of which nothing is known, with windows of up to so many bytes.
    pub fn new(window_bytes: u64) -> ReadAhead {
        ReadAhead {
            window_pages: window_bytes.div_ceil(PAGE_BYTES as u64).min(WINDOW_MAX_PAGES),
            pattern: AtomicU32::new(Pattern::Unknown as u32),
            active: AtomicU32::new(0),
            streams: Mutex::default(),
        }
    }

    /// Takes note of how the handle will be read.
    pub fn expect(&self, pattern: Pattern) {
        self.pattern.store(pattern as u32, Ordering::Relaxed);
        if pattern == Pattern::Random {
            *lock(&self.streams) = Streams::default();
            self.active.store(0, Ordering::Relaxed);
        }
    }

    /// The windows for this handle with this cache; `None` for no read-ahead.
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

    /// A read of these pages of a file has missed at least one.
    pub fn missed(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, pages: Range<u64>) {
        let Some(windows) = self.windows(&paged.pager) else { return };
        self.look(file, paged, |streams| streams.missed(pages, windows));
    }

    /// A read has found all it asked for, and comes to the end of a chunk at this page.
    pub fn passed(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, page: u64) {
        if self.active.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(windows) = self.windows(&paged.pager) else { return };
        self.look(file, paged, |streams| streams.passed(page, windows));
    }

    fn look(&self, file: &Arc<OpenFile>, paged: &Arc<Paged>, next: impl FnOnce(&mut Streams) -> Option<Range<u64>>) {
        // Another thread that reads by this handle is at it: it may be missed here (rule 2).
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
        // Begun without the lock, because the inline mode reads it here and now.
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

/// Pages that are on their way before they are asked for (rule 1).
#[derive(Debug)]
pub struct Share {
    pager: Arc<Pager>,
    pages: u64,
}

impl Share {
    fn take(pager: &Arc<Pager>, pages: u64) -> Option<Share> {
        let more = |before| Some(before + pages).filter(|&all| all <= Share::most(pager));
        pager.ahead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Share { pager: Arc::clone(pager), pages })
    }

    /// Pages of all shares together.
    fn most(pager: &Pager) -> u64 {
        pager.pages() / ON_ITS_WAY_SHARE
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pager.ahead.fetch_sub(self.pages, Ordering::AcqRel);
        if let Some(resume) = self.pager.wanted.take_resume() {
            resume();
        }
    }
}

/// What became of beginning to read ahead.
enum Start {
    /// It was begun, or there was nothing to do.
    Done,
    /// The share is used up.
    NoShare,
    /// The file's length is being changed, or the array closed, or the background of a drive is full.
    NotNow,
}

/// Who is told of the end, on whatever thread: it only hands work on.
type Then = Box<dyn FnOnce() + Send>;

impl OpenFile {
    /// Begins to bring pages in that may be asked for soon, if it can at once (rule 2). `then` is called when
    /// it has ended, on the thread that brings the end, and not at all if it was not begun.
    fn start_ahead(self: &Arc<Self>, paged: &Arc<Paged>, pages: Range<u64>, then: Option<Then>) -> Result<Start> {
        self.exec().get_ready()?;
        let Some(entered) = EnteredFile::try_enter(self) else { return Ok(Start::NotNow) };
        let pages = pages.start..pages.end.min(self.end_page()).max(pages.start);
        let Some(share) = Share::take(&paged.pager, pages.end - pages.start) else { return Ok(Start::NoShare) };
        let spans: Vec<Span> = pages.clone().filter(|&page| !paged.is_there(page)).map(Span::of_page).collect();
        if spans.is_empty() && then.is_none() {
            return Ok(Start::Done);
        }
        if !self.has_room_behind(pages) {
            return Ok(Start::NotNow);
        }
        let (exec, paged) = (Arc::clone(self.exec()), Arc::clone(paged));
        let executor = Arc::clone(&exec);
        executor.spawn(async move {
            let io = exec.spawned();
            // SAFETY: the spans have no memory but frames, which are their fills' until these have ended.
            let ran = unsafe { entered.complete(&io, &paged, Want::Ahead, spans, Class::Background).await };
            // What fails before any call has asked for it is no call's error: a call that asks reads for itself.
            drop(ran);
            drop(share);
            entered.leave(move || then.into_iter().for_each(|then| then()));
        });
        Ok(Start::Done)
    }

    /// Whether the drives' background has room for a read of these pages now.
    fn has_room_behind(&self, pages: Range<u64>) -> bool {
        let mut weights = vec![0; self.exec().services.len()];
        let step = self.file.block_bytes().min(PIECE_BYTES as u64);
        let mut at = pages.start * PAGE_BYTES as u64;
        while at < pages.end * PAGE_BYTES as u64 {
            weights[usize::from(self.file.locate(at).0.drive)] += 1;
            at = (at / step + 1) * step;
        }
        self.exec().has_room(Class::Background, &weights)
    }

    /// The number of pages, the last of which may be short.
    pub fn end_page(&self) -> u64 {
        self.file.len().div_ceil(PAGE_BYTES as u64)
    }

    /// Has pages brought in that will be needed, one wave after the other, behind those that were asked for before.
    pub fn will_need(self: &Arc<Self>, paged: &Arc<Paged>, pages: Range<u64>) {
        let most = paged.pager.pages() / NEEDED_SHARE;
        let end = pages.end.min(self.end_page()).min(pages.start.saturating_add(most));
        if pages.start < end && paged.pager.wanted.push(Arc::downgrade(self), pages.start..end) {
            go_on_later(&self.exec().resumes, &paged.pager)();
        }
    }
}

/// Ranges that will be needed.
#[derive(Debug, Default)]
pub struct Wanted {
    state: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    ranges: VecDeque<(Weak<OpenFile>, Range<u64>)>,
    /// Whether somebody is bringing them in, one wave after the other.
    running: bool,
    /// Goes on with it when a share has ended.
    resume: Option<Then>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue of {}", self.ranges.len())
    }
}

impl Wanted {
    /// Adds one, unless there are too many; whether the caller is to see to it that they come in.
    fn push(&self, file: Weak<OpenFile>, pages: Range<u64>) -> bool {
        let mut queue = lock(&self.state);
        if queue.ranges.len() < WANTED_MAX {
            queue.ranges.push_back((file, pages));
        }
        !std::mem::replace(&mut queue.running, true)
    }

    /// The next wave of up to so many pages; `None` ends the bringing in.
    fn next(&self, most: u64) -> Option<(Weak<OpenFile>, Range<u64>)> {
        let mut queue = lock(&self.state);
        let Some((file, pages)) = queue.ranges.front_mut() else {
            queue.running = false;
            return None;
        };
        let wave = (file.clone(), pages.start..pages.end.min(pages.start + most));
        pages.start = wave.1.end;
        if pages.is_empty() {
            queue.ranges.pop_front();
        }
        Some(wave)
    }

    /// Puts a wave back, to be gone on with when a share has ended.
    fn put_back(&self, file: Weak<OpenFile>, pages: Range<u64>, resume: Then) {
        let mut queue = lock(&self.state);
        match queue.ranges.front_mut() {
            Some((theirs, rest)) if theirs.ptr_eq(&file) && rest.start == pages.end => rest.start = pages.start,
            _ => queue.ranges.push_front((file, pages)),
        }
        queue.resume = Some(resume);
    }

    fn take_resume(&self) -> Option<Then> {
        lock(&self.state).resume.take()
    }
}

/// Goes on with what is wanted on a thread that may wait for room in the drives' queues, and close a file: who is told of an end may be a
/// drive's.
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
        // A file that nobody has open any more is not kept from being deleted.
        let Some(file) = file.upgrade().map(OpenRef::new).filter(|file| file.is_held()) else { continue };
        let Some(paged) = file.paged.clone() else { continue };
        let resumes = &file.exec().resumes;
        match file.start_ahead(&paged, pages.clone(), Some(go_on_later(resumes, pager))) {
            Ok(Start::Done) => return,
            Ok(Start::NoShare) if pages.end - pages.start <= Share::most(pager) => {
                pager.wanted.put_back(Arc::downgrade(&*file), pages, go_on_later(resumes, pager));
                // Whose share ends now sees that. If the last has just ended, nobody does.
                if pager.ahead.load(Ordering::Acquire) > 0 || pager.wanted.take_resume().is_none() {
                    return;
                }
            }
            // No cache to speak of, or the file's length is being changed: that wave is left out.
            Ok(_) => {}
            Err(error) => file.exec().notice(format!("reading {:?} as advised: {error}", file.file.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: Windows = Windows { first: 4, most: 64, at_once: false };

    /// Reads one page after the other, as the cache would have it: what was read ahead is there, and chunk ends are looked at.
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
        // One more takes the place of the one that was used longest ago.
        assert_eq!(streams.missed(99_999..100_000, WINDOWS), None);
        assert_eq!(streams.missed(6..7, WINDOWS), None);
    }

    #[test]
    fn who_says_so_is_read_ahead_for_at_once() {
        let mut streams = Streams::default();
        let windows = Windows { first: 32, most: 128, at_once: true };
        assert_eq!(streams.missed(7..9, windows), Some(9..41));
        streams.take_back(&(9..41));
        assert_eq!(streams.missed(9..10, windows), Some(10..42));
    }
}
