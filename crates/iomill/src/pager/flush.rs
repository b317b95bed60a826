//! Flushing: writing dirty pages to their drives. [`FlushRuns`] are pages in flight, [`Flushed`] is the result.
//! Non-goals: which bytes are durable (`file::durable`).
//!
//! A page is copied under its set's lock and written from the copy, so that calls may read and write it meanwhile. One
//! write takes adjacent dirty pages of a block. Three kinds of threads flush. A background thread flushes sets with too
//! many dirty pages. A writer flushes if its set is full of dirty pages or the whole cache has too many. `sync` flushes
//! all pages of a file.
//!
//! A flush that fails leaves its pages dirty, and each handle of the file reports it once (`file::writeback_errors`). A
//! failed background flush is repeated only when a call syncs the file, or writes more to the pages' sets.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::open::OpenFile;
use super::wave::Over;
use super::{Paged, Pager};
use crate::cache::key::{FILE_PAGES, Key};
use crate::cache::{Flush, Outcome};
use crate::counters::Counter;
use crate::drive::{Class, Failure, NoSum, PAGE_BYTES, PIECE_BYTES, Piece};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::exec::{Exec, FirstFailure, Io, Sink, Within, failure, pools};
use crate::file::Entered;
use crate::file::summed::doubted;
use crate::file::sums::{Doubt, Holding, Sums, Writing};
use crate::sys::events;
use crate::sys::fsyncs::Since;
use crate::sys::memory::PageBuf;
use crate::sys::sync::{AtomicBool, AtomicU64, Ordering, lock};

/// The most pages that one flush copies at a time.
const COPY_PAGES: usize = 256;
/// `COPY_PAGES` for a flush of some sets. All writers may run such flushes at the same time.
const SMALL_COPY_PAGES: usize = 32;
/// The most copies, large and small, that are kept for reuse. They bound this memory to some MiB for any number of
/// threads.
const COPIES_KEPT: [usize; 2] = [4, 32];

/// Pages of one write.
struct FlushRun {
    first: Key,
    count: usize,
    /// Their offset in the copy, in bytes.
    at: usize,
    ended: AtomicBool,
}

impl FlushRun {
    /// The page after its last one.
    fn end(&self) -> u64 {
        self.first.page() + self.count as u64
    }
}

/// Pages that are being flushed. Dropping it, also by a panic, marks the pages dirty that have no ended flush.
struct FlushRuns<'a> {
    file: &'a OpenFile,
    paged: &'a Paged,
    all: Vec<FlushRun>,
    /// The moment before their writes.
    since: Since,
    /// The number of pages with an ended flush, and the number of clean pages among them.
    flushed: AtomicU64,
    cleaned: AtomicU64,
    first: FirstFailure,
    /// The sums of the pages that are being written.
    writing: OnceLock<Vec<(Holding<'a>, Writing<'a>)>>,
}

impl<'a> FlushRuns<'a> {
    fn new(file: &'a OpenFile, paged: &'a Paged) -> FlushRuns<'a> {
        let (flushed, cleaned) = (AtomicU64::new(0), AtomicU64::new(0));
        let (first, writing) = (FirstFailure::default(), OnceLock::new());
        FlushRuns { file, paged, all: Vec::new(), since: Since::now(), flushed, cleaned, first, writing }
    }

    fn end_pages(&self, run: &FlushRun, outcome: Outcome) {
        if run.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        for page in run.first.page()..run.end() {
            let (key, _, cache) = self.paged.key(page);
            cache.end_flush(key, outcome);
        }
    }
}

