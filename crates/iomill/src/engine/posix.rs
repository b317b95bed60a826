//! The posix engine: `pread`, `pwrite`, `preadv`, `pwritev` and `fdatasync` on a few threads.
//!
//! Goals: works everywhere, on every file. A caller that waits serves requests itself instead of sleeping, so one
//! request at a time costs no change of threads. A wake or timeout then waits for the end of that one request.
//! Non-goals: the lowest cost per request (the threads share a lock); polling (the kernel ignores `RWF_HIPRI` in these
//! calls since Linux 5.19, and before that such a call could hang).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::wake::Deadline;
use super::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, Memory, Op};
use crate::sys::event::Event;

/// Threads per engine, beside the caller's.
pub const DEFAULT_THREADS: usize = 4;

/// See the module.
#[derive(Debug)]
pub struct PosixEngine {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The most workers. They start when there are requests that the caller does not serve itself. 0 if not even one
    /// could start: the caller then serves all requests.
    threads: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<PosixState>,
    /// Wakes workers for a pending request, or to stop.
    work: Condvar,
    /// Wakes the waiter: `wanted` requests have ended, or `woken` is set.
    ended: Condvar,
    /// The event of a shared engine: set while `PosixState::ended` is not empty. Changes under the lock.
    ends: Option<Event>,
}

#[derive(Debug)]
struct PosixState {
    pending: VecDeque<IoRequest>,
    ended: Vec<Completion>,
    /// The length of `ended` for which the waiter sleeps; `usize::MAX` while none does.
    wanted: usize,
    /// The number of workers that sleep.
    idle: usize,
    woken: bool,
    stop: bool,
}

impl PosixEngine {
    /// Makes an engine with [`DEFAULT_THREADS`].
    ///
    /// # Errors
    /// The engine is to be shared, and the system gives no event descriptor.
    pub fn new(config: &EngineConfig) -> io::Result<PosixEngine> {
        PosixEngine::with_threads(config, DEFAULT_THREADS)
    }

    /// Makes an engine with `threads` threads, at least one. Errors are those of `new`.
    pub fn with_threads(config: &EngineConfig, threads: usize) -> io::Result<PosixEngine> {
        let capacity = config.capacity as usize;
        let state = PosixState {
            pending: VecDeque::with_capacity(capacity),
            ended: Vec::with_capacity(capacity),
            wanted: usize::MAX,
            idle: 0,
            woken: false,
            stop: false,
        };
        let ends = if config.shared { Some(Event::new()?) } else { None };
        let shared = Shared { state: Mutex::new(state), work: Condvar::new(), ended: Condvar::new(), ends };
        Ok(PosixEngine { shared: Arc::new(shared), workers: Vec::new(), threads: threads.max(1) })
    }

    /// Wakes or starts workers for all pending requests but `own` of them; the caller serves those itself.
    fn call_workers(&mut self, own: usize) {
        let (pending, idle) = {
            let state = self.shared.lock();
            (state.pending.len().saturating_sub(own), state.idle)
        };
        if pending == 0 {
            return;
        }
        for _ in 0..pending.min(idle) {
            self.shared.work.notify_one();
        }
        // A busy worker takes the next request by itself. New ones start only while there are too few.
        let missing = pending.saturating_sub(idle).min(self.threads - self.workers.len());
        for _ in 0..missing {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new().name("iomill-posix".to_owned()).spawn(move || shared.serve());
            match started {
                Ok(worker) => self.workers.push(worker),
                // The workers that did start are enough.
                Err(_) => {
                    self.threads = self.workers.len();
                    break;
                }
            }
        }
    }

