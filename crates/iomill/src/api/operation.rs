//! An operation that drive threads work on: shares out, ends in, somebody told.
//!
//! Rules:
//! 1. An operation belongs to itself: it holds its file and (unless a blocking call vouches for the caller's memory) its
//!    buffers, and lives until its last share has ended, whatever becomes of the future or call that caused it. It lets
//!    go of the file before anybody is told of the end: whoever is told may close the file and delete it.
//! 2. `remaining` counts shares still out, plus one while they are being handed out. Whoever brings it to zero ends the
//!    operation, once.
//!    That holds for a panic as well: what was not handed out then has failed, and what was is waited for.
//! 3. The buffers are touched by the kernel until then, and by the one that takes the result after.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::array::ArrayInner;
use super::cached::Work;
use super::callbacks;
use super::state::{FileState, Part};
use crate::drive::serve::{CANCELLED, Owner, Share};
use crate::drive::{Done, Failure, Piece};
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicUsize, Condvar, Mutex, Ordering, lock, wait};

/// The buffers of an operation: what it read, or what it wrote.
pub type Buffers = Vec<Vec<u8>>;

/// Who is told of the end.
enum Listener {
    /// Nobody yet, or somebody who blocks on `ended`.
    None,
    /// A future's task.
    Waker(Waker),
    /// Called with the operation; only hands it on to a callback thread.
    Callback(Box<dyn FnOnce(Arc<Operation>) + Send>),
}

struct Progress {
    /// Until the end.
    file: Option<Arc<FileState>>,
    done: bool,
    failure: Option<Failure>,
    /// Why nothing was begun, or from the end on `failure` in words; until it is taken.
    error: Option<Error>,
    listener: Listener,
}

/// An operation in progress.
pub struct Operation {
    remaining: AtomicUsize,
    progress: Mutex<Progress>,
    ended: Condvar,
    /// Rule 3.
    buffers: UnsafeCell<Buffers>,
    /// Where a write ends, and which array drives it touches; `None` for a read.
    write: Option<(u64, Vec<u16>)>,
    /// What goes through the cache; its spans' memory is in `buffers`.
    work: Option<Work>,
}

// SAFETY: everything but `buffers` is `Sync` by itself. `buffers` is reached through `UnsafeCell` by `take` alone, which
// runs at most once and only after `done` was seen under the lock, that is after every share has ended (rules 2 and 3).
unsafe impl Sync for Operation {}

impl Operation {
    /// An operation that has entered the file's gate and holds `buffers`.
    pub fn new(
        file: Arc<FileState>,
        buffers: Buffers,
        write: Option<(u64, Vec<u16>)>,
        work: Option<Work>,
    ) -> Arc<Operation> {
        Arc::new(Operation {
            remaining: AtomicUsize::new(1),
            progress: Mutex::new(Progress {
                file: Some(file),
                done: false,
                failure: None,
                error: None,
                listener: Listener::None,
            }),
            ended: Condvar::new(),
            buffers: UnsafeCell::new(buffers),
            write,
            work,
        })
    }

    /// Hands the shares to the drives, one message each; in the inline mode runs all of it here. With `flush` somebody waits for just
    /// this.
    ///
    /// # Safety
    /// The pieces' memory is the operation's own buffers, or memory that the caller keeps valid and untouched until
    /// the operation has ended.
    pub unsafe fn start(
        self: &Arc<Self>,
        array: &ArrayInner,
        pieces: impl Iterator<Item = (u16, Piece)>,
        span: (*const u8, usize),
        flush: bool,
    ) {
        let mut handing = Handing { operation: self, failure: Some(CANCELLED) };
        if array.runs_inline() {
            // SAFETY: the caller's promise holds until the operation has ended, which is after this.
            let ran = unsafe { self.run_here(array, pieces, span) };
            handing.failure = ran.unwrap_or_else(|error| {
                // No piece was begun, so the error is of no place: a blocking call would have returned it as it is.
                lock(&self.progress).error = Some(error);
                None
            });
            return;
        }
        let mut shares: Vec<Vec<Piece>> = vec![Vec::new(); array.catalog.drives().len()];
        for (drive, piece) in pieces {
            shares[usize::from(drive)].push(piece);
        }
        let share = |pieces| {
            self.remaining.fetch_add(1, Ordering::Relaxed);
            Share { owner: Arc::clone(self) as Arc<dyn Owner>, pieces, span, flush }
        };
        let shares = shares.into_iter().enumerate().filter(|(_, pieces)| !pieces.is_empty());
        // All of them before the first is sent: those that a panic keeps from being sent fail when they are dropped.
        let shares: Vec<(usize, Share)> = shares.map(|(drive, pieces)| (drive, share(pieces))).collect();
        shares.into_iter().for_each(|(drive, share)| array.send_share(drive, share));
        handing.failure = None;
    }

    /// `start` for what goes through the cache.
    ///
    /// # Safety
    /// As for `start`.
    pub unsafe fn start_work(self: &Arc<Self>, array: &ArrayInner, file: &FileState) {
        let pieces = self.work.iter().flat_map(|work| work.pieces(file));
        // SAFETY: the caller's promise, and the lists of scattered pieces are in `work`.
        unsafe { self.start(array, pieces, (std::ptr::null(), 0), false) };
    }

