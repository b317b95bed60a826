//! [`File`]: a handle of a virtual file, and its blocking calls. Non-goals: futures and callbacks (`future`), pins and
//! tasks in place (`pin`).

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::answer::{Answer, answer_later};
use super::child::{Again, of_process};
use super::position::Position;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{Exec, Within, users_code};
use crate::file::split::{IoRange, io_ranges};
use crate::file::transfer::WriteTurn;
use crate::file::vectored::VectoredWrite;
use crate::file::{Entered, Reported};
use crate::pager::ahead::{CHUNK_PAGES, ReadAhead};
use crate::pager::{LIST_SPANS, OpenRef, Paged, Span, Want};
use crate::sys::events;

/// Only a hit that reaches a multiple of these bytes checks whether read-ahead must continue. Others pay a comparison.
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE_BYTES as u64;

/// An open file of an array, or an open plain file ([`PlainOptions`](super::PlainOptions)). Clones are handles of the
/// same file. All calls may be mixed, from any number of threads.
///
/// Arguments are in the order of [`std::os::unix::fs::FileExt`]: the memory first, then the places (offsets, ranges or
/// numbers of rows), then a length, then a function. Calls on rows by numbers end with the offset of row 0. Offsets and
/// lengths are in bytes.
///
/// Reads of one range are short at the end of the file: `read_at`, `read_vectored_at`, `read_at_then`, `read_with`,
/// their futures, and cursors. Reads of many ranges, pins and `submit` return [`Error::Invalid`] for a range past the
/// end. So does each call for a range past [`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES). Writes past the end extend the
/// file, and holes read as zero.
///
/// Any offset, length and memory works. Whole 4,096-byte pages at page offsets are fastest. If overlapping calls run at
/// the same time, a page may have the bytes of any of them. With a page cache it has the bytes of one call as a whole.
/// Without a cache, and with the engine `mmap`, a read may return bytes of both.
///
/// Later reads of this process see a write that has ended. It is durable after the next [`File::sync`]. Before that
/// sync, a crash or a kill may lose any part of it.
///
/// A write past the end allocates space for the bytes that it skips, up to 256 MiB on each drive. If it skips more, the
/// skipped bytes become a hole without space, as by [`File::set_len`]. In a plain file skipped bytes are always a hole.
///
/// In a forked child a handle for reading opens its file again at the first call, with a cache of its own. That cache
/// has the parent's size divided by the number of CPUs. All calls on a handle for writing fail with [`Error::Forked`].
///
/// Calls return [`Error::Closed`] after the array is closed, and [`Error::BlockingCall`] if they block inside a
/// callback or a waker. Writes return [`Error::ReadOnly`] on an array or a plain file that is open for reading.
///
/// Dropping the last handle makes all writes durable, but cannot return errors. [`File::close`] does.
#[derive(Clone)]
pub struct File {
    pub(super) state: OpenRef,
    pub(super) class: Class,
    /// The failures of write-back that this handle has reported.
    pub(super) reported: Reported,
    handle: Arc<SharedHandle>,
}

/// The array or the paths from which a forked child opens a file again.
pub(super) trait Origin: std::fmt::Debug + Send + Sync {
    fn open(&self, name: &str) -> Result<File>;
}

/// The state that clones of a handle share.
struct SharedHandle {
    ahead: ReadAhead,
    position: Position,
    /// `None` if it is open for writing.
    origin: Option<Box<dyn Origin>>,
    /// The handle that a forked child opens in place of this one.
    again: Again<File>,
    /// `OpenFile::is_held` counts it.
    _held: Arc<()>,
}

impl File {
    pub(super) fn new(state: OpenRef, read_ahead_bytes: u64, origin: Option<Box<dyn Origin>>) -> File {
        let (ahead, again) = (ReadAhead::new(read_ahead_bytes), Again::empty());
        let position = Position::default();
        let handle = Arc::new(SharedHandle { ahead, position, origin, again, _held: state.handle() });
        let reported = state.file.errors.begin();
        File { state, class: Class::Foreground, reported, handle }
    }

    /// This handle, or in a forked child the handle opened in its place.
    #[inline]
    pub(super) fn here(&self) -> Result<&File> {
        if self.state.exec().home.is_here() { Ok(self) } else { self.in_child() }
    }

