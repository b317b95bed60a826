//! Pools of threads ([`Pool`]). Callbacks of `submit` run there, so that a drive thread never runs them. The threads of
//! a pool share one queue of jobs, and start at their first use. In a simulation a caller that waits steps the jobs.
//! Non-goals: I/O.
//!
//! An array has seven pools, because jobs of one kind must not wait behind jobs of another:
//! - `callbacks` runs users' callbacks, and nothing for which a callback might wait. It has a thread per NUMA node,
//!   which also completes the operations that its callbacks begin. So a callback that begins the next read wakes no
//!   other thread. Its first thread is the host: other threads post reads with callbacks to its context.
//! - `begins` begins operations that wait to enter a file: at a closed gate, or for room. It has a thread per NUMA
//!   node, which also completes them.
//! - `changes` makes changes of the catalog for futures, many in one turn (`turns`). One job runs at a time.
//! - `waits` makes calls for futures that wait for drives, such as syncs. They belong to no node. It has up to
//!   `WAITERS` threads. One more starts when all are busy.
//! - `opens` opens files for futures. That takes little time, and must not wait behind the large contents in `waits`.
//!   It has up to `OPENERS` threads, started as those of `waits`.
//! - `resumes` polls operations that are inside a file. They must end before the file's gate can close. It has a thread
//!   per NUMA node.
//! - `closes` closes files. Their fsyncs may take long, and belong to no node. It has up to `CLOSERS` threads, started
//!   as those of `waits`: a slow drive delays no file of another drive.
//!
//! Rules:
//! 1. In a user's code that this library calls (callbacks and wakers), every call that waits for a drive's queue, for a
//!    user's lock or for another thread is an error (`check_may_block`): the awaited thread may wait for this one.
//!    `stat` and `info` are allowed: they only read small files of the catalog, and wait for no other thread.
//! 2. A callback may begin asynchronous operations. It waits for room in the drives' queues and for closed gates.
//! 3. A waker may begin them, too. It never waits, because its thread may be a drive's. A full queue takes its pieces
//!    all the same (`Inbox::push`). An operation that finds a gate closed begins on a thread of `begins`.
//! 4. A subscriber of events must not wait, as a waker must not, and begins operations on a thread of `begins`: the
//!    event may come under locks that the beginning needs (`sys::events`).
//! 5. The last holder of a file or of the array closes it. If its thread must not wait, a thread of `closes` does so
//!    (`may_close`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::JoinHandle;

use iomill_platform::machine;
use iomill_platform::tree::Tree;

use super::cell::{SharedCell, own};
use super::users_code::{UserCode, may_block, within};
use crate::error::{Error, Result};
use crate::sys::cpu;
use crate::sys::parker::{Parked, Parker};
use crate::sys::sync::{AtomicBool, Condvar, Mutex, Ordering, lock, wait};
use crate::sys::thread::Raised;

/// The most threads that close files. Each has engines of its own while it lives.
const CLOSERS: usize = 4;
/// The most threads that make calls for futures. Each has engines of its own while it lives.
const WAITERS: usize = 16;
/// The most threads that open files for futures. If a file is not in the kernel's memory, a thread waits for one read
/// at a time.
const OPENERS: usize = 8;
/// The number of waiting jobs from which on `has_backlog` is true.
const BACKLOG: usize = 4096;

thread_local! {
    /// Whether other threads wait for the thread's jobs, so that it must not close a file.
    static IS_POOL: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread polls an operation for `resumes`.
    static RESUMES: Cell<bool> = const { Cell::new(false) };
}

type BoxedJob = Box<dyn FnOnce() + Send>;

/// A job of a pool.
enum Job {
    Run(BoxedJob),
    /// Calls the callback of an operation. The operation is the memory of the job.
    Call(Arc<dyn HasCallback>),
}

/// An operation that has ended, and has a callback.
pub trait HasCallback: Send + Sync {
    /// Calls the callback, once.
    fn call_back(&self);
}

