//! Handles of virtual files: the calls that block.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::drive::{Class, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::exec::{Exec, Within, pools};
use crate::file::split::Extent;
use crate::file::transfer::WriteTurn;
use crate::file::vectored::VectoredWrite;
use crate::file::{Entered, Reported};
use crate::pager::ahead::{CHUNK_PAGES, ReadAhead};
use crate::pager::local::Local;
use crate::pager::{OpenRef, Paged, Span, Want};

/// Pages of one read that room is made for before it is known how many are missing.
const MISSING_PAGES: usize = 256;

/// A hit that comes to the end of so many bytes looks whether read-ahead is to go on: all that it costs the others.
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE_BYTES as u64;

/// An open virtual file. Clones are handles of the same file; all calls may be mixed from any number of threads.
///
/// Arguments have one order in all calls, as in [`std::os::unix::fs::FileExt`]: memory, then offsets, then lengths, then what is called.
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
    pub(super) state: OpenRef,
    pub(super) class: Class,
    /// Which failures of write-back this handle was told of.
    pub(super) reported: Reported,
    handle: Arc<Handle>,
}

/// What clones of a handle share.
#[derive(Debug)]
struct Handle {
    ahead: ReadAhead,
    /// Counted by `OpenFile::is_held`.
    _held: Arc<()>,
}

impl File {
    pub(super) fn new(state: OpenRef, read_ahead_bytes: u64) -> File {
        let handle = Arc::new(Handle { ahead: ReadAhead::new(read_ahead_bytes), _held: state.handle() });
        let reported = state.file.errors.begin();
        File { state, class: Class::Foreground, reported, handle }
    }

    /// What is known of how the handle is read.
    pub(super) fn ahead(&self) -> &ReadAhead {
        &self.handle.ahead
    }

    /// A handle whose I/O gives way to that of other handles in the queues of the drive threads: futures, callbacks, and with
    /// [`Mode::DriveThreads`](super::Mode) all calls. Inline calls have a queue of their own, where nobody else waits.
    pub fn background(&self) -> File {
        File { class: Class::Background, ..self.clone() }
    }

    /// The file's name when it was opened.
    pub fn name(&self) -> &str {
        self.state.file.name()
    }

