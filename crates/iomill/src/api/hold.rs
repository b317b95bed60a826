//! Being at an open file: inside its gate, and letting go of it, from wherever the last one that has it happens to be; and keeping
//! one closed.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use super::array::ArrayInner;
use super::state::FileState;
use crate::catalog::Id;
use crate::drive::serve;
use crate::error::Result;

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
        unsafe { ManuallyDrop::take(&mut self.0) }.let_go(|| ());
    }
}

impl FileState {
    /// Lets go of the file, then does `after`. Who lets go last has the file flushed, which waits for drives, and for block locks that a
    /// piece of the very drive thread may hold that is here; so what a drive's server tells of an end leaves both to another thread.
    pub fn let_go(self: Arc<Self>, after: impl FnOnce() + Send + 'static) {
        match Arc::into_inner(self) {
            Some(last) if serve::is_serving() => {
                let rests = Arc::clone(&last.array().rests);
                rests.run(Box::new(move || {
                    drop(last);
                    after();
                }));
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