impl Job {
    fn run(self) {
        match self {
            Job::Run(job) => job(),
            Job::Call(ended) => Pool::call_here(|| ended.call_back()),
        }
    }
}

/// Whether a file may be closed here (rule 5).
pub fn may_close() -> bool {
    may_block() && !IS_POOL.with(Cell::get)
}

/// Whether an operation that is polled here may block.
pub fn may_resume_blocking() -> bool {
    RESUMES.with(Cell::get) && may_block()
}

/// From now on the pool `closes` closes a file when the calling thread drops the last hold on it.
pub fn leave_closing_to_others() {
    IS_POOL.with(|is_pool| is_pool.set(true));
}

/// Threads for jobs of one kind.
pub struct Pool {
    /// Whether there are threads: not in a simulation.
    threads: bool,
    /// A part of the threads' names.
    name: &'static str,
    /// Whether the jobs close files.
    closes: bool,
    /// The most threads of a pool that starts with one. `None` in a pool with a thread for each node.
    grows_to: Option<usize>,
    /// The CPUs of each thread that the pool may have; empty means any.
    cpus: OnceLock<Vec<Vec<usize>>>,
    jobs: Arc<Jobs>,
    /// Whether the threads have started.
    is_ready: AtomicBool,
    /// Whether the threads take the turns of their own contexts between jobs.
    drives: bool,
    /// For the first thread of `callbacks`.
    host: Option<Arc<Host>>,
}

/// The first thread of `callbacks`, where other threads begin operations with callbacks: it does their I/O, because it
/// runs what their ends call. So the thread that submits makes no system call, many operations share one, and an end
/// wakes one thread, not two.
#[derive(Default)]
struct Host {
    /// The instance of the array.
    instance: u64,
    /// Set when the thread has started.
    parker: OnceLock<Arc<Parker>>,
    cell: Mutex<Option<Arc<SharedCell>>>,
    /// Whether the thread has yet to take `cell` for its own.
    is_new: AtomicBool,
}

impl Host {
    /// Takes a new cell for the calling thread's own, which is the host.
    fn adopt(&self) {
        if self.is_new.swap(false, Ordering::Relaxed)
            && let Some(cell) = &*lock(&self.cell)
        {
            own::adopt(self.instance, Arc::clone(cell));
        }
    }
}

/// The jobs of a pool, and the threads that do them.
#[derive(Default)]
struct Jobs {
    state: Mutex<PoolState>,
    /// Wakes an idle thread for a job, and all threads to end.
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// The number of threads that sleep on `work`.
    idle: usize,
    /// The threads that sleep until a job or a completion comes.
    parked: Vec<Arc<Parker>>,
    stopped: bool,
}

impl Jobs {
    /// The loop of a thread. It ends when the pool is stopped and no job is queued.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A panic of one job must not end the thread, because more jobs wait. The message has been printed.
                let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
                state = lock(&self.state);
            } else if state.stopped {
                return;
            } else {
                state.idle += 1;
                state = wait(&self.work, state);
                state.idle -= 1;
            }
        }
    }

    /// The loop of a thread that takes the turns of its own contexts between jobs, and sleeps in them.
    fn serve_and_drive(&self, host: Option<&Host>) {
        // Without a descriptor the thread only does jobs, and others complete their operations.
        let Ok(parked) = Parked::new() else { return self.serve() };
        let _driven = own::begin_driven();
        if let Some(host) = host {
            let _first = host.parker.set(Arc::clone(parked.parker()));
        }
        let mut jobs: Vec<Job> = Vec::new();
        loop {
            // A wake that comes from here on ends the next sleep.
            parked.take();
            host.iter().for_each(|host| host.adopt());
            {
                let mut state = lock(&self.state);
                state.parked.retain(|other| !Arc::ptr_eq(other, parked.parker()));
                if state.queue.is_empty() {
                    if state.stopped {
                        return;
                    }
                    state.parked.push(Arc::clone(parked.parker()));
                }
                let share = state.queue.len().div_ceil(state.threads.len().max(1));
                jobs.extend(state.queue.drain(..share));
            }
            let is_idle = jobs.is_empty();
            // Panics as in `serve`.
            jobs.drain(..).for_each(|job| drop(catch_unwind(AssertUnwindSafe(|| job.run()))));
            // Pieces of the jobs are sent now, even if more jobs wait.
            let turns = || if is_idle { own::turn_until_woken(&parked) } else { own::leave() };
            let _ = catch_unwind(AssertUnwindSafe(turns));
        }
    }

    /// Queues a job, and wakes a thread that sleeps.
    fn push(&self, state: &mut PoolState, job: Job) {
        state.queue.push_back(job);
        if let Some(parked) = state.parked.pop() {
            parked.wake_thread();
        } else if state.idle > 0 {
            // Only then, because a notification is a system call, even if no thread sleeps.
            self.work.notify_one();
        }
    }

    fn stop(&self) -> Vec<JoinHandle<()>> {
        let mut state = lock(&self.state);
        state.stopped = true;
        self.work.notify_all();
        state.parked.drain(..).for_each(|parked| parked.wake_thread());
        std::mem::take(&mut state.threads)
    }
}

