//! Batches of asynchronous reads and writes: a [`Batch`] of [`Request`]s, begun by a [`Requester`], with a
//! [`BatchReceiver`] for its outcome. Non-goals: the I/O itself (`complete`, `file::transfer`).
//!
//! Rule: if a waker begins a batch and the file's gate is closed, the batch begins on a thread of `begins` (rule 3 of
//! `pools`).

use std::ops::Range;
use std::sync::Arc;

use super::io_buffer::{Failed, IoBuffer, Kept, Returned};
use super::open::{EnteredFile, OpenFile, OpenRef};
use super::span::{Span, spans};
use crate::drive::Class;
use crate::error::{Error, Result};
use crate::exec::cell::SharedCell;
use crate::exec::pools::Pool;
use crate::exec::users_code;
use crate::exec::{Promise, Within, task};
use crate::file::Entered;
use crate::file::split::IoRange;
use crate::file::transfer::WriteTurn;

/// The buffers of a batch: the bytes read or written.
pub type Buffers = Vec<Vec<u8>>;

/// The function that is called with the outcome of an operation.
pub type Callback<K> = Box<dyn FnOnce(Returned<K>) + Send>;

/// One request of a batch for `File::submit`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Read a range within the file.
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
        /// The bytes to write.
        bytes: Vec<u8>,
    },
}

/// Requests that begin and end together.
#[derive(Debug)]
pub struct Batch {
    requests: Vec<Request>,
}

impl Batch {
    pub fn of(requests: Vec<Request>) -> Batch {
        Batch { requests }
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
}

/// The ranges that requests read.
fn reads(requests: &[Request]) -> impl Iterator<Item = (u64, usize)> {
    requests.iter().filter_map(|request| match *request {
        Request::Read { offset, len } => Some((offset, len)),
        Request::Write { .. } => None,
    })
}

/// Receives the outcome of an operation, with the buffers `K` that it owned. If a panic drops it, the outcome is an
/// error.
pub struct BatchReceiver<K: Send + 'static>(Option<ReceiverKind<K>>);

enum ReceiverKind<K> {
    Promise(Promise<Result<Returned<K>>>),
    Callback(Arc<Pool>, Callback<K>),
}

impl<K: Send + 'static> BatchReceiver<K> {
    pub fn promise(promise: Promise<Result<Returned<K>>>) -> BatchReceiver<K> {
        BatchReceiver(Some(ReceiverKind::Promise(promise)))
    }

    /// Calls `callback` on a thread of `callbacks`. Starts that thread now, so that the caller sees the error if that
    /// fails.
    pub fn callback(callbacks: &Arc<Pool>, callback: Callback<K>) -> Result<BatchReceiver<K>> {
        callbacks.get_ready()?;
        Ok(BatchReceiver(Some(ReceiverKind::Callback(Arc::clone(callbacks), callback))))
    }

    /// Whether a future waits for the outcome. Its polls drive the I/O.
    fn is_polled(&self) -> bool {
        matches!(self.0, Some(ReceiverKind::Promise(_)))
    }

    fn tell(mut self, outcome: Returned<K>) {
        match self.0.take() {
            Some(ReceiverKind::Promise(promise)) => promise.keep(Ok(outcome)),
            Some(ReceiverKind::Callback(callbacks, callback)) => callbacks.call(move || callback(outcome)),
            None => {}
        }
    }

    /// Takes the receiver out.
    fn take(&mut self) -> BatchReceiver<K> {
        BatchReceiver(self.0.take())
    }

    /// Drops the receiver: the caller returns the error itself.
    fn forget(&mut self) {
        self.0 = None;
    }
}

impl<K: Send + 'static> Drop for BatchReceiver<K> {
    fn drop(&mut self) {
        if let Some(ReceiverKind::Callback(callbacks, callback)) = self.0.take() {
            callbacks.call(move || callback(Err(Failed::new(Error::Panicked, None))));
        }
    }
}

