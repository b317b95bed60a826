//! [`SharedCell`]: a shared context, where all threads can reach it. The rules are at the top of `shared`. Non-goals:
//! which cells a thread owns (`own`).

pub mod own;
mod posted;

use std::os::fd::{BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::task::Context;

use super::forget::ToForget;
use super::telling::Collecting;
use super::users_code;
use crate::drive::Piece;
use crate::drive::regions::{Regions, Within};
use crate::drive::shared::{Left, SharedContext};
use crate::drive::shares::{Ended, Owner};
use crate::error::{Error, Result};
use crate::sys::process::Home;
use crate::sys::sync::{self, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, fence, lock, try_lock};
use posted::{Posted, PostedShare};

/// The number of unfinished operations from which on a caller that may wait does so.
const FULL: u32 = 4096;

/// The number of waiting pieces at which they are sent at once. More gain nothing, and a poll should be short.
const BATCH_PIECES: u32 = 32;

/// The number of batches of one piece in a row after which a piece waits for others again.
const TRY_EVERY: u32 = 32;

/// A shared context, where all threads can reach it.
pub struct SharedCell {
    home: Home,
    regions: Arc<Regions>,
    /// `None` after the array was closed.
    context: Mutex<Option<SharedContext>>,
    /// The context's descriptors, readable while completions wait. Open while `context` is `Some`.
    descriptors: Vec<RawFd>,
    /// The number of drives that the context serves, the first ones. Drives that were added later are not served.
    drives: usize,
    /// The number of shares that have not ended. Raised before another thread can look for a share, and lowered under
    /// the lock.
    unfinished: AtomicU32,
    /// The number of pieces that no turn has seen. Changes under the lock.
    unsent: AtomicU32,
    /// The number of batches of one piece in a row. Changes under the lock.
    alone: AtomicU32,
    /// The number of turns, modulo 2^32. Changes under the lock.
    turns: AtomicU32,
    /// Whether the watcher listens to the descriptors. Only the watcher clears it.
    pub armed: AtomicBool,
    /// Whether the watcher takes turns without a report of a descriptor. Only the watcher clears it.
    pub due: AtomicBool,
    pub backup: Backup,
    #[cfg(feature = "tokio")]
    pub driver: super::tokio::Driver,
    pub(super) forget: ToForget,
    posted: Posted,
    /// The cell's number for the watcher.
    pub place: AtomicU64,
    common: Arc<Common>,
}

/// What a poll of an operation that has not ended waits for: one more poll, or a wake by the operation's end.
#[derive(PartialEq, Eq)]
pub enum Next {
    Poll,
    Wake,
}

/// Whether the watcher backs up a cell: takes turns of it from time to time.
#[derive(Default)]
pub struct Backup(sync::AtomicBool);

impl Backup {
    /// Asks for a backup, after an operation has begun. Whether the caller must tell the watcher.
    pub fn ask(&self) -> bool {
        // AcqRel: either the swap in `end` comes later, and the watcher sees the operation, or this swap sees that one.
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Ends the backup of a cell that the watcher has found idle. Whether it has ended: an operation may begin
    /// meanwhile.
    pub fn end(&self, is_idle: impl Fn() -> bool) -> bool {
        // AcqRel: as in `ask`.
        self.0.swap(false, Ordering::AcqRel);
        is_idle() || !self.ask()
    }
}

/// Takes turns that no other thread takes. The implementation is the reaper's.
pub trait Watch: Send + Sync {
    /// Ensures a turn of a cell once pieces have ended there: by the calling thread's runtime if it drives the cell,
    /// else as `arm`.
    fn watch(&self, cell: &Arc<SharedCell>);

    /// Takes a turn of a cell once pieces have ended there. Does nothing if the cell is armed already.
    fn arm(&self, cell: &Arc<SharedCell>);

    /// Takes turns of a cell from now on, while it has work that no descriptor reports.
    fn take(&self, cell: &Arc<SharedCell>);

    /// Takes turns of a cell from time to time if no other thread does, until the cell is idle.
    fn back_up(&self, cell: &Arc<SharedCell>);
}

impl std::fmt::Debug for SharedCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCell").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

/// The state that all cells of an array share.
pub struct Common {
    /// The number of threads and operations that wait for other operations (rule 4).
    waiting: AtomicU32,
    /// The number of waits that have begun, modulo 2^32.
    waits: AtomicU32,
    /// The cells without an owner. `None` after the array was closed.
    free: Mutex<Option<Vec<Arc<SharedCell>>>>,
    /// Set before the first cell is used. A simulation has no watcher.
    pub watcher: OnceLock<Arc<dyn Watch>>,
}

impl Default for Common {
    fn default() -> Common {
        Common {
            waiting: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            free: Mutex::new(Some(Vec::new())),
            watcher: OnceLock::new(),
        }
    }
}

/// A thread or an operation that waits for other operations, until this is dropped (rule 4).
pub struct Waiting<'a>(&'a Common);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Common {
    /// Notes that the caller is about to wait for other operations.
    pub fn begin_wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.waits.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fences in `is_awaited` and `is_awaited_since`.
        fence(Ordering::SeqCst);
        Waiting(self)
    }

    /// Frees a cell: its owner is ending, or has another one.
    pub fn give_back(&self, cell: &Arc<SharedCell>) {
        if let Some(free) = &mut *lock(&self.free) {
            free.push(Arc::clone(cell));
        }
    }

    fn is_open(&self) -> bool {
        lock(&self.free).is_some()
    }

    /// Closes the array for cells: from now on no thread gets one.
    pub fn close(&self) {
        *lock(&self.free) = None;
    }

    /// A cell without an owner that serves at least `drives` drives, or a new one. [`Error::Closed`] after the close.
    pub fn free_cell(&self, drives: usize, make: impl FnOnce() -> Result<Arc<SharedCell>>) -> Result<Arc<SharedCell>> {
        let mut free = lock(&self.free);
        let cells = free.as_mut().ok_or(Error::Closed)?;
        match cells.iter().position(|cell| cell.drives() >= drives) {
            Some(place) => Ok(cells.swap_remove(place)),
            // Under the lock, so that no cell is made after the close.
            None => make(),
        }
    }

    /// Whether any thread or operation waits for another operation (rule 4).
    fn is_awaited(&self) -> bool {
        // Pairs with the fence in `begin_wait`.
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The number of waits that have begun.
    fn waits(&self) -> u32 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether any wait has begun since the number was `waits` (rule 5).
    fn is_awaited_since(&self, waits: u32) -> bool {
        // As in `is_awaited`.
        fence(Ordering::SeqCst);
        self.waits() != waits
    }
}

impl SharedCell {
    /// A cell without an owner.
    pub fn new(context: SharedContext, regions: &Arc<Regions>, common: &Arc<Common>) -> Arc<SharedCell> {
        Arc::new(SharedCell {
            home: Home::here(),
            regions: Arc::clone(regions),
            descriptors: context.descriptors(),
            drives: context.drives(),
            context: Mutex::new(Some(context)),
            unfinished: AtomicU32::new(0),
            unsent: AtomicU32::new(0),
            alone: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            due: AtomicBool::new(false),
            backup: Backup::default(),
            #[cfg(feature = "tokio")]
            driver: super::tokio::Driver::default(),
            forget: ToForget::default(),
            posted: Posted::default(),
            place: AtomicU64::new(0),
            common: Arc::clone(common),
        })
    }

    /// Whether the calling process made the cell, and is not a child of that process.
    pub fn is_here(&self) -> bool {
        self.home.is_here()
    }

    /// Whether the array of the cell is open.
    pub fn is_open(&self) -> bool {
        self.common.is_open()
    }

    /// Gives the cell up for other threads: its owner is ending, or has another one.
    pub fn give_back(self: &Arc<Self>) {
        self.common.give_back(self);
    }

    /// The number of drives that it serves.
    pub fn drives(&self) -> usize {
        self.drives
    }

    /// Takes a turn. Returns the work that it leaves.
    pub fn turn(self: &Arc<Self>) -> Left {
        self.turn_in(lock(&self.context), SharedContext::turn)
    }

    /// Takes a turn, unless another thread is in the context.
    pub fn try_turn(self: &Arc<Self>) {
        if let Some(context) = try_lock(&self.context) {
            self.turn_in(context, SharedContext::turn);
        }
    }

    /// `turn` for operations of others (rule 8 of `shared`). After a panic another turn finds the ended requests.
    pub fn help(self: &Arc<Self>) -> Left {
        let panicked = Left { has_more: true, ..Left::default() };
        catch_unwind(AssertUnwindSafe(|| self.turn())).unwrap_or(panicked)
    }

    /// `try_turn` for operations of others (rule 8 of `shared`).
    pub fn try_help(self: &Arc<Self>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.try_turn()));
    }

    /// In a simulation: lets I/O go on until a piece has ended.
    pub fn sleep(self: &Arc<Self>) {
        if let Some(context) = try_lock(&self.context) {
            self.turn_in(context, SharedContext::sleep);
        }
    }

    /// Drops the context.
    pub fn clear(&self) {
        let context = lock(&self.context).take();
        self.posted.close();
        #[cfg(feature = "tokio")]
        self.driver.end();
        drop(context);
    }

    fn turn_in(
        self: &Arc<Self>,
        guard: MutexGuard<'_, Option<SharedContext>>,
        advance: impl Fn(&mut SharedContext, &mut Vec<Ended>) -> Left,
    ) -> Left {
        let mut collecting = Collecting::begin();
        let left = self.turn_inside(guard, &mut collecting, advance);
        // Rule 2.
        collecting.tell();
        if left.blocked > 0 || (left.has_more && left.in_flight == 0) {
            self.take();
        }
        left
    }

    /// The part of a turn under the lock, which is released also in a panic.
    fn turn_inside(
        &self,
        mut guard: MutexGuard<'_, Option<SharedContext>>,
        collecting: &mut Collecting,
        advance: impl Fn(&mut SharedContext, &mut Vec<Ended>) -> Left,
    ) -> Left {
        let Some(context) = &mut *guard else { return Left::default() };
        self.take_posted(context);
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let unsent = self.unsent.load(Ordering::Relaxed);
        if unsent > 0 {
            let alone = if unsent > 1 { 0 } else { self.alone.load(Ordering::Relaxed) % TRY_EVERY + 1 };
            self.alone.store(alone, Ordering::Relaxed);
            self.unsent.store(0, Ordering::Relaxed);
        }
        advance(context, &mut collecting.counting(&self.unfinished).ended)
    }

    /// Gives the context the shares that other threads have posted.
    fn take_posted(&self, context: &mut SharedContext) {
        for share in self.posted.take() {
            self.forget.each(|key| context.forget(key));
            let (owner, span, pieces) = (share.owner, share.within.span(), [share.first].into_iter().chain(share.rest));
            // SAFETY: the promise of the caller of `post`.
            let pushed = unsafe { context.push(&self.regions, owner, span, pieces) };
            self.unsent.store(self.unsent.load(Ordering::Relaxed) + pushed, Ordering::Relaxed);
        }
    }

    /// The number of posted shares that no turn has taken.
    pub fn posted(&self) -> u32 {
        self.posted.count()
    }

    /// The number of turns, modulo 2^32.
    pub fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Whether a caller that may wait should do so before it begins an operation.
    pub fn is_full(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed) >= FULL
    }

    /// Whether all operations have ended.
    pub fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `turn_inside`.
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Whether there are pieces that no turn has seen.
    pub fn is_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0 || self.posted() > 0
    }

    /// Descriptors that are readable while a turn would find completions.
    pub fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // SAFETY: the descriptors are open while the context exists, which is until the array is closed. A caller uses
        // them only while an operation is unfinished. The operation keeps a file open, and so the array.
        self.descriptors.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The number of waits that have begun. For `push`: read it before the operation takes pages for which others could
    /// wait.
    pub fn waits(&self) -> u32 {
        self.common.waits()
    }

    /// Takes the pieces of a share; at least one. Without `waits` it takes a turn. With an earlier value of
    /// [`SharedCell::waits`] the pieces wait for other pieces until the next turn, unless a wait has begun since then.
    ///
    /// # Safety
    /// As for [`SharedContext::push`].
    pub unsafe fn push(
        self: &Arc<Self>,
        owner: Arc<dyn Owner>,
        within: Within,
        pieces: impl Iterator<Item = (u16, Piece)>,
        waits: Option<u32>,
    ) -> Result<()> {
        let mut guard = lock(&self.context);
        let Some(context) = &mut *guard else { return Err(Error::Closed) };
        self.forget.each(|key| context.forget(key));
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let pushed = unsafe { context.push(&self.regions, owner, within.span(), pieces) };
        let unsent = self.unsent.load(Ordering::Relaxed) + pushed;
        self.unsent.store(unsent, Ordering::Relaxed);
        let is_awaited = match waits {
            Some(before) => self.common.is_awaited_since(before),
            None => self.common.is_awaited(),
        };
        if waits.is_none() || unsent >= BATCH_PIECES || is_awaited {
            self.turn_in(guard, SharedContext::turn);
        } else {
            drop(guard);
        }
        if is_awaited {
            self.arm_or_back_up();
        }
        self.back_up();
        Ok(())
    }

    /// Takes the pieces of a share, at least one, for the next turn, which the cell's own thread takes. Does not wait
    /// for a thread in the context. `waits` is as for `push`.
    ///
    /// # Safety
    /// As for [`SharedContext::push`].
    pub unsafe fn post(
        self: &Arc<Self>,
        owner: Arc<dyn Owner>,
        within: Within,
        mut pieces: impl Iterator<Item = (u16, Piece)>,
        waits: u32,
    ) -> Result<()> {
        let Some(first) = pieces.next() else { return Ok(()) };
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        if !self.posted.add(PostedShare { owner, within, first, rest: pieces.collect() }) {
            self.unfinished.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Closed);
        }
        if self.common.is_awaited_since(waits) {
            self.help();
            self.arm_or_back_up();
        }
        self.back_up();
        Ok(())
    }

    /// Has the watcher back the cell up, if any operation is unfinished (rule 7).
    fn back_up(self: &Arc<Self>) {
        if !self.is_idle()
            && let Some(watcher) = self.common.watcher.get()
        {
            watcher.back_up(self);
        }
    }

    /// For a poll of an operation that has not ended: takes a turn, and ensures the next one (rule 3). If pieces are
    /// unsent at the operation's first poll, it asks for one more poll instead, where that mostly collects more pieces.
    /// Without one more poll they are sent all the same (rule 7).
    pub fn advance(self: &Arc<Self>, context: &mut Context<'_>, is_first: bool) -> Next {
        if self.is_driven_here() {
            return Next::Wake;
        }
        if is_first && self.is_unsent() && self.alone.load(Ordering::Relaxed).is_multiple_of(TRY_EVERY) {
            users_code::wake_polled(context.waker());
            return Next::Poll;
        }
        self.turn();
        self.watch();
        Next::Wake
    }

    /// As `leave`, except on a thread that takes the turns of its cells by itself: it does so later, once for several
    /// operations.
    pub fn leave_soon(self: &Arc<Self>) {
        if !self.is_driven_here() {
            self.leave();
        }
    }

    /// Takes a turn, and ensures the next one. For an operation that no poll advances, or not at once.
    pub fn leave(self: &Arc<Self>) {
        self.help();
        self.watch();
    }

    /// Ensures the next turn. A cell that a runtime drives is only backed up, because the runtime mostly takes the turn
    /// at once.
    pub fn arm_or_back_up(self: &Arc<Self>) {
        if self.has_driver() {
            self.back_up();
        } else {
            self.arm();
        }
    }

    /// Whether a runtime drives the cell: takes a turn when pieces have ended.
    fn has_driver(&self) -> bool {
        #[cfg(feature = "tokio")]
        return self.driver.is_there();
        #[cfg(not(feature = "tokio"))]
        false
    }

    /// Whether the calling thread takes the cell's turns before it sleeps.
    fn is_driven_here(self: &Arc<Self>) -> bool {
        own::is_driven_here() && own::is_own(self)
    }

    /// Ensures the next turn, if any operation is unfinished.
    pub fn watch(self: &Arc<Self>) {
        if !self.is_idle()
            && !self.is_driven_here()
            && let Some(watcher) = self.common.watcher.get()
        {
            watcher.watch(self);
        }
    }

    /// Calls `with` with the descriptors, which stay open meanwhile. `None` after the array was closed.
    #[cfg(feature = "tokio")]
    pub fn while_open<R>(&self, with: impl FnOnce(&[RawFd]) -> R) -> Option<R> {
        let context = lock(&self.context);
        context.is_some().then(|| with(&self.descriptors))
    }

    /// Has the watcher listen to the descriptors, if any operation is unfinished.
    pub fn arm(self: &Arc<Self>) {
        if !self.is_idle()
            && let Some(watcher) = self.common.watcher.get()
        {
            watcher.arm(self);
        }
    }

    /// Has the watcher take turns for work that no descriptor reports.
    fn take(self: &Arc<Self>) {
        if let Some(watcher) = self.common.watcher.get() {
            watcher.take(self);
        }
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::model;

    /// A thread leaves an operation unfinished, and another begins to wait for it: one of the two sees the other (rules
    /// 4 and 5).
    ///
    /// Seen to fail without either fence.
    #[test]
    fn loom_what_is_left_or_what_waits_is_seen() {
        model(|| {
            let shared = loom::sync::Arc::new((Common::default(), AtomicU32::new(0)));
            let theirs = loom::sync::Arc::clone(&shared);
            let leaving = loom::thread::spawn(move || {
                theirs.1.fetch_add(1, Ordering::Relaxed);
                theirs.0.is_awaited()
            });
            let waiting = shared.0.begin_wait();
            let sees = shared.1.load(Ordering::Relaxed) > 0;
            let is_seen = leaving.join().unwrap();
            assert!(sees || is_seen);
            drop(waiting);
        });
    }

    /// The same for a thread that takes a page and then looks only for waits that began since, if the other thread
    /// finds the page taken.
    ///
    /// Seen to fail without either fence, and if the thread reads the number of waits after it has taken the page.
    #[test]
    fn loom_what_waits_for_a_page_is_seen_by_the_thread_that_took_it() {
        model(|| {
            let shared = loom::sync::Arc::new((Common::default(), AtomicU32::new(0), Mutex::new(false)));
            let theirs = loom::sync::Arc::clone(&shared);
            let taking = loom::thread::spawn(move || {
                let waits = theirs.0.waits();
                *lock(&theirs.2) = true;
                theirs.1.fetch_add(1, Ordering::Relaxed);
                theirs.0.is_awaited_since(waits)
            });
            let is_taken = *lock(&shared.2);
            let _waiting = is_taken.then(|| shared.0.begin_wait());
            let sees = shared.1.load(Ordering::Relaxed) > 0;
            let is_seen = taking.join().unwrap();
            assert!(!is_taken || sees || is_seen);
        });
    }

    /// A watcher that ends a backup sees an operation that begins meanwhile, or is told of it.
    ///
    /// Seen to fail with Relaxed in `Backup`, and if `end` looks before its swap.
    #[test]
    fn loom_what_is_begun_is_backed_up() {
        model(|| {
            let shared = loom::sync::Arc::new((Backup::default(), AtomicU32::new(0)));
            assert!(shared.0.ask());
            let theirs = loom::sync::Arc::clone(&shared);
            let beginning = loom::thread::spawn(move || {
                theirs.1.store(1, Ordering::Relaxed);
                theirs.0.ask()
            });
            let ended = shared.0.end(|| shared.1.load(Ordering::Relaxed) == 0);
            let is_told = beginning.join().unwrap();
            assert!(!ended || is_told);
        });
    }
}
