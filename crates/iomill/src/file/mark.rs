//! The [`Mark`] of a part that holds bytes that no fdatasync has covered. Non-goals: the syncs that take it (`durable`).

use crate::sys::flushes::Flushes;
use crate::sys::sync::{AtomicU8, AtomicU64, Ordering};

/// Which bytes a part holds that no fdatasync has covered (rule 1 of `durable`).
#[derive(Debug)]
pub struct Mark {
    state: AtomicU8,
    /// What else the mark of pages in a shared part says.
    shared: Option<SharedMark>,
}

/// The flushes of a shared part, and the stamp of the last write to the pages of one file.
#[derive(Debug)]
struct SharedMark {
    flushes: std::sync::Arc<Flushes>,
    /// Set before the state. So the sync that takes the mark finds it.
    stamp: AtomicU64,
}

/// Nothing.
const NOTHING: u8 = 0;
/// Bytes that an earlier writer may have left: it was killed, or let go of the file without a sync. They can be read, so a sync covers
/// them. They were never acknowledged, so only an explicit sync pays for them.
const FOUND: u8 = 1;
/// Bytes that were written since the file was opened.
const WRITTEN: u8 = 2;

impl Mark {
    /// The mark of a part that is being opened.
    pub fn new(holds_bytes: bool) -> Mark {
        Mark { state: AtomicU8::new(if holds_bytes { FOUND } else { NOTHING }), shared: None }
    }

    /// The mark of pages in a shared part, which has these flushes.
    pub fn in_shared(holds_bytes: bool, flushes: std::sync::Arc<Flushes>) -> Mark {
        let stamp = AtomicU64::new(flushes.stamp());
        Mark { shared: Some(SharedMark { flushes, stamp }), ..Mark::new(holds_bytes) }
    }

    /// The part was written to.
    #[inline]
    pub fn set(&self) {
        if let Some(shared) = &self.shared {
            shared.stamp.fetch_max(shared.flushes.stamp(), Ordering::AcqRel);
            // Always a swap: the sync that takes this mark sees the stamp.
            self.state.swap(WRITTEN, Ordering::AcqRel);
            return;
        }
        if self.state.load(Ordering::Relaxed) != WRITTEN {
            // AcqRel: pairs with `take`, so that the sync that takes the mark comes after the write.
            self.state.swap(WRITTEN, Ordering::AcqRel);
        }
    }

    /// Takes the mark away. Returns it if the part needs an fdatasync. The end of a file leaves `FOUND` as it is.
    pub(super) fn take(&self, is_end: bool) -> Option<u8> {
        // Acquire, and AcqRel below: pair with the AcqRel in `set` and `put_back`.
        if is_end && self.state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        Some(self.state.swap(NOTHING, Ordering::AcqRel)).filter(|&mark| mark != NOTHING)
    }

    /// The stamp of the last write that a taken mark was about (`sys::flushes`).
    pub(super) fn stamp(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.stamp.load(Ordering::Acquire))
    }

    /// Sets a mark again that was taken (rule 4 of `durable`).
    pub(super) fn put_back(&self, mark: u8) {
        // AcqRel: pairs with `take`.
        self.state.fetch_max(mark, Ordering::AcqRel);
    }
}
