//! [`Flushes`]: the flushes of a file with many writers, and the writes that each flush covers. [`FlushFailures`]: the
//! failed flushes of a drive, which may have lost writes of any file. Non-goals: flushing, and turns.
//!
//! Rules:
//! 1. A flush covers each write that ended before the flush began. So a caller takes a stamp after its write: the
//!    number of flushes that have begun.
//! 2. The write is durable once a flush with a higher number has succeeded. It may be another caller's.
//! 3. One flush runs at a time. So flushes end in the order in which they began.
//! 4. A failed flush concerns the whole drive. The drive may have lost any file's writes since that file's own last
//!    flush, and that file's next flush may succeed all the same. So a writer notes the process's number of failed
//!    flushes before a write begins, and a file keeps the least of them that no flush has covered. If a flush of the
//!    drive has failed since, the file's own flush counts as failed, too. Directories and their entries likewise.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::errno::{ErrnoClass, classify};
use super::process::PerProcess;
use super::sync::{AtomicU64, Ordering, fence};

/// The failed flushes of all drives of the process.
static FAILED: Counter = Counter::new(0);

/// A moment, as the number of flushes that had failed in the process, on any drive (rule 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Since(pub(crate) u64);

impl Since {
    /// The present moment. A writer takes it before its write begins.
    #[inline]
    pub fn now() -> Since {
        // Acquire: pairs with the Release in `note`.
        Since(FAILED.load(Ordering::Acquire))
    }
}

/// The first of the moments at which changes began that no flush has covered.
#[derive(Debug)]
pub struct Earliest(AtomicU64);

/// No change is to be covered.
const NONE: u64 = u64::MAX;

impl Earliest {
    /// With no moment, or with this one.
    pub fn new(since: Option<Since>) -> Earliest {
        Earliest(AtomicU64::new(since.map_or(NONE, |since| since.0)))
    }

    /// Notes a moment.
    pub fn note(&self, since: Since) {
        // AcqRel: pairs with `take`.
        self.0.fetch_min(since.0, Ordering::AcqRel);
    }

    /// Takes the moment away.
    pub fn take(&self) -> Option<Since> {
        // AcqRel: pairs with `note`.
        let taken = self.0.swap(NONE, Ordering::AcqRel);
        (taken != NONE).then_some(Since(taken))
    }
}

/// The failed flushes of a drive: the number of the last one among all of the process, or 0 (rule 4).
#[derive(Debug, Default)]
pub struct FlushFailures(Counter);

/// The failures of each device in use, by the device's number.
static OF_DEVICES: PerProcess<Mutex<BTreeMap<u64, Weak<FlushFailures>>>> = PerProcess::empty();

impl FlushFailures {
    /// The failures of a device. All directories on the device share them.
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

    /// Whether a flush of the drive has failed since a moment.
    pub fn any_since(&self, since: Since) -> bool {
        // Acquire: pairs with the Release in `note`.
        self.0.load(Ordering::Acquire) > since.0
    }

    /// Counts a failed flush with this errno. A lack of space or memory does not count: it is no fault of the drive. A
    /// file system that became read-only counts: it has dropped unwritten data, and the next flush may succeed.
    /// Release: pairs with the Acquire in `any_since` and `Since::now`.
    pub fn note(&self, errno: Option<i32>) {
        let is_harmless = matches!(errno.map(classify), Some(ErrnoClass::Retry | ErrnoClass::Caller | ErrnoClass::Bug));
        if !is_harmless || errno == Some(libc::EROFS) {
            let number = FAILED.fetch_add(1, Ordering::Release) + 1;
            self.0.fetch_max(number, Ordering::Release);
        }
    }

    /// The same as `watch`. An error, too, if another flush of the drive has failed since a moment.
    pub fn watch_since<T>(&self, since: Since, flushed: std::io::Result<T>) -> std::io::Result<T> {
        let flushed = self.watch(flushed)?;
        if self.any_since(since) { Err(std::io::Error::from_raw_os_error(libc::EIO)) } else { Ok(flushed) }
    }

    /// Returns the result of a flush, and counts a failure.
    pub fn watch<T>(&self, flushed: std::io::Result<T>) -> std::io::Result<T> {
        flushed.inspect_err(|error| self.note(error.raw_os_error()))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Flushes {
    /// The number of flushes that have begun.
    begun: AtomicU64,
    /// The number of the last flush that has succeeded.
    ended: AtomicU64,
}

impl Flushes {
    /// The stamp of a write that has ended (rule 1).
    pub fn stamp(&self) -> u64 {
        // SeqCst: pairs with the fence in `run`. A flush that this load does not count begins after the write.
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a write with this stamp is durable (rule 2).
    pub fn cover(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.ended.load(Ordering::Acquire) > stamp
    }

    /// Flushes, unless a flush has covered the stamp already. The caller keeps rule 3.
    pub fn run<E>(&self, stamp: u64, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.cover(stamp) {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // SeqCst: pairs with the fence in `stamp`.
        fence(Ordering::SeqCst);
        flush()?;
        // Release: pairs with the Acquire in `cover`.
        self.ended.store(number, Ordering::Release);
        Ok(())
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_drive_count() {
        let (failures, of_another_drive) = (FlushFailures::default(), FlushFailures::default());
        for errno in [Some(libc::ENOSPC), Some(libc::ENOMEM), Some(libc::EBADF)] {
            let since = Since::now();
            failures.note(errno);
            assert!(!failures.any_since(since), "{errno:?}");
        }
        for errno in [Some(libc::EIO), None, Some(libc::EROFS)] {
            let since = Since::now();
            failures.note(errno);
            assert!(failures.any_since(since), "{errno:?}");
            assert!(!failures.any_since(Since::now()), "it is over");
            assert!(!of_another_drive.any_since(since));
        }
    }

    #[test]
    fn a_flush_covers_the_writes_that_ended_before_it() {
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

    /// A drive with a cache of its own. Each bit is a write.
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

    /// Only a write that a flush has covered counts as durable.
    ///
    /// Seen to fail when `cover` took a flush with the stamp's own number, and when the flush was counted as begun only
    /// after its end.
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
