//! [`Posted`]: shares that other threads have posted to a context, and no turn has taken. A thread that posts does not
//! wait for the thread in the context, which may make a long system call. Non-goals: which thread takes the turn
//! (`exec::pools`).

use std::sync::Arc;

use crate::drive::Piece;
use crate::drive::regions::Within;
use crate::drive::shares::Owner;
use crate::sys::sync::{AtomicU32, Mutex, Ordering, lock};

/// See the module.
#[derive(Default)]
pub struct Posted {
    /// The number of shares. Changes under the lock.
    count: AtomicU32,
    shares: Mutex<Shares>,
}

#[derive(Default)]
struct Shares {
    list: Vec<PostedShare>,
    /// Whether the context has gone: no turn would take a share.
    is_closed: bool,
}

/// The arguments of `SharedContext::push`.
pub struct PostedShare {
    pub owner: Arc<dyn Owner>,
    pub within: Within,
    pub first: (u16, Piece),
    /// Mostly empty: then no memory is allocated.
    pub rest: Vec<(u16, Piece)>,
}

impl Posted {
    /// Adds a share. `false` after the close.
    pub fn add(&self, share: PostedShare) -> bool {
        let mut shares = lock(&self.shares);
        if shares.is_closed {
            return false;
        }
        shares.list.push(share);
        self.count.store(shares.list.len() as u32, Ordering::Relaxed);
        true
    }

    /// Takes all shares, oldest first. Without any it takes no lock.
    pub fn take(&self) -> Vec<PostedShare> {
        if self.count() == 0 {
            return Vec::new();
        }
        let mut shares = lock(&self.shares);
        self.count.store(0, Ordering::Relaxed);
        std::mem::take(&mut shares.list)
    }

    /// The number of shares.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Refuses further shares.
    pub fn close(&self) {
        lock(&self.shares).is_closed = true;
    }
}
