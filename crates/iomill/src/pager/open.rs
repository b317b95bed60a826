//! An open file with its part of the cache: what handles hold.
//!
//! Goals: calls that need both the file and its cached pages, and the end of a file from wherever its last holder happens to be.
//! Non-goals: what a call does with pages, which is in the other files of this room.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Paged;
use super::table::Entry;
use crate::drive::{PAGE_BYTES, serve};
use crate::error::Result;
use crate::exec::Exec;
use crate::file::{Entered, FileState, Reported};
use crate::sys::sync::Ordering;

/// What an open file keeps: its array.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// An open file.
#[derive(Debug)]
pub struct OpenFile {
    /// Its part of the cache, if there is one.
    pub paged: Option<Arc<Paged>>,
    pub file: FileState,
    /// Nothing is left to keep. What a finished file still held would be written without the array's lock.
    finished: AtomicBool,
    /// What the drives do not hold yet is not wanted. Set by the last handle, cleared by one that comes after it (`give_up`).
    given_up: AtomicBool,
    /// One share for each handle, and this one. Operations in flight hold the file without being handles.
    handles: Arc<()>,
    /// Goes after the file: then it may be opened again.
    _entry: Entry<OpenFile>,
    /// What stays as long as a file of it is open. Goes last.
    _owner: Owner,
}

impl OpenFile {
    pub(super) fn new(file: FileState, paged: Option<Arc<Paged>>, entry: Entry<OpenFile>, owner: &Owner) -> OpenFile {
        OpenFile {
            paged,
            file,
            finished: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            handles: Arc::new(()),
            _entry: entry,
            _owner: Arc::clone(owner),
        }
    }

    #[inline(always)]
    pub fn exec(&self) -> &Arc<Exec> {
        &self.file.exec
    }

    /// A share of the file for a new handle.
    pub fn handle(&self) -> Arc<()> {
        let handle = Arc::clone(&self.handles);
        self.given_up.store(false, Ordering::Release);
        handle
    }

    /// Has what is only in memory given up, unless there is another handle than the caller's. A new handle counts itself and then clears the
    /// mark (`handle`): so either it is counted here, or the mark is cleared after this.
    pub fn give_up(&self) {
        // Read and written in one, so that a handle whose clearing this undoes is counted below.
        self.given_up.swap(true, Ordering::AcqRel);
        if Arc::strong_count(&self.handles) > 2 {
            self.given_up.store(false, Ordering::Release);
        }
    }

    /// Whether a user has a handle, rather than an operation on its way out.
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.handles) > 1
    }

    /// Makes every write that ended before this call durable, and the length.
    pub fn sync(&self) -> Result<()> {
        self.sync_as(false)
    }

    /// [`OpenFile::sync`]. At the file's end pages that could not be flushed are lost, and do not take all that was along with them.
    fn sync_as(&self, is_end: bool) -> Result<()> {
        let Some(turn) = self.file.begin_sync(is_end)? else { return Ok(()) };
        let flushed = self.flush_all();
        if flushed.is_err() && !is_end {
            // What failed stays dirty, and may be tried again.
            return flushed;
        }
        let finished = turn.finish();
        flushed.and(finished)
    }

    /// [`OpenFile::sync`] for a handle, which is told of what went wrong meanwhile as well.
    pub fn sync_and_report(&self, reported: &Reported) -> Result<()> {
        let result = self.sync();
        let later = self.file.errors.tell(reported);
        result?;
        later.map_or(Ok(()), |failure| Err(self.file.error(failure)))
    }

    /// Sets the length, durably (rule 4 of the length). The caller is not inside the gate.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.file.range_end(len, 0)?;
        let resize = self.file.begin_resize()?;
        // What fails before the length is raised leaves it as it is.
        self.exec().get_ready_to_block()?;
        if len < self.file.len() {
            self.sync()?;
            resize.cut(len);
            if let Some(paged) = &self.paged {
                paged.cut(len);
            }
            self.sync()?;
            return resize.clean_tail();
        }
        if len > self.file.len() {
            self.flush_all()?;
            self.clear_stale_tail(&resize)?;
            resize.extend(len)?;
        }
        // A length that writes have brought about already is to be durable too.
        self.sync()
    }

    /// Enters for writes, of which the last ends at `end`, behind the clearing of what failed ones have left (rule 5 of the length).
    pub fn enter_to_write(&self, end: u64) -> Result<Entered<'_>> {
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

    fn clear_stale_tail(&self, resize: &crate::file::Resize<'_>) -> Result<()> {
        if !resize.has_stale_tail() {
            return Ok(());
        }
        let len = self.file.len();
        if let Some(paged) = &self.paged {
            // The page that the file ends in goes as well, and is wanted on its drive before.
            self.flush_page_now(paged, len / PAGE_BYTES as u64)?;
            paged.cut(len);
        }
        resize.clean_tail()
    }

    /// Keeps what was written and gives back what was allocated ahead, once. Nothing is in flight. The first error, after everything was
    /// tried.
    pub fn finish(&self) -> Result<()> {
        if self.finished.swap(true, Ordering::AcqRel) || !self.file.is_writer() {
            return Ok(());
        }
        if self.given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        debug_assert!(!serve::is_serving(), "what follows waits for drives (`OpenRef::let_go`)");
        // Where an earlier failure keeps the file from being made durable, this says so.
        // A length that could not be published may be shorter than the one that was, for which the parts must be long enough.
        let kept = self.sync_as(true).and_then(|()| self.file.trim());
        kept.and(self.file.errors.untold().map_or(Ok(()), |failure| Err(self.file.error(failure))))
    }
}

