//! Being at an open file: inside its gate, and letting go of it, from wherever the last one that has it happens to be; and keeping
//! one closed.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use super::array::ArrayInner;
use super::callbacks;
use super::state::FileState;
use crate::catalog::{Id, Record};
use crate::error::{Error, Result};
use crate::sys::sync::lock;

/// A handle's hold on its file.
#[derive(Clone, Debug)]
pub struct Hold(ManuallyDrop<Arc<FileState>>);

impl Hold {
    pub fn new(file: Arc<FileState>) -> Hold {
        Hold(ManuallyDrop::new(file))
    }
}

impl Deref for Hold {
    type Target = Arc<FileState>;

    #[inline(always)]
    fn deref(&self) -> &Arc<FileState> {
        &self.0
    }
}

impl Drop for Hold {
    /// Anywhere: also in the waker of a task that a drive thread wakes.
    fn drop(&mut self) {
        // SAFETY: it is taken here only, once, and nobody sees `self` after this.
        let file = unsafe { ManuallyDrop::take(&mut self.0) };
        if file.array().home.is_here() {
            file.let_go(|| ());
        } else {
            // Rule 3 of `forked`.
            std::mem::forget(file);
        }
    }
}

impl FileState {
    /// Lets go of the file, then does `after`. Who lets go last has the file flushed, which waits for drives, and for block locks that a
    /// piece of the very drive thread may hold that is here; so what must not wait for that leaves both to another thread (rule 4 of
    /// `callbacks`).
    pub fn let_go(self: Arc<Self>, after: impl FnOnce() + Send + 'static) {
        match Arc::into_inner(self) {
            Some(last) if !last.array().may_close() => {
                let array = last.array();
                let (closes, rests) = (Arc::clone(&array.closes), Arc::clone(&array.rests));
                let close = Box::new(move || {
                    drop(last);
                    after();
                });
                if let Some(close) = closes.hand_over(close) {
                    rests.run(close);
                }
            }
            last => {
                drop(last);
                after();
            }
        }
    }
}

/// Is inside the file's gate.
pub(crate) struct Inside<'a>(&'a FileState);

impl<'a> Inside<'a> {
    /// Enters, unless the array is closed.
    pub fn enter(state: &'a FileState) -> Result<Inside<'a>> {
        let array: &ArrayInner = state.array();
        array.check_home()?;
        state.gate.enter(|| array.pause());
        let inside = Inside(state);
        array.check_open()?;
        Ok(inside)
    }

    /// Enters, unless the gate is closed or the array is.
    pub fn try_enter(state: &'a FileState) -> Option<Inside<'a>> {
        let inside = state.gate.try_enter().then(|| Inside(state))?;
        state.array().is_open().then_some(inside)
    }

    /// Enters, unless the array is closed; `None` where the file's gate is, and the caller must not wait until it opens.
    pub fn enter_if_open(state: &'a FileState) -> Result<Option<Inside<'a>>> {
        state.array().check_home()?;
        if callbacks::may_wait() {
            return Inside::enter(state).map(Some);
        }
        if !state.gate.try_enter() {
            return Ok(None);
        }
        let inside = Inside(state);
        state.array().check_open()?;
        Ok(Some(inside))
    }

    /// Stays inside after the guard is gone; somebody else will leave.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// Keeps a file closed.
pub struct KeptClosed<'a> {
    pub array: &'a ArrayInner,
    pub id: Id,
}

impl Drop for KeptClosed<'_> {
    fn drop(&mut self) {
        self.array.closed(&self.id);
    }
}

/// What became of keeping a file closed.
enum Kept<'a> {
    Closed(#[expect(dead_code, reason = "held")] KeptClosed<'a>),
    /// It is being opened or closed.
    OnItsWay,
    /// No handle has it, but something that is under way on it does.
    InUse(#[expect(dead_code, reason = "held to be let go of without locks")] Arc<FileState>),
}

impl ArrayInner {
    /// Changes names while the files that `find` finds are closed and stay so; an error if one is open. What is under way on them is
    /// waited for without a hold on any name: it may be a user's task, for which others' files must not wait.
    pub fn with_closed<R>(
        &self,
        find: impl Fn() -> Result<Vec<Arc<Record>>>,
        change: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        loop {
            let naming = lock(&self.naming);
            let kept: Vec<_> = find()?.iter().map(|record| self.keep_closed(record)).collect::<Result<_>>()?;
            if kept.iter().all(|kept| matches!(kept, Kept::Closed(_))) {
                return change();
            }
            drop(naming);
            // What is let go of here may be the last hold, and is closed then.
            drop(kept);
            self.pause_for_io();
        }
    }

    /// Keeps a file from being opened while the guard lives; an error if it is open.
    fn keep_closed(&self, record: &Record) -> Result<Kept<'_>> {
        let mut open = lock(&self.open);
        self.check_open()?;
        let Some(entry) = open.get(&record.id) else {
            open.insert(record.id, Weak::new());
            return Ok(Kept::Closed(KeptClosed { array: self, id: record.id }));
        };
        let Some(state) = entry.upgrade() else { return Ok(Kept::OnItsWay) };
        // Without the lock, which closing takes: this may be the last hold.
        drop(open);
        if state.is_held() {
            return Err(Error::Busy { name: record.name.clone() });
        }
        Ok(Kept::InUse(state))
    }
}
