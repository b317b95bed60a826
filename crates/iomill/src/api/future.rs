//! Futures of reads, writes and syncs. The operations own the buffers: dropping a future frees no memory that the
//! kernel still writes to. Non-goals: callbacks (`callback`), the futures themselves (`answer`, `transfer`), running
//! operations (`exec`), and batches (`pager::batch`).

use super::answer::{Answer, Unfilled};
use super::file::{File, check_sizes, sum_of_lengths, sync_traced};
use super::transfer::{Later, Moving, NowOrLater, Transfer};
use crate::drive::shares::begin_serving;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{Within, promise};
use crate::file::split::{IoRange, io_ranges};
use crate::pager::batch::{BatchReceiver, Owned, Requester, Unread, UpToEnd};
use crate::pager::{Failed, IoBuffer, IoBytes, Kept, OpenFile, Span};

impl File {
    /// Reads `len` bytes at an offset in bytes into new memory. The future resolves to the bytes: fewer than `len` only
    /// at the end of the file. Cached bytes are copied before this returns, and the future is ready at its first poll.
    /// Otherwise the request may wait for other requests of the thread, so that one system call submits them together.
    /// It is submitted within 5 ms, polled or not, and at the latest at the future's second poll. The first poll asks
    /// for the second.
    #[inline]
    pub fn read_async(&self, offset: u64, len: usize) -> Answer<Vec<u8>> {
        if len.wrapping_sub(1) >= PAGE_BYTES - offset as usize % PAGE_BYTES {
            return self.read_pages(offset, len);
        }
        let mut bytes = match Unfilled::new(len) {
            Ok(bytes) => bytes,
            Err(error) => return Answer::now(Err(error)),
        };
        // SAFETY: the memory is as long as the range, and nothing else has it.
        let Some(end) = (unsafe { self.read_page(bytes.memory().cast(), len, offset) }) else {
            return Answer::of_read(self.begin_read_any(bytes, len, offset));
        };
        self.passed_page(end);
        // SAFETY: all of it was read.
        Answer::now(Ok(unsafe { bytes.filled(len) }))
    }

    /// `read_async` of a range that is not within one page.
    #[inline(never)]
    fn read_pages(&self, offset: u64, len: usize) -> Answer<Vec<u8>> {
        let begun = self.here().and_then(|file| {
            file.state.file.range_end(offset, len as u64)?;
            // Memory only for bytes within the file.
            let within = file.len().saturating_sub(offset).min(len as u64) as usize;
            Ok((file, Unfilled::new(within)?, within))
        });
        match begun {
            Ok((file, bytes, within)) => Answer::of_read(file.begin_read_any(bytes, within, offset)),
            Err(error) => Answer::now(Err(error)),
        }
    }

    /// Begins a direct read of a range. With a cache the range is within one page, and the page's hint has not found
    /// it. Returns the memory if the read needs the general path.
    fn begin_direct<B: IoBuffer>(
        &self,
        mut bytes: B,
        offset: u64,
        len: usize,
    ) -> std::result::Result<std::result::Result<NowOrLater<B>, Failed<B>>, B> {
        let within = self.len().saturating_sub(offset).min(len as u64) as usize;
        if within == 0 {
            return Err(bytes);
        }
        if !self.state.exec().is_open() {
            return Ok(Err(Failed::new(Error::Closed, Some(bytes))));
        }
        let _never_waits = begin_serving();
        let Some(paged) = &self.state.paged else {
            let reading = OpenFile::begin_direct(&self.state, self.class, (offset, within), bytes)?;
            return Ok(Ok(NowOrLater::Later(Moving::Direct(reading, within))));
        };
        if self.class != Class::Foreground {
            return Err(bytes);
        }
        if self.read_if_cached(&mut bytes, offset, within) {
            return Ok(Ok(NowOrLater::Now(bytes, within)));
        }
        let reading = OpenFile::begin_direct(&self.state, self.class, (offset, within), bytes)?;
        self.missed(paged, offset, within);
        Ok(Ok(NowOrLater::Later(Moving::Direct(reading, within))))
    }

    /// [`File::read_at`] as a future that owns the buffer. It resolves to the buffer and the number of bytes read: less
    /// than the buffer's length only at the end of the file. The read starts as that of [`File::read_async`]. If the
    /// future is dropped, the read continues, and drops the buffer at its end.
    #[inline]
    pub fn read_at_async<B: IoBuffer>(&self, mut buf: B, offset: u64) -> Transfer<B, (B, usize)> {
        let memory = buf.memory();
        let len = memory.len();
        // SAFETY: the memory is the buffer's, and nothing else has it.
        let Some(end) = (unsafe { self.read_page(memory.cast(), len, offset) }) else {
            return Transfer::of_read(self.begin_read_any(buf, len, offset));
        };
        self.passed_page(end);
        Transfer::now((buf, len))
    }

