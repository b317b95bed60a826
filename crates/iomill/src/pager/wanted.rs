//! [`Wanted`]: the queue of ranges with the advice `WillNeed`. Non-goals: reading them (`ahead`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Weak;

use crate::sys::sync::{Mutex, lock};

/// The most ranges that wait to begin.
const WANTED_MAX: usize = 4096;

/// A function that runs at the end of a read-ahead, on any thread. It only hands work to a pool.
pub type Then = Box<dyn FnOnce() + Send>;

/// Ranges of the advice `WillNeed`.
#[derive(Debug)]
pub struct Wanted<F> {
    state: Mutex<WantedState<F>>,
}

struct WantedState<F> {
    ranges: VecDeque<(Weak<F>, Range<u64>)>,
    /// Whether a thread or an operation is reading them, one wave after the other.
    running: bool,
    /// Resumes the ranges when a quota ends.
    resume: Option<Then>,
}

impl<F> std::fmt::Debug for WantedState<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue of {}", self.ranges.len())
    }
}

impl<F> Default for Wanted<F> {
    fn default() -> Wanted<F> {
        let state = WantedState { ranges: VecDeque::new(), running: false, resume: None };
        Wanted { state: Mutex::new(state) }
    }
}

impl<F> Wanted<F> {
    /// Adds a range, unless there are too many. Returns whether the caller must start to read the ranges.
    pub fn push(&self, file: Weak<F>, pages: Range<u64>) -> bool {
        let mut queue = lock(&self.state);
        if queue.ranges.len() < WANTED_MAX {
            queue.ranges.push_back((file, pages));
        }
        !std::mem::replace(&mut queue.running, true)
    }

    /// The next wave of up to `most` pages. `None` if no range is left.
    pub fn next(&self, most: u64) -> Option<(Weak<F>, Range<u64>)> {
        let mut queue = lock(&self.state);
        let Some((file, pages)) = queue.ranges.front_mut() else {
            queue.running = false;
            return None;
        };
        let wave = (file.clone(), pages.start..pages.end.min(pages.start + most));
        pages.start = wave.1.end;
        if pages.is_empty() {
            queue.ranges.pop_front();
        }
        Some(wave)
    }

    /// Queues a wave again. `resume` continues with it when a quota ends.
    pub fn put_back(&self, file: Weak<F>, pages: Range<u64>, resume: Then) {
        let mut queue = lock(&self.state);
        match queue.ranges.front_mut() {
            Some((theirs, rest)) if theirs.ptr_eq(&file) && rest.start == pages.end => rest.start = pages.start,
            _ => queue.ranges.push_front((file, pages)),
        }
        queue.resume = Some(resume);
    }

    pub fn take_resume(&self) -> Option<Then> {
        lock(&self.state).resume.take()
    }
}