    #[cold]
    fn in_child(&self) -> Result<&File> {
        let origin = self.handle.origin.as_ref().ok_or(Error::Forked)?;
        of_process(&self.handle.again, || {
            let file = origin.open(self.name())?;
            file.ahead().expect_as(self.ahead());
            Ok(file)
        })
    }

    pub(super) fn position(&self) -> &Position {
        &self.handle.position
    }

    pub(super) fn ahead(&self) -> &ReadAhead {
        &self.handle.ahead
    }

    /// A handle for background I/O. All background futures and callbacks together use at most a quarter of a drive's
    /// slots, and so does each background blocking call. So foreground I/O finds free slots under any background load.
    pub fn background(&self) -> File {
        File { class: Class::Background, ..self.clone() }
    }

    /// The file's name when it was opened. For a plain file it is the path without symbolic links.
    pub fn name(&self) -> &str {
        self.state.file.name()
    }

    /// Length in bytes. It includes all writes that have ended.
    pub fn len(&self) -> u64 {
        self.state.file.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at an offset in bytes. Returns the number of bytes read, below `buf.len()` only at the end of the file.
    #[inline(always)]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // SAFETY: `buf` is borrowed for the whole call.
        let found = unsafe { self.read_page(buf.as_mut_ptr(), buf.len(), offset) };
        let Some(end) = found else { return self.read_any(buf, offset) };
        self.passed_page(end);
        Ok(buf.len())
    }

    /// Notes a read within a page that was in the cache, up to the offset `end`.
    #[inline(always)]
    pub(super) fn passed_page(&self, end: u64) {
        // Within a page no read goes beyond the end of a chunk.
        if end.is_multiple_of(CHUNK_BYTES) {
            self.passed_chunk(end);
        }
    }

    /// Notes a read that has found all its pages in the cache.
    pub(super) fn passed(&self, offset: u64, len: usize) {
        let end = offset + len as u64;
        if offset / CHUNK_BYTES != end / CHUNK_BYTES {
            self.passed_chunk(end);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn passed_chunk(&self, end: u64) {
        if let Some(paged) = &self.state.paged {
            self.handle.ahead.passed(&self.state, paged, end.saturating_sub(1) / PAGE_BYTES as u64);
        }
    }

    /// Notes a read before its pages are looked up. Its first page decides whether the whole read is a miss.
    pub(super) fn look_ahead(&self, offset: u64, len: usize) {
        match &self.state.paged {
            Some(paged) if len > 0 && !paged.is_there(offset / PAGE_BYTES as u64) => self.missed(paged, offset, len),
            Some(_) if len > 0 => self.passed(offset, len),
            _ => {}
        }
    }

    /// Notes a read that has not found all its pages in the cache.
    pub(super) fn missed(&self, paged: &Arc<Paged>, offset: u64, len: usize) {
        let page = PAGE_BYTES as u64;
        self.handle.ahead.missed(&self.state, paged, offset / page..(offset + len as u64).div_ceil(page));
    }

    /// Reads within one page of the file, if the page is cached. Returns the range's end. Inlined into every loop that
    /// reads, so that no call saves and restores registers.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and nothing else uses them.
    #[inline(always)]
    pub(super) unsafe fn read_page(&self, to: *mut u8, len: usize, offset: u64) -> Option<u64> {
        // A thread's first read has no hit path yet: `read_any` finds the page.
        let hit_path = self.state.hit_path()?;
        let within = offset as usize % PAGE_BYTES;
        // Not empty, and within a page. So the end is 0 if the sum wraps.
        if len.wrapping_sub(1) >= PAGE_BYTES - within {
            return None;
        }
        let end = offset.wrapping_add(len as u64);
        if end.wrapping_sub(1) >= self.state.file.len() {
            return None;
        }
        // SAFETY: the caller's promise, and the range is within the file and a page.
        unsafe { hit_path.read(offset / PAGE_BYTES as u64, within, to, len) }.then_some(end)
    }

    /// `read_at` for all ranges but those within one cached page.
    #[inline(never)]
    fn read_any(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        users_code::check_may_block("read_at")?;
        let file = self.here()?;
        if !std::ptr::eq(file, self) {
            return file.read_at(buf, offset);
        }
        self.state.file.range_end(offset, buf.len() as u64)?;
        if let Some(paged) = &self.state.paged {
            return self.read_paged(paged, buf, offset);
        }
        let entered = Entered::enter(&self.state.file)?;
        let len = self.state.file.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        let within = Within::new(buf.as_ptr(), buf.len());
        let io_range = IoRange { offset, len, buf: buf.as_mut_ptr() };
        // SAFETY: `buf` is borrowed for the whole call, and `fetch` returns only after all I/O on it has ended.
        unsafe { self.fetch(&entered, within, std::iter::once(io_range)) }?;
        Ok(len)
    }

    /// Writes all bytes at an offset in bytes. A write past the end extends the file. The bytes are durable after the
    /// next [`File::sync`]. After an error each byte of the range is the old or the new one.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.scatter("write_at", std::iter::once((offset, bytes.len())), bytes)
    }

    /// Reads into several buffers, one after the other, from an offset in bytes. Returns the number of bytes read. A
    /// page that is in the ranges of several buffers is read once for each.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        users_code::check_may_block("read_vectored_at")?;
        self.here()?.read_vectored_here(bufs, offset)
    }