    /// Runs all pieces on the calling thread; the first failure. An error means that none was begun: the engine was there a moment ago
    /// (`get_ready`), and has gone.
    ///
    /// # Safety
    /// As for `start`.
    unsafe fn run_here(
        &self,
        array: &ArrayInner,
        pieces: impl Iterator<Item = (u16, Piece)>,
        span: (*const u8, usize),
    ) -> Result<Option<Failure>> {
        match &self.work {
            // SAFETY: the caller's promise holds until the operation has ended, which is after this.
            None => unsafe { array.run_here(span, pieces) },
            Some(work) => {
                let mut first = None;
                let done = |end: Done| {
                    work.piece_done(end.tag, end.result);
                    first = first.or(end.result.err());
                };
                // SAFETY: as above.
                unsafe { array.run_inline(span, pieces, done) }.map(|()| first)
            }
        }
    }

    /// Blocks until the operation has ended.
    pub fn wait(&self, array: &ArrayInner) {
        if !array.has_threads() {
            while !lock(&self.progress).done {
                array.pause();
            }
            return;
        }
        let mut progress = lock(&self.progress);
        while !progress.done {
            progress = wait(&self.ended, progress);
        }
    }

    /// Has a task woken at the end, unless it has come.
    pub fn poll(&self, waker: &Waker) -> Poll<()> {
        // Made and dropped without the lock: wakers are a user's code.
        let listener = Listener::Waker(waker.clone());
        let before = {
            let mut progress = lock(&self.progress);
            if progress.done {
                return Poll::Ready(());
            }
            std::mem::replace(&mut progress.listener, listener)
        };
        drop(before);
        Poll::Pending
    }

    /// Has `callback` called at the end, on the thread that brings it; before `start`.
    pub fn on_end(&self, callback: Box<dyn FnOnce(Arc<Operation>) + Send>) {
        lock(&self.progress).listener = Listener::Callback(callback);
    }

    /// The outcome, once, after the end.
    pub fn take(&self) -> Result<Buffers> {
        let mut progress = lock(&self.progress);
        assert!(progress.done, "an outcome is taken after the end");
        if let Some(error) = progress.error.take() {
            return Err(error);
        }
        // SAFETY: `done` is set, so no share is out and the kernel is finished with the memory (rule 3); the lock is
        // held, so no other `take` is here.
        Ok(std::mem::take(unsafe { &mut *self.buffers.get() }))
    }

    /// All shares have ended.
    fn end(self: Arc<Self>) {
        // What a panic kept from being begun or ended.
        self.work.iter().for_each(Work::abandon);
        let (file, failure, error) = {
            let mut progress = lock(&self.progress);
            (progress.file.take(), progress.failure, progress.error.take())
        };
        let Some(file) = file else { unreachable!("an operation ends once (rule 2)") };
        if let Some(error) = error.or_else(|| failure.map(|failure| file.error(failure))) {
            return self.conclude(file, Some(error));
        }
        if !self.work.as_ref().is_some_and(Work::has_rest) {
            return self.conclude(file, None);
        }
        // Not the array itself, which this may be the last to hold.
        let (inline, rests) = (file.array().runs_inline(), Arc::clone(&file.array().rests));
        let finish = move || {
            // SAFETY: the spans' memory is in `buffers`, which nobody takes before the end.
            let result = self.work.as_ref().map_or(Ok(()), |work| unsafe { work.finish(&file) });
            self.conclude(file, result.err());
        };
        // What is left waits for others, which a drive thread must not.
        if inline { finish() } else { rests.run(Box::new(finish)) }
    }

    fn conclude(self: Arc<Self>, file: Arc<FileState>, error: Option<Error>) {
        if let Some((end, drives)) = &self.write {
            // What goes through the cache is marked when it is flushed.
            let touched = |part: &Part| self.work.is_none() && drives.contains(&part.drive);
            if error.is_some() { file.wrote_in_part(*end, |_| true) } else { file.wrote(*end, touched) }
        }
        file.gate.leave();
        file.let_go(move || self.tell(error));
    }

    /// Tells whoever listens of the end.
    fn tell(self: Arc<Self>, error: Option<Error>) {
        let listener = {
            let mut progress = lock(&self.progress);
            progress.done = true;
            progress.error = error;
            self.ended.notify_all();
            std::mem::replace(&mut progress.listener, Listener::None)
        };
        match listener {
            Listener::None => {}
            Listener::Waker(waker) => callbacks::wake(waker),
            Listener::Callback(callback) => callback(self),
        }
    }

    /// Takes in the end of one share; `true` if it was the last (rule 2).
    fn count_down(&self, failure: Option<Failure>) -> bool {
        if let Some(failure) = failure {
            lock(&self.progress).failure.get_or_insert(failure);
        }
        self.remaining.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn end_share(self: &Arc<Self>, failure: Option<Failure>) {
        if self.count_down(failure) {
            Arc::clone(self).end();
        }
    }
}

/// An operation whose shares are being handed out. When it is dropped, by a panic too, that is over (rule 2).
struct Handing<'a> {
    operation: &'a Arc<Operation>,
    failure: Option<Failure>,
}

impl Drop for Handing<'_> {
    fn drop(&mut self) {
        self.operation.end_share(self.failure.take());
    }
}

/// A share holds its operation by this.
impl Owner for Operation {
    fn piece_done(&self, tag: u32, result: std::result::Result<(), Failure>) {
        if let Some(work) = &self.work {
            work.piece_done(tag, result);
        }
    }

    fn share_done(self: Arc<Self>, failure: Option<Failure>) {
        if self.count_down(failure) {
            self.end();
        }
    }
}
