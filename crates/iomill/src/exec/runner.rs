//! [`Exec`]: what runs the I/O of files on one set of drives, made from a [`Setup`]. Non-goals: the contexts of threads
//! (`inline`, `cell_for`).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use super::contexts::ContextCell;
use super::pause::PAUSE;
use super::pools::{self, Pool};
use super::queued::{QueuedCall, QueuedCalls};
use super::shared::{self, SharedCells};
use super::turns::Turns;
use crate::counters::{self, Board};
use crate::drive::lane::Engines;
use crate::drive::locks::BlockLocks;
use crate::drive::regions::Regions;
use crate::drive::service::Service;
use crate::drive::shares;
use crate::drive::threads::{DriveThread, DriveThreads, DriveThreadsConfig};
use crate::engine::Op;
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::fs::{Alignment, Handle};
use crate::sys::grown::Grown;
use crate::sys::notices::Notices;
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};

/// The number of the next instance. It identifies the instances of this process in the threads' tables of contexts.
static INSTANCES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// A function that returns the CPUs of each drive's thread, called when the threads start.
pub type CpusOfDrives = Box<dyn Fn() -> Result<Vec<Vec<usize>>> + Send + Sync>;

/// The parts of an [`Exec`].
pub struct Setup {
    pub platform: Arc<dyn Platform>,
    /// The service of each drive, by its index.
    pub services: Vec<Service>,
    /// The most drives that may be added, with the present ones.
    pub most_drives: usize,
    /// Whether another engine may replace one that cannot be made: no option names an engine.
    pub may_change_engines: bool,
    /// Whether each drive has a thread that does its I/O (`drive::threads`).
    pub has_drive_threads: bool,
    pub cpus: CpusOfDrives,
    /// Handles that engines keep open, so that locks last as long as I/O.
    pub hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    pub board: Arc<Board>,
    pub notices: Arc<Notices>,
    pub instance: u64,
}

/// Runs the I/O of files on one set of drives.
pub struct Exec {
    platform: Arc<dyn Platform>,
    /// The service of each drive. `add_drive` appends.
    pub services: Grown<Service>,
    pub(super) may_change_engines: bool,
    /// Started with the first context. `None` in an array without drive threads: its contexts have the drives' engines.
    drive_threads: Option<DriveThreads>,
    pub shared: Arc<SharedCells>,
    cpus: CpusOfDrives,
    hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    locks: Arc<BlockLocks>,
    pub clock: Arc<dyn Clock>,
    /// The counters. `board.tally()` returns the calling thread's own.
    pub board: Arc<Board>,
    pub(super) instance: u64,
    /// The process that opened the array. No other process may use it (rules of the fork).
    pub home: Home,
    next_key: AtomicU64,
    closed: AtomicBool,
    pub notices: Arc<Notices>,
    /// Runs users' callbacks.
    pub callbacks: Arc<Pool>,
    /// Begins operations that wait to enter a file. Apart from `callbacks`, because a callback may take as long as it
    /// likes, and may wait for them.
    pub begins: Arc<Pool>,
    /// Polls operations that are inside their files and have waited for a page. Apart from `begins`, because jobs there
    /// wait to enter files.
    pub resumes: Arc<Pool>,
    /// Makes changes of the catalog for futures.
    pub changes: Arc<Turns>,
    /// Makes calls for futures that wait for drives.
    pub waits: Arc<Pool>,
    /// Opens files for futures. Apart from `waits`, because large contents there may take long.
    pub opens: Arc<Pool>,
    /// Closes files for threads that must not wait for that. A pool of its own, because an fsync may take long.
    pub closes: Arc<Pool>,
    /// Calls for futures that no thread of a pool has begun.
    queued: Arc<QueuedCalls>,
    /// The cells of all threads.
    pub(super) contexts: Mutex<Vec<Weak<ContextCell>>>,
}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("services", &self.services.count()).finish_non_exhaustive()
    }
}

/// A new number, which no other instance of this process has.
pub fn next_instance() -> u64 {
    INSTANCES.fetch_add(1, Ordering::Relaxed)
}

/// Drops a share of the owner of an `Exec`, on any thread. If it is the last share, and the calling thread may not wait
/// for callbacks, another thread drops the owner.
pub fn drop_where_it_may_wait<T: Send + Sync + 'static>(shared: Arc<T>, exec: impl FnOnce(&T) -> &Exec) {
    let Some(last) = Arc::into_inner(shared) else { return };
    let exec = exec(&last);
    if exec.has_threads() && !exec.may_close() {
        let closes = Arc::clone(&exec.closes);
        closes.run(Box::new(move || drop(last)));
    }
}

impl Exec {
    /// Makes an `Exec`. Its threads and engines are made at their first use.
    pub fn new(setup: Setup) -> Exec {
        let threads = setup.platform.threads();
        let mut services = Grown::new(setup.most_drives);
        services.extend(setup.services);
        Exec {
            clock: setup.platform.clock(),
            callbacks: Arc::new(Pool::for_callbacks(threads, setup.instance)),
            begins: Arc::new(Pool::for_beginning(threads)),
            resumes: Arc::new(Pool::new(threads, "resume")),
            changes: Arc::new(Turns::new(threads)),
            waits: Arc::new(Pool::for_waiting(threads)),
            opens: Arc::new(Pool::for_opening(threads)),
            closes: Arc::new(Pool::for_closing(threads)),
            platform: setup.platform,
            services,
            may_change_engines: setup.may_change_engines,
            // A simulation has no threads.
            drive_threads: (setup.has_drive_threads && threads).then(DriveThreads::default),
            shared: Arc::default(),
            cpus: setup.cpus,
            hold: setup.hold,
            regions: setup.regions,
            locks: Arc::default(),
            board: setup.board,
            // Unique over all instances, because an engine may know files of several.
            next_key: AtomicU64::new((setup.instance << 40) + 1),
            instance: setup.instance,
            home: Home::here(),
            closed: AtomicBool::new(false),
            notices: setup.notices,
            queued: Arc::default(),
            contexts: Mutex::new(Vec::new()),
        }
    }

