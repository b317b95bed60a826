//! Drive threads: an engine that hands its requests to one thread per drive ([`RemoteEngine`]). Each thread
//! ([`DriveThread`]) has the drive's own engine, and serves the requests of all contexts.
//!
//! These are the I/O threads of "Toward Millions of File System IOPS on Low-Cost, Commodity Hardware" (SC'13, section
//! 3.2): each is bound to the CPUs near its drive, and requests go there in messages, one for a batch. Goals: contexts
//! are the same with and without threads; the depth of a drive bounds the I/Os in flight of all contexts together.
//! Non-goals: order and merging, which the context's queue does.
//!
//! Rules, beside those of the inbox:
//! 1. A request is in one place: in the inbox, in the backlog, in the drive's engine, or ended in its sender's outbox.
//! 2. The event of an outbox is readable if, and only if, `is_rung` is set. Both change under the lock.
//! 3. A drive thread rings when an outbox has as many ends as its engine waits for. For an engine that does not wait,
//!    it rings at the first one.
//! 4. A drive thread ends after all its requests have ended. A context drops its engine when it has none in flight.

use std::collections::VecDeque;
use std::io;
#[cfg(not(iomill_models))]
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::inbox::Inbox;
use super::regions::{Known, Regions};
use super::service::{Service, end_in_drop, forget, give_up_after, with_rings_or_without};
use crate::engine::platform::Platform;
use crate::engine::{Completion, Deadline, Engine, EngineConfig, EngineKind, EngineWake, IoRequest};
use crate::error::{Error, Result};
use crate::sys::cpu;
#[cfg(not(iomill_models))]
use crate::sys::event::Event;
#[cfg(iomill_models)]
use crate::sys::event::model::Event;
use crate::sys::fs::Handle;
use crate::sys::notices::Notices;
use crate::sys::sync::{Mutex, lock};

/// The parts of a drive thread.
pub struct DriveThreadsConfig<'a> {
    /// Makes the drives' engines.
    pub platform: &'a dyn Platform,
    /// All drives.
    pub services: &'a [Service],
    /// Whether another engine may replace one that cannot be made: no option names one.
    pub may_change: bool,
    /// CPUs of each drive's thread; empty means any.
    pub cpus: Vec<Vec<usize>>,
    /// Memory that the drives' engines register.
    pub regions: &'a Arc<Regions>,
    /// Handles that engines keep open, so that locks last as long as I/O.
    pub hold: &'a [Handle],
    /// The messages of engines, and of the start of threads, for users.
    pub notices: &'a Arc<Notices>,
}

/// The threads of all drives.
#[derive(Debug, Default)]
pub struct DriveThreads {
    /// By drive.
    all: Mutex<Vec<Arc<DriveThread>>>,
}

impl DriveThreads {
    /// Those that run, by drive.
    pub fn running(&self) -> Vec<Arc<DriveThread>> {
        lock(&self.all).clone()
    }

    /// Starts the missing threads, and returns all. Notices name a thread that could not be bound to its CPUs, or that
    /// uses another engine. After an error the drives before the failed one have their threads.
    pub fn start(&self, config: &DriveThreadsConfig<'_>) -> Result<Vec<Arc<DriveThread>>> {
        let mut all = lock(&self.all);
        for (drive, service) in config.services.iter().enumerate().skip(all.len()) {
            all.push(Arc::new(DriveThread::start(drive, service, config)?));
        }
        Ok(all.clone())
    }

    /// Makes the drives' engines forget a file that is being closed.
    pub fn forget(&self, key: u64) {
        for thread in &*lock(&self.all) {
            // A thread that has ended has dropped its engine: nothing is left to forget.
            let _has_ended = thread.send(Message::Forget(key));
        }
    }

    /// Ends the threads when everything that was handed to them has ended.
    pub fn stop(&self) {
        let threads = std::mem::take(&mut *lock(&self.all));
        for thread in &threads {
            thread.close();
        }
        threads.iter().for_each(|thread| thread.join());
    }
}