impl Sink for FlushRuns<'_> {
    fn piece_done(&self, tag: u32, outcome: Outcome) {
        let run = &self.all[tag as usize];
        // Marked before the pages are clean, so that a sync that finds them clean covers them.
        self.file.file.mark_part_of(run.first.page() * PAGE_BYTES as u64, self.since);
        if let (Some(writing), Ok(())) = (self.writing.get(), outcome) {
            // Stored before a page can be evicted and read again.
            writing.iter().for_each(|(_, writing)| writing.written(run.first.page(), run.count));
        }
        if let Err(failure) = outcome {
            // Recorded before the end of the pages wakes operations, which may check it.
            self.file.file.errors.failed(failure);
            events::write_back_failed(self.file.file.name(), &self.file.file.error(failure));
        }
        self.end_pages(run, outcome);
        self.flushed.fetch_add(run.count as u64, Ordering::Relaxed);
        if outcome.is_ok() {
            self.cleaned.fetch_add(run.count as u64, Ordering::Relaxed);
        }
        self.first.keep(outcome);
    }
}

impl Drop for FlushRuns<'_> {
    fn drop(&mut self) {
        let outcome = Err(failure(Op::Write, libc::ECANCELED));
        self.all.iter().for_each(|run| self.end_pages(run, outcome));
    }
}

/// Memory for copies of pages. Dropping this returns the memory to the pager.
struct Copies<'a> {
    pager: &'a Pager,
    /// Until it is dropped.
    memory: Option<PageBuf>,
}

// SAFETY: the memory is a plain allocation, which any thread may use and free.
unsafe impl Send for Copies<'_> {}

impl Copies<'_> {
    fn memory(&mut self) -> &mut PageBuf {
        match &mut self.memory {
            Some(memory) => memory,
            None => unreachable!("it goes when this is dropped"),
        }
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pager.give_copy(memory);
        }
    }
}

/// The result of a flush.
#[derive(Debug)]
pub struct Flushed {
    /// The pages that another thread was flushing.
    busy: Vec<Key>,
    /// The number of pages that are clean now.
    pub cleaned: u64,
    /// The first error, after all were tried.
    pub result: Result<()>,
}

impl Flushed {
    const NONE: Flushed = Flushed { busy: Vec::new(), cleaned: 0, result: Ok(()) };

    /// Whether a call that needs room should look again.
    fn is_progress(&self) -> bool {
        self.cleaned > 0 || self.result.is_ok()
    }
}

/// The result of a flush of sets, for a call that needs a frame.
struct SetsFlushed {
    /// Whether a call that needs room should look again.
    any: bool,
    /// The pages that other operations were flushing.
    busy: Vec<Key>,
    /// The first error, after all were tried.
    result: Result<()>,
}

impl OpenFile {
    /// Flushes the sets of some pages, or leaves them to the flusher. The caller has no unfinished fills (rule 4 of the
    /// cache).
    pub(super) async fn note_dirty(&self, io: &Io<'_>, paged: &Paged, op: Op, over: &Over) {
        if op == Op::Read {
            self.note_dirty_for_later(paged, over);
        } else if !(over.many.is_empty() && over.pressed.is_empty()) {
            // In a box, because an operation has room for all that it may wait for, and few wait for this.
            Box::pin(self.flush_over(io, paged, over)).await;
        }
    }

    /// `note_dirty` for a call that writes.
    async fn flush_over(&self, io: &Io<'_>, paged: &Paged, over: &Over) {
        // Pages that fail stay dirty, and each handle's next sync reports it (`writeback_errors`).
        if !over.pressed.is_empty() {
            let _later = self.flush_sets(io, paged, &over.pressed).await;
        }
        if over.many.is_empty() {
            return;
        }
        let too_many = paged.pager.dirty() > paged.pager.limits().dirty_pages;
        let is_left = !too_many && self.exec().has_threads();
        if !is_left || !paged.pager.flush_later(self.exec(), paged.keys(&over.many)) {
            let _later = self.flush_sets(io, paged, &over.many).await;
        }
    }

    /// `note_dirty` for a call that reads: it leaves the sets to the flusher. Without threads the next write flushes
    /// them.
    fn note_dirty_for_later(&self, paged: &Paged, over: &Over) {
        let pages = over.many.iter().chain(&over.pressed);
        if self.exec().has_threads() && !(over.many.is_empty() && over.pressed.is_empty()) {
            // If the flusher could not be started, the next write flushes them, too.
            let _is_left = paged.pager.flush_later(self.exec(), paged.keys(pages));
        }
    }

