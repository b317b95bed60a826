//! [`QueuedCalls`]: calls for futures that no thread of a pool has begun yet. An array lets them begin before it
//! closes, because a call must end even if its future is dropped. Non-goals: calls that have entered a file; the file's
//! gate waits for them.

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
    /// The numbers of the calls that have not begun.
    waiting: BTreeSet<u64>,
}

/// A call that has not begun. The drop notes its beginning. Drop it before a share of the array or of a file: the drop
/// of the share may close the array, which waits for queued calls.
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
    /// Notes a call that is about to be handed over to a pool.
    pub fn queue_call(&self) -> QueuedCall {
        let all = Arc::clone(&self.queued);
        let mut state = lock(&all.0);
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number);
        drop(state);
        QueuedCall { all, number }
    }

    /// Waits until all calls that are queued now have begun.
    pub fn wait_for_queued_calls(&self) {
        let end = lock(&self.queued.0).next;
        while lock(&self.queued.0).waiting.first().is_some_and(|first| *first < end) {
            self.pause();
        }
    }
}