    /// Begins a read up to the end of the file, for all ranges but those within one cached page. `buf` has `len` bytes.
    #[inline(never)]
    fn begin_read_any<B: IoBuffer>(
        &self,
        buf: B,
        len: usize,
        offset: u64,
    ) -> std::result::Result<NowOrLater<B>, Failed<B>> {
        let file = match self.here() {
            Ok(file) => file,
            Err(forked) => return Err(Failed::new(forked, Some(buf))),
        };
        if let Err(error) = file.state.file.range_end(offset, len as u64) {
            return Err(Failed::new(error, Some(buf)));
        }
        let is_direct = len > 0 && (file.state.paged.is_none() || len <= PAGE_BYTES - offset as usize % PAGE_BYTES);
        let begun = if is_direct { file.begin_direct(buf, offset, len) } else { Err(buf) };
        let buf = match begun {
            Ok(begun) => return begun,
            Err(buf) => buf,
        };
        if let Err(error) = file.state.exec().check_open() {
            return Err(Failed::new(error, Some(buf)));
        }
        let read = match file.read_cached(buf, offset) {
            Ok((buf, len)) => return Ok(NowOrLater::Now(buf, len)),
            Err(read) => read,
        };
        let (promise, promised) = promise();
        let _never_waits = begin_serving();
        match file.requester().begin_up_to_end(read, BatchReceiver::promise(promise)) {
            Ok(cell) => Ok(NowOrLater::Later(Moving::UpToEnd(Later::new(promised, cell)))),
            Err(failed) => Err(failed.map(|(buf, _)| buf)),
        }
    }

    /// Reads `len` bytes within one page, if the page is cached. `buf` has room for them.
    pub(super) fn read_if_cached<B: IoBuffer>(&self, buf: &mut B, offset: u64, len: usize) -> bool {
        let (page, within) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        let span = Span { page, within: within as u16, len: len as u16, buf: buf.memory().cast() };
        // SAFETY: the memory is at least as long as the range, and nothing else has it.
        let is_cached = unsafe { self.state.read_in_set(span) };
        if is_cached {
            self.passed(offset, len);
        }
        is_cached
    }

    /// Copies the cached bytes of a read up to the end of the file. Returns the buffer and the number of bytes read if
    /// all are cached and there are any, else the read of the others.
    pub(super) fn read_cached<B: IoBuffer>(&self, buf: B, offset: u64) -> std::result::Result<(B, usize), UpToEnd<B>> {
        let read = UpToEnd::new(&self.state, buf, offset).into_cached();
        match &read {
            Ok((_, len)) => self.passed(offset, *len),
            Err(rest) => {
                if let Some(paged) = self.state.paged.as_ref().filter(|_| rest.bytes() > 0) {
                    self.missed(paged, offset, rest.bytes());
                }
            }
        }
        read
    }

    /// [`File::read_many`] as a future that owns the buffer and resolves to it. Cached rows are copied before this
    /// returns, and the other rows are read from then on. `offsets` are not used after the return. If the future is
    /// dropped, the read continues.
    pub fn read_many_async<B: IoBuffer>(&self, out: B, offsets: &[u64], row_len: usize) -> Transfer<B> {
        let needed = offsets.len().checked_mul(row_len);
        self.begin_read("row", out, needed, offsets.iter().map(|&offset| (offset, row_len)))
    }

    /// [`File::read_ranges`] as a future, like [`File::read_many_async`].
    pub fn read_ranges_async<B: IoBuffer>(&self, out: B, ranges: &[(u64, usize)]) -> Transfer<B> {
        self.begin_read("range", out, sum_of_lengths(ranges), ranges.iter().copied())
    }

    /// [`File::read_ranges`] as a future that reads into new memory, where [`File::read_ranges_async`] reads into a
    /// buffer of the caller. Each range is an offset and a length in bytes. The future resolves to the bytes of all
    /// ranges, one after the other. A range past the end of the file is an error.
    pub fn gather_async(&self, ranges: &[(u64, usize)]) -> Answer<Vec<u8>> {
        let Some(len) = sum_of_lengths(ranges) else {
            let error = Error::invalid("the ranges of a gather", "together they are longer than the address space");
            return Answer::now(Err(error.advise("ask for fewer at a time")));
        };
        // Before there is memory for ranges that the file does not have.
        let within = self.here().and_then(|file| file.state.file.check_within("range", ranges.iter().copied()));
        match within.and_then(|()| Unfilled::new(len)) {
            Ok(memory) => Answer::of_read(self.read_ranges_async(memory, ranges).into_begun(len)),
            Err(error) => Answer::now(Err(error)),
        }
    }

