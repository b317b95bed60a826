//! `Shares`: batches of pieces that a context has, and their `Owner`s. Non-goals: the pieces themselves (`queue`).

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{Done, Failure};
use crate::sys::thread::Raised;

thread_local! {
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is reporting an end to an owner, or is in a call that makes a future. Then the caller must not
/// wait for I/O or for a block's lock: the thread itself may have to end that wait.
pub fn is_serving() -> bool {
    SERVING.with(Cell::get)
}

/// The calling thread must not wait until the result is dropped.
pub fn begin_serving() -> Raised {
    Raised::new(&SERVING)
}

/// Receives the ends of a share and of its pieces.
pub trait Owner: Send + Sync {
    /// The piece with this tag has ended. Called once per piece, before `share_done`, on the thread that reaps: it must
    /// not block.
    fn piece_done(&self, _tag: u32, _result: Result<(), Failure>) {}

    /// All pieces of one share have ended; `failure` is the first failure among them. Called once per share, on the
    /// thread that reaps: it must not block.
    fn share_done(self: Arc<Self>, failure: Option<Failure>);
}

/// A share that has pieces left.
struct Active {
    owner: Arc<dyn Owner>,
    left: usize,
    failure: Option<Failure>,
}

/// A share without pieces left. Its owner does not know yet.
pub struct Ended {
    owner: Arc<dyn Owner>,
    failure: Option<Failure>,
}

impl Ended {
    /// Reports the end to the owner.
    pub fn tell(self) {
        let Ended { owner, failure } = self;
        tell_owner(|| owner.share_done(failure));
    }
}

/// Shares by token.
#[derive(Default)]
pub(super) struct Shares {
    /// `None` is free.
    active: Vec<Option<Active>>,
    free: Vec<u32>,
}

impl Shares {
    /// Counts one piece more of a share.
    pub fn add_piece(&mut self, token: u32) {
        if let Some(share) = &mut self.active[token as usize] {
            share.left += 1;
        }
    }

    /// Begins a share without pieces. Returns its token.
    pub fn begin(&mut self, owner: Arc<dyn Owner>) -> u32 {
        let token = self.free.pop().unwrap_or_else(|| {
            self.active.push(None);
            self.active.len() as u32 - 1
        });
        self.active[token as usize] = Some(Active { owner, left: 0, failure: None });
        token
    }

    /// Tells a share's owner of the end of a piece. Returns the share if it was the last one.
    pub fn end_piece(&mut self, done: &Done) -> Option<Ended> {
        let place = &mut self.active[done.token as usize];
        let Some(share) = place else { unreachable!("a token is free only after all its pieces have ended") };
        share.left -= 1;
        tell_owner(|| share.owner.piece_done(done.tag, done.result));
        if let Err(failure) = done.result {
            share.failure.get_or_insert(failure);
        }
        if share.left > 0 {
            return None;
        }
        self.free.push(done.token);
        place.take().map(|Active { owner, failure, .. }| Ended { owner, failure })
    }
}

/// Reports to an owner. If the owner panics, the others still get their reports; the panic's message is already
/// printed.
fn tell_owner(tell: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(tell));
}
