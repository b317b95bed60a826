//! What of an open file is durable, and how it becomes so.
//!
//! Rules:
//! 1. A mark says that a part holds what no fdatasync has covered. It is set after a write has ended, before the write is acknowledged.
//!    A sync takes the mark before it asks for the part's fdatasync. A part that another writer has written to begins with one (`Mark`).
//! 2. Syncs come one after the other. Under the lock each looks whether an earlier one has failed, because a mark that is not there
//!    says nothing else: the sync that took it may have failed while this one waited.
//! 3. A failed fdatasync, publication or cleaning of the end is the last that becomes of the file: after it no write begins and no sync
//!    ends well. What the kernel still holds of earlier writes is unknown then, and a second fdatasync does not tell.
//! 4. Every marked part is asked for its fdatasync, whatever becomes of the others. The marks of a sync that failed are set again.

use std::sync::OnceLock;

use super::late::Told;
use super::state::{FileState, Part};
use crate::catalog::LengthFile;
use crate::drive::Piece;
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU8, Mutex, MutexGuard, Ordering, lock};

/// The syncs of a file: one at a time, and none after one that failed.
#[derive(Debug)]
pub struct Syncs<T> {
    /// Why there are no more; set once.
    failed: OnceLock<String>,
    /// What the next sync goes on from.
    last: Mutex<T>,
}

impl<T> Syncs<T> {
    pub fn new(last: T) -> Syncs<T> {
        Syncs { failed: OnceLock::new(), last: Mutex::new(last) }
    }

    /// Why there are no more.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// There are no more (rule 3). Only the first reason counts.
    pub fn fail(&self, why: String) {
        let _kept_if_first = self.failed.set(why);
    }

    /// The right to sync, when the sync that is under way has ended; why not, if that or an earlier one has failed (rule 2).
    pub fn begin(&self) -> std::result::Result<MutexGuard<'_, T>, &str> {
        let last = lock(&self.last);
        match self.failure() {
            Some(why) => Err(why),
            None => Ok(last),
        }
    }
}

/// What a part holds that no fdatasync has covered (rule 1).
#[derive(Debug)]
pub struct Mark(AtomicU8);

/// Nothing.
const NOTHING: u8 = 0;
/// What an earlier writer may have left: it was killed, or let go of the file without a sync. It can be read, so a sync covers it. It was
/// never acknowledged, so nobody pays for it without asking.
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
    fn take(&self, is_end: bool) -> Option<u8> {
        if is_end && self.0.load(Ordering::Acquire) != WRITTEN {
            return None;
        }
        Some(self.0.swap(NOTHING, Ordering::AcqRel)).filter(|&mark| mark != NOTHING)
    }

    /// Sets again what was taken (rule 4).
    fn put_back(&self, mark: u8) {
        self.0.fetch_max(mark, Ordering::AcqRel);
    }
}

/// The length that is durable.
#[derive(Debug)]
pub struct Published {
    pub len: u64,
    pub file: LengthFile,
}

impl FileState {
    /// Makes every write that ended before this call durable, and the length (rule 3 of the length).
    pub fn sync(&self) -> Result<()> {
        self.sync_as(false)
    }

    /// [`FileState::sync`]. At the file's end pages that could not be flushed are lost, and do not take all that was along with them.
    pub(super) fn sync_as(&self, is_end: bool) -> Result<()> {
        if !self.array().is_writer() {
            return Ok(());
        }
        let mut published = self.syncs.begin().map_err(|why| self.poisoned(why))?;
        // Before the flush: what is written meanwhile may not be on the drives when this length is.
        let len = self.len();
        let flushed = self.paged.as_ref().map_or(Ok(()), |paged| self.flush_all(paged));
        if flushed.is_err() && !is_end {
            // What failed stays dirty, and may be tried again.
            return flushed;
        }
        flushed.and(self.sync_parts(is_end).and_then(|()| self.publish(len, &mut published)))
    }

    /// [`FileState::sync`] for a handle, which is told of what went wrong meanwhile as well.
    pub fn sync_and_tell(&self, told: &Told) -> Result<()> {
        let result = self.sync();
        let late = self.late.tell(told);
        result?;
        late.map_or(Ok(()), |failure| Err(self.error(failure)))
    }

    /// Refuses writes where they cannot be kept.
    pub fn check_writable(&self) -> Result<()> {
        self.array().check_writer()?;
        match self.syncs.failure() {
            Some(why) => Err(self.poisoned(why)),
            None => Ok(()),
        }
    }

    fn poisoned(&self, why: &str) -> Error {
        Error::Poisoned { name: self.record.name.clone(), why: why.to_owned() }
    }

    /// Makes durable what was written to the parts (rule 4).
    fn sync_parts(&self, is_end: bool) -> Result<()> {
        let marked: Vec<(&Part, u8)> =
            self.parts.iter().filter_map(|part| Some((part, part.mark.take(is_end)?))).collect();
        if marked.is_empty() {
            return Ok(());
        }
        let pieces = marked.iter().map(|(part, _)| (part.drive, Piece::sync(part.file)));
        let mut failure = None;
        // SAFETY: sync pieces have no memory, and the parts are open as long as `self`.
        let begun = unsafe {
            self.array().run_inline((std::ptr::null(), 0), pieces, |end| failure = failure.or(end.result.err()))
        };
        let result = begun.and_then(|()| match failure {
            None => Ok(()),
            // None was begun in the other case, and the next sync may have better luck.
            Some(failure) => Err(self.error(failure)).inspect_err(|error| self.set_poison(error)),
        });
        result.inspect_err(|_| marked.iter().for_each(|(part, mark)| part.mark.put_back(*mark)))
    }

    fn publish(&self, len: u64, published: &mut Published) -> Result<()> {
        if len != published.len {
            published.file.publish(len).inspect_err(|error| self.set_poison(error))?;
            published.len = len;
        }
        Ok(())
    }

    /// The file takes no more writes (rule 3).
    pub(super) fn set_poison(&self, error: &Error) {
        self.syncs.fail(error.to_string());
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{Arc, model};
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
        true
    }

    fn write_and_sync(file: &File, bit: u64) -> bool {
        lock(&file.2).holds |= bit;
        file.1.set();
        let is_synced = sync(file);
        assert!(!is_synced || lock(&file.2).durable & bit != 0, "write {bit} is said to be durable");
        is_synced
    }

    fn check(is_failing: bool) {
        model(move || {
            let drive = Drive { is_failing, ..Drive::default() };
            let file: Arc<File> = Arc::new((Syncs::new(()), Mark::new(false), Mutex::new(drive)));
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
            let file: Arc<File> = Arc::new((Syncs::new(()), Mark::new(true), Mutex::new(drive)));
            let other = thread::spawn({
                let file = Arc::clone(&file);
                move || sync(&file)
            });
            assert!(write_and_sync(&file, 1));
            assert!(other.join().unwrap());
        });
    }
}

#[cfg(all(test, not(iomill_models)))]
#[path = "durable_tests.rs"]
mod tests;
