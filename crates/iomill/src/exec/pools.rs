//! Pools of threads ([`Pool`]). Callbacks of `submit` run there, so that a drive thread never runs them. A pool has a thread per NUMA node,
//! which starts when it is first needed. In a simulation a caller that waits steps the jobs. Non-goals: I/O.
//!
//! An array has three pools, because jobs of one kind must not wait behind jobs of another:
//! - `callbacks` runs users' callbacks, and jobs that wait to enter a file, such as syncs for futures.
//! - `resumes` polls operations that are inside a file. They must end before the file's gate can close.
//! - `closes` closes files. Their flushes may take long.
//!
//! Rules:
//! 1. In a user's code that this library calls (callbacks and wakers), every call that waits for drives or for other threads is an error
//!    (`check_may_block`). What it waits for may wait for its own thread.
//! 2. A callback may begin asynchronous operations. It waits for room in the drives' queues and for closed gates.
//! 3. A waker may begin them, too. It waits for nothing, because its thread may be a drive's. A full queue takes its pieces all the same
//!    (`Inbox::push`). An operation that finds a gate closed begins on a callback thread.
//! 4. The last holder of a file or of the array closes it. If that thread must not wait, a thread of `closes` does it (`may_close`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;
use std::thread::JoinHandle;

use iomill_platform::machine;
use iomill_platform::tree::Tree;

use crate::drive::serve;
use crate::error::{Error, Result};
use crate::sys::cpu;
use crate::sys::sync::{Mutex, lock};

/// Which user's code the calling thread runs. A later variant may wait for less.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum UserCode {
    Nothing,
    /// A user's callback (rule 2).
    Callback,
    /// A user's waker (rule 3).
    Waker,
}

thread_local! {
    static INSIDE: Cell<UserCode> = const { Cell::new(UserCode::Nothing) };
    /// The thread has jobs that other threads wait for, so it closes no file.
    static IS_POOL: Cell<bool> = const { Cell::new(false) };
    /// The thread polls an operation for `resumes`.
    static RESUMES: Cell<bool> = const { Cell::new(false) };
}

type Job = Box<dyn FnOnce() + Send>;

/// Refuses a blocking call of a callback or a waker (rule 1). The call would wait for I/O, and delay the callbacks of that I/O. An error
/// is better than a deadlock (rule 7 of the cache).
pub fn check_may_block(call: &'static str) -> Result<()> {
    if may_block() { Ok(()) } else { Err(Error::BlockingCall { call }) }
}

/// Whether the calling thread runs no callback and no waker, and serves no drive.
#[inline]
pub fn may_block() -> bool {
    INSIDE.with(Cell::get) == UserCode::Nothing && !serve::is_serving()
}

/// Whether an operation that begins here may wait for room and for gates (rules 2 and 3).
pub fn may_wait() -> bool {
    INSIDE.with(Cell::get) < UserCode::Waker && !serve::is_serving()
}

/// Whether a file may be closed here (rule 4).
pub fn may_close() -> bool {
    may_block() && !IS_POOL.with(Cell::get)
}

/// Whether an operation that is polled here may block.
pub fn may_resume_blocking() -> bool {
    RESUMES.with(Cell::get) && may_block()
}

/// Registers `forget`, which runs before each call of a user's code. Only the first registration counts.
pub fn before_users_code(forget: fn()) {
    let _kept_if_first = BEFORE.set(forget);
}

static BEFORE: OnceLock<fn()> = OnceLock::new();

/// From now on the pool `closes` closes the files that the calling thread lets go of.
pub fn leave_closing_to_others() {
    IS_POOL.with(|is_pool| is_pool.set(true));
}

/// Wakes a user's task. The waker may run a user's code. A panic of that code ends here.
pub fn wake(waker: Waker) {
    // The panic message has been printed.
    let _ = catch_unwind(AssertUnwindSafe(|| within(UserCode::Waker, || waker.wake())));
}

/// Calls a user's code. Such calls may be nested: then the stricter limit holds.
fn within<R>(what: UserCode, code: impl FnOnce() -> R) -> R {
    let before = INSIDE.with(Cell::get);
    let _reset = Reset(before);
    INSIDE.with(|inside| inside.set(before.max(what)));
    if let Some(forget) = BEFORE.get() {
        forget();
    }
    code()
}

/// Threads for jobs of one kind.
pub struct Pool {
    threads: bool,
    /// What its threads are called.
    name: &'static str,
    /// Its jobs close files.
    closes: bool,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// One per node; empty until first use.
    pool: Vec<(Sender<Job>, JoinHandle<()>)>,
    /// Jobs of an array without threads.
    queue: VecDeque<Job>,
    next: usize,
    stopped: bool,
}

impl Pool {
    /// Nothing is started yet.
    pub fn new(threads: bool, name: &'static str) -> Pool {
        Pool { threads, name, closes: false, state: Mutex::new(PoolState::default()) }
    }

