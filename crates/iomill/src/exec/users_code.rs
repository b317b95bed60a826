//! What a user's code that this library calls may do: callbacks, wakers, and subscribers of events. The rules are those
//! of `pools`. Non-goals: the threads that run it.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::task::Waker;

use crate::drive::shares;
use crate::error::{Error, Result};
use crate::sys::events;

/// The user's code that the calling thread runs. The later a variant, the less it may wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UserCode {
    Nothing,
    /// A user's callback (rule 2).
    Callback,
    /// A user's waker (rule 3).
    Waker,
}

thread_local! {
    static INSIDE: Cell<UserCode> = const { Cell::new(UserCode::Nothing) };
}

/// Refuses a blocking call in a callback or a waker (rule 1). The call could wait for I/O that ends only after this
/// callback, and an error is better than a deadlock (rule 7 of the cache).
#[inline]
pub fn check_may_block(call: &'static str) -> Result<()> {
    if may_block() { Ok(()) } else { Err(Error::BlockingCall { call }) }
}

/// Whether the calling thread may block: it runs no callback, no waker and no subscriber, and serves no drive.
#[inline]
pub fn may_block() -> bool {
    INSIDE.with(Cell::get) == UserCode::Nothing && !shares::is_serving() && !events::is_telling()
}

/// Whether an operation that begins here may wait for room and for gates (rules 2 to 4).
#[inline]
pub fn may_wait() -> bool {
    INSIDE.with(Cell::get) < UserCode::Waker && !shares::is_serving() && !events::is_telling()
}

/// Registers `forget`, which runs before each call of a user's code. Only the first registration counts.
pub fn before_users_code(forget: fn()) {
    let _kept_if_first = BEFORE.set(forget);
}

static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Wakes a user's task. The waker may run a user's code. A panic of that code ends here.
pub fn wake(waker: Waker) {
    // The panic message has been printed.
    let _ = catch_unwind(AssertUnwindSafe(|| within(UserCode::Waker, || waker.wake())));
}

/// Wakes the user's task that is polled here, as `wake` does. Its waker may call this library, and the operation that is
/// polled may be inside a file.
pub fn wake_polled(waker: &Waker) {
    // The panic message has been printed.
    let _ = catch_unwind(AssertUnwindSafe(|| within(UserCode::Waker, || waker.wake_by_ref())));
}

/// Calls a user's code. Of nested calls the stricter limit holds.
pub fn within<R>(what: UserCode, code: impl FnOnce() -> R) -> R {
    let before = INSIDE.with(Cell::get);
    let _reset = Reset(before);
    INSIDE.with(|inside| inside.set(before.max(what)));
    if let Some(forget) = BEFORE.get() {
        forget();
    }
    code()
}

/// Its drop, also in a panic, resets `INSIDE` to the value from before the callback.
struct Reset(UserCode);

impl Drop for Reset {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}
