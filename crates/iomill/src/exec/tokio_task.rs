//! The tasks by which runtimes of tokio take the turns of shared contexts. A task waits for the descriptors of a
//! context in the runtime's own reactor. So I/O for which the runtime waits wakes no other thread. Non-goals: a runtime
//! that polls no task meanwhile. The reaper takes the turns then (its rule 4).
//!
//! Rules:
//! 1. A cell has a driver from the first poll on a thread of a runtime that drives, until that runtime or the array
//!    ends. A poll elsewhere relies on the reaper, because that runtime may poll no task meanwhile.
//! 2. The driver makes a descriptor unready before it takes the turn. So a later completion makes it ready again.
//! 3. A driver's descriptors are removed from the runtime's reactor under the driver's lock, before the context closes
//!    them.

use std::future::Future;
use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::cell::SharedCell;
use super::tokio::{drives, register};

/// Whether the calling thread's runtime drives the cell. A runtime that drives begins to, if no other drives the cell
/// (rule 1).
pub fn is_driven_here(cell: &Arc<SharedCell>) -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    match cell.driver.runtime() {
        Some(driving) => driving == runtime.id(),
        None => drives(&runtime) && begin(cell, &runtime),
    }
}

/// Begins a driver on the calling thread's runtime. `false` if the system refuses, or if another thread was faster.
fn begin(cell: &Arc<SharedCell>, runtime: &Handle) -> bool {
    // SAFETY: `while_open` keeps the descriptors open during the call, and `clear` ends the driver before the context
    // is dropped (rule 3).
    let register = |&fd: &RawFd| unsafe { register(fd) };
    let registered = || cell.while_open(|fds| fds.iter().map(register).collect::<io::Result<Vec<_>>>());
    if !cell.driver.begin(runtime, registered) {
        return false;
    }
    // A runtime that is ending drops the task at once, which ends the driver.
    runtime.spawn(Driving { cell: Arc::clone(cell), has_more: false });
    cell.driver.is_there()
}

/// The task of a driver.
struct Driving {
    cell: Arc<SharedCell>,
    /// Whether the last turn left completions that no descriptor reports any more.
    has_more: bool,
}

impl Future for Driving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(is_ready) = self.cell.driver.look(context) else { return Poll::Ready(()) };
            if !is_ready && !self.has_more {
                return Poll::Pending;
            }
            self.has_more = self.cell.turn().has_more;
            if self.has_more {
                // Other tasks may run in between.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driving {
    /// The runtime or the array has ended. The reaper advances the unfinished operations.
    fn drop(&mut self) {
        if self.cell.is_here() {
            self.cell.driver.end();
            self.cell.arm();
        }
    }
}
