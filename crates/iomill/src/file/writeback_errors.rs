//! [`WritebackErrors`]: failures of write-back. A write to a cached page succeeded, and later the page could not be
//! written back. The next sync of each handle that was open reports the failure once. Linux does the same (`errseq_t`).
//!
//! Non-goals: errors of the calls themselves, and failures after which the file takes no more writes (`durable`).
//!
//! Rules:
//! 1. Every flush that begins and fails, for any call, adds one to the count and stores its failure. Its pages stay
//!    dirty.
//! 2. Each handle has a count of the failures reported to it. A new handle begins with the present count, a clone with
//!    the count of its original.
//! 3. A sync does all its work, then compares the counts. It reports its own failure if it has one, otherwise the last
//!    other failure. Then both count as reported to the handle.
//! 4. The end of the file reports the last failure if no handle has reported it.

use std::sync::Arc;

use crate::drive::Failure;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};

/// The failures of write-back of a file.
#[derive(Debug, Default)]
pub struct WritebackErrors {
    /// Changed only with `last` locked, so Relaxed is enough.
    count: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    failure: Option<Failure>,
    /// Whether it was reported by a handle, or at the file's end.
    is_reported: bool,
}

/// The count of failures that were reported to a handle.
#[derive(Debug)]
pub struct Reported(Arc<AtomicU64>);

impl Clone for Reported {
    fn clone(&self) -> Reported {
        Reported(Arc::new(AtomicU64::new(self.0.load(Ordering::Relaxed))))
    }
}

impl Reported {
    /// The same count, for a call of the handle that runs on another thread.
    pub fn share(&self) -> Reported {
        Reported(Arc::clone(&self.0))
    }
}

impl WritebackErrors {
    /// Notes a flush that failed (rule 1).
    pub fn failed(&self, failure: Failure) {
        let mut last = lock(&self.last);
        *last = Last { failure: Some(failure), is_reported: false };
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The count for a new handle (rule 2).
    pub fn begin(&self) -> Reported {
        Reported(Arc::new(AtomicU64::new(self.count.load(Ordering::Relaxed))))
    }

    /// The last failure, if it has not been reported to this handle yet (rule 3).
    pub fn report(&self, to: &Reported) -> Option<Failure> {
        let mut last = lock(&self.last);
        let count = self.count.load(Ordering::Relaxed);
        if to.0.swap(count, Ordering::Relaxed) == count {
            return None;
        }
        last.is_reported = true;
        last.failure
    }

    /// The last failure, at the file's end, if it has not been reported yet (rule 4).
    pub fn unreported(&self) -> Option<Failure> {
        let mut last = lock(&self.last);
        let unreported = if last.is_reported { None } else { last.failure };
        last.is_reported = true;
        unreported
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
    fn each_failure_is_reported_once_to_each_handle() {
        let errors = WritebackErrors::default();
        let first = errors.begin();
        assert!(errors.report(&first).is_none() && errors.unreported().is_none());
        errors.failed(failure(1));
        errors.failed(failure(2));
        let (clone, shared, new) = (first.clone(), first.share(), errors.begin());
        assert_eq!(errors.report(&shared).map(|failure| failure.offset), Some(2));
        assert!(errors.report(&first).is_none(), "it is the same handle");
        assert!(errors.report(&new).is_none(), "it was not open");
        assert!(errors.report(&clone).is_some());
        assert!(errors.report(&clone).is_none());
        assert!(errors.unreported().is_none());
        errors.failed(failure(3));
        assert_eq!(errors.unreported().map(|failure| failure.offset), Some(3));
        assert!(errors.unreported().is_none());
    }
}
