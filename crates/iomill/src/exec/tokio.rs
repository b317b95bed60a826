//! Runtimes of tokio that drive ([`drive_by_tokio`]), and what a shared context has in a runtime's reactor ([`Driver`]). Non-goals: turns
//! (`tokio_task`, which has the rules).

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::contexts::engine_failed;
use crate::error::{Error, Result};
use crate::sys::event::Event;

/// The runtimes that drive. A panic leaves it as it is, so it is used after one.
static RUNTIMES: RwLock<Vec<Id>> = RwLock::new(Vec::new());

/// Has a runtime of tokio wait for drives itself, beside its sockets and timers. Otherwise a thread of iomill waits for them and wakes the
/// runtime, which costs more than the read itself. It holds for the futures of all arrays and plain files that are polled on the runtime's
/// threads, until the runtime ends. Call it once, at the start:
///
/// ```no_run
/// # async fn main_of_a_program() -> iomill::Result<()> {
/// iomill::drive_by_tokio(&tokio::runtime::Handle::current())?;
/// let bytes = iomill::open_plain("features.bin")?.read(4096, 100).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`Error::Invalid`] for a runtime without I/O, and [`Error::Engine`] if the system gives no event descriptor.
pub fn drive_by_tokio(runtime: &Handle) -> Result<()> {
    if drives(runtime) {
        return Ok(());
    }
    let _here = runtime.enter();
    let event = Event::new().map_err(engine_failed)?;
    // SAFETY: `event` is open as long as it is registered, because it is dropped after that.
    let register = || unsafe { register(event.as_fd().as_raw_fd()) }.map(drop);
    // Tokio has no other way to tell that a runtime has no I/O.
    let Ok(registered) = catch_unwind(AssertUnwindSafe(register)) else {
        return Err(Error::invalid("a runtime of tokio without I/O", "build it with `enable_io` or `enable_all`"));
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
    // SAFETY: the caller's promise; and `Descriptor` tells the same number each time.
    Ok(unsafe { AsyncFd::register_with_interest(Descriptor(descriptor), Interest::READABLE) }?)
}

/// A runtime drives, until this is dropped.
struct Listed(Id);

impl Listed {
    fn new(id: Id) -> Listed {
        RUNTIMES.write().unwrap_or_else(PoisonError::into_inner).push(id);
        Listed(id)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut runtimes = RUNTIMES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = runtimes.iter().position(|id| *id == self.0) {
            runtimes.swap_remove(place);
        }
    }
}

/// What a cell has of its driver.
#[derive(Default)]
pub struct Driver(Mutex<Option<Registered>>);

/// A cell's descriptors in a runtime's reactor.
pub(super) struct Registered {
    descriptors: Vec<AsyncFd<Descriptor>>,
    /// Wakes the driver's task.
    waker: Option<Waker>,
}

impl Registered {
    pub(super) fn new(descriptors: Vec<AsyncFd<Descriptor>>) -> Registered {
        Registered { descriptors, waker: None }
    }
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
    RUNTIMES.read().unwrap_or_else(PoisonError::into_inner).contains(&runtime.id())
}

impl Driver {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Registered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the driver (rule 3), if there is one.
    pub(super) fn end(&self) {
        let registered = self.lock().take();
        if let Some(waker) = registered.and_then(|Registered { waker, .. }| waker) {
            waker.wake();
        }
    }

    /// Whether a descriptor has become ready. It is unready from now on (rule 2). `None` after the end. If none is ready, the task of
    /// `context` is woken when one is.
    pub(super) fn look(&self, context: &mut Context<'_>) -> Option<bool> {
        let mut registered = self.lock();
        let Registered { descriptors, waker } = registered.as_mut()?;
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