    /// Flushes the sets in which pages need frames, and waits for the flushes of other operations. Returns whether the
    /// call should look again, and the first error. The error belongs to the pages that it names: the handles of their
    /// files report it (`writeback_errors`). It is not an error of the call that needs a frame.
    pub(super) async fn make_room(&self, io: &Io<'_>, paged: &Paged, pages: &[u64]) -> (bool, Result<()>) {
        let flushed = self.flush_sets(io, paged, pages).await;
        // Without this wait the call would look again and again. On the thread that ends those flushes it would never
        // stop.
        wait_for_flushes(io, &paged.pager, &flushed.busy).await;
        (flushed.any, flushed.result)
    }

    /// `make_room` for one page, which displaced a clean page.
    #[cold]
    pub(super) fn note_pressed(&self, paged: &Paged, page: u64) {
        self.note_dirty_for_later(paged, &Over { many: Vec::new(), pressed: vec![page] });
    }

    /// Flushes the dirty pages of some pages' sets, of this and other files.
    async fn flush_sets(&self, io: &Io<'_>, paged: &Paged, pages: &[u64]) -> SetsFlushed {
        let keys = paged.pager.dirty_beside(paged.keys(pages));
        let mut all = SetsFlushed { any: false, busy: Vec::new(), result: Ok(()) };
        let of_files: Vec<&[Key]> = keys.chunk_by(|a, b| a.file() == b.file()).collect();
        for keys in of_files {
            let flushed = if keys[0].file() == paged.number() {
                self.flush(io, paged, keys, Class::Foreground).await
            } else {
                let Some(other) = paged.pager.file(keys[0].file()) else { continue };
                let Some(flushed) = other.flush_if_open(io, keys, Class::Foreground).await else { continue };
                flushed
            };
            all.any |= flushed.is_progress();
            all.busy.extend(flushed.busy);
            all.result = all.result.and(flushed.result);
        }
        all
    }

    /// Flushes pages of the file, unless its length is being changed or the array is closed. After a close, the
    /// remaining pages are lost: without the array's lock another process may own the parts.
    pub async fn flush_if_open(&self, io: &Io<'_>, keys: &[Key], class: Class) -> Option<Flushed> {
        let paged = self.paged.as_ref()?;
        let _entered = Entered::try_enter(&self.file)?;
        Some(self.flush(io, paged, keys, class).await)
    }

    /// Flushes a page by itself. Returns whether it was dirty.
    pub(super) async fn flush_page(&self, io: &Io<'_>, paged: &Paged, page: u64) -> Result<bool> {
        let key = paged.zero.page_after(page);
        let mut copies = paged.pager.take_copy(1)?;
        let mut runs = FlushRuns::new(self, paged);
        // The last page of the copy: neighbours do not fit.
        let at = copies.memory().len() - PAGE_BYTES;
        let (asked, _) = self.copy_run(paged, (key, page), copies.memory(), at, &mut runs.all);
        let (_, result) = self.write_runs(io, &runs, &mut copies, Class::Foreground).await;
        if asked == Some(Flush::Busy) {
            wait_for_flushes(io, &paged.pager, &[key]).await;
        }
        result.map(|()| matches!(asked, Some(Flush::Begun | Flush::Busy)))
    }

    /// `flush_page` on the calling thread.
    pub(super) fn flush_page_now(&self, paged: &Paged, page: u64) -> Result<bool> {
        Exec::run_to_end(self.flush_page(&self.exec().blocking(), paged, page))
    }

    /// Flushes all dirty pages of the file, and waits for those that other threads flush. Returns the first error,
    /// after it has tried all.
    pub(super) fn flush_all(&self) -> Result<()> {
        let Some(paged) = &self.paged else { return Ok(()) };
        Exec::run_to_end(self.flush_all_of(&self.exec().blocking(), paged))
    }

