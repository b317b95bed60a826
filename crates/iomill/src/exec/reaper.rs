//! [`Reaper`]: a thread that takes the turns of shared contexts where no other thread does: it sleeps on the descriptors of those that are
//! armed. An executor that has nothing to do sleeps elsewhere, and a wake from here is what ends that.
//!
//! Rules:
//! 1. A cell is armed once, until the reaper has taken its turn. Then the reaper arms it again if something is left.
//! 2. An armed descriptor reports what was there before (`epoll` looks when it is armed), so no end is missed.
//! 3. What no descriptor tells of, the reaper takes a turn of again and again, with a pause between (`take`).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::PAUSE;
use super::cell::{SharedCell, Watch};
use super::pools;
use crate::sys::event::Event;
use crate::sys::sync::{Mutex, Ordering, lock};

/// The event descriptor's number among events. Cells have their places in `known`.
const WAKE: u64 = u64::MAX;

/// Most events of one look.
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

/// What the thread shares with those that arm.
pub(super) struct Shared {
    epoll: OwnedFd,
    /// Ends the thread's sleep.
    event: Event,
    is_stopped: AtomicBool,
    known: Mutex<Vec<Arc<SharedCell>>>,
    /// Those with a turn that is due (rule 3).
    due: Mutex<Vec<Arc<SharedCell>>>,
}

impl Reaper {
    /// Starts the thread, unless it runs. Returns what cells are armed by.
    pub(super) fn start(&self) -> io::Result<Arc<Shared>> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Ok(Arc::clone(&running.shared));
        }
        let (epoll, event) = (epoll::create(CreateFlags::CLOEXEC)?, Event::new()?);
        epoll::add(&epoll, &event, EventData::new_u64(WAKE), EventFlags::IN)?;
        let shared =
            Shared { epoll, event, is_stopped: AtomicBool::new(false), known: Mutex::default(), due: Mutex::default() };
        let shared = Arc::new(shared);
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("iomill-reap".into()).spawn(move || {
            pools::leave_closing_to_others();
            serving.serve();
        })?;
        *running = Some(Running { shared: Arc::clone(&shared), thread });
        Ok(shared)
    }

    /// Ends the thread. Nothing is unfinished.
    pub(super) fn stop(&self) {
        let Some(Running { shared, thread }) = lock(&self.running).take() else { return };
        shared.is_stopped.store(true, Ordering::Release);
        shared.event.set();
        if thread.thread().id() != std::thread::current().id() {
            // It catches the panics of what it tells, so it has not panicked.
            let _ = thread.join();
        }
        lock(&shared.known).clear();
        lock(&shared.due).clear();
    }
}

impl Watch for Shared {
    /// Rules 1 and 2.
    fn arm(&self, cell: &Arc<SharedCell>) {
        // AcqRel: pairs with the Release in `serve`, which clears it before it takes the turn.
        if !cell.armed.swap(true, Ordering::AcqRel) && self.listen(cell).is_err() {
            // The kernel has too little memory at the moment.
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
}

impl Shared {
    /// Makes a new cell known. It is not armed.
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
        // Turns that were due took place with a pause after them. What they ask for again comes into `due` again.
        let mut pauses = false;
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
                // Pieces in any context may hold what those that are due wait for.
                cells.extend(lock(&self.known).iter().filter(|cell| !cell.is_idle()).cloned());
            }
            for cell in cells.iter().chain(&due) {
                cell.armed.store(false, Ordering::Release);
                cell.leave();
            }
        }
    }

    /// Sleeps until there are events, and adds the cells that have some.
    fn look(&self, cells: &mut Vec<Arc<SharedCell>>) {
        let mut events: [MaybeUninit<epoll::Event>; EVENTS] = [const { MaybeUninit::uninit() }; EVENTS];
        let found = match epoll::wait(&self.epoll, &mut events, None) {
            Ok((found, _)) => found,
            // A signal, or too little memory: it looks again.
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
