//! Letting go of an open file, from wherever the last one that has it happens to be.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use super::state::FileState;
use crate::drive::serve;

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