    async fn flush_all_of(&self, io: &Io<'_>, paged: &Paged) -> Result<()> {
        let mut keys = paged.pager.dirty_of(paged.number());
        let mut first = Ok(());
        while !keys.is_empty() {
            // Another thread's flush may write older bytes than those that this flush must cover, and may fail. So the
            // page is checked again, until it is clean or this thread has flushed it.
            let flushed = self.flush(io, paged, &keys, Class::Foreground).await;
            keys = flushed.busy;
            first = first.and(flushed.result);
            wait_for_flushes(io, &paged.pager, &keys).await;
        }
        first
    }

    /// Flushes the dirty pages in rising order, with their dirty neighbours. If a page cannot be written, only its
    /// neighbours in the same write stay unwritten.
    async fn flush(&self, io: &Io<'_>, paged: &Paged, keys: &[Key], class: Class) -> Flushed {
        let mut flushed = Flushed::NONE;
        let mut copies = match paged.pager.take_copy(keys.len()) {
            Ok(copies) => copies,
            Err(error) => return Flushed { result: Err(error), ..flushed },
        };
        let mut keys = keys.iter().copied().peekable();
        // All pages before this one have been tried. If a write fails, its pages are dirty again, and each later page
        // beside them would repeat it.
        let mut tried = 0;
        while keys.peek().is_some() {
            let mut runs = FlushRuns::new(self, paged);
            let mut used = 0;
            while let Some(&key) = keys.peek()
                && used < copies.memory().len()
            {
                // If a neighbour became clean meanwhile, the run may end before this page. Then the next round checks
                // it again.
                let (asked, copied) = self.copy_run(paged, (key, tried), copies.memory(), used, &mut runs.all);
                used += copied;
                tried = runs.all.last().map_or(tried, FlushRun::end);
                match asked {
                    Some(Flush::Busy) => flushed.busy.push(key),
                    Some(_) => {}
                    None => continue,
                }
                keys.next();
                while keys.next_if(|next| next.page() < tried).is_some() {}
            }
            let (cleaned, result) = self.write_runs(io, &runs, &mut copies, class).await;
            flushed.cleaned += cleaned;
            flushed.result = flushed.result.and(result);
        }
        flushed
    }

    /// Copies a dirty page with its dirty neighbours in its block, but none before page `least`. Returns the result for
    /// that page, if it was reached, and the number of bytes copied.
    fn copy_run(
        &self,
        paged: &Paged,
        (key, least): (Key, u64),
        copy: &mut PageBuf,
        at: usize,
        runs: &mut Vec<FlushRun>,
    ) -> (Option<Flush>, usize) {
        let block_pages = self.file.block_bytes() / PAGE_BYTES as u64;
        let block = key.page() - key.page() % block_pages;
        let room = ((copy.len() - at) / PAGE_BYTES).min(PIECE_BYTES / PAGE_BYTES) as u64;
        let is_dirty = |page: u64| {
            let (key, _, cache) = paged.key(page);
            cache.is_dirty(key)
        };
        let wanted = key.page();
        let mut first = wanted;
        while first > block.max(least) && wanted - first + 1 < room && is_dirty(first - 1) {
            first -= 1;
        }
        let (mut page, mut copied, mut asked) = (first, 0, None);
        // The block at the end of the longest file may have pages past all keys.
        let end = (block + block_pages).min(FILE_PAGES);
        while page < end && copied < room {
            let to = copy.as_mut_ptr().wrapping_add(at + copied as usize * PAGE_BYTES);
            let (key, _, cache) = paged.key(page);
            // SAFETY: `room` pages fit into the copy from `at` on, and nothing else uses it.
            let begun = unsafe { cache.begin_flush(key, to) };
            if page == wanted {
                asked = Some(begun);
            }
            if begun == Flush::Begun {
                copied += 1;
            } else if copied > 0 || page >= wanted {
                break;
            } else {
                // Another thread has just flushed this neighbour.
                first = page + 1;
            }
            page += 1;
        }
        if copied > 0 {
            let run = FlushRun {
                first: paged.zero.page_after(first),
                count: copied as usize,
                at,
                ended: AtomicBool::new(false),
            };
            runs.push(run);
            paged.on_its_way(first + copied - 1);
        }
        (asked, copied as usize * PAGE_BYTES)
    }