    fn begin_read<B: IoBuffer>(
        &self,
        noun: &str,
        mut out: B,
        needed: Option<usize>,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Transfer<B> {
        let file = check_sizes(needed, out.memory().len(), "out").and_then(|()| self.here());
        match file {
            Ok(file) => file.begin_gather(out, ranges.clone(), || file.state.file.check_within(noun, ranges.clone())),
            Err(error) => Transfer::failed(error, out),
        }
    }

    /// [`File::write_at`] as a future that owns the bytes and resolves to them. The write has begun when this returns.
    /// If the future is dropped, the write continues.
    pub fn write_at_async<B: IoBytes>(&self, bytes: B, offset: u64) -> Transfer<B> {
        let len = bytes.bytes().len();
        self.begin_write(bytes, Some(len), std::iter::once((offset, len)))
    }

    /// [`File::write_many`] as a future, like [`File::write_at_async`].
    pub fn write_many_async<B: IoBytes>(&self, bytes: B, offsets: &[u64], row_len: usize) -> Transfer<B> {
        let needed = offsets.len().checked_mul(row_len);
        self.begin_write(bytes, needed, offsets.iter().map(|&offset| (offset, row_len)))
    }

    /// [`File::write_ranges`] as a future, like [`File::write_at_async`].
    pub fn write_ranges_async<B: IoBytes>(&self, bytes: B, ranges: &[(u64, usize)]) -> Transfer<B> {
        self.begin_write(bytes, sum_of_lengths(ranges), ranges.iter().copied())
    }

    fn begin_write<B: IoBytes>(
        &self,
        bytes: B,
        needed: Option<usize>,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
    ) -> Transfer<B> {
        let checked = check_sizes(needed, bytes.bytes().len(), "bytes").and_then(|()| self.here());
        let file = match checked {
            Ok(file) => file,
            Err(error) => return Transfer::failed(error, bytes),
        };
        let mut bytes = Kept::new(bytes);
        let memory = bytes.get().bytes();
        // Writes only read the memory.
        let writes = io_ranges(ranges, memory.cast::<u8>().cast_mut()).filter(|io_range| io_range.len > 0);
        let fits = |write: IoRange| file.state.file.range_end(write.offset, write.len as u64).map(drop);
        if let Err(error) = writes.clone().try_for_each(fits) {
            return Transfer::failed(error, bytes.into_inner());
        }
        // SAFETY: the memory is as `IoBytes` promises.
        let written = unsafe { file.state.write_cached(writes.clone()) };
        if written > 0 && written == memory.len() {
            return Transfer::now(bytes.into_inner());
        }
        let writes = rest_of(writes, written).collect();
        // SAFETY: the I/O ranges are in the memory of `bytes`, which is as `IoBytes` promises.
        let owned = unsafe { Owned::new(bytes, within(memory), Unread::default(), Some(writes)) };
        file.begin_transfer(owned, memory.len())
    }

    /// [`File::sync`] as a future.
    pub fn sync_async(&self) -> Answer<()> {
        match self.here() {
            Ok(file) => {
                let reported = file.reported.share();
                File::answer_later(file.state.clone(), move |state| sync_traced(state, &reported))
            }
            Err(forked) => Answer::now(Err(forked)),
        }
    }

    /// Begins to read ranges, (offset, length) in bytes each, into `out`. The length of `out` is the sum of theirs.
    /// `check` fails unless the ranges are within the file.
    pub(super) fn begin_gather<B: IoBuffer>(
        &self,
        out: B,
        ranges: impl Iterator<Item = (u64, usize)>,
        check: impl Fn() -> Result<()>,
    ) -> Transfer<B> {
        if let Err(error) = self.state.exec().check_open().and_then(|()| check()) {
            return Transfer::failed(error, out);
        }
        let mut out = Kept::new(out);
        let memory = out.get().memory();
        let reads = io_ranges(ranges, memory.cast());
        // SAFETY: the memory is the buffer's, and as long as the ranges.
        let unread = unsafe { Unread::new(&self.state, reads) };
        if unread.is_empty() {
            return Transfer::now(out.into_inner());
        }
        // SAFETY: the I/O ranges are in the memory of `out`, which is as `IoBuffer` promises.
        self.begin_transfer(unsafe { Owned::new(out, within(memory), unread, None) }, memory.len())
    }

    fn begin_transfer<B: Send + 'static>(&self, owned: Owned<B>, len: usize) -> Transfer<B> {
        let (promise, promised) = promise();
        let _never_waits = begin_serving();
        match self.requester().begin_owned(owned, BatchReceiver::promise(promise)) {
            Ok(cell) => Transfer::later(Moving::Whole(Later::new(promised, cell), len)),
            Err(failed) => Transfer::refused(failed),
        }
    }

    pub(super) fn requester(&self) -> Requester {
        Requester::new(self.state.clone(), self.class)
    }
}

/// The I/O ranges without their first `skip` bytes.
fn rest_of(io_ranges: impl Iterator<Item = IoRange>, skip: usize) -> impl Iterator<Item = IoRange> {
    let mut skip = skip;
    io_ranges.filter_map(move |IoRange { offset, len, buf }| {
        let skipped = skip.min(len);
        skip -= skipped;
        let rest = IoRange { offset: offset + skipped as u64, len: len - skipped, buf: buf.wrapping_add(skipped) };
        (rest.len > 0).then_some(rest)
    })
}

/// The memory of a buffer, for the engines with which it is registered.
fn within(memory: *const [u8]) -> Within {
    Within::new(memory.cast(), memory.len())
}