    /// Fails in a child of the process that opened the array (rules of the fork).
    #[inline]
    pub fn check_home(&self) -> Result<()> {
        if self.home.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    pub fn check_open(&self) -> Result<()> {
        self.check_home()?;
        if self.is_open() { Ok(()) } else { Err(Error::Closed) }
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        // Acquire: pairs with the AcqRel in `begin_close`.
        !self.closed.load(Ordering::Acquire)
    }

    /// Begins the close: no further call begins. Whether the array was open.
    pub fn begin_close(&self) -> bool {
        // AcqRel: pairs with the Acquire in `is_open`.
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// The number of this instance, which no other instance of this process has.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    pub fn has_threads(&self) -> bool {
        self.platform.threads()
    }

    /// The alignment that a drive's queues use for I/O on all its parts.
    pub fn align(&self, drive: u16) -> Alignment {
        self.services[usize::from(drive)].align
    }

    /// Adds a drive, and returns its index, or `None` if there are too many. Each thread makes new engines before its
    /// next I/O. The caller lets one thread at a time add a drive.
    pub fn add_drive(&self, service: Service) -> Option<u16> {
        self.services.push(service).ok().map(|index| index as u16)
    }

    /// Counts the bytes that a call is to read or write.
    pub fn count_bytes(&self, op: Op, bytes: u64) {
        match op {
            Op::Read => self.board.tally().add(counters::Counter::BytesRead, bytes),
            Op::Write => self.board.tally().add(counters::Counter::BytesWritten, bytes),
            Op::Sync => {}
        }
    }

    /// A new key for a file, by which engines know it.
    pub fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub fn notice(&self, notice: String) {
        self.notices.push(notice);
    }

    /// Lets other work go on: steps a simulation, or sleeps a little.
    pub fn pause(&self) {
        let pools = [&self.callbacks, &self.begins, &self.opens, &self.waits];
        if !pools.into_iter().any(|pool| pool.step()) && !self.changes.step() {
            self.pause_for_io();
        }
    }

    /// Lets I/O and operations go on, but no callbacks. For a caller that holds something for which a callback may
    /// wait, such as a closed gate: in a simulation the callback would run within this wait, and wait for the caller.
    pub fn pause_for_io(&self) {
        if !self.closes.step() && !self.resumes.step() {
            self.pause_for_drives();
        }
    }

    /// Lets only the drives go on: for a caller with unfinished work, for which an operation may wait.
    pub fn pause_for_drives(&self) {
        if self.has_threads() {
            shared::help_everywhere();
        } else if self.shared.step() {
            return;
        }
        self.clock.sleep(PAUSE);
    }

    /// Whether this thread may close a file now. In a simulation a wait steps the work for which it waits, and a step
    /// cannot contain another one.
    pub fn may_close(&self) -> bool {
        if self.has_threads() { pools::may_close() } else { !shares::is_serving() }
    }

    /// Has every engine forget a file that is being closed, with no I/O in flight. The hold that engines share, such as
    /// a mapping, ends now. Each engine forgets the file before its next use.
    pub fn forget(&self, key: u64) {
        self.platform.forget(key);
        for cell in lock(&self.contexts).iter().filter_map(Weak::upgrade) {
            cell.forget_later(key);
        }
        self.shared.forget(key);
        self.drive_threads.iter().for_each(|threads| threads.forget(key));
    }

    /// The parts of contexts over these drives. Starts the drive threads, if the array has any.
    pub(super) fn engines(&self, services: &[Service]) -> Result<Engines<'_>> {
        let start = |threads| self.start_threads(threads, services);
        let threads = self.drive_threads.as_ref().map_or(Ok(Vec::new()), start)?;
        let notices = Some(&self.notices);
        Ok(Engines { platform: &*self.platform, locks: &self.locks, hold: &self.hold, notices, threads })
    }

    fn start_threads(&self, threads: &DriveThreads, services: &[Service]) -> Result<Vec<Arc<DriveThread>>> {
        let running = threads.running();
        if running.len() >= services.len() {
            return Ok(running);
        }
        let config = DriveThreadsConfig {
            platform: &*self.platform,
            services,
            may_change: self.may_change_engines,
            cpus: (self.cpus)()?,
            regions: &self.regions,
            hold: &self.hold,
            notices: &self.notices,
        };
        threads.start(&config)
    }

    /// Makes the engines for a blocking call on this thread. For calls that must see an error before they change
    /// anything.
    pub fn get_ready_to_block(&self) -> Result<()> {
        self.ready_context(&self.cell())
    }

    /// Notes a call that is about to be handed over to a pool.
    pub fn queue_call(&self) -> QueuedCall {
        self.queued.add()
    }

    /// Waits until all calls that are queued now have begun.
    pub fn wait_for_queued_calls(&self) {
        self.queued.wait(|| self.pause());
    }

    /// Ends all threads and engines. No file is open any more.
    pub fn stop(&self) {
        self.opens.stop();
        self.waits.stop();
        self.changes.stop();
        self.shared.stop();
        self.resumes.stop();
        self.begins.stop();
        self.callbacks.stop();
        self.closes.stop();
        for cell in lock(&self.contexts).drain(..).filter_map(|cell| cell.upgrade()) {
            cell.clear();
        }
        // Last, because only now all contexts have dropped their engines.
        self.drive_threads.iter().for_each(DriveThreads::stop);
        self.board.close();
    }
}
