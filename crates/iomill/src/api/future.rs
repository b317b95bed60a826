//! Futures ([`Reading`], [`Writing`], [`Syncing`]) and callbacks. Their operations own the buffers: dropping a future frees no memory that
//! the kernel still writes to. Non-goals: running operations (`exec`), and batches (`pager::batch`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::answer::{Answer, FutureState};
use super::file::{File, check_sizes, sum_of_lengths};
use crate::error::Result;
use crate::exec::promise;
use crate::pager::batch::{Batch, BatchReceiver, Buffers, Requester};

pub use crate::pager::batch::Request;

impl File {
    /// Reads `len` bytes at an offset in bytes. The future resolves to the bytes, fewer than asked for only at the end of the file. The
    /// read has begun when this returns. If the drives' queues are full, this call waits for room.
    pub fn read(&self, offset: u64, len: usize) -> Reading {
        Reading(self.begin_one(Batch::up_to_end(offset, len)))
    }

    /// [`File::read_ranges`] as a future, into a buffer that is as long as the ranges together. The future resolves to the buffer. The
    /// read has begun when this returns, and does not need `ranges` any more. Bytes that are in the cache are in the buffer by then.
    pub fn read_ranges_async(&self, out: Vec<u8>, ranges: &[(u64, usize)]) -> Reading {
        let begun = check_sizes(sum_of_lengths(ranges), out.len(), "out").and_then(|()| {
            let file = self.here()?;
            let within = || file.state.file.check_within(ranges.iter().copied());
            file.begin_gather(out, ranges.iter().copied(), within)
        });
        Reading::begun(begun)
    }

    /// Writes bytes at an offset in bytes. The future resolves to the same buffer, for further use. The write has begun when this returns.
    pub fn write(&self, bytes: Vec<u8>, offset: u64) -> Writing {
        Writing(self.begin_one(Batch::of(vec![Request::Write { offset, bytes }])))
    }

    /// [`File::sync`] as a future.
    pub fn sync_async(&self) -> Syncing {
        Syncing(match self.here() {
            Ok(file) => {
                let reported = file.reported.share();
                File::answer_later(file.state.clone(), move |state| state.sync_and_report(&reported))
            }
            Err(forked) => Answer::now(Err(forked)),
        })
    }

    /// Begins a batch of requests. A callback thread calls `callback` with the outcome: for each request the bytes that it read, or the
    /// buffer that it wrote; or the first error of the batch. If the batch cannot begin, this returns the error and drops the callback.
    ///
    /// Inside the callback blocking calls return [`Error::BlockingCall`](crate::Error::BlockingCall). It may submit more. The same holds for
    /// wakers, which may run on a drive thread.
    pub fn submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<()> {
        let file = self.here()?;
        let done = BatchReceiver::callback(&file.state.exec().callbacks, Box::new(callback))?;
        file.requester().begin(Batch::of(requests), done)
    }

    /// [`File::submit`], unless a drive that the requests need has a full queue. Then they come back (`Ok(Some(requests))`), and nothing
    /// has begun. Each drive has a queue of its own, for some thousand requests. So a program with work for other drives need not wait for
    /// a slow one.
    pub fn try_submit(
        &self,
        requests: Vec<Request>,
        callback: impl FnOnce(Result<Vec<Vec<u8>>>) + Send + 'static,
    ) -> Result<Option<Vec<Request>>> {
        let file = self.here()?;
        if !file.requester().has_room(&requests) {
            return Ok(Some(requests));
        }
        file.submit(requests, callback).map(|()| None)
    }

    /// Begins to read ranges, (offset, length) in bytes each, into `bytes`, which is as long as they are together. `check` says whether
    /// they are within the file.
    pub(super) fn begin_gather(
        &self,
        bytes: Vec<u8>,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        check: impl Fn() -> Result<()>,
    ) -> Result<FutureState<Buffers>> {
        let (promise, promised) = promise();
        self.requester().begin_gather(bytes, ranges, check, BatchReceiver::promise(promise))?;
        Ok(FutureState::later(promised))
    }

    fn requester(&self) -> Requester {
        Requester::new(self.state.clone(), self.class)
    }

    /// Begins a batch of one request.
    fn begin_one(&self, batch: Batch) -> FutureState<Buffers> {
        match self.here() {
            Ok(file) => file.begin_one_here(batch),
            Err(forked) => FutureState::now(Err(forked)),
        }
    }

    fn begin_one_here(&self, batch: Batch) -> FutureState<Buffers> {
        if let [Request::Read { offset, len }] = batch.requests() {
            self.look_ahead(*offset, (*len as u64).min(self.len().saturating_sub(*offset)) as usize);
        }
        let (promise, promised) = promise();
        match self.requester().begin(batch, BatchReceiver::promise(promise)) {
            Ok(()) => FutureState::later(promised),
            Err(error) => FutureState::now(Err(error)),
        }
    }
}

/// The future of [`File::read`] and [`File::read_rows_async`].
#[derive(Debug)]
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Reading(FutureState<Buffers>);

/// The future of [`File::write`].
#[derive(Debug)]
#[must_use = "the write goes on, but its errors are lost"]
pub struct Writing(FutureState<Buffers>);

/// The future of [`File::sync_async`].
#[derive(Debug)]
#[must_use = "the sync goes on, but its errors are lost"]
pub struct Syncing(Answer<()>);

impl Reading {
    /// Of one buffer that is being read into, or the reason why that has not begun.
    pub(super) fn begun(begun: Result<FutureState<Buffers>>) -> Reading {
        Reading(begun.unwrap_or_else(|error| FutureState::now(Err(error))))
    }
}

fn the_one(buffers: Result<Buffers>) -> Result<Vec<u8>> {
    buffers.map(|mut buffers| buffers.pop().unwrap_or_default())
}

impl Future for Reading {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(the_one)
    }
}

impl Future for Writing {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context).map(the_one)
    }
}

impl Future for Syncing {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
