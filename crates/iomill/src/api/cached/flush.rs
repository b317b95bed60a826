//! Flushing: taking dirty pages to their drives.
//!
//! A page is copied under its set's lock and written from the copy, so that it may be read and written meanwhile. Dirty pages that
//! lie side by side in a block go in one write. Who flushes: a background thread, sets that have too many dirty pages; a writer, when its
//! set is full of them or the whole cache has too many; `sync`, all of a file.
//!
//! A flush that fails leaves its pages dirty, and the file's handles are told of it once each (`api::late`). One in the background is
//! not tried again until somebody syncs, or more is written to the pages' sets.

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::read::wait;
use super::{Cached, Paged};
use crate::api::array::ArrayInner;
use crate::api::callbacks;
use crate::api::hold::Inside;
use crate::api::state::FileState;
use crate::cache::key::Key;
use crate::cache::{Cache, Flush, Outcome};
use crate::counters::Id;
use crate::drive::{Class, PAGE_BYTES, PIECE_BYTES};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::sys::memory::PageBuf;
use crate::sys::sync::{self, Condvar, Mutex, lock};

/// Pages that one flush copies at a time at most.
const COPY_PAGES: usize = 256;
/// The same of a flush of some sets, of which every writer may be at one.
const SMALL_COPY_PAGES: usize = 32;
/// Copies of either size that are kept to be used again, at most: some MiB, however many have flushed at a time.
const COPIES_KEPT: [usize; 2] = [4, 32];
/// Sets that wait for the flusher at most.
const QUEUE_SETS: usize = 4096;
/// Sets that the flusher takes at a time.
const BATCH_SETS: usize = 64;

/// The background thread, and the sets that wait for it.
#[derive(Debug, Default)]
pub struct Flusher {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// A page of each set that has too many dirty pages.
    queue: VecDeque<Key>,
    running: bool,
    stop: bool,
    thread: Option<JoinHandle<()>>,
    /// No thread could be started.
    has_failed: bool,
}

/// Pages that go in one write.
struct Run {
    first: Key,
    count: usize,
    /// Where they are in the copy, in bytes.
    at: usize,
    ended: Cell<bool>,
}

/// Pages that are being flushed. When it is dropped, by a panic too, those whose flush has not ended are dirty again, as they were.
struct Runs<'a> {
    paged: &'a Paged,
    all: Vec<Run>,
}

impl Drop for Runs<'_> {
    fn drop(&mut self) {
        let outcome = Err(super::run::failure(Op::Write, libc::ECANCELED));
        self.all.iter().for_each(|run| FileState::end_pages(self.paged, run, outcome));
    }
}

/// What became of pages that were to be flushed.
#[derive(Debug)]
pub(in crate::api) struct Flushed {
    /// Those that somebody else was flushing.
    busy: Vec<Key>,
    /// How many were written.
    pub cleaned: u64,
    /// The first error, after all were tried.
    pub result: Result<()>,
}

impl Flushed {
    const NONE: Flushed = Flushed { busy: Vec::new(), cleaned: 0, result: Ok(()) };

    /// Whether who needs room may look again.
    fn is_progress(&self) -> bool {
        self.cleaned > 0 || self.result.is_ok()
    }
}

/// Pages whose sets want to be flushed.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// They have many dirty pages.
    pub many: Vec<u64>,
    /// A clean page had to go in the place of a dirty one. Whoever writes flushes those at once: the flusher does not keep up, and what
    /// stays in the cache is to be what the policy wants.
    pub pressed: Vec<u64>,
}

impl FileState {
    /// Has the sets of some pages flushed. The caller has no unfinished fills, and may do I/O (rule 4 of the cache).
    pub(super) fn note_dirty(&self, paged: &Paged, op: Op, over: &Over) {
        if op == Op::Read {
            return self.note_dirty_for_later(paged, over);
        }
        // What fails stays dirty, and each handle's next sync says so (`late`).
        if !over.pressed.is_empty() {
            let _later = self.flush_sets(paged, &over.pressed);
        }
        if over.many.is_empty() {
            return;
        }
        let too_many = paged.cached.dirty() > paged.cached.limits().dirty_pages;
        let is_left = !too_many && self.array().has_threads();
        if !is_left || !paged.cached.flusher.push(self.array(), paged.keys(&over.many)) {
            let _later = self.flush_sets(paged, &over.many);
        }
    }

