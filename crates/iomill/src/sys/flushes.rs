//! [`Flushes`]: which flush of a file covers a write, where many callers write to one file. [`FlushFailures`]: which writes a failed flush of a
//! drive may have lost. Non-goals: flushing, and turns.
//!
//! Rules:
//! 1. A flush covers each write that had ended when it began. So a caller takes a stamp after its write: how many flushes had begun.
//! 2. The write is durable when a flush with a higher number has ended well. That may be a flush of another caller.
//! 3. One flush runs at a time. So they end in the order in which they begin.
//! 4. A flush that fails concerns the drive. The drive may have lost what any file wrote to it since that file's own last flush, and the next
//!    flush may still end well. So a file notes how many flushes of the drive had failed when its first unflushed write ended. If its own
//!    flush finds more of them, that has failed, too.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::errno::{ErrnoClass, classify};
use super::process::PerProcess;
use super::sync::{AtomicU64, Ordering, fence};

/// How many flushes of a drive have failed since this process attached to it (rule 4).
#[derive(Debug, Default)]
pub struct FlushFailures(Counter);

/// Those of each device that is attached to, by its number.
static OF_DEVICES: PerProcess<Mutex<BTreeMap<u64, Weak<FlushFailures>>>> = PerProcess::empty();

impl FlushFailures {
    /// Those of the device of a file system. All directories on it have the same.
    pub fn of_device(device: u64) -> Arc<FlushFailures> {
        let mut known = OF_DEVICES.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failures) = known.get(&device).and_then(Weak::upgrade) {
            return failures;
        }
        known.retain(|_, failures| failures.strong_count() > 0);
        let failures = Arc::default();
        known.insert(device, Arc::downgrade(&failures));
        failures
    }

    /// How many.
    pub fn count(&self) -> u64 {
        // Acquire: pairs with the Release in `note`.
        self.0.load(Ordering::Acquire)
    }

    /// Notes the errno of a flush that failed. Lack of space or memory is no fault of the drive.
    pub fn note(&self, errno: Option<i32>) {
        if !matches!(errno.map(classify), Some(ErrnoClass::Retry | ErrnoClass::Caller | ErrnoClass::Bug)) {
            self.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Passes the result of a flush on, and notes a failure.
    pub fn watch<T>(&self, flushed: std::io::Result<T>) -> std::io::Result<T> {
        flushed.inspect_err(|error| self.note(error.raw_os_error()))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Flushes {
    begun: AtomicU64,
    /// The number of the last one that ended well.
    ended: AtomicU64,
}

impl Flushes {
    /// The stamp of a write that has ended (rule 1).
    pub fn stamp(&self) -> u64 {
        // SeqCst: pairs with the fence in `run`. A flush that the load does not see begins after the write.
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a write with this stamp is durable (rule 2).
    pub fn cover(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.ended.load(Ordering::Acquire) > stamp
    }

    /// Flushes, unless another flush has made durable what is asked for. Rule 3 is the caller's.
    pub fn run<E>(&self, stamp: u64, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.cover(stamp) {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // SeqCst: pairs with the fence in `stamp`.
        fence(Ordering::SeqCst);
        flush()?;
        self.ended.store(number, Ordering::Release);
        Ok(())
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_drive_count() {
        let failures = FlushFailures::default();
        [libc::ENOSPC, libc::ENOMEM, libc::EBADF].iter().for_each(|errno| failures.note(Some(*errno)));
        assert_eq!(failures.count(), 0);
        failures.note(Some(libc::EIO));
        failures.note(None);
        assert_eq!(failures.count(), 2);
    }

    #[test]
    fn a_flush_covers_what_ended_before_it() {
        let (flushes, mut runs) = (Flushes::default(), 0);
        let mut run = |stamp, result: Result<(), ()>| {
            let before = runs;
            let done = flushes.run(stamp, || {
                runs += 1;
                result
            });
            (done, runs - before)
        };
        let (early, same) = (flushes.stamp(), flushes.stamp());
        assert_eq!(run(early, Ok(())), (Ok(()), 1));
        assert_eq!(run(same, Ok(())), (Ok(()), 0), "one flush is enough for both");
        let late = flushes.stamp();
        assert!(!flushes.cover(late));
        assert_eq!(run(late, Err(())), (Err(()), 1));
        assert!(!flushes.cover(late), "a flush that failed covers nothing");
        assert_eq!(run(late, Ok(())), (Ok(()), 1));
        assert!(flushes.cover(late));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::{AtomicU64, Flushes, Ordering};
    use crate::sys::sync::{Arc, Mutex, lock, model};

    /// A drive with a cache of its own. A bit is a write.
    #[derive(Default)]
    struct Drive {
        holds: AtomicU64,
        durable: AtomicU64,
    }

    #[derive(Default)]
    struct Part {
        flushes: Flushes,
        drive: Drive,
        turn: Mutex<()>,
    }

    fn write_and_sync(part: &Part, bit: u64) {
        part.drive.holds.fetch_or(bit, Ordering::Relaxed);
        let stamp = part.flushes.stamp();
        let turn = lock(&part.turn);
        let flush = || {
            let holds = part.drive.holds.load(Ordering::Relaxed);
            part.drive.durable.fetch_or(holds, Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        part.flushes.run(stamp, flush).unwrap();
        drop(turn);
        assert!(part.drive.durable.load(Ordering::Relaxed) & bit != 0, "write {bit} is said to be durable");
    }

    /// No write counts as durable that no flush has covered.
    ///
    /// Seen to fail when `cover` took a flush with the stamp's own number, and when the flush was counted as begun after it had ended.
    #[test]
    fn loom_flushes_cover_what_they_say() {
        model(|| {
            let part = Arc::new(Part::default());
            let threads: Vec<_> = [1, 2].map(|bit| (Arc::clone(&part), bit)).into_iter().collect();
            let threads: Vec<_> =
                threads.into_iter().map(|(part, bit)| thread::spawn(move || write_and_sync(&part, bit))).collect();
            write_and_sync(&part, 4);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
