//! The file of a Python object: [`Handle`]. If an array is reopened for writing or for reading, its handles get the
//! same files of the new opening. Non-goals: the choice of the mode, which the Python half makes.
//!
//! Rules:
//! 1. A thread that waits for a handle's lock does not hold the interpreter, because the calls that must end first need
//!    it.
//! 2. A call holds the file by its `Arc` until it has ended, also if it ends in the background. So the file is unused
//!    once no other `Arc` exists.
//! 3. No thread holds a handle's lock at a fork: a thread without the interpreter holds it only while the array is
//!    reopened, and the Python half prevents a fork then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use iomill::{Advice, File};
use pyo3::prelude::*;

use crate::errors::{OrRaise, away, closed, lost};

/// A file, as long as it is open.
#[derive(Debug)]
pub struct Handle {
    state: RwLock<State>,
    /// The number of a file of an array. 0 for a plain file.
    pub version: u64,
    is_random: AtomicBool,
}

/// The state of a handle.
#[derive(Debug)]
pub enum State {
    /// It is open.
    Open(Arc<File>),
    /// The array was reopened, and the file no longer exists.
    Lost,
    /// The array could not be opened again. The file may come back with it.
    Away,
    /// It was closed.
    Closed,
}

impl State {
    fn file(&self) -> PyResult<Arc<File>> {
        match self {
            State::Open(file) => Ok(Arc::clone(file)),
            State::Lost => Err(lost()),
            State::Away => Err(away()),
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
            // Rule 1. The array is being reopened.
            Err(_) => py.detach(|| self.read().file()),
        }
    }

    pub fn is_closed(&self) -> bool {
        // The lock is held: the array is being reopened, with this file.
        self.state.try_read().is_ok_and(|state| matches!(*state, State::Closed))
    }

    /// Whether it has a file.
    pub fn is_open(&self) -> bool {
        // The lock is held: a call begins or ends, and the file may still be there.
        self.state.try_read().map_or(true, |state| matches!(*state, State::Open(_)))
    }

    /// Takes the file out of a handle, and closes the handle.
    pub fn take(&self, py: Python<'_>) -> Option<Arc<File>> {
        let state = match self.state.try_write() {
            Ok(mut state) => std::mem::replace(&mut *state, State::Closed),
            // Rule 1.
            Err(_) => py.detach(|| std::mem::replace(&mut *self.write(), State::Closed)),
        };
        match state {
            State::Open(file) => Some(file),
            State::Lost | State::Away | State::Closed => None,
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

    /// The same file of another opening, for the handle.
    pub fn again(&self, file: iomill::Result<File>) -> State {
        let Ok(file) = file else { return State::Lost };
        if self.is_random.load(Ordering::Relaxed) && file.advise(.., Advice::Random).is_err() {
            return State::Lost;
        }
        State::Open(Arc::new(file))
    }
}
