//! Operations of an open file with sums: reads and writes past the cache, flushes, cuts, and syncs. Non-goals: the sums
//! themselves (`sums`), and pages in memory.
//!
//! Past the cache, a partly read or written page is read as a whole, because its sum is that of all its bytes. Memory
//! of this room holds such pages. No unverified byte stays in the caller's memory: a page that fails its check is
//! zeroed there.

use std::ops::Range;
use std::sync::Arc;

use super::FileState;
use super::split::{IoRange, Splitter};
use super::sums::{Doubt, Holding, NONE, Settling, Sums, UNKNOWN, Writing};
use crate::drive::{Class, Failure, Fault, NoSum, PAGE_BYTES, PIECE_BYTES};
use crate::engine::Op;
use crate::error::{Error, Result};
use crate::exec::{FirstFailure, Io, Within};
use crate::sys::copy::copy_bytes;
use crate::sys::fsyncs::Since;
use crate::sys::memory::PageBuf;

/// The most pages of one batch, and the most of them in memory of this room.
const BATCH_PAGES: usize = 4096;
const BATCH_THROUGH: usize = 256;

/// The failure of a page that failed its check.
pub fn doubted(page: u64, doubt: Doubt) -> Failure {
    let fault = match doubt {
        Doubt::Wrong => Fault::Wrong,
        Doubt::NoSum(why) => Fault::NoSum(why),
    };
    Failure { op: Op::Read, key: 0, offset: page * PAGE_BYTES as u64, fault }
}

/// A cut of a file with sums, from `begin_cut`.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    /// The number and the new sum of the last page, if its bytes past the length are not zeros.
    last: Option<(u64, u32)>,
    /// Whether there may be bytes, or sums of bytes, past the length.
    is_needed: bool,
    /// The zones that change.
    zones: Option<Writing<'a>>,
}

/// Memory for whole pages.
struct Pages(Option<PageBuf>);

// SAFETY: the memory is a plain allocation, which any thread may use and free.
unsafe impl Send for Pages {}
// SAFETY: as above; only unsafe code reaches the memory through a shared reference.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(pages: usize) -> Result<Pages> {
        let len = pages * PAGE_BYTES;
        let memory = if len == 0 { None } else { Some(PageBuf::new(len)) };
        Ok(Pages(memory.transpose().map_err(Error::memory("pages read as a whole", len as u64))?))
    }

    fn at(&mut self, page: usize) -> *mut u8 {
        self.0.as_mut().map_or(std::ptr::null_mut(), |memory| memory.as_mut_ptr().wrapping_add(page * PAGE_BYTES))
    }
}

/// A part of a page, with the caller's memory for it.
#[derive(Clone, Copy)]
struct Bit {
    page: u64,
    within: usize,
    io_range: IoRange,
}

impl Bit {
    fn is_whole(&self) -> bool {
        self.io_range.len == PAGE_BYTES
    }
}

/// Cuts I/O ranges at page edges.
fn bits(io_ranges: impl Iterator<Item = IoRange>) -> impl Iterator<Item = Bit> {
    io_ranges.flat_map(|io_range| {
        let mut rest = io_range;
        std::iter::from_fn(move || {
            let within = rest.offset as usize % PAGE_BYTES;
            let len = rest.len.min(PAGE_BYTES - within);
            let bit = Bit { page: rest.offset / PAGE_BYTES as u64, within, io_range: IoRange { len, ..rest } };
            rest = IoRange { offset: rest.offset + len as u64, len: rest.len - len, buf: rest.buf.wrapping_add(len) };
            (len > 0).then_some(bit)
        })
    })
}

/// Page numbers in rising order, as ranges.
fn ranges(pages: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if page < last.end => {}
            Some(last) if page == last.end => last.end += 1,
            _ => ranges.push(page..page + 1),
        }
    }
    ranges
}

/// Whole pages with their memory, in rising order, as few I/O ranges. None crosses a multiple of `most` bytes.
fn joined(pages: &[IoRange], most: usize) -> Vec<IoRange> {
    let mut io_ranges: Vec<IoRange> = Vec::new();
    for page in pages {
        let goes_on = |last: &IoRange| {
            last.offset + last.len as u64 == page.offset
                && last.buf.wrapping_add(last.len) == page.buf
                && !page.offset.is_multiple_of(most as u64)
        };
        match io_ranges.last_mut() {
            Some(last) if goes_on(last) => last.len += page.len,
            _ => io_ranges.push(*page),
        }
    }
    io_ranges
}

/// The bytes of a page.
///
/// # Safety
/// A page at `buf` is readable, and nothing else changes it while the result is used.
unsafe fn page_at<'a>(buf: *const u8) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(buf, PAGE_BYTES) }
}

