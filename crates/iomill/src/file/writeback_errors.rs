//! Errors that come after the call that caused them: a page was written to and the call ended well, and then the page could not be
//! written back. Each handle that was open is told of it once, by its next sync. Linux keeps such errors alike (`errseq_t`).
//!
//! Rules:
//! 1. Every flush that was begun and fails counts up and leaves its failure, whatever caused the flush. What it could not write stays dirty.
//! 2. A handle has the count that it was told of. A new one begins with the count of that moment, a clone with that of the handle it
//!    was made from.
//! 3. A sync does all its work, then looks. It tells of its own failure first, and of any other if there was none; the handle has been told
//!    of both then.
//! 4. What no handle was told of before the last one went is told when the file is closed.

use std::sync::Arc;

use crate::drive::Failure;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};

/// The failures of write-back of a file.
#[derive(Debug, Default)]
pub struct WritebackErrors {
    /// Written to with `last` locked only.
    count: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<Failure>,
    /// A handle was told of it.
    is_told: bool,
}

/// Which failures a handle was told of.
#[derive(Debug)]
pub struct Reported(Arc<AtomicU64>);

impl Clone for Reported {
    fn clone(&self) -> Reported {
        Reported(Arc::new(AtomicU64::new(self.0.load(Ordering::Relaxed))))
    }
}

impl Reported {
    /// The same handle's, for a call of its that goes on elsewhere.
    pub fn share(&self) -> Reported {
        Reported(Arc::clone(&self.0))
    }
}

impl WritebackErrors {
    /// Takes note of a flush that failed (rule 1).
    pub fn failed(&self, failure: Failure) {
        let mut last = lock(&self.last);
        *last = Last { failure: Some(failure), is_told: false };
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// For a new handle (rule 2).
    pub fn begin(&self) -> Reported {
        Reported(Arc::new(AtomicU64::new(self.count.load(Ordering::Relaxed))))
    }

    /// Tells a handle of the last failure that it was not told of (rule 3).
    pub fn tell(&self, told: &Reported) -> Option<Failure> {
        let mut last = lock(&self.last);
        let count = self.count.load(Ordering::Relaxed);
        if told.0.swap(count, Ordering::Relaxed) == count {
            return None;
        }
        last.is_told = true;
        last.failure
    }

    /// The failure that no handle was told of, at the file's end (rule 4).
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
        let errors = WritebackErrors::default();
        let first = errors.begin();
        assert!(errors.tell(&first).is_none() && errors.untold().is_none());
        errors.failed(failure(1));
        errors.failed(failure(2));
        let (clone, shared, new) = (first.clone(), first.share(), errors.begin());
        assert_eq!(errors.tell(&shared).map(|failure| failure.offset), Some(2));
        assert!(errors.tell(&first).is_none(), "it is the same handle");
        assert!(errors.tell(&new).is_none(), "it was not open");
        assert!(errors.tell(&clone).is_some());
        assert!(errors.tell(&clone).is_none());
        assert!(errors.untold().is_none());
        errors.failed(failure(3));
        assert_eq!(errors.untold().map(|failure| failure.offset), Some(3));
        assert!(errors.untold().is_none());
    }
}
