//! The array: its drives, its catalog, and the machinery that its files share.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::cached::Cached;
use super::callbacks::{self, Callbacks, check_may_block};
use super::contexts::Cell;
use super::file::File;
use super::fleet::{Fleet, Plan};
use super::info::FileStat;
use super::notices::Notices;
use super::options::{ArrayOptions, Layout, Mode};
use super::places::Places;
use super::setup;
use super::state::FileState;
use crate::catalog::{Catalog, Id};
use crate::counters::{self, Board, Meter};
use crate::drive::inline::Service;
use crate::drive::locks::BlockLocks;
use crate::drive::regions::Regions;
use crate::drive::serve::{self, Message, Share};
use crate::engine::Op;
use crate::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::fs::Alignment;
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};

/// How long to wait before something that another thread does is looked at again.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// Tells arrays of this process apart in the threads' tables of contexts.
static INSTANCES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// A set of drives used together, with one catalog of files.
///
/// Clones share the array. Dropping the last clone and the last file closes it; [`Array::close`] also reports errors.
///
/// An array is open in one process. In a child that was forked from it every call is an error ([`Error::Forked`]), and closing and
/// dropping do nothing: the child opens the array anew. Pins that were made before the fork keep their bytes there.
#[derive(Clone, Debug)]
pub struct Array {
    /// Until it is dropped.
    pub(super) inner: ManuallyDrop<Arc<ArrayInner>>,
}

impl Drop for Array {
    /// Anywhere: also in a callback, where closing the array, which waits for callbacks, is left to another thread.
    fn drop(&mut self) {
        if !self.inner.home.is_here() {
            // Rule 3 of `forked`.
            return;
        }
        // SAFETY: it is taken here only, once, and nobody sees `self` after this.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        match Arc::into_inner(inner) {
            Some(last) if last.has_threads() && !last.may_close() => {
                let closes = Arc::clone(&last.closes);
                closes.run(Box::new(move || drop(last)));
            }
            last => drop(last),
        }
    }
}

type OpenFiles = BTreeMap<Id, Weak<FileState>>;

/// What all handles of an array share.
pub(crate) struct ArrayInner {
    pub options: ArrayOptions,
    pub catalog: Catalog,
    /// Which nodes do what.
    pub(super) places: Places,
    /// How each drive is served, by index.
    pub(super) services: Vec<Service>,
    pub regions: Arc<Regions>,
    pub(super) locks: Arc<BlockLocks>,
    pub clock: Arc<dyn Clock>,
    /// The page cache, unless it is switched off.
    pub cached: Option<Arc<Cached>>,
    /// What is counted: `board.tally()` is the calling thread's part of it.
    pub board: Arc<Board>,
    pub(super) instance: u64,
    /// The process that has it open; nothing of it is for another one's (`forked`).
    pub home: Home,
    next_key: AtomicU64,
    closed: AtomicBool,
    pub(super) notices: Notices,
    /// Started when first needed.
    pub(super) fleet: OnceLock<Fleet>,
    starting: Mutex<()>,
    /// Shared with operations, which must not keep the array.
    pub callbacks: Arc<Callbacks>,
    /// Operations that are inside their files and wait for others. Apart from the callbacks, among which are jobs that wait to enter.
    pub rests: Arc<Callbacks>,
    /// Files that were let go of where closing them must not be waited for. Apart from both, since a flush may take long.
    pub closes: Arc<Callbacks>,
    pub(super) contexts: Mutex<Vec<Weak<Cell>>>,
    /// Held while a file is created, deleted or renamed, so that names stay as they were found. Taken before `open`.
    pub(super) naming: Mutex<()>,
    /// Files that are open, or on their way in or out: an entry whose `Weak` is dead belongs to somebody who is still
    /// opening or closing the file's parts, and who alone removes it. `open_changed` tells of every change. Once the array is
    /// closed nothing is added. Nothing that may be the last handle is dropped with this locked.
    pub(super) open: Mutex<OpenFiles>,
    open_changed: Condvar,
}

