//! The [`Mark`] of a part that holds bytes that no fdatasync has covered. Non-goals: the syncs that take it (`durable`).

use crate::sys::sync::{AtomicU8, Ordering};

/// Which bytes a part holds that no fdatasync has covered (rule 1 of `durable`).
#[derive(Debug)]
pub struct Mark(AtomicU8);

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
        Mark(AtomicU8::new(if holds_bytes { FOUND } else { NOTHING }))
    }

    /// The part was written to.
    #[inline]
    pub fn set(&self) {
        if self.0.load(Ordering::Relaxed) != WRITTEN {
            // AcqRel: pairs with `take`, so that the sync that takes the mark comes after the write.
            self.0.swap(WRITTEN, Ordering::AcqRel);
        }
    }

    /// Takes the mark away. Returns it if the part needs an fdatasync. The end of a file leaves `FOUND` as it is.
    pub(super) fn take(&self, is_end: bool) -> Option<u8> {
        // Acquire, and AcqRel below: pair with the AcqRel in `set` and `put_back`.
        if is_end && self.0.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        Some(self.0.swap(NOTHING, Ordering::AcqRel)).filter(|&mark| mark != NOTHING)
    }

    /// Sets a mark again that was taken (rule 4 of `durable`).
    pub(super) fn put_back(&self, mark: u8) {
        // AcqRel: pairs with `take`.
        self.0.fetch_max(mark, Ordering::AcqRel);
    }
}