/// The shared context of an operation, in which polls of its future drive its I/O. `None` if other threads drive it, or
/// if it has ended.
pub type BegunIn = Option<Arc<SharedCell>>;

/// Begins batches on a file. It is not a handle of the file.
pub struct Requester {
    file: OpenRef,
    class: Class,
}

impl Requester {
    pub fn new(file: OpenRef, class: Class) -> Requester {
        Requester { file, class }
    }

    /// Begins a batch; `done` receives its outcome. An error means that nothing has begun, and `done` receives no
    /// outcome. Returns the shared context in which the calling thread has begun the batch, if it has.
    pub fn begin(self, batch: Batch, done: BatchReceiver<Buffers>) -> Result<BegunIn> {
        self.begin_with(batch, done).map_err(Error::from)
    }

    /// `begin` for a transfer between a file and a buffer of the caller.
    pub fn begin_owned<K: Send + 'static>(
        self,
        owned: Owned<K>,
        done: BatchReceiver<K>,
    ) -> std::result::Result<BegunIn, Failed<K>> {
        self.begin_with(Some(owned), done)
    }

    /// `begin` for a read into a buffer of the caller up to the end of the file. The outcome has the number of bytes.
    pub fn begin_up_to_end<B: IoBuffer>(
        self,
        read: UpToEnd<B>,
        done: BatchReceiver<(B, usize)>,
    ) -> std::result::Result<BegunIn, Failed<(B, usize)>> {
        self.begin_with(read, done)
    }

    /// Starts the operation that `work` prepares. If `work` prepares none, a thread of `begins` prepares it again, and
    /// `done` receives the errors. Releases the file before an operation can end: the code that receives its outcome
    /// may close the file.
    fn begin_with<K: Send + 'static>(
        self,
        mut work: impl Prepare<K>,
        mut done: BatchReceiver<K>,
    ) -> std::result::Result<BegunIn, Failed<K>> {
        let begun = match work.prepare(&self, &mut done) {
            Ok(None) => self.file.exec().begins.get_ready().map(|()| None),
            prepared => prepared,
        };
        match begun {
            Ok(Some(prepared)) => {
                drop((self, work));
                Ok(prepared.start())
            }
            Ok(None) => {
                self.begin_later(work, done);
                Ok(None)
            }
            Err(error) => {
                done.forget();
                Err(Failed::new(error, work.give_back()))
            }
        }
    }

    fn begin_later<K: Send + 'static>(self, mut work: impl Prepare<K>, mut done: BatchReceiver<K>) {
        let begins = Arc::clone(&self.file.exec().begins);
        let queued = self.file.exec().queue_call();
        begins.run(Box::new(move || {
            let prepared = work.prepare(&self, &mut done);
            drop(queued);
            drop(self);
            let error = match prepared {
                Ok(Some(prepared)) => {
                    drop(work);
                    // The future does not have the context in which it has begun, so no poll drives it.
                    return prepared.start().iter().for_each(SharedCell::leave);
                }
                // No thread of `begins` could take the job, so it ran in the waker.
                Ok(None) => Error::BlockingCall { call: "what a waker or a subscriber begins" },
                Err(error) => error,
            };
            done.tell(Err(Failed::new(error, work.give_back())));
        }));
    }

    /// Enters the file, and allocates space for writes of ranges that end at `write_end`. `None` if that needs a wait
    /// that is forbidden in a waker, and always in a subscriber of events (rules 3 and 4 of `exec::pools`).
    fn enter_for(
        &self,
        write_end: Option<u64>,
        ranges: impl Iterator<Item = Range<u64>> + Clone,
    ) -> Result<Option<Entered<'_>>> {
        let file = &self.file.file;
        let Some(end) = write_end else { return Entered::enter_if_open(file) };
        if users_code::may_wait() {
            return self.file.enter_to_write(end, ranges).map(Some);
        }
        let Some(entered) = Entered::enter_if_open(file)? else { return Ok(None) };
        // Allocating space takes calls of the file system, which may wait.
        if file.is_in_stale_tail(end) || !file.has_room_for(end) || file.is_growing() {
            return Ok(None);
        }
        Ok(file.reserve(end, ranges)?.then_some(entered))
    }
}

