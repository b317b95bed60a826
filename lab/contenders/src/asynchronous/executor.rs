//! Futures on one thread: it polls the woken futures, and sleeps if there are none.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use iomill::Result;

use super::lane::{Flights, Lane};
use super::way::{Driver, Way};

/// Items that other threads leave for one waiting thread.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    items: Mutex<Vec<T>>,
    /// The waiting thread.
    thread: Thread,
}

impl<T> Inbox<T> {
    /// An inbox for the calling thread.
    pub(super) fn new(items: Vec<T>) -> Inbox<T> {
        Inbox { items: Mutex::new(items), thread: thread::current() }
    }

    pub(super) fn push(&self, item: T) {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = items.is_empty();
        items.push(item);
        drop(items);
        if was_empty {
            self.thread.unpark();
        }
    }

    /// Waits until there is at least one item, and takes all items. `into` must be empty.
    pub(super) fn take(&self, into: &mut Vec<T>) {
        loop {
            let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
            if !items.is_empty() {
                return std::mem::swap(&mut *items, into);
            }
            drop(items);
            thread::park();
        }
    }
}

/// The data of a future's waker.
struct Slot {
    index: usize,
    /// True while the index is in the inbox. `block_on_all` clears it before it polls, so that no wake is lost. AcqRel:
    /// the swaps in `wake_by_ref` and `block_on_all` pair with each other.
    is_queued: AtomicBool,
    ready: Arc<Inbox<usize>>,
}

impl Wake for Slot {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.index);
        }
    }
}

/// Polls the futures on this thread until all are ready.
pub(crate) fn block_on_all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let ready = Arc::new(Inbox::new((0..futures.len()).collect()));
    let slot = |index| Arc::new(Slot { index, is_queued: AtomicBool::new(true), ready: Arc::clone(&ready) });
    let mut running: Vec<(Option<F>, Arc<Slot>, Waker)> = futures
        .into_iter()
        .enumerate()
        .map(|(index, future)| {
            let slot = slot(index);
            (Some(future), Arc::clone(&slot), Waker::from(slot))
        })
        .collect();
    let mut outputs: Vec<F::Output> = Vec::with_capacity(running.len());
    let mut woken = Vec::with_capacity(running.len());
    while outputs.len() < running.len() {
        ready.take(&mut woken);
        for index in woken.drain(..) {
            let (future, slot, waker) = &mut running[index];
            slot.is_queued.swap(false, Ordering::AcqRel);
            let Some(polled) = future else { continue };
            if let Poll::Ready(output) = Pin::new(polled).poll(&mut Context::from_waker(waker)) {
                outputs.push(output);
                *future = None;
            }
        }
    }
    outputs
}

/// Futures that the measuring thread polls.
#[derive(Debug)]
pub(super) struct BlockOn;

impl Way for BlockOn {
    fn driver(&self, flights: Flights) -> Result<Box<dyn Driver>> {
        Ok(Box::new(Lanes(flights.futures())))
    }
}

struct Lanes(Vec<Lane>);

impl Driver for Lanes {
    fn drive(&mut self) -> Result<u64> {
        block_on_all(std::mem::take(&mut self.0)).into_iter().sum()
    }
}