    /// Prepares the sums before copies of pages are written. If a drive fails at that, the flush of its pages has
    /// failed.
    async fn begin_sums<'a>(&'a self, io: &Io<'_>, sums: &'a Sums, runs: &FlushRuns<'a>, copy: &PageBuf) {
        let part_of = |run: &FlushRun| self.file.locate(run.first.page() * PAGE_BYTES as u64).1.part;
        let mut of_parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (tag, run) in runs.all.iter().enumerate() {
            of_parts.entry(part_of(run)).or_default().push(tag);
        }
        let (mut writing, mut failed) = (Vec::new(), Vec::new());
        for tags in of_parts.into_values() {
            let mut pages = Vec::new();
            for run in tags.iter().map(|tag| &runs.all[*tag]) {
                let bytes = &copy.as_slice()[run.at..run.at + run.count * PAGE_BYTES];
                let of_run = (run.first.page()..).zip(bytes.chunks(PAGE_BYTES));
                pages.extend(of_run.map(|(page, bytes)| (page, sums.identity().sum(page, bytes))));
            }
            match self.file.begin_flush(io, sums, pages).await {
                Ok(begun) => writing.push(begun),
                Err(error) => failed.push((tags, error.errno())),
            }
        }
        let _set_once = runs.writing.set(writing);
        for (tags, errno) in failed {
            for tag in tags {
                let page = runs.all[tag].first.page();
                let (part, place) = self.file.locate(page * PAGE_BYTES as u64);
                let failure = match errno {
                    Some(errno) => Failure { key: part.file.key, offset: place.offset, ..failure(Op::Write, errno) },
                    // The sums themselves are damaged.
                    None => doubted(page, Doubt::NoSum(NoSum::Lost)),
                };
                runs.piece_done(tag as u32, Err(failure));
            }
        }
    }

    /// Writes copies of pages to their drives. Returns the number of successful pages, and the first error. If no write
    /// could begin, the pages stay dirty, and a later flush tries again.
    async fn write_runs<'a>(
        &'a self,
        io: &Io<'_>,
        runs: &FlushRuns<'a>,
        copies: &mut Copies<'_>,
        class: Class,
    ) -> (u64, Result<()>) {
        let copy = copies.memory();
        if let Some(sums) = self.file.sums() {
            Box::pin(self.begin_sums(io, sums, runs, copy)).await;
        }
        let within = Within::new(copy.as_mut_ptr().cast_const(), copy.len());
        let unended = runs.all.iter().enumerate().filter(|(_, run)| !run.ended.load(Ordering::Relaxed));
        let pieces = unended.map(|(tag, run)| {
            let memory = Memory::one(within.at(run.at));
            let len = self.file.written_bytes(run.first.page(), run.count);
            let (drive, piece) = self.file.page_piece(Op::Write, class, run.first.page(), len, memory);
            (drive, Piece { tag: tag as u32, ..piece })
        });
        // SAFETY: the copy lives until this has ended, and nothing else has it.
        match unsafe { io.run(within, pieces, runs) } {
            Ok(landing) => landing.await,
            Err(error) => return (0, Err(error)),
        }
        runs.paged.pager.with_local(|local| local.tally.add(Counter::Flushes, runs.flushed.load(Ordering::Relaxed)));
        let failed = runs.first.take().map_or(Ok(()), |failure| Err(self.file.error(failure)));
        (runs.cleaned.load(Ordering::Relaxed), failed)
    }
}

