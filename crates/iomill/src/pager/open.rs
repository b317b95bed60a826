//! An open file with its part of the cache ([`OpenFile`]), and its owners: [`OpenRef`] for handles, [`EnteredFile`] for
//! operations.
//!
//! Goals: calls that need both the file and its cached pages; the end of a file on any thread. Non-goals: the use of
//! pages by a call, which is in the other files of this room.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Paged;
use super::table::Entry;
use crate::cache::NO_READERS;
use crate::catalog::{Catalog, Draft};
use crate::drive::{PAGE_BYTES, shares};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::file::durable::SyncTurn;
use crate::file::{Entered, FileState, Reported};
use crate::sys::sync::{AtomicU64, Ordering};

/// The array of a file, which an open file keeps alive.
pub type ArrayRef = Arc<dyn Any + Send + Sync>;

/// Removes a nameless file of an array when its last owner is dropped: a file that has lost its name, or a draft that
/// got none.
#[derive(Debug)]
pub struct Ending {
    catalog: Arc<Catalog>,
    number: u64,
    draft: Option<Arc<Draft>>,
}

impl Ending {
    pub fn new(catalog: &Arc<Catalog>, number: u64, draft: Option<Arc<Draft>>) -> Ending {
        Ending { catalog: Arc::clone(catalog), number, draft }
    }

    /// Whether what the file holds goes with its last holder.
    fn is_removal(&self) -> bool {
        if self.draft.as_ref().is_some_and(|draft| draft.is_unpublished()) {
            return true;
        }
        self.catalog.numbered(self.number).is_some_and(|record| !record.is_live())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.catalog.remove_if_dying(self.number);
    }
}

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// Its part of the cache, if there is one.
    pub paged: Option<Arc<Paged>>,
    /// The cell `readers` of the cache's memory. Without a cache no pager's instance is in it.
    pub(super) readers: Arc<AtomicU64>,
    pub file: FileState,
    /// Whether `finish` has run. Remaining dirty pages must not be written after it, without the array's lock.
    finished: AtomicBool,
    /// Whether after `finish` all cached pages and the length equal those on the drives.
    as_on_drives: AtomicBool,
    /// Whether bytes that are not on the drives yet may be discarded. The last handle sets it, and a new handle clears
    /// it (`give_up`).
    given_up: AtomicBool,
    /// Its count is one for each handle, and one for this. Operations in flight hold the file without being handles.
    handles: Arc<()>,
    /// Dropped after `file`, and before the entry.
    ending: Option<Ending>,
    /// Dropped after `file`: from then on the file may be opened again.
    _entry: Entry<OpenFile>,
    /// The array, which stays as long as a file of it is open. Dropped last.
    _owner: ArrayRef,
}

impl OpenFile {
    pub(super) fn new(
        file: FileState,
        paged: Option<Arc<Paged>>,
        ending: Option<Ending>,
        entry: Entry<OpenFile>,
        owner: &ArrayRef,
    ) -> OpenFile {
        let readers = match &paged {
            Some(paged) => Arc::clone(&paged.memory.readers),
            None => Arc::new(AtomicU64::new(NO_READERS)),
        };
        OpenFile {
            paged,
            readers,
            file,
            finished: AtomicBool::new(false),
            as_on_drives: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            handles: Arc::new(()),
            ending,
            _entry: entry,
            _owner: Arc::clone(owner),
        }
    }

    /// Closes the file, then runs `after`, and only then releases the array. If this is the last owner of the array,
    /// closing it waits for callbacks, and one of them may wait for `after`.
    fn close_then(self, after: impl FnOnce()) {
        let owner = Arc::clone(&self._owner);
        drop(self);
        after();
        drop(owner);
    }

    #[inline(always)]
    pub fn exec(&self) -> &Arc<Exec> {
        &self.file.exec
    }

    /// Counts a new handle, until the result is dropped.
    pub fn handle(&self) -> Arc<()> {
        let handle = Arc::clone(&self.handles);
        self.given_up.store(false, Ordering::Release);
        handle
    }

    /// Gives up the bytes that are only in memory, unless there is another handle than the caller's. A new handle
    /// counts itself and then clears the mark (`handle`). So either it is counted here, or it clears the mark after
    /// this.
    pub fn give_up(&self) {
        // A swap, so that a handle is counted below if this undoes its clearing. AcqRel: pairs with the Release in
        // `handle`.
        self.given_up.swap(true, Ordering::AcqRel);
        if Arc::strong_count(&self.handles) > 2 {
            self.given_up.store(false, Ordering::Release);
        }
    }

