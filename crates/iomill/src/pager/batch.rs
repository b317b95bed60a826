//! Batches of reads and writes that no call waits for: a [`Batch`] of [`Request`]s, begun by a [`Requester`], with a [`BatchReceiver`] for its
//! outcome. Non-goals: the I/O itself (`complete`, `file::transfer`).
//!
//! Rule: if a waker begins a batch and the file's gate is closed, the batch begins on a callback thread (rule 3 of `pools`).

use std::sync::Arc;

use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, spans};
use crate::drive::Class;
use crate::drive::serve::INBOX_PIECES;
use crate::engine::Op;
use crate::error::{Error, Result};
use crate::exec::pools::{self, Pool};
use crate::exec::{Exec, Promise, Within, cell};
use crate::file::Entered;
use crate::file::split::{Extent, Splitter};
use crate::file::transfer::WriteTurn;

/// The buffers of a batch: what it read, or what it wrote.
pub type Buffers = Vec<Vec<u8>>;

/// What is called with the outcome of a batch.
type Callback = Box<dyn FnOnce(Result<Buffers>) + Send>;

/// One request of a batch for `File::submit`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
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

/// Requests that begin and end together.
#[derive(Debug)]
pub struct Batch {
    requests: Vec<Request>,
    /// Whether reads past the end of the file are short. Else they are errors.
    may_be_short: bool,
}

impl Batch {
    pub fn of(requests: Vec<Request>) -> Batch {
        Batch { requests, may_be_short: false }
    }

    /// One read, as far as the file goes.
    pub fn up_to_end(offset: u64, len: usize) -> Batch {
        Batch { requests: vec![Request::Read { offset, len }], may_be_short: true }
    }

    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    fn writes(&self) -> impl Iterator<Item = (u64, u64)> + Clone {
        self.requests.iter().filter_map(|request| match request {
            Request::Write { offset, bytes } if !bytes.is_empty() => Some((*offset, bytes.len() as u64)),
            _ => None,
        })
    }

    fn is_write(&self) -> bool {
        self.requests.iter().any(|request| matches!(request, Request::Write { .. }))
    }

    /// The end of the last byte that is written, as an offset in bytes; 0 if nothing is written.
    fn write_end(&self, file: &OpenFile) -> Result<u64> {
        self.writes().try_fold(0, |end, (offset, len)| Ok(file.file.range_end(offset, len)?.max(end)))
    }

    /// Cuts its reads to a file's length, or refuses reads past it.
    fn fit(&mut self, file: &OpenFile) -> Result<()> {
        if !self.may_be_short {
            return file.file.check_within(reads(&self.requests));
        }
        let end = file.file.len();
        for request in &mut self.requests {
            if let Request::Read { offset, len } = request {
                file.file.range_end(*offset, *len as u64)?;
                *len = end.saturating_sub(*offset).min(*len as u64) as usize;
            }
        }
        Ok(())
    }
}

/// The ranges that requests read.
fn reads(requests: &[Request]) -> impl Iterator<Item = (u64, usize)> {
    requests.iter().filter_map(|request| match *request {
        Request::Read { offset, len } => Some((offset, len)),
        Request::Write { .. } => None,
    })
}

/// Receives the outcome of a batch. If a panic drops it, the outcome is an error.
pub struct BatchReceiver(Option<ReceiverKind>);

enum ReceiverKind {
    Promise(Promise<Result<Buffers>>),
    Callback(Arc<Pool>, Callback),
}

impl BatchReceiver {
    pub fn promise(promise: Promise<Result<Buffers>>) -> BatchReceiver {
        BatchReceiver(Some(ReceiverKind::Promise(promise)))
    }

    /// Calls `callback` on a thread of `callbacks`. Starts that thread now, so that the caller sees the error if that fails.
    pub fn callback(callbacks: &Arc<Pool>, callback: Callback) -> Result<BatchReceiver> {
        callbacks.get_ready()?;
        Ok(BatchReceiver(Some(ReceiverKind::Callback(Arc::clone(callbacks), callback))))
    }