/// The source of a page that a batch writes.
#[derive(Clone, Copy)]
enum Source {
    /// A page of the caller's memory.
    Whole(IoRange),
    /// A page of this room's memory, by number. Its other bytes are those of the drive, or of this page of the caller.
    Through(usize, Option<IoRange>),
}

/// Pages to write.
#[derive(Default)]
struct WriteBatch {
    /// In rising order.
    pages: Vec<(u64, Source)>,
    /// Parts of pages, those of a page in the order of the call.
    patches: Vec<(usize, Bit)>,
    through: usize,
}

impl WriteBatch {
    /// Takes the next parts of a write.
    fn take(bits: &mut impl Iterator<Item = Bit>) -> WriteBatch {
        let (mut taken, mut through): (Vec<Bit>, usize) = (Vec::new(), 0);
        while taken.len() < BATCH_PAGES
            && through < BATCH_THROUGH
            && let Some(bit) = bits.next()
        {
            let is_new = |last: &Bit| last.page != bit.page || last.is_whole();
            through += usize::from(!bit.is_whole() && taken.last().is_none_or(is_new));
            taken.push(bit);
        }
        // Stable: what a call writes later to a page stays.
        taken.sort_by_key(|bit| bit.page);
        let mut batch = WriteBatch { pages: Vec::with_capacity(taken.len()), ..WriteBatch::default() };
        taken.into_iter().for_each(|bit| batch.add(bit));
        batch
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        self.pages.iter().map(|(page, _)| *page)
    }

    /// Adds a part of the last page, or of a later one.
    fn add(&mut self, bit: Bit) {
        let last = self.pages.pop_if(|(page, _)| *page == bit.page).map(|(_, source)| source);
        let mut new = |under| {
            self.through += 1;
            Source::Through(self.through - 1, under)
        };
        let source = match last {
            // Patches of memory that is not used any more are harmless.
            _ if bit.is_whole() => Source::Whole(bit.io_range),
            Some(Source::Whole(whole)) => new(Some(whole)),
            Some(through) => through,
            None => new(None),
        };
        self.pages.push((bit.page, source));
        if let Source::Through(at, _) = source {
            self.patches.push((at, bit));
        }
    }
}

impl FileState {
    /// The sums of its pages, if it has some.
    #[inline]
    pub fn sums(&self) -> Option<&Arc<Sums>> {
        self.sums.as_ref()
    }

    /// A publication begins to name a draft (rule 4 of `sums`).
    pub fn end_draft(&self) -> Result<()> {
        self.sums.as_ref().map_or(Ok(()), |sums| sums.end_draft())
    }

    /// The pages of a small file's first place have these bytes, and zeros behind them. No other call can reach them.
    pub(super) fn note_first_sums(&self, bytes: &[u8]) {
        let Some(sums) = &self.sums else { return };
        for (page, bytes) in (0..).zip(bytes.chunks(PAGE_BYTES)) {
            let mut whole = [0; PAGE_BYTES];
            whole[..bytes.len()].copy_from_slice(bytes);
            sums.small().into_iter().for_each(|small| small.set(page, sums.identity().sum(page, &whole)));
        }
    }

    /// Holds pages for an operation past the cache, or for a flush.
    async fn hold<'a>(&self, io: &Io<'_>, sums: &'a Sums, pages: &[Range<u64>], writes: bool) -> Holding<'a> {
        loop {
            match sums.held.try_hold(pages, writes) {
                Ok(holding) => return holding,
                Err(waiter) => _ = io.wait_for_page(&waiter).await,
            }
        }
    }

