//! Bringing pages in for those who use them where they are.

use std::ops::Range;
use std::sync::Arc;

use super::{Paged, Span, Want, Work};
use crate::api::file::Inside;
use crate::api::operation::Operation;
use crate::api::state::FileState;
use crate::drive::Class;
use crate::error::Result;

impl FileState {
    /// Brings pages in, all that are missing in one batch, and waits for them; those beyond the file's end are left out. How many found
    /// their set full. A page may be gone again when this returns.
    pub fn touch(&self, paged: &Paged, pages: impl Iterator<Item = u64>, class: Class) -> Result<usize> {
        let _inside = Inside::enter(self)?;
        let end = self.end_page();
        let spans = pages.filter(|&page| page < end).map(Span::of_page).collect();
        // SAFETY: there is no memory.
        unsafe { self.complete(paged, Want::Touch, spans, class) }
    }

    /// Makes what `start_touch` needs.
    pub fn get_ready_to_touch(&self) -> Result<()> {
        self.array().get_ready()?;
        self.array().callbacks.get_ready()
    }

    /// Brings pages in without waiting: `then` is called when it has ended, on a callback thread.
    pub fn start_touch(
        self: &Arc<Self>,
        inside: Inside<'_>,
        paged: &Arc<Paged>,
        pages: Range<u64>,
        class: Class,
        then: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let pages = pages.start..pages.end.min(self.end_page());
        let operation = Operation::new(Arc::clone(self), Vec::new(), None, Work::touch(self, paged, pages, class));
        let callbacks = Arc::clone(&self.array().callbacks);
        operation.on_end(Box::new(move |operation| {
            callbacks.run(Box::new(move || then(operation.take().map(drop))));
        }));
        inside.stay();
        // SAFETY: the work has no memory but frames, which are its fills' until it has ended.
        unsafe { operation.start_work(self.array(), self) };
    }

    /// The number of pages, the last of which may be short.
    pub(super) fn end_page(&self) -> u64 {
        self.len().div_ceil(crate::drive::PAGE_BYTES as u64)
    }
}