impl Drop for DriveThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread of one drive.
pub struct DriveThread {
    kind: EngineKind,
    inbox: Arc<Inbox<Message>>,
    waker: Arc<dyn EngineWake>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A message to a drive thread.
enum Message {
    /// Requests of one engine.
    Batch(Arc<Outbox>, Vec<IoRequest>),
    /// Forget a file that is being closed, by its key.
    Forget(u64),
}

impl std::fmt::Debug for DriveThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriveThread").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl DriveThread {
    fn start(drive: usize, service: &Service, config: &DriveThreadsConfig<'_>) -> Result<DriveThread> {
        let make = |one: &[Service]| Server::new(config, &one[0]);
        let made = with_rings_or_without(
            std::slice::from_ref(service),
            config.may_change,
            &|notice| config.notices.push(notice),
            make,
        );
        let mut server = made.map_err(|source| {
            let thread = format!("a drive thread ({})", service.kind);
            Error::Engine { thread, drive: Some(drive as u16), source }
        })?;
        let (kind, inbox, waker) = (server.engine.kind(), Arc::clone(&server.inbox), server.engine.waker());
        let cpus = config.cpus.get(drive).cloned().unwrap_or_default();
        let (report, bound) = std::sync::mpsc::channel();
        let name = format!("iomill-drive-{drive}");
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            let result = if cpus.is_empty() { Ok(()) } else { cpu::bind_current_thread(&cpus) };
            let _the_caller_waits_for_it = report.send(result);
            while server.turn() {}
        });
        let thread = thread.map_err(|source| Error::Thread { name, drive: Some(drive as u16), source })?;
        if let Ok(Err(error)) = bound.recv() {
            config.notices.push(format!("the thread of drive {drive} runs on any CPU: {error}"));
        }
        Ok(DriveThread { kind, inbox, waker, thread: Mutex::new(Some(thread)) })
    }

    fn send(&self, message: Message) -> std::result::Result<(), Message> {
        self.inbox.push(message, || self.waker.wake())
    }

    fn close(&self) {
        if self.inbox.close() {
            self.waker.wake();
        }
    }

    fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has ended its requests (`Server::drop`). The message has been printed.
            let _ = thread.join();
        }
    }
}

/// The destination of a request's end: an outbox, and the slot of the sender.
type Sender = (Arc<Outbox>, u32);

/// The loop of a drive thread.
struct Server {
    engine: Box<dyn Engine>,
    inbox: Arc<Inbox<Message>>,
    regions: Arc<Regions>,
    known: Known,
    /// The destinations of the ends of requests, by their slot in the engine.
    flights: Vec<Option<Sender>>,
    free: Vec<u32>,
    /// Requests that wait for a slot.
    backlog: VecDeque<(Arc<Outbox>, IoRequest)>,
    messages: Vec<Message>,
    /// Requests of one turn.
    requests: Vec<IoRequest>,
    done: Vec<Completion>,
    failures: u32,
}