/// The preparation of an operation before its I/O.
trait Prepare<K: Send + 'static>: Send + 'static {
    /// Enters the file, and takes the buffers and `done`. `None` if that needs a wait that is forbidden on this thread.
    /// After `None` or an error it may be called again.
    fn prepare(&mut self, by: &Requester, done: &mut BatchReceiver<K>) -> Result<Option<Prepared<K>>>;

    /// The caller's buffer, unless it was taken.
    fn give_back(self) -> Option<K>;
}

impl Prepare<Buffers> for Batch {
    fn prepare(&mut self, by: &Requester, done: &mut BatchReceiver<Buffers>) -> Result<Option<Prepared<Buffers>>> {
        let file = &by.file;
        let write_end = self.write_end(file)?;
        let ranges = self.writes().map(|(offset, len)| offset..offset + len);
        let Some(entered) = by.enter_for(self.is_write().then_some(write_end), ranges)? else { return Ok(None) };
        file.file.check_within("read", reads(&self.requests))?;
        // At this point an error of making engines still reaches the caller.
        let cell = file.exec().cell_for(by.class)?;
        let (buffers, reads, writes) = memory_of(std::mem::take(&mut self.requests))?;
        // SAFETY: the memory is in `buffers`, on the heap, and `Prepared` has them.
        let reads = unsafe { Unread::new(file, reads.into_iter()) };
        let moves = Moves { within: Within::SLABS, reads, writes, write_end, class: by.class, cell };
        let entered = EnteredFile::stay(entered, file.clone());
        Ok(Some(Prepared { entered, buffers: Kept::new(buffers), moves, done: done.take() }))
    }

    /// A batch returns its buffers only with its outcome.
    fn give_back(self) -> Option<Buffers> {
        None
    }
}

impl<K: Send + 'static> Prepare<K> for Option<Owned<K>> {
    fn prepare(&mut self, by: &Requester, done: &mut BatchReceiver<K>) -> Result<Option<Prepared<K>>> {
        let Some(Owned { reads, writes, .. }) = self else { unreachable!("a buffer is used once") };
        let written = writes.as_deref().unwrap_or_default().iter();
        let ranges = written.map(|io_range| io_range.offset..io_range.offset + io_range.len as u64);
        let write_end = ranges.clone().map(|range| range.end).max().unwrap_or(0);
        let Some(entered) = by.enter_for(writes.as_ref().map(|_| write_end), ranges)? else { return Ok(None) };
        // The file may have shrunk before this was inside.
        reads.check_within(&by.file)?;
        // As for a batch.
        let cell = by.file.exec().cell_for(by.class)?;
        let Some(Owned { buffer, within, reads, writes }) = self.take() else { unreachable!("as above") };
        let writes = writes.unwrap_or_default();
        let moves = Moves { within, reads, writes, write_end, class: by.class, cell };
        let entered = EnteredFile::stay(entered, by.file.clone());
        Ok(Some(Prepared { entered, buffers: buffer, moves, done: done.take() }))
    }

    fn give_back(self) -> Option<K> {
        self.map(|owned| owned.buffer.into_inner())
    }
}

/// A read up to the end of the file.
pub struct UpToEnd<B> {
    /// The buffer, and the number of its bytes to read. `None` after it was taken.
    buffer: Option<Kept<(B, usize)>>,
    /// The bytes that are in the file, with their memory in the buffer.
    io_range: IoRange,
    /// The length of the buffer.
    len: usize,
    /// The part of the I/O range that is not cached.
    unread: Unread,
}

