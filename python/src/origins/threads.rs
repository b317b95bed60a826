//! The threads of the clients of origins, and calls on them: [`wait`] and [`begin`].
//!
//! Rules:
//! 1. Python ends the threads before it ends itself ([`stop_origins`], by `atexit`). A thread that waits for the
//!    interpreter later would hang.
//! 2. A forked child does not have them. The next call there starts others.
//! 3. A call that panics in the background delivers an exception. Otherwise its caller would wait for ever.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

struct Threads {
    /// The process that has them.
    process: u32,
    runtime: Runtime,
}

static THREADS: Mutex<Option<Threads>> = Mutex::new(None);

/// The interval at which a call checks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);
/// The time for which the end of the interpreter, or of a call, waits for a store.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that serve connections. Reads of drives have those of iomill.
const COUNT: usize = 2;

/// The threads of this process, which are started if there are none.
pub fn handle() -> PyResult<Handle> {
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(there) = &*threads
        && there.process == process::id()
    {
        return Ok(there.runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread().worker_threads(COUNT).thread_name("iomill-origin").enable_all().build();
    let runtime =
        runtime.map_err(|error| PyOSError::new_err(format!("cannot start threads for an object store: {error}")))?;
    let handle = runtime.handle().clone();
    // The threads of a parent are not dropped: they are the parent's.
    std::mem::forget(threads.replace(Threads { process: process::id(), runtime }));
    Ok(handle)
}

/// Runs a call to its end without the interpreter. Ctrl-C drops it.
pub fn wait<T: Send>(py: Python<'_>, call: impl Future<Output = T> + Send) -> PyResult<T> {
    let handle = handle()?;
    let mut call = Box::pin(call);
    loop {
        let some = async { tokio::time::timeout(LOOK, call.as_mut()).await };
        let ended = py.detach(|| match Handle::try_current() {
            // The receiver of a result may call the store again, on one of these threads.
            Ok(_) => tokio::task::block_in_place(|| handle.block_on(some)),
            Err(_) => handle.block_on(some),
        });
        match ended {
            Ok(ended) => return Ok(ended),
            Err(_not_yet) => py.check_signals()?,
        }
    }
}

/// The result of a call as an object of Python.
pub type Told = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;
/// A call with a result to deliver.
pub type Call = Pin<Box<dyn Future<Output = Told> + Send>>;

/// Runs a call: to its end, or in the background if there is a `done`. Then `done(result, None)` or
/// `done(None, exception)` is called once, on any thread, and this returns None.
pub fn run<'py>(py: Python<'py>, call: Call, done: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let Some(done) = done else { return wait(py, call)?(py) };
    begin(call, done)?;
    Ok(py.None().into_bound(py))
}

/// Begins a call that delivers its result.
pub fn begin(call: Call, done: Py<PyAny>) -> PyResult<()> {
    handle()?.spawn(async move {
        // A task of its own, so that its panic ends here (rule 3).
        let told = tokio::spawn(call).await;
        // `None` if the interpreter is ending. Then nothing waits for the result.
        let _told = Python::try_attach(|py| {
            let panicked = || PyRuntimeError::new_err("the call has panicked; the message is on stderr");
            let made = told
                .map_err(|_| panicked())
                .and_then(|told| catch_unwind(AssertUnwindSafe(|| told(py))).unwrap_or_else(|_| Err(panicked())));
            let heard = match made {
                Ok(result) => done.call1(py, (result, py.None())),
                Err(error) => done.call1(py, (py.None(), error)),
            };
            if let Err(error) = heard {
                error.write_unraisable(py, Some(done.bind(py)));
            }
        });
    });
    Ok(())
}

/// Ends the threads (rule 1).
#[pyfunction]
pub fn stop_origins(py: Python<'_>) -> PyResult<()> {
    let threads = THREADS.lock().map_err(|_| PyRuntimeError::new_err("a thread has panicked"))?.take();
    match threads {
        Some(there) if there.process == process::id() => py.detach(|| there.runtime.shutdown_timeout(PATIENCE)),
        parents => std::mem::forget(parents),
    }
    Ok(())
}