    /// Whether a future waits for the outcome. Its polls bring the I/O on.
    fn is_polled(&self) -> bool {
        matches!(self.0, Some(ReceiverKind::Promise(_)))
    }

    fn tell(mut self, outcome: Result<Buffers>) {
        match self.0.take() {
            Some(ReceiverKind::Promise(promise)) => promise.keep(outcome),
            Some(ReceiverKind::Callback(callbacks, callback)) => callbacks.call(Box::new(move || callback(outcome))),
            None => {}
        }
    }

    /// The receiver, which is not here any more.
    fn take(&mut self) -> BatchReceiver {
        BatchReceiver(self.0.take())
    }

    /// Drops the receiver: the caller returns the error itself.
    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for BatchReceiver {
    fn drop(&mut self) {
        if let Some(ReceiverKind::Callback(callbacks, callback)) = self.0.take() {
            callbacks.call(Box::new(move || callback(Err(Error::Panicked))));
        }
    }
}

/// Begins batches on a file. It is no handle of the file.
pub struct Requester {
    file: OpenRef,
    class: Class,
}

impl Requester {
    pub fn new(file: OpenRef, class: Class) -> Requester {
        Requester { file, class }
    }

    /// Begins a batch. Its outcome goes to `done`. An error means that nothing has begun, and `done` gets no outcome.
    pub fn begin(self, mut batch: Batch, mut done: BatchReceiver) -> Result<()> {
        let prepared = self.prepare(&mut batch, &mut done);
        self.go_on(prepared, done, move |this, done| this.prepare(&mut batch, done))
    }

    /// Prepares a batch, and takes `done`. `None` if that needs a wait that is forbidden here.
    fn prepare(&self, batch: &mut Batch, done: &mut BatchReceiver) -> Result<Option<Prepared>> {
        let Some(entered) = self.enter_for(batch)? else { return Ok(None) };
        batch.fit(&self.file)?;
        // Here the caller still sees an error of starting the drive threads.
        self.file.exec().get_ready()?;
        let write_end = batch.write_end(&self.file)?;
        let (buffers, reads, writes) = memory_of(std::mem::take(&mut batch.requests))?;
        // SAFETY: the memory is in `buffers`, on the heap, and `Prepared` has them.
        let reads = unsafe { Unread::new(&self.file, reads.into_iter()) };
        let moves = Moves { reads, writes, write_end, class: self.class };
        let entered = EnteredFile::stay(entered, self.file.clone());
        Ok(Some(Prepared { entered, buffers, moves, done: done.take() }))
    }

    /// Starts what was prepared. If nothing was, prepares it by `again` on a callback thread, and then errors go to `done`. Lets go of the
    /// file before anything can end: the code that hears of the end may close it.
    fn go_on<F>(self, prepared: Result<Option<Prepared>>, mut done: BatchReceiver, again: F) -> Result<()>
    where
        F: FnOnce(&Requester, &mut BatchReceiver) -> Result<Option<Prepared>> + Send + 'static,
    {
        if let Some(prepared) = prepared.inspect_err(|_| done.forget())? {
            drop(self);
            prepared.start();
            return Ok(());
        }
        let callbacks = Arc::clone(&self.file.exec().callbacks);
        callbacks.get_ready().inspect_err(|_| done.forget())?;
        callbacks.run(Box::new(move || {
            let prepared = again(&self, &mut done);
            drop(self);
            match prepared {
                Ok(Some(prepared)) => prepared.start(),
                // No callback thread could take the job, so it ran in the waker.
                Ok(None) => done.tell(Err(Error::BlockingCall { call: "what a waker begins" })),
                Err(error) => done.tell(Err(error)),
            }
            // No poll of this thread follows.
            cell::leave_own();
        }));
        Ok(())
    }

