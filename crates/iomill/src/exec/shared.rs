//! Shared contexts: the engines by which asynchronous operations do their I/O. A thread begins operations in a context of its own, and any
//! thread may bring their ends. So no I/O is handed over, and no operation depends on what its thread does next.
//!
//! Goals: a system call for several operations, none for those that have ended; each operation ends soon, whatever becomes of its future
//! and of the thread that began it. Non-goals: the engines (`drive::shared`), the thread that watches where no other does (`reaper`).
//!
//! Rules:
//! 1. Whatever thread holds a context's lock takes its turn (`turn`): it starts what waits, and brings the ends of all operations.
//! 2. The owners of what has ended are told without the lock: they may begin more I/O there.
//! 3. A poll that leaves something unfinished sees to the next turn: by the executor's own wake, by `block_on`, which sleeps in the
//!    context, or by the reaper, which sleeps on the descriptors of all contexts that are armed.
//! 4. A thread or an operation that must wait for another operation first counts itself (`Waiting`), and then looks for contexts with
//!    something unfinished. It takes their turns, or arms them. A thread that leaves pieces unsent, or unwatched, counts them first, and then
//!    looks for those that wait. So one of the two sees the other, and nothing unfinished is left alone.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::task::Context;

use super::contexts::ToForget;
use super::reaper::{self, Reaper};
use super::telling::Collecting;
use super::{Exec, block_on};
use crate::cache::{Outcome, Waiter};
use crate::drive::Piece;
use crate::drive::inline::Service;
use crate::drive::regions::Regions;
use crate::drive::shared::{Left, SharedContext};
use crate::drive::shares::{Ended, Owner};
use crate::error::{Error, Result};
use crate::sys::parker::Parked;
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, RwLock, fence, lock, read, write};

/// So many pieces go to the kernel at the latest. More win nothing, and a poll should be short.
const BATCH_PIECES: u32 = 16;

/// After so many batches of one piece in a row, one waits for others again.
const TRY_EVERY: u32 = 32;

thread_local! {
    /// This thread's cells, by array instance.
    static CELLS: RefCell<Vec<(u64, OwnCell)>> = const { RefCell::new(Vec::new()) };
}

/// A shared context, where all threads can reach it.
pub struct SharedCell {
    home: Home,
    regions: Arc<Regions>,
    /// `None` after the array has been closed.
    context: Mutex<Option<SharedContext>>,
    /// Readable while there are ends to bring. They are open as long as `context` is there.
    descriptors: Vec<RawFd>,
    /// How many drives it serves.
    drives: usize,
    /// Shares that have not ended. It is raised before others can look for what is in them, and falls under the lock.
    unfinished: AtomicU32,
    /// Pieces that no turn has seen. Changes under the lock.
    unsent: AtomicU32,
    /// Batches of one piece in a row. Changes under the lock.
    alone: AtomicU32,
    /// Whether the reaper listens. Only the reaper clears it.
    pub(super) armed: AtomicBool,
    forget: ToForget,
    /// Its number for the reaper.
    pub(super) place: AtomicU64,
    common: Arc<Common>,
}

impl std::fmt::Debug for SharedCell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedCell").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

/// What all cells of an array have in common.
struct Common {
    /// Threads and operations that wait for other operations (rule 4).
    waiting: AtomicU32,
    /// Cells that no thread has. `None` after the array has been closed.
    free: Mutex<Option<Vec<Arc<SharedCell>>>>,
    /// Set before the first cell is made. A simulation has none.
    reaper: OnceLock<Arc<reaper::Shared>>,
}

/// A thread's hold on a cell. When the thread ends, another thread may have the cell.
struct OwnCell(Arc<SharedCell>);

impl Drop for OwnCell {
    fn drop(&mut self) {
        if self.0.home.is_here()
            && let Some(free) = &mut *lock(&self.0.common.free)
        {
            free.push(Arc::clone(&self.0));
        }
    }
}