    /// Takes the next request if the caller is to serve it itself. A sync is left to the workers, if there are any: it
    /// takes long, and would delay a wake.
    fn take_own(&self, state: &mut PosixState) -> Option<IoRequest> {
        let mine = state.pending.front().is_some_and(|request| request.op != Op::Sync || self.threads == 0);
        if mine { state.pending.pop_front() } else { None }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PosixState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a worker.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.pending.pop_front() {
                drop(state);
                // SAFETY: the caller of `push` promised that file and memory stay valid until the request is done.
                let completion = unsafe { execute(&request) };
                state = self.lock();
                state.ended.push(completion);
                if state.ended.len() >= state.wanted {
                    self.ended.notify_one();
                }
                if let (Some(ends), 1) = (&self.ends, state.ended.len()) {
                    ends.set();
                }
            } else if state.stop {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

/// Executes one request.
///
/// # Safety
/// As for `Engine::push`.
pub(super) unsafe fn execute(request: &IoRequest) -> Completion {
    // SAFETY: the caller's promise.
    let result = unsafe { transfer(request) };
    let result = result.unwrap_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO));
    Completion { slot: request.slot, result }
}

/// The system call for a request.
///
/// # Safety
/// As for `Engine::push`.
unsafe fn transfer(request: &IoRequest) -> io::Result<i32> {
    let fd: RawFd = request.file.handle.0;
    let Ok(offset) = libc::off_t::try_from(request.offset) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    // SAFETY: the request's memory is valid by the caller's promise. A segment has the layout of the kernel's vector.
    check(unsafe {
        match (request.op, request.memory) {
            (Op::Read, Memory::One { buf, .. }) => libc::pread(fd, buf.cast(), request.len as usize, offset),
            (Op::Write, Memory::One { buf, .. }) => libc::pwrite(fd, buf.cast(), request.len as usize, offset),
            (Op::Read, Memory::Scatter { list, count }) => libc::preadv(fd, list.cast(), count.into(), offset),
            (Op::Write, Memory::Scatter { list, count }) => libc::pwritev(fd, list.cast(), count.into(), offset),
            (Op::Sync, _) => libc::fdatasync(fd) as libc::ssize_t,
        }
    })
}

/// The result of a system call. The kernel transfers less than 2 GiB at once, so it fits.
fn check(answer: libc::ssize_t) -> io::Result<i32> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(answer).unwrap_or(i32::MAX))
}

impl EngineWake for Shared {
    fn wake(&self) {
        self.lock().woken = true;
        self.ended.notify_one();
    }
}

impl Engine for PosixEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Posix
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        self.shared.lock().pending.extend(requests);
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut deadline = Deadline::new(timeout);
        self.call_workers(usize::from(min > 0));
        let wanted = done.len().saturating_add(min);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if let (Some(ends), false) = (&shared.ends, state.ended.is_empty()) {
                ends.drain()?;
            }
            done.append(&mut state.ended);
            let missing = wanted.saturating_sub(done.len());
            let left = deadline.left();
            if missing == 0 || left == Some(Duration::ZERO) || std::mem::take(&mut state.woken) {
                break;
            }
            if let Some(request) = self.take_own(&mut state) {
                drop(state);
                // SAFETY: the caller of `push` promised that file and memory stay valid until the request is done.
                done.push(unsafe { execute(&request) });
                state = shared.lock();
                continue;
            }
            if !state.pending.is_empty() {
                drop(state);
                self.call_workers(0);
                state = shared.lock();
                if !state.ended.is_empty() || state.woken || self.threads == 0 {
                    continue;
                }
            }
            state.wanted = missing;
            state = match left {
                Some(left) => shared.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.wanted = usize::MAX;
        }
        let left_over = !state.pending.is_empty();
        drop(state);
        // The pending requests go to the workers, so that they have started when this call returns.
        if left_over {
            self.call_workers(0);
        }
        if self.threads == 0 {
            let rest = std::mem::take(&mut shared.lock().pending);
            // SAFETY: the caller of `push` promised that file and memory stay valid until the request is done.
            done.extend(rest.iter().map(|request| unsafe { execute(request) }));
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::clone(&self.shared) as Arc<dyn EngineWake>
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.shared.ends.as_ref().map(|ends| ends.as_fd().as_raw_fd())
    }
}

impl Drop for PosixEngine {
    /// Waits for the requests that workers have begun. All others are dropped.
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.pending.clear();
            state.stop = true;
        }
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            let ended = worker.join();
            debug_assert!(ended.is_ok(), "a worker only makes system calls, and so never panics");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::engine::FileRef;
    use crate::sys::fs::Handle;

    /// The caller serves all requests, syncs too, if the system lets no thread start.
    #[test]
    fn without_a_thread_the_caller_serves_all() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let file = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
        let mut memory = [0; 32];
        let start = Memory::one(memory.as_mut_ptr());
        let request = |slot, op| IoRequest { slot, op, len: 4, file, offset: 0, memory: start };
        let requests = [request(0, Op::Sync), request(1, Op::Read), request(2, Op::Sync), request(3, Op::Read)];
        for min in [0, 1, 4] {
            let mut engine =
                PosixEngine::new(&EngineConfig { capacity: 4, poll: false, hold: Vec::new(), shared: false }).unwrap();
            engine.threads = 0;
            // SAFETY: memory and file outlive the engine.
            unsafe { engine.push(&requests) };
            let mut done = Vec::new();
            engine.wait(min, None, &mut done).unwrap();
            done.sort_by_key(|completion| completion.slot);
            let results: Vec<i32> = done.iter().map(|completion| completion.result).collect();
            assert_eq!(results, [0, 4, 0, 4], "min {min}");
            assert!(engine.workers.is_empty());
        }
        assert_eq!(&memory[..4], b"\x7fELF");
    }
}
