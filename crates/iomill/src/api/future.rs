//! Futures and callbacks over the drive threads. They own their buffers, so a dropped future frees nothing that the kernel
//! still writes to: the operation lives on until it has ended.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::cached::Work;
use super::callbacks::{self, Callbacks};
use super::file::{File, Inside};
use super::operation::{Buffers, Operation};
use super::split::{Extent, Splitter};
use crate::drive::serve::INBOX_PIECES;
use crate::engine::Op;
use crate::error::{Error, Result};
use crate::sys::process::Home;
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
        let begun = match Inside::enter_if_open(&self.state) {
            Ok(Some(inside)) => Begun::Now(self.begin_read(inside, offset, len)),
            Ok(None) => self.begin_later(move |file| file.begin_read(Inside::enter(&file.state)?, offset, len)),
            Err(error) => Begun::Now(Err(error)),
        };
        Reading { begun, home: self.state.array().home }
    }

    /// Writes bytes; the future resolves to them, for use again. The write has begun when this returns.
    pub fn write(&self, offset: u64, bytes: Vec<u8>) -> Writing {
        let tasks = vec![Task::Write { offset, bytes }];
        let begun = match self.enter_for(&tasks) {
            Ok(Some(inside)) => Begun::Now(self.begin_tasks(inside, tasks, None)),
            Ok(None) => self.begin_later(move |file| file.begin_here(tasks, None)),
            Err(error) => Begun::Now(Err(error)),
        };
        Writing { begun, home: self.state.array().home }
    }

    /// [`File::sync`] as a future.
    pub fn sync_async(&self) -> Syncing {
        let outcome = Arc::new(Mutex::new(SyncOutcome::default()));
        let (state, told, there) = (Arc::clone(&self.state), self.told.share(), Arc::clone(&outcome));
        let (array, home) = (Arc::clone(state.array()), state.array().home);
        if let Err(forked) = array.check_home() {
            // Rule 3 of `forked`.
            std::mem::forget(state);
            lock(&outcome).result = Some(Err(forked));
            return Syncing { outcome, home: Home::here() };
        }
        array.callbacks.run(Box::new(move || {
            let result = Inside::enter(&state).and_then(|_inside| state.sync_and_tell(&told));
            // Before anybody is told, who may then close the file and delete it.
            state.let_go(move || {
                let waker = {
                    let mut there = lock(&there);
                    there.result = Some(result);
                    there.waker.take()
                };
                if let Some(waker) = waker {
                    callbacks::wake(waker);
                }
            });
        }));
        Syncing { outcome, home }
    }

    /// Begins a batch of tasks and has `callback` called with the outcome, on a callback thread: for each task what it
    /// read, or its bytes back; or the first error of the batch. Whatever cannot even begin is reported right here, and the callback is
    /// dropped.
    ///
    /// Inside the callback calls that block are refused; it may submit more. So it is in a waker, which may run on the thread of a drive.
    pub fn submit(&self, tasks: Vec<Task>, callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static) -> Result<()> {
        match self.enter_for(&tasks)? {
            Some(inside) => self.begin_tasks(inside, tasks, Some(Box::new(callback))).map(|_operation| ()),
            None => self.submit_later(tasks, Box::new(callback)),
        }
    }

    /// [`File::submit`] by a callback thread, where the gate is closed to a waker (rule 3 of `callbacks`). What cannot begin is told to the
    /// callback.
    fn submit_later(&self, tasks: Vec<Task>, callback: Callback) -> Result<()> {
        let callbacks = &self.state.array().callbacks;
        callbacks.get_ready()?;
        let (file, callback) = (self.clone(), Arc::new(Mutex::new(Some(callback))));
        callbacks.run(Box::new(move || {
            let told = Arc::clone(&callback);
            let tell = move |result| {
                let callback = lock(&told).take();
                if let Some(callback) = callback {
                    callback(result);
                }
            };
            let begun = file.begin_here(tasks, Some(Box::new(tell)));
            drop(file);
            let callback = lock(&callback).take();
            if let (Err(error), Some(callback)) = (begun, callback) {
                Callbacks::call_here(|| callback(Err(error)));
            }
        }));
        Ok(())
    }

    /// Begins an operation on a callback thread, where the gate is closed to a waker (rule 3 of `callbacks`).
    fn begin_later(&self, begin: impl FnOnce(&File) -> Result<Arc<Operation>> + Send + 'static) -> Begun {
        let callbacks = &self.state.array().callbacks;
        if let Err(error) = callbacks.get_ready() {
            return Begun::Now(Err(error));
        }
        let (file, later) = (self.clone(), Arc::<Mutex<Later>>::default());
        let there = Arc::clone(&later);
        callbacks.run(Box::new(move || {
            let begun = begin(&file);
            drop(file);
            let waker = {
                let mut later = lock(&there);
                later.begun = Some(begun);
                later.waker.take()
            };
            if let Some(waker) = waker {
                callbacks::wake(waker);
            }
        }));
        Begun::Later(later)
    }

    /// [`File::submit`], but where a drive that is concerned has a full queue the tasks come back (`Ok(Some(tasks))`) and nothing is
    /// begun. So a slow drive holds up only what needs it: each drive takes a backlog of its own, of some thousand requests, and who has
    /// work for the others need not wait for this one.
    pub fn try_submit(
        &self,
        tasks: Vec<Task>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Task>>> {
        self.state.array().check_home()?;
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

    fn begin_read(&self, inside: Inside<'_>, offset: u64, len: usize) -> Result<Arc<Operation>> {
        self.state.range_end(offset, len as u64)?;
        // Inside, so that the file does not shrink before the read has begun.
        let left = self.len().saturating_sub(offset).min(len as u64);
        self.look_ahead(offset, left as usize);
        self.start_tasks(inside, vec![Task::Read { offset, len: left as usize }], None, None)
    }

    /// Enters for tasks, with room made for what they write. `None` where that takes a wait that a waker must not do.
    fn enter_for(&self, tasks: &[Task]) -> Result<Option<Inside<'_>>> {
        if !tasks.iter().any(|task| matches!(task, Task::Write { .. })) {
            return Inside::enter_if_open(&self.state);
        }
        let (end, ranges) = (self.write_end(tasks)?, writes(tasks).map(|(offset, len)| offset..offset + len));
        if callbacks::may_wait() {
            return self.begin_write(end, ranges).map(Some);
        }
        let Some(inside) = Inside::enter_if_open(&self.state)? else { return Ok(None) };
        if self.state.is_littered(end) {
            return Ok(None);
        }
        self.make_room(&inside, end, ranges)?;
        Ok(Some(inside))
    }

    /// Where the last byte that tasks write ends; 0 if they write nothing.
    fn write_end(&self, tasks: &[Task]) -> Result<u64> {
        writes(tasks).try_fold(0, |end, (offset, len)| Ok(self.state.range_end(offset, len)?.max(end)))
    }

    /// Begins tasks where waiting is allowed: on a callback thread.
    fn begin_here(&self, tasks: Vec<Task>, callback: Option<Callback>) -> Result<Arc<Operation>> {
        match self.enter_for(&tasks)? {
            Some(inside) => self.begin_tasks(inside, tasks, callback),
            // No callback thread could take it, and the waker itself is here.
            None => Err(Error::WouldBlock { call: "what a waker begins" }),
        }
    }

    /// Begins tasks that `enter_for` has entered for.
    fn begin_tasks(&self, inside: Inside<'_>, tasks: Vec<Task>, callback: Option<Callback>) -> Result<Arc<Operation>> {
        let is_write = tasks.iter().any(|task| matches!(task, Task::Write { .. }));
        let write_end = self.write_end(&tasks)?;
        self.check_within(reads(&tasks))?;
        let write = is_write.then(|| (write_end, self.state.record.drives.clone()));
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

/// The ranges that tasks write.
fn writes(tasks: &[Task]) -> impl Iterator<Item = (u64, u64)> {
    tasks.iter().filter_map(|task| match task {
        Task::Write { offset, bytes } if !bytes.is_empty() => Some((*offset, bytes.len() as u64)),
        _ => None,
    })
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

/// A future's operation.
enum Begun {
    /// It has begun, or why it could not.
    Now(Result<Arc<Operation>>),
    /// A callback thread begins it.
    Later(Arc<Mutex<Later>>),
    /// Its outcome was taken.
    Taken,
}

/// What a callback thread begins.
#[derive(Default)]
struct Later {
    begun: Option<Result<Arc<Operation>>>,
    waker: Option<Waker>,
}

/// Waits for an operation that may not have begun.
fn poll_begun(begun: &mut Begun, home: Home, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
    if !home.is_here() {
        // Rule 3 of `forked`.
        std::mem::forget(std::mem::replace(begun, Begun::Taken));
        return Poll::Ready(Err(Error::Forked));
    }
    if let Begun::Later(later) = begun {
        // Made and dropped without the lock: wakers are a user's code.
        let mut waker = Some(context.waker().clone());
        let now = {
            let mut later = lock(later);
            std::mem::swap(&mut later.waker, &mut waker);
            later.begun.take()
        };
        drop(waker);
        let Some(now) = now else { return Poll::Pending };
        *begun = Begun::Now(now);
    }
    if let Begun::Now(Ok(operation)) = begun
        && operation.poll(context.waker()).is_pending()
    {
        return Poll::Pending;
    }
    Poll::Ready(match std::mem::replace(begun, Begun::Taken) {
        Begun::Now(Ok(operation)) => operation.take().map(|mut buffers| buffers.pop().unwrap_or_default()),
        Begun::Now(Err(error)) => Err(error),
        Begun::Later(_) | Begun::Taken => Err(Error::invalid("a future", "polled again after it resolved")),
    })
}

/// The future of [`File::read`].
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Reading {
    begun: Begun,
    /// The process that asked for it.
    home: Home,
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let home = self.home;
        poll_begun(&mut self.begun, home, context)
    }
}

/// The future of [`File::write`].
#[must_use = "the write goes on, but its errors are lost"]
pub struct Writing {
    begun: Begun,
    /// The process that asked for it.
    home: Home,
}

impl Future for Writing {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let home = self.home;
        poll_begun(&mut self.begun, home, context)
    }
}

/// The future of [`File::sync_async`].
#[must_use = "the sync goes on, but its errors are lost"]
pub struct Syncing {
    /// The process that asked for it.
    home: Home,
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
        if !self.home.is_here() {
            return Poll::Ready(Err(Error::Forked));
        }
        // Made and dropped without the lock: wakers are a user's code.
        let mut waker = Some(context.waker().clone());
        let result = {
            let mut outcome = lock(&self.outcome);
            std::mem::swap(&mut outcome.waker, &mut waker);
            outcome.result.take()
        };
        drop(waker);
        result.map_or(Poll::Pending, Poll::Ready)
    }
}
