//! Futures and callbacks over the drive threads. They own their buffers, so a dropped future frees nothing that the kernel
//! still writes to: the operation lives on until it has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::cached::Work;
use super::file::{File, Inside};
use super::operation::{Buffers, Operation};
use super::split::{Extent, Splitter};
use crate::drive::serve::INBOX_PIECES;
use crate::engine::Op;
use crate::error::{Error, Result};
use crate::sys::sync::{Mutex, lock};

/// One task of a batch given to [`File::submit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Read a range that lies within the file.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// Write bytes.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// What to write.
        bytes: Vec<u8>,
    },
}

impl File {
    /// Reads a range; the future resolves to its bytes, fewer than asked for only at the end of the file. The read has begun when
    /// this returns. It waits for room in the drives' queues where they are full.
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        Reading { begun: Some(self.begin_read(offset, len)) }
    }

    /// Writes bytes; the future resolves to them, for use again. The write has begun when this returns.
    pub fn write(&self, offset: u64, bytes: Vec<u8>) -> Writing {
        Writing { begun: Some(self.begin_tasks(vec![Task::Write { offset, bytes }], None)) }
    }

    /// [`File::sync`] as a future.
    pub fn sync_async(&self) -> Syncing {
        let outcome = Arc::new(Mutex::new(SyncOutcome::default()));
        let (state, told, there) = (Arc::clone(&self.state), self.told.share(), Arc::clone(&outcome));
        let array = Arc::clone(state.array());
        array.callbacks.run(Box::new(move || {
            let result = Inside::enter(&state).and_then(|_inside| state.sync_and_tell(&told));
            // Before anybody is told, who may then close the file and delete it.
            drop(state);
            let waker = {
                let mut there = lock(&there);
                there.result = Some(result);
                there.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }));
        Syncing { outcome }
    }

    /// Begins a batch of tasks and has `callback` called with the outcome, on a callback thread: for each task what it
    /// read, or its bytes back; or the first error of the batch. Whatever cannot even begin is reported right here, and the callback is
    /// dropped.
    ///
    /// Inside the callback calls that block are refused; it may submit more.
    pub fn submit(&self, tasks: Vec<Task>, callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static) -> Result<()> {
        self.begin_tasks(tasks, Some(Box::new(callback))).map(|_operation| ())
    }

    /// [`File::submit`], but where a drive that is concerned has a full queue the tasks come back (`Ok(Some(tasks))`) and nothing is
    /// begun. So a slow drive holds up only what needs it: each drive takes a backlog of its own, of some thousand requests, and who has
    /// work for the others need not wait for this one.
    pub fn try_submit(
        &self,
        tasks: Vec<Task>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Task>>> {
        if !self.has_room(&tasks) {
            return Ok(Some(tasks));
        }
        self.submit(tasks, callback).map(|()| None)
    }

    /// Whether all drives concerned have room now for what the tasks may ask of them.
    fn has_room(&self, tasks: &[Task]) -> bool {
        let array = self.state.array();
        let Some(fleet) = array.fleet.get() else { return true };
        // What makes no sense is refused when it is submitted, before anything is made of it.
        if self.check_within(reads(tasks)).is_err() {
            return true;
        }
        let mut weights = vec![0; array.catalog.drives().len()];
        // A share of more pieces than an inbox holds is let into an empty one, however many they are.
        let mut uncounted = self.state.record.drives.len();
        for task in tasks {
            let (op, offset, len) = match task {
                Task::Read { offset, len } => (Op::Read, *offset, *len),
                Task::Write { offset, bytes } => (Op::Write, *offset, bytes.len()),
            };
            if self.state.range_end(offset, len as u64).is_err() {
                return true;
            }
            let extent = Extent { offset, len, buf: std::ptr::null_mut() };
            for (drive, _) in Splitter::new(&self.state, op, self.class, std::iter::once(extent)) {
                weights[usize::from(drive)] += 1;
                uncounted -= usize::from(weights[usize::from(drive)] == INBOX_PIECES + 1);
                if uncounted == 0 {
                    break;
                }
            }
        }
        weights.iter().enumerate().all(|(drive, &weight)| weight == 0 || fleet.has_room(drive, self.class, weight))
    }

    fn begin_read(&self, offset: u64, len: usize) -> Result<Arc<Operation>> {
        self.state.range_end(offset, len as u64)?;
        let inside = Inside::enter(&self.state)?;
        // Inside, so that the file does not shrink before the read has begun.
        let left = self.len().saturating_sub(offset).min(len as u64);
        self.look_ahead(offset, left as usize);
        self.start_tasks(inside, vec![Task::Read { offset, len: left as usize }], None, None)
    }

    fn begin_tasks(&self, tasks: Vec<Task>, callback: Option<Callback>) -> Result<Arc<Operation>> {
        let written = tasks.iter().filter_map(|task| match task {
            Task::Write { offset, bytes } if !bytes.is_empty() => Some((*offset, bytes.len() as u64)),
            _ => None,
        });
        let mut write_end = 0;
        for (offset, len) in written.clone() {
            write_end = write_end.max(self.state.range_end(offset, len)?);
        }
        let writes = tasks.iter().any(|task| matches!(task, Task::Write { .. }));
        let inside = if writes {
            self.begin_write(write_end, written.map(|(offset, len)| offset..offset + len))?
        } else {
            Inside::enter(&self.state)?
        };
        self.check_within(reads(&tasks))?;
        let write = writes.then(|| (write_end, self.state.record.drives.clone()));
        self.start_tasks(inside, tasks, write, callback)
    }

    /// Starts tasks whose reads lie within the file; `write` as for [`Operation::new`].
    fn start_tasks(
        &self,
        inside: Inside<'_>,
        tasks: Vec<Task>,
        write: Option<(u64, Vec<u16>)>,
        callback: Option<Callback>,
    ) -> Result<Arc<Operation>> {
        // Errors of the drive threads' start are the caller's to see, here.
        self.state.array().get_ready()?;
        if callback.is_some() {
            self.state.array().callbacks.get_ready()?;
        }
        let mut buffers: Buffers = Vec::with_capacity(tasks.len());
        let mut extents: Vec<(Op, Extent)> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (op, offset, mut bytes) = match task {
                Task::Read { offset, len } => (Op::Read, offset, zeroed(len)?),
                Task::Write { offset, bytes } => (Op::Write, offset, bytes),
            };
            self.state.array().count_bytes(op, bytes.len() as u64);
            extents.push((op, Extent { offset, len: bytes.len(), buf: bytes.as_mut_ptr() }));
            buffers.push(bytes);
        }
        let work = self.state.paged.as_ref().and_then(|paged| {
            let spans = |wanted| {
                let wanted = extents.iter().filter(move |(op, _)| *op == wanted);
                wanted.flat_map(|&(_, extent)| super::cached::spans(extent)).collect()
            };
            // SAFETY: the memory is in `buffers`, on the heap, which the operation owns until it has ended.
            unsafe { Work::begin(&self.state, paged, spans(Op::Read), spans(Op::Write), self.class) }
        });
        let operation = Operation::new(Arc::clone(&self.state), buffers, write, work);
        if let Some(callback) = callback {
            let callbacks = Arc::clone(&self.state.array().callbacks);
            operation.on_end(Box::new(move |operation| {
                callbacks.call(Box::new(move || callback(operation.take())));
            }));
        }
        inside.stay();
        if self.state.paged.is_some() {
            // SAFETY: as above for the spans; the frames are the fills', which are the operation's until it has ended.
            unsafe { operation.start_work(self.state.array(), &self.state) };
            return Ok(operation);
        }
        let pieces = extents
            .iter()
            .flat_map(|&(op, extent)| Splitter::new(&self.state, op, self.class, std::iter::once(extent)));
        // SAFETY: the pieces' memory is on the heap, in buffers that the operation owns: moving a `Vec` does not move
        // what it points to.
        unsafe { operation.start(self.state.array(), pieces, (std::ptr::null(), 0), false) };
        Ok(operation)
    }
}