    /// The same for who may not do I/O. Without threads they wait for who may.
    pub(super) fn note_dirty_for_later(&self, paged: &Paged, over: &Over) {
        let pages = over.many.iter().chain(&over.pressed);
        if self.array().has_threads() && !(over.many.is_empty() && over.pressed.is_empty()) {
            // Without a thread they wait for who may, as well.
            let _is_left = paged.cached.flusher.push(self.array(), paged.keys(pages));
        }
    }

    /// Notes that the part of a page holds something new.
    pub(super) fn note_written(&self, page: u64) {
        let (part, _, _) = self.locate(page * PAGE_BYTES as u64);
        part.mark.set();
    }

    /// Flushes the dirty pages of some pages' sets, of this and other files: whether that is worth another look for room, and the first
    /// error. That is an error of the pages that it names, whose files' handles are told (`late`), and not of who needs room.
    pub(in crate::api) fn flush_sets(&self, paged: &Paged, pages: &[u64]) -> (bool, Result<()>) {
        let keys = paged.cached.dirty_beside(paged.keys(pages));
        let (mut any, mut first) = (false, Ok(()));
        for keys in keys.chunk_by(|a, b| a.file() == b.file()) {
            let flushed = if keys[0].file() == paged.number() {
                self.flush(paged, keys, Class::Foreground)
            } else {
                let Some(other) = paged.cached.file(keys[0].file()) else { continue };
                let Some(flushed) = paged.cached.flush_other(&other, keys, Class::Foreground) else { continue };
                flushed
            };
            any |= flushed.is_progress();
            first = first.and(flushed.result);
        }
        (any, first)
    }

    /// Flushes a page by itself; whether it was dirty.
    pub(in crate::api) fn flush_page(&self, paged: &Paged, page: u64) -> Result<bool> {
        let Some((key, ..)) = paged.key(page) else { return Ok(false) };
        let mut copy = paged.cached.take_copy(1)?;
        let mut runs = Runs { paged, all: Vec::new() };
        // There is no room for its neighbours.
        let at = copy.len() - PAGE_BYTES;
        let (asked, _) = self.copy_run(paged, key, &mut copy, at, &mut runs.all);
        let (_, result) = self.write_runs(&runs, &mut copy, Class::Foreground);
        paged.cached.give_copy(copy);
        result.map(|()| matches!(asked, Some(Flush::Begun | Flush::Busy)))
    }

    /// Flushes all dirty pages of the file, and waits for those that others are flushing. The first error, after all were tried.
    pub fn flush_all(&self, paged: &Paged) -> Result<()> {
        let mut keys = paged.cached.dirty_of(paged.number());
        let mut first = Ok(());
        while !keys.is_empty() {
            // What others are flushing may be older than what this is to cover, and may fail: it is looked at again, until it is
            // clean or was ours.
            let flushed = self.flush(paged, &keys, Class::Foreground);
            keys = flushed.busy;
            first = first.and(flushed.result);
            for waiter in keys.iter().filter_map(|key| paged.waiter(key.page(), true)) {
                let _seen_in_the_next_round = wait(self.array(), &waiter);
            }
        }
        first
    }

    /// Flushes those of the pages that are dirty, in rising order, and their dirty neighbours. What cannot be written keeps nothing
    /// else from its drive, but its neighbours of the same write.
    fn flush(&self, paged: &Paged, keys: &[Key], class: Class) -> Flushed {
        let mut flushed = Flushed::NONE;
        let mut copy = match paged.cached.take_copy(keys.len()) {
            Ok(copy) => copy,
            Err(error) => return Flushed { result: Err(error), ..flushed },
        };
        let mut keys = keys.iter().copied().peekable();
        while keys.peek().is_some() {
            let mut runs = Runs { paged, all: Vec::new() };
            let mut used = 0;
            while let Some(&key) = keys.peek()
                && used < copy.len()
            {
                // A neighbour that was cleaned meanwhile may end a run before the page: then it is looked at again.
                let (asked, copied) = self.copy_run(paged, key, &mut copy, used, &mut runs.all);
                used += copied;
                match asked {
                    Some(Flush::Busy) => flushed.busy.push(key),
                    Some(_) => {}
                    None => continue,
                }
                keys.next();
            }
            let (cleaned, result) = self.write_runs(&runs, &mut copy, class);
            flushed.cleaned += cleaned;
            flushed.result = flushed.result.and(result);
        }
        paged.cached.give_copy(copy);
        flushed
    }

