//! What a thread has to tell when it has left a context: the ends of shares, and operations to wake.
//!
//! Goals: no owner runs under a lock, and no owner runs inside another. An owner may begin I/O, its end brings the next owner, and so on.
//! So the outermost caller tells all of them, one after the other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use crate::drive::shares::{Ended, begin_serving};

thread_local! {
    static TOLD: RefCell<VecDeque<Told>> = const { RefCell::new(VecDeque::new()) };
    /// How many calls of this thread will tell what is in `TOLD`, or are about to.
    static COLLECTING: Cell<u32> = const { Cell::new(0) };
}

enum Told {
    Ended(Ended),
    Wake(Waker),
}

/// Collects what is to be told until this is dropped. Then the outermost one tells it.
pub struct Collecting {
    /// Where a thread that is ending has no `TOLD` any more.
    ended: Vec<Ended>,
}

impl Collecting {
    /// Tells what was collected, if this is the outermost one. Returns whether there was anything. The caller holds no lock.
    pub fn tell(&mut self) -> bool {
        let any = !self.ended.is_empty();
        if any {
            let _serving = begin_serving();
            self.ended.drain(..).for_each(Ended::tell);
        }
        (COLLECTING.with(Cell::get) == 1 && tell_all()) || any
    }

    /// From now on.
    pub fn begin() -> Collecting {
        COLLECTING.with(|depth| depth.set(depth.get() + 1));
        Collecting { ended: Vec::new() }
    }

    /// Adds shares that have ended.
    pub fn add(&mut self, ended: &mut Vec<Ended>) {
        let added = TOLD.try_with(|told| told.borrow_mut().extend(ended.drain(..).map(Told::Ended)));
        if added.is_err() {
            self.ended.append(ended);
        }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.tell();
        COLLECTING.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Tells what has been collected so far: also for a caller further in that must see an end now. Returns whether there was anything.
pub fn tell_all() -> bool {
    let next = || TOLD.try_with(|told| told.borrow_mut().pop_front()).ok().flatten();
    let Some(mut first) = next() else { return false };
    let _serving = begin_serving();
    loop {
        match first {
            Told::Ended(ended) => ended.tell(),
            // A task polls its operation here, and catches its panics.
            Told::Wake(waker) => waker.wake(),
        }
        match next() {
            Some(told) => first = told,
            None => return true,
        }
    }
}

/// Wakes an operation when the calling thread has left its locks. Gives the waker back if the thread collects nothing.
pub fn wake_later(waker: Waker) -> Option<Waker> {
    if !is_collecting() {
        return Some(waker);
    }
    let mut waker = Some(waker);
    // A thread that is ending has no `TOLD` any more, and gives the waker back.
    let _added = TOLD.try_with(|told| told.borrow_mut().extend(waker.take().map(Told::Wake)));
    waker
}

/// Whether the calling thread tells what is collected later.
pub fn is_collecting() -> bool {
    COLLECTING.with(Cell::get) > 0
}
