//! Calls with callbacks: batches, and reads into a buffer of the caller. Non-goals: running operations (`exec`), and
//! batches (`pager::batch`).

use super::answer::Unfilled;
use super::file::File;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::users_code;
use crate::pager::batch::{Batch, BatchReceiver, Buffers, Callback};
use crate::pager::{Failed, IoBuffer, OpenFile, Returned};

pub use crate::pager::batch::Request;

impl File {
    /// Begins a batch of requests. A callback thread calls `callback` with one buffer for each request, the bytes read
    /// or written, or with the first error of the batch. If the batch cannot begin, this returns the error and drops
    /// the callback.
    ///
    /// A read of a batch gets new memory, which has no alignment for direct I/O. So long reads cost less by
    /// [`File::read_at_then`] with a buffer of [`Array::buffer`](crate::Array::buffer).
    ///
    /// Inside the callback, blocking calls return [`Error::BlockingCall`](crate::Error::BlockingCall), and `submit` is
    /// allowed. The same is true inside wakers, which may run on any thread that does I/O.
    pub fn submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<()> {
        let file = self.here()?;
        file.wait_for_room();
        let callback = match requests[..] {
            [Request::Read { offset, len }] => match file.submit_read(offset, len, callback)? {
                Some(callback) => callback,
                None => return Ok(()),
            },
            _ => callback,
        };
        let callback: Callback<Buffers> = Box::new(|outcome| callback(outcome.map_err(Error::from)));
        let done = BatchReceiver::callback(&file.state.exec().callbacks, callback)?;
        file.requester().begin(Batch::of(requests), done).map(drop)
    }

    /// [`File::submit`], unless `submit` would wait because the calling thread has some thousand unfinished batches, or
    /// some thousand callbacks wait for the ends of others. Then this returns the requests (`Ok(Some(requests))`) and
    /// begins nothing. `submit` does not wait for callbacks: they may wait for its caller.
    pub fn try_submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Request>>> {
        let file = self.here()?;
        if file.is_full_here() || file.state.exec().callbacks.has_backlog() {
            return Ok(Some(requests));
        }
        file.submit(requests, callback).map(|()| None)
    }

    /// [`File::read_at`] with a callback. A callback thread calls it with the buffer and the number of bytes read: less
    /// than the buffer's length only at the end of the file. If the read cannot begin, this returns the error and drops
    /// the callback. [`File::submit`] describes what callbacks may do. Like it, this waits if the calling thread has
    /// some thousand unfinished reads.
    ///
    /// A read that misses the cache, or a file without a cache, allocates once: for the callback.
    pub fn read_at_then<B: IoBuffer>(
        &self,
        buf: B,
        offset: u64,
        callback: impl FnOnce(std::result::Result<(B, usize), Failed<B>>) + Send + 'static,
    ) -> std::result::Result<(), Failed<B>> {
        let mut buf = buf;
        let len = buf.memory().len() as u64;
        let checked = self.here().and_then(|file| {
            file.check_callbacks()?;
            file.state.file.range_end(offset, len)?;
            Ok(file)
        });
        let file = match checked {
            Ok(file) => file,
            Err(error) => return Err(Failed::new(error, Some(buf))),
        };
        file.wait_for_room();
        let within = file.len().saturating_sub(offset).min(len) as usize;
        let (buf, callback) = match file.begin_one((offset, within), buf, (callback, within), call_with_len) {
            Ok(()) => return Ok(()),
            Err((buf, (callback, _))) => (buf, callback),
        };
        let read = match file.read_cached(buf, offset) {
            Ok(outcome) => {
                file.state.exec().callbacks.call(move || callback(Ok(outcome)));
                return Ok(());
            }
            Err(read) => read,
        };
        let without_len = |failed: Failed<(B, usize)>| failed.map(|(buf, _)| buf);
        let callback: Callback<(B, usize)> = Box::new(move |outcome| callback(outcome.map_err(without_len)));
        let done = match BatchReceiver::callback(&file.state.exec().callbacks, callback) {
            Ok(done) => done,
            Err(error) => return Err(Failed::new(error, read.into_buffer())),
        };
        file.requester().begin_up_to_end(read, done).map(drop).map_err(without_len)
    }

    /// `submit` of one read. Returns the callback if the read needs the general path.
    fn submit_read<C: FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static>(
        &self,
        offset: u64,
        len: usize,
        callback: C,
    ) -> Result<Option<C>> {
        if len == 0 || offset.checked_add(len as u64).is_none_or(|end| end > self.len()) {
            return Ok(Some(callback));
        }
        self.check_callbacks()?;
        let call = |callback: C, outcome: Returned<Unfilled>| {
            // SAFETY: the read has filled its memory.
            callback(outcome.map(|bytes| vec![unsafe { bytes.all_filled() }]).map_err(Error::from));
        };
        let begun = self.begin_one((offset, len), Unfilled::new(len)?, callback, call);
        Ok(begun.err().map(|(_unused, callback)| callback))
    }

    /// Begins a read of a range within the file: of any range without a cache, else within one page. Returns the buffer
    /// and the callback if the read needs the general path. `call` calls the callback.
    fn begin_one<B: IoBuffer, C: Send + 'static>(
        &self,
        (offset, len): (u64, usize),
        mut buf: B,
        callback: C,
        call: fn(C, Returned<B>),
    ) -> std::result::Result<(), (B, C)> {
        let Some(paged) = &self.state.paged else {
            if len == 0 {
                return Err((buf, callback));
            }
            return OpenFile::submit_direct(&self.state, self.class, (offset, len), buf, (callback, call));
        };
        let is_in_page = len <= PAGE_BYTES - offset as usize % PAGE_BYTES;
        if len == 0 || !is_in_page || self.class != Class::Foreground {
            return Err((buf, callback));
        }
        if self.read_if_cached(&mut buf, offset, len) {
            self.state.exec().callbacks.call(move || call(callback, Ok(buf)));
            return Ok(());
        }
        OpenFile::submit_direct(&self.state, self.class, (offset, len), buf, (callback, call))?;
        self.missed(paged, offset, len);
        Ok(())
    }

    /// An error if no callback can be called.
    fn check_callbacks(&self) -> Result<()> {
        let exec = self.state.exec();
        exec.check_open()?;
        exec.callbacks.get_ready()
    }

    /// Waits while the calling thread has so much in flight that a caller which may wait should wait.
    fn wait_for_room(&self) {
        while users_code::may_wait() && self.is_full_here() {
            self.state.exec().pause_for_io();
        }
    }

    /// Whether the calling thread has so much in flight that a caller which may wait should wait.
    fn is_full_here(&self) -> bool {
        let exec = self.state.exec();
        if self.class == Class::Background { exec.is_full_behind() } else { exec.is_full_here() }
    }
}

/// Calls the callback of a read that was to read `len` bytes.
fn call_with_len<B>(
    (callback, len): (impl FnOnce(std::result::Result<(B, usize), Failed<B>>), usize),
    outcome: Returned<B>,
) {
    callback(outcome.map(|buf| (buf, len)));
}
