//! The shared cells that the calling thread owns: one for each array where it begins operations. Non-goals: their
//! contents (`cell`).

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::{Common, SharedCell};
use crate::error::{Error, Result};
use crate::exec::pause::PAUSE;
use crate::exec::refusal::engine_failed;
use crate::sys::parker::Parked;
use crate::sys::retry::Retry;
use crate::sys::thread::Raised;

thread_local! {
    /// This thread's entries, one for each array.
    static CELLS: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
    /// Whether the thread takes the turns of its cells before it sleeps: in `block_on`, or as a thread of callbacks.
    static DRIVEN: Cell<bool> = const { Cell::new(false) };
}

/// A thread's ownership of a cell. Its drop, also at the end of the thread, lets another thread have the cell.
struct OwnCell(Arc<SharedCell>);

impl Drop for OwnCell {
    fn drop(&mut self) {
        if self.0.is_here() {
            self.0.give_back();
        }
    }
}

/// A thread's entry for an array.
struct Own {
    instance: u64,
    /// `None` while no cell could be made.
    cell: Option<OwnCell>,
    /// When to try again to make one.
    retry: Retry,
}

impl Own {
    /// The cell, if there is one.
    fn cell(&self) -> Option<&Arc<SharedCell>> {
        self.cell.as_ref().map(|OwnCell(cell)| cell)
    }

    /// Whether there is a cell of an array that is open, as far as this process knows.
    fn is_open(&self) -> bool {
        // A forked child takes no lock of its parent (rule 2 of the fork).
        self.cell().is_some_and(|cell| !cell.is_here() || cell.is_open())
    }
}

/// The calling thread's cell of an array, if it owns one. It serves the drives that the array had when it was made.
pub fn made(instance: u64) -> Option<Arc<SharedCell>> {
    let made = |cells: &RefCell<Vec<Own>>| {
        let cells = cells.borrow();
        cells.iter().find(|own| own.instance == instance).and_then(|own| own.cell().cloned())
    };
    CELLS.try_with(made).unwrap_or_default()
}

/// The calling thread's cell of an array, which serves at least `drives` drives. If there is none, the thread gets one
/// that is free, or that `make` makes.
pub fn get(
    instance: u64,
    drives: usize,
    common: &Common,
    make: impl FnOnce() -> Result<Arc<SharedCell>>,
) -> Result<Arc<SharedCell>> {
    let mut before = None;
    let found = CELLS.try_with(|cells| {
        let mut cells = cells.borrow_mut();
        let place = cells.iter().position(|own| own.instance == instance).unwrap_or_else(|| {
            cells.retain(Own::is_open);
            cells.push(Own { instance, cell: None, retry: Retry::default() });
            cells.len() - 1
        });
        let own = &mut cells[place];
        if let Some(cell) = own.cell()
            && cell.drives() >= drives
        {
            return Ok(Arc::clone(cell));
        }
        if !own.retry.is_due() {
            return Err(refused_before());
        }
        match common.free_cell(drives, make) {
            Ok(cell) => {
                own.retry.granted();
                before = own.cell.replace(OwnCell(Arc::clone(&cell)));
                Ok(cell)
            }
            Err(error) => {
                own.retry.refused();
                Err(error)
            }
        }
    });
    if let Some(OwnCell(cell)) = &before {
        // The old cell's operations go on there.
        cell.leave();
    }
    // A thread that is ending has no table any more.
    found.unwrap_or_else(|_| Err(refused_before()))
}

/// Makes the calling thread the owner of a cell that no thread owns.
pub fn adopt(instance: u64, cell: Arc<SharedCell>) {
    let adopted = CELLS.try_with(|cells| {
        let mut cells = cells.borrow_mut();
        cells.retain(|own| own.instance == instance || own.is_open());
        let adopted = Some(OwnCell(cell));
        match cells.iter_mut().find(|own| own.instance == instance) {
            Some(own) => std::mem::replace(&mut own.cell, adopted),
            None => {
                cells.push(Own { instance, cell: adopted, retry: Retry::default() });
                None
            }
        }
    });
    if let Ok(Some(OwnCell(before))) = &adopted {
        // Its operations go on there.
        before.leave();
    }
}

/// Whether any cell of the calling thread has pieces that no turn has seen.
fn has_unsent() -> bool {
    let is_unsent = |cell: &Arc<SharedCell>| cell.is_here() && cell.is_unsent();
    CELLS.try_with(|cells| cells.borrow().iter().filter_map(Own::cell).any(is_unsent)).unwrap_or(false)
}

/// The error of a thread that the system has refused an engine a moment ago, or that is ending.
#[cold]
fn refused_before() -> Error {
    engine_failed(std::io::Error::new(
        std::io::ErrorKind::ResourceBusy,
        "the system refused this thread an engine a moment ago; an earlier notice says why",
    ))
}

/// Whether a cell is the calling thread's.
pub fn is_own(cell: &Arc<SharedCell>) -> bool {
    let is_it = |own: &Own| own.cell().is_some_and(|its| Arc::ptr_eq(its, cell));
    CELLS.try_with(|cells| cells.borrow().iter().any(is_it)).unwrap_or(false)
}

/// The cells of the calling thread with unfinished operations.
fn unfinished() -> Vec<Arc<SharedCell>> {
    let unfinished = |cells: &RefCell<Vec<Own>>| {
        let cells = cells.borrow();
        let own = cells.iter().filter_map(Own::cell);
        own.filter(|cell| !cell.is_idle() && cell.is_here()).cloned().collect()
    };
    CELLS.try_with(unfinished).unwrap_or_default()
}

/// Whether operations have begun in the calling thread's cells since the `turned` ones took their turns: in another
/// cell, or with unsent pieces.
fn has_begun_beside(turned: &[Arc<SharedCell>]) -> bool {
    let is_beside = |cell: &Arc<SharedCell>| {
        !cell.is_idle() && cell.is_here() && (cell.is_unsent() || !turned.iter().any(|one| Arc::ptr_eq(one, cell)))
    };
    CELLS.try_with(|cells| cells.borrow().iter().filter_map(Own::cell).any(is_beside)).unwrap_or(false)
}

/// [`SharedCell::leave`] for the calling thread's cells with unfinished operations.
pub fn leave() {
    unfinished().iter().for_each(SharedCell::leave);
}

/// Takes the turns of the calling thread's cells until a wake comes, and sleeps in between.
pub fn turn_until_woken(parked: &Parked) {
    loop {
        let unfinished = unfinished();
        let mut has_more = false;
        for cell in &unfinished {
            // The future that the thread runs may have nothing to do with the cell's array.
            has_more |= cell.help().has_more;
        }
        if parked.is_woken() {
            return;
        }
        // An owner that was told in a turn may have begun operations in another context of the thread, or left pieces
        // unsent. In a nested `block_on`, the outer one cannot take these turns, because it waits for this one.
        if has_more || has_begun_beside(&unfinished) {
            continue;
        }
        let readable: Vec<BorrowedFd<'_>> = unfinished.iter().flat_map(|cell| cell.readable()).collect();
        // Another thread may post to a cell of this one (rule 4 of `sys::parker`).
        if parked.sleep_unless(&readable, has_unsent).is_err() {
            // The kernel lacks memory for the call: tried again in a moment.
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether the calling thread takes the turns of its cells before it sleeps.
pub fn is_driven_here() -> bool {
    DRIVEN.with(Cell::get)
}

/// Notes that the calling thread takes the turns of its cells before it sleeps, until the result is dropped.
pub fn begin_driven() -> Raised {
    Raised::new(&DRIVEN)
}
