//! Running I/O: which thread advances an operation, and what its end wakes. The type is [`Exec`], made from a [`Setup`].
//!
//! Goals: one way through an operation, whether a call blocks for it or a future waits for it. Non-goals: files, lengths and caches,
//! which are the matter of the rooms above.
//!
//! An operation is an `async fn` of a room above. It has three kinds of waits: for pieces ([`Io::run`]), for a page that another
//! operation works on ([`Io::wait_for_page`]), and for a thread that may block ([`Io::on_blocking_thread`]). A blocking call runs the
//! operation on its own thread ([`Exec::run_to_end`]), where each wait blocks. A future or a callback spawns it ([`task::spawn`]).
//!
//! | thread | advances |
//! |---|---|
//! | of the caller | blocking operations, by the thread's own engines (`contexts`); by a poll, all spawned operations of its shared context |
//! | the reaper | spawned operations where no other thread does (`reaper`) |
//! | of a pool | callbacks; spawned operations that have waited for a page; calls for futures; closing of files (`pools`) |
//!
//! A child process cannot use what was opened before the fork. What is open for reading it opens again (`api::child`). The child has a
//! copy of all memory, but none of the threads. It shares descriptors with the parent: locks, rings, the file of counters. Calls of the
//! child would undo what the parent has done since.
//! Rules of the fork:
//! 1. Every call asks `check_home` before it takes a lock. A thread that the child does not have may hold the lock.
//! 2. A destructor that takes locks, wakes threads or touches shared memory asks first. In a child it leaves all as it is.
//! 3. A value with such parts is not dropped in a child: each handle leaves its share of the count behind.
//! 4. A hit in the cache asks nothing. It finds its thread's state by `local::LAST`. The C library calls `local::forget_in_child` in the
//!    child, which clears it.

pub mod block_on;
pub mod cell;
pub mod contexts;
mod io;
mod pages;
pub mod pools;
mod promise;
mod queued;
mod reaper;
pub mod roles;
pub mod shared;
pub mod task;
mod telling;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tokio")]
mod tokio_task;
pub mod turns;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

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
use contexts::ContextCell;
use pools::Pool;
use queued::QueuedCalls;
use shared::SharedCells;
use turns::Turns;

pub use crate::drive::regions::Within;
pub use io::{FirstFailure, Io, Landing, Sink, both, failure};
pub use pages::PageWrite;
pub use promise::{Promise, Promised, promise};
pub use queued::QueuedCall;

/// How long a thread sleeps before it looks again at what another thread does.
pub const PAUSE: Duration = Duration::from_micros(50);

/// What a thread does that waits for memory or a lock: it takes turns for others, of all arrays, because bounce memory is common to them.
fn help_and_pause(clock: &dyn Clock) {
    shared::help_everywhere();
    clock.sleep(PAUSE);
}

/// The number of the next instance. It tells the instances of this process apart in the threads' tables of contexts.
static INSTANCES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The CPUs of each drive's thread, asked for when the threads start.
pub type CpusOfDrives = Box<dyn Fn() -> Result<Vec<Vec<usize>>> + Send + Sync>;

/// What an [`Exec`] is made from.
pub struct Setup {
    pub platform: Arc<dyn Platform>,
    /// How each drive is served, by index.
    pub services: Vec<Service>,
    /// How many drives there may be.
    pub most_drives: usize,
    /// Whether another engine may replace one that cannot be made: no option names one.
    pub may_change_engines: bool,
    /// Whether each drive has a thread that does its I/O (`drive::threads`).
    pub has_drive_threads: bool,
    pub cpus: CpusOfDrives,
    /// Handles that engines keep open, so that locks last as long as I/O.
    pub hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    pub board: Arc<Board>,
    /// Where the notices go.
    pub notices: Arc<Notices>,
    pub instance: u64,
}

/// What runs the I/O of files on one set of drives.
pub struct Exec {
    platform: Arc<dyn Platform>,
    /// Drives may be added (`add_drive`).
    pub services: Grown<Service>,
    may_change_engines: bool,
    /// Started with the first context. `None` where contexts have the drives' engines.
    drive_threads: Option<DriveThreads>,
    pub shared: Arc<SharedCells>,
    cpus: CpusOfDrives,
    hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    locks: Arc<BlockLocks>,
    pub clock: Arc<dyn Clock>,
    /// The counters. `board.tally()` is the calling thread's part of them.
    pub board: Arc<Board>,
    instance: u64,
    /// The process that opened the array. No other process may use it (rules of the fork).
    pub home: Home,
    next_key: AtomicU64,
    closed: AtomicBool,
    pub notices: Arc<Notices>,
    /// Users' callbacks, and operations that wait to enter a file.
    pub callbacks: Arc<Pool>,
    /// Operations that are inside their files and have waited for a page. A pool of its own: jobs of `callbacks` wait to enter files.
    pub resumes: Arc<Pool>,
    /// Changes of the catalog for futures.
    pub changes: Arc<Turns>,
    /// Calls that wait for drives, for futures.
    pub waits: Arc<Pool>,
    /// Opens files for futures. A pool of its own, because large contents may take long.
    pub opens: Arc<Pool>,
    /// Closes files for threads that must not wait for that. A pool of its own, because a flush may take long.
    pub closes: Arc<Pool>,
    /// Calls for futures that no thread of a pool has begun.
    queued: Arc<QueuedCalls>,
    contexts: Mutex<Vec<Weak<ContextCell>>>,
}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("services", &self.services.count()).finish_non_exhaustive()
    }
}

/// A number that no other instance of this process has.
pub fn next_instance() -> u64 {
    INSTANCES.fetch_add(1, Ordering::Relaxed)
}

