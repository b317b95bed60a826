//! Shared contexts: the engines of asynchronous operations. A thread begins operations in a context of its own, and any
//! thread may complete them. So no I/O changes threads, and no operation depends on its thread's next actions.
//!
//! Goals: one system call for several operations, and none for those that have ended. Each operation ends soon,
//! whatever becomes of its future and of the thread that began it. Non-goals: the engines (`drive::shared`), the
//! context in which an operation begins (`cell_for`), and the thread that watches where no other does (`reaper`).
//!
//! Rules:
//! 1. Any thread that gets a context's lock may take its turn (`turn`): it starts waiting pieces, and completes ended
//!    ones of all operations.
//! 2. The owners of ended shares are told outside the lock, because they may begin more I/O there.
//! 3. A poll that leaves unfinished operations ensures the next turn. One of three takes it: `block_on`, which sleeps
//!    in the context; a task of a runtime that drives; or the reaper, which sleeps on the descriptors of all armed
//!    contexts.
//! 4. A thread or an operation that must wait for another operation first counts itself (`Waiting`). Then it looks for
//!    contexts with unfinished operations, and takes their turns or arms them.
//! 5. A thread that leaves pieces unsent or unwatched first counts them. Then it looks whether any thread or operation
//!    waits, or has begun to wait since this thread took its pages. So by 4 and 5 one of the two sees the other, and
//!    the awaited pieces go on at once.
//! 6. A thread with pieces that wait for a block's lock, or for bounce memory, takes the turns of contexts with
//!    unfinished operations until its pieces go on: of all arrays, because they share bounce memory. For such pieces in
//!    a shared context the reaper does so.
//! 7. The reaper backs up each operation that does not end at once (its rule 4). So each operation ends soon, even if
//!    no poll ever advances it, or if its thread waits elsewhere for its end.
//! 8. A panic of an engine ends the turn. It goes on in the thread only if the turn was for the thread's own operations:
//!    a poll, or a push. A thread that helps others, or leaves an operation to others, may be unwinding, and a second
//!    panic would end the process. `block_on` takes the turns of all its thread's cells, of any array: a panic there
//!    would end a future that has no part in it. The message has been printed, and the next turn reports the requests
//!    that have ended. An engine that only panics is given up like one that only fails.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use super::cell::{Common, SharedCell, Waiting};
use super::pause::PAUSE;
use super::reaper::Reaper;
use crate::cache::{Outcome, Waiter};
use crate::sys::clock::Clock;
use crate::sys::parker::Parked;
use crate::sys::process::PerProcess;
use crate::sys::sync::{Mutex, RwLock, lock, read, write};

/// The shared contexts of all arrays of the process.
pub(super) static EVERYWHERE: PerProcess<Mutex<Vec<Weak<SharedCells>>>> = PerProcess::empty();

/// Takes the turns of all contexts of all arrays with unfinished operations, except those that another thread is in
/// (rule 6). Does not wait.
pub fn help_everywhere() {
    let all: Vec<Arc<SharedCells>> = lock(EVERYWHERE.get()).iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|cells| cells.help());
}

/// One step of a thread that waits for bounce memory or a lock: it takes turns of the contexts of all arrays, because
/// they share bounce memory, and sleeps.
pub(super) fn help_and_pause(clock: &dyn Clock) {
    help_everywhere();
    clock.sleep(PAUSE);
}

/// All shared contexts of an array.
#[derive(Default)]
pub struct SharedCells {
    pub(super) all: RwLock<Vec<Arc<SharedCell>>>,
    /// The cell for operations of the background, made with the first one.
    pub(super) background: Mutex<Option<Arc<SharedCell>>>,
    pub(super) common: Arc<Common>,
    pub(super) reaper: Reaper,
}

impl SharedCells {
    /// Notes that the caller is about to wait for other operations (rule 4).
    pub fn begin_wait(&self) -> Waiting<'_> {
        self.common.begin_wait()
    }

    /// Any cell that serves at least `drives` drives, whatever thread owns it.
    pub(super) fn any(&self, drives: usize) -> Option<Arc<SharedCell>> {
        read(&self.all).iter().find(|cell| cell.drives() >= drives).cloned()
    }

    fn unfinished(&self) -> Vec<Arc<SharedCell>> {
        read(&self.all).iter().filter(|cell| !cell.is_idle()).cloned().collect()
    }

    /// For an operation that waits, after `begin_wait`: sends all unsent pieces, and arms all cells with unfinished
    /// operations.
    pub fn expedite(&self) {
        for cell in self.unfinished() {
            if cell.is_unsent() {
                cell.help();
            }
            cell.arm_or_back_up();
        }
    }

    /// Takes the turns of all contexts with unfinished operations, except those that another thread is in.
    fn help(&self) {
        self.unfinished().iter().for_each(SharedCell::try_help);
    }

    /// In a simulation: lets I/O go on. `false` if there is none.
    pub fn step(&self) -> bool {
        let unfinished = self.unfinished();
        unfinished.iter().for_each(SharedCell::sleep);
        !unfinished.is_empty()
    }

    /// Waits for a page on which another operation works. Takes the turns of contexts meanwhile, because the page's
    /// fill may be in one of them, and that one's thread may be busy. The caller has no unfinished fills (rule 4 of the
    /// cache).
    pub fn wait_for_page(&self, waiter: &Waiter) -> Outcome {
        let _waiting = self.begin_wait();
        // If no operation is unfinished, a thread that begins one from now on sees that this thread waits.
        let (false, Ok(parked)) = (self.unfinished().is_empty(), Parked::new()) else { return waiter.wait() };
        let parker = Arc::clone(parked.parker());
        if let Some(outcome) = waiter.outcome_or_call(Box::new(move || parker.wake_thread())) {
            return outcome;
        }
        loop {
            let unfinished = self.unfinished();
            for cell in &unfinished {
                // Waits for the lock if there are unsent pieces: the thread in the context may not have seen them.
                if cell.is_unsent() {
                    cell.help();
                } else {
                    cell.try_help();
                }
            }
            if let Some(outcome) = waiter.outcome() {
                parked.take();
                return outcome;
            }
            let readable: Vec<BorrowedFd<'_>> = unfinished.iter().flat_map(|cell| cell.readable()).collect();
            if !parked.take() && parked.sleep(&readable).is_err() {
                return waiter.wait();
            }
        }
    }

    /// Has every engine forget a file that is being closed.
    pub fn forget(&self, key: u64) {
        read(&self.all).iter().for_each(|cell| cell.forget.later(key));
    }

    /// Ends all contexts. No file is open any more.
    pub fn stop(&self) {
        self.common.close();
        lock(EVERYWHERE.get()).retain(|cells| !std::ptr::eq(cells.as_ptr(), self));
        self.reaper.stop();
        *lock(&self.background) = None;
        std::mem::take(&mut *write(&self.all)).iter().for_each(|cell| cell.clear());
    }
}
