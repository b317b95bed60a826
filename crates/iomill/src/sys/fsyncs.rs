//! [`Fsyncs`]: the fsyncs of a file with many writers, and the writes that each fsync covers. [`FsyncFailures`]: the
//! failed fsyncs of a drive, which may have lost writes of any file. Non-goals: syncing, and turns.
//!
//! Rules:
//! 1. An fsync covers each write that ended before the fsync began. So a caller takes a stamp after its write: the
//!    number of fsyncs that have begun.
//! 2. The write is durable once an fsync with a higher number has succeeded. It may be another caller's.
//! 3. One fsync runs at a time. So fsyncs end in the order in which they began.
//! 4. A failed fsync concerns the whole drive. The drive may have lost any file's writes since that file's own last
//!    fsync, and that file's next fsync may succeed all the same. So a writer notes the process's number of failed
//!    fsyncs before a write begins, and a file keeps the least of them that no fsync has covered. If an fsync of the
//!    drive has failed since, the file's own fsync counts as failed, too. Directories and their entries likewise. A
//!    drive is a whole device: its partitions, and the subvolumes of a file system, share its failures.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64 as Counter;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::errno::{ErrnoClass, classify};
use super::process::PerProcess;
use super::sync::{AtomicU64, Ordering, fence};

/// The failed fsyncs of all drives of the process.
static FAILED: Counter = Counter::new(0);

/// A moment, as the number of fsyncs that had failed in the process, on any drive (rule 4).
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

/// The first of the moments at which changes began that no fsync has covered.
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

/// The failed fsyncs of a drive: the number of the last one among all of the process, or 0 (rule 4).
#[derive(Debug, Default)]
pub struct FsyncFailures(Counter);

/// The failures in use.
#[derive(Debug, Default)]
struct Known {
    /// By the number that files have (`st_dev`). A partition has its own, and so has a subvolume.
    by_file: BTreeMap<u64, Weak<FsyncFailures>>,
    /// By the number of the whole device.
    by_drive: BTreeMap<u64, Weak<FsyncFailures>>,
}

static KNOWN: PerProcess<Mutex<Known>> = PerProcess::empty();

impl FsyncFailures {
    /// The failures of the drive of files with this device number. All files on the drive share them. `drive` finds the
    /// number of the whole device. It is called only if nothing with this device number is in use.
    pub fn of_device(device: u64, drive: impl FnOnce() -> u64) -> Arc<FsyncFailures> {
        let known = || KNOWN.get().lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().by_file.get(&device).and_then(Weak::upgrade);
        if let Some(failures) = found {
            return failures;
        }
        let drive = drive();
        let mut known = known();
        let Known { by_file, by_drive } = &mut *known;
        for known in [&mut *by_file, &mut *by_drive] {
            known.retain(|_, failures| failures.strong_count() > 0);
        }
        let failures = by_drive.get(&drive).and_then(Weak::upgrade).unwrap_or_default();
        by_file.insert(device, Arc::downgrade(&failures));
        by_drive.insert(drive, Arc::downgrade(&failures));
        failures
    }

    /// Whether an fsync of the drive has failed since a moment.
    pub fn any_since(&self, since: Since) -> bool {
        // Acquire: pairs with the Release in `note`.
        self.0.load(Ordering::Acquire) > since.0
    }

    /// Counts a failed fsync with this errno. A lack of space or memory does not count: it is no fault of the drive. A
    /// file system that became read-only counts: it has dropped unwritten data, and the next fsync may succeed.
    /// Release: pairs with the Acquire in `any_since` and `Since::now`.
    pub fn note(&self, errno: Option<i32>) {
        let is_harmless = matches!(errno.map(classify), Some(ErrnoClass::Retry | ErrnoClass::Caller | ErrnoClass::Bug));
        if !is_harmless || errno == Some(libc::EROFS) {
            let number = FAILED.fetch_add(1, Ordering::Release) + 1;
            self.0.fetch_max(number, Ordering::Release);
        }
    }

    /// The same as `watch`. An error, too, if another fsync of the drive has failed since a moment.
    pub fn watch_since<T>(&self, since: Since, synced: std::io::Result<T>) -> std::io::Result<T> {
        let synced = self.watch(synced)?;
        if self.any_since(since) { Err(std::io::Error::from_raw_os_error(libc::EIO)) } else { Ok(synced) }
    }

