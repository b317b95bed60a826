//! [`Answer`]: the future of a call that waits for drives. A call that changes names is a [`Change`], which the blocking call and the future share.
//!
//! Goals: one form of each change; a future costs no thread of its own, and futures share flushes (`exec::turns`). Non-goals: reads and writes
//! (`future`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::array::{Array, ArrayInner};
use super::future::FutureState;
use crate::catalog::Queued;
use crate::error::{Error, Result};
use crate::exec::turns::Job;
use crate::exec::{Exec, Promise, Promised, promise};

/// The future of a call. It resolves to what the call returns.
///
/// The call has begun when the future is made, and goes on if the future is dropped. It runs on threads of the array. So neither the call that
/// makes the future nor a poll waits for a drive.
#[derive(Debug)]
#[must_use = "the call goes on, but its errors are lost"]
pub struct Answer<T>(FutureState<T>);

impl<T> Answer<T> {
    /// An answer that is there.
    pub(super) fn now(result: Result<T>) -> Answer<T> {
        Answer(FutureState::now(result))
    }

    pub(super) fn later(promised: Promised<Result<T>>) -> Answer<T> {
        Answer(FutureState::later(promised))
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.0.poll(context)
    }
}

/// A result that `T` never pins.
impl<T> Unpin for Answer<T> {}

/// Runs a call on a thread that may wait.
pub(super) fn answer_later<T: Send + 'static>(
    exec: &Arc<Exec>,
    call: impl FnOnce(Promise<Result<T>>) + Send + 'static,
) -> Answer<T> {
    if let Err(error) = exec.waits.get_ready() {
        return Answer::now(Err(error));
    }
    let (promise, promised) = promise();
    exec.waits.run(Box::new(move || call(promise)));
    Answer::later(promised)
}

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
        let changes = Arc::clone(&exec.changes);
        exec.waits.run(Box::new(move || {
            job.write();
            changes.push(job);
        }));
    } else {
        exec.changes.push(job);
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
