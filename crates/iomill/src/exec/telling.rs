//! The news of a thread that has left a context: shares that have ended, and operations to wake.
//!
//! Goals: no owner runs under a lock, and no owner runs inside another. An owner may begin I/O, the end of that I/O is
//! news for the next owner, and so on. So the outermost caller tells all news, one after the other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use crate::drive::shares::{Ended, begin_serving};
use crate::sys::sync::{AtomicU32, Ordering};

thread_local! {
    /// The news of this thread that are not told yet, oldest first.
    static NEWS: RefCell<VecDeque<News>> = const { RefCell::new(VecDeque::new()) };
    /// The number of live `Collecting` of this thread. If it is not 0, the outermost one will tell the news.
    static COLLECTING: Cell<u32> = const { Cell::new(0) };
}

enum News {
    Ended(Ended),
    Wake(Waker),
}

/// Collects news until its drop. The drop of a thread's outermost one tells them.
pub struct Collecting {
    /// The news of a thread that is ending, and has no `NEWS` any more.
    ended: Vec<Ended>,
}

impl Collecting {
    /// Tells the news, if this is the outermost one. Whether there was any. The caller holds no lock.
    pub fn tell(&mut self) -> bool {
        let any = !self.ended.is_empty();
        if any {
            let _serving = begin_serving();
            self.ended.drain(..).for_each(Ended::tell);
        }
        (COLLECTING.with(Cell::get) == 1 && tell_all()) || any
    }

    /// Begins to collect.
    pub fn begin() -> Collecting {
        COLLECTING.with(|depth| depth.set(depth.get() + 1));
        Collecting { ended: Vec::new() }
    }

    /// What a turn of a cell with this number of unfinished shares ends.
    pub fn counting<'a>(&'a mut self, unfinished: &'a AtomicU32) -> TurnEnds<'a> {
        TurnEnds { unfinished, collecting: self, ended: Vec::new() }
    }

    /// Adds shares that have ended.
    fn add(&mut self, ended: &mut Vec<Ended>) {
        let added = NEWS.try_with(|news| news.borrow_mut().extend(ended.drain(..).map(News::Ended)));
        if added.is_err() {
            self.ended.append(ended);
        }
    }
}

/// The shares that end in a turn. Its drop counts them, and leaves them to be told, also when an engine panics after it
/// has ended some.
pub struct TurnEnds<'a> {
    unfinished: &'a AtomicU32,
    collecting: &'a mut Collecting,
    pub ended: Vec<Ended>,
}

impl Drop for TurnEnds<'_> {
    fn drop(&mut self) {
        if !self.ended.is_empty() {
            // Release: pairs with the Acquire in `SharedCell::is_idle`.
            self.unfinished.fetch_sub(self.ended.len() as u32, Ordering::Release);
            self.collecting.add(&mut self.ended);
        }
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.tell();
        COLLECTING.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Tells all news collected so far. Also for an inner caller that must see an end now. Whether there was any.
pub fn tell_all() -> bool {
    let next = || NEWS.try_with(|news| news.borrow_mut().pop_front()).ok().flatten();
    let Some(mut first) = next() else { return false };
    let _serving = begin_serving();
    loop {
        match first {
            News::Ended(ended) => ended.tell(),
            // A task polls its operation here, and catches its panics.
            News::Wake(waker) => waker.wake(),
        }
        match next() {
            Some(news) => first = news,
            None => return true,
        }
    }
}

/// Wakes an operation once the calling thread has released its locks. Gives the waker back if the thread does not
/// collect news.
pub fn wake_later(waker: Waker) -> Option<Waker> {
    if !is_collecting() {
        return Some(waker);
    }
    let mut waker = Some(waker);
    // A thread that is ending has no `NEWS` any more, and gives the waker back.
    let _added = NEWS.try_with(|news| news.borrow_mut().extend(waker.take().map(News::Wake)));
    waker
}

/// Whether the calling thread collects news, and tells them later.
pub fn is_collecting() -> bool {
    COLLECTING.with(Cell::get) > 0
}
