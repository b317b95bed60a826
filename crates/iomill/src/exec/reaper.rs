//! [`Reaper`]: a thread that takes the turns of shared contexts that no other thread takes. It sleeps on the
//! descriptors of all armed cells. A thread of an executor without work sleeps elsewhere, until a wake from here.
//!
//! Rules:
//! 1. A cell is armed once, until the reaper takes its turn. If work is left after the turn, the reaper arms it again.
//! 2. The arming reports completions from before it, too (`epoll` polls the descriptor then). So none is missed.
//! 3. Of a cell with work that no descriptor reports, the reaper takes turns again and again, with a pause in between
//!    (`take`).
//! 4. A cell with unfinished operations is backed up (`back_up`): from time to time the reaper takes a turn, if no
//!    other thread has taken one. Its futures may never be polled, or their threads may be busy. If no runtime drives
//!    the cell, a poll that leaves work there also arms it (`arm`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::cell::{SharedCell, Watch};
use super::pause::PAUSE;
use super::pools;
use crate::sys::descriptor::raised;
use crate::sys::event::Event;
use crate::sys::sync::{Mutex, Ordering, lock};

/// The number of the event descriptor in events. A cell has the number of its place in `known`.
const WAKE: u64 = u64::MAX;

/// The time between two looks at backed-up cells.
const BACK_UP: Duration = Duration::from_millis(5);
const BACK_UP_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: BACK_UP.as_nanos() as _ };

/// The number of looks in a row that find a cell idle, after which it is no longer backed up. Until then a slow reader
/// need not wake this thread again.
const IDLE_MAX: u32 = 200;

/// The most events per look.
const EVENTS: usize = 64;

/// See the module.
#[derive(Default)]
pub struct Reaper {
    running: Mutex<Option<Running>>,
}

struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// The state that the reaper shares with threads that arm cells.
pub(super) struct Shared {
    epoll: OwnedFd,
    /// Ends the thread's sleep.
    event: Event,
    is_stopped: AtomicBool,
    /// All cells.
    known: Mutex<Vec<Arc<SharedCell>>>,
    /// The cells with a turn that is due (rule 3).
    due: Mutex<Vec<Arc<SharedCell>>>,
    /// The cells that are backed up (rule 4).
    backed_up: Mutex<Vec<BackedUp>>,
    /// Takes the turns of all contexts of all arrays.
    help: fn(),
}

/// A cell that is backed up (rule 4).
struct BackedUp {
    cell: Arc<SharedCell>,
    /// The cell's turns at the last look.
    turns: u32,
    /// The number of looks in a row that found the cell idle.
    idle: u32,
}

impl Reaper {
    /// Starts the thread, unless it runs, and returns the state by which cells are armed. `help` takes the turns of all
    /// contexts of all arrays.
    pub(super) fn start(&self, help: fn()) -> io::Result<Arc<Shared>> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Ok(Arc::clone(&running.shared));
        }
        let (epoll, event) = (raised(epoll::create(CreateFlags::CLOEXEC)?)?, Event::new()?);
        epoll::add(&epoll, &event, EventData::new_u64(WAKE), EventFlags::IN)?;
        let shared = Arc::new(Shared {
            epoll,
            event,
            is_stopped: AtomicBool::new(false),
            help,
            known: Mutex::default(),
            due: Mutex::default(),
            backed_up: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("iomill-reap".into()).spawn(move || {
            pools::leave_closing_to_others();
            serving.serve();
        })?;
        *running = Some(Running { shared: Arc::clone(&shared), thread });
        Ok(shared)
    }

    /// Ends the thread. All operations have ended.
    pub(super) fn stop(&self) {
        let Some(Running { shared, thread }) = lock(&self.running).take() else { return };
        shared.is_stopped.store(true, Ordering::Release);
        shared.event.set();
        if thread.thread().id() != std::thread::current().id() {
            // The thread catches panics of users' code, so it has not panicked.
            let _ = thread.join();
        }
        lock(&shared.known).clear();
        lock(&shared.due).clear();
        lock(&shared.backed_up).clear();
    }
}

impl Watch for Shared {
    fn watch(&self, cell: &Arc<SharedCell>) {
        #[cfg(feature = "tokio")]
        if super::tokio_task::is_driven_here(cell) {
            // Backed up, because the runtime may be busy with other tasks.
            return self.back_up(cell);
        }
        self.arm(cell);
    }