    /// Copies a dirty page with its dirty neighbours before and after it in its block: what became of that page, if it was reached,
    /// and how many bytes were copied.
    fn copy_run(
        &self,
        paged: &Paged,
        key: Key,
        copy: &mut PageBuf,
        at: usize,
        runs: &mut Vec<Run>,
    ) -> (Option<Flush>, usize) {
        let block_pages = self.block_bytes / PAGE_BYTES as u64;
        let block = key.page() - key.page() % block_pages;
        let room = ((copy.len() - at) / PAGE_BYTES).min(PIECE_BYTES / PAGE_BYTES) as u64;
        let name = |page: u64| paged.key(page).map(|(key, _, cache)| (key, cache));
        let is_dirty = |page: u64| name(page).is_some_and(|(key, cache): (Key, &Cache)| cache.is_dirty(key));
        let wanted = key.page();
        let mut first = wanted;
        while first > block && wanted - first + 1 < room && is_dirty(first - 1) {
            first -= 1;
        }
        let (mut page, mut copied, mut asked) = (first, 0, None);
        while page < block + block_pages && copied < room {
            let to = copy.as_mut_ptr().wrapping_add(at + copied as usize * PAGE_BYTES);
            // SAFETY: `room` pages fit the copy from `at` on, which is ours.
            let begun = name(page).map_or(Flush::Clean, |(key, cache)| unsafe { cache.begin_flush(key, to) });
            if page == wanted {
                asked = Some(begun);
            }
            if begun == Flush::Begun {
                copied += 1;
            } else if copied > 0 || page >= wanted {
                break;
            } else {
                // A neighbour before it has just been flushed by somebody else.
                first = page + 1;
            }
            page += 1;
        }
        if copied > 0
            && let Some((first, _)) = name(first)
        {
            runs.push(Run { first, count: copied as usize, at, ended: Cell::new(false) });
            paged.on_its_way(first.page() + copied - 1);
        }
        (asked, copied as usize * PAGE_BYTES)
    }

    /// Writes copies of pages to their drives: how many are there now, and the first error. With an error of which no page is the cause
    /// none was begun, and whoever flushes them next may have better luck.
    fn write_runs(&self, Runs { paged, all: runs }: &Runs<'_>, copy: &mut PageBuf, class: Class) -> (u64, Result<()>) {
        let start = copy.as_mut_ptr();
        let pieces = runs.iter().enumerate().map(|(tag, run)| {
            let (memory, len) = (Memory::one(start.wrapping_add(run.at)), run.count * PAGE_BYTES);
            let (drive, piece) = self.page_piece(Op::Write, class, run.first.page(), len, memory);
            (drive, crate::drive::Piece { tag: tag as u32, ..piece })
        });
        let mut first = Ok(());
        let (mut flushed, mut cleaned) = (0, 0);
        let (array, span) = (self.array(), (start.cast_const(), copy.len()));
        let mut done = |tag: u32, outcome: Outcome| {
            let run = &runs[tag as usize];
            self.end_run(paged, run, outcome);
            flushed += run.count as u64;
            cleaned += if outcome.is_ok() { run.count as u64 } else { 0 };
            first = first.and(outcome);
        };
        // SAFETY: the copy lives until this returns, and nobody else has it.
        let begun = unsafe {
            match class {
                Class::Background => array.run_behind(span, pieces, done),
                // Never by the drive threads: one of them may be here, with a file's last handle, and they may be gone or never
                // have been, when the array is being closed.
                Class::Foreground => array.run_inline(span, pieces, |end| done(end.tag, end.result)),
            }
        };
        if let Err(error) = begun {
            return (0, Err(error));
        }
        paged.cached.with_seat(|seat| seat.tally.add(Id::Flushes, flushed));
        (cleaned, first.map_err(|failure| self.error(failure)))
    }

    fn end_run(&self, paged: &Paged, run: &Run, outcome: Outcome) {
        // Before the pages are clean, so that a sync which finds them clean covers them.
        self.note_written(run.first.page());
        if let Err(failure) = outcome {
            // Before whoever waits for the pages may look.
            self.late.failed(failure);
        }
        Self::end_pages(paged, run, outcome);
    }

    fn end_pages(paged: &Paged, run: &Run, outcome: Outcome) {
        if run.ended.replace(true) {
            return;
        }
        for page in run.first.page()..run.first.page() + run.count as u64 {
            if let Some((key, _, cache)) = paged.key(page) {
                cache.end_flush(key, outcome);
            }
        }
    }
}

