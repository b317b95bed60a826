//! Handles of virtual files: the calls that block.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use super::array::ArrayInner;
use super::cached::{Ahead, CHUNK_PAGES, Paged, Seat, Want};
use super::callbacks;
use super::hold::Hold;
pub(crate) use super::hold::Inside;
use super::joined::Joined;
use super::late::Told;
use super::operation::Operation;
use super::split::{Extent, Splitter};
use super::state::FileState;
use crate::drive::{Class, PAGE_BYTES, Piece};
use crate::engine::Op;
use crate::error::{Error, Result};

/// Pieces that one message to the drive threads carries at most; longer calls go in several.
const WAVE_PIECES: usize = 8192;

/// A hit that comes to the end of so many bytes looks whether read-ahead is to go on: all that it costs the others.
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE_BYTES as u64;

/// An open virtual file. Clones are handles of the same file; all calls may be mixed from any number of threads.
///
/// Reads past the end are short, writes past the end extend the file, holes read as zero. Any offset, length and memory works; whole
/// 4,096-byte pages at page offsets are fastest. When calls that overlap run at the same time, which of them a page shows is not
/// defined. With a page cache it shows one of them as a whole; without one, and with the engine `mmap`, a read may see some of both.
///
/// A write that has ended is seen by later reads of this process, and is durable after the next [`File::sync`].
/// `docs/durability.md` has what each call promises, also over a crash.
///
/// A write past the end takes space for what it skips, up to 256 MiB on each drive. Where it skips more it leaves a hole that takes none, as
/// [`File::set_len`] does.
///
/// Dropping the last handle makes durable what was written since the file was opened, but cannot report errors; [`File::close`] does.
#[derive(Clone, Debug)]
pub struct File {
    pub(crate) state: Hold,
    pub(crate) class: Class,
    /// Which failures of write-back this handle was told of.
    pub(super) told: Told,
    handle: Arc<Handle>,
}

/// What clones of a handle share.
#[derive(Debug)]
struct Handle {
    ahead: Ahead,
    /// Counted by `FileState::is_held`.
    _held: Arc<()>,
}

impl File {
    pub(crate) fn new(state: Arc<FileState>) -> File {
        let ahead = Ahead::new(state.array().options.read_ahead_bytes);
        let handle = Arc::new(Handle { ahead, _held: state.handle() });
        let told = state.late.begin();
        File { state: Hold::new(state), class: Class::Foreground, told, handle }
    }

    /// What is known of how the handle is read.
    pub(super) fn ahead(&self) -> &Ahead {
        &self.handle.ahead
    }

    /// A handle whose I/O gives way to that of other handles in the queues of the drive threads: futures, callbacks, and with
    /// [`Mode::DriveThreads`](super::Mode) all calls. Inline calls have a queue of their own, where nobody else waits.
    pub fn background(&self) -> File {
        File { class: Class::Background, ..self.clone() }
    }

    /// The file's name when it was opened.
    pub fn name(&self) -> &str {
        &self.state.record.name
    }

