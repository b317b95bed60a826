//! [`Change`]: a call that changes the catalog, in steps that the blocking call and the future share.
//!
//! Goals: one form of each change; futures share batches of writes and flushes (`exec::turns`). Non-goals: what changes there are (`names`,
//! `draft`).

use std::sync::Arc;

use super::answer::Answer;
use super::array::{Array, ArrayInner};
use crate::catalog::Queued;
use crate::error::{Error, Result};
use crate::exec::turns::Job;
use crate::exec::{PageWrite, Promise, promise};

/// A change of the catalog in steps.
pub(super) trait Change {
    /// What the first step makes.
    type Content;
    /// What the second step finds.
    type Found;
    /// What the call returns.
    type Output;

    /// Makes the content that the change needs.
    fn write(&mut self, array: &Array) -> Result<Self::Content>;

    /// Pages of the content that are written together with those of other changes.
    fn pages<'a>(&'a self, content: &'a Self::Content) -> Option<PageWrite<'a>> {
        let _has_none = content;
        None
    }

    /// The pages are written. If not, the change writes its bytes itself.
    fn end_pages(&self, content: &mut Self::Content, are_written: bool) -> Result<()> {
        let _has_none = (content, are_written);
        Ok(())
    }

    /// Makes the change in memory.
    fn queue(&self, array: &ArrayInner, content: &Self::Content) -> Result<Queued<Self::Found>>;

    /// Runs when the change is durable.
    fn end(self, array: &Arc<ArrayInner>, content: Self::Content, found: Self::Found) -> Result<Self::Output>;
}

/// Makes a change here.
pub(super) fn make<C: Change>(mut change: C, array: &Array) -> Result<C::Output> {
    let inner = array.open_inner()?;
    let content = change.write(array)?;
    let queued = change.queue(inner, &content)?;
    let found = inner.catalog.settle(queued)?;
    change.end(inner, content, found)
}

/// Makes a change for a future. With `is_long` the content is made on a thread of its own, so that other changes do not wait for it.
pub(super) fn begin<C>(change: C, array: &Array, is_long: bool) -> Answer<C::Output>
where
    C: Change<Content: Send, Found: Send, Output: Send> + Send + 'static,
{
    let begun = array.open_inner().and_then(|inner| {
        inner.exec.changes.get_ready()?;
        if is_long { inner.exec.waits.get_ready() } else { Ok(()) }
    });
    if let Err(error) = begun {
        return Answer::now(Err(error));
    }
    let (promise, promised) = promise();
    let mut job = Box::new(Later { change, array: array.clone(), at: At::Begun, promise });
    let exec = &array.inner.exec;
    if is_long {
        let later = Arc::clone(exec);
        exec.waits.run(Box::new(move || {
            job.write();
            later.changes.push(&later, job);
        }));
    } else {
        exec.changes.push(exec, job);
    }
    Answer::later(promised)
}

/// A change that a future waits for.
struct Later<C: Change> {
    change: C,
    /// How far it is.
    at: At<C::Content, C::Found>,
    array: Array,
    promise: Promise<Result<C::Output>>,
}

enum At<A, B> {
    Begun,
    Written(A),
    Queued(A, Queued<B>),
    Failed(Error),
}

impl<C> Job for Later<C>
where
    C: Change<Content: Send, Found: Send, Output: Send> + Send + 'static,
{
    fn write(&mut self) {
        if let At::Begun = self.at {
            self.at = self.change.write(&self.array).map_or_else(At::Failed, At::Written);
        }
    }

    fn pages(&self) -> Option<PageWrite<'_>> {
        match &self.at {
            At::Written(content) => self.change.pages(content),
            _ => None,
        }
    }

    fn end_pages(&mut self, are_written: bool) {
        if let At::Written(content) = &mut self.at
            && let Err(error) = self.change.end_pages(content, are_written)
        {
            self.at = At::Failed(error);
        }
    }

    fn queue(&mut self) {
        let Later { change, at, array, .. } = self;
        *at = match std::mem::replace(at, At::Begun) {
            At::Written(content) => {
                let queued = array.open_inner().and_then(|inner| change.queue(inner, &content));
                queued.map_or_else(At::Failed, |queued| At::Queued(content, queued))
            }
            at => at,
        };
    }

    fn end(self: Box<Self>) {
        let Later { change, at, array, promise } = *self;
        let result = match at {
            At::Queued(content, queued) => {
                // A close that has come meanwhile has made the change durable.
                let settled = array.inner.catalog.settle(queued);
                settled.and_then(|found| change.end(&array.inner, content, found))
            }
            At::Failed(error) => Err(error),
            // A step has panicked, and the promise is dropped without a result.
            At::Begun | At::Written(_) => return,
        };
        // Before the promise is kept: its owner may close the array and open it again.
        drop(array);
        promise.keep(result);
    }
}