impl std::fmt::Debug for ArrayInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayInner").field("catalog", &self.catalog).finish_non_exhaustive()
    }
}

impl Array {
    /// Makes directories into the drives of a new array: [`ArrayOptions::create`] with the defaults.
    pub fn create<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Array> {
        ArrayOptions::new().create(drives)
    }

    /// Opens the array that a drive belongs to: [`ArrayOptions::open`] with the defaults.
    pub fn open(drive: impl AsRef<Path>) -> Result<Array> {
        ArrayOptions::new().open(drive)
    }

    pub(crate) fn create_with(options: ArrayOptions, drives: Vec<PathBuf>) -> Result<Array> {
        let weights = match &options.weights {
            Some(weights) => weights.clone(),
            None => vec![1; drives.len()],
        };
        if options.read_only {
            return Err(Error::invalid("a new array for reading only", "it is empty; create it for writing"));
        }
        check_may_block("create")?;
        // Before there is anything on the drives that would be in the way of a second try.
        setup::check(&options, &vec![options.depth_of(None); drives.len()], true)?;
        let catalog = Catalog::create(&options.platform, &drives, &weights)?;
        Array::start(options, catalog)
    }

    pub(crate) fn open_with(options: ArrayOptions, starts: Vec<PathBuf>) -> Result<Array> {
        check_may_block("open")?;
        let mode = if options.read_only { crate::catalog::Mode::Reader } else { crate::catalog::Mode::Writer };
        let catalog = Catalog::open(&options.platform, &starts, mode)?;
        Array::start(options, catalog)
    }

    fn start(options: ArrayOptions, catalog: Catalog) -> Result<Array> {
        setup::check(&options, &setup::depths(&options, &catalog), catalog.is_writer())?;
        let mut notices = catalog.notices();
        options.note_misfits(&catalog, &mut notices);
        let mut services = setup::services(&options, &catalog, &mut notices)?;
        let (board, clock) = (setup::board(&options, &catalog, &mut notices)?, options.platform.clock());
        for (drive, service) in services.iter_mut().enumerate() {
            service.meter = Some(Meter::new(&board, drive as u16, &clock));
        }
        let (regions, instance) = (Arc::<Regions>::default(), INSTANCES.fetch_add(1, Ordering::Relaxed));
        let places = Places::new(&options)?;
        let cached = Cached::new(&options, &places, instance, &regions, &board, &mut notices)?;
        let inner = Arc::new(ArrayInner {
            cached,
            callbacks: Arc::new(Callbacks::new(options.platform.threads(), "callback")),
            rests: Arc::new(Callbacks::new(options.platform.threads(), "rest")),
            closes: Arc::new(Callbacks::for_closing(options.platform.threads())),
            clock,
            board,
            services,
            catalog,
            places,
            options,
            regions,
            locks: Arc::default(),
            instance,
            home: Home::here(),
            // Engines may know the files of several arrays.
            next_key: AtomicU64::new((instance << 40) + 1),
            closed: AtomicBool::new(false),
            notices: Notices::new(notices),
            fleet: OnceLock::new(),
            starting: Mutex::new(()),
            contexts: Mutex::new(Vec::new()),
            naming: Mutex::new(()),
            open: Mutex::default(),
            open_changed: Condvar::new(),
        });
        Ok(Array { inner: ManuallyDrop::new(inner) })
    }

    /// Creates a file of length 0 and opens it.
    pub fn create_file(&self, name: &str, layout: Layout) -> Result<File> {
        check_may_block("create_file")?;
        self.inner.check_open()?;
        let spec = setup::file_spec(&self.inner.options, &self.inner.catalog, layout)?;
        {
            let _naming = lock(&self.inner.naming);
            self.inner.catalog.create_file(name, &spec)?;
        }
        self.inner.open_file(name).map(File::new)
    }

    /// Opens a file.
    pub fn open_file(&self, name: &str) -> Result<File> {
        check_may_block("open_file")?;
        self.inner.open_file(name).map(File::new)
    }

