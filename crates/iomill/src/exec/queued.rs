//! [`QueuedCalls`]: calls that a thread of a pool is to make for futures. An array that closes lets them begin before, because a call goes on
//! without its future. Non-goals: calls that have entered a file, for which its gate waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Exec;
use crate::sys::sync::{Mutex, lock};

/// See the module.
#[derive(Default)]
pub struct QueuedCalls(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of the next call.
    next: u64,
    /// The numbers of those that have not begun.
    waiting: BTreeSet<u64>,
}

/// A call that has not begun, until this is dropped. What lets go of the array or of a file drops it before: that may close the array.
pub struct QueuedCall {
    all: Arc<QueuedCalls>,
    number: u64,
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        lock(&self.all.0).waiting.remove(&self.number);
    }
}

impl Exec {
    /// Notes a call that is about to be handed to a pool.
    pub fn queue_call(&self) -> QueuedCall {
        let all = Arc::clone(&self.queued);
        let mut state = lock(&all.0);
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number);
        drop(state);
        QueuedCall { all, number }
    }

    /// Waits until all calls have begun that were queued before. Later ones are not waited for.
    pub fn wait_for_queued_calls(&self) {
        let end = lock(&self.queued.0).next;
        while lock(&self.queued.0).waiting.first().is_some_and(|first| *first < end) {
            self.pause();
        }
    }
}