    /// Length in bytes, that of completed writes included.
    pub fn len(&self) -> u64 {
        self.state.file.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads at an offset in bytes; how many bytes were read: fewer than asked for only at the end of the file.
    #[inline(always)]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = match &self.state.paged {
            Some(paged) => match paged.pager.last_local_as::<true>() {
                Some(local) => self.read_page::<true>(paged, local, buf, offset),
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
    fn read_page<const DEFAULT: bool>(&self, paged: &Paged, local: &Local, buf: &mut [u8], offset: u64) -> bool {
        let within = offset as usize % PAGE_BYTES;
        // Negative beyond the end: no file is longer than `MAX_FILE_BYTES`, and of offsets so high that this is no more true no page
        // has a key.
        let room = self.state.file.len().wrapping_sub(offset) as i64;
        if buf.len() > PAGE_BYTES - within || buf.len() as i64 > room {
            return false;
        }
        // SAFETY: `buf` is ours for the whole call, and the range is within a page.
        unsafe { paged.read_page::<DEFAULT>(local, offset / PAGE_BYTES as u64, within, buf.as_mut_ptr(), buf.len()) }
    }

    #[inline(never)]
    fn read_page_in_any_shape(&self, paged: &Paged, buf: &mut [u8], offset: u64) -> bool {
        // A thread's first read takes the longer way.
        paged.pager.last_local().is_some_and(|local| self.read_page::<false>(paged, local, buf, offset))
    }

    /// `read_at` for what is not one page in the cache.
    #[inline(never)]
    fn read_any(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        pools::check_may_block("read_at")?;
        self.state.file.range_end(offset, buf.len() as u64)?;
        if let Some(paged) = &self.state.paged {
            return self.read_paged(paged, buf, offset);
        }
        let entered = Entered::enter(&self.state.file)?;
        let len = self.state.file.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        let within = Within::new(buf.as_ptr(), buf.len());
        let extent = Extent { offset, len, buf: buf.as_mut_ptr() };
        // SAFETY: `buf` is ours for the whole call, and `fetch` returns only after all I/O on it has ended.
        unsafe { self.fetch(&entered, within, std::iter::once(extent)) }?;
        Ok(len)
    }

    /// Writes all bytes at an offset in bytes, extending the file where they go past its end. They are durable after the next
    /// [`File::sync`]. After an error each byte of the range is the old or the new one.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_ranges(bytes, &[(offset, bytes.len())])
    }

    /// Reads into several buffers, one after the other, from one offset on; how many bytes were read. A page that buffers
    /// share is read once for each of them.
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        pools::check_may_block("read_vectored_at")?;
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.state.file.range_end(offset, total)?;
        let entered = Entered::enter(&self.state.file)?;
        let all = self.state.file.len().saturating_sub(offset).min(total);
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
            unsafe { self.gather_inside(&entered, paged, extents.into_iter()) }?;
            return Ok(all as usize);
        }
        // SAFETY: the buffers are ours for the whole call, and `fetch` returns only after all I/O on them has ended.
        unsafe { self.fetch(&entered, Within::SLABS, extents) }?;
        Ok(all as usize)
    }

    /// Writes several buffers, one after the other, from one offset on.
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        pools::check_may_block("write_vectored_at")?;
        let total = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.state.file.range_end(offset, total)?;
        // Nothing written is no reason to grow.
        let end = if total > 0 { end } else { 0 };
        let entered = self.begin_write(end, std::iter::once(offset..end))?;
        let write = VectoredWrite::new(bufs, offset);
        // SAFETY: the buffers are borrowed and `write` lives for the whole call, and writes only read them.
        unsafe { self.store(&entered, end, Within::SLABS, write.extents.iter().copied()) }
    }

    /// Gathers records of one length: the record at `offsets[i]` goes to `out[i * record_len..][..record_len]`. One call
    /// keeps all drives busy. A record past the end of the file is an error.
    pub fn read_many(&self, out: &mut [u8], offsets: &[u64], record_len: usize) -> Result<()> {
        check_sizes(offsets.len().checked_mul(record_len), out.len(), "out")?;
        self.gather("read_many", offsets.iter().map(|&offset| (offset, record_len)), out)
    }

    /// Gathers ranges, (offset, length) in bytes each, one after the other into `out`, whose length is their sum.
    pub fn read_ranges(&self, out: &mut [u8], ranges: &[(u64, usize)]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), out.len(), "out")?;
        self.gather("read_ranges", ranges.iter().copied(), out)
    }

    /// Scatters records of one length: `bytes[i * record_len..][..record_len]` goes to `offsets[i]`. Where records
    /// overlap, which one a page ends up with is not defined.
    pub fn write_many(&self, bytes: &[u8], offsets: &[u64], record_len: usize) -> Result<()> {
        check_sizes(offsets.len().checked_mul(record_len), bytes.len(), "bytes")?;
        self.scatter("write_many", offsets.iter().map(|&offset| (offset, record_len)), bytes)
    }

    /// Scatters `bytes`, cut one after the other, to ranges: (offset, length) in bytes each.
    pub fn write_ranges(&self, bytes: &[u8], ranges: &[(u64, usize)]) -> Result<()> {
        check_sizes(sum_of_lengths(ranges), bytes.len(), "bytes")?;
        self.scatter("write_at", ranges.iter().copied(), bytes)
    }

    /// Sets the length in bytes, durably. What is cut off is gone; what is added reads as zero.
    pub fn set_len(&self, len: u64) -> Result<()> {
        pools::check_may_block("set_len")?;
        self.state.exec().check_open()?;
        self.state.set_len(len)
    }

    /// Gives the file room for `len` bytes without changing its length, so that writing them cannot fail for want of
    /// space, and costs the file system less. The room goes when the file is closed or cut, and when a write past the end fails.
    pub fn preallocate(&self, len: u64) -> Result<()> {
        pools::check_may_block("preallocate")?;
        self.state.file.range_end(len, 0)?;
        let _entered = Entered::enter(&self.state.file)?;
        self.state.file.check_writable()?;
        self.state.file.preallocate(len)
    }

    /// Makes all writes that ended before this call durable, by whatever handle, and the length, and what an earlier writer left unsynced. On
    /// an array that is open for reading it does nothing.
    ///
    /// An error means that not all may be durable, or that a page could not be written back since this handle's last sync; of that
    /// every handle that was open is told once, also where a later try went well. Pages that could not be written are kept, and the next
    /// sync tries again. After a failed fdatasync the file takes no more writes until it is opened again, because what the drives hold is
    /// not known any more.
    pub fn sync(&self) -> Result<()> {
        pools::check_may_block("sync")?;
        let _entered = Entered::enter(&self.state.file)?;
        self.state.sync_and_report(&self.reported)
    }

    /// Syncs and closes this handle. What [`File::sync`] would report is reported here.
    pub fn close(self) -> Result<()> {
        pools::check_may_block("close")?;
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
    fn begin_write(&self, end: u64, ranges: impl Iterator<Item = Range<u64>>) -> Result<Entered<'_>> {
        let entered = self.state.enter_to_write(end)?;
        self.state.file.check_writable()?;
        self.state.file.reserve(end, ranges)?;
        Ok(entered)
    }

    /// Reads through the cache: what it holds without any lock, the rest inside the gate.
    fn read_paged(&self, paged: &Arc<Paged>, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.state.exec().check_open()?;
        let extent = |len: u64, buf: &mut [u8]| {
            let len = len.saturating_sub(offset).min(buf.len() as u64) as usize;
            Extent { offset, len, buf: buf.as_mut_ptr() }
        };
        // As a rule its first page, at least, is not there.
        let mut missing = Vec::with_capacity(buf.len().div_ceil(PAGE_BYTES).min(MISSING_PAGES));
        let all = extent(self.state.file.len(), buf);
        // SAFETY: `buf` is ours for the whole call.
        unsafe { paged.read_rest(all, &mut missing) };
        if missing.is_empty() {
            self.passed(offset, all.len);
            return Ok(all.len);
        }
        let entered = Entered::enter(&self.state.file)?;
        self.missed(paged, offset, all.len);
        let now = extent(self.state.file.len(), buf);
        if now.len < all.len {
            // It has shrunk meanwhile: all is looked at again, as it is now.
            missing.clear();
            // SAFETY: as above.
            unsafe { paged.read(now, &mut missing) };
        }
        // SAFETY: as above.
        unsafe { self.read_missing(&entered, paged, missing) }?;
        Ok(now.len.min(all.len))
    }

    /// Reads what the cache has not.
    ///
    /// # Safety
    /// The spans' memory is writable, and nothing else's until this returns.
    unsafe fn read_missing(&self, _entered: &Entered<'_>, paged: &Paged, missing: Vec<Span>) -> Result<()> {
        let io = self.state.exec().blocking();
        // SAFETY: the caller's promise; `run_to_end` returns only after all I/O has ended.
        Exec::run_to_end(unsafe { self.state.complete(&io, paged, Want::Read, missing, self.class) }).map(drop)
    }

    /// Reads extents through the cache.
    ///
    /// # Safety
    /// The extents' memory is writable, and nothing else's until this returns.
    unsafe fn gather_inside(
        &self,
        entered: &Entered<'_>,
        paged: &Paged,
        extents: impl Iterator<Item = Extent>,
    ) -> Result<()> {
        let mut missing = Vec::new();
        // SAFETY: the caller's promise, for both.
        unsafe {
            paged.read_many(extents, &mut missing);
            self.read_missing(entered, paged, missing)
        }
    }

    fn gather(
        &self,
        call: &'static str,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        out: &mut [u8],
    ) -> Result<()> {
        pools::check_may_block(call)?;
        let start = out.as_mut_ptr();
        if let Some(paged) = &self.state.paged {
            self.state.exec().check_open()?;
            self.state.file.check_within(ranges.clone())?;
            let mut missing = Vec::new();
            // SAFETY: `out` is ours for the whole call, as long as the ranges' sum.
            unsafe { paged.read_many(extents(ranges.clone(), start), &mut missing) };
            if missing.is_empty() {
                return Ok(());
            }
            let entered = Entered::enter(&self.state.file)?;
            // It may have shrunk before we were inside.
            self.state.file.check_within(ranges)?;
            // SAFETY: as above.
            return unsafe { self.read_missing(&entered, paged, missing) };
        }
        let entered = Entered::enter(&self.state.file)?;
        self.state.file.check_within(ranges.clone())?;
        let within = Within::new(out.as_ptr(), out.len());
        let extents = extents(ranges, start);
        // SAFETY: `out` is ours for the whole call, as long as the ranges' sum, and `fetch` returns only after all I/O on
        // it has ended.
        unsafe { self.fetch(&entered, within, extents) }
    }

    fn scatter(
        &self,
        call: &'static str,
        ranges: impl Iterator<Item = (u64, usize)> + Clone,
        bytes: &[u8],
    ) -> Result<()> {
        pools::check_may_block(call)?;
        let written = ranges.clone().filter(|&(_, len)| len > 0);
        let mut end = 0;
        for (offset, len) in written.clone() {
            end = end.max(self.state.file.range_end(offset, len as u64)?);
        }
        let entered = self.begin_write(end, written.map(|(offset, len)| offset..offset + len as u64))?;
        let within = Within::new(bytes.as_ptr(), bytes.len());
        // SAFETY: `bytes` is borrowed for the whole call, as long as the ranges' sum, and writes only read it.
        unsafe { self.store(&entered, end, within, extents(ranges, bytes.as_ptr().cast_mut())) }
    }

    /// Reads extents past the cache.
    ///
    /// # Safety
    /// The extents' memory is valid until this returns, and is touched by nothing else.
    unsafe fn fetch(
        &self,
        _entered: &Entered<'_>,
        within: Within,
        extents: impl Iterator<Item = Extent>,
    ) -> Result<()> {
        let (file, io) = (&self.state.file, self.state.exec().blocking());
        // SAFETY: the caller's promise; `run_to_end` returns only after all I/O has ended.
        Exec::run_to_end(unsafe { file.transfer(&io, self.class, within, extents, std::iter::empty()) })
    }

    /// Writes extents, through the cache if there is one, of which the last ends at `end`; 0 if they are empty.
    ///
    /// # Safety
    /// The extents' memory is readable until this returns.
    unsafe fn store(
        &self,
        _entered: &Entered<'_>,
        end: u64,
        within: Within,
        extents: impl Iterator<Item = Extent>,
    ) -> Result<()> {
        let (file, io) = (&self.state.file, self.state.exec().blocking());
        let turn = WriteTurn::begin(file, end, self.state.paged.is_none());
        match &self.state.paged {
            Some(paged) => {
                let spans = extents.flat_map(crate::pager::spans).collect();
                // SAFETY: the caller's promise, as for `fetch`.
                Exec::run_to_end(unsafe { self.state.write_spans(&io, paged, spans, self.class) })?;
            }
            None => {
                // SAFETY: as above.
                Exec::run_to_end(unsafe { file.transfer(&io, self.class, within, std::iter::empty(), extents) })?;
            }
        }
        turn.finish();
        Ok(())
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
