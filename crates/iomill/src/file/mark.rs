//! Marks of parts that hold what no fdatasync has covered.

use crate::sys::sync::{AtomicU8, Ordering};

/// What a part holds that no fdatasync has covered (rule 1 of `durable`).
#[derive(Debug)]
pub struct Mark(AtomicU8);

/// Nothing.
const NOTHING: u8 = 0;
/// What an earlier writer may have left: it was killed, or let go of the file without a sync. It can be read, so a sync covers it. It was
/// never acknowledged, so only a call that asks for it pays for it.
const FOUND: u8 = 1;
/// What was written since the file was opened.
const WRITTEN: u8 = 2;

impl Mark {
    /// Of a part that is being opened, by what it holds.
    pub fn new(holds_bytes: bool) -> Mark {
        Mark(AtomicU8::new(if holds_bytes { FOUND } else { NOTHING }))
    }

    /// The part was written to.
    #[inline]
    pub fn set(&self) {
        if self.0.load(Ordering::Relaxed) != WRITTEN {
            self.0.swap(WRITTEN, Ordering::AcqRel);
        }
    }

    /// Takes the mark away; what it was, if the part is to be synced. The end of a file keeps what was found as it was found.
    pub(super) fn take(&self, is_end: bool) -> Option<u8> {
        if is_end && self.0.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        Some(self.0.swap(NOTHING, Ordering::AcqRel)).filter(|&mark| mark != NOTHING)
    }

    /// Sets again what was taken (rule 4 of `durable`).
    pub(super) fn put_back(&self, mark: u8) {
        self.0.fetch_max(mark, Ordering::AcqRel);
    }
}
