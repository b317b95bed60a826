//! [`Notices`]: messages for users that no call returns. Non-goals: counters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module. Clones are one list.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<Vec<String>>>);

/// Later notices are left out.
const MOST: usize = 256;

impl Notices {
    pub fn add(&self, notice: String) {
        let mut notices = locked(&self.0);
        if notices.len() < MOST {
            notices.push(notice);
        }
    }

    pub fn all(&self) -> Vec<String> {
        locked(&self.0).clone()
    }

    /// The lock, for a test of calls that must not need it.
    #[cfg(test)]
    pub fn locked(&self) -> impl Sized {
        locked(&self.0)
    }
}

/// A lock that ignores the panic of another thread: its data are valid after each change.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
