//! Running I/O: which thread advances an operation, and what is told of its end.
//!
//! Goals: one way through an operation, whether a call blocks for it or a future waits for it. Non-goals: knowing what an operation
//! is about. Files, lengths and caches are the rooms above.
//!
//! An operation is an `async fn` of a room above. Its steps wait at three places only: for pieces ([`Io::run`]), for a page that another
//! operation works on ([`Io::wait_for_page`]), and for a thread that may block ([`Io::on_blocking_thread`]). A blocking call runs it on its
//! own thread ([`Exec::run_to_end`]), where each of them blocks. A future or a callback spawns it ([`Exec::spawn`]).
//!
//! | thread | advances |
//! |---|---|
//! | of the caller | blocking operations, by the thread's own engines (`contexts`) |
//! | of a drive | the drive's queue (`drive_threads`), and spawned operations whose pieces have ended (`task`) |
//! | of a pool | callbacks; spawned operations that have waited for a page; closing of files (`pools`) |
//!
//! An array that was opened before a fork is of no use to the child. The child has a copy of all memory, but no threads, and shares
//! descriptors: locks, rings, the file of counters. What it did to its copy would undo what the parent has done since. Rules of the fork:
//! 1. Every call asks `check_home` before it takes a lock, which a thread that the child does not have may hold.
//! 2. What takes locks, tells others or touches shared memory when it is dropped asks too, and leaves all as it is in a child.
//! 3. What has such parts is not dropped in a child: each handle leaves its share of the count behind.
//! 4. A hit in the cache asks nothing. It finds its thread's state by `local::LAST`, which the C library has cleared in the child.

pub mod contexts;
mod drive_threads;
mod io;
mod notices;
pub mod pools;
mod promise;
pub mod roles;
mod task;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::counters::{self, Board};
use crate::drive::inline::Service;
use crate::drive::locks::BlockLocks;
use crate::drive::regions::Regions;
use crate::drive::serve::{self, Message, Share};
use crate::drive::{Class, Piece};
use crate::engine::Op;
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::fs::{Alignment, Handle};
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};
use contexts::Cell;
use drive_threads::{DriveThreads, Plan};
use notices::Notices;
use pools::Pool;

pub use io::{FirstFailure, Io, Landing, Sink, Within, both, failure};
pub use promise::{Promise, Promised, promise};

/// The time until something that another thread does is looked at again.
pub const PAUSE: Duration = Duration::from_micros(50);

/// Tells the instances of this process apart in the threads' tables of contexts.
static INSTANCES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Which thread drives the I/O of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Blocking calls on the caller's own ring, futures and callbacks by drive threads.
    #[default]
    Auto,
    /// All I/O on the caller's own ring and no thread per drive: a future has ended when the call that made it returns.
    Inline,
    /// All reads and writes by one thread per drive; `sync` still runs where it is called.
    DriveThreads,
}

/// The CPUs of each drive's thread, asked for when the threads start.
pub type CpusOfDrives = Box<dyn Fn() -> Result<Vec<Vec<usize>>> + Send + Sync>;

/// What an [`Exec`] is made from.
pub struct Setup {
    pub platform: Arc<dyn Platform>,
    /// How each drive is served, by index.
    pub services: Vec<Service>,
    /// Whether engines may be others than the services say: nothing but this library chose them.
    pub may_change_engines: bool,
    pub mode: Mode,
    /// Whether blocking calls go to the drive threads in every mode.
    pub is_apart: bool,
    pub cpus: CpusOfDrives,
    /// Handles that engines keep open, so that locks last as long as I/O.
    pub hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    pub board: Arc<Board>,
    pub notices: Vec<String>,
    pub instance: u64,
}

/// What runs the I/O of files on one set of drives.
pub struct Exec {
    platform: Arc<dyn Platform>,
    pub services: Vec<Service>,
    may_change_engines: bool,
    mode: Mode,
    is_apart: bool,
    cpus: CpusOfDrives,
    hold: Vec<Handle>,
    pub regions: Arc<Regions>,
    locks: Arc<BlockLocks>,
    pub clock: Arc<dyn Clock>,
    /// What is counted: `board.tally()` is the calling thread's part of it.
    pub board: Arc<Board>,
    instance: u64,
    /// The process that it works in; nothing of it is for another one's (rules of the fork).
    pub home: Home,
    next_key: AtomicU64,
    closed: AtomicBool,
    pub notices: Notices,
    /// Started when first needed.
    drive_threads: OnceLock<DriveThreads>,
    starting: Mutex<()>,
    /// Users' callbacks, and operations that wait to enter a file.
    pub callbacks: Arc<Pool>,
    /// Operations that are inside their files and have waited for a page. Apart from the callbacks, among which are jobs that wait to enter.
    pub resumes: Arc<Pool>,
    /// Files that were let go of where closing them must not be waited for. Apart from both, since a flush may take long.
    pub closes: Arc<Pool>,
    contexts: Mutex<Vec<Weak<Cell>>>,
}

impl std::fmt::Debug for Exec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exec").field("services", &self.services.len()).finish_non_exhaustive()
    }
}

/// A number that no other instance of this process has.
pub fn next_instance() -> u64 {
    INSTANCES.fetch_add(1, Ordering::Relaxed)
}

impl Exec {
    /// Threads and engines are made when they are first needed.
    pub fn new(setup: Setup) -> Exec {
        let threads = setup.platform.threads();
        Exec {
            clock: setup.platform.clock(),
            callbacks: Arc::new(Pool::new(threads, "callback")),
            resumes: Arc::new(Pool::new(threads, "resume")),
            closes: Arc::new(Pool::for_closing(threads)),
            platform: setup.platform,
            services: setup.services,
            may_change_engines: setup.may_change_engines,
            mode: setup.mode,
            is_apart: setup.is_apart,
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
            notices: Notices::new(setup.notices),
            drive_threads: OnceLock::new(),
            starting: Mutex::new(()),
            contexts: Mutex::new(Vec::new()),
        }
    }