impl Pool {
    /// A pool with a thread for each node. No thread is started yet.
    pub fn new(threads: bool, name: &'static str) -> Pool {
        let (closes, drives, grows_to, host) = (false, false, None, None);
        let is_ready = AtomicBool::new(false);
        let (cpus, jobs) = (OnceLock::new(), Arc::default());
        Pool { threads, name, closes, grows_to, cpus, jobs, is_ready, drives, host }
    }

    /// A pool for users' callbacks of an array.
    pub fn for_callbacks(threads: bool, instance: u64) -> Pool {
        let host = Some(Arc::new(Host { instance, ..Host::default() }));
        Pool { drives: true, host, ..Pool::new(threads, "callback") }
    }

    /// A pool for operations that wait to enter a file.
    pub fn for_beginning(threads: bool) -> Pool {
        Pool { drives: true, ..Pool::new(threads, "begin") }
    }

    /// A pool for closes of files.
    pub fn for_closing(threads: bool) -> Pool {
        Pool { closes: true, grows_to: Some(CLOSERS), ..Pool::new(threads, "close") }
    }

    /// A pool for calls that wait for drives.
    pub fn for_waiting(threads: bool) -> Pool {
        Pool { grows_to: Some(WAITERS), ..Pool::new(threads, "wait") }
    }

    /// A pool for opens of files.
    pub fn for_opening(threads: bool) -> Pool {
        Pool { grows_to: Some(OPENERS), ..Pool::new(threads, "open") }
    }