impl Drop for OpenFile {
    /// The last handle is gone. A caller that wants to hear of errors calls `close`.
    fn drop(&mut self) {
        // In this order, also when finishing panics: pages that are left go, then the parts, then the entry.
        let _leaving = Leaving(self.paged.as_deref());
        if self.finished.load(Ordering::Acquire) {
            // The array is closed, and no call will ask.
            return;
        }
        if let Err(error) = self.finish() {
            self.exec().notice(format!("closing {:?}: {error}", self.file.name()));
        }
    }
}

/// Takes a file out of its cache when it is dropped.
struct Leaving<'a>(Option<&'a Paged>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(paged) = self.0 {
            paged.pager.leave(paged.number());
        }
    }
}

/// A hold on an open file. The last one that goes closes the file, wherever that is.
#[derive(Clone, Debug)]
pub struct OpenRef(ManuallyDrop<Arc<OpenFile>>);

impl OpenRef {
    pub fn new(file: Arc<OpenFile>) -> OpenRef {
        OpenRef(ManuallyDrop::new(file))
    }

    /// Lets go of the file, then does `after`. The last hold that goes has the file flushed, which waits for drives, and for block locks that
    /// a piece of the very drive thread may hold that is here; so where that must not be waited for, both are left to another thread (rule 4
    /// of `pools`).
    pub fn let_go(self, after: impl FnOnce() + Send + 'static) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, and `this` is not dropped.
        let file = unsafe { ManuallyDrop::take(&mut this.0) };
        match Arc::into_inner(file) {
            Some(last) if !last.exec().may_close() => {
                let exec = last.exec();
                let (closes, resumes) = (Arc::clone(&exec.closes), Arc::clone(&exec.resumes));
                let close = Box::new(move || {
                    drop(last);
                    after();
                });
                if let Some(close) = closes.hand_over(close) {
                    resumes.run(close);
                }
            }
            last => {
                drop(last);
                after();
            }
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
    /// Anywhere: also in the waker of a task that a drive thread wakes.
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

/// Is inside the gate of a file, and holds the file: for operations that no call waits for.
#[derive(Debug)]
pub struct EnteredFile(Option<OpenRef>);

impl EnteredFile {
    /// Stays inside after `entered` is gone, which is inside the same file.
    pub fn stay(entered: Entered<'_>, file: &OpenRef) -> EnteredFile {
        // What is entered is now left by this.
        entered.stay();
        EnteredFile(Some(file.clone()))
    }

    /// Enters, if that takes no wait and the array is open.
    pub fn try_enter(file: &Arc<OpenFile>) -> Option<EnteredFile> {
        let entered = Entered::try_enter(&file.file)?;
        Some(EnteredFile::stay(entered, &OpenRef::new(Arc::clone(file))))
    }

    /// Leaves the gate, lets go of the file, and then does `after`: what is told may close the file and delete it.
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
