//! Contexts: each calling thread's own engines over all drives of an array, for inline I/O. A [`ContextCell`] holds
//! one.
//!
//! The thread owns its cell, so that its rings end with the thread. The array reaches the cell by a `Weak`, and drops
//! the context at its close. Non-goals: how they are made (`inline`); contexts that any thread may advance (`shared`).

use std::cell::RefCell;
use std::sync::Arc;

use super::forget::ToForget;
use super::refusal::engine_failed;
use super::shared::help_and_pause;
use crate::drive::inline::InlineContext;
use crate::drive::regions::Regions;
use crate::drive::{Done, Piece};
use crate::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::process::Home;
use crate::sys::sync::{Mutex, MutexGuard, lock};

thread_local! {
    /// This thread's cells, by array instance.
    static CONTEXTS: RefCell<Vec<(u64, Arc<ContextCell>)>> = const { RefCell::new(Vec::new()) };
}

/// One thread's context, where the array can reach it.
pub struct ContextCell {
    home: Home,
    /// `None` before the first use and after the array was closed.
    context: Mutex<Option<InlineContext>>,
    forget: ToForget,
}

/// The calling thread's cell of an array. If there is none, `make` makes one.
pub fn own(instance: u64, make: impl Fn() -> Arc<ContextCell>) -> Arc<ContextCell> {
    let found = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        if let Some((_, cell)) = contexts.iter().find(|(other, _)| *other == instance) {
            return Arc::clone(cell);
        }
        // The cells of closed arrays are empty, and dropped when a new one is made.
        contexts.retain(|(_, cell)| Arc::weak_count(cell) > 0);
        let cell = make();
        contexts.push((instance, Arc::clone(&cell)));
        cell
    });
    // A thread that is ending has no table any more: each of its last calls gets a cell of its own.
    found.unwrap_or_else(|_| make())
}

impl Drop for ContextCell {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // Rule 2 of the fork: the rings are the parent's.
            std::mem::forget(std::mem::replace(&mut self.context, Mutex::new(None)));
        }
    }
}

impl ContextCell {
    /// A cell without a context.
    pub fn new(home: Home) -> ContextCell {
        ContextCell { home, context: Mutex::new(None), forget: ToForget::default() }
    }

    /// The context, which has forgotten the files that were closed.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Option<InlineContext>> {
        let mut context = lock(&self.context);
        self.forget.each(|key| context.iter_mut().for_each(|context| context.forget(key)));
        context
    }

    /// Runs pieces to their ends on the calling thread, which owns the cell, and reports each. An error means that none
    /// was begun.
    ///
    /// # Safety
    /// As for `Exec::run_inline`.
    pub unsafe fn run(
        &self,
        regions: &Regions,
        clock: &dyn Clock,
        pieces: impl Iterator<Item = (u16, Piece)>,
        done: impl FnMut(Done),
    ) -> Result<()> {
        let mut context = self.lock();
        let Some(context) = &mut *context else { return Err(Error::Closed) };
        // SAFETY: the caller's promise is the one that `run` asks for.
        let result = unsafe { context.run(regions, (std::ptr::null(), 0), pieces, || help_and_pause(clock), done) };
        result.map_err(engine_failed)
    }

    /// Has the context forget a file before its next use.
    pub(super) fn forget_later(&self, key: u64) {
        self.forget.later(key);
    }

    /// Drops the context.
    pub(super) fn clear(&self) {
        *lock(&self.context) = None;
    }
}