    /// Whether a user has a handle. Operations in flight do not count.
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.handles) > 1
    }

    /// Whether what the file holds goes with its last holder.
    pub fn is_removal(&self) -> bool {
        self.ending.as_ref().is_some_and(Ending::is_removal)
    }

    /// Makes durable every write that ended before this call, and the length. At the end of the file, pages that cannot
    /// be flushed are lost, and all others become durable. If nothing is in flight (`is_quiet`), a plain file gets its
    /// exact length, too.
    fn sync_as(&self, is_end: bool, is_quiet: bool) -> Result<()> {
        let Some(mut turn) = self.file.begin_sync(is_end)? else { return Ok(()) };
        let flushed = self.flush_all();
        // At the end of the file, pages that could not be flushed are lost: their parts keep the old bytes.
        if flushed.is_err() && !is_end {
            // Pages that failed stay dirty, and the next sync tries again.
            return flushed;
        }
        if flushed.is_err() && is_quiet {
            turn = self.give_up_growth(turn);
        }
        let cut = if is_quiet { self.file.cut_plain() } else { Ok(()) };
        let finished = turn.finish();
        flushed.and(cut).and(finished)
    }

    /// Runs at the end of a plain file if pages past its durable length cannot be written: the file keeps the durable
    /// length instead of a longer one with zeroes. A file of an array has its space before, so this concerns only pages
    /// that a drive has refused.
    fn give_up_growth<'a>(&self, mut turn: SyncTurn<'a>) -> SyncTurn<'a> {
        let first = turn.durable_len() / PAGE_BYTES as u64;
        let is_lost = |paged: &Arc<Paged>| paged.pager.dirty_of(paged.number()).iter().any(|key| key.page() >= first);
        if self.file.is_plain() && self.paged.as_ref().is_some_and(is_lost) {
            turn.give_up_growth();
        }
        turn
    }

    /// Makes every write that ended before this call durable, and the length, for a handle. It also reports failures of
    /// write-back since the handle's last sync. The caller is not inside the gate.
    pub fn sync_and_report(&self, reported: &Reported) -> Result<()> {
        let result = if self.file.is_overlong() {
            // The writes that made it so have ended, or they end before the gate is closed.
            let _closed = self.file.begin_resize()?;
            self.sync_as(false, true)
        } else {
            let _entered = Entered::enter(&self.file)?;
            self.sync_as(false, false)
        };
        let later = self.file.errors.report(reported);
        result?;
        later.map_or(Ok(()), |failure| Err(self.file.error(failure)))
    }

    /// Writes all dirty pages, without an fsync: so that a later sync shares its fsyncs with other files.
    /// The handle has reported the error then. The caller is not inside the gate.
    pub fn write_back(&self, reported: &Reported) -> Result<()> {
        let _entered = Entered::enter(&self.file)?;
        self.flush_all().inspect_err(|_| {
            let _is_the_error = self.file.errors.report(reported);
        })
    }

    /// Sets the length in bytes, durably (rule 4 of the length). The caller is not inside the gate.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file.range_end(len, 0)?;
        let resize = self.file.begin_resize()?;
        // An error up to the change of the length leaves it as it is.
        self.exec().get_ready_to_block()?;
        // Before the length changes: a new one would hide what is missing.
        self.file.check_uncut()?;
        let before = self.file.len();
        if len < before {
            self.sync_as(false, true)?;
            resize.check_cut(len)?;
            resize.cut(len);
            if let Some(paged) = &self.paged {
                paged.cut(len);
            }
            self.sync_changed_len(&resize, before)?;
            // Unless it has failed half way, what stays beyond the end is cleared before the file grows.
            return resize.clean_tail().or_else(|error| if self.file.is_poisoned() { Err(error) } else { Ok(()) });
        }
        if len > before {
            self.flush_all()?;
            self.clear_stale_tail(&resize)?;
            resize.extend(len)?;
            return self.sync_changed_len(&resize, before);
        }
        // If the length is right already, it must become durable, too.
        self.sync_as(false, true)
    }

    /// Makes a length durable that all calls see already. After an error no call writes at the new length, or the old
    /// length is restored: all bytes up to it are on the drives.
    fn sync_changed_len(&self, resize: &crate::file::Resize<'_>, before: u64) -> Result<()> {
        self.sync_as(false, true).inspect_err(|error| {
            if error.passes() {
                resize.cut(before);
                self.paged.iter().for_each(|paged| paged.undo_cut(before));
            }
            self.file.set_poison_for_good(error);
        })
    }

    /// Enters the file for writes of `ranges`, in bytes, and allocates space for them. The last range ends at `end`.
    /// First clears the bytes that failed writes have left before `end` (rule 5 of the length).
    pub fn enter_to_write(&self, end: u64, ranges: impl Iterator<Item = Range<u64>> + Clone) -> Result<Entered<'_>> {
        let mut entered = self.enter_swept(end)?;
        while self.file.must_move(end) || !self.file.reserve(end, ranges.clone())? {
            drop(entered);
            self.file.begin_sweep()?.move_for(end)?;
            entered = Entered::enter(&self.file)?;
        }
        Ok(entered)
    }

    /// Enters the file, after it has cleared the bytes that failed writes have left before `end`.
    fn enter_swept(&self, end: u64) -> Result<Entered<'_>> {
        let mut entered = Entered::enter(&self.file)?;
        while self.file.is_in_stale_tail(end) {
            drop(entered);
            let resize = self.file.begin_sweep()?;
            self.clear_stale_tail(&resize)?;
            drop(resize);
            entered = Entered::enter(&self.file)?;
        }
        Ok(entered)
    }

    /// Allocates space for `len` bytes. The caller is not inside the gate.
    pub fn preallocate(&self, len: u64) -> Result<()> {
        loop {
            if self.file.must_move(len) {
                self.file.begin_resize()?.move_for(len)?;
            }
            // Clearing these bytes later would free the space again.
            let _entered = self.enter_swept(len)?;
            if self.file.preallocate(len)? {
                return Ok(());
            }
        }
    }

    fn clear_stale_tail(&self, resize: &crate::file::Resize<'_>) -> Result<()> {
        if !resize.has_stale_tail() {
            return Ok(());
        }
        let len = self.file.len();
        if let Some(paged) = &self.paged
            && !paged.cut_behind(len)
        {
            // The page that contains the end is discarded, too, because pins leave it no frame. So its bytes must be on
            // its drive before. Only in this case is the error of that page one of a write elsewhere.
            self.flush_page_now(paged, len / PAGE_BYTES as u64)?;
            paged.cut(len);
        }
        resize.clean_tail()
    }

    /// Makes all writes durable and frees the space that was allocated ahead, once. Nothing is in flight. All steps are
    /// tried, and the first error is returned.
    pub fn finish(&self) -> Result<()> {
        if self.finished.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if !self.file.is_writer() {
            self.as_on_drives.store(true, Ordering::Release);
            return Ok(());
        }
        if self.given_up.load(Ordering::Acquire) || self.is_removal() {
            return self.file.cut_plain();
        }
        debug_assert!(!shares::is_serving(), "what follows waits for drives (`OpenRef::let_go`)");
        // Without a good sync the parts are not cut: the durable length may be the longer one.
        let synced = self.sync_as(true, true);
        let kept = if self.file.is_plain() { synced } else { synced.and_then(|()| self.file.trim()) };
        self.as_on_drives.store(kept.is_ok(), Ordering::Release);
        kept.and(self.file.errors.unreported().map_or(Ok(()), |failure| Err(self.file.error(failure))))
    }
}