    /// Length in bytes, that of completed writes included.
    pub fn len(&self) -> u64 {
        self.state.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at an offset in bytes; how many bytes were read: fewer than asked for only at the end of the file.
    #[inline(always)]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = match &self.state.paged {
            Some(paged) => match paged.cached.last_seat_as::<true>() {
                Some(seat) => self.read_page::<true>(paged, seat, buf, offset),
                None => self.read_page_in_any_shape(paged, buf, offset),
            },
            None => false,
        };
        if !read {
            return self.read_any(buf, offset);
        }
        // Within a page no read goes beyond the end of a chunk.
        let end = offset + buf.len() as u64;
        if end.is_multiple_of(CHUNK_BYTES) {
            self.passed_chunk(end);
        }
        Ok(buf.len())
    }

    /// Takes note of a read that has found all in the cache.
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

    /// Takes note of a read of which it is not known whether all is in the cache: its first page tells.
    pub(super) fn look_ahead(&self, offset: u64, len: usize) {
        match &self.state.paged {
            Some(paged) if len > 0 && !paged.is_there(offset / PAGE_BYTES as u64) => self.missed(paged, offset, len),
            Some(_) if len > 0 => self.passed(offset, len),
            _ => {}
        }
    }

    /// Takes note of a read that has not found all in the cache.
    pub(super) fn missed(&self, paged: &Arc<Paged>, offset: u64, len: usize) {
        let page = PAGE_BYTES as u64;
        self.handle.ahead.missed(&self.state, paged, offset / page..(offset + len as u64).div_ceil(page));
    }

    /// Reads within one page of the file, if the cache has it. Part of every loop that reads, so that nothing is saved and
    /// restored for each call.
    #[inline(always)]
    fn read_page<const DEFAULT: bool>(&self, paged: &Paged, seat: &Seat, buf: &mut [u8], offset: u64) -> bool {
        let within = offset as usize % PAGE_BYTES;
        // Negative beyond the end: no file is longer than `MAX_FILE_BYTES`, and of offsets so high that this is no more true no page
        // has a key.
        let room = self.state.len().wrapping_sub(offset) as i64;
        if buf.len() > PAGE_BYTES - within || buf.len() as i64 > room {
            return false;
        }
        // SAFETY: `buf` is ours for the whole call, and the range is within a page.
        unsafe { paged.read_page::<DEFAULT>(seat, offset / PAGE_BYTES as u64, within, buf.as_mut_ptr(), buf.len()) }
    }

    #[inline(never)]
    fn read_page_in_any_shape(&self, paged: &Paged, buf: &mut [u8], offset: u64) -> bool {
        // A thread's first read takes the longer way.
        paged.cached.last_seat().is_some_and(|seat| self.read_page::<false>(paged, seat, buf, offset))
    }

    /// `read_at` for what is not one page in the cache.
    #[inline(never)]
    fn read_any(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        callbacks::check_may_block("read_at")?;
        self.state.range_end(offset, buf.len() as u64)?;
        if let Some(paged) = &self.state.paged {
            return self.read_paged(paged, buf, offset);
        }
        let inside = Inside::enter(&self.state)?;
        let len = self.state.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        let span = (buf.as_ptr(), buf.len());
        let extent = Extent { offset, len, buf: buf.as_mut_ptr() };
        // SAFETY: `buf` is ours for the whole call, and `run` returns only after all I/O on it has ended.
        unsafe { self.run(&inside, Op::Read, span, std::iter::once(extent)) }?;
        Ok(len)
    }

    /// Writes all bytes at an offset in bytes, extending the file where they go past its end. They are durable after the next
    /// [`File::sync`]. After an error each byte of the range is the old or the new one.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_ranges(&[(offset, bytes.len())], bytes)
    }

    /// Reads into several buffers, one after the other, from one offset on; how many bytes were read. A page that buffers
    /// share is read once for each of them.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        callbacks::check_may_block("read_vectored_at")?;
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.state.range_end(offset, total)?;
        let inside = Inside::enter(&self.state)?;
        let all = self.state.len().saturating_sub(offset).min(total);
        let mut done = 0;
        let extents = bufs.iter_mut().map(|buf| {
            let len = (all - done).min(buf.len() as u64);
            let extent = Extent { offset: offset + done, len: len as usize, buf: buf.as_mut_ptr() };
            done += len;
            extent
        });
        if let Some(paged) = &self.state.paged {
            let extents: Vec<Extent> = extents.collect();
            self.look_ahead(offset, all as usize);
            // SAFETY: the buffers are ours for the whole call.
            unsafe { self.gather_inside(paged, extents.into_iter()) }?;
            return Ok(all as usize);
        }
        // SAFETY: the buffers are ours for the whole call, and `run` returns only after all I/O on them has ended.
        unsafe { self.run(&inside, Op::Read, (std::ptr::null(), 0), extents) }?;
        Ok(all as usize)
    }

    /// Writes several buffers, one after the other, from one offset on.
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        callbacks::check_may_block("write_vectored_at")?;
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.state.range_end(offset, total)?;
        // Nothing written is no reason to grow.
        let end = if total > 0 { end } else { 0 };
        let inside = self.begin_write(end, std::iter::once(offset..end))?;
        let joined = Joined::new(bufs, offset);
        if let Some(paged) = &self.state.paged {
            // SAFETY: the buffers are borrowed and `joined` lives for the whole call, and writes only read them.
            let result = unsafe { self.state.write_paged(paged, joined.extents.iter().copied(), self.class) };
            return self.end_paged_write(end, result);
        }
        // SAFETY: the buffers are borrowed and `joined` lives for the whole call, and writes only read them.
        let result = unsafe { self.run(&inside, Op::Write, (std::ptr::null(), 0), joined.extents.iter().copied()) };
        self.end_write(end, result)
    }

    /// Gathers records of one length: the record at `offsets[i]` goes to `out[i * record_len..][..record_len]`. One call
    /// keeps all drives busy. A record past the end of the file is an error.
    pub fn read_many(&self, offsets: &[u64], record_len: usize, out: &mut [u8]) -> Result<()> {
        check_sizes(offsets.len().checked_mul(record_len), out.len(), "out")?;
        self.gather("read_many", offsets.iter().map(|&offset| (offset, record_len)), out)
    }

    /// Gathers ranges, (offset, length) in bytes each, one after the other into `out`, whose length is their sum.
    pub fn read_ranges(&self, ranges: &[(u64, usize)], out: &mut [u8]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), out.len(), "out")?;
        self.gather("read_ranges", ranges.iter().copied(), out)
    }

    /// Scatters records of one length: `bytes[i * record_len..][..record_len]` goes to `offsets[i]`. Where records
    /// overlap, which one a page ends up with is not defined.
    pub fn write_many(&self, offsets: &[u64], record_len: usize, bytes: &[u8]) -> Result<()> {
        check_sizes(offsets.len().checked_mul(record_len), bytes.len(), "bytes")?;
        self.scatter("write_many", offsets.iter().map(|&offset| (offset, record_len)), bytes)
    }

    /// Scatters `bytes`, cut one after the other, to ranges: (offset, length) in bytes each.
    pub fn write_ranges(&self, ranges: &[(u64, usize)], bytes: &[u8]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), bytes.len(), "bytes")?;
        self.scatter("write_at", ranges.iter().copied(), bytes)
    }

    /// Sets the length in bytes, durably. What is cut off is gone; what is added reads as zero.
    pub fn set_len(&self, len: u64) -> Result<()> {
        callbacks::check_may_block("set_len")?;
        self.state.array().check_open()?;
        self.state.set_len(len)
    }

    /// Gives the file room for `len` bytes without changing its length, so that writing them cannot fail for want of
    /// space, and costs the file system less. The room goes when the file is closed or cut, and when a write past the end fails.
    pub fn preallocate(&self, len: u64) -> Result<()> {
        callbacks::check_may_block("preallocate")?;
        self.state.range_end(len, 0)?;
        let _inside = Inside::enter(&self.state)?;
        self.state.check_writable()?;
        self.state.preallocate(len)
    }

    /// Makes all writes that ended before this call durable, by whatever handle, and the length, and what an earlier writer left unsynced. On
    /// an array that is open for reading it does nothing.
    ///
    /// An error means that not all may be durable, or that a page could not be written back since this handle's last sync; of that
    /// every handle that was open is told once, also where a later try went well. Pages that could not be written are kept, and the next
    /// sync tries again. After a failed fdatasync the file takes no more writes until it is opened again, because what the drives hold is
    /// not known any more.
    pub fn sync(&self) -> Result<()> {
        callbacks::check_may_block("sync")?;
        let _inside = Inside::enter(&self.state)?;
        self.state.sync_and_tell(&self.told)
    }

    /// Syncs and closes this handle. What [`File::sync`] would report is reported here.
    pub fn close(self) -> Result<()> {
        callbacks::check_may_block("close")?;
        self.sync()
    }

    /// Closes this handle without syncing. If it is the file's last one, what is only in memory is given up, and the file is left as by a
    /// crash, without what any handle, also one that is gone, has written since the last sync: for a file that is deleted next, so that
    /// nothing is written that goes at once. Of handles that are discarded at the same moment none may be the last; then all is written.
    pub fn discard(self) {
        if Arc::strong_count(&self.handle) == 1 {
            self.state.give_up();
        }
    }

    /// Enters for writes of `ranges`, in bytes, of which the last ends at `end`, with room made for them.
    pub(crate) fn begin_write(&self, end: u64, ranges: impl Iterator<Item = Range<u64>>) -> Result<Inside<'_>> {
        let mut inside = Inside::enter(&self.state)?;
        while self.state.is_littered(end) {
            drop(inside);
            self.state.sweep()?;
            inside = Inside::enter(&self.state)?;
        }
        self.make_room(&inside, end, ranges)?;
        Ok(inside)
    }

    /// Makes room for writes of `ranges`, of which the last ends at `end`.
    pub(super) fn make_room(
        &self,
        _inside: &Inside<'_>,
        end: u64,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Result<()> {
        self.state.check_writable()?;
        self.state.reserve(end, ranges)
    }

    /// Reads through the cache: what it holds without any lock, the rest inside the gate.
    fn read_paged(&self, paged: &Arc<Paged>, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.state.array().check_open()?;
        let extent = |len: u64, buf: &mut [u8]| {
            let len = len.saturating_sub(offset).min(buf.len() as u64) as usize;
            Extent { offset, len, buf: buf.as_mut_ptr() }
        };
        let mut missing = Vec::new();
        let all = extent(self.state.len(), buf);
        // SAFETY: `buf` is ours for the whole call.
        unsafe { paged.read_rest(all, &mut missing) };
        if missing.is_empty() {
            self.passed(offset, all.len);
            return Ok(all.len);
        }
        let _inside = Inside::enter(&self.state)?;
        self.missed(paged, offset, all.len);
        let now = extent(self.state.len(), buf);
        if now.len < all.len {
            // It has shrunk meanwhile: all is looked at again, as it is now.
            missing.clear();
            // SAFETY: as above.
            unsafe { paged.read(now, &mut missing) };
        }
        // SAFETY: as above; `complete` returns only after all I/O has ended.
        unsafe { self.state.complete(paged, Want::Read, missing, self.class) }?;
        Ok(now.len.min(all.len))
    }

    /// Reads extents through the cache, inside the gate.
    ///
    /// # Safety
    /// The extents' memory is writable, and nobody else's until this returns.
    pub(super) unsafe fn gather_inside(&self, paged: &Paged, extents: impl Iterator<Item = Extent>) -> Result<()> {
        let mut missing = Vec::new();
        // SAFETY: the caller's promise, for both.
        unsafe {
            paged.read_many(extents, &mut missing);
            self.state.complete(paged, Want::Read, missing, self.class)
        }
        .map(drop)
    }

    fn gather(
        &self,
        call: &'static str,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        out: &mut [u8],
    ) -> Result<()> {
        callbacks::check_may_block(call)?;
        let start = out.as_mut_ptr();
        if let Some(paged) = &self.state.paged {
            self.state.array().check_open()?;
            self.check_within(ranges.clone())?;
            let mut missing = Vec::new();
            // SAFETY: `out` is ours for the whole call, as long as the ranges' sum.
            unsafe { paged.read_many(extents(ranges.clone(), start), &mut missing) };
            if missing.is_empty() {
                return Ok(());
            }
            let _inside = Inside::enter(&self.state)?;
            // It may have shrunk before we were inside.
            self.check_within(ranges)?;
            // SAFETY: as above; `complete` returns only after all I/O has ended.
            return unsafe { self.state.complete(paged, Want::Read, missing, self.class) }.map(drop);
        }
        let inside = Inside::enter(&self.state)?;
        self.check_within(ranges.clone())?;
        let span = (out.as_ptr(), out.len());
        let extents = extents(ranges, start);
        // SAFETY: `out` is ours for the whole call, as long as the ranges' sum, and `run` returns only after all I/O on
        // it has ended.
        unsafe { self.run(&inside, Op::Read, span, extents) }
    }

    fn scatter(
        &self,
        call: &'static str,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        bytes: &[u8],
    ) -> Result<()> {
        callbacks::check_may_block(call)?;
        let written = ranges.clone().filter(|&(_, len)| len > 0);
        let mut end = 0;
        for (offset, len) in written.clone() {
            end = end.max(self.state.range_end(offset, len as u64)?);
        }
        let inside = self.begin_write(end, written.map(|(offset, len)| offset..offset + len as u64))?;
        let span = (bytes.as_ptr(), bytes.len());
        let extents = extents(ranges, bytes.as_ptr().cast_mut());
        let result = match &self.state.paged {
            // SAFETY: `bytes` is borrowed for the whole call, as long as the ranges' sum, and writes only read it.
            Some(paged) => unsafe { self.state.write_paged(paged, extents, self.class) },
            // SAFETY: as above.
            None => unsafe { self.run(&inside, Op::Write, span, extents) },
        };
        if self.state.paged.is_some() {
            return self.end_paged_write(end, result);
        }
        self.end_write(end, result)
    }

    /// Takes note of a write through the cache up to `end`, 0 if it was empty. Parts are marked when they are flushed.
    fn end_paged_write(&self, end: u64, result: Result<()>) -> Result<()> {
        match &result {
            _ if end == 0 => {}
            Ok(()) => self.state.wrote(end, |_| false),
            Err(_) => self.state.wrote_in_part(end, |_| true),
        }
        result
    }

    /// Takes note of a write up to `end`, 0 if it was empty.
    fn end_write(&self, end: u64, result: Result<()>) -> Result<()> {
        match &result {
            _ if end == 0 => {}
            Ok(()) => self.state.wrote(end, |_| true),
            Err(_) => self.state.wrote_in_part(end, |_| true),
        }
        result
    }

    /// Every range of a gather lies within the file.
    pub(crate) fn check_within(&self, ranges: impl Iterator<Item = (u64, usize)>) -> Result<()> {
        let len = self.state.len();
        for (index, (offset, range_len)) in ranges.enumerate() {
            if offset.checked_add(range_len as u64).is_none_or(|end| end > len) {
                let what = format!("record {index} at offset {offset} of {range_len} bytes");
                return Err(Error::invalid(what, format!("file {:?} ends at {len}", self.name())));
            }
        }
        Ok(())
    }

    /// Runs extents to their ends.
    ///
    /// # Safety
    /// The extents' memory is valid until this returns; memory that is read into is touched by nobody else.
    unsafe fn run(
        &self,
        _inside: &Inside<'_>,
        op: Op,
        span: (*const u8, usize),
        extents: impl Iterator<Item = Extent>,
    ) -> Result<()> {
        let bytes = std::cell::Cell::new(0);
        let extents = extents.inspect(|extent| bytes.set(bytes.get() + extent.len as u64));
        let pieces = Splitter::new(&self.state, op, self.class, extents);
        let result = if self.state.array().blocks_on_threads() {
            // SAFETY: the caller's promise; `run_on_threads` returns only after the operations have ended.
            unsafe { self.run_on_threads(span, pieces) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.state.array().run_blocking(&self.state, span, pieces) }
        };
        self.state.array().count_bytes(op, bytes.get());
        result
    }

    /// # Safety
    /// As for `run`.
    unsafe fn run_on_threads(
        &self,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
    ) -> Result<()> {
        // Why there are no drive threads is said here; later it is only known that there are none.
        self.state.array().fleet()?;
        let array = self.state.array();
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() {
            self.state.gate.enter_again();
            let operation = Operation::new(Arc::clone(&self.state), Vec::new(), None, None);
            let ends = WaitForEnd { operation: &operation, array };
            // SAFETY: the memory is the caller's, who is held here until the operation has ended, also by a panic.
            unsafe { operation.start(array, pieces.by_ref().take(WAVE_PIECES), span, true) };
            drop(ends);
            operation.take()?;
        }
        Ok(())
    }
}

/// Waits for an operation's end when it is dropped, by a panic too: the operation's memory is the caller's.
struct WaitForEnd<'a> {
    operation: &'a Operation,
    array: &'a ArrayInner,
}

impl Drop for WaitForEnd<'_> {
    fn drop(&mut self) {
        self.operation.wait(self.array);
    }
}

/// Ranges with the memory that follows one after the other from `start`.
fn extents(ranges: impl Iterator<Item = (u64, usize)>, start: *mut u8) -> impl Iterator<Item = Extent> {
    let mut at = 0;
    ranges.map(move |(offset, len)| {
        let buf = start.wrapping_add(at);
        at += len;
        Extent { offset, len, buf }
    })
}

fn sum_of_lengths(ranges: &[(u64, usize)]) -> Option<usize> {
    ranges.iter().try_fold(0usize, |sum, &(_, len)| sum.checked_add(len))
}

fn check_sizes(needed: Option<usize>, given: usize, name: &str) -> Result<()> {
    match needed {
        Some(needed) if needed == given => Ok(()),
        Some(needed) => {
            Err(Error::invalid(format!("`{name}` of {given} bytes"), format!("the records take {needed} bytes")))
        }
        None => Err(Error::invalid("the records' total length", "more than the address space")),
    }
}
