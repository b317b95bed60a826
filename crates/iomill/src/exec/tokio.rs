//! Runtimes of tokio that drive ([`drive_by_tokio`]), and the descriptors of a shared context in a runtime's reactor
//! ([`Driver`]). Non-goals: turns (`tokio_task`, which has the rules).

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::refusal::engine_failed;
use crate::error::{Error, Result};
use crate::sys::event::Event;
use crate::sys::process::PerProcess;

/// The runtimes that drive. The list is valid at every moment, so it may be used after a panic.
static RUNTIMES: PerProcess<RwLock<Vec<Id>>> = PerProcess::empty();

/// Has a runtime of tokio wait for drives itself, beside its sockets and timers. Otherwise a thread of iomill waits for
/// them and wakes the runtime, which costs more than the read itself.
///
/// This holds until the runtime ends, for futures of all arrays and plain files that begin and are polled on the
/// runtime's threads. While the runtime is busy with other tasks, the end of an I/O may be noticed 5 ms late. Call it
/// once, at the start:
///
/// ```no_run
/// # async fn main_of_a_program() -> iomill::Result<()> {
/// iomill::drive_by_tokio(&tokio::runtime::Handle::current())?;
/// let bytes = iomill::open_plain("features.bin")?.read_async(4096, 100).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Invalid`] for a runtime without I/O, and [`Error::Engine`] if the system gives no event descriptor. Tokio
/// reports a runtime without I/O only by a panic. This call catches the panic, except in a program that aborts at
/// panics.
pub fn drive_by_tokio(runtime: &Handle) -> Result<()> {
    if drives(runtime) {
        return Ok(());
    }
    let _here = runtime.enter();
    let event = Event::new().map_err(engine_failed)?;
    // SAFETY: `event` is dropped after the registration, so it is open meanwhile.
    let register = || unsafe { register(event.as_fd().as_raw_fd()) }.map(drop);
    // Tokio reports a runtime without I/O in no other way.
    let Ok(registered) = catch_unwind(AssertUnwindSafe(register)) else {
        let error = Error::invalid("a runtime of tokio without I/O", "it cannot wait for drives");
        return Err(error.advise("build it with `enable_io` or `enable_all`"));
    };
    registered.map_err(engine_failed)?;
    let listed = Listed::new(runtime.id());
    runtime.spawn(async move {
        let _until_the_runtime_ends = listed;
        std::future::pending::<()>().await;
    });
    Ok(())
}

/// Adds a descriptor to the reactor of the runtime that the calling thread has entered.
///
/// # Safety
/// The descriptor is open until the result is dropped.
pub(super) unsafe fn register(descriptor: RawFd) -> io::Result<AsyncFd<Descriptor>> {
    // SAFETY: the caller's promise; and `Descriptor` returns the same number each time.
    Ok(unsafe { AsyncFd::register_with_interest(Descriptor(descriptor), Interest::READABLE) }?)
}

/// The entry of a runtime in `RUNTIMES`, removed by the drop.
struct Listed(Id);

impl Listed {
    fn new(id: Id) -> Listed {
        RUNTIMES.get().write().unwrap_or_else(PoisonError::into_inner).push(id);
        Listed(id)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut runtimes = RUNTIMES.get().write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = runtimes.iter().position(|id| *id == self.0) {
            runtimes.swap_remove(place);
        }
    }
}

/// A cell's share of its driver.
#[derive(Default)]
pub struct Driver {
    /// Whether there is a driver. Changes under the lock. The Release of each store pairs with the Acquire in
    /// `is_there`.
    is_there: AtomicBool,
    registered: Mutex<Option<Registered>>,
}

/// A cell's descriptors in a runtime's reactor.
pub(super) struct Registered {
    runtime: Id,
    descriptors: Vec<AsyncFd<Descriptor>>,
    /// Wakes the driver's task.
    waker: Option<Waker>,
}

/// A descriptor that the cell's context keeps open (rule 3).
pub(super) struct Descriptor(RawFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Whether a runtime drives.
pub(super) fn drives(runtime: &Handle) -> bool {
    RUNTIMES.get().read().unwrap_or_else(PoisonError::into_inner).contains(&runtime.id())
}

impl Driver {
    /// Whether there is a driver.
    pub fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Acquire)
    }

    /// The runtime of the driver.
    pub(super) fn runtime(&self) -> Option<Id> {
        if self.is_there() { self.lock().as_ref().map(|registered| registered.runtime) } else { None }
    }

    /// Makes the calling thread's runtime, which is `runtime`, the driver, unless there is one. `register` puts the
    /// descriptors into the runtime's reactor. Whether it did.
    pub(super) fn begin(
        &self,
        runtime: &Handle,
        register: impl FnOnce() -> Option<io::Result<Vec<AsyncFd<Descriptor>>>>,
    ) -> bool {
        let mut registered = self.lock();
        if registered.is_some() {
            return false;
        }
        let Some(Ok(descriptors)) = register() else { return false };
        *registered = Some(Registered { runtime: runtime.id(), descriptors, waker: None });
        self.is_there.store(true, Ordering::Release);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<Registered>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the driver, if there is one.
    pub(super) fn end(&self) {
        let mut registered = self.lock();
        let waker = registered.take().and_then(|Registered { descriptors, waker, .. }| {
            // Rule 3.
            drop(descriptors);
            waker
        });
        self.is_there.store(false, Ordering::Release);
        drop(registered);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether any descriptor has become ready. Makes it unready again (rule 2). If none is ready, the task of
    /// `context` is woken once one is. `None` after the end of the driver.
    pub(super) fn look(&self, context: &mut Context<'_>) -> Option<bool> {
        let mut registered = self.lock();
        let Registered { descriptors, waker, .. } = registered.as_mut()?;
        let mut is_ready = false;
        for descriptor in descriptors {
            match descriptor.poll_read_ready(context) {
                Poll::Pending => {}
                Poll::Ready(Ok(mut ready)) => {
                    ready.clear_ready();
                    is_ready = true;
                }
                // The runtime is ending.
                Poll::Ready(Err(_)) => return None,
            }
        }
        if waker.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Some(is_ready)
    }
}