/// Waits until other operations have flushed pages, which the caller then checks again. An earlier check would find the
/// same state.
async fn wait_for_flushes(io: &Io<'_>, pager: &Pager, keys: &[Key]) {
    let waiter = |&key: &Key| {
        let cache = pager.cache_of(key);
        cache.waiter(key, cache.directory().hash(key), true)
    };
    let waiters: Vec<_> = keys.iter().filter_map(waiter).collect();
    for waiter in &waiters {
        let _seen_in_the_next_round = io.wait_for_page(waiter).await;
    }
}

impl Pager {
    /// Memory for copies of `pages` pages, or of some of them at a time.
    fn take_copy(&self, pages: usize) -> Result<Copies<'_>> {
        let most = (self.pages() as usize / 64).clamp(4, COPY_PAGES);
        // Half, because neighbours are added.
        let is_small = pages <= SMALL_COPY_PAGES / 2 || most <= SMALL_COPY_PAGES;
        if let Some(copy) = lock(&self.copies[usize::from(is_small)]).pop() {
            return Ok(Copies { pager: self, memory: Some(copy) });
        }
        let pages = if is_small { most.min(SMALL_COPY_PAGES) } else { most };
        let len = pages * PAGE_BYTES;
        let memory = PageBuf::new(len).map_err(Error::memory("copies of pages to flush", len as u64))?;
        Ok(Copies { pager: self, memory: Some(memory) })
    }

    fn give_copy(&self, copy: PageBuf) {
        let is_small = copy.len() <= SMALL_COPY_PAGES * PAGE_BYTES;
        let mut copies = lock(&self.copies[usize::from(is_small)]);
        if copies.len() < COPIES_KEPT[usize::from(is_small)] {
            copies.push(copy);
        }
    }

    /// The dirty pages of some pages' sets, in rising order.
    pub(super) fn dirty_beside(&self, pages: impl Iterator<Item = Key>) -> Vec<Key> {
        let mut keys = Vec::new();
        for page in pages {
            let cache = self.cache_of(page);
            let directory = cache.directory();
            cache.dirty_in(directory.set_index(directory.hash(page)), false, &mut keys);
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl Pager {
    /// Leaves the sets of pages to the background thread. Returns `false` if none could be started; a notice says why.
    /// The subscriber of that notice cannot start one either.
    pub(super) fn flush_later(self: &Arc<Self>, exec: &Exec, keys: impl Iterator<Item = Key>) -> bool {
        !events::is_telling() && self.flusher.push(|| self.start_flusher(exec), keys)
    }

    /// Starts the thread. Without it writing calls flush by themselves.
    fn start_flusher(self: &Arc<Self>, exec: &Exec) -> Option<JoinHandle<()>> {
        let pager = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("iomill-flush".into()).spawn(move || {
            // Closing a file here would delay the flushes of all other files.
            pools::leave_closing_to_others();
            loop {
                // Held during a round, and while the thread sleeps in `next`. `stop` ends that sleep before the pager
                // is dropped.
                let Some(pager) = pager.upgrade() else { return };
                let Some(pages) = pager.flusher.next() else { return };
                // A panic of one round must not end the thread. The panic message has been printed.
                let _ = catch_unwind(AssertUnwindSafe(|| pager.flush_sets_behind(&pages)));
            }
        });
        if let Err(error) = &thread {
            exec.notice(format!("no thread to flush in the background: {error}"));
        }
        thread.ok()
    }

    /// One round: the sets of these pages.
    fn flush_sets_behind(&self, pages: &[Key]) {
        let keys = self.dirty_beside(pages.iter().copied());
        for keys in keys.chunk_by(|a, b| a.file() == b.file()) {
            let Some(file) = self.file(keys[0].file()) else { continue };
            let io = file.exec().blocking();
            // Pages that fail stay dirty, and the file's handles report it (`writeback_errors`).
            let _kept = Exec::run_to_end(file.flush_if_open(&io, keys, Class::Background));
        }
    }
}