    /// Prepares a flush of cached pages: `pages` are these pages with their sums.
    pub async fn begin_flush<'a>(
        &self,
        io: &Io<'_>,
        sums: &'a Sums,
        mut pages: Vec<(u64, u32)>,
    ) -> Result<(Holding<'a>, Writing<'a>)> {
        pages.sort_unstable();
        let holding = self.hold(io, sums, &ranges(pages.iter().map(|(page, _)| *page)), true).await;
        Ok((holding, Writing::begin(sums, pages)?))
    }

    /// Reads I/O ranges past the cache, and verifies each page.
    ///
    /// # Safety
    /// As for `transfer`.
    pub(super) async unsafe fn read_proved(
        &self,
        io: &Io<'_>,
        class: Class,
        sums: &Sums,
        io_ranges: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        let mut bits = bits(io_ranges).peekable();
        while bits.peek().is_some() {
            let (mut batch, mut through) = (Vec::new(), 0);
            while batch.len() < BATCH_PAGES
                && through < BATCH_THROUGH
                && let Some(bit) = bits.next()
            {
                through += usize::from(!bit.is_whole());
                batch.push(bit);
            }
            // SAFETY: the caller's promise.
            unsafe { self.read_batch(io, class, sums, &batch, through).await? };
        }
        Ok(())
    }

    /// # Safety
    /// As for `transfer`.
    async unsafe fn read_batch(
        &self,
        io: &Io<'_>,
        class: Class,
        sums: &Sums,
        batch: &[Bit],
        through: usize,
    ) -> Result<()> {
        let mut numbers: Vec<u64> = batch.iter().map(|bit| bit.page).collect();
        numbers.sort_unstable();
        let _holding = self.hold(io, sums, &ranges(numbers.into_iter()), false).await;
        let wanted = batch.iter().map(|bit| sums.loaded(bit.page)).collect::<Result<Vec<u32>>>()?;
        let mut pages = Pages::new(through)?;
        let mut next = 0;
        // Where each whole page goes.
        let places: Vec<IoRange> = batch
            .iter()
            .map(|bit| {
                let buf = if bit.is_whole() { bit.io_range.buf } else { pages.at(next) };
                next += usize::from(!bit.is_whole());
                // The last page of a part that is open for reading only may be short, and zeros follow it.
                let len = if bit.is_whole() { PAGE_BYTES } else { self.page_bytes(bit.page) };
                IoRange { offset: bit.page * PAGE_BYTES as u64, len, buf }
            })
            .collect();
        let first = FirstFailure::default();
        let pieces = joined(&places, usize::MAX);
        // SAFETY: the caller's promise for its memory, and `pages` lives until this has ended or is dropped.
        let landing =
            unsafe { io.run(Within::SLABS, Splitter::new(self, Op::Read, class, pieces.into_iter()), &first) };
        match landing {
            Ok(landing) => landing.await,
            Err(error) => return Err(error),
        }
        let mut failure = first.take();
        let is_read = failure.is_none();
        for ((bit, place), sum) in batch.iter().zip(&places).zip(wanted) {
            // SAFETY: the page was read to there, and nothing else uses the memory.
            let bytes = unsafe { page_at(place.buf) };
            let proved = sums.check_against(if is_read { Ok(sum) } else { Err(NoSum::Lost) }, bit.page, bytes);
            // SAFETY: the caller's promise for its memory. The page is within `pages`, or it is that memory.
            unsafe {
                match proved {
                    Ok(()) if bit.is_whole() => {}
                    Ok(()) => copy_bytes(place.buf.wrapping_add(bit.within), bit.io_range.buf, bit.io_range.len),
                    Err(_) => std::ptr::write_bytes(bit.io_range.buf, 0, bit.io_range.len),
                }
            }
            if let Err(doubt) = proved {
                failure.get_or_insert(doubted(bit.page, doubt));
            }
        }
        drop(pages);
        failure.map_or(Ok(()), |failure| Err(self.error(failure)))
    }

    /// Writes I/O ranges past the cache, as whole pages with their sums.
    ///
    /// # Safety
    /// As for `transfer`.
    pub(super) async unsafe fn write_proved(
        &self,
        io: &Io<'_>,
        class: Class,
        sums: &Sums,
        io_ranges: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        let mut bits = bits(io_ranges).peekable();
        while bits.peek().is_some() {
            // SAFETY: the caller's promise.
            unsafe { self.write_batch(io, class, sums, WriteBatch::take(&mut bits)).await? };
        }
        Ok(())
    }

    /// # Safety
    /// As for `transfer`.
    async unsafe fn write_batch(&self, io: &Io<'_>, class: Class, sums: &Sums, batch: WriteBatch) -> Result<()> {
        let _holding = self.hold(io, sums, &ranges(batch.numbers()), true).await;
        let mut pages = Pages::new(batch.through)?;
        // SAFETY: the caller's promise, and `pages` lives until this has ended or is dropped.
        unsafe { self.read_under(io, class, sums, &batch, &mut pages).await? };
        for (at, bit) in &batch.patches {
            // SAFETY: the caller's memory is readable, and the page is this call's.
            unsafe { copy_bytes(bit.io_range.buf, pages.at(*at).wrapping_add(bit.within), bit.io_range.len) };
        }
        let places: Vec<IoRange> = batch
            .pages
            .iter()
            .map(|(page, source)| {
                let buf = match source {
                    Source::Whole(io_range) => io_range.buf,
                    Source::Through(at, _) => pages.at(*at),
                };
                IoRange { offset: page * PAGE_BYTES as u64, len: PAGE_BYTES, buf }
            })
            .collect();
        let mut writing = Writing::begin(sums, batch.numbers().map(|page| (page, UNKNOWN)).collect())?;
        let (first, since) = (FirstFailure::default(), Since::now());
        let mut next = 0;
        // A sum is made as a piece begins, so that the piece finds its bytes in the processor's caches, and other
        // pieces are on their way.
        let pieces = joined(&places, PIECE_BYTES).into_iter().inspect(|io_range| {
            for (page, bytes) in (io_range.offset / PAGE_BYTES as u64..).zip((0..io_range.len).step_by(PAGE_BYTES)) {
                // SAFETY: as above, for both kinds of memory.
                writing.know(next, sums.identity().sum(page, unsafe { page_at(io_range.buf.wrapping_add(bytes)) }));
                next += 1;
            }
        });
        // SAFETY: as above.
        let landing = unsafe { io.run(Within::SLABS, Splitter::new(self, Op::Write, class, pieces), &first)? };
        landing.await;
        // Before the write counts as ended: a sync that makes its zones clean covers it.
        self.mark_parts(since);
        drop(pages);
        match first.take() {
            Some(failure) => Err(self.error(failure)),
            None => {
                writing.all_written();
                Ok(())
            }
        }
    }

    /// Reads the old bytes of partly written pages.
    ///
    /// # Safety
    /// As for `transfer`, and `pages` lives until this has ended or is dropped.
    async unsafe fn read_under(
        &self,
        io: &Io<'_>,
        class: Class,
        sums: &Sums,
        batch: &WriteBatch,
        pages: &mut Pages,
    ) -> Result<()> {
        let mut unread = Vec::new();
        for (page, source) in &batch.pages {
            let Source::Through(at, under) = source else { continue };
            if let Some(whole) = under {
                // SAFETY: the caller's memory has a whole page there, and the page of `pages` is this call's.
                unsafe { copy_bytes(whole.buf, pages.at(*at), PAGE_BYTES) };
                continue;
            }
            let sum = sums.loaded(*page)?;
            // A page past the length is zeros, like new memory. Below the length a page without a sum is read, too: its
            // drive may have lost a page of sums.
            if sum != NONE || page * (PAGE_BYTES as u64) < self.len() {
                let (offset, buf) = (page * PAGE_BYTES as u64, pages.at(*at));
                unread.push((IoRange { offset, len: PAGE_BYTES, buf }, sum));
            }
        }
        let first = FirstFailure::default();
        let io_ranges = unread.iter().map(|(io_range, _)| *io_range);
        // SAFETY: the caller's promise.
        let landing = unsafe { io.run(Within::SLABS, Splitter::new(self, Op::Read, class, io_ranges), &first)? };
        landing.await;
        if let Some(failure) = first.take() {
            return Err(self.error(failure));
        }
        for (io_range, sum) in unread {
            let page = io_range.offset / PAGE_BYTES as u64;
            // SAFETY: it was read to there.
            let proved = sums.check_against(Ok(sum), page, unsafe { page_at(io_range.buf) });
            proved.map_err(|doubt| self.error(doubted(page, doubt)))?;
        }
        Ok(())
    }

    /// The error of a page that was not proved. `offset` is that of the page in the file.
    pub(super) fn doubt_error(&self, fault: Fault, offset: u64) -> Error {
        let page = offset / PAGE_BYTES as u64;
        if self.parts().is_empty() {
            return Error::invalid(format!("page {page} of {:?}", self.name()), "the file has no page");
        }
        let (part, place) = self.locate(offset);
        match fault {
            Fault::Wrong => {
                let (file, drive, path, offset) = (self.name().to_owned(), part.drive, part.path(), place.offset);
                return Error::CorruptPage { file, page, drive, path, offset };
            }
            Fault::NoSum(NoSum::Unread(errno)) => {
                let (action, path) = ("read the checksums of", part.path());
                let source = std::io::Error::from_raw_os_error(errno);
                return Error::Io { action, path, offset: Some(place.offset), source };
            }
            _ => {}
        }
        let why = format!("the sum of page {page} of {:?} is damaged, so the page is not proved", self.name());
        Error::corrupt(part.path(), why)
            .advise("write the page again as a whole, from another copy; see the kernel's log")
    }

    /// For each part the pages that a file of `len` bytes does not use, in rising order. The last range extends to the
    /// end of the part.
    fn unused_pages(&self, len: u64) -> Vec<Vec<Range<u64>>> {
        let page = PAGE_BYTES as u64;
        let of_part = |(index, part): (usize, &super::Part)| {
            let (whole, has) = (self.needs(index, len), part.has());
            let within = self.backing.unused_ranges(index, len, whole).into_iter();
            let mut unused: Vec<Range<u64>> = within
                .map(|(at, bytes)| at.div_ceil(page)..(at + bytes) / page)
                .filter(|range| !range.is_empty())
                .collect();
            unused.push(whole / page..has.max(whole).div_ceil(page).max(whole / page));
            unused
        };
        self.parts().iter().enumerate().map(of_part).collect()
    }

    /// Prepares a cut to `len`: verifies the page that becomes the last one, and marks the zones of all pages that
    /// change. Nothing is in flight. An error changes nothing but marks. `proves` makes a wrong page an error.
    /// Otherwise it stays wrong.
    pub(super) fn begin_cut(&self, len: u64, proves: bool) -> Result<Cut<'_>> {
        let sums = match self.sums.as_ref() {
            Some(sums) if sums.small().is_none() => sums,
            _ => return Ok(Cut { last: None, is_needed: true, zones: None }),
        };
        let mut unused = self.unused_pages(len);
        let (last, within) = (len / PAGE_BYTES as u64, (len % PAGE_BYTES as u64) as usize);
        let mut cut = Cut { last: None, is_needed: false, zones: None };
        if within > 0 {
            let sum = match sums.loaded(last) {
                // A lost one.
                Err(Error::Corrupt { .. }) if !proves => Err(NoSum::Lost),
                sum => Ok(sum?),
            };
            let (part, place) = self.locate(last * PAGE_BYTES as u64);
            let mut page = PageBuf::new(PAGE_BYTES).map_err(Error::memory("cutting a page", PAGE_BYTES as u64))?;
            let (bytes, offset) = (page.as_mut_slice(), place.offset);
            part.read_whole(offset, &mut bytes[..self.page_bytes(last)])?;
            let proved = sums.check_against(sum, last, bytes);
            if let (Err(doubt), true) = (proved, proves) {
                return Err(self.error(doubted(last, doubt)));
            }
            if proved.is_ok() && bytes[within..].iter().any(|byte| *byte != 0) {
                bytes[within..].fill(0);
                (cut.last, cut.is_needed) = (Some((last, sums.identity().sum(last, bytes))), true);
                // Its zone is marked, too.
                let at = offset / PAGE_BYTES as u64;
                unused.iter_mut().skip(place.part).take(1).for_each(|unused| unused.insert(0, at..at));
            }
        }
        cut.zones = Writing::of_cut(sums, &unused)?;
        cut.is_needed |= cut.zones.is_some();
        Ok(cut)
    }

    /// Makes everything beyond the length read as zero (`clean_beyond`), with the sums. Nothing is in flight.
    pub(super) fn end_cut(&self, len: u64, cut: &Cut<'_>) -> Result<()> {
        if !cut.is_needed {
            return Ok(());
        }
        let Some(sums) = self.sums.as_ref().filter(|sums| sums.small().is_none()) else {
            return self.clean_beyond(len);
        };
        let unused = self.unused_pages(len);
        // If this fails, an unknown part of the page is zeros (rule 2 of `sums`).
        cut.last.map_or(Ok(()), |(page, _)| sums.set(page, UNKNOWN))?;
        self.clean_beyond(len)?;
        cut.last.map_or(Ok(()), |(page, sum)| sums.set(page, sum))?;
        sums.end_cut(&unused)
    }

    /// Begins a sync. Returns its epoch (rule 5 of `sums`), if the file has sums. `names` means that the sync will
    /// publish the place of the bytes.
    pub(super) fn begin_sums(&self, names: bool) -> Option<u64> {
        let sums = self.sums.as_ref()?;
        if names && let Some(small) = sums.small() {
            small.begin_record();
        }
        Some(sums.begin_sync())
    }

    /// Ends a sync of this epoch: the bytes that it covers are durable, and so is the length `len`. Makes zones clean
    /// that were not written to since: all of them at the end of the file and before a draft gets its name, otherwise
    /// those that were idle for a while.
    pub(super) fn settle_sums(&self, epoch: u64, len: u64, is_end: bool) -> Result<()> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let is_all = is_end || self.backing.is_unnamed();
        let which = if is_all { Some(Settling { before: epoch }) } else { sums.idle(epoch, self.exec.clock.now_ns()) };
        let Some(which) = which else { return Ok(()) };
        if sums.small().is_some() {
            return self.backing.settle_record(which.before, len);
        }
        let page = PAGE_BYTES as u64;
        sums.settle(which, |part| self.needs(part, self.len()).div_ceil(page))
    }
}