    /// Returns the result of an fsync, and counts a failure.
    pub fn watch<T>(&self, synced: std::io::Result<T>) -> std::io::Result<T> {
        synced.inspect_err(|error| self.note(error.raw_os_error()))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Fsyncs {
    /// The number of fsyncs that have begun.
    begun: AtomicU64,
    /// The number of the last fsync that has succeeded.
    ended: AtomicU64,
}

impl Fsyncs {
    /// The stamp of a write that has ended (rule 1).
    pub fn stamp(&self) -> u64 {
        // SeqCst: pairs with the fence in `run`. An fsync that this load does not count begins after the write.
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a write with this stamp is durable (rule 2).
    pub fn cover(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.ended.load(Ordering::Acquire) > stamp
    }

    /// Calls `fsync`, unless an fsync has covered the stamp already. The caller keeps rule 3.
    pub fn run<E>(&self, stamp: u64, fsync: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.cover(stamp) {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // SeqCst: pairs with the fence in `stamp`.
        fence(Ordering::SeqCst);
        fsync()?;
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
        let (failures, of_another_drive) = (FsyncFailures::default(), FsyncFailures::default());
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

    /// Two partitions of a device, and a file system on another one. The numbers are those of no device.
    ///
    /// Seen to fail when each device number had failures of its own.
    #[test]
    fn partitions_share_the_failures_of_their_drive() {
        const ONE: u64 = u64::MAX - 9;
        let first = FsyncFailures::of_device(ONE + 1, || ONE);
        let [second, elsewhere] =
            [(2, ONE), (4, ONE + 3)].map(|(at, drive)| FsyncFailures::of_device(ONE + at, || drive));
        let since = Since::now();
        first.note(Some(libc::EIO));
        assert!(second.any_since(since) && !elsewhere.any_since(since));
        let again = FsyncFailures::of_device(ONE + 1, || unreachable!("it is in use"));
        assert!(Arc::ptr_eq(&again, &first));
        drop((first, again, second));
        // The number may be that of another device by now.
        let later = FsyncFailures::of_device(ONE + 1, || ONE + 3);
        assert!(Arc::ptr_eq(&later, &elsewhere));
    }

    #[test]
    fn an_fsync_covers_the_writes_that_ended_before_it() {
        let (fsyncs, mut runs) = (Fsyncs::default(), 0);
        let mut run = |stamp, result: Result<(), ()>| {
            let before = runs;
            let done = fsyncs.run(stamp, || {
                runs += 1;
                result
            });
            (done, runs - before)
        };
        let (early, same) = (fsyncs.stamp(), fsyncs.stamp());
        assert_eq!(run(early, Ok(())), (Ok(()), 1));
        assert_eq!(run(same, Ok(())), (Ok(()), 0), "one fsync is enough for both");
        let late = fsyncs.stamp();
        assert!(!fsyncs.cover(late));
        assert_eq!(run(late, Err(())), (Err(()), 1));
        assert!(!fsyncs.cover(late), "an fsync that failed covers nothing");
        assert_eq!(run(late, Ok(())), (Ok(()), 1));
        assert!(fsyncs.cover(late));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::{AtomicU64, Fsyncs, Ordering};
    use crate::sys::sync::{Arc, Mutex, lock, model};

    /// A drive with a cache of its own. Each bit is a write.
    #[derive(Default)]
    struct Drive {
        holds: AtomicU64,
        durable: AtomicU64,
    }

    #[derive(Default)]
    struct Part {
        fsyncs: Fsyncs,
        drive: Drive,
        turn: Mutex<()>,
    }

    fn write_and_sync(part: &Part, bit: u64) {
        part.drive.holds.fetch_or(bit, Ordering::Relaxed);
        let stamp = part.fsyncs.stamp();
        let turn = lock(&part.turn);
        let fsync = || {
            let holds = part.drive.holds.load(Ordering::Relaxed);
            part.drive.durable.fetch_or(holds, Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        part.fsyncs.run(stamp, fsync).unwrap();
        drop(turn);
        assert!(part.drive.durable.load(Ordering::Relaxed) & bit != 0, "write {bit} is said to be durable");
    }

    /// Only a write that an fsync has covered counts as durable.
    ///
    /// Seen to fail when `cover` took an fsync with the stamp's own number, and when the fsync was counted as begun
    /// only after its end.
    #[test]
    fn loom_fsyncs_cover_what_they_say() {
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