    /// Starts the threads, unless they run already. A call that will need them does this first, so that it can report
    /// an error.
    pub fn get_ready(&self) -> Result<()> {
        // Without the lock, which the threads take for each job.
        if self.is_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = lock(&self.jobs.state);
        if self.threads && !state.stopped && state.threads.is_empty() {
            self.start(&mut state)?;
        }
        self.is_ready.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Starts one more thread of a pool that grows, or all threads of any other. An error if the pool then has no
    /// thread.
    fn start(&self, state: &mut PoolState) -> Result<()> {
        let of_any = |most| vec![Vec::new(); most];
        let cpus = self.cpus.get_or_init(|| self.grows_to.map_or_else(cpus_of_nodes, of_any));
        let wanted = self.grows_to.map_or(cpus.len(), |most| (state.threads.len() + 1).min(most));
        for (number, cpus) in cpus.iter().enumerate().take(wanted).skip(state.threads.len()) {
            let host = self.host.clone().filter(|_| number == 0);
            let (jobs, closes, drives, cpus) = (Arc::clone(&self.jobs), self.closes, self.drives, cpus.clone());
            let name = format!("iomill-{}-{number}", self.name);
            let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
                if !cpus.is_empty() {
                    // An error is ignored: away from its node a thread is only slower.
                    let _ = cpu::bind_current_thread(&cpus);
                }
                if !closes {
                    leave_closing_to_others();
                }
                if drives { jobs.serve_and_drive(host.as_deref()) } else { jobs.serve() }
            });
            match thread {
                Ok(thread) => state.threads.push(thread),
                Err(source) if state.threads.is_empty() => return Err(Error::Thread { name, drive: None, source }),
                // The threads that run do its jobs, too.
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// The cell of the host, which serves at least `drives` drives. If there is none, `make` makes one. `None` if there
    /// is no host, or no cell can be made.
    pub fn host_cell(&self, drives: usize, make: impl FnOnce() -> Result<Arc<SharedCell>>) -> Option<Arc<SharedCell>> {
        let host = self.host.as_ref()?;
        let parker = host.parker.get()?;
        let mut cell = lock(&host.cell);
        if cell.as_ref().is_none_or(|cell| cell.drives() < drives) {
            *cell = Some(make().ok()?);
            host.is_new.store(true, Ordering::Relaxed);
            parker.wake_thread();
        }
        cell.clone()
    }

    /// Whether a caller that may wait should do so before it posts to the host.
    pub fn is_host_full(&self) -> bool {
        self.host.as_ref().is_some_and(|host| lock(&host.cell).as_ref().is_some_and(|cell| cell.is_full()))
    }

    /// Whether so many jobs wait that a caller which need not add one should not.
    pub fn has_backlog(&self) -> bool {
        lock(&self.jobs.state).queue.len() >= BACKLOG
    }

    /// Has the host take the turn of its cell. The caller has posted there.
    pub fn wake_host(&self) {
        if let Some(parker) = self.host.as_ref().and_then(|host| host.parker.get())
            && parker.is_asleep()
        {
            parker.wake_thread();
        }
    }

    /// Calls a user's callback on a thread of the pool.
    pub fn call(&self, callback: impl FnOnce() + Send + 'static) {
        self.run(Box::new(move || Self::call_here(callback)));
    }

    /// Calls the callback of an operation on a thread of the pool.
    pub fn call_back(&self, ended: Arc<dyn HasCallback>) {
        self.do_job(Job::Call(ended));
    }

    /// Calls a user's callback on the calling thread.
    pub fn call_here<R>(callback: impl FnOnce() -> R) -> R {
        within(UserCode::Callback, callback)
    }

    /// Runs a job of this library that blocks, such as a sync for a future.
    pub fn run(&self, job: BoxedJob) {
        self.do_job(Job::Run(job));
    }

    fn do_job(&self, job: Job) {
        // Without a thread (the array is closing, or none could be started) the job runs here, because it must not be
        // lost. Its panic must not end this thread, which may be a drive's.
        if let Some(job) = self.queue(job) {
            let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
        }
    }

    /// Queues a job for a thread of the pool. Gives the job back if there is no thread.
    pub fn hand_over(&self, job: BoxedJob) -> Option<BoxedJob> {
        match self.queue(Job::Run(job)) {
            Some(Job::Run(job)) => Some(job),
            Some(Job::Call(_)) => unreachable!("the job comes back as it was"),
            None => None,
        }
    }

    fn queue(&self, job: Job) -> Option<Job> {
        let mut state = lock(&self.jobs.state);
        if state.stopped {
            return Some(job);
        }
        let is_short = state.threads.is_empty() || (self.grows_to.is_some() && state.queue.len() >= state.idle);
        // The error is lost here: a caller that must report it has called `get_ready` before.
        if self.threads && is_short && self.start(&mut state).is_err() {
            return Some(job);
        }
        self.jobs.push(&mut state, job);
        None
    }

    /// Wakes a task on a thread of the pool, and never on the calling thread, which may hold locks.
    pub fn wake(&self, waker: Waker) {
        let resume = move || {
            let _resuming = Raised::new(&RESUMES);
            waker.wake();
        };
        if let Some(job) = self.hand_over(Box::new(resume)) {
            // The pool starts before the task and stops after it, so it has a thread. If not, a new one wakes the task.
            let started = std::thread::Builder::new().name("iomill-resume".into()).spawn(job);
            debug_assert!(started.is_ok(), "a task was lost: {started:?}");
        }
    }

    /// In a simulation: runs one job. `false` if there is none.
    pub fn step(&self) -> bool {
        if self.threads {
            return false;
        }
        let job = lock(&self.jobs.state).queue.pop_front();
        job.map(Job::run).is_some()
    }

    /// Runs the queued jobs, then ends the threads.
    pub fn stop(&self) {
        let threads = self.jobs.stop();
        while self.step() {}
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                // The thread catches the panics of its jobs, so it has not panicked.
                let _ = thread.join();
            }
        }
    }
}