    /// An error where another process has the array open, and this is its child (rules of the fork).
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
        !self.closed.load(Ordering::Acquire)
    }

    /// From now on no call begins; whether it was open.
    pub fn begin_close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    pub fn has_threads(&self) -> bool {
        self.platform.threads()
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

    /// A name for a file that engines are to know.
    pub fn next_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub fn notice(&self, notice: String) {
        self.notices.push(notice);
    }

    /// Lets other work get on: steps a simulation, or sleeps a little.
    pub fn pause(&self) {
        if !self.callbacks.step() {
            self.pause_for_io();
        }
    }

    /// Lets only I/O get on, and operations that it is part of. A caller that holds something that a callback may want (a closed gate)
    /// waits like this, so that in a simulation no callback runs within the wait and waits for it in turn.
    pub fn pause_for_io(&self) {
        if !self.closes.step() && !self.resumes.step() {
            self.pause_for_drives();
        }
    }

    /// Lets only the drives get on: for a caller with unfinished work that an operation may wait for.
    pub fn pause_for_drives(&self) {
        if !self.drive_threads.get().is_some_and(DriveThreads::step) {
            self.clock.sleep(PAUSE);
        }
    }

    /// Whether a file may be closed here. Without threads all waits step what they wait for, but not within a step.
    pub fn may_close(&self) -> bool {
        if self.has_threads() { pools::may_close() } else { !serve::is_serving() }
    }

    /// Tells every engine that a file is being closed. Without I/O in flight on it, it does not matter when they hear.
    pub fn forget(&self, key: u64) {
        for cell in lock(&self.contexts).iter().filter_map(Weak::upgrade) {
            cell.forget_later(key);
        }
        if let Some(drives) = self.drive_threads.get() {
            for drive in 0..self.services.len() {
                // Drive threads that have stopped have dropped their engines: nothing is left to forget.
                let _ = drives.send(drive, Message::Forget(key), 0);
            }
        }
    }

    /// Hands a share to a drive's server. Where there is none, the share's owner is told.
    pub fn send_share(&self, drive: usize, share: Share) {
        if let Ok(drives) = self.drive_threads() {
            let weight = share.pieces.len();
            // What comes back is dropped, which tells its owner.
            let _ = drives.send(drive, Message::Share(share), weight);
        }
    }

    /// Pieces by their drives.
    pub fn shares(&self, pieces: impl Iterator<Item = (u16, Piece)>) -> impl Iterator<Item = (usize, Vec<Piece>)> {
        let mut shares: Vec<Vec<Piece>> = vec![Vec::new(); self.services.len()];
        for (drive, piece) in pieces {
            shares[usize::from(drive)].push(piece);
        }
        shares.into_iter().enumerate().filter(|(_, pieces)| !pieces.is_empty())
    }

    /// Whether all drives would take so many pieces each (by index) without a wait.
    pub fn has_room(&self, class: Class, weights: &[usize]) -> bool {
        let Some(drives) = self.drive_threads.get() else { return true };
        weights.iter().enumerate().all(|(drive, &weight)| weight == 0 || drives.has_room(drive, class, weight))
    }

    /// Whether drive threads have been started.
    pub fn has_drive_threads(&self) -> bool {
        self.drive_threads.get().is_some()
    }

    /// The drive threads, started if they are not running.
    fn drive_threads(&self) -> Result<&DriveThreads> {
        if let Some(drives) = self.drive_threads.get() {
            return Ok(drives);
        }
        let _starting = lock(&self.starting);
        self.check_open()?;
        if let Some(drives) = self.drive_threads.get() {
            return Ok(drives);
        }
        let plan = Plan {
            platform: &*self.platform,
            services: &self.services,
            may_change: self.may_change_engines,
            cpus: (self.cpus)()?,
            locks: &self.locks,
            regions: &self.regions,
            hold: &self.hold,
        };
        let drives = DriveThreads::start(plan, &|notice| self.notice(notice))?;
        Ok(self.drive_threads.get_or_init(|| drives))
    }

    /// Makes what a spawned operation needs, so that its failure is the caller's to see.
    pub fn get_ready(&self) -> Result<()> {
        if !self.runs_inline() {
            self.resumes.get_ready()?;
            return self.drive_threads().map(|_started| ());
        }
        self.ready_context(&self.cell())
    }

    /// Makes what a blocking call on this thread needs, where that it cannot be had must be known before anything is done.
    pub fn get_ready_to_block(&self) -> Result<()> {
        self.ready_context(&self.cell())
    }

    /// Whether spawned operations, too, do their I/O on the caller's thread.
    pub fn runs_inline(&self) -> bool {
        self.mode == Mode::Inline
    }

    /// Whether blocking calls go to the drive threads: as they are told to, or where the nodes that cache own no drives.
    pub fn blocks_on_threads(&self) -> bool {
        self.mode == Mode::DriveThreads || self.is_apart
    }

    /// Ends all threads and engines. No file is open any more.
    pub fn stop(&self) {
        if let Some(drives) = self.drive_threads.get() {
            drives.stop();
        }
        self.resumes.stop();
        self.callbacks.stop();
        self.closes.stop();
        for cell in lock(&self.contexts).drain(..).filter_map(|cell| cell.upgrade()) {
            cell.clear();
        }
        self.board.close();
    }
}
