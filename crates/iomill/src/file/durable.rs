//! The durability of an open file: [`Syncs`], and one [`SyncTurn`] for each sync.
//!
//! Non-goals: flushing cached pages, which the pager does between the begin and the end of a turn.
//!
//! Rules:
//! 1. A mark says that a part holds bytes that no fdatasync has covered. It is set after a write has ended, before the
//!    write is acknowledged. A sync takes the mark before it asks for the part's fdatasync. A part that already holds
//!    bytes when it is opened begins with a mark (`Mark`).
//! 2. Syncs run one after the other, in the order of their calls, so that no sync starves. Under the lock each checks
//!    whether an earlier one has failed. A missing mark does not show that: the sync that took the mark may have failed
//!    while this one waited.
//! 3. After a failed fdatasync, publication, cleaning of the end, or sync of a length that calls see already, no write
//!    begins and no sync succeeds. The kernel may then have dropped earlier writes, and a second fdatasync does not
//!    report that.
//! 4. A sync requests the fdatasync of every marked part, even if another part fails. A failed sync sets its marks
//!    again.
//! 5. A failed fsync concerns the whole drive (`sys::fsyncs`). So a sync also fails if an fsync of a drive, for any
//!    file, has failed since the first write to that drive that this sync covers.

use std::sync::OnceLock;

use super::FileState;
use super::backing::Part;
#[cfg(all(test, iomill_models))]
use super::mark::Mark;
use super::mark::Taken;
use crate::cache::Outcome;
use crate::drive::{Failure, Fault, Piece};
use crate::error::{Error, Result};
use crate::exec::{FirstFailure, Sink, Within};
use crate::sys::fair::{Fair, FairGuard};
use crate::sys::sync::Ordering;
#[cfg(all(test, iomill_models))]
use crate::sys::sync::{Mutex, lock};

/// The syncs of a file: one at a time, and none after a failure.
#[derive(Debug)]
pub struct Syncs<T> {
    /// The failure after which there are no more syncs. Set once.
    failed: OnceLock<String>,
    /// The state that a sync leaves for the next one.
    last: Fair<T>,
}

impl<T> Syncs<T> {
    pub fn new(last: T) -> Syncs<T> {
        Syncs { failed: OnceLock::new(), last: Fair::new(last) }
    }

    /// The failure after which there are no more syncs, if any.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Refuses all later syncs (rule 3). Only the first reason counts.
    pub fn fail(&self, why: String) {
        let _kept_if_first = self.failed.set(why);
    }

    /// Waits for the sync in progress, and returns the right to sync. The error is the failure of that sync or of an
    /// earlier one (rule 2).
    pub fn begin(&self) -> std::result::Result<FairGuard<'_, T>, &str> {
        let last = self.last.lock();
        match self.failure() {
            Some(why) => Err(why),
            None => Ok(last),
        }
    }
}

/// The length that is durable.
#[derive(Debug)]
pub struct DurableLength {
    pub len: u64,
}

/// A sync in progress. The pages that it covers are flushed between its begin and [`SyncTurn::finish`].
#[derive(Debug)]
pub struct SyncTurn<'a> {
    file: &'a FileState,
    published: FairGuard<'a, DurableLength>,
    /// The length to publish, in bytes. Taken before the flush: later writes may not be on the drives when this length
    /// is published.
    len: u64,
    is_end: bool,
}