/// The CPUs of each node; on a machine with one node, one entry that means any CPU.
fn cpus_of_nodes() -> Vec<Vec<usize>> {
    let nodes = machine::nodes(&Tree::machine()).unwrap_or_default();
    if nodes.len() < 2 { vec![Vec::new()] } else { nodes.into_iter().map(|node| node.cpus).collect() }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{AtomicU32, Ordering, model};
    use loom::thread;

    /// Every job runs without a stop of the pool, and the thread ends after the stop. Loom would report a lost wake.
    ///
    /// Seen to fail when `push` or `stop` notified no thread, and when `serve` released the lock between its look and
    /// its wait.
    #[test]
    fn loom_pool_does_every_job() {
        model(|| {
            let (jobs, done) = (Arc::new(Jobs::default()), loom::sync::Arc::new(AtomicU32::new(0)));
            let last = loom::sync::Arc::new(loom::sync::Notify::new());
            let serving = thread::spawn({
                let jobs = Arc::clone(&jobs);
                move || jobs.serve()
            });
            for number in 0..2 {
                let (done, last) = (loom::sync::Arc::clone(&done), loom::sync::Arc::clone(&last));
                let job = Job::Run(Box::new(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    if number == 1 {
                        last.notify();
                    }
                }));
                jobs.push(&mut lock(&jobs.state), job);
            }
            while done.load(Ordering::Relaxed) < 2 {
                last.wait();
            }
            let _none_of_its_own = jobs.stop();
            serving.join().unwrap();
        });
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::users_code::check_may_block;
    use super::*;

    /// Files of other drives once waited behind a file with a drive that hung.
    #[test]
    fn a_slow_close_delays_no_other() {
        let pool = Pool::for_closing(true);
        let ((go_on, waits), (end, ended)) = (channel(), channel());
        pool.run(Box::new(move || {
            waits.recv().unwrap();
            end.send(()).unwrap();
        }));
        pool.run(Box::new(move || go_on.send(()).unwrap()));
        ended.recv_timeout(Duration::from_secs(600)).expect("the second close waits for the first");
        pool.stop();
    }

    #[test]
    fn closes_that_do_not_overlap_share_a_thread() {
        let pool = Pool::for_closing(true);
        for _ in 0..20 {
            pool.run(Box::new(|| ()));
            let is_idle = |state: &PoolState| state.idle == 1 && state.queue.is_empty();
            while !is_idle(&lock(&pool.jobs.state)) {
                std::thread::yield_now();
            }
        }
        assert_eq!(lock(&pool.jobs.state).threads.len(), 1);
        pool.stop();
        assert!(pool.hand_over(Box::new(|| ())).is_some(), "no thread is left");
    }

    #[test]
    fn a_callback_within_a_callback_leaves_its_caller_inside() {
        Pool::call_here(|| {
            let panicked = catch_unwind(AssertUnwindSafe(|| Pool::call_here(|| panic!("a callback's own"))));
            assert!(panicked.is_err());
            Pool::call_here(|| ());
            assert!(check_may_block("read_at").is_err(), "the outer callback still runs");
        });
        assert!(check_may_block("read_at").is_ok());
    }
}