impl Server {
    /// With an engine of its own. It may then move to the thread that runs it.
    fn new(config: &DriveThreadsConfig<'_>, service: &Service) -> io::Result<Server> {
        let (capacity, hold) = (service.depth, config.hold.to_vec());
        let engine = EngineConfig { capacity, poll: service.poll, hold, shared: false };
        let mut engine = config.platform.engine(service.kind, &engine)?;
        engine.tell(config.notices);
        Ok(Server {
            engine,
            inbox: Arc::new(Inbox::new(usize::MAX)),
            regions: Arc::clone(config.regions),
            known: Known::default(),
            flights: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            backlog: VecDeque::new(),
            messages: Vec::new(),
            requests: Vec::new(),
            done: Vec::new(),
            failures: 0,
        })
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// One round: takes messages, starts what fits, waits, and hands the ends out. Returns `false` at the end.
    fn turn(&mut self) -> bool {
        self.inbox.take(&mut self.messages, false);
        self.accept();
        if self.backlog.is_empty() {
            // With free slots it wakes for a new message. Checks again: a message may have arrived since the check
            // above.
            let taken = self.inbox.take(&mut self.messages, true);
            if taken.some {
                self.accept();
                return true;
            }
            if taken.closed && self.in_flight() == 0 {
                return false;
            }
        }
        // Waits for several ends if a backlog makes throughput matter, otherwise for the next one.
        self.wait(if self.backlog.is_empty() { 1 } else { (self.in_flight() / 4).max(1) });
        true
    }

    fn wait(&mut self, min: usize) {
        // Completions are left here when an engine panicked after it had found them.
        if self.done.is_empty() {
            match self.engine.wait(min, None, &mut self.done) {
                Ok(()) => self.failures = 0,
                Err(error) => give_up_after(&mut self.failures, &error),
            }
        }
        let mut ends: Vec<(Arc<Outbox>, Completion)> = Vec::with_capacity(self.done.len());
        for Completion { slot, result } in self.done.drain(..) {
            let Some((outbox, theirs)) = self.flights[slot as usize].take() else {
                unreachable!("an engine reports each end once")
            };
            self.free.push(slot);
            ends.push((outbox, Completion { slot: theirs, result }));
        }
        if ends.iter().any(|(outbox, _)| !Arc::ptr_eq(outbox, &ends[0].0)) {
            // The ends of an engine are grouped, so that it is rung once.
            ends.sort_by_key(|(outbox, _)| Arc::as_ptr(outbox));
        }
        for ends in ends.chunk_by(|a, b| Arc::ptr_eq(&a.0, &b.0)) {
            ends[0].0.add(ends.iter().map(|(_, end)| *end));
        }
        self.start();
    }

    fn accept(&mut self) {
        for message in self.messages.drain(..) {
            match message {
                Message::Forget(key) => forget(&mut *self.engine, key),
                Message::Batch(outbox, requests) => {
                    self.backlog.extend(requests.into_iter().map(|request| (Arc::clone(&outbox), request)));
                }
            }
        }
        self.start();
    }

    /// Moves requests from the backlog to the engine, as long as there are slots.
    fn start(&mut self) {
        if self.backlog.is_empty() || self.free.is_empty() {
            return;
        }
        // Here, so that a panic of the engine in the last push leaves none of them for this one.
        self.requests.clear();
        self.known.begin(&self.regions, &mut *self.engine, (std::ptr::null(), 0));
        while let Some(&slot) = self.free.last()
            && let Some((outbox, mut request)) = self.backlog.pop_front()
        {
            self.free.pop();
            self.flights[slot as usize] = Some((outbox, request.slot));
            request.slot = slot;
            self.known.fill_in(&self.regions, &mut *self.engine, &mut request.memory, request.len);
            self.requests.push(request);
        }
        // SAFETY: the sender keeps memory, list and file until the end comes out of its own engine (contract of
        // `push`), which is after it came out of this one. A request in flight has a slot.
        unsafe { self.engine.push(&self.requests) };
    }
}

impl Drop for Server {
    /// The kernel may write to memory until I/O has ended, so this waits for all of it (rule 4): also where a panic
    /// ends the thread.
    fn drop(&mut self) {
        self.inbox.close();
        self.inbox.take(&mut self.messages, false);
        end_in_drop(|| {
            self.accept();
            while self.in_flight() > 0 {
                self.wait(1);
            }
        });
    }
}

/// The outbox of an engine, which receives the ends of its requests.
#[derive(Debug)]
struct Outbox {
    state: Mutex<OutboxState>,
    /// Rule 2.
    event: Event,
}

#[derive(Debug)]
struct OutboxState {
    ended: Vec<Completion>,
    /// The event is set when this number of pieces has ended (rule 3).
    wanted: usize,
    is_rung: bool,
    is_woken: bool,
}

impl Outbox {
    fn new() -> io::Result<Arc<Outbox>> {
        let state = OutboxState { ended: Vec::new(), wanted: 1, is_rung: false, is_woken: false };
        Ok(Arc::new(Outbox { state: Mutex::new(state), event: Event::new()? }))
    }

    /// Adds ends, and rings if these are enough.
    fn add(&self, ends: impl Iterator<Item = Completion>) {
        let mut state = lock(&self.state);
        state.ended.extend(ends);
        if state.ended.len() >= state.wanted {
            self.ring(&mut state);
        }
    }

    fn ring(&self, state: &mut OutboxState) {
        if !std::mem::replace(&mut state.is_rung, true) {
            self.event.set();
        }
    }