impl FileState {
    /// Begins a sync of every write that ended before this call, and of the length (rule 3 of the length). `None` for a
    /// file that is open for reading only. `is_end` means the last sync of the file.
    pub fn begin_sync(&self, is_end: bool) -> Result<Option<SyncTurn<'_>>> {
        if !self.is_writer {
            return Ok(None);
        }
        let published = self.syncs.begin().map_err(|why| self.poisoned(why))?;
        Ok(Some(SyncTurn { file: self, published, len: self.len(), is_end }))
    }

    /// An error if an earlier failure keeps writes from becoming durable.
    pub(super) fn check_syncable(&self) -> Result<()> {
        self.syncs.failure().map_or(Ok(()), |why| Err(self.poisoned(why)))
    }

    /// The number of syncs in progress or waiting.
    #[cfg(all(test, not(iomill_models)))]
    pub fn syncs_asked(&self) -> u64 {
        self.syncs.last.asked()
    }

    fn poisoned(&self, why: &str) -> Error {
        Error::Poisoned { name: self.name().to_owned(), why: why.to_owned() }
    }

    /// Makes writes to the parts durable (rule 4). Returns whether any was of this process.
    fn sync_parts(&self, is_end: bool) -> Result<bool> {
        // Recomputed sums are those of bytes that an earlier writer may have left: these bytes must be durable first
        // (rule 5 of `sums`).
        let leaves_found = is_end && !self.sums().is_some_and(|sums| sums.is_stale());
        let mut marked = Marked {
            file: self,
            parts: self.parts().iter().filter_map(|part| Some((part, part.mark.take(leaves_found)?))).collect(),
            has_begun: false,
        };
        if marked.parts.is_empty() {
            return Ok(false);
        }
        let has_written = !is_end || marked.parts.iter().any(|(_, taken)| taken.is_written());
        if !self.is_plain() && !self.backing.is_small() {
            // Bytes that another program cut off are lost, so the sync must not succeed.
            let checked = marked.parts.iter().try_for_each(|(part, _)| part.check_uncut(false).map(drop));
            checked.inspect_err(|error| self.set_poison(error))?;
        }
        marked.has_begun = true;
        let stamp = marked.parts.iter().map(|(part, _)| part.mark.stamp()).max().unwrap_or_default();
        if let Some(synced) = self.backing.sync_shared(stamp) {
            marked.has_begun = false;
            synced.and_then(|()| marked.check()).inspect_err(|error| self.set_poison(error))?;
            marked.parts.clear();
            return Ok(has_written);
        }
        let tagged = |(tag, (part, _)): (usize, &(&Part, Taken))| {
            (part.drive, Piece { tag: tag as u32, ..Piece::sync(part.file) })
        };
        let ends =
            SyncEnds { parts: marked.parts.iter().map(|(part, _)| *part).collect(), first: FirstFailure::default() };
        // SAFETY: sync pieces have no memory, and the parts are open as long as `self`.
        let begun =
            unsafe { self.exec.blocking().run(Within::SLABS, marked.parts.iter().enumerate().map(tagged), &ends) };
        marked.has_begun = false;
        // If no piece was begun, the next sync may try again.
        drop(begun?);
        let synced = ends.first.take().map_or(Ok(()), |failure| Err(self.error(failure)));
        synced.and_then(|()| marked.check()).inspect_err(|error| self.set_poison(error))?;
        marked.parts.clear();
        Ok(has_written)
    }

    /// Publishes a length. A full drive refuses it before any change, so a later sync may try again (C29). The same is
    /// true if the process lacks descriptors or memory.
    fn publish(&self, len: u64) -> Result<()> {
        let published = self.backing.publish(len).inspect_err(|error| {
            let is_full = |source: &std::io::Error| matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
            let is_refused = matches!(error, Error::Io { source, .. } if is_full(source));
            if !is_refused {
                self.note_unknown_record(error);
            }
        });
        published.inspect(|()| self.is_record_unknown.store(false, Ordering::Relaxed))
    }

    /// A change of the file's record has failed. Its outcome may be unknown: then the record may be as the call wanted
    /// it, and not as the file is.
    pub(super) fn note_unknown_record(&self, error: &Error) {
        self.is_record_unknown.store(true, Ordering::Relaxed);
        self.set_poison_for_good(error);
    }

    /// Refuses all later writes and syncs, unless the error is temporary: then a later try repeats every step.
    pub fn set_poison_for_good(&self, error: &Error) {
        if !error.passes() {
            self.set_poison(error);
        }
    }

    pub fn is_poisoned(&self) -> bool {
        self.syncs.failure().is_some()
    }

    /// Refuses all later writes and syncs (rule 3).
    pub fn set_poison(&self, error: &Error) {
        self.syncs.fail(error.to_string());
    }
}

/// Receives the result of the fdatasync of each part. The tag is the part's index in the list.
struct SyncEnds<'a> {
    parts: Vec<&'a Part>,
    first: FirstFailure,
}

impl Sink for SyncEnds<'_> {
    fn piece_done(&self, tag: u32, outcome: Outcome) {
        if let (Err(Failure { fault: Fault::Errno(errno), .. }), Some(part)) = (&outcome, self.parts.get(tag as usize))
            && let Some(open) = &part.open
        {
            open.fs().fsync_failures().note(Some(*errno));
        }
        self.first.keep(outcome);
    }
}

