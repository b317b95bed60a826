//! The [`Flusher`]: the thread that flushes in the background, and its queue of sets. Non-goals: its rounds (`flush`).

use std::collections::VecDeque;
use std::thread::JoinHandle;

use crate::cache::key::Key;
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
    pub fn push(&self, start: impl FnOnce() -> Option<JoinHandle<()>>, keys: impl Iterator<Item = Key>) -> bool {
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
    pub fn next(&self) -> Option<Vec<Key>> {
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
