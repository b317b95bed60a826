//! Contexts: each calling thread's own engines over all drives of an array, for inline I/O. A [`ContextCell`] holds
//! one.
//!
//! The thread owns its cell, so that its rings end with the thread. The array reaches the cell by a `Weak`, and drops
//! the context at its close. Non-goals: contexts that any thread may advance (`shared`).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Exec, help_and_pause};
use crate::drive::inline::{InlineContext, Source};
use crate::drive::regions::Regions;
use crate::drive::service::{Service, with_rings_or_without};
use crate::drive::{Done, Piece};
use crate::error::{Error, Result};
use crate::sys::clock::Clock;
use crate::sys::process::Home;
use crate::sys::sync::{Mutex, Ordering, lock};

thread_local! {
    /// This thread's cells, by array instance.
    static CONTEXTS: RefCell<Vec<(u64, Arc<ContextCell>)>> = const { RefCell::new(Vec::new()) };
}

/// One thread's context, where the array can reach it.
pub(crate) struct ContextCell {
    home: Home,
    /// `None` before the first use and after the array was closed.
    context: Mutex<Option<InlineContext>>,
    forget: ToForget,
}

/// Keys of closed files, which engines forget before their next use.
#[derive(Default)]
pub(super) struct ToForget {
    keys: Mutex<Vec<u64>>,
    any: AtomicBool,
}

impl ToForget {
    pub fn later(&self, key: u64) {
        lock(&self.keys).push(key);
        // Release: pairs with the Acquire in `each`.
        self.any.store(true, Ordering::Release);
    }

    /// Calls `forget` with each key, once.
    #[inline]
    pub fn each(&self, forget: impl FnMut(u64)) {
        // Acquire: pairs with the Release in `later`.
        if self.any.load(Ordering::Acquire) {
            self.each_now(forget);
        }
    }

    #[cold]
    fn each_now(&self, forget: impl FnMut(u64)) {
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.keys)).into_iter().for_each(forget);
    }
}

impl Exec {
    /// Runs pieces to their ends on the calling thread, and reports each. An error means that none was begun.
    ///
    /// # Safety
    /// The pieces' memory and files are valid until this returns. No other code touches memory that is read into.
    pub(super) unsafe fn run_inline(
        &self,
        span: (*const u8, usize),
        pieces: impl Source,
        done: impl FnMut(Done),
    ) -> Result<()> {
        let cell = self.cell();
        let mut context = lock(&cell.context);
        cell.forget_closed(&mut context);
        if self.is_behind(&context) {
            self.renew(&mut context)?;
        }
        let Some(context) = &mut *context else { unreachable!("it was made above") };
        // SAFETY: the caller's promise is the one that `run` asks for.
        let result = unsafe { context.run(&self.regions, span, pieces, || self.pause_for_drives(), done) };
        result.map_err(engine_failed)
    }

    /// Makes the context of a cell, if it has none.
    pub fn ready_context(&self, cell: &ContextCell) -> Result<()> {
        let mut context = lock(&cell.context);
        if self.is_behind(&context) {
            self.renew(&mut context)?;
        }
        Ok(())
    }

    /// Whether there is no context, or one that does not serve all drives.
    #[inline]
    fn is_behind(&self, context: &Option<InlineContext>) -> bool {
        context.as_ref().is_none_or(|context| context.drives() < self.services.count())
    }

    /// Replaces a context by one that serves all present drives. The old one has no I/O in flight.
    #[cold]
    fn renew(&self, context: &mut Option<InlineContext>) -> Result<()> {
        // The old rings are dropped before new ones are made, because locked memory may be short.
        *context = None;
        *context = Some(self.new_context()?);
        Ok(())
    }

    fn new_context(&self) -> Result<InlineContext> {
        let services: Vec<Service> = self.services.iter().cloned().collect();
        let engines = self.engines(&services)?;
        let make = |services: &[Service]| InlineContext::new(&engines, services);
        let notice = |notice| self.notice(notice);
        let context = with_rings_or_without(&services, self.may_change_engines, &notice, make);
        context.map_err(engine_failed)
    }

    /// This thread's cell.
    pub(super) fn cell(&self) -> Arc<ContextCell> {
        let found = CONTEXTS.try_with(|contexts| {
            let mut contexts = contexts.borrow_mut();
            if let Some((_, cell)) = contexts.iter().find(|(instance, _)| *instance == self.instance) {
                return Arc::clone(cell);
            }
            // The cells of closed arrays are empty, and dropped when a new one is made.
            contexts.retain(|(_, cell)| Arc::weak_count(cell) > 0);
            let cell = self.new_cell();
            contexts.push((self.instance, Arc::clone(&cell)));
            cell
        });
        // A thread that is ending has no table any more: each of its last calls gets a cell of its own.
        found.unwrap_or_else(|_| self.new_cell())
    }

    /// A new cell, which the array can reach.
    pub fn new_cell(&self) -> Arc<ContextCell> {
        let cell = Arc::new(ContextCell { home: self.home, context: Mutex::new(None), forget: ToForget::default() });
        let mut contexts = lock(&self.contexts);
        contexts.retain(|cell| cell.strong_count() > 0);
        contexts.push(Arc::downgrade(&cell));
        cell
    }
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
        let mut context = lock(&self.context);
        self.forget_closed(&mut context);
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

    /// Forgets the files that were closed since the last use.
    fn forget_closed(&self, context: &mut Option<InlineContext>) {
        self.forget.each(|key| context.iter_mut().for_each(|context| context.forget(key)));
    }
}

#[cold]
pub(super) fn engine_failed(source: std::io::Error) -> Error {
    let thread = format!("thread {:?}", std::thread::current().name().unwrap_or("unnamed"));
    Error::Engine { thread, drive: None, source }
}