    /// Waits as an engine does.
    fn wait(&self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let enough = done.len().saturating_add(min);
        let mut deadline = Deadline::new(timeout);
        loop {
            {
                let mut state = lock(&self.state);
                if std::mem::take(&mut state.is_rung) {
                    self.event.drain()?;
                }
                done.append(&mut state.ended);
                let missing = enough.saturating_sub(done.len());
                let is_over = missing == 0 || std::mem::take(&mut state.is_woken);
                state.wanted = if is_over { 1 } else { missing };
                if is_over {
                    return Ok(());
                }
            }
            let left = deadline.left();
            if left == Some(Duration::ZERO) {
                lock(&self.state).wanted = 1;
                return Ok(());
            }
            self.event.wait(&[], left)?;
        }
    }
}

impl EngineWake for Outbox {
    fn wake(&self) {
        let mut state = lock(&self.state);
        state.is_woken = true;
        self.ring(&mut state);
    }
}

/// The engine of a context: it sends the requests of each drive to the drive's thread.
#[derive(Debug)]
pub struct RemoteEngine {
    threads: Vec<Arc<DriveThread>>,
    /// Slot to drive.
    drive_of: Box<[u16]>,
    outbox: Arc<Outbox>,
}

impl RemoteEngine {
    /// For drives with these threads. The slots are numbered drive after drive; `depths` has each drive's number of
    /// slots.
    pub fn new(threads: &[Arc<DriveThread>], depths: impl Iterator<Item = u32>) -> io::Result<RemoteEngine> {
        let slots = |(drive, depth): (usize, u32)| std::iter::repeat_n(drive as u16, depth as usize);
        let drive_of = depths.enumerate().flat_map(slots).collect();
        Ok(RemoteEngine { threads: threads.to_vec(), drive_of, outbox: Outbox::new()? })
    }
}

impl Engine for RemoteEngine {
    fn kind(&self) -> EngineKind {
        self.threads.first().map_or(EngineKind::Null, |thread| thread.kind)
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        let drive = |request: &IoRequest| self.drive_of[request.slot as usize];
        for requests in requests.chunk_by(|a, b| drive(a) == drive(b)) {
            let thread = &self.threads[usize::from(drive(&requests[0]))];
            if let Err(Message::Batch(outbox, refused)) =
                thread.send(Message::Batch(Arc::clone(&self.outbox), requests.to_vec()))
            {
                // The thread has panicked.
                outbox.add(refused.iter().map(|request| Completion { slot: request.slot, result: -libc::ECANCELED }));
            }
        }
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        self.outbox.wait(min, timeout, done)
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::clone(&self.outbox) as Arc<dyn EngineWake>
    }

    #[cfg(not(iomill_models))]
    fn descriptor(&self) -> Option<RawFd> {
        Some(self.outbox.event.as_fd().as_raw_fd())
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;

    /// Two ends come from two drives, and an engine waits for both, or for one after the other: it is rung in time, and
    /// gets each once. loom reports a sleep that does not end.
    fn ends_come_in(mins: &'static [usize]) {
        model(move || {
            let outbox = Outbox::new().unwrap();
            let drives = [0, 1].map(|slot| {
                let outbox = Arc::clone(&outbox);
                loom::thread::spawn(move || outbox.add(std::iter::once(Completion { slot, result: 0 })))
            });
            let mut done = Vec::new();
            for &min in mins {
                if done.len() < 2 {
                    outbox.wait(min, None, &mut done).unwrap();
                }
            }
            drives.into_iter().for_each(|drive| drive.join().unwrap());
            outbox.wait(0, None, &mut done).unwrap();
            done.sort_by_key(|end| end.slot);
            assert_eq!(done.iter().map(|end| end.slot).collect::<Vec<_>>(), [0, 1]);
        });
    }

    /// Seen to fail when `add` rang only for more than enough.
    #[test]
    fn loom_outbox_rings_for_all() {
        ends_come_in(&[2]);
    }

    /// Seen to fail when `wait` left `is_rung` as it was.
    #[test]
    fn loom_outbox_rings_for_each() {
        ends_come_in(&[1, 1]);
    }
}
