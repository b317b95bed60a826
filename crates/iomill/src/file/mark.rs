//! The [`Mark`] of a part: it has bytes that no fdatasync has covered. Non-goals: the syncs that take it (`durable`).

use std::sync::Arc;

use crate::sys::fsyncs::{FsyncFailures, Fsyncs, Since};
use crate::sys::sync::{AtomicU64, Ordering};

/// The bytes of a part that no fdatasync has covered (rule 1 of `durable`).
#[derive(Debug)]
pub struct Mark {
    /// A [`Taken`], or [`NOTHING`]. One word, so that a sync takes a write's moment with its mark, or neither.
    word: AtomicU64,
    /// The failed fsyncs of the drive (rule 5 of `durable`).
    failures: Arc<FsyncFailures>,
    /// The additional state of a mark of pages in a shared part.
    shared: Option<SharedMark>,
}

/// The fsyncs of a shared part, and the stamp of the last write to the pages of one file.
#[derive(Debug)]
struct SharedMark {
    fsyncs: Arc<Fsyncs>,
    /// Set before the word, so that the sync that takes the mark sees it.
    stamp: AtomicU64,
}

/// All bytes are covered.
const NOTHING: u64 = u64::MAX;
/// All bytes of the mark were found at the opening: an earlier writer may have left them unsynced, because it was
/// killed, or closed the file without a sync. They can be read, so a sync covers them. They were never acknowledged, so
/// only an explicit sync pays for them. Without this bit, some bytes were written since the opening.
const FOUND: u64 = 1;

/// A mark that a sync has taken: the moment before the first write (rule 4 of `fsyncs`), times two, and perhaps
/// [`FOUND`].
#[derive(Clone, Copy, Debug)]
pub struct Taken(u64);

impl Taken {
    /// Whether this process wrote since the last sync.
    pub(super) fn is_written(&self) -> bool {
        self.0 & FOUND == 0
    }

    fn since(&self) -> Since {
        Since(self.0 >> 1)
    }

    /// The mark of the bytes of both words.
    fn merge(a: u64, b: u64) -> u64 {
        match (a, b) {
            (NOTHING, other) | (other, NOTHING) => other,
            _ => (a >> 1).min(b >> 1) << 1 | (a & b & FOUND),
        }
    }
}

impl Mark {
    /// The mark of a part that is being opened, on a drive with such fsyncs.
    pub fn new(holds_bytes: bool, failures: &Arc<FsyncFailures>) -> Mark {
        let word = if holds_bytes { Since::now().0 << 1 | FOUND } else { NOTHING };
        Mark { word: AtomicU64::new(word), failures: Arc::clone(failures), shared: None }
    }

    /// The mark of pages in a shared part, which has these fsyncs.
    pub fn in_shared(holds_bytes: bool, failures: &Arc<FsyncFailures>, fsyncs: Arc<Fsyncs>) -> Mark {
        let stamp = AtomicU64::new(fsyncs.stamp());
        Mark { shared: Some(SharedMark { fsyncs, stamp }), ..Mark::new(holds_bytes, failures) }
    }

    /// The part was written to, and `since` is the moment before the write began.
    #[inline]
    pub fn set(&self, since: Since) {
        let word = since.0 << 1;
        if let Some(shared) = &self.shared {
            shared.stamp.fetch_max(shared.fsyncs.stamp(), Ordering::AcqRel);
            // Always changes the word, so that the sync that takes this mark sees the stamp.
            return self.add(word);
        }
        // Relaxed: the word has this write's mark, and the sync that takes it comes after the write. The most frequent
        // case.
        let has = self.word.load(Ordering::Relaxed);
        if has & FOUND != 0 || has > word {
            self.add(word);
        }
    }

    fn add(&self, word: u64) {
        // AcqRel: pairs with `take`, so that the sync that takes the mark comes after the write.
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.word.fetch_update(set, fetch, |has| Some(Taken::merge(has, word)));
    }

    /// Takes the mark. Returns it if the part needs an fdatasync. `leaves_found` leaves the mark if all bytes were
    /// found, for the end of a file. Only one thread at a time takes marks.
    pub(super) fn take(&self, leaves_found: bool) -> Option<Taken> {
        // Acquire, and AcqRel below: pair with the AcqRel in `add`.
        if leaves_found && self.word.load(Ordering::Acquire) & FOUND != 0 {
            return None;
        }
        let taken = self.word.swap(NOTHING, Ordering::AcqRel);
        (taken != NOTHING).then_some(Taken(taken))
    }

    /// Whether an fsync of the drive has failed since the first write of a taken mark began. The fdatasync for the mark
    /// has ended.
    pub(super) fn may_be_lost(&self, taken: Taken) -> bool {
        self.failures.any_since(taken.since())
    }

    /// The stamp of the last write of a taken mark (`sys::fsyncs`).
    pub(super) fn stamp(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.stamp.load(Ordering::Acquire))
    }

    /// Sets a mark again that was taken (rule 4 of `durable`).
    pub(super) fn put_back(&self, mark: Taken) {
        self.add(mark.0);
    }
}