    /// Deletes a file that nobody in this process has open. It waits for what is under way on the file, so callbacks cannot call it.
    pub fn delete(&self, name: &str) -> Result<()> {
        check_may_block("delete")?;
        self.inner.check_home()?;
        let catalog = &self.inner.catalog;
        self.inner.with_closed(|| Ok(vec![catalog.record(name)?]), || catalog.delete(name))
    }

    /// Renames a file, replacing the one at `to` if there is one. Neither is open, so that no handle changes what it
    /// stands for. It waits as [`Array::delete`] does.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_may_block("rename")?;
        self.inner.check_home()?;
        let catalog = &self.inner.catalog;
        let both = || {
            let mut records = vec![catalog.record(from)?];
            match catalog.record(to) {
                Ok(record) if from != to => records.push(record),
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(records)
        };
        self.inner.with_closed(both, || catalog.rename(from, to))
    }

    /// The names that begin with `prefix`, sorted.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        if self.inner.home.is_here() { self.inner.catalog.list(prefix) } else { Vec::new() }
    }

    /// What is known of a file without opening it.
    pub fn stat(&self, name: &str) -> Result<FileStat> {
        let array = &self.inner;
        array.check_open()?;
        loop {
            let record = array.catalog.record(name)?;
            let open = lock(&array.open).get(&record.id).and_then(Weak::upgrade);
            let len = match open {
                Some(state) => Ok(state.len()),
                None => array.catalog.length(&record),
            };
            match len {
                Ok(len) => return FileStat::new(&array.catalog, &record, len),
                Err(error) if array.catalog.record(name)?.id == record.id => return Err(error),
                // It has just been deleted, and the name is another file's by now.
                Err(_) => {}
            }
        }
    }

    /// Sets (or with `None` removes) an attribute of a file, durably.
    pub fn set_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        check_may_block("set_attribute")?;
        self.inner.check_open()?;
        self.inner.catalog.set_attribute(name, key, value)
    }

    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.inner.regions
    }

    /// Advances an array without threads (a simulation) by one step.
    pub fn step(&self) {
        if self.inner.home.is_here() {
            self.inner.pause();
        }
    }

    /// Changes the size of the page cache, in bytes, while it is used: step by step, each of which holds others up for microseconds.
    /// [`Counters`](crate::Counters) show how far it has come. It returns when the size is reached.
    ///
    /// It grows up to what [`ArrayOptions::cache_bytes_max`] said. When it shrinks, pages that do not fit go; dirty ones are
    /// written first, and an error in that leaves the cache at a size between. Memory goes back to the system in chunks of a
    /// 16th of the first size, and at least 2 MiB; what is pinned keeps its chunk until the next resize after its pin has ended.
    /// A chunk that is registered with an io_uring is free for others once the ring was used again.
    pub fn resize_cache(&self, bytes: u64) -> Result<()> {
        check_may_block("resize_cache")?;
        self.inner.check_open()?;
        let Some(cached) = &self.inner.cached else {
            let why = "the array was opened without one; open it with `ArrayOptions::cache_bytes`";
            return Err(Error::invalid("resizing the cache", why));
        };
        cached.resize(&self.inner, bytes)
    }

    /// Closes the array: waits for I/O in flight, makes every open file durable and gives the lock back. Handles that
    /// are still about answer with [`Error::Closed`]. The first error is returned, after everything was tried.
    pub fn close(self) -> Result<()> {
        check_may_block("close")?;
        self.inner.close()
    }
}

impl ArrayInner {
    pub fn is_writer(&self) -> bool {
        self.catalog.is_writer()
    }

