//! The synchronisation types of lock-free and latched protocols: std's, or loom's in a model. `models/build.rs` sets
//! the cfg `iomill_models`. It is not `--cfg loom`, because that changes other crates, too.

#[cfg(not(iomill_models))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(iomill_models))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(iomill_models)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(iomill_models)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex, also a poisoned one. Every holder changes the data in whole steps, so the data is valid even after a
/// panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Locks a mutex as [`lock`] does, unless another thread has it.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Locks for reading, as [`lock`] does.
pub fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    match shared.read() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Locks for writing, as [`lock`] does.
pub fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    match shared.write() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Releases the lock, waits on `condvar`, and locks again as [`lock`] does. May return without a notification.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    match condvar.wait(guard) {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Waits a moment in a loop that spins on a lock held for less than a microsecond. `tries` counts the calls.
#[inline]
pub fn spin_wait(tries: &mut u32) {
    #[cfg(iomill_models)]
    loom::thread::yield_now();
    #[cfg(not(iomill_models))]
    match *tries {
        0..100 => std::hint::spin_loop(),
        // The holder may have lost its CPU.
        100..104 => std::thread::yield_now(),
        // Yields alone are not enough: the yielding thread may run again before the holder. With yields only, 16
        // threads on 2 CPUs yielded tens of thousands of times a second.
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
    *tries = tries.saturating_add(1);
}

/// Lets other threads run first.
pub fn give_way() {
    #[cfg(iomill_models)]
    loom::thread::yield_now();
    #[cfg(not(iomill_models))]
    std::thread::yield_now();
}

/// Explores a model with up to three preemptions. That takes seconds, and more preemptions would find little more.
#[cfg(all(test, iomill_models))]
pub fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}