/// The ranges that tasks read.
fn reads(tasks: &[Task]) -> impl Iterator<Item = (u64, usize)> {
    tasks.iter().filter_map(|task| match *task {
        Task::Read { offset, len } => Some((offset, len)),
        Task::Write { .. } => None,
    })
}

type Callback = Box<dyn FnOnce(Result<Buffers>) + Send>;

fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(len);
    reserved.map_err(|e| Error::Machine { what: format!("a buffer of {len} bytes"), why: e.to_string() })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Waits for an operation that may not have begun.
fn poll_begun(begun: &mut Option<Result<Arc<Operation>>>, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
    let ended = match begun {
        Some(Ok(operation)) => operation.poll(context.waker()),
        _ => Poll::Ready(()),
    };
    if ended.is_pending() {
        return Poll::Pending;
    }
    Poll::Ready(match begun.take() {
        Some(Ok(operation)) => operation.take().map(|mut buffers| buffers.pop().unwrap_or_default()),
        Some(Err(error)) => Err(error),
        None => Err(Error::invalid("a future", "polled again after it resolved")),
    })
}

/// The future of [`File::read`].
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Reading {
    begun: Option<Result<Arc<Operation>>>,
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll_begun(&mut self.begun, context)
    }
}

/// The future of [`File::write`].
#[must_use = "the write goes on, but its errors are lost"]
pub struct Writing {
    begun: Option<Result<Arc<Operation>>>,
}

impl Future for Writing {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        poll_begun(&mut self.begun, context)
    }
}

/// The future of [`File::sync_async`].
#[must_use = "the sync goes on, but its errors are lost"]
pub struct Syncing {
    outcome: Arc<Mutex<SyncOutcome>>,
}

#[derive(Default)]
struct SyncOutcome {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = lock(&self.outcome);
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