    /// Rules 1 and 2.
    fn arm(&self, cell: &Arc<SharedCell>) {
        // AcqRel: pairs with the Release in `serve`, which clears the flag before it takes the turn.
        if !cell.armed.swap(true, Ordering::AcqRel) && self.listen(cell).is_err() {
            // The kernel lacks memory at the moment.
            self.take(cell);
        }
    }

    /// Rule 3.
    fn take(&self, cell: &Arc<SharedCell>) {
        // AcqRel: as in `arm`.
        if !cell.due.swap(true, Ordering::AcqRel) {
            lock(&self.due).push(Arc::clone(cell));
            self.event.set();
        }
    }

    /// Rule 4.
    fn back_up(&self, cell: &Arc<SharedCell>) {
        if cell.backup.ask() {
            let mut cells = lock(&self.backed_up);
            cells.push(BackedUp { cell: Arc::clone(cell), turns: cell.turns(), idle: 0 });
            if cells.len() == 1 {
                self.event.set();
            }
        }
    }
}

impl Shared {
    /// Adds a new cell, not armed.
    pub fn add(&self, cell: &Arc<SharedCell>) -> io::Result<()> {
        let mut known = lock(&self.known);
        for descriptor in cell.readable() {
            epoll::add(&self.epoll, descriptor, EventData::new_u64(known.len() as u64), EventFlags::ONESHOT)?;
        }
        cell.place.store(known.len() as u64, Ordering::Relaxed);
        known.push(Arc::clone(cell));
        Ok(())
    }

    fn listen(&self, cell: &SharedCell) -> io::Result<()> {
        let data = EventData::new_u64(cell.place.load(Ordering::Relaxed));
        for descriptor in cell.readable() {
            epoll::modify(&self.epoll, descriptor, data, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(())
    }

    /// The loop of the thread.
    fn serve(&self) {
        // After turns that were due comes a pause. Cells that need more such turns are in `due` again.
        let (mut pauses, mut backed_up_at) = (false, Instant::now());
        while !self.is_stopped.load(Ordering::Acquire) {
            if pauses {
                std::thread::sleep(PAUSE);
            }
            let mut cells = Vec::new();
            self.look(&mut cells);
            let due = std::mem::take(&mut *lock(&self.due));
            pauses = !due.is_empty();
            for cell in &due {
                cell.due.store(false, Ordering::Release);
            }
            if pauses {
                // Pieces in any context may hold the lock or memory for which the due cells wait (rule 6 of `shared`).
                (self.help)();
                cells.extend(lock(&self.known).iter().filter(|cell| !cell.is_idle()).cloned());
            }
            for cell in cells.iter().chain(&due) {
                cell.armed.store(false, Ordering::Release);
                cell.help();
                cell.arm_or_back_up();
            }
            if backed_up_at.elapsed() >= BACK_UP {
                self.turn_backed_up();
                backed_up_at = Instant::now();
            }
        }
    }

    /// Rule 4.
    fn turn_backed_up(&self) {
        let mut cells = std::mem::take(&mut *lock(&self.backed_up));
        cells.retain_mut(|BackedUp { cell, turns, idle }| {
            if *turns == cell.turns() && !cell.is_idle() {
                // If another thread is in the context, it takes the turn.
                cell.try_help();
            }
            *turns = cell.turns();
            *idle = if cell.is_idle() { *idle + 1 } else { 0 };
            *idle < IDLE_MAX || !cell.backup.end(|| cell.is_idle())
        });
        lock(&self.backed_up).append(&mut cells);
    }

    /// Sleeps until there are events, and appends their cells.
    fn look(&self, cells: &mut Vec<Arc<SharedCell>>) {
        let mut events: [MaybeUninit<epoll::Event>; EVENTS] = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = if lock(&self.backed_up).is_empty() { None } else { Some(BACK_UP_TIMEOUT) };
        let found = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((found, _)) => found,
            // A signal, or a lack of memory: the thread looks again.
            Err(_) => return,
        };
        let known = lock(&self.known);
        for event in found {
            match { event.data }.u64() {
                // After an error the event stays set, and the thread looks again.
                WAKE => drop(self.event.drain()),
                place => cells.extend(known.get(place as usize).cloned()),
            }
        }
    }
}
