//! Pools of threads: where callbacks of `submit` run, so that a drive thread never runs a user's code. A pool has a thread per NUMA node,
//! which starts when it is first needed. In a simulation a caller that waits steps the jobs.
//!
//! Work of this library that waits for other work runs on such threads too. There are three pools, whose jobs must not hold each other up:
//! `callbacks` also has what enters files, such as syncs for futures; `resumes` has operations that are inside a file, which must end before
//! its gate can close; `closes` closes files, which may flush for long.
//!
//! Rules:
//! 1. Where a user's code is called by this library, in callbacks and in wakers, every call that waits for drives or for others is an error
//!    (`check_may_block`): what it waits for may wait for the thread that it is on.
//! 2. A callback may begin what goes on without it, and waits for room in the drives' queues and for closed gates.
//! 3. A waker may begin it, too, and waits for nothing: the thread may be a drive's own. What finds a queue full is let in all the same
//!    (`Inbox::push`), and what finds a gate closed is begun on a callback thread.
//! 4. Who lets go of a file, or of the array, last has it closed. Where that must not be waited for, the threads for closing do it (`may_close`).

use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::task::Waker;
use std::thread::JoinHandle;

use crate::drive::serve;
use crate::error::{Error, Result};
use crate::sys::cpu;
use crate::sys::sync::{Mutex, lock};

/// What the calling thread may wait for, from all to nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Inside {
    Nothing,
    /// A user's callback (rule 2).
    Callback,
    /// A user's waker (rule 3).
    Waker,
}

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside::Nothing) };
    /// The thread's jobs wait for each other.
    static IS_POOL: Cell<bool> = const { Cell::new(false) };
    /// The thread resumes an operation.
    static RESUMES: Cell<bool> = const { Cell::new(false) };
}

type Job = Box<dyn FnOnce() + Send>;

/// Refuses a call that blocks when a callback or a waker makes it: it would wait for I/O whose callbacks it holds up (rule 1, and rule 7 of
/// the page cache: an error, not a deadlock).
pub fn check_may_block(call: &'static str) -> Result<()> {
    if may_block() { Ok(()) } else { Err(Error::WouldBlock { call }) }
}

/// Whether this is neither a callback nor a waker, nor told by a drive's server.
#[inline]
pub fn may_block() -> bool {
    INSIDE.with(Cell::get) == Inside::Nothing && !serve::is_serving()
}

/// Whether what is begun here may wait for room and for gates (rules 2 and 3).
pub fn may_wait() -> bool {
    INSIDE.with(Cell::get) < Inside::Waker && !serve::is_serving()
}

/// Whether a file may be closed here (rule 4).
pub fn may_close() -> bool {
    may_block() && !IS_POOL.with(Cell::get)
}

/// Whether an operation that is polled here may block.
pub fn may_resume_blocking() -> bool {
    RESUMES.with(Cell::get) && !serve::is_serving()
}

/// Has `forget` called before each call of a user's code. The first one stays.
pub fn before_users_code(forget: fn()) {
    let _kept_if_first = BEFORE.set(forget);
}

static BEFORE: OnceLock<fn()> = OnceLock::new();

/// From now on others have the calling thread's files closed.
pub fn leave_closing_to_others() {
    IS_POOL.with(|is_pool| is_pool.set(true));
}

/// Wakes a user's task. Whatever its executor does at once is done here, and if it panics, only this ends.
pub fn wake(waker: Waker) {
    // Its message is out.
    let _ = catch_unwind(AssertUnwindSafe(|| within(Inside::Waker, || waker.wake())));
}

/// Calls a user's code, which may also be called within another's.
fn within<R>(what: Inside, code: impl FnOnce() -> R) -> R {
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
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
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
        Pool { threads, name, closes: false, state: Mutex::new(State::default()) }
    }

    /// The same for closing files.
    pub fn for_closing(threads: bool) -> Pool {
        Pool { closes: true, ..Pool::new(threads, "close") }
    }

    /// Starts the threads, where that has not been done: by who begins what will need them, so that he hears of it if it cannot be.
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
        within(Inside::Callback, callback)
    }

    /// Runs work of our own that blocks, such as a sync for a future.
    pub fn run(&self, job: Job) {
        // Without a thread to run it (the array is closing, or none could be started and the caller may block) the job runs here: late
        // or on the wrong thread is better than never. If it panics, a drive thread must not.
        if let Some(job) = self.hand_over(job) {
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The same, but without a thread to run it the job comes back.
    pub fn hand_over(&self, job: Job) -> Option<Job> {
        let mut state = lock(&self.state);
        if !self.threads && !state.stopped {
            state.queue.push_back(job);
            return None;
        }
        if state.pool.is_empty() && !state.stopped {
            // Who asks for threads that were not got ready may block, or does without.
            state.pool = start(self.name, self.closes).unwrap_or_default();
        }
        state.next = state.next.wrapping_add(1);
        let chosen = state.next % state.pool.len().max(1);
        match state.pool.get(chosen) {
            Some((sender, _)) => sender.send(job).err().map(|refused| refused.0),
            None => Some(job),
        }
    }

    /// Has a task polled by a thread of the pool. It never polls here: the caller may hold locks.
    pub fn wake(&self, waker: Waker) {
        let resume = move || {
            let _resuming = Resuming(RESUMES.with(|resumes| resumes.replace(true)));
            waker.wake();
        };
        if let Some(job) = self.hand_over(Box::new(resume)) {
            // The pool was started before the task was, and stops after it. Should that fail, a thread of its own does.
            let started = std::thread::Builder::new().name("iomill-resume".into()).spawn(job);
            debug_assert!(started.is_ok(), "a task was lost: {started:?}");
        }
    }

    /// Runs one job of an array without threads; `false` if there is none.
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
                // It cannot have panicked: jobs are caught.
                let _ = thread.join();
            }
        }
    }
}

/// Ends resuming also when the operation panics.
struct Resuming(bool);

impl Drop for Resuming {
    fn drop(&mut self) {
        RESUMES.with(|resumes| resumes.set(self.0));
    }
}

/// Leaves the callback also when it panics, for what was before.
struct Reset(Inside);

impl Drop for Reset {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

/// One thread per node, bound to the node's CPUs where there are several nodes. An error where not a single one could be started.
fn start(name: &str, closes: bool) -> Result<Vec<(Sender<Job>, JoinHandle<()>)>> {
    let nodes = cpu::nodes(Path::new("/sys/devices/system/node")).unwrap_or_default();
    let mut cpus_of: Vec<Vec<usize>> = nodes.into_iter().map(|node| node.cpus).collect();
    if cpus_of.len() < 2 {
        cpus_of = vec![Vec::new()];
    }
    let (mut pool, mut failed) = (Vec::new(), None);
    for (node, cpus) in cpus_of.into_iter().enumerate() {
        let (sender, receiver) = channel::<Job>();
        let thread = std::thread::Builder::new().name(format!("iomill-{name}-{node}")).spawn(move || {
            if !cpus.is_empty() {
                // Away from its node a callback thread is slower, not wrong.
                let _ = cpu::bind_current_thread(&cpus);
            }
            if !closes {
                leave_closing_to_others();
            }
            for job in receiver {
                // A callback that panics must not take those behind it along. Its message is out.
                let _ = catch_unwind(AssertUnwindSafe(job));
            }
        });
        match thread {
            Ok(thread) => pool.push((sender, thread)),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if pool.is_empty() => Err(Error::Machine {
            what: format!("a {name} thread"),
            why: format!("{error}; raise the limit of processes (`ulimit -u`)"),
        }),
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
