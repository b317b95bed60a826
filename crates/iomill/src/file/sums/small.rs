//! [`SmallSums`]: the sums of a small file, which its record has. Non-goals: when the record is written.
//!
//! 1. A place that no record names yet (`Fresh`) needs no mark: after a crash the file does not have it. The record
//!    that names it has its sums.
//! 2. A record with sums is right as long as nothing is written. Before the next write a record says durably that they
//!    are unknown.
//! 3. A record and the state change under one lock, so the record that comes later is the one that was meant to.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::page::NONE;
use crate::catalog::{Catalog, Draft, SUMS_HERE, SUMS_IN_PARTS, SUMS_UNKNOWN};
use crate::error::{Error, Result};
use crate::sys::sync::{Mutex, MutexGuard, Ordering, lock};

/// Most pages of a small file.
const PAGES: usize = 16;

/// What its record says of the sums in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    /// Nothing (1).
    Fresh,
    /// These sums, or a record under way does.
    Known,
    /// That they are unknown.
    Unknown,
}

#[derive(Debug)]
struct State {
    recorded: Recorded,
    /// Writes that have not ended.
    busy: u32,
    /// The epoch in which a write last began or ended.
    last: u64,
}

/// See the module.
#[derive(Debug)]
pub struct SmallSums {
    catalog: Arc<Catalog>,
    draft: Option<Arc<Draft>>,
    number: u64,
    sums: [AtomicU32; PAGES],
    state: Mutex<State>,
}

impl SmallSums {
    /// The sums that a record's field has. `has_pages` says that it names pages.
    pub fn new(
        catalog: &Arc<Catalog>,
        draft: Option<&Arc<Draft>>,
        number: u64,
        field: &[u8],
        has_pages: bool,
    ) -> SmallSums {
        let sums = [const { AtomicU32::new(NONE) }; PAGES];
        let recorded = match field {
            [SUMS_HERE, known @ ..] => {
                for (sum, bytes) in sums.iter().zip(known.as_chunks::<4>().0) {
                    sum.store(u32::from_le_bytes(*bytes), Ordering::Relaxed);
                }
                Recorded::Known
            }
            _ if has_pages => Recorded::Unknown,
            _ => Recorded::Fresh,
        };
        let state = Mutex::new(State { recorded, busy: 0, last: 0 });
        SmallSums { catalog: Arc::clone(catalog), draft: draft.cloned(), number, sums, state }
    }

    pub fn sum(&self, page: u64) -> u32 {
        // Acquire: pairs with the Release in `set`.
        self.sums.get(page as usize).map_or(NONE, |sum| sum.load(Ordering::Acquire))
    }

    pub fn set(&self, page: u64, sum: u32) {
        self.sums.iter().skip(page as usize).take(1).for_each(|own| own.store(sum, Ordering::Release));
    }

    /// Whether no record has them: after an opening they must be made anew from the pages.
    pub fn is_unknown(&self) -> bool {
        lock(&self.state).recorded == Recorded::Unknown
    }

    /// A write begins (2).
    pub fn begin(&self, epoch: impl Fn() -> u64) -> Result<()> {
        let mut state = lock(&self.state);
        if state.recorded == Recorded::Known {
            if !self.draft.as_ref().is_some_and(|draft| draft.note_no_sums()) {
                self.catalog.forget_sums(self.number)?;
            }
            state.recorded = Recorded::Unknown;
        }
        (state.busy, state.last) = (state.busy + 1, epoch());
        Ok(())
    }

    /// The end of a write.
    pub fn end(&self, epoch: impl Fn() -> u64) {
        let mut state = lock(&self.state);
        (state.busy, state.last) = (state.busy.saturating_sub(1), epoch());
    }

    /// Before a sync that names a place takes the marks of parts: what is written from now on finds that a record has
    /// the sums.
    pub fn begin_record(&self) {
        let mut state = lock(&self.state);
        if state.recorded == Recorded::Fresh {
            state.recorded = if state.busy == 0 { Recorded::Known } else { Recorded::Unknown };
        }
    }

    /// Calls `record` with the field for a record of a file with `pages` pages (3).
    pub fn record<R>(&self, pages: u64, record: impl FnOnce(&[u8]) -> R) -> R {
        let state = lock(&self.state);
        record(&self.field(&state, pages))
    }

    /// The same where nothing is in flight and the pages are new: the record names them for the first time.
    pub fn record_moved<R>(&self, pages: u64, record: impl FnOnce(&[u8]) -> R) -> R {
        self.begin_record();
        self.record(pages, record)
    }

    /// Calls `record` with the sums, if the record does not have them, and no write has begun since the epoch. What was
    /// written before is durable.
    pub fn settle<R>(&self, before: u64, pages: u64, record: impl FnOnce(&[u8]) -> Result<R>) -> Result<()> {
        let mut state = lock(&self.state);
        let is_ready = state.recorded == Recorded::Unknown && state.busy == 0 && state.last < before;
        if !is_ready {
            return Ok(());
        }
        state.recorded = Recorded::Known;
        let field = self.field(&state, pages);
        let failed = |error: &Error| {
            // If the outcome is unknown, the record may have them.
            if !matches!(error, Error::OutcomeUnknown { .. }) {
                state.recorded = Recorded::Unknown;
            }
        };
        record(&field).inspect_err(failed).map(drop)
    }

    fn field(&self, state: &MutexGuard<'_, State>, pages: u64) -> Vec<u8> {
        match state.recorded {
            Recorded::Fresh => vec![SUMS_IN_PARTS],
            Recorded::Unknown => vec![SUMS_UNKNOWN],
            Recorded::Known => {
                let sums = (0..pages.min(PAGES as u64)).flat_map(|page| self.sum(page).to_le_bytes());
                std::iter::once(SUMS_HERE).chain(sums).collect()
            }
        }
    }
}