    /// Enters for a batch, and makes room for its writes. `None` if that needs a wait that is forbidden in a waker.
    fn enter_for(&self, batch: &Batch) -> Result<Option<Entered<'_>>> {
        let file = &self.file.file;
        if !batch.is_write() {
            return Entered::enter_if_open(file);
        }
        let end = batch.write_end(&self.file)?;
        let ranges = batch.writes().map(|(offset, len)| offset..offset + len);
        if pools::may_wait() {
            return self.file.enter_to_write(end, ranges).map(Some);
        }
        let Some(entered) = Entered::enter_if_open(file)? else { return Ok(None) };
        // Room takes calls of the file system, which may wait.
        if file.is_in_stale_tail(end) || !file.has_room_for(end) || file.is_growing() {
            return Ok(None);
        }
        Ok(file.reserve(end, ranges)?.then_some(entered))
    }

    /// Begins to read what is left of a gather into `bytes`. An error means that nothing has begun, and `done` gets no outcome.
    ///
    /// # Safety
    /// The memory of `unread` is in `bytes`, on the heap.
    pub unsafe fn begin_rest(self, bytes: Vec<u8>, unread: Unread, mut done: BatchReceiver) -> Result<()> {
        let mut rest = Some((bytes, unread));
        let prepared = self.prepare_rest(&mut rest, &mut done);
        self.go_on(prepared, done, move |this, done| this.prepare_rest(&mut rest, done))
    }

    /// Prepares a gather's rest, and takes it and `done`. `None` if that needs a wait that is forbidden here.
    fn prepare_rest(&self, rest: &mut Option<(Vec<u8>, Unread)>, done: &mut BatchReceiver) -> Result<Option<Prepared>> {
        let Some(entered) = Entered::enter_if_open(&self.file.file)? else { return Ok(None) };
        // The file may have shrunk before this was inside.
        rest.iter().try_for_each(|(_, unread)| unread.check_within(&self.file))?;
        // Here the caller still sees an error of starting the drive threads.
        self.file.exec().get_ready()?;
        let Some((bytes, reads)) = rest.take() else { unreachable!("a gather begins once") };
        let moves = Moves { reads, writes: Vec::new(), write_end: 0, class: self.class };
        let entered = EnteredFile::stay(entered, self.file.clone());
        Ok(Some(Prepared { entered, buffers: vec![bytes], moves, done: done.take() }))
    }

    /// Whether all drives have room now for the pieces that the requests may need.
    pub fn has_room(&self, requests: &[Request]) -> bool {
        let (file, exec): (_, &Exec) = (&self.file.file, self.file.exec());
        if exec.is_full_here() {
            return false;
        }
        // `submit` refuses requests that are invalid, before it makes pieces of them.
        if !exec.has_drive_threads() || file.check_within(reads(requests)).is_err() {
            return true;
        }
        let mut weights = vec![0; exec.services.count()];
        // An empty inbox takes a share of any size, so pieces beyond its capacity need not be counted. This is the number of parts that
        // are not at that point yet.
        let mut uncounted = file.parts().len();
        for request in requests {
            let (op, offset, len) = match request {
                Request::Read { offset, len } => (Op::Read, *offset, *len),
                Request::Write { offset, bytes } => (Op::Write, *offset, bytes.len()),
            };
            if file.range_end(offset, len as u64).is_err() {
                return true;
            }
            let extent = Extent { offset, len, buf: std::ptr::null_mut() };
            for (drive, _) in Splitter::new(file, op, self.class, std::iter::once(extent)) {
                weights[usize::from(drive)] += 1;
                uncounted -= usize::from(weights[usize::from(drive)] == INBOX_PIECES + 1);
                if uncounted == 0 {
                    break;
                }
            }
        }
        exec.has_room(self.class, &weights)
    }
}

/// A batch that is inside the gate, before its I/O begins.
struct Prepared {
    entered: EnteredFile,
    /// The memory of all that `moves` moves, on the heap.
    buffers: Buffers,
    moves: Moves,
    done: BatchReceiver,
}

