//! The machine with engines that a test can block, and that panic when the test asks for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use iomill::EngineKind;
use iomill::engine::platform::{Choice, Platform};
use iomill::engine::real::RealPlatform;
use iomill::engine::{Completion, Engine, EngineConfig, EngineWake, IoRequest, Op};
use iomill::sys::fs::{DriveFs, Handle};

/// Blocks threads while it is shut.
#[derive(Debug, Default)]
pub struct Latch {
    /// Whether it is shut, and how many threads it blocks.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Latch {
    pub fn shut(&self) {
        self.state.lock().unwrap().0 = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().0 = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |state| state.0).unwrap();
        state.1 -= 1;
    }

    /// Whether it is shut, for a thread that it must not block. If so, the thread counts as blocked until `leave`.
    fn is_held(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.1 += usize::from(state.0);
        self.changed.notify_all();
        state.0
    }

    /// Whether it is open. If so, one thread fewer counts as blocked.
    fn leave(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        state.1 -= usize::from(!state.0);
        !state.0
    }

    /// Waits until it blocks `threads` threads.
    pub fn wait_for(&self, threads: usize) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, crate::PATIENCE, |state| state.1 < threads).unwrap();
        assert!(!waited.1.timed_out(), "no thread came to the latch");
    }
}

/// A test's controls of its engines.
#[derive(Debug, Default)]
pub struct Hooks {
    pub reads: Latch,
    pub writes: Latch,
    /// The number of waits that panic once they have a completion to report.
    pub panics: AtomicU32,
    /// Whether a wait that is to panic waits for a completion first, so that the next one panics.
    pub panics_at_once: AtomicBool,
    /// Whether the wait after the next panic panics, too. Until the first one waits report one completion at most, so
    /// that another one follows.
    pub panics_twice: AtomicBool,
    /// Only waits in threads with names that begin so panic. `None`: in all threads.
    pub panics_in: Mutex<Option<&'static str>>,
    /// Whether I/O that has ended is reported as failed.
    pub fails: AtomicBool,
    /// The number of calls of `forget` that panic.
    pub panics_in_forget: AtomicU32,
}

impl Hooks {
    /// Whether a wait of the calling thread may panic.
    fn panics_here(&self) -> bool {
        let here = std::thread::current();
        self.panics_in.lock().unwrap().is_none_or(|name| here.name().is_some_and(|here| here.starts_with(name)))
    }
}

/// Counts down. Returns whether the count is now 0.
fn is_last(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1)) == Ok(1)
}

#[derive(Debug, Default)]
pub struct Held {
    machine: RealPlatform,
    pub hooks: Arc<Hooks>,
}

impl Platform for Held {
    forward!(machine);
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        self.machine.choose(drive, probe, wish)
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        let inner = self.machine.engine(kind, config)?;
        let hooks = Arc::clone(&self.hooks);
        Ok(Box::new(HeldEngine { inner, hooks, is_shared: config.shared, held: Vec::new(), late: Vec::new() }))
    }
}

struct HeldEngine {
    inner: Box<dyn Engine>,
    hooks: Arc<Hooks>,
    /// Whether the engine is shared. It then blocks no thread: requests that a latch would block stay in `held` until a
    /// later `wait`.
    is_shared: bool,
    held: Vec<(Op, Vec<IoRequest>)>,
    /// Completions for the next wait.
    late: Vec<Completion>,
}

impl HeldEngine {
    fn latch(&self, op: Op) -> Option<&Latch> {
        match op {
            Op::Read => Some(&self.hooks.reads),
            Op::Write => Some(&self.hooks.writes),
            Op::Sync => None,
        }
    }

    fn forgets(&self) {
        let panics = &self.hooks.panics_in_forget;
        let counted = panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
        assert!(counted.is_err(), "an injected panic of an engine in `forget`");
    }
}

impl Engine for HeldEngine {
    forward_engine!(inner, HeldEngine::forgets);
    unsafe fn push(&mut self, requests: &[IoRequest]) {
        for op in [Op::Read, Op::Write] {
            if !requests.iter().any(|request| request.op == op) {
                continue;
            }
            let Some(latch) = self.latch(op) else { continue };
            if !self.is_shared {
                latch.pass();
            } else if latch.is_held() {
                return self.held.push((op, requests.to_vec()));
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.push(requests) };
    }
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        for (op, requests) in held {
            if self.latch(op).is_some_and(Latch::leave) {
                // SAFETY: as for `push`: the requests have not ended.
                unsafe { self.inner.push(&requests) };
            } else {
                self.held.push((op, requests));
            }
        }
        let panics = &self.hooks.panics;
        // Requests that are still held end in no wait.
        let ends = self.held.is_empty();
        let is_next = ends && panics.load(Ordering::SeqCst) > 0 && self.hooks.panics_at_once.load(Ordering::SeqCst);
        let (min, timeout) = if is_next { (1, None) } else { (min, timeout) };
        if self.late.is_empty() {
            self.inner.wait(min, timeout, done)?;
        }
        done.append(&mut self.late);
        if self.hooks.panics_twice.load(Ordering::SeqCst) && done.len() > 1 {
            self.late = done.split_off(1);
        }
        if self.hooks.fails.load(Ordering::SeqCst) {
            done.iter_mut().for_each(|end| end.result = -libc::EIO);
        }
        if !done.is_empty() && self.hooks.panics_here() && is_last(panics) {
            panics.store(self.hooks.panics_twice.swap(false, Ordering::SeqCst).into(), Ordering::SeqCst);
            panic!("an injected panic of an engine");
        }
        Ok(())
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        self.inner.waker()
    }
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.inner.descriptor()
    }
}