impl Drop for OpenFile {
    /// Runs when the last owner is dropped. Errors become notices; a caller that needs them calls `close`.
    fn drop(&mut self) {
        // The order of drops: the remaining pages, then the parts, then the entry.
        let _leaving = Leaving(self);
        if self.finished.load(Ordering::Acquire) {
            // Closing the array has finished the file.
            return;
        }
        // A panic would leave the caller without the end that follows the close, or end a process that unwinds already.
        let finished = catch_unwind(AssertUnwindSafe(|| self.finish()));
        if let Err(error) = finished.unwrap_or(Err(Error::Panicked)) {
            self.exec().notice(format!("closing {:?}: {error}", self.file.name()));
        }
    }
}

/// Removes a file from its pager when it is dropped.
struct Leaving<'a>(&'a OpenFile);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let OpenFile { paged: Some(paged), file, as_on_drives, .. } = self.0 else { return };
        // Bytes that failed writes left past the end are in a cached page, too.
        let is_kept = file.is_known() && as_on_drives.load(Ordering::Acquire) && !file.has_stale_tail();
        paged.pager.leave(paged, is_kept.then(|| file.len()));
    }
}

/// An owner of an open file. Dropping the last owner closes the file, on any thread.
#[derive(Clone, Debug)]
pub struct OpenRef(ManuallyDrop<Arc<OpenFile>>);

