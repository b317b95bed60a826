//! The [`Flusher`]: the thread that flushes in the background. Non-goals: the flush itself (`flush`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::Pager;
use crate::cache::key::Key;
use crate::drive::Class;
use crate::exec::{Exec, pools};
use crate::sys::events;
use crate::sys::retry::Retry;
use crate::sys::sync::{self, Condvar, Mutex, lock};

/// The most sets in the flusher's queue. Further sets are flushed by the next write to them.
const QUEUE_SETS: usize = 4096;
/// The number of sets that the flusher takes at a time.
const BATCH_SETS: usize = 64;

/// The background thread, and the sets that wait for it.
#[derive(Debug, Default)]
pub struct Flusher {
    state: Mutex<FlusherState>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct FlusherState {
    /// A page of each set that has too many dirty pages.
    queue: VecDeque<Key>,
    running: bool,
    stop: bool,
    thread: Option<JoinHandle<()>>,
    /// The time of the next try to start it.
    retry: Retry,
}

impl Flusher {
    /// Leaves the sets of pages to the thread. Returns `false` if none can be started now.
    fn push(&self, start: impl FnOnce() -> Option<JoinHandle<()>>, keys: impl Iterator<Item = Key>) -> bool {
        let mut state = lock(&self.state);
        if state.stop {
            return true;
        }
        if state.thread.is_none() {
            if !state.retry.is_due() {
                return false;
            }
            state.thread = start();
            if state.thread.is_none() {
                state.retry.refused();
                return false;
            }
        }
        for key in keys {
            if state.queue.len() < QUEUE_SETS {
                state.queue.push_back(key);
            }
        }
        if !state.running {
            self.work.notify_one();
        }
        true
    }

    /// A page of each set to be flushed next. `None` at the end.
    fn next(&self) -> Option<Vec<Key>> {
        let mut state = lock(&self.state);
        state.running = false;
        loop {
            if state.stop {
                return None;
            }
            if !state.queue.is_empty() {
                let count = state.queue.len().min(BATCH_SETS);
                state.running = true;
                return Some(state.queue.drain(..count).collect());
            }
            state = sync::wait(&self.work, state);
        }
    }

    /// Ends the thread. Pages that it has not flushed stay dirty.
    pub fn stop(&self) {
        let thread = {
            let mut state = lock(&self.state);
            state.stop = true;
            state.queue.clear();
            self.work.notify_all();
            state.thread.take()
        };
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread catches the panics of its rounds, so it has not panicked.
            let _ = thread.join();
        }
    }
}

impl Pager {
    /// Leaves the sets of pages to the background thread. Returns `false` if none could be started; a notice says why.
    /// The subscriber of that notice cannot start one either.
    pub(super) fn flush_later(self: &Arc<Self>, exec: &Exec, keys: impl Iterator<Item = Key>) -> bool {
        !events::is_telling() && self.flusher.push(|| self.start_flusher(exec), keys)
    }

    /// Starts the thread. Without it writing calls flush by themselves.
    fn start_flusher(self: &Arc<Self>, exec: &Exec) -> Option<JoinHandle<()>> {
        let pager = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("iomill-flush".into()).spawn(move || {
            // Closing a file here would delay the flushes of all other files.
            pools::leave_closing_to_others();
            loop {
                // Held during a round, and while the thread sleeps in `next`. `stop` ends that sleep before the pager
                // is dropped.
                let Some(pager) = pager.upgrade() else { return };
                let Some(pages) = pager.flusher.next() else { return };
                // A panic of one round must not end the thread. The panic message has been printed.
                let _ = catch_unwind(AssertUnwindSafe(|| pager.flush_sets_behind(&pages)));
            }
        });
        if let Err(error) = &thread {
            exec.notice(format!("no thread to flush in the background: {error}"));
        }
        thread.ok()
    }

    /// One round: the sets of these pages.
    fn flush_sets_behind(&self, pages: &[Key]) {
        let keys = self.dirty_beside(pages.iter().copied());
        for keys in keys.chunk_by(|a, b| a.file() == b.file()) {
            let Some(file) = self.file(keys[0].file()) else { continue };
            let io = file.exec().blocking();
            // Pages that fail stay dirty, and the file's handles report it (`writeback_errors`).
            let _kept = Exec::run_to_end(file.flush_if_open(&io, keys, Class::Background));
        }
    }
}
