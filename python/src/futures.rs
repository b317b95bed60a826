//! Reads as futures: [`deliver`]. A thread of this module waits for all of them, and takes the interpreter's lock only
//! for results.
//!
//! Rules:
//! 1. A waker may run on a drive thread, so it never takes the interpreter's lock. It sends the task to the thread of
//!    this module.
//! 2. Python ends this thread before it ends itself ([`stop`], by `atexit`). A thread that asks for the lock later
//!    would hang or crash.
//! 3. A forked child does not have the thread. The next read there starts another one.
//! 4. The panic of a poll is the error of that read. A panic of a callback, which may be one that its Python code has
//!    raised again, ends with the callback. The thread delivers the other reads.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use iomill::{File, Transfer};
use numpy::PyArray1;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::exception;

type Reading = (Transfer<Vec<u8>>, Arc<File>);

/// A read, and the callback for its result.
struct Task {
    /// The future with its file, which is held as long as the future (rule 2 of handles). `None` after the read has
    /// ended.
    reading: Mutex<Option<Reading>>,
    done: Py<PyAny>,
    thread: Sender<Message>,
}

enum Message {
    Poll(Arc<Task>),
    Stop,
}

struct Deliverer {
    /// The process that has the thread (rule 3).
    process: u32,
    sender: Sender<Message>,
    thread: JoinHandle<()>,
}

static DELIVERER: Mutex<Option<Deliverer>> = Mutex::new(None);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let thread = self.thread.clone();
        // The thread is missing only at the end of the process. Then nothing waits for the read.
        let _gone = thread.send(Message::Poll(self));
    }
}

impl Task {
    fn poll(self: &Arc<Self>) -> Option<iomill::Result<Vec<u8>>> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let waker = Waker::from(Arc::clone(self));
        let transfer = &mut reading.as_mut()?.0;
        // Rule 4. The panic message has been printed.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(transfer).poll(&mut Context::from_waker(&waker))));
        let result = match polled {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(result)) => result.map_err(iomill::Error::from),
            Err(_panicked) => Err(iomill::Error::Panicked),
        };
        let _panicked = catch_unwind(AssertUnwindSafe(|| *reading = None));
        Some(result)
    }

    fn tell(&self, py: Python<'_>, result: iomill::Result<Vec<u8>>) {
        let told = match result {
            Ok(bytes) => self.done.call1(py, (PyArray1::from_vec(py, bytes), py.None())),
            Err(error) => self.done.call1(py, (py.None(), exception(error))),
        };
        if let Err(error) = told {
            error.write_unraisable(py, Some(self.done.bind(py)));
        }
    }
}

/// Calls `done(bytes, None)` or `done(None, exception)` when a read has ended: at once, if it has already ended.
pub fn deliver(py: Python<'_>, reading: Transfer<Vec<u8>>, file: Arc<File>, done: Py<PyAny>) -> PyResult<()> {
    let thread = sender()?;
    let task = Arc::new(Task { reading: Mutex::new(Some((reading, file))), done, thread });
    if let Some(result) = task.poll() {
        task.tell(py, result);
    }
    Ok(())
}

fn sender() -> PyResult<Sender<Message>> {
    let mut deliverer = DELIVERER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = process::id();
    if let Some(there) = &*deliverer
        && there.process == process
        && !there.thread.is_finished()
    {
        return Ok(there.sender.clone());
    }
    let (sender, receiver) = channel();
    let thread = thread::Builder::new()
        .name("iomill-python".to_owned())
        .spawn(move || run(&receiver))
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start the thread that delivers reads: {error}")))?;
    // The deliverer of a parent is not dropped: its thread and its channel are the parent's. One that has ended has
    // nothing to drop.
    let parents = deliverer.replace(Deliverer { process, sender: sender.clone(), thread });
    std::mem::forget(parents);
    Ok(sender)
}

fn run(receiver: &Receiver<Message>) {
    while let Ok(Message::Poll(task)) = receiver.recv() {
        if let Some(result) = task.poll() {
            // `None` if the interpreter is ending. Then nothing waits for the result. Rule 4: the message of a panic has
            // been printed.
            let tell = |py: Python<'_>| catch_unwind(AssertUnwindSafe(|| task.tell(py, result)));
            let _told = Python::try_attach(tell);
        }
    }
}

/// Ends the thread (rule 2).
#[pyfunction]
pub fn stop(py: Python<'_>) {
    let deliverer = DELIVERER.lock().unwrap_or_else(PoisonError::into_inner).take();
    match deliverer {
        Some(there) if there.process == process::id() => {
            let _gone = there.sender.send(Message::Stop);
            let _panicked = py.detach(|| there.thread.join());
        }
        parents => std::mem::forget(parents),
    }
}