impl Cached {
    /// Memory for copies of so many pages, or of some of them at a time.
    fn take_copy(&self, pages: usize) -> Result<PageBuf> {
        let most = (self.pages() as usize / 64).clamp(4, COPY_PAGES);
        // Neighbours come along.
        let is_small = pages <= SMALL_COPY_PAGES / 2 || most <= SMALL_COPY_PAGES;
        if let Some(copy) = lock(&self.copies[usize::from(is_small)]).pop() {
            return Ok(copy);
        }
        let pages = if is_small { most.min(SMALL_COPY_PAGES) } else { most };
        PageBuf::new(pages * PAGE_BYTES)
            .map_err(|e| Error::Machine { what: format!("memory to flush {pages} pages"), why: e.to_string() })
    }

    fn give_copy(&self, copy: PageBuf) {
        let is_small = copy.len() <= SMALL_COPY_PAGES * PAGE_BYTES;
        let mut copies = lock(&self.copies[usize::from(is_small)]);
        if copies.len() < COPIES_KEPT[usize::from(is_small)] {
            copies.push(copy);
        }
    }

    /// Flushes pages of a file, unless somebody is changing its length, or the array is closed: what the file could not keep by then is
    /// lost, because without the array's lock its parts may be another process's.
    pub(in crate::api) fn flush_other(&self, file: &FileState, keys: &[Key], class: Class) -> Option<Flushed> {
        let paged = file.paged.as_ref()?;
        let _inside = Inside::try_enter(file)?;
        Some(file.flush(paged, keys, class))
    }

    /// The dirty pages of some pages' sets, in their order.
    fn dirty_beside(&self, pages: impl Iterator<Item = Key>) -> Vec<Key> {
        let mut keys = Vec::new();
        for page in pages {
            let cache = self.cache_of(page);
            let directory = cache.directory();
            cache.dirty_in(directory.place(directory.hash(page)), false, &mut keys);
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// One round of the flusher: the sets of these pages.
    fn flush_sets(&self, pages: &[Key]) {
        let keys = self.dirty_beside(pages.iter().copied());
        for keys in keys.chunk_by(|a, b| a.file() == b.file()) {
            let Some(file) = self.file(keys[0].file()) else { continue };
            // What fails stays dirty, and is kept for the file's handles (`late`).
            let _kept = self.flush_other(&file, keys, Class::Background);
        }
    }
}

impl Flusher {
    /// Leaves the sets of pages to the thread; `false` where none could be started.
    fn push(&self, array: &Arc<ArrayInner>, keys: impl Iterator<Item = Key>) -> bool {
        let mut state = lock(&self.state);
        if state.stop || state.has_failed {
            return state.stop;
        }
        if state.thread.is_none() {
            state.thread = start(array);
            state.has_failed = state.thread.is_none();
            if state.has_failed {
                return false;
            }
        }
        for key in keys {
            if state.queue.len() < QUEUE_SETS {
                state.queue.push_back(key);
            }
        }
        if !state.running {
            self.work.notify_one();
        }
        true
    }

    /// The next pages whose sets are to be flushed; `None` at the end.
    fn next(&self) -> Option<Vec<Key>> {
        let mut state = lock(&self.state);
        state.running = false;
        loop {
            if state.stop {
                return None;
            }
            if !state.queue.is_empty() {
                let count = state.queue.len().min(BATCH_SETS);
                state.running = true;
                return Some(state.queue.drain(..count).collect());
            }
            state = sync::wait(&self.work, state);
        }
    }

    /// Ends the thread; what it has not flushed stays dirty.
    pub fn stop(&self) {
        let thread = {
            let mut state = lock(&self.state);
            state.stop = true;
            state.queue.clear();
            self.work.notify_all();
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // It cannot have panicked: its rounds are caught.
            let _ = thread.join();
        }
    }
}

/// Starts the thread that flushes in the background. Without it writers flush by themselves.
fn start(array: &Arc<ArrayInner>) -> Option<JoinHandle<()>> {
    let cached: Weak<Cached> = Arc::downgrade(array.cached.as_ref()?);
    let thread = std::thread::Builder::new().name("iomill-flush".into()).spawn(move || {
        // A file that this thread lets go of last would be flushed here, and the others not meanwhile.
        callbacks::leave_closing_to_others();
        loop {
            // Held only while there is work, and while asleep through the flusher's own end: `stop` comes first.
            let Some(cached) = cached.upgrade() else { return };
            let Some(pages) = cached.flusher.next() else { return };
            // A panic must not take those along that are flushed after it. Its message is out.
            let _ = catch_unwind(AssertUnwindSafe(|| cached.flush_sets(&pages)));
        }
    });
    if let Err(error) = &thread {
        array.notice(format!("no thread to flush in the background: {error}"));
    }
    thread.ok()
}
