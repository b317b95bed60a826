//! [`Change`]: a call that changes the catalog, in steps. The blocking call and the future share the steps.
//!
//! Goals: one form of each change; futures share batches of writes and fsyncs (`exec::turns`). Non-goals: the changes
//! themselves (`names`, `draft`).

use std::sync::Arc;

use super::answer::Answer;
use super::array::{Array, ArrayInner};
use crate::catalog::Queued;
use crate::error::{Error, Result};
use crate::exec::turns::Job;
use crate::exec::{PageWrite, Promise, QueuedCall, promise};
use crate::pager::OpenRef;
use crate::sys::events::Span;

/// A change of the catalog in steps.
pub(super) trait Change {
    /// The result of the first step.
    type Content;
    /// The result of the second step.
    type Found;
    /// The result of the call.
    type Output;

    /// The span of the call, for the changes that write contents.
    fn span(&self) -> Span {
        Span::none()
    }

    /// The first step: makes the content.
    fn write(&mut self, array: &Array) -> Result<Self::Content>;

    /// Pages of the content that are written together with those of other changes.
    fn pages<'a>(&'a self, content: &'a Self::Content) -> Option<PageWrite<'a>> {
        let _has_none = content;
        None
    }

    /// Ends the write of the pages. If it failed, the change writes its bytes itself.
    fn end_pages(&self, content: &mut Self::Content, are_written: bool) -> Result<()> {
        let _has_none = (content, are_written);
        Ok(())
    }

    /// The second step: makes the change in memory.
    fn queue(&self, array: &ArrayInner, content: &Self::Content) -> Result<Queued<Self::Found>>;

    /// The third step: runs when the change is durable.
    fn end(&self, array: &Arc<ArrayInner>, content: &Self::Content, found: Self::Found) -> Result<Self::Output>;

    /// Returns the open file that the change holds, which is released before the caller has the result. Drops the rest.
    fn release(self, content: Option<Self::Content>) -> Option<OpenRef>
    where
        Self: Sized,
    {
        let _none = content;
        None
    }
}

/// Makes a change on the calling thread.
pub(super) fn make<C: Change>(mut change: C, array: &Array) -> Result<C::Output> {
    change.span().run(|| {
        let inner = array.open_inner()?;
        let content = change.write(array)?;
        let queued = change.queue(inner, &content)?;
        let found = inner.catalog.settle(queued)?;
        change.end(inner, &content, found)
    })
}

/// Makes a change for a future. With `is_long` another thread makes the content, so that other changes do not wait for
/// it.
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
    let exec = &array.inner.exec;
    let queued = exec.queue_call();
    let mut job = Box::new(Later { queued, span: change.span(), change, array: array.clone(), at: At::Begun, promise });
    if is_long {
        let later = Arc::clone(exec);
        exec.waits.run(Box::new(move || {
            job.write();
            later.change(job);
        }));
    } else {
        exec.change(job);
    }
    Answer::later(promised)
}

/// A change with a future that waits for it.
struct Later<C: Change> {
    queued: QueuedCall,
    span: Span,
    change: C,
    /// The step that the change has reached.
    at: At<C::Content, C::Found>,
    array: Array,
    promise: Promise<Result<C::Output>>,
}

enum At<A, B> {
    Begun,
    Written(A),
    Queued(A, Queued<B>),
    /// With the content, if it was made.
    Failed(Option<A>, Error),
}

impl<C> Job for Later<C>
where
    C: Change<Content: Send, Found: Send, Output: Send> + Send + 'static,
{
    fn write(&mut self) {
        if let At::Begun = self.at {
            let written = self.span.run(|| self.change.write(&self.array));
            self.at = written.map_or_else(|error| At::Failed(None, error), At::Written);
        }
    }

    fn pages(&self) -> Option<PageWrite<'_>> {
        match &self.at {
            At::Written(content) => self.change.pages(content),
            _ => None,
        }
    }

    fn end_pages(&mut self, are_written: bool) {
        self.at = match std::mem::replace(&mut self.at, At::Begun) {
            At::Written(mut content) => match self.span.run(|| self.change.end_pages(&mut content, are_written)) {
                Ok(()) => At::Written(content),
                Err(error) => At::Failed(Some(content), error),
            },
            at => at,
        };
    }

    fn queue(&mut self) {
        let Later { span, change, at, array, .. } = self;
        *at = match std::mem::replace(at, At::Begun) {
            At::Written(content) => {
                let queued = span.run(|| array.open_inner().and_then(|inner| change.queue(inner, &content)));
                match queued {
                    Ok(queued) => At::Queued(content, queued),
                    Err(error) => At::Failed(Some(content), error),
                }
            }
            at => at,
        };
    }

    fn end(self: Box<Self>) {
        let Later { queued, span, change, at, array, promise } = *self;
        drop(queued);
        let (result, content) = match at {
            At::Queued(content, queued) => {
                // If the array was closed meanwhile, the close has made the change durable.
                let end = || {
                    let found = array.inner.catalog.settle(queued)?;
                    change.end(&array.inner, &content, found)
                };
                (span.run(end), Some(content))
            }
            At::Failed(content, error) => (Err(error), content),
            // A step has panicked, and the promise is dropped without a result.
            At::Begun | At::Written(_) => return,
        };
        // Released before the promise is kept: the owner of the future may open the file again, or close the array.
        let held = change.release(content);
        drop((span, array));
        match held {
            Some(file) => file.let_go(move || promise.keep(result)),
            None => promise.keep(result),
        }
    }
}
