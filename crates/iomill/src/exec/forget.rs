//! [`ToForget`]: closed files that an engine has yet to forget.

use std::sync::atomic::AtomicBool;

use crate::sys::sync::{Mutex, Ordering, lock};

/// Keys of closed files, which engines forget before their next use.
#[derive(Default)]
pub struct ToForget {
    keys: Mutex<Vec<u64>>,
    any: AtomicBool,
}

impl ToForget {
    pub fn later(&self, key: u64) {
        lock(&self.keys).push(key);
        // Release: pairs with the Acquire in `each`.
        self.any.store(true, Ordering::Release);
    }

    /// Calls `forget` with each key, once.
    #[inline]
    pub fn each(&self, forget: impl FnMut(u64)) {
        // Acquire: pairs with the Release in `later`.
        if self.any.load(Ordering::Acquire) {
            self.each_now(forget);
        }
    }

    #[cold]
    fn each_now(&self, forget: impl FnMut(u64)) {
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.keys)).into_iter().for_each(forget);
    }
}
