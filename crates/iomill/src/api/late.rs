//! Errors that came too late for the call that caused them: a page was written to and the call ended well, and then the page could
//! not be written back. Each handle that was open is told of it once, by its next sync.
//!
//! Rules:
//! 1. Every flush that was begun and fails counts up and leaves its failure, whoever caused the flush. What it could not write stays dirty.
//! 2. A handle has the count that it was told of. A new one begins with the count of that moment, a clone with that of the handle it
//!    was made from.
//! 3. A sync does all its work, then looks. It tells of its own failure first, and of any other if there was none; the handle has been told
//!    of both then.
//! 4. What no handle was told of before the last one went is told by whoever ends the file.

use std::sync::Arc;

use crate::drive::Failure;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};

/// The late failures of a file.
#[derive(Debug, Default)]
pub struct Late {
    /// Written to with `last` locked only.
    count: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<Failure>,
    /// Somebody was told of it.
    is_told: bool,
}

/// What a handle was told of.
#[derive(Debug)]
pub struct Told(Arc<AtomicU64>);

impl Clone for Told {
    fn clone(&self) -> Told {
        Told(Arc::new(AtomicU64::new(self.0.load(Ordering::Relaxed))))
    }
}

impl Told {
    /// The same handle's, for a call of its that goes on elsewhere.
    pub fn share(&self) -> Told {
        Told(Arc::clone(&self.0))
    }
}

impl Late {
    /// Takes note of a flush that failed (rule 1).
    pub fn failed(&self, failure: Failure) {
        let mut last = lock(&self.last);
        *last = Last { failure: Some(failure), is_told: false };
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// For a new handle (rule 2).
    pub fn begin(&self) -> Told {
        Told(Arc::new(AtomicU64::new(self.count.load(Ordering::Relaxed))))
    }

    /// Tells a handle of the last failure that it was not told of (rule 3).
    pub fn tell(&self, told: &Told) -> Option<Failure> {
        let mut last = lock(&self.last);
        let count = self.count.load(Ordering::Relaxed);
        if told.0.swap(count, Ordering::Relaxed) == count {
            return None;
        }
        last.is_told = true;
        last.failure
    }

    /// The failure that nobody was told of, at the file's end (rule 4).
    pub fn untold(&self) -> Option<Failure> {
        let mut last = lock(&self.last);
        let untold = if last.is_told { None } else { last.failure };
        last.is_told = true;
        untold
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::drive::Fault;
    use crate::engine::Op;

    fn failure(offset: u64) -> Failure {
        Failure { op: Op::Write, key: 0, offset, fault: Fault::Errno(5) }
    }

    #[test]
    fn each_handle_is_told_once() {
        let late = Late::default();
        let first = late.begin();
        assert!(late.tell(&first).is_none() && late.untold().is_none());
        late.failed(failure(1));
        late.failed(failure(2));
        let (clone, shared, new) = (first.clone(), first.share(), late.begin());
        assert_eq!(late.tell(&shared).map(|failure| failure.offset), Some(2));
        assert!(late.tell(&first).is_none(), "it is the same handle");
        assert!(late.tell(&new).is_none(), "it was not open");
        assert!(late.tell(&clone).is_some());
        assert!(late.tell(&clone).is_none());
        assert!(late.untold().is_none());
        late.failed(failure(3));
        assert_eq!(late.untold().map(|failure| failure.offset), Some(3));
        assert!(late.untold().is_none());
    }
}
