//! The threads of the nodes that cache ([`NodeThreads`]): each takes the requests of its inbox ([`NodeWork`]) and does
//! them at the same time.
//!
//! Goals: one wake for all requests that arrive while a thread sleeps or works; all their pages in flight at the same
//! time. Non-goals: the work of a request (`node_request`, with rules that hold here, too), and background work.
//!
//! A sleeping thread is parked. A wake before the thread parks is kept as a token, as rule 2 of the inbox demands of an
//! engine's wake.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};

use super::span::Span;
use crate::cache::Outcome;
use crate::drive::inbox::Inbox;
use crate::drive::regions::Regions;
use crate::drive::{Done, Piece};
use crate::error::Error;
use crate::exec::Exec;
use crate::exec::contexts;
use crate::exec::roles::NodeRoles;
use crate::sys::clock::Clock;
use crate::sys::cpu;
use crate::sys::sync::{Mutex, Ordering, lock};

/// The CPUs of a node for each of its threads. It has at least one thread.
const CPUS_PER_THREAD: usize = 8;
/// Most threads of a node.
const THREADS_MAX: usize = 4;

/// Spans in the inbox of a thread before its senders wait.
const INBOX_SPANS: usize = 4096;

/// Pages that a thread has in flight before it takes another request.
const PAGES_IN_FLIGHT: usize = 1024;

/// Tags for each request, more than the pieces of a wave; and most requests that a thread begins before it has seen the
/// ends of all.
const TAGS: u32 = 1 << 12;
const REQUESTS: usize = 1 << 16;

/// The next thread's number. Not of `sys::sync`: no model uses it, and loom's atomics cannot be static.
static TURNS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

thread_local! {
    static TURN: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The calling thread's own number. Numbers count up from thread to thread.
pub fn turn() -> usize {
    TURN.with(|turn| {
        if turn.get() == usize::MAX {
            turn.set(TURNS.fetch_add(1, Ordering::Relaxed));
        }
        turn.get()
    })
}

/// A request, as its thread sees it (`node_request`, with rules that hold here, too). Dropping it ends it.
pub trait NodeWork: Send + Sync + std::fmt::Debug {
    /// The number of its spans.
    fn weight(&self) -> usize;

    /// The executor of its I/O; `None` after the end.
    fn exec(&self) -> Option<&Arc<Exec>>;

    /// Ends it without a result, and returns its spans.
    fn take_back(self: Box<Self>) -> Vec<Span>;

    /// Does the part that needs no drive, and begins the rest. `None` if nothing is left.
    fn begin(self: Box<Self>) -> Option<Box<dyn PendingWork>>;
}

/// A request that waits for drives. Each of its pieces ends by [`PendingWork::run_done`], or all by
/// [`PendingWork::fail`].
pub trait PendingWork {
    /// The pieces that fill its pages, each with its drive. Their lists of scattered memory are in `self`.
    fn pieces(&self) -> Vec<(u16, Piece)>;

    /// The number of pages that it fills.
    fn pages(&self) -> usize;

    /// Notes the end of a piece, by its tag. Returns whether it was the last one, which ends the request.
    fn run_done(&self, tag: u32, outcome: Outcome) -> bool;

    /// Ends it with an error, before any of its pieces has begun.
    fn fail(&self, error: &Error);
}

/// The threads of all nodes that cache, started when first needed.
#[derive(Debug)]
pub struct NodeThreads {
    /// By the cache's number: the number of its node, and that node's CPUs.
    nodes: Vec<(usize, Vec<usize>)>,
    /// By the cache's number. Empty if no thread of the node could be started.
    started: OnceLock<Vec<Vec<Worker>>>,
    starting: Mutex<()>,
}

#[derive(Debug)]
struct Worker {
    inbox: Arc<Inbox<Box<dyn NodeWork>>>,
    thread: Thread,
    join: Mutex<Option<JoinHandle<()>>>,
}

impl NodeThreads {
    /// Nothing is started yet.
    pub fn new(roles: &NodeRoles) -> NodeThreads {
        let node = |&place: &usize| (roles.nodes[place].id, roles.nodes[place].cpus.clone());
        let nodes = roles.cache.iter().map(node).collect();
        NodeThreads { nodes, started: OnceLock::new(), starting: Mutex::new(()) }
    }

    fn threads(&self, notice: &dyn Fn(String)) -> &[Vec<Worker>] {
        if let Some(threads) = self.started.get() {
            return threads;
        }
        let _starting = lock(&self.starting);
        self.started.get_or_init(|| self.nodes.iter().map(|(id, cpus)| node_threads(*id, cpus, notice)).collect())
    }

    /// Hands a request to the node that has the cache of this number. Returns the request if that node has no thread.
    /// Waits while the inbox is full: the caller holds no fills (rule 1 of `node_request`).
    pub fn send(
        &self,
        cache: usize,
        request: Box<dyn NodeWork>,
        notice: &dyn Fn(String),
    ) -> std::result::Result<(), Box<dyn NodeWork>> {
        let node_threads = &self.threads(notice)[cache];
        if node_threads.is_empty() {
            return Err(request);
        }
        let (worker, weight) = (&node_threads[turn() % node_threads.len()], request.weight());
        worker.inbox.hand_over(request, weight, || worker.thread.unpark())
    }

    /// Ends the threads when they have done what was handed to them.
    pub fn stop(&self) {
        // A call that comes later finds no thread, and starts none.
        let workers = || self.started.get_or_init(|| self.nodes.iter().map(|_| Vec::new()).collect()).iter().flatten();
        for worker in workers() {
            if worker.inbox.close() {
                worker.thread.unpark();
            }
        }
        for worker in workers() {
            if worker.thread.id() != std::thread::current().id()
                && let Some(join) = lock(&worker.join).take()
            {
                // If it has panicked, the message has been printed, and its requests have ended.
                let _ = join.join();
            }
        }
    }
}

/// Starts the threads of one node.
fn node_threads(id: usize, cpus: &[usize], notice: &dyn Fn(String)) -> Vec<Worker> {
    let count = (cpus.len() / CPUS_PER_THREAD).clamp(1, THREADS_MAX);
    let mut node_threads = Vec::new();
    for index in 0..count {
        let inbox = Arc::new(Inbox::new(INBOX_SPANS));
        let name = if count == 1 { format!("iomill-node-{id}") } else { format!("iomill-node-{id}.{index}") };
        let (report, bound) = std::sync::mpsc::channel();
        let (own, cpus) = (Arc::clone(&inbox), cpus.to_vec());
        let join = std::thread::Builder::new().name(name).spawn(move || {
            let result = if cpus.is_empty() { Ok(()) } else { cpu::bind_current_thread(&cpus) };
            // The thread that started this one waits for it.
            let _ = report.send(result);
            work(&own);
        });
        match join {
            Ok(join) => {
                if let Ok(Err(error)) = bound.recv() {
                    notice(format!("a thread of node {id} runs on any CPU: {error}"));
                }
                node_threads.push(Worker { inbox, thread: join.thread().clone(), join: Mutex::new(Some(join)) });
            }
            Err(error) => notice(format!("no thread on node {id}, so calling threads fill its pages: {error}")),
        }
    }
    node_threads
}

/// Closes the inbox when the thread ends, also by a panic. Ends the requests that no thread will work on.
struct Closing<'a>(&'a Inbox<Box<dyn NodeWork>>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
        let mut left = Vec::new();
        self.0.take(&mut left, false);
    }
}

