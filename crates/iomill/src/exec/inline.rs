//! Inline I/O: blocking calls on the calling thread's own engines, which are made at its first call. Non-goals: where
//! they are kept (`contexts`).

use std::sync::Arc;

use super::Exec;
use super::contexts::{self, ContextCell};
use super::refusal::engine_failed;
use crate::drive::Done;
use crate::drive::inline::{InlineContext, Source};
use crate::drive::service::{Service, with_rings_or_without};
use crate::error::Result;
use crate::sys::sync::lock;

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
        let mut context = cell.lock();
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
        let mut context = cell.lock();
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
        contexts::own(self.instance, || self.new_cell())
    }

    /// A new cell, which the array can reach.
    pub fn new_cell(&self) -> Arc<ContextCell> {
        let cell = Arc::new(ContextCell::new(self.home));
        let mut contexts = lock(&self.contexts);
        contexts.retain(|cell| cell.strong_count() > 0);
        contexts.push(Arc::downgrade(&cell));
        cell
    }
}