impl<B: IoBuffer> UpToEnd<B> {
    /// Copies the cached bytes.
    pub fn new(file: &OpenFile, buffer: B, offset: u64) -> UpToEnd<B> {
        let io_range = IoRange { offset, len: 0, buf: std::ptr::null_mut() };
        let mut read = UpToEnd { buffer: Some(Kept::new((buffer, 0))), io_range, len: 0, unread: Unread::default() };
        read.look(file);
        read
    }

    /// Copies the cached bytes of the file as long as it is now.
    fn look(&mut self, file: &OpenFile) {
        let Some((buffer, read)) = self.buffer.as_mut().map(Kept::get) else { unreachable!("a buffer is used once") };
        let memory = buffer.memory();
        *read = file.file.len().saturating_sub(self.io_range.offset).min(memory.len() as u64) as usize;
        self.len = memory.len();
        self.io_range = IoRange { len: *read, buf: memory.cast(), ..self.io_range };
        // SAFETY: the memory is the buffer's, which this has, and nothing else uses it.
        self.unread = unsafe { Unread::new(file, (*read > 0).then_some(self.io_range).into_iter()) };
    }

    /// The number of bytes that were read, and the buffer, if all were cached and there are any.
    pub fn into_cached(mut self) -> std::result::Result<(B, usize), UpToEnd<B>> {
        match self.buffer.take() {
            Some(buffer) if self.io_range.len > 0 && self.unread.is_empty() => Ok(buffer.into_inner()),
            buffer => Err(UpToEnd { buffer, ..self }),
        }
    }

    /// The buffer.
    pub fn into_buffer(self) -> Option<B> {
        self.buffer.map(|buffer| buffer.into_inner().0)
    }

    /// The number of bytes to read.
    pub fn bytes(&self) -> usize {
        self.io_range.len
    }
}

impl<B: IoBuffer> Prepare<(B, usize)> for UpToEnd<B> {
    fn prepare(
        &mut self,
        by: &Requester,
        done: &mut BatchReceiver<(B, usize)>,
    ) -> Result<Option<Prepared<(B, usize)>>> {
        let file = &by.file.file;
        let Some(entered) = by.enter_for(None, std::iter::empty())? else { return Ok(None) };
        let cell = by.file.exec().cell_for(by.class)?;
        let IoRange { offset, len, .. } = self.io_range;
        file.range_end(offset, self.len as u64)?;
        if file.len().saturating_sub(offset).min(self.len as u64) as usize != len {
            // The length has changed since.
            self.look(&by.file);
        }
        let within = Within::new(self.io_range.buf, self.len);
        let Some(buffers) = self.buffer.take() else { unreachable!("a buffer is used once") };
        let reads = std::mem::take(&mut self.unread);
        let moves = Moves { within, reads, writes: Vec::new(), write_end: 0, class: by.class, cell };
        let entered = EnteredFile::stay(entered, by.file.clone());
        Ok(Some(Prepared { entered, buffers, moves, done: done.take() }))
    }

    fn give_back(self) -> Option<(B, usize)> {
        self.buffer.map(Kept::into_inner)
    }
}

/// A batch that is inside the gate, before its I/O begins.
struct Prepared<K: Send + 'static> {
    entered: EnteredFile,
    /// The memory of all transfers of `moves`. Its address stays the same when this is moved.
    buffers: Kept<K>,
    moves: Moves,
    done: BatchReceiver<K>,
}

impl<K: Send + 'static> Prepared<K> {
    /// Spawns the part that needs I/O. Returns its context.
    fn start(self) -> BegunIn {
        let Prepared { entered, buffers, moves, done } = self;
        if moves.is_empty() {
            entered.leave(move || done.tell(Ok(buffers.into_inner())));
            return None;
        }
        let (cell, is_polled) = (Arc::clone(&moves.cell), done.is_polled());
        let operation = async move {
            // SAFETY: the memory is that of `buffers`, which are dropped after this has ended or was dropped.
            let ran = unsafe { moves.run(&entered).await };
            let outcome = match ran {
                Ok(()) => Ok(buffers.into_inner()),
                Err(error) => Err(Failed::new(error, Some(buffers.into_inner()))),
            };
            entered.leave(move || done.tell(outcome));
        };
        if is_polled {
            task::spawn_polled(&cell, operation);
        } else {
            task::spawn(&cell, operation);
        }
        Some(cell)
    }
}