impl Prepared {
    /// Spawns what the cache alone could not do.
    fn start(self) {
        let Prepared { entered, buffers, moves, done } = self;
        if moves.is_empty() {
            return entered.leave(move || done.tell(Ok(buffers)));
        }
        let (exec, is_polled) = (Arc::clone(entered.exec()), done.is_polled());
        let operation = async move {
            // SAFETY: the memory is in `buffers`, which are freed after this has ended or was dropped. Moving a `Vec` does not move what it
            // points to.
            let ran = unsafe { moves.run(&entered).await };
            let outcome = ran.map(|()| buffers);
            entered.leave(move || done.tell(outcome));
        };
        if is_polled { exec.spawn_polled(operation) } else { exec.spawn(operation) }
    }
}

/// What reads have not found in the cache.
pub struct Unread {
    /// Without a cache: all of it.
    extents: Vec<Extent>,
    /// With a cache.
    spans: Vec<Span>,
}

impl Unread {
    /// Copies what the cache has of reads. The rest is to be read.
    ///
    /// # Safety
    /// The extents' memory is writable, and nothing else uses it.
    pub unsafe fn new(file: &OpenFile, reads: impl Iterator<Item = Extent>) -> Unread {
        let mut spans = Vec::new();
        let extents = match &file.paged {
            None => reads.collect(),
            Some(paged) => {
                // SAFETY: the caller's promise.
                unsafe { paged.read_many(reads, &mut spans) };
                Vec::new()
            }
        };
        Unread { extents, spans }
    }

    /// Whether the cache had all of it.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.spans.is_empty()
    }

    fn check_within(&self, file: &OpenFile) -> Result<()> {
        let spans = self.spans.iter().map(|span| (span.offset(), usize::from(span.len)));
        file.file.check_within(self.extents.iter().map(|extent| (extent.offset, extent.len)).chain(spans))
    }
}

/// The transfers of a batch, when its memory is there.
struct Moves {
    reads: Unread,
    writes: Vec<Extent>,
    write_end: u64,
    class: Class,
}

impl Moves {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// # Safety
    /// The memory of all extents is valid until this has ended or is dropped. Nothing else touches memory that is read into.
    async unsafe fn run(self, file: &OpenFile) -> Result<()> {
        let Moves { reads: Unread { extents, spans: missing }, writes, write_end, class } = self;
        let io = file.exec().spawned(class);
        let turn = WriteTurn::begin(&file.file, write_end, file.paged.is_none());
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match &file.paged {
                None => {
                    let (reads, writes) = (extents.into_iter(), writes.into_iter());
                    file.file.transfer(&io, class, Within::SLABS, reads, writes).await?;
                }
                Some(paged) => {
                    let writes = writes.into_iter().flat_map(spans).collect();
                    file.read_and_write(&io, paged, missing, writes, class).await?;
                }
            }
        }
        turn.finish();
        Ok(())
    }
}

/// The buffers of requests, and their extents to read into and to write from.
fn memory_of(requests: Vec<Request>) -> Result<(Buffers, Vec<Extent>, Vec<Extent>)> {
    let mut buffers: Buffers = Vec::with_capacity(requests.len());
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for request in requests {
        let (extents, offset, mut bytes) = match request {
            Request::Read { offset, len } => (&mut reads, offset, zeroed(len)?),
            Request::Write { offset, bytes } => (&mut writes, offset, bytes),
        };
        extents.push(Extent { offset, len: bytes.len(), buf: bytes.as_mut_ptr() });
        buffers.push(bytes);
    }
    Ok((buffers, reads, writes))
}

/// An empty buffer with room for `len` bytes.
#[inline]
pub fn with_room(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match bytes.try_reserve_exact(len) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::memory("a buffer", len as u64)(std::io::Error::other(error))),
    }
}

/// A buffer of zeroes.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    let mut bytes = with_room(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}