impl OpenRef {
    pub fn new(file: Arc<OpenFile>) -> OpenRef {
        OpenRef(ManuallyDrop::new(file))
    }

    /// Releases the file, then runs `after`. The last owner flushes the file, and so waits for drives and for locks of
    /// blocks. A piece of the same drive thread may hold such a lock. So a thread that must not wait leaves both steps
    /// to another thread (rule 4 of `pools`).
    pub fn let_go(self, after: impl FnOnce() + Send + 'static) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, and `this` is not dropped.
        let file = unsafe { ManuallyDrop::take(&mut this.0) };
        match Arc::into_inner(file) {
            Some(last) if !last.exec().may_close() => {
                let exec = last.exec();
                let (closes, resumes) = (Arc::clone(&exec.closes), Arc::clone(&exec.resumes));
                let close = Box::new(move || last.close_then(after));
                if let Some(close) = closes.hand_over(close) {
                    resumes.run(close);
                }
            }
            Some(last) => last.close_then(after),
            None => after(),
        }
    }
}

/// The most checks of a closing thread for the end of the I/O in flight, with a pause after each: a second or more.
const CLOSE_LOOKS: u32 = 20_000;

impl OpenRef {
    /// Releases the file for a caller that has dropped its handle. If no other handle is left, this returns when the
    /// file is closed. Until then read-ahead and the operations of dropped futures own the file, and with it its space
    /// and its file system. The wait has a bound, because an operation may wait for the caller.
    pub fn let_go_and_wait(self) {
        if !self.exec().home.is_here() {
            // Rule 3 of the fork.
            return;
        }
        let (file, exec) = (Arc::downgrade(&*self), Arc::clone(self.exec()));
        let (table, id) = self._entry.place();
        drop(self);
        for _ in 0..CLOSE_LOOKS {
            match file.upgrade().map(OpenRef::new) {
                None => return table.wait_for(&id),
                Some(file) if file.is_held() => return,
                Some(in_flight) => drop(in_flight),
            }
            exec.pause_for_io();
        }
    }
}

impl Deref for OpenRef {
    type Target = Arc<OpenFile>;

    #[inline(always)]
    fn deref(&self) -> &Arc<OpenFile> {
        &self.0
    }
}

impl Drop for OpenRef {
    /// Runs on any thread: also in the waker of a task, on a drive thread.
    fn drop(&mut self) {
        if !self.exec().home.is_here() {
            // Rule 3 of the fork.
            return;
        }
        // SAFETY: `self` is gone after this, and its parts are taken by the copy alone.
        let this = OpenRef(ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.0) }));
        this.let_go(|| ());
    }
}

/// A guard inside the gate of a file that also owns the file: for spawned operations.
#[derive(Debug)]
pub struct EnteredFile(Option<OpenRef>);

impl EnteredFile {
    /// Takes over from `entered`, which is inside the same file.
    pub fn stay(entered: Entered<'_>, file: OpenRef) -> EnteredFile {
        // The new guard leaves the gate.
        entered.stay();
        EnteredFile(Some(file))
    }

    /// Enters, unless the gate or the array is closed.
    pub fn try_enter(file: &Arc<OpenFile>) -> Option<EnteredFile> {
        let entered = Entered::try_enter(&file.file)?;
        Some(EnteredFile::stay(entered, OpenRef::new(Arc::clone(file))))
    }

    /// Leaves the gate, releases the file, and then runs `after`. Code that `after` wakes may close and delete the
    /// file.
    pub fn leave(mut self, after: impl FnOnce() + Send + 'static) {
        if let Some(file) = self.take() {
            file.let_go(after);
        }
    }

    fn take(&mut self) -> Option<OpenRef> {
        let file = self.0.take()?;
        file.file.leave_gate();
        Some(file)
    }
}

impl Deref for EnteredFile {
    type Target = Arc<OpenFile>;

    fn deref(&self) -> &Arc<OpenFile> {
        match &self.0 {
            Some(file) => file,
            None => unreachable!("what takes the file takes the guard"),
        }
    }
}

impl Drop for EnteredFile {
    fn drop(&mut self) {
        drop(self.take());
    }
}