    /// The same for closing files.
    pub fn for_closing(threads: bool) -> Pool {
        Pool { closes: true, ..Pool::new(threads, "close") }
    }

    /// Starts the threads, unless they run already. A call that will need them does this first, so that it can report an error.
    pub fn get_ready(&self) -> Result<()> {
        let mut state = lock(&self.state);
        if !self.threads || state.stopped || !state.pool.is_empty() {
            return Ok(());
        }
        state.pool = start(self.name, self.closes)?;
        Ok(())
    }

    /// Has a user's callback called.
    pub fn call(&self, callback: Job) {
        self.run(Box::new(move || Self::call_here(callback)));
    }

    /// Calls a user's callback on this thread.
    pub fn call_here<R>(callback: impl FnOnce() -> R) -> R {
        within(UserCode::Callback, callback)
    }

    /// Runs a job of this library that blocks, such as a sync for a future.
    pub fn run(&self, job: Job) {
        // Without a thread (the array is closing, or none could be started) the job runs here, because a job must not be lost. A panic of
        // the job must not end this thread, which may be a drive's.
        if let Some(job) = self.hand_over(job) {
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The same, but returns the job if there is no thread to run it.
    pub fn hand_over(&self, job: Job) -> Option<Job> {
        let mut state = lock(&self.state);
        if !self.threads && !state.stopped {
            state.queue.push_back(job);
            return None;
        }
        if state.pool.is_empty() && !state.stopped {
            // A caller that has not called `get_ready` may block, or works without the thread.
            state.pool = start(self.name, self.closes).unwrap_or_default();
        }
        state.next = state.next.wrapping_add(1);
        let chosen = state.next % state.pool.len().max(1);
        match state.pool.get(chosen) {
            Some((sender, _)) => sender.send(job).err().map(|refused| refused.0),
            None => Some(job),
        }
    }

    /// Wakes a task on a thread of the pool, and never here: the caller may hold locks.
    pub fn wake(&self, waker: Waker) {
        let resume = move || {
            let _resuming = Resuming(RESUMES.with(|resumes| resumes.replace(true)));
            waker.wake();
        };
        if let Some(job) = self.hand_over(Box::new(resume)) {
            // The pool starts before the task and stops after it. If it does not run all the same, a new thread wakes the task.
            let started = std::thread::Builder::new().name("iomill-resume".into()).spawn(job);
            debug_assert!(started.is_ok(), "a task was lost: {started:?}");
        }
    }

    /// Runs one job of an array without threads. Returns `false` if there is none.
    pub fn step(&self) -> bool {
        let job = lock(&self.state).queue.pop_front();
        job.map(|job| job()).is_some()
    }

    /// Runs what is queued, then ends the threads.
    pub fn stop(&self) {
        let pool = {
            let mut state = lock(&self.state);
            state.stopped = true;
            std::mem::take(&mut state.pool)
        };
        while self.step() {}
        for (sender, thread) in pool {
            drop(sender);
            if thread.thread().id() != std::thread::current().id() {
                // The thread catches the panics of its jobs, so it has not panicked.
                let _ = thread.join();
            }
        }
    }
}

/// Resets `RESUMES`, also when the operation panics.
struct Resuming(bool);

impl Drop for Resuming {
    fn drop(&mut self) {
        RESUMES.with(|resumes| resumes.set(self.0));
    }
}

/// Resets `INSIDE` to what it was before the callback, also when that panics.
struct Reset(UserCode);

impl Drop for Reset {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

/// One thread per node, bound to the node's CPUs where there are several nodes. An error if no thread at all could be started.
fn start(name: &str, closes: bool) -> Result<Vec<(Sender<Job>, JoinHandle<()>)>> {
    let nodes = machine::nodes(&Tree::machine()).unwrap_or_default();
    let mut cpus_of: Vec<Vec<usize>> = nodes.into_iter().map(|node| node.cpus).collect();
    if cpus_of.len() < 2 {
        cpus_of = vec![Vec::new()];
    }
    let (mut pool, mut failed) = (Vec::new(), None);
    for (node, cpus) in cpus_of.into_iter().enumerate() {
        let (sender, receiver) = channel::<Job>();
        let thread = std::thread::Builder::new().name(format!("iomill-{name}-{node}")).spawn(move || {
            if !cpus.is_empty() {
                // An error is ignored: away from its node a thread is slower, not wrong.
                let _ = cpu::bind_current_thread(&cpus);
            }
            if !closes {
                leave_closing_to_others();
            }
            for job in receiver {
                // A panic of one job must not end the thread: more jobs wait. The panic message has been printed.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        });
        match thread {
            Ok(thread) => pool.push((sender, thread)),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(source) if pool.is_empty() => Err(Error::Thread { name: format!("iomill-{name}-0"), drive: None, source }),
        _ => Ok(pool),
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

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