    pub fn check_open(&self) -> Result<()> {
        self.check_home()?;
        if self.is_open() { Ok(()) } else { Err(Error::Closed) }
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    pub fn check_writer(&self) -> Result<()> {
        if self.is_writer() {
            return Ok(());
        }
        Err(Error::ReadOnly { why: "the array was opened for reading; open it for writing".into() })
    }

    pub fn has_threads(&self) -> bool {
        self.options.platform.threads()
    }

    /// What the queues of a drive take its parts to demand of I/O.
    pub fn align(&self, drive: u16) -> Alignment {
        self.services[usize::from(drive)].align
    }

    /// Counts what a call is to read or write.
    pub fn count_bytes(&self, op: Op, bytes: u64) {
        match op {
            Op::Read => self.board.tally().add(counters::Id::BytesRead, bytes),
            Op::Write => self.board.tally().add(counters::Id::BytesWritten, bytes),
            Op::Sync => {}
        }
    }

    pub fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub fn notice(&self, notice: String) {
        self.notices.push(notice);
    }

    /// Lets others get on: steps a simulation, or sleeps a little.
    pub fn pause(&self) {
        if !self.callbacks.step() {
            self.pause_for_io();
        }
    }

    /// Lets only I/O get on, and operations that it is part of. Whoever holds something that a callback may want (a closed gate)
    /// waits like this, so that in a simulation no callback runs within the wait and waits for it in turn.
    pub fn pause_for_io(&self) {
        if !self.closes.step() && !self.rests.step() {
            self.pause_for_drives();
        }
    }

    /// Whether a file may be closed here. Without threads all waits step what they wait for, but not within a step.
    pub fn may_close(&self) -> bool {
        if self.has_threads() { callbacks::may_close() } else { !serve::is_serving() }
    }

    /// Lets only the drives get on: for who has work of his own unfinished, that an operation may wait for.
    pub fn pause_for_drives(&self) {
        if !self.fleet.get().is_some_and(Fleet::step) {
            self.clock.sleep(PAUSE);
        }
    }

    fn open_file(self: &Arc<Self>, name: &str) -> Result<Arc<FileState>> {
        self.check_home()?;
        loop {
            let id = self.catalog.record(name)?.id;
            if let Some(state) = self.join_or_enter(&id)? {
                // The file we looked up may have been renamed before somebody else opened it.
                if state.record.name == name {
                    return Ok(state);
                }
                continue;
            }
            // While the entry is there, the file is neither deleted nor renamed. It may have been before.
            let opened = match self.catalog.record(name) {
                Ok(record) if record.id == id => FileState::open(self, record).map(Some),
                Ok(_) => Ok(None),
                Err(error) => Err(error),
            };
            if let Ok(Some(state)) = opened {
                let state = Arc::new(state);
                if let Some(cached) = &self.cached {
                    cached.enter(&state);
                }
                lock(&self.open).insert(id, Arc::downgrade(&state));
                self.open_changed.notify_all();
                return Ok(state);
            }
            self.closed(&id);
            opened?;
        }
    }

    /// The open file, or `None` and an entry of our own for opening it.
    fn join_or_enter(&self, id: &Id) -> Result<Option<Arc<FileState>>> {
        let mut open = lock(&self.open);
        loop {
            self.check_open()?;
            let Some(entry) = open.get(id) else { break };
            if let Some(state) = entry.upgrade() {
                return Ok(Some(state));
            }
            open = self.wait_for_change(open);
        }
        open.insert(*id, Weak::new());
        Ok(None)
    }

    fn wait_for_change<'a>(&'a self, open: MutexGuard<'a, OpenFiles>) -> MutexGuard<'a, OpenFiles> {
        if !self.has_threads() {
            // Whoever is closing a file is stepped by us.
            drop(open);
            self.pause_for_io();
            return lock(&self.open);
        }
        wait(&self.open_changed, open)
    }

    /// A file's parts are closed (or were never opened).
    pub fn closed(&self, id: &Id) {
        lock(&self.open).remove(id);
        self.open_changed.notify_all();
    }

    /// Tells every engine that a file is being closed. Without I/O in flight on it, it does not matter when they hear.
    pub fn forget(&self, key: u64) {
        for cell in lock(&self.contexts).iter().filter_map(Weak::upgrade) {
            lock(&cell.forget).push(key);
            cell.any_to_forget.store(true, Ordering::Release);
        }
        if let Some(fleet) = self.fleet.get() {
            for drive in 0..self.services.len() {
                // A fleet that has stopped has dropped its engines: nothing left to forget.
                let _ = fleet.send(drive, Message::Forget(key), 0);
            }
        }
    }

    /// Hands a share to a drive's server. Where there is none, the share's owner is told.
    pub fn send_share(&self, drive: usize, share: Share) {
        if let Ok(fleet) = self.fleet() {
            let weight = share.pieces.len();
            // What comes back is dropped, which tells its owner.
            let _ = fleet.send(drive, Message::Share(share), weight);
        }
    }

    /// The drive threads, started if they are not running.
    pub fn fleet(&self) -> Result<&Fleet> {
        if let Some(fleet) = self.fleet.get() {
            return Ok(fleet);
        }
        let _starting = lock(&self.starting);
        self.check_open()?;
        if let Some(fleet) = self.fleet.get() {
            return Ok(fleet);
        }
        let plan = Plan {
            platform: &*self.options.platform,
            services: &self.services,
            may_change: self.options.engine.is_none(),
            cpus: setup::cpus(&self.options, &self.catalog, &self.places)?,
            locks: &self.locks,
            regions: &self.regions,
            hold: &self.catalog.lock_handles(),
        };
        let fleet = Fleet::start(plan, &|notice| self.notice(notice))?;
        Ok(self.fleet.get_or_init(|| fleet))
    }

    /// Makes what an asynchronous call needs, so that its failure is the caller's to see.
    pub fn get_ready(&self) -> Result<()> {
        if !self.runs_inline() {
            self.rests.get_ready()?;
            return self.fleet().map(|_started| ());
        }
        let cell = self.cell();
        let mut context = lock(&cell.context);
        if context.is_none() {
            *context = Some(self.new_context()?);
        }
        Ok(())
    }

    /// Whether asynchronous calls, too, do their I/O on the caller's thread.
    pub fn runs_inline(&self) -> bool {
        self.options.mode_in_force() == Mode::Inline
    }

    /// Whether blocking calls go to the drive threads: as they are told to, or where the nodes that cache own no drives.
    pub fn blocks_on_threads(&self) -> bool {
        self.options.mode_in_force() == Mode::DriveThreads || self.cached.is_some() && self.places.are_apart()
    }

    fn close(&self) -> Result<()> {
        self.check_home()?;
        if let Some(cached) = &self.cached {
            cached.end_short_way();
        }
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(Error::Closed);
        }
        if let Some(cached) = &self.cached {
            cached.flusher.stop();
        }
        let files = self.settled_files();
        let mut first = Ok(());
        let mut keep = |result: Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        for file in &files {
            // Whatever entered before sees the end of its I/O; whatever comes after finds the array closed, and comes in only
            // when the file is finished.
            let _closed = file.gate.close(|| self.pause_for_io());
            keep(file.finish());
        }
        drop(files);
        if let Some(cached) = &self.cached {
            cached.stop_crews();
        }
        if let Some(fleet) = self.fleet.get() {
            fleet.stop();
        }
        self.rests.stop();
        self.callbacks.stop();
        self.closes.stop();
        for cell in lock(&self.contexts).drain(..).filter_map(|cell| cell.upgrade()) {
            *lock(&cell.context) = None;
        }
        self.board.close();
        keep(self.catalog.close());
        first
    }

    /// All open files of an array that is closing, when whoever was opening or closing one, or changing its name, is done:
    /// they all count on the array's lock.
    fn settled_files(&self) -> Vec<Arc<FileState>> {
        loop {
            let mut open = lock(&self.open);
            while open.values().any(|entry| entry.strong_count() == 0) {
                open = self.wait_for_change(open);
            }
            let files: Vec<_> = open.values().filter_map(Weak::upgrade).collect();
            let all = files.len() == open.len();
            drop(open);
            if all {
                return files;
            }
        }
    }
}

impl Drop for ArrayInner {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Acquire) {
            // No file is open any more (each holds the array), so there is nothing to lose that `close` would report.
            let _ = self.close();
        }
    }
}
