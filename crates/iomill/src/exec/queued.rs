//! [`QueuedCalls`]: calls for futures that no thread of a pool has begun yet. An array lets them begin before it
//! closes, because a call must end even if its future is dropped. Non-goals: calls that have entered a file; the file's
//! gate waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;

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

impl QueuedCalls {
    /// Notes a call that is about to be handed over to a pool.
    pub fn add(self: &Arc<Self>) -> QueuedCall {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number);
        drop(state);
        QueuedCall { all: Arc::clone(self), number }
    }

    /// Waits (by `pause`) until all calls that are queued now have begun.
    pub fn wait(&self, pause: impl Fn()) {
        let end = lock(&self.0).next;
        while lock(&self.0).waiting.first().is_some_and(|first| *first < end) {
            pause();
        }
    }
}
