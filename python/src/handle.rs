//! What a Python object has of a file: [`Handle`]. An array that is opened again for writing, or for reading, gives its handles the same
//! files in the new opening. Non-goals: which modes an array is opened for, which is Python's side.
//!
//! Rules:
//! 1. A thread that waits for a handle's lock does not have the interpreter, because the calls that are to end first need it.
//! 2. A call holds the file by its `Arc` until it has ended, also a call that ends later. So the file is unused once no other `Arc` is
//!    left.
//! 3. No thread has a handle's lock at a fork: one without the interpreter has it only while the array is opened again, and Python's side
//!    lets no process fork then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use iomill::{Advice, File};
use pyo3::prelude::*;

use crate::errors::{OrRaise, closed, lost};

/// A file, as long as it is open.
#[derive(Debug)]
pub struct Handle {
    state: RwLock<State>,
    /// The number of a file of an array. 0 for a plain file.
    pub version: u64,
    is_random: AtomicBool,
}

/// Whether there is a file.
#[derive(Debug)]
pub enum State {
    /// It is open.
    Open(Arc<File>),
    /// The array was opened again, and the file is not there any more.
    Lost,
    /// It was closed.
    Closed,
}

impl State {
    fn file(&self) -> PyResult<Arc<File>> {
        match self {
            State::Open(file) => Ok(Arc::clone(file)),
            State::Lost => Err(lost()),
            State::Closed => Err(closed()),
        }
    }
}

impl Handle {
    pub fn new(file: File, version: u64) -> Handle {
        Handle { state: RwLock::new(State::Open(Arc::new(file))), version, is_random: AtomicBool::new(false) }
    }

    /// The file for one call.
    pub fn file(&self, py: Python<'_>) -> PyResult<Arc<File>> {
        match self.state.try_read() {
            Ok(state) => state.file(),
            // Rule 1. The array is being opened again.
            Err(_) => py.detach(|| self.read().file()),
        }
    }

    pub fn is_closed(&self) -> bool {
        // A lock that is held: the array is being opened again, with this file.
        self.state.try_read().is_ok_and(|state| matches!(*state, State::Closed))
    }

    /// Takes the file out of a handle that is closed by this.
    pub fn take(&self, py: Python<'_>) -> Option<Arc<File>> {
        let state = match self.state.try_write() {
            Ok(mut state) => std::mem::replace(&mut *state, State::Closed),
            // Rule 1.
            Err(_) => py.detach(|| std::mem::replace(&mut *self.write(), State::Closed)),
        };
        match state {
            State::Open(file) => Some(file),
            State::Lost | State::Closed => None,
        }
    }

    pub fn expect_random(&self, py: Python<'_>) -> PyResult<()> {
        self.is_random.store(true, Ordering::Relaxed);
        self.file(py)?.advise(.., Advice::Random).or_raise()
    }

    /// Keeps calls out until the guard is dropped. For threads without the interpreter (rule 1).
    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a handle has of the same file in another opening.
    pub fn again(&self, file: iomill::Result<File>) -> State {
        let Ok(file) = file else { return State::Lost };
        if self.is_random.load(Ordering::Relaxed) && file.advise(.., Advice::Random).is_err() {
            return State::Lost;
        }
        State::Open(Arc::new(file))
    }
}
