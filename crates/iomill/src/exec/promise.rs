//! The result of an operation, from the thread that has it ([`Promise`]) to the future that waits for it
//! ([`Promised`]).
//!
//! Non-goals: polling of operations (`task`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::users_code;
use crate::error::{Error, Result};
use crate::sys::sync::{Mutex, lock};

#[derive(Debug)]
enum PromiseState<T> {
    /// There is no result yet. The waker of the task that waits, if it has been polled.
    Open(Option<Waker>),
    Kept(T),
    /// The promise was dropped without a result: the operation has panicked.
    Broken,
    /// The future has returned the result.
    Taken,
}

/// The right to give a future its result, once. If it is dropped without a result, the future resolves to an error.
#[derive(Debug)]
pub struct Promise<T>(
    /// `None` once the promise is kept.
    Option<Arc<Mutex<PromiseState<T>>>>,
);

/// The future of a promise's result.
#[derive(Debug)]
pub struct Promised<T>(Arc<Mutex<PromiseState<T>>>);

/// A promise and its future.
pub fn promise<T>() -> (Promise<T>, Promised<T>) {
    let state = Arc::new(Mutex::new(PromiseState::Open(None)));
    (Promise(Some(Arc::clone(&state))), Promised(state))
}

impl<T> Promise<T> {
    /// Gives the future its result, and wakes the task that waits for it.
    pub fn keep(mut self, result: T) {
        self.end(PromiseState::Kept(result));
    }

    fn end(&mut self, how: PromiseState<T>) {
        let Some(promised) = self.0.take() else { return };
        let waker = {
            let mut state = lock(&promised);
            match &mut *state {
                PromiseState::Open(waker) => {
                    let waker = waker.take();
                    *state = how;
                    waker
                }
                _ => None,
            }
        };
        if let Some(waker) = waker {
            users_code::wake(waker);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.end(PromiseState::Broken);
    }
}

impl<T> Promised<T> {
    /// Whether the result is still to come.
    pub fn is_open(&self) -> bool {
        matches!(&*lock(&self.0), PromiseState::Open(_))
    }
}

impl<T> Future for Promised<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        // Cloned and dropped without the lock, because wakers are a user's code.
        let mut waker = Some(context.waker().clone());
        let now = {
            let mut state = lock(&self.0);
            match &mut *state {
                PromiseState::Open(before) => {
                    std::mem::swap(before, &mut waker);
                    None
                }
                _ => Some(std::mem::replace(&mut *state, PromiseState::Taken)),
            }
        };
        drop(waker);
        match now {
            None | Some(PromiseState::Open(_)) => Poll::Pending,
            Some(PromiseState::Kept(result)) => Poll::Ready(Ok(result)),
            Some(PromiseState::Broken) => Poll::Ready(Err(Error::Panicked)),
            Some(PromiseState::Taken) => Poll::Ready(Err(Error::invalid("a future", "polled again after it resolved"))),
        }
    }
}