    fn read_vectored_here(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.state.file.range_end(offset, total)?;
        let entered = Entered::enter(&self.state.file)?;
        let all = self.state.file.len().saturating_sub(offset).min(total);
        let mut done = 0;
        let io_ranges = bufs.iter_mut().map(|buf| {
            let len = (all - done).min(buf.len() as u64);
            let io_range = IoRange { offset: offset + done, len: len as usize, buf: buf.as_mut_ptr() };
            done += len;
            io_range
        });
        if let Some(paged) = &self.state.paged {
            let io_ranges: Vec<IoRange> = io_ranges.collect();
            self.look_ahead(offset, all as usize);
            // SAFETY: the buffers are borrowed for the whole call.
            unsafe { self.gather_inside(&entered, paged, io_ranges.into_iter()) }?;
            return Ok(all as usize);
        }
        // SAFETY: the buffers are borrowed for the whole call, and `fetch` returns after all I/O on them has ended.
        unsafe { self.fetch(&entered, Within::SLABS, io_ranges) }?;
        Ok(all as usize)
    }

    /// Writes several buffers, one after the other, from an offset in bytes.
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        users_code::check_may_block("write_vectored_at")?;
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.state.file.range_end(offset, total)?;
        // A write without bytes does not extend the file.
        let end = if total > 0 { end } else { 0 };
        let entered = self.state.enter_to_write(end, std::iter::once(offset..end))?;
        let write = VectoredWrite::new(bufs, offset);
        // SAFETY: the buffers are borrowed and `write` lives for the whole call, and writes only read them.
        unsafe { self.store(&entered, end, Within::SLABS, write.io_ranges.iter().copied()) }
    }

    /// Gathers rows of one length: reads the row at `offsets[i]` into `out[i * row_len..][..row_len]`. One call keeps
    /// all drives busy. A row past the end of the file is an error.
    pub fn read_many(&self, out: &mut [u8], offsets: &[u64], row_len: usize) -> Result<()> {
        check_sizes(offsets.len().checked_mul(row_len), out.len(), "out")?;
        self.here()?.gather_ranges(("read_many", "row"), offsets.iter().map(|&offset| (offset, row_len)), out)
    }

    /// Gathers ranges, (offset, length) in bytes each, one after the other into `out`. The length of `out` is the sum
    /// of their lengths. A range past the end of the file is an error.
    pub fn read_ranges(&self, out: &mut [u8], ranges: &[(u64, usize)]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), out.len(), "out")?;
        self.here()?.gather_ranges(("read_ranges", "range"), ranges.iter().copied(), out)
    }

    /// Scatters rows of one length: writes `bytes[i * row_len..][..row_len]` at `offsets[i]`. If rows overlap, a page
    /// may have the bytes of any of them.
    pub fn write_many(&self, bytes: &[u8], offsets: &[u64], row_len: usize) -> Result<()> {
        check_sizes(offsets.len().checked_mul(row_len), bytes.len(), "bytes")?;
        self.scatter("write_many", offsets.iter().map(|&offset| (offset, row_len)), bytes)
    }

    /// Scatters `bytes` to ranges, (offset, length) in bytes each: the first bytes to the first range, and so on.
    pub fn write_ranges(&self, bytes: &[u8], ranges: &[(u64, usize)]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), bytes.len(), "bytes")?;
        self.scatter("write_ranges", ranges.iter().copied(), bytes)
    }

    /// Sets the length in bytes, durably. Bytes past a smaller length are lost. Bytes that a larger one adds are zero.
    pub fn set_len(&self, len: u64) -> Result<()> {
        users_code::check_may_block("set_len")?;
        self.state.exec().check_open()?;
        self.state.set_len(len)
    }

    /// Allocates space for `len` bytes; the length stays. Writes of these bytes cannot fail for lack of space, and cost
    /// the file system less. The space is freed when the file is closed or cut, and when a write past the end fails. On
    /// a plain file this is an error ([`Error::Invalid`]).
    pub fn preallocate(&self, len: u64) -> Result<()> {
        users_code::check_may_block("preallocate")?;
        self.state.file.range_end(len, 0)?;
        self.state.preallocate(len)
    }

    /// Whether the file has no name: it was deleted or replaced, or is a draft. Dropping the last handle of such a file
    /// frees its space and waits for drives. A thread that must not wait hands that handle to another thread.
    pub fn is_nameless(&self) -> bool {
        self.here().is_ok_and(|file| file.state.is_removal())
    }

    /// Makes durable all writes that ended before this call, by any handle, the length, and the bytes that an earlier
    /// writer left unsynced. On an array or a plain file that is open for reading it does nothing.
    ///
    /// An error means that some writes may not be durable, or that a write-back has failed since this handle's last
    /// sync. Each handle that was open reports a failed write-back once, even if a later try succeeded. Pages that
    /// could not be written stay in the cache, and the next sync tries again. After a failed fdatasync the contents of
    /// the drives are unknown, so the file takes no more writes until it is opened again.
    pub fn sync(&self) -> Result<()> {
        users_code::check_may_block("sync")?;
        let file = self.here()?;
        sync_traced(&file.state, &file.reported)
    }

    /// Syncs and closes this handle. Returns the errors of [`File::sync`]. After the last handle is closed, the space
    /// of a nameless file is free, and the file system of a plain file can be unmounted.
    pub fn close(self) -> Result<()> {
        users_code::check_may_block("close")?;
        let synced = self.sync();
        let File { state, handle, .. } = self;
        drop(handle);
        state.let_go_and_wait();
        synced
    }

    /// [`File::set_len`] as a future.
    pub fn set_len_async(&self, len: u64) -> Answer<()> {
        let state = match self.here() {
            Ok(file) => file.state.clone(),
            Err(forked) => return Answer::now(Err(forked)),
        };
        Self::answer_later(state, move |state| {
            state.exec().check_open()?;
            state.set_len(len)
        })
    }

    /// [`File::close`] as a future.
    pub fn close_async(self) -> Answer<()> {
        // Moves the handle into the job. A clone left here could be the last handle, and closing the file waits.
        let here = if self.state.exec().home.is_here() { Ok(self) } else { self.here().cloned() };
        let File { state, reported, handle, .. } = match here {
            Ok(file) => file,
            Err(forked) => return Answer::now(Err(forked)),
        };
        let (waits, queued) = (Arc::clone(&state.exec().waits), state.exec().queue_call());
        answer_later(&waits, move |promise| {
            let synced = sync_traced(&state, &reported);
            drop(queued);
            drop(handle);
            if state.exec().has_threads() {
                state.let_go_and_wait();
                promise.keep(synced);
            } else {
                state.let_go(move || promise.keep(synced));
            }
        })
    }

    /// Runs a call on a thread that may wait. Releases the file before the future resolves.
    pub(super) fn answer_later(
        state: OpenRef,
        call: impl FnOnce(&OpenRef) -> Result<()> + Send + 'static,
    ) -> Answer<()> {
        let (waits, queued) = (Arc::clone(&state.exec().waits), state.exec().queue_call());
        answer_later(&waits, move |promise| {
            let result = call(&state);
            drop(queued);
            state.let_go(move || promise.keep(result));
        })
    }

    /// Closes this handle without a sync, for a file that is deleted next: its bytes need no write. If the handle is
    /// the last one, bytes that are only in memory are lost. The file is then as after a crash: writes of any handle
    /// since the last sync may be missing. If several handles are discarded at the same moment, perhaps none is found
    /// to be the last one, and the bytes are written.
    pub fn discard(self) {
        if Arc::strong_count(&self.handle) == 1 {
            self.state.give_up();
        }
    }

    /// Reads through the cache: cached pages without any lock, the others inside the gate.
    fn read_paged(&self, paged: &Arc<Paged>, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.state.exec().check_open()?;
        let io_range = |len: u64, buf: &mut [u8]| {
            let len = len.saturating_sub(offset).min(buf.len() as u64) as usize;
            IoRange { offset, len, buf: buf.as_mut_ptr() }
        };
        let mut missing = Vec::new();
        let all = io_range(self.state.file.len(), buf);
        // SAFETY: `buf` is borrowed for the whole call.
        unsafe { paged.read_rest(all, &mut missing) };
        if missing.is_empty() {
            self.passed(offset, all.len);
            return Ok(all.len);
        }
        let entered = Entered::enter(&self.state.file)?;
        self.missed(paged, offset, all.len);
        let now = io_range(self.state.file.len(), buf);
        if now.len < all.len {
            // The file has shrunk meanwhile: the read starts again with the present length.
            missing.clear();
            // SAFETY: as above.
            unsafe { paged.read(now, &mut missing) };
        }
        // SAFETY: as above.
        unsafe { self.read_missing(&entered, paged, missing) }?;
        Ok(now.len.min(all.len))
    }

    /// Reads the spans that the cache does not have.
    ///
    /// # Safety
    /// The spans' memory is writable, and nothing else uses it until this returns.
    unsafe fn read_missing(&self, _entered: &Entered<'_>, paged: &Paged, missing: Vec<Span>) -> Result<()> {
        let io = self.state.exec().blocking();
        // SAFETY: the caller's promise; `run_to_end` returns only after all I/O has ended.
        Exec::run_to_end(unsafe { self.state.complete(&io, paged, Want::Read, missing, self.class) }).map(drop)
    }

    /// Reads I/O ranges through the cache.
    ///
    /// # Safety
    /// The I/O ranges' memory is writable, and nothing else uses it until this returns.
    unsafe fn gather_inside(
        &self,
        entered: &Entered<'_>,
        paged: &Paged,
        io_ranges: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        let mut missing = Vec::new();
        // SAFETY: the caller's promise, for both.
        unsafe {
            paged.read_many(io_ranges, &mut missing);
            self.read_missing(entered, paged, missing)
        }
    }

    fn gather_ranges(
        &self,
        (call, noun): (&'static str, &'static str),
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        out: &mut [u8],
    ) -> Result<()> {
        self.gather_into(call, || self.state.file.check_within(noun, ranges.clone()), ranges.clone(), out)
    }

    /// Reads ranges, (offset, length) in bytes each, into `out`. The length of `out` is the sum of their lengths.
    /// `check` fails unless the ranges are within the file. It runs again if the file may have shrunk.
    #[inline]
    pub(super) fn gather_into(
        &self,
        call: &'static str,
        check: impl Fn() -> Result<()>,
        ranges: impl Iterator<Item = (u64, usize)>,
        out: &mut [u8],
    ) -> Result<()> {
        users_code::check_may_block(call)?;
        let start = out.as_mut_ptr();
        if let Some(paged) = &self.state.paged {
            self.state.exec().check_open()?;
            check()?;
            let mut io_ranges = io_ranges(ranges, start);
            if io_ranges.size_hint().1.is_none_or(|most| most > LIST_SPANS) {
                // SAFETY: `out` is borrowed for the whole call, and as long as the ranges together.
                return unsafe { self.state.read_long(paged, &mut io_ranges, self.class, &check) };
            }
            let mut missing = Vec::new();
            // SAFETY: as above.
            unsafe { paged.read_many(io_ranges, &mut missing) };
            if missing.is_empty() {
                return Ok(());
            }
            let entered = Entered::enter(&self.state.file)?;
            // The file may have shrunk before this call was inside.
            check()?;
            // SAFETY: as above.
            return unsafe { self.read_missing(&entered, paged, missing) };
        }
        let entered = Entered::enter(&self.state.file)?;
        check()?;
        let within = Within::new(out.as_ptr(), out.len());
        let io_ranges = io_ranges(ranges, start);
        // SAFETY: `out` is borrowed for the whole call, and as long as the ranges together. `fetch` returns only after
        // all I/O on it has ended.
        unsafe { self.fetch(&entered, within, io_ranges) }
    }

    fn scatter(
        &self,
        call: &'static str,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        bytes: &[u8],
    ) -> Result<()> {
        users_code::check_may_block(call)?;
        let written = ranges.clone().filter(|&(_, len)| len > 0);
        let mut end = 0;
        for (offset, len) in written.clone() {
            end = end.max(self.state.file.range_end(offset, len as u64)?);
        }
        if self.state.paged.is_none() && self.is_empty() && written.clone().eq([(0, bytes.len())]) {
            let _entered = Entered::enter(&self.state.file)?;
            if self.state.file.write_first(bytes, self.class)? {
                return Ok(());
            }
        }
        let ranges_written = written.map(|(offset, len)| offset..offset + len as u64);
        let entered = self.state.enter_to_write(end, ranges_written)?;
        let within = Within::new(bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` is borrowed for the whole call, and as long as the ranges together. Writes only read it.
        unsafe { self.store(&entered, end, within, io_ranges(ranges, bytes.as_ptr().cast_mut())) }
    }

    /// Reads I/O ranges past the cache.
    ///
    /// # Safety
    /// The I/O ranges' memory is valid until this returns, and nothing else touches it.
    pub(super) unsafe fn fetch(
        &self,
        _entered: &Entered<'_>,
        within: Within,
        io_ranges: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        let (file, io) = (&self.state.file, self.state.exec().blocking());
        // SAFETY: the caller's promise; `run_to_end` returns only after all I/O has ended.
        Exec::run_to_end(unsafe { file.transfer(&io, self.class, within, io_ranges, std::iter::empty()) })
    }

    /// Writes I/O ranges, through the cache if there is one. The last one ends at `end`, which is 0 if they are empty.
    ///
    /// # Safety
    /// The I/O ranges' memory is readable until this returns.
    unsafe fn store(
        &self,
        _entered: &Entered<'_>,
        end: u64,
        within: Within,
        io_ranges: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        let (file, io) = (&self.state.file, self.state.exec().blocking());
        let turn = WriteTurn::begin(file, end, self.state.paged.is_none());
        match &self.state.paged {
            Some(paged) => {
                let mut spans = io_ranges.flat_map(crate::pager::spans);
                // SAFETY: the caller's promise, as for `fetch`.
                unsafe { self.state.write_lists(&io, paged, &mut spans, self.class)? };
            }
            None => {
                // SAFETY: as above.
                Exec::run_to_end(unsafe { file.transfer(&io, self.class, within, std::iter::empty(), io_ranges) })?;
            }
        }
        turn.finish();
        Ok(())
    }
}

/// A sync in a span.
pub(super) fn sync_traced(state: &OpenRef, reported: &Reported) -> Result<()> {
    events::sync(state.file.name()).run(|| state.sync_and_report(reported))
}

pub(super) fn sum_of_lengths(ranges: &[(u64, usize)]) -> Option<usize> {
    ranges.iter().try_fold(0usize, |sum, &(_, len)| sum.checked_add(len))
}

pub(super) fn check_sizes(needed: Option<usize>, given: usize, name: &str) -> Result<()> {
    match needed {
        Some(needed) if needed == given => Ok(()),
        Some(needed) => {
            Err(Error::invalid(format!("`{name}` of {given} bytes"), format!("the rows or ranges take {needed} bytes")))
        }
        None => Err(Error::invalid("the total length of the rows or ranges", "more than the address space")),
    }
}