/// A buffer of the caller, and the transfers between it and a file.
pub struct Owned<K> {
    buffer: Kept<K>,
    /// The buffer's memory, or a part that contains all transfers.
    within: Within,
    reads: Unread,
    /// `None` for a read.
    writes: Option<Vec<IoRange>>,
}

impl<K> Owned<K> {
    /// # Safety
    /// The memory of `reads` and `writes` is the buffer's. Its address stays the same when the buffer is moved, and it
    /// is valid until the buffer is dropped.
    pub unsafe fn new(buffer: Kept<K>, within: Within, reads: Unread, writes: Option<Vec<IoRange>>) -> Owned<K> {
        Owned { buffer, within, reads, writes }
    }
}

/// The parts of reads that missed the cache.
#[derive(Default)]
pub struct Unread {
    /// Without a cache: all I/O ranges.
    io_ranges: Vec<IoRange>,
    /// With a cache: the missing spans.
    spans: Vec<Span>,
}

impl Unread {
    /// Copies the cached bytes of reads. The value lists the rest.
    ///
    /// # Safety
    /// The I/O ranges' memory is writable, and nothing else uses it.
    pub unsafe fn new(file: &OpenFile, reads: impl Iterator<Item = IoRange>) -> Unread {
        let mut spans = Vec::new();
        let io_ranges = match &file.paged {
            None => reads.collect(),
            Some(paged) => {
                // SAFETY: the caller's promise.
                unsafe { paged.read_many(reads, &mut spans) };
                Vec::new()
            }
        };
        Unread { io_ranges, spans }
    }

    /// Whether all bytes were cached.
    pub fn is_empty(&self) -> bool {
        self.io_ranges.is_empty() && self.spans.is_empty()
    }

    fn check_within(&self, file: &OpenFile) -> Result<()> {
        let spans = self.spans.iter().map(|span| (span.offset(), usize::from(span.len)));
        let rest = self.io_ranges.iter().map(|io_range| (io_range.offset, io_range.len)).chain(spans);
        file.file.check_within("range", rest)
    }
}

/// The transfers of a batch with their memory.
struct Moves {
    /// Memory that may be registered with engines and contains all transfers; or none.
    within: Within,
    reads: Unread,
    writes: Vec<IoRange>,
    write_end: u64,
    class: Class,
    /// The context of its I/O.
    cell: Arc<SharedCell>,
}

impl Moves {
    fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// # Safety
    /// The memory of all I/O ranges is valid until this has ended or is dropped. Nothing else uses the memory of reads.
    async unsafe fn run(self, file: &OpenFile) -> Result<()> {
        let Moves { within, reads: Unread { io_ranges, spans: missing }, writes, write_end, class, cell } = self;
        let io = file.exec().spawned(&cell);
        let turn = WriteTurn::begin(&file.file, write_end, file.paged.is_none());
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match &file.paged {
                None => {
                    let (reads, writes) = (io_ranges.into_iter(), writes.into_iter());
                    file.file.transfer(&io, class, within, reads, writes).await?;
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

/// The buffers of requests, with the I/O ranges of their reads and of their writes.
fn memory_of(requests: Vec<Request>) -> Result<(Buffers, Vec<IoRange>, Vec<IoRange>)> {
    let mut buffers: Buffers = Vec::with_capacity(requests.len());
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for request in requests {
        let (io_ranges, offset, mut bytes) = match request {
            Request::Read { offset, len } => (&mut reads, offset, zeroed(len)?),
            Request::Write { offset, bytes } => (&mut writes, offset, bytes),
        };
        io_ranges.push(IoRange { offset, len: bytes.len(), buf: bytes.as_mut_ptr() });
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
