//! Writing into the cache.

use super::{Paged, Span, Want};
use crate::api::split::Extent;
use crate::api::state::FileState;
use crate::counters::Id;
use crate::drive::Class;
use crate::error::Result;

impl FileState {
    /// Writes extents. The caller is inside the gate, and has made room for them.
    ///
    /// # Safety
    /// The extents' memory is readable until this returns.
    pub unsafe fn write_paged(&self, paged: &Paged, extents: impl Iterator<Item = Extent>, class: Class) -> Result<()> {
        let spans: Vec<Span> = extents.flat_map(super::spans).collect();
        let bytes = spans.iter().map(|span| u64::from(span.len)).sum();
        paged.cached.with_seat(|seat| seat.tally.add(Id::BytesWritten, bytes));
        // SAFETY: the caller's promise.
        unsafe { self.complete(paged, Want::Write, spans, class) }.map(drop)
    }
}
