//! [`block_on`]: runs a future on the calling thread, which sleeps in its own shared contexts while the future waits.
//! So an I/O needs no other thread, and costs little more than a blocking call. Non-goals: several futures; a caller
//! joins them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::cell::own;
use super::refusal::engine_failed;
use super::users_code;
use crate::error::Result;
use crate::sys::parker::Parked;

/// Its drop, also in a panic of the future, leaves unfinished operations in the thread's contexts to other threads.
struct LeaveToOthers;

impl Drop for LeaveToOthers {
    fn drop(&mut self) {
        if !own::is_driven_here() {
            own::leave();
        }
    }
}

/// Runs a future to its end on the calling thread. iomill's I/O in it runs on this thread, too: a single read costs
/// little more than [`File::read_at`](crate::File::read_at). Any other future works as well.
///
/// # Errors
/// [`Error::BlockingCall`](crate::Error::BlockingCall) in a callback or a waker, and
/// [`Error::Engine`](crate::Error::Engine) if the system gives no event descriptor. The future is then dropped without
/// a poll.
pub fn block_on<F: Future>(future: F) -> Result<F::Output> {
    users_code::check_may_block("block_on")?;
    let parked = Parked::new().map_err(engine_failed)?;
    let waker = Waker::from(Arc::clone(parked.parker()));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let _others = LeaveToOthers;
    loop {
        parked.take();
        let driven = own::begin_driven();
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Ok(output);
        }
        own::turn_until_woken(&parked);
        drop(driven);
    }
}