/// Drops a share of what owns an `Exec`. Runs on any thread. If this is the last share, and this thread may not wait for callbacks, another
/// thread drops it.
pub fn drop_where_it_may_wait<T: Send + Sync + 'static>(shared: Arc<T>, exec: impl FnOnce(&T) -> &Exec) {
    let Some(last) = Arc::into_inner(shared) else { return };
    let exec = exec(&last);
    if exec.has_threads() && !exec.may_close() {
        let closes = Arc::clone(&exec.closes);
        closes.run(Box::new(move || drop(last)));
    }
}

impl Exec {
    /// Threads and engines are made when they are first needed.
    pub fn new(setup: Setup) -> Exec {
        let threads = setup.platform.threads();
        let mut services = Grown::new(setup.most_drives);
        services.extend(setup.services);
        Exec {
            clock: setup.platform.clock(),
            callbacks: Arc::new(Pool::for_callbacks(threads)),
            resumes: Arc::new(Pool::new(threads, "resume")),
            changes: Arc::new(Turns::new(threads)),
            waits: Arc::new(Pool::for_waiting(threads)),
            opens: Arc::new(Pool::for_opening(threads)),
            closes: Arc::new(Pool::for_closing(threads)),
            platform: setup.platform,
            services,
            may_change_engines: setup.may_change_engines,
            // A simulation has none.
            drive_threads: (setup.has_drive_threads && threads).then(DriveThreads::default),
            shared: Arc::default(),
            cpus: setup.cpus,
            hold: setup.hold,
            regions: setup.regions,
            locks: Arc::default(),
            board: setup.board,
            // Engines may know the files of several instances.
            next_key: AtomicU64::new((setup.instance << 40) + 1),
            instance: setup.instance,
            home: Home::here(),
            closed: AtomicBool::new(false),
            notices: setup.notices,
            queued: Arc::default(),
            contexts: Mutex::new(Vec::new()),
        }
    }

    /// An error in a child of the process that opened the array (rules of the fork).
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

    /// Lets no more call begin. Returns whether the array was open.
    pub fn begin_close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// The number that no other instance of this process has.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    pub fn has_threads(&self) -> bool {
        self.platform.threads()
    }

    /// The alignment that a drive's queues assume for I/O on all its parts.
    pub fn align(&self, drive: u16) -> Alignment {
        self.services[usize::from(drive)].align
    }

    /// Adds a drive, and returns its index. `None` if there are too many. Threads that have engines make new ones before their next use of
    /// them. The caller lets one thread at a time add a drive.
    pub fn add_drive(&self, service: Service) -> Option<u16> {
        self.services.push(service).ok().map(|index| index as u16)
    }

    /// Counts what a call is to read or write.
    pub fn count_bytes(&self, op: Op, bytes: u64) {
        match op {
            Op::Read => self.board.tally().add(counters::Counter::BytesRead, bytes),
            Op::Write => self.board.tally().add(counters::Counter::BytesWritten, bytes),
            Op::Sync => {}
        }
    }

    /// A new key, by which engines know a file.
    pub fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub fn notice(&self, notice: String) {
        self.notices.push(notice);
    }

    /// Gives other work time: steps a simulation, or sleeps a little.
    pub fn pause(&self) {
        let has_stepped = self.callbacks.step() || self.opens.step() || self.waits.step() || self.changes.step();
        if !has_stepped {
            self.pause_for_io();
        }
    }

    /// Gives time to I/O and operations, and not to callbacks. A caller that holds what a callback may want, such as a closed gate, waits
    /// like this: in a simulation a callback that runs within the wait would wait for that caller.
    pub fn pause_for_io(&self) {
        if !self.closes.step() && !self.resumes.step() {
            self.pause_for_drives();
        }
    }

    /// Gives time to the drives only: for a caller with unfinished work, for which an operation may wait.
    pub fn pause_for_drives(&self) {
        if self.has_threads() {
            shared::help_everywhere();
        } else if self.shared.step() {
            return;
        }
        self.clock.sleep(PAUSE);
    }

    /// Whether this thread may close a file now. Without threads a wait steps what it waits for, but a step cannot contain another step.
    pub fn may_close(&self) -> bool {
        if self.has_threads() { pools::may_close() } else { !shares::is_serving() }
    }

    /// Has every engine forget a file that is being closed. No I/O is in flight on the file. What keeps the file open goes now. What engines
    /// only know of it, they forget before their next use.
    pub fn forget(&self, key: u64) {
        self.platform.forget(key);
        for cell in lock(&self.contexts).iter().filter_map(Weak::upgrade) {
            cell.forget_later(key);
        }
        self.shared.forget(key);
        self.drive_threads.iter().for_each(|threads| threads.forget(key));
    }

    /// What contexts over these drives are made from. Starts the drive threads, if there are to be any.
    fn engines(&self, services: &[Service]) -> Result<Engines<'_>> {
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

    /// Makes the engines that a blocking call on this thread needs: for calls that must see an error before they change anything.
    pub fn get_ready_to_block(&self) -> Result<()> {
        self.ready_context(&self.cell())
    }

    /// Ends all threads and engines, when no file is open any more.
    pub fn stop(&self) {
        self.opens.stop();
        self.waits.stop();
        self.changes.stop();
        self.shared.stop();
        self.resumes.stop();
        self.callbacks.stop();
        self.closes.stop();
        for cell in lock(&self.contexts).drain(..).filter_map(|cell| cell.upgrade()) {
            cell.clear();
        }
        // Last: all contexts have dropped their engines.
        self.drive_threads.iter().for_each(DriveThreads::stop);
        self.board.close();
    }
}