/// All shared contexts of an array.
pub struct SharedCells {
    all: RwLock<Vec<Arc<SharedCell>>>,
    common: Arc<Common>,
    reaper: Reaper,
    /// The engines could not be made, or are of a kind that cannot be shared.
    is_refused: AtomicBool,
}

impl Default for SharedCells {
    fn default() -> SharedCells {
        let common =
            Common { waiting: AtomicU32::new(0), free: Mutex::new(Some(Vec::new())), reaper: OnceLock::new() };
        SharedCells {
            all: RwLock::default(),
            common: Arc::new(common),
            reaper: Reaper::default(),
            is_refused: AtomicBool::new(false),
        }
    }
}

/// Something waits for other operations, until this is dropped (rule 4).
pub struct Waiting<'a>(&'a Common);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Common {
    /// Whether something waits for other operations (rule 4).
    fn is_awaited(&self) -> bool {
        // Pairs with the fence in `begin_wait`.
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl SharedCells {
    /// Notes that the caller is about to wait for other operations.
    pub fn begin_wait(&self) -> Waiting<'_> {
        self.common.waiting.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `is_awaited`.
        fence(Ordering::SeqCst);
        Waiting(&self.common)
    }

    fn unfinished(&self) -> Vec<Arc<SharedCell>> {
        read(&self.all).iter().filter(|cell| !cell.is_idle()).cloned().collect()
    }

    /// For an operation that waits, after `begin_wait`: what is unsent is sent, and the reaper listens to all that is unfinished.
    pub fn expedite(&self) {
        for cell in self.unfinished() {
            if cell.is_unsent() {
                cell.turn();
            }
            cell.arm();
        }
    }

    /// Takes the turns of all contexts with something unfinished, but not of those that another thread is in.
    pub fn help(&self) {
        self.unfinished().iter().for_each(|cell| cell.try_turn());
    }

    /// Without threads: lets I/O go on. Returns `false` if there is none.
    pub fn step(&self) -> bool {
        let unfinished = self.unfinished();
        for cell in &unfinished {
            if let Some(context) = cell.enter() {
                cell.turn_in(context, SharedContext::sleep);
            }
        }
        !unfinished.is_empty()
    }

    /// Waits for a page that another operation works on, and takes the turns of contexts meanwhile: the page may be in one of them, and
    /// that one's thread may be busy. The caller has nothing unfinished (rule 4 of the cache).
    pub fn wait_for_page(&self, waiter: &Waiter) -> Outcome {
        let _waiting = self.begin_wait();
        // Where nothing was unfinished here, whoever begins now sees that this waits.
        let (false, Ok(parked)) = (self.unfinished().is_empty(), Parked::new()) else { return waiter.wait() };
        let parker = Arc::clone(parked.parker());
        if let Some(outcome) = waiter.outcome_or_call(Box::new(move || parker.wake_thread())) {
            return outcome;
        }
        loop {
            let unfinished = self.unfinished();
            unfinished.iter().for_each(|cell| cell.try_turn());
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

    /// Ends all contexts, when no file is open any more.
    pub fn stop(&self) {
        self.reaper.stop();
        *lock(&self.common.free) = None;
        for cell in std::mem::take(&mut *write(&self.all)) {
            *lock(&cell.context) = None;
        }
    }
}

impl SharedCell {
    /// The context, unless another thread is in it.
    fn enter(&self) -> Option<MutexGuard<'_, Option<SharedContext>>> {
        self.context.try_lock().ok()
    }

    /// Takes a turn. Returns what it leaves.
    pub fn turn(&self) -> Left {
        self.turn_in(lock(&self.context), SharedContext::turn)
    }

    /// The same, unless another thread is in the context.
    pub fn try_turn(&self) {
        if let Some(context) = self.enter() {
            self.turn_in(context, SharedContext::turn);
        }
    }

    fn turn_in(
        &self,
        mut guard: MutexGuard<'_, Option<SharedContext>>,
        advance: impl Fn(&mut SharedContext, &mut Vec<Ended>) -> Left,
    ) -> Left {
        // Declared before the guard is dropped: it tells without the lock (rule 2).
        let collecting = Collecting::begin();
        let Some(context) = &mut *guard else { return Left::default() };
        let unsent = self.unsent.load(Ordering::Relaxed);
        if unsent > 0 {
            let alone = if unsent > 1 { 0 } else { self.alone.load(Ordering::Relaxed) % TRY_EVERY + 1 };
            self.alone.store(alone, Ordering::Relaxed);
            self.unsent.store(0, Ordering::Relaxed);
        }
        let mut ended = Vec::new();
        let left = advance(context, &mut ended);
        if !ended.is_empty() {
            // Release: pairs with the Acquire in `is_idle`.
            self.unfinished.fetch_sub(ended.len() as u32, Ordering::Release);
            collecting.add(&mut ended);
        }
        drop(guard);
        left
    }

    /// Whether all that has begun has ended.
    pub fn is_idle(&self) -> bool {
        self.unfinished.load(Ordering::Acquire) == 0
    }

    fn is_unsent(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) > 0
    }

    /// Descriptors that are readable when a turn would find ends.
    pub fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        // SAFETY: they are open as long as the context is there, which is until the array is closed. A caller sleeps on them only while
        // something is unfinished, which keeps a file open, and so the array.
        self.descriptors.iter().map(|&fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Takes the pieces of a share, of which there is at least one. If `may_wait`, they may wait for others until a poll or another
    /// operation takes a turn. Else this takes one.
    ///
    /// # Safety
    /// As for [`SharedContext::push`].
    pub unsafe fn push(
        self: &Arc<Self>,
        owner: Arc<dyn Owner>,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
        may_wait: bool,
    ) -> Result<()> {
        let mut guard = lock(&self.context);
        let Some(context) = &mut *guard else { return Err(Error::Closed) };
        self.forget.each(|key| context.forget(key));
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let pushed = unsafe { context.push(&self.regions, owner, span, pieces) };
        let unsent = self.unsent.load(Ordering::Relaxed) + pushed;
        self.unsent.store(unsent, Ordering::Relaxed);
        let is_awaited = self.common.is_awaited();
        if !may_wait || unsent >= BATCH_PIECES || is_awaited {
            self.turn_in(guard, SharedContext::turn);
        }
        if is_awaited {
            self.arm();
        }
        Ok(())
    }

    /// For a poll of an operation that has not ended: takes a turn, and sees to the next one (rule 3). At its first poll an operation whose
    /// pieces wait for others asks for one more poll, if that mostly pays.
    pub fn advance(self: &Arc<Self>, context: &mut Context<'_>, is_first: bool) {
        if block_on::is_driven_here() {
            return;
        }
        if is_first && self.is_unsent() && self.alone.load(Ordering::Relaxed) % TRY_EVERY == 0 {
            return context.waker().wake_by_ref();
        }
        let left = self.turn();
        if left.has_more {
            context.waker().wake_by_ref();
        }
        self.watch(left);
    }

    /// Sends what is unsent, unless another thread is in the context, which does so too.
    pub fn send(&self) {
        if self.is_unsent() {
            self.try_turn();
        }
    }

    /// Sees to the next turn if something is left.
    pub fn watch(self: &Arc<Self>, left: Left) {
        let Some(reaper) = self.common.reaper.get() else { return };
        if left.blocked > 0 {
            reaper.take(self);
        } else if !self.is_idle() {
            reaper.arm(self);
        }
    }

    /// Has the reaper listen.
    fn arm(self: &Arc<Self>) {
        if let Some(reaper) = self.common.reaper.get() {
            reaper.arm(self);
        }
    }
}

impl Exec {
    /// Whether operations that no call waits for run in shared contexts.
    pub fn shares_contexts(&self) -> bool {
        self.may_share && !self.shared.is_refused.load(Ordering::Relaxed)
    }

    /// The calling thread's cell. `None` if shared contexts cannot be made: then the drive threads do the work.
    pub fn own_cell(&self) -> Option<Arc<SharedCell>> {
        let drives = self.services.count();
        let found = CELLS.try_with(|cells| {
            let mut cells = cells.borrow_mut();
            let place = cells.iter().position(|(instance, _)| *instance == self.instance);
            if let Some(place) = place {
                let OwnCell(cell) = &cells[place].1;
                if cell.drives >= drives {
                    return Some(Arc::clone(cell));
                }
                // Drives have come. What is in the old cell goes on there.
                cells.swap_remove(place);
            }
            cells.retain(|(_, OwnCell(cell))| lock(&cell.common.free).is_some());
            let cell = self.free_cell(drives).or_else(|| self.new_shared_cell())?;
            cells.push((self.instance, OwnCell(Arc::clone(&cell))));
            Some(cell)
        });
        // A thread that is ending has no table any more.
        found.unwrap_or(None)
    }

    /// A cell that no thread has.
    fn free_cell(&self, drives: usize) -> Option<Arc<SharedCell>> {
        let mut free = lock(&self.shared.common.free);
        let free = free.as_mut()?;
        let place = free.iter().position(|cell| cell.drives >= drives)?;
        Some(free.swap_remove(place))
    }

    fn new_shared_cell(&self) -> Option<Arc<SharedCell>> {
        let services: Vec<Service> = self.services.iter().cloned().collect();
        if services.iter().any(|service| service.poll || !service.kind.is_shareable()) {
            // The options or the drives say so, so it is no news.
            self.shared.is_refused.store(true, Ordering::Relaxed);
            return None;
        }
        match self.try_shared_cell(&services) {
            Ok(cell) => {
                write(&self.shared.all).push(Arc::clone(&cell));
                Some(cell)
            }
            Err(error) => {
                if !self.shared.is_refused.swap(true, Ordering::Relaxed) {
                    self.notice(format!("futures use the drive threads: {error}"));
                }
                None
            }
        }
    }

    fn try_shared_cell(&self, services: &[Service]) -> std::io::Result<Arc<SharedCell>> {
        let context = SharedContext::new(&*self.platform, services, &self.locks, &self.hold)?;
        if self.has_threads() && !context.tells_ends() {
            return Err(std::io::Error::other("no descriptor of an engine tells of ends"));
        }
        let cell = Arc::new(SharedCell {
            home: self.home,
            regions: Arc::clone(&self.regions),
            descriptors: context.descriptors(),
            drives: context.drives(),
            context: Mutex::new(Some(context)),
            unfinished: AtomicU32::new(0),
            unsent: AtomicU32::new(0),
            alone: AtomicU32::new(0),
            armed: AtomicBool::new(false),
            forget: ToForget::default(),
            place: AtomicU64::new(0),
            common: Arc::clone(&self.shared.common),
        });
        if self.has_threads() {
            // What waits for a page goes on there.
            self.resumes.get_ready().map_err(std::io::Error::from)?;
            let reaper = self.shared.reaper.start()?;
            reaper.add(&cell)?;
            let _there_already = self.shared.common.reaper.set(reaper);
        }
        Ok(cell)
    }
}

/// The cells of the calling thread that have something unfinished.
pub fn own_unfinished() -> Vec<Arc<SharedCell>> {
    let unfinished = |cells: &RefCell<Vec<(u64, OwnCell)>>| {
        let cells = cells.borrow();
        cells.iter().filter(|(_, OwnCell(cell))| !cell.is_idle()).map(|(_, OwnCell(cell))| Arc::clone(cell)).collect()
    };
    CELLS.try_with(unfinished).unwrap_or_default()
}

/// Sees to the next turns of the calling thread's cells: for operations that no poll brings on. No call of `block_on` may do it: its future may
/// compute for long.
pub fn watch_own() {
    own_unfinished().iter().for_each(|cell| cell.watch(cell.turn()));
}

/// Has the reaper listen to the calling thread's cells with something unfinished, unless `block_on` takes their turns next.
pub fn arm_own() {
    if !block_on::is_driven_here() {
        own_unfinished().iter().for_each(SharedCell::arm);
    }
}
