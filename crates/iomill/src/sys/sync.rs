//! The synchronisation types that the lock-free and latched protocols use: std's, or loom's when a model runs
//! (`RUSTFLAGS="--cfg iomill_models"`; not `--cfg loom`, by which other crates change too).

#[cfg(not(iomill_models))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(iomill_models))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(iomill_models)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(iomill_models)]
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex whose data is valid at every moment (each holder changes it by whole steps), so that a panic of an
/// earlier holder is no reason to stop.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
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

/// Waits to be told, without the lock, as [`lock`] takes it. It may end without anybody having told.
pub fn wait<'a, T>(told: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    match told.wait(guard) {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// Lets time pass for whoever spins on something that is held for less than a microsecond; `tries` counts.
#[inline]
pub fn spin_wait(tries: &mut u32) {
    #[cfg(iomill_models)]
    loom::thread::yield_now();
    #[cfg(not(iomill_models))]
    match *tries {
        0..100 => std::hint::spin_loop(),
        // The holder may have lost its CPU.
        100..104 => std::thread::yield_now(),
        // Who only yields comes back before the holder does: 16 threads on 2 CPUs yielded tens of thousands of times a second.
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
    *tries = tries.saturating_add(1);
}

/// Explores a model with up to three preemptions, which finds nearly all that more would, in seconds.
#[cfg(all(test, iomill_models))]
pub fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}
