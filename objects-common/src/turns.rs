//! [`give_turn`]: gets of bytes in memory leave their thread to other tasks from time to time. Non-goals: calls that
//! wait anyway.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// The most gets in a row on a thread. tokio has the same limit for its own operations.
const GETS_MOST: u32 = 128;

thread_local! {
    /// Gets since this thread last left a task.
    static GETS: Cell<u32> = const { Cell::new(0) };
}

/// Counts a get. After `GETS_MOST` gets the task lets the thread's other tasks run: a get of bytes in memory is ready
/// at its first poll, so a loop of gets would keep the thread for itself.
pub async fn give_turn() {
    let gets = GETS.get() + 1;
    GETS.set(gets % GETS_MOST);
    if gets < GETS_MOST {
        return;
    }
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
