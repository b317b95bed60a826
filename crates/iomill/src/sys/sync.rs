//! The synchronisation types of the lock-free and latched protocols: std's, or loom's in a model
//! (`models/build.rs` sets the cfg). It is not `--cfg loom`, because that changes other crates, too.

#[cfg(not(iomill_models))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(iomill_models))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(iomill_models)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(iomill_models)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex. Each holder changes its data in whole steps, so the data is valid at every moment. So a panic of an
/// earlier holder is no reason to stop.
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

/// Waits on `condvar` without the lock, and locks as [`lock`] does. It may return without a notification.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    match condvar.wait(guard) {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Waits a moment, for a thread that spins on something that is held for less than a microsecond. `tries` counts the
/// calls.
#[inline]
pub fn spin_wait(tries: &mut u32) {
    #[cfg(iomill_models)]
    loom::thread::yield_now();
    #[cfg(not(iomill_models))]
    match *tries {
        0..100 => std::hint::spin_loop(),
        // The holder may have lost its CPU.
        100..104 => std::thread::yield_now(),
        // Yielding alone is not enough: a thread that yields comes back before the holder runs. With yields only, 16
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

/// Explores a model with up to three preemptions. That takes seconds, and finds nearly all that more would find.
#[cfg(all(test, iomill_models))]
pub fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}