fn work(inbox: &Inbox<Box<dyn NodeWork>>) {
    let _closing = Closing(inbox);
    let mut ring: Option<NodeRing> = None;
    let mut requests = Vec::new();
    loop {
        let taken = inbox.take(&mut requests, true);
        let Some(first) = requests.first() else {
            if taken.closed {
                return;
            }
            std::thread::park();
            continue;
        };
        if ring.is_none() {
            ring = first.exec().map(NodeRing::new);
        }
        match &ring {
            Some(ring) => NodeWave::default().run(inbox, ring, &mut requests),
            None => unreachable!("a request has its array until it ends"),
        }
    }
}

/// This thread's own engines, and what they need of the array. It does not hold the array (rule 4 of `node_request`).
struct NodeRing {
    cell: Arc<contexts::ContextCell>,
    regions: Arc<Regions>,
    clock: Arc<dyn Clock>,
}

impl NodeRing {
    fn new(exec: &Arc<Exec>) -> NodeRing {
        NodeRing { cell: exec.new_cell(), regions: Arc::clone(&exec.regions), clock: Arc::clone(&exec.clock) }
    }
}

/// Requests that this thread works on at the same time, on its own ring.
#[derive(Default)]
struct NodeWave {
    /// By number, the high bits of tags. `None` for those that have ended.
    begun: Vec<Option<Box<dyn PendingWork>>>,
    /// Pieces that the engines have not taken yet.
    pieces: VecDeque<(u16, Piece)>,
    /// Pages that are being filled.
    pages: usize,
}

impl NodeWave {
    /// Works on the requests, and on those that come meanwhile, until all have ended.
    fn run(self, inbox: &Inbox<Box<dyn NodeWork>>, ring: &NodeRing, requests: &mut Vec<Box<dyn NodeWork>>) {
        // If it fails, all these requests end with the error.
        let made =
            requests.first().and_then(|request| request.exec()).map_or(Ok(()), |exec| exec.ready_context(&ring.cell));
        let wave = RefCell::new(self);
        let source = std::iter::from_fn(|| {
            let mut wave = wave.borrow_mut();
            while wave.pieces.is_empty() {
                let has_room = wave.pages < PAGES_IN_FLIGHT && wave.begun.len() < REQUESTS;
                if requests.is_empty() && (!has_room || !inbox.take(requests, false).some) {
                    return None;
                }
                requests.drain(..).for_each(|request| wave.begin(request));
            }
            wave.pieces.pop_front()
        });
        let done = |end: Done| wave.borrow_mut().piece_done(end);
        // SAFETY: the pieces' memory is frames, which the fills in `begun` own until their ends, and so are the lists;
        // their files are the requests'.
        let ran = made.and_then(|()| unsafe { ring.cell.run(&ring.regions, &*ring.clock, source, done) });
        if let Err(error) = ran {
            // None was begun.
            let mut wave = wave.into_inner();
            requests.drain(..).for_each(|request| wave.begin(request));
            wave.begun.iter().flatten().for_each(|begun| begun.fail(&error));
        }
    }

    fn begin(&mut self, request: Box<dyn NodeWork>) {
        let Some(begun) = request.begin() else { return };
        let number = self.begun.len() as u32;
        let pieces = begun.pieces().into_iter();
        self.pieces.extend(pieces.map(|(drive, piece)| (drive, Piece { tag: number * TAGS + piece.tag, ..piece })));
        self.pages += begun.pages();
        self.begun.push(Some(begun));
    }

    fn piece_done(&mut self, end: Done) {
        let place = &mut self.begun[(end.tag / TAGS) as usize];
        let Some(begun) = place else { unreachable!("a request has as many pieces as tags that end") };
        let pages = begun.pages();
        if begun.run_done(end.tag % TAGS, end.result) {
            *place = None;
            self.pages -= pages;
        }
    }
}
