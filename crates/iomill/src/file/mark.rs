//! The [`Mark`] of a part that holds bytes that no fdatasync has covered. Non-goals: the syncs that take it (`durable`).

use std::sync::Arc;

use crate::sys::flushes::{FlushFailures, Flushes};
use crate::sys::sync::{AtomicU8, AtomicU64, Ordering};

/// Which bytes a part holds that no fdatasync has covered (rule 1 of `durable`).
#[derive(Debug)]
pub struct Mark {
    state: AtomicU8,
    /// Flushes of the drive that failed (rule 5 of `durable`).
    failures: Arc<FlushFailures>,
    /// How many of them there were at the first write that no fdatasync has covered. [`NO_WRITE`] if there is none.
    since: AtomicU64,
    /// What else the mark of pages in a shared part says.
    shared: Option<SharedMark>,
}

/// The flushes of a shared part, and the stamp of the last write to the pages of one file.
#[derive(Debug)]
struct SharedMark {
    flushes: Arc<Flushes>,
    /// Set before the state. So the sync that takes the mark finds it.
    stamp: AtomicU64,
}

/// No write is to be covered.
const NO_WRITE: u64 = u64::MAX;
/// Nothing.
const NOTHING: u8 = 0;
/// Bytes that an earlier writer may have left: it was killed, or let go of the file without a sync. They can be read, so a sync covers
/// them. They were never acknowledged, so only an explicit sync pays for them.
const FOUND: u8 = 1;
/// Bytes that were written since the file was opened.
const WRITTEN: u8 = 2;

/// A mark that a sync has taken.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    state: u8,
    since: u64,
}

impl Taken {
    /// Whether this process wrote since the last sync.
    pub(super) fn is_written(&self) -> bool {
        self.state == WRITTEN
    }
}

impl Mark {
    /// The mark of a part that is being opened, on a drive with such flushes.
    pub fn new(holds_bytes: bool, failures: &Arc<FlushFailures>) -> Mark {
        let (state, since) = if holds_bytes { (FOUND, failures.count()) } else { (NOTHING, NO_WRITE) };
        let (state, since) = (AtomicU8::new(state), AtomicU64::new(since));
        Mark { state, failures: Arc::clone(failures), since, shared: None }
    }

    /// The mark of pages in a shared part, which has these flushes.
    pub fn in_shared(holds_bytes: bool, failures: &Arc<FlushFailures>, flushes: Arc<Flushes>) -> Mark {
        let stamp = AtomicU64::new(flushes.stamp());
        Mark { shared: Some(SharedMark { flushes, stamp }), ..Mark::new(holds_bytes, failures) }
    }

    /// The part was written to.
    #[inline]
    pub fn set(&self) {
        let is_first = self.state.load(Ordering::Relaxed) != WRITTEN;
        if is_first {
            // Before the state: a sync that finds the state finds this.
            self.since.fetch_min(self.failures.count(), Ordering::AcqRel);
        }
        if let Some(shared) = &self.shared {
            shared.stamp.fetch_max(shared.flushes.stamp(), Ordering::AcqRel);
            // Always a swap: the sync that takes this mark sees the stamp.
            self.state.swap(WRITTEN, Ordering::AcqRel);
            return;
        }
        if is_first {
            // AcqRel: pairs with `take`, so that the sync that takes the mark comes after the write.
            self.state.swap(WRITTEN, Ordering::AcqRel);
        }
    }

    /// Takes the mark away. Returns it if the part needs an fdatasync. `leaves_found` leaves `FOUND` as it is, as the end of a file does.
    /// Only one thread at a time takes marks.
    pub(super) fn take(&self, leaves_found: bool) -> Option<Taken> {
        // Acquire, and AcqRel below: pair with the AcqRel in `set` and `put_back`.
        if leaves_found && self.state.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        // Before the state: a write that still finds the old state is covered by the caller's fdatasync, so it needs no count of its own.
        let since = self.since.swap(NO_WRITE, Ordering::AcqRel);
        let taken = Taken { state: self.state.swap(NOTHING, Ordering::AcqRel), since };
        if taken.state == NOTHING {
            // It belongs to a write that has not set the state yet.
            self.since.fetch_min(since, Ordering::AcqRel);
            return None;
        }
        Some(taken)
    }

    /// Whether a flush of the drive has failed since the first write that a taken mark was about. The fdatasync that the mark asked for
    /// has ended.
    pub(super) fn may_be_lost(&self, taken: Taken) -> bool {
        taken.since < self.failures.count()
    }

    /// The stamp of the last write that a taken mark was about (`sys::flushes`).
    pub(super) fn stamp(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.stamp.load(Ordering::Acquire))
    }

    /// Sets a mark again that was taken (rule 4 of `durable`).
    pub(super) fn put_back(&self, mark: Taken) {
        // AcqRel: pairs with `take`.
        self.since.fetch_min(mark.since, Ordering::AcqRel);
        self.state.fetch_max(mark.state, Ordering::AcqRel);
    }
}