/// Parts with their marks, which a sync has taken. Dropping it sets the remaining marks again (rule 4).
struct Marked<'a> {
    file: &'a FileState,
    parts: Vec<(&'a Part, Taken)>,
    /// Whether a panic of the sync leaves the state of the drives unknown (rule 3).
    has_begun: bool,
}

impl Marked<'_> {
    /// An error if a failed fsync of a drive may have lost bytes of the marks (rule 5). The fsyncs of the marks
    /// themselves have succeeded.
    fn check(&self) -> Result<()> {
        let lost = self.parts.iter().find(|(part, mark)| part.mark.may_be_lost(*mark));
        let Some(open) = lost.and_then(|(part, _)| part.open.as_ref()) else { return Ok(()) };
        Err(Error::fsync_failed(open.fs().location()))
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            self.file.syncs.fail("a sync panicked, so the durable bytes are unknown".to_owned());
        }
        self.parts.iter().for_each(|(part, mark)| part.mark.put_back(*mark));
    }
}

impl SyncTurn<'_> {
    /// The length in bytes of the last successful sync, or of the opening.
    pub fn durable_len(&self) -> u64 {
        self.published.len
    }

    /// Resets the file to its durable length at its end, if that is shorter. Nothing is in flight.
    pub fn give_up_growth(&mut self) {
        self.len = self.len.min(self.published.len);
        self.file.shorten(self.len);
    }

    /// Makes the parts durable, and then the length.
    pub fn finish(mut self) -> Result<()> {
        let is_resized = self.len != self.published.len || self.file.is_record_unknown.load(Ordering::Relaxed);
        // Before the marks of parts are taken (rule 5 of `sums`).
        let epoch = self.file.begin_sums(is_resized);
        let has_synced = self.file.sync_parts(self.is_end)?;
        self.file.backing.settle_names().inspect_err(|error| self.file.set_poison_for_good(error))?;
        if is_resized {
            self.file.publish(self.len)?;
            self.published.len = self.len;
        } else if has_synced {
            self.file.backing.touch()?;
        }
        if let Some(epoch) = epoch {
            self.file.settle_sums(epoch, self.len, self.is_end)?;
        }
        // The end of a file that was not changed costs nothing.
        if is_resized || has_synced || !self.is_end { self.file.backing.sync_changes() } else { Ok(()) }
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::fsyncs::{FsyncFailures, Fsyncs, Since};
    use crate::sys::sync::{Arc, AtomicU64, Ordering, model};
    use loom::thread;

    /// A drive with a cache of its own. A bit is a write.
    #[derive(Default)]
    struct Drive {
        /// What the next fdatasync covers. One that fails drops it, as the kernel may.
        holds: u64,
        durable: u64,
        /// The next fdatasync fails.
        is_failing: bool,
    }

    type File = (Syncs<()>, Mark, Mutex<Drive>);

    /// As `FileState` does; whether it ended well.
    fn sync((syncs, mark, drive): &File) -> bool {
        let Ok(_last) = syncs.begin() else { return false };
        let Some(taken) = mark.take(false) else { return true };
        let mut drive = lock(drive);
        let holds = std::mem::take(&mut drive.holds);
        if std::mem::take(&mut drive.is_failing) {
            drop(drive);
            syncs.fail("it failed".to_owned());
            mark.put_back(taken);
            return false;
        }
        drive.durable |= holds;
        drop(drive);
        if mark.may_be_lost(taken) {
            syncs.fail("it may be lost".to_owned());
            mark.put_back(taken);
            return false;
        }
        true
    }

    fn write_and_sync(file: &File, bit: u64) -> bool {
        let since = Since::now();
        lock(&file.2).holds |= bit;
        file.1.set(since);
        let is_synced = sync(file);
        assert!(!is_synced || lock(&file.2).durable & bit != 0, "write {bit} is said to be durable");
        is_synced
    }

    fn check(is_failing: bool) {
        model(move || {
            let drive = Drive { is_failing, ..Drive::default() };
            let file: Arc<File> =
                Arc::new((Syncs::new(()), Mark::new(false, &std::sync::Arc::default()), Mutex::new(drive)));
            let other = thread::spawn({
                let file = Arc::clone(&file);
                move || write_and_sync(&file, 1)
            });
            let ours = write_and_sync(&file, 2);
            let theirs = other.join().unwrap();
            assert_eq!(ours && theirs, !is_failing);
        });
    }

    /// No sync says that a write is durable which is not, also where another sync fails while it waits (rules 2 and 3).
    ///
    /// Seen to fail when `begin` looked at the failure before it took the lock, and not after.
    #[test]
    fn loom_sync_says_what_is_durable() {
        check(false);
        check(true);
    }

    /// A write that ended before a sync began is covered by it, whatever other sync is under way (rule 1).
    ///
    /// Seen to fail when the sync took the mark after its fdatasync.
    #[test]
    fn loom_sync_covers_what_ended_before_it() {
        model(|| {
            // The other thread has something to sync.
            let drive = Drive { holds: 4, ..Drive::default() };
            let file: Arc<File> =
                Arc::new((Syncs::new(()), Mark::new(true, &std::sync::Arc::default()), Mutex::new(drive)));
            let other = thread::spawn({
                let file = Arc::clone(&file);
                move || sync(&file)
            });
            assert!(write_and_sync(&file, 1));
            assert!(other.join().unwrap());
        });
    }

    /// An fsync of another file that fails, and drops what the drive holds, is heard by the sync of each write that it
    /// may have lost, whenever that write's end is noted (rule 5).
    ///
    /// Seen to fail when a sync took the moments of writes apart from the mark, and when a write took its moment after
    /// its end.
    #[test]
    fn loom_sync_reports_the_failed_fsync_of_another_file() {
        model(|| {
            let failures = std::sync::Arc::<FsyncFailures>::default();
            let file: Arc<File> = Arc::new((Syncs::new(()), Mark::new(false, &failures), Mutex::new(Drive::default())));
            let other = thread::spawn({
                let file = Arc::clone(&file);
                move || {
                    let mut drive = lock(&file.2);
                    drive.holds = 0;
                    // Before another fsync can end, because a failure that no thread has taken is not known.
                    failures.note(Some(libc::EIO));
                }
            });
            let writer = thread::spawn({
                let file = Arc::clone(&file);
                move || write_and_sync(&file, 1)
            });
            write_and_sync(&file, 2);
            other.join().unwrap();
            writer.join().unwrap();
        });
    }

    /// A file with pages in a shared part. Another file syncs the part, too.
    struct InShared {
        syncs: Syncs<()>,
        mark: Mark,
        fsyncs: std::sync::Arc<Fsyncs>,
        turn: Mutex<()>,
        holds: AtomicU64,
        durable: AtomicU64,
    }

    impl InShared {
        fn fsync(&self, stamp: u64) {
            let _turn = lock(&self.turn);
            let fsync = || {
                self.durable.fetch_or(self.holds.load(Ordering::Relaxed), Ordering::Relaxed);
                Ok::<(), ()>(())
            };
            self.fsyncs.run(stamp, fsync).unwrap();
        }

        /// As `FileState` does.
        fn write_and_sync(&self, bit: u64) {
            let since = Since::now();
            self.holds.fetch_or(bit, Ordering::Relaxed);
            self.mark.set(since);
            {
                let _last = self.syncs.begin().unwrap();
                if self.mark.take(false).is_some() {
                    self.fsync(self.mark.stamp());
                }
            }
            assert!(self.durable.load(Ordering::Relaxed) & bit != 0, "write {bit} is said to be durable");
        }
    }

    /// The same for pages in a shared part, where an fsync of another file may cover a write.
    ///
    /// Seen to fail when the sync took the stamp before the mark, and when a mark that was set kept its stamp.
    #[test]
    fn loom_sync_of_shared_pages_says_what_is_durable() {
        model(|| {
            let fsyncs = std::sync::Arc::new(Fsyncs::default());
            let file = Arc::new(InShared {
                syncs: Syncs::new(()),
                mark: Mark::in_shared(false, &std::sync::Arc::default(), std::sync::Arc::clone(&fsyncs)),
                fsyncs,
                turn: Mutex::new(()),
                holds: AtomicU64::new(0),
                durable: AtomicU64::new(0),
            });
            let other = thread::spawn({
                let file = Arc::clone(&file);
                move || file.write_and_sync(1)
            });
            let neighbour = thread::spawn({
                let file = Arc::clone(&file);
                move || file.fsync(file.fsyncs.stamp())
            });
            file.write_and_sync(2);
            other.join().unwrap();
            neighbour.join().unwrap();
        });
    }
}
