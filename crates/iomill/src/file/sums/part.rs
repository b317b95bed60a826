//! [`PartSums`]: the sums of one part, in memory and in the file beside the part. Non-goals: which page of the file a
//! page of the part is.
//!
//! The file begins with two places for its head (`zones`). Behind them are the pages of sums. What lies beyond its end
//! is zeros: no sums.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasherDefault;
use std::io::ErrorKind;
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::memory::{HasPages, SumsMemory};
use super::page::{CHUNK_PAGES, Chunk, Identity, NONE, UNKNOWN};
use super::zones::{Head, ZONE_CHUNKS, ZONE_PAGES, Zone, Zones};
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, check_fsyncs};
use crate::sys::fsyncs::{Earliest, Since};
use crate::sys::hash::NumberHasher;
use crate::sys::memory::PageBuf;
use crate::sys::sync::{Mutex, Ordering, RwLock, lock, read, write};

/// Pages of the head.
const HEADS: u64 = 2;
/// Pages that are read at a time where sums are made anew.
const REMAKE_PAGES: usize = 64;

/// The most pages that cannot be read where sums are made anew. With more of them the drive may have failed.
const UNREAD_MOST: usize = 16;

/// The most zones that become clean by one fsync: their sums are those of 16 GiB.
const SETTLED_MOST: usize = 256;

/// Which zones become clean.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    /// Those that were last written to in an epoch before this one.
    pub before: u64,
}

/// The pages of sums in memory, by number.
type Chunks = HashMap<u64, Arc<Chunk>, BuildHasherDefault<NumberHasher>>;

/// See the module.
#[derive(Debug)]
pub struct PartSums {
    identity: Identity,
    /// The position of the part in the layout.
    part: usize,
    /// The part, where sums are made anew from. `None` if this process only reads and the part is empty.
    data: Option<Arc<DriveFile>>,
    /// `None` if this process only reads and there is nothing.
    file: Option<DriveFile>,
    is_writer: bool,
    /// The bound on pages of sums in memory.
    memory: Arc<SumsMemory>,
    chunks: RwLock<Chunks>,
    /// One thread loads at a time.
    loads: Mutex<()>,
    zones: Mutex<Zones>,
    /// The head on the drive. Its holder alone changes which zones are marked. Locked before `writes`.
    written: Mutex<WrittenHead>,
    /// Held while pages of sums are written, from the look at their marks on.
    writes: Mutex<()>,
    /// The moment before pages of sums left memory that no fsync has covered.
    unsynced: Earliest,
}

/// The sums of a part that is open. When this is dropped, no thread writes to their file any more.
#[derive(Debug)]
pub struct OpenSums(Arc<PartSums>);

impl Deref for OpenSums {
    type Target = Arc<PartSums>;

    fn deref(&self) -> &Arc<PartSums> {
        &self.0
    }
}

impl Drop for OpenSums {
    fn drop(&mut self) {
        // Another thread may be writing a page of sums that leaves memory (`forget`). It finds no other.
        let _writing = lock(&self.0.writes);
        write(&self.0.chunks).clear();
    }
}

/// The head that was written last.
#[derive(Clone, Copy, Debug)]
struct WrittenHead {
    version: u64,
    /// Otherwise the next one is written over it, because the one before is still needed: a crash may tear both.
    is_durable: bool,
}

/// How a part is opened with its sums.
#[derive(Debug)]
pub struct Opening<'a> {
    pub fs: &'a Arc<dyn DriveFs>,
    pub path: &'a str,
    pub is_writer: bool,
    /// Pages of the part that hold bytes of the file. If there are some, it has sums.
    pub used: u64,
    /// Pages that the part has.
    pub pages: u64,
    pub memory: &'a Arc<SumsMemory>,
}

impl PartSums {
    /// Opens the sums of a part. A writer makes the file if it is not there.
    pub fn open(
        identity: Identity,
        part: usize,
        data: Option<&Arc<DriveFile>>,
        opening: &Opening<'_>,
    ) -> Result<OpenSums> {
        let Opening { fs, path, is_writer, used, pages, memory } = *opening;
        let whole_path = || fs.root().join(path);
        let access = if is_writer { Access::WRITE } else { Access::READ };
        let mut opened = DriveFile::open(fs, path, access);
        let is_missing = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_missing && used > 0 {
            let why = "the drive has lost the sums of this part, so its bytes cannot be proved";
            return Err(Error::corrupt(whole_path(), why));
        }
        if is_missing && is_writer {
            opened = DriveFile::open(fs, path, Access { create: true, ..access });
        }
        let file = match opened {
            Err(_) if is_missing && !is_writer => None,
            opened => Some(opened.map_err(|error| Error::in_array("open", whole_path(), error))?),
        };
        let mut sums = PartSums {
            identity,
            part,
            data: data.cloned(),
            file,
            is_writer,
            memory: Arc::clone(memory),
            chunks: RwLock::default(),
            loads: Mutex::new(()),
            zones: Mutex::default(),
            written: Mutex::new(WrittenHead { version: 0, is_durable: true }),
            writes: Mutex::new(()),
            unsynced: Earliest::new(None),
        };
        let head = sums.read_head(pages.div_ceil(ZONE_PAGES))?;
        if is_writer {
            let since = Since::now();
            // Writes to a marked zone rely on its mark.
            let is_left = head.map(|(offset, bytes)| sums.write_again(offset, &bytes)).transpose()?.is_some();
            // What a crash, or a later catalog, has left past the end must not come back when the part grows.
            if sums.cut_file(used)? || is_left {
                sums.file()?.sync_since(since)?;
            }
        }
        Ok(OpenSums(Arc::new(sums)))
    }

    /// Forgets all, also on the drive: the part is empty, and an earlier writer may have left something.
    pub fn clear(&self) -> Result<()> {
        let (file, _writing) = (self.file()?, lock(&self.writes));
        let cut = file.fs().set_len(file.handle(), 0);
        cut.map_err(|error| Error::io("cut", file.full_path(), error))?;
        lock(&self.zones).clear();
        write(&self.chunks).clear();
        Ok(())
    }

    fn file(&self) -> Result<&DriveFile> {
        let why = || Error::invalid("the sums of a part that is empty", "no process that only reads has them open");
        self.file.as_ref().ok_or_else(why)
    }

    /// Takes the marks that the last opening has left. `zones` is how many the part has. Returns the offset and the
    /// bytes of the head if it has marks.
    fn read_head(&mut self, zones: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let mut bytes = vec![0; HEADS as usize * PAGE_BYTES];
        read_there(file, &mut bytes, 0)?;
        let (first, second) = bytes.split_at(PAGE_BYTES);
        let decode = |bytes| Head::decode(&self.identity, self.part, zones, bytes);
        let heads = [decode(first), decode(second)];
        // Without a head no zone was ever marked. If both have rotted, a page that a crash has left without its sum
        // shows as corrupt.
        let Some(head) = heads.into_iter().flatten().max_by_key(|head| head.version) else { return Ok(None) };
        let at = Head::place(head.version) as usize * PAGE_BYTES;
        let is_left = !head.marked.is_empty();
        self.written = Mutex::new(WrittenHead { version: head.version, is_durable: true });
        self.zones = Mutex::new(Zones::with_left(head));
        Ok(is_left.then(|| (at as u64, bytes[at..at + PAGE_BYTES].to_vec())))
    }

    /// Writes a head again, with the same bytes. A process may have ended before the head was durable, or its fsync may
    /// have failed there. Then the kernel still shows the head, and after a failed fsync it takes it for written.
    fn write_again(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.file()?;
        file.fs().write_at(file.handle(), bytes, offset).map_err(failed_at("write", file, offset))
    }

    /// Cuts the pages of sums behind those of the first `pages` pages of the part. Returns whether there were any.
    fn cut_file(&self, pages: u64) -> Result<bool> {
        let file = self.file()?;
        let failed = |error| Error::io("cut", file.full_path(), error);
        let end = offset_of(pages.div_ceil(CHUNK_PAGES));
        let is_longer = file.fs().len(file.handle()).map_err(failed)? > end;
        if is_longer {
            file.fs().set_len(file.handle(), end).map_err(failed)?;
        }
        Ok(is_longer)
    }

    /// Allocates space for the sums of pages of the part. If they are far past the end, it leaves a hole before them.
    pub fn reserve(&self, pages: Range<u64>) -> Result<()> {
        let file = self.file()?;
        let has = file.fs().len(file.handle()).map_err(|error| Error::io("measure", file.full_path(), error))?;
        let start = has.max(offset_of(pages.start / CHUNK_PAGES));
        let end = offset_of(pages.end.div_ceil(CHUNK_PAGES));
        if start >= end {
            return Ok(());
        }
        file.fs().allocate(file.handle(), start, end - start).map_err(failed_at("make room in", file, start))
    }

    /// Gives back the space past the first `pages` pages of the part.
    pub fn trim(&self, pages: u64) -> Result<()> {
        let _writing = lock(&self.writes);
        self.cut_file(pages).map(drop)
    }

    /// The sum of a page of the part. `None` if it is not in memory, or lost.
    pub fn sum(&self, page: u64) -> Option<u32> {
        let chunks = read(&self.chunks);
        let chunk = chunks.get(&(page / CHUNK_PAGES))?;
        chunk.note_use();
        chunk.get(page % CHUNK_PAGES)
    }

    /// Takes the sums of the first pages of the file, which begin with this page. They were durable elsewhere, and are
    /// here. Their zone is marked, unless `is_draft` says that it need not be. The part is new.
    pub fn take_first(self: &Arc<Self>, first: u64, sums: &[u32], is_draft: bool) -> Result<()> {
        let zone = first / ZONE_PAGES;
        if is_draft {
            lock(&self.zones).change(zone);
        } else {
            self.mark(&BTreeSet::from([zone]))?;
        }
        for (page, sum) in (first..).zip(sums) {
            write(&self.chunks).entry(page / CHUNK_PAGES).or_default().set(page % CHUNK_PAGES, *sum);
        }
        for number in first / CHUNK_PAGES..(first + sums.len() as u64).div_ceil(CHUNK_PAGES) {
            self.chunk_in_memory(number).inspect(|chunk| self.memory.enter(Arc::downgrade(self) as _, number, chunk));
        }
        Ok(())
    }

    /// The sum of a page, which is brought to memory if it is not there. `sum_of` makes the sum of a page of the part.
    pub fn loaded(self: &Arc<Self>, page: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<u32> {
        if let Some(sum) = self.sum(page) {
            return Ok(sum);
        }
        let sum = self.chunk(page / CHUNK_PAGES, sum_of)?.get(page % CHUNK_PAGES);
        sum.ok_or_else(|| self.lost_error(page / CHUNK_PAGES))
    }

    /// A page of sums, by its number. It stays the one in memory as long as it is held, and until a cut, with nothing
    /// in flight.
    pub fn chunk(self: &Arc<Self>, number: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<Arc<Chunk>> {
        if let Some(chunk) = self.chunk_in_memory(number) {
            return Ok(chunk);
        }
        let chunk = {
            let _loading = lock(&self.loads);
            if let Some(chunk) = self.chunk_in_memory(number) {
                return Ok(chunk);
            }
            let zone = lock(&self.zones).get(number / ZONE_CHUNKS);
            let is_stale = zone.is_some_and(|zone| zone.is_stale && !zone.has_written(number));
            let chunk = Arc::new(if is_stale { self.remake(number, sum_of)? } else { self.read_chunk(number)? });
            write(&self.chunks).insert(number, Arc::clone(&chunk));
            chunk
        };
        self.memory.enter(Arc::downgrade(self) as _, number, &chunk);
        Ok(chunk)
    }

    fn chunk_in_memory(&self, number: u64) -> Option<Arc<Chunk>> {
        let chunks = read(&self.chunks);
        chunks.get(&number).inspect(|chunk| chunk.note_use()).cloned()
    }

    fn read_chunk(&self, number: u64) -> Result<Chunk> {
        let Some(file) = &self.file else { return Ok(Chunk::default()) };
        let mut bytes = vec![0; PAGE_BYTES];
        read_there(file, &mut bytes, offset_of(number))?;
        Ok(Chunk::decode(&self.identity, self.part, number, &bytes).unwrap_or_else(Chunk::lost))
    }

    /// The error of a page with a lost sum.
    fn lost_error(&self, number: u64) -> Error {
        let path = self.file.as_ref().map(DriveFile::full_path).unwrap_or_default();
        let (offset, first) = (offset_of(number), number * CHUNK_PAGES);
        let why = format!(
            "the page of sums at offset {offset} is damaged, so no page from {first} to {} of the part beside it can \
             be proved that was not written since",
            first + CHUNK_PAGES
        );
        Error::corrupt(path, why).advise("write these pages again as a whole, from another copy")
    }

    /// Makes the sums of a stretch anew from the part. No operation writes to it, because its sums were not loaded.
    fn remake(&self, number: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<Chunk> {
        let chunk = Chunk::default();
        let Some(data) = &self.data else { return Ok(chunk) };
        let len = REMAKE_PAGES * PAGE_BYTES;
        let mut buffer = PageBuf::new(len).map_err(Error::memory("making sums anew", len as u64))?;
        let has = data.fs().len(data.handle()).map_err(|error| Error::io("measure", data.full_path(), error))?;
        let first = number * CHUNK_PAGES;
        let end = (first + CHUNK_PAGES).min(has.div_ceil(PAGE_BYTES as u64));
        let mut unread = 0;
        for page in (first..end).step_by(REMAKE_PAGES) {
            let pages = page..end.min(page + REMAKE_PAGES as u64);
            let bytes = &mut buffer.as_mut_slice()[..(pages.end - page) as usize * PAGE_BYTES];
            bytes.fill(0);
            let failed = match read_there(data, bytes, page * PAGE_BYTES as u64) {
                Err(Error::Io { .. }) => true,
                read => read.map(|()| false)?,
            };
            for (at, bytes) in pages.zip(bytes.chunks_mut(PAGE_BYTES)) {
                // A sector that cannot be read concerns its own page.
                let read = if failed { read_there(data, bytes, at * PAGE_BYTES as u64) } else { Ok(()) };
                match read {
                    Ok(()) => chunk.set(at - first, sum_of(at, bytes)),
                    Err(ref error @ Error::Io { .. }) if unread < UNREAD_MOST && !error.passes() => {
                        unread += 1;
                        chunk.set(at - first, UNKNOWN);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(chunk)
    }

    /// A write to zones begins. They are marked before this returns, unless `is_draft` says that they need not be.
    /// `epoch` is the present one.
    pub fn begin(&self, zones: &BTreeSet<u64>, epoch: impl Fn() -> u64, marks: impl Fn() -> bool) -> Result<()> {
        loop {
            {
                let mut all = lock(&self.zones);
                // Under the lock: the end of a draft marks those that are busy.
                let marks = marks();
                if !marks || all.has_marked(zones) {
                    for zone in zones {
                        let zone = all.change(*zone);
                        (zone.busy, zone.last) = (zone.busy + 1, epoch());
                    }
                    return Ok(());
                }
            }
            self.mark(zones)?;
        }
    }

    /// The end of a write.
    pub fn end(&self, zones: &BTreeSet<u64>, epoch: impl Fn() -> u64) {
        let mut all = lock(&self.zones);
        for zone in zones {
            let zone = all.change(*zone);
            (zone.busy, zone.last) = (zone.busy.saturating_sub(1), epoch());
        }
    }

    /// Marks zones durably.
    fn mark(&self, zones: &BTreeSet<u64>) -> Result<()> {
        let mut written = lock(&self.written);
        let marked = {
            let all = lock(&self.zones);
            if all.has_marked(zones) {
                return Ok(());
            }
            let new = zones.iter().map(|zone| *zone..*zone + 1);
            all.marked().into_iter().chain(new).collect()
        };
        let written_head = self.file()?.durably(|| self.write_head(&mut written, marked));
        written_head.inspect_err(|_| self.doubt_written())?;
        written.is_durable = true;
        let mut all = lock(&self.zones);
        zones.iter().for_each(|zone| all.change(*zone).is_marked = true);
        Ok(())
    }

    /// Marks the zones of a draft that writes are under way to.
    pub fn end_draft(&self) -> Result<()> {
        let zones = lock(&self.zones).own().filter(|(_, zone)| zone.busy > 0).map(|(zone, _)| zone).collect();
        self.mark(&zones)
    }

    fn write_head(&self, last: &mut WrittenHead, marked: Vec<Range<u64>>) -> Result<()> {
        let file = self.file()?;
        let head = Head { version: last.version + if last.is_durable { 1 } else { 2 }, marked };
        let offset = Head::place(head.version) * PAGE_BYTES as u64;
        let bytes = head.encode(&self.identity, self.part);
        let written = file.fs().write_at(file.handle(), &bytes, offset);
        written.map_err(failed_at("write", file, offset))?;
        *last = WrittenHead { version: head.version, is_durable: false };
        Ok(())
    }

    /// Whether an earlier opening has left zones marked.
    pub fn is_stale(&self) -> bool {
        lock(&self.zones).is_stale()
    }

    /// Makes zones clean. The pages that were written to them before the epoch are durable. `pages` is how many the
    /// part has.
    pub fn settle(self: &Arc<Self>, which: Settling, pages: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let idle = |from| lock(&self.zones).idle_since(which.before, from, SETTLED_MOST);
        let mut ready = idle(0);
        if ready.is_empty() {
            return Ok(());
        }
        let mut written = lock(&self.written);
        let mut is_named = false;
        while let Some(last) = ready.keys().next_back().copied() {
            let settled = self.write_zones(&ready, pages.div_ceil(CHUNK_PAGES), &sum_of);
            settled.inspect_err(|_| self.doubt_written())?;
            written.is_durable = true;
            let mut all = lock(&self.zones);
            for at in ready.into_keys() {
                // A write that has begun meanwhile keeps its zone as it is.
                if all.get(at).is_some_and(|zone| zone.is_idle_since(which.before)) {
                    is_named |= all.remove(at).is_some_and(|zone| zone.is_marked);
                }
            }
            drop(all);
            ready = idle(last + 1);
        }
        if !is_named {
            return Ok(());
        }
        // It needs no fsync: the head before names more zones.
        let marked = lock(&self.zones).marked();
        self.write_head(&mut written, marked)
    }

    /// Makes the sums of zones durable. `end` is the first page of sums past the part. Those in memory after it are
    /// written, too: they may be of a write that has not made the file longer yet.
    fn write_zones(
        self: &Arc<Self>,
        zones: &BTreeMap<u64, Zone>,
        end: u64,
        sum_of: impl Fn(u64, &[u8]) -> u32,
    ) -> Result<()> {
        // Pages of sums that have left memory must be on the drive, too.
        // The moment comes first: one may leave memory between the two.
        let (file, since, left) = (self.file()?, Since::now(), self.unsynced.take());
        let stale = |zone: &Zone| if zone.is_stale { end } else { 0 };
        file.durably(|| zones.iter().try_for_each(|(at, zone)| self.write_zone(*at, stale(zone), &sum_of)))?;
        check_fsyncs(&**file.fs(), left.map_or(since, |left| left.min(since)))
    }

    /// The pages in these ranges, which go up, are to become zeros, and the part ends with the last of them. An empty
    /// range stands for a page that is cut within, or for the end. Returns the zones to mark, or `None` if the pages
    /// are zeros and have no sums. Nothing is in flight.
    pub fn zones_of_cut(
        self: &Arc<Self>,
        ranges: &[Range<u64>],
        sum_of: impl Fn(u64, &[u8]) -> u32,
    ) -> Result<Option<BTreeSet<u64>>> {
        let Some((last, within)) = ranges.split_last() else { return Ok(None) };
        let mut is_needed = !last.is_empty() || within.iter().any(Range::is_empty);
        for range in ranges {
            // What lies behind the last page that stays goes as a whole.
            let end = if range == last { last.start.next_multiple_of(CHUNK_PAGES) } else { range.end };
            for number in range.start / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
                let (chunk, first) = (self.chunk(number, &sum_of)?, number * CHUNK_PAGES);
                let mut pages = range.start.max(first)..end.min(first + CHUNK_PAGES);
                is_needed |= pages.any(|page| chunk.get(page - first) != Some(NONE));
            }
        }
        if !is_needed {
            return Ok(None);
        }
        // The zones behind the last page that stays need no mark, however many they are: their sums are cut durably.
        let zones = |range: &Range<u64>| range.start / ZONE_PAGES..range.end.max(range.start + 1).div_ceil(ZONE_PAGES);
        let last = last.start..last.start;
        Ok(Some(within.iter().chain([&last]).flat_map(zones).collect()))
    }

    /// They are zeros now. Their zones are busy.
    pub fn end_cut(self: &Arc<Self>, ranges: &[Range<u64>], sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let Some(last) = ranges.last() else { return Ok(()) };
        // No sync makes a zone clean meanwhile.
        let _written = lock(&self.written);
        let end = last.start.div_ceil(CHUNK_PAGES);
        {
            // No page of sums past the end is written any more.
            let (_writing, since) = (lock(&self.writes), Since::now());
            write(&self.chunks).retain(|number, _| *number < end);
            if self.cut_file(last.start)? {
                self.file()?.sync_since(since)?;
            }
        }
        for range in ranges {
            let behind = if range == last { end * CHUNK_PAGES } else { range.end };
            for number in range.start / CHUNK_PAGES..behind.div_ceil(CHUNK_PAGES) {
                let (chunk, first) = (self.chunk(number, &sum_of)?, number * CHUNK_PAGES);
                let pages = range.start.max(first)..behind.min(first + CHUNK_PAGES);
                pages.for_each(|page| chunk.set(page - first, NONE));
            }
        }
        Ok(())
    }

    /// Writes a page of sums, if it differs from the drive. The caller has `writes`.
    fn write_before_leaving(&self, number: u64, chunk: &Chunk) -> Result<()> {
        if !self.is_writer {
            // Recomputed the next time.
            chunk.is_dirty.store(false, Ordering::Release);
        }
        if !chunk.is_dirty.load(Ordering::Acquire) {
            return Ok(());
        }
        self.unsynced.note(Since::now());
        self.write_chunks(&[(number, chunk)], false)
    }

    /// The number of pages of sums in memory.
    #[cfg(all(test, not(iomill_models)))]
    pub fn in_memory(&self) -> usize {
        read(&self.chunks).len()
    }

    /// An error if pages of sums had to stay in memory because the drive does not take them. So a program that writes
    /// to a full drive takes no more memory.
    pub fn check_memory(&self) -> Result<()> {
        if !self.memory.is_over() {
            return Ok(());
        }
        let _writing = lock(&self.writes);
        let is_stuck = |chunk: &Arc<Chunk>| Arc::strong_count(chunk) == 1 && chunk.is_dirty.load(Ordering::Acquire);
        let stuck = read(&self.chunks)
            .iter()
            .find(|(_, chunk)| is_stuck(chunk))
            .map(|(number, chunk)| (*number, Arc::clone(chunk)));
        stuck.map_or(Ok(()), |(number, chunk)| self.write_before_leaving(number, &chunk))
    }

    /// Writes the pages of sums of a zone that differ from what is on the drive. Those below `stale` are doubtful
    /// there.
    fn write_zone(self: &Arc<Self>, zone: u64, stale: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let mut held = Vec::new();
        for number in zone * ZONE_CHUNKS..(zone + 1) * ZONE_CHUNKS {
            let chunk = match number < stale {
                true => Some(self.chunk(number, &sum_of)?),
                false => read(&self.chunks).get(&number).cloned(),
            };
            held.extend(chunk.map(|chunk| (number, chunk)));
        }
        let _writing = lock(&self.writes);
        for run in held.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let run: Vec<(u64, &Chunk)> = run.iter().map(|(number, chunk)| (*number, &**chunk)).collect();
            // A doubtful page of sums that was found equal to zeros may still be another on the drive.
            self.write_chunks(&run, run[0].0 < stale)?;
        }
        Ok(())
    }

    /// Writes pages of sums in a row: those that differ from the drive, or `all` of them. The caller has `writes`.
    fn write_chunks(&self, run: &[(u64, &Chunk)], all: bool) -> Result<()> {
        let file = self.file()?;
        // Before its sums are read: one that changes after this is written again. By a swap, which sees all sums that
        // were marked before it.
        let is_written = |chunk: &Chunk| chunk.is_dirty.swap(false, Ordering::AcqRel) || all;
        let wanted: Vec<(u64, &Chunk)> = run.iter().copied().filter(|(_, chunk)| is_written(chunk)).collect();
        for run in wanted.chunk_by(|(one, _), (next, _)| one + 1 == *next) {
            let (start, mut bytes) = (run[0].0, vec![0; run.len() * PAGE_BYTES]);
            for ((number, chunk), bytes) in run.iter().zip(bytes.chunks_mut(PAGE_BYTES)) {
                chunk.encode(&self.identity, self.part, *number, bytes);
                lock(&self.zones).change(number / ZONE_CHUNKS).written |= 1 << (number % ZONE_CHUNKS);
            }
            let offset = offset_of(start);
            if let Err(error) = file.fs().write_at(file.handle(), &bytes, offset) {
                wanted.iter().for_each(|(_, chunk)| chunk.is_dirty.store(true, Ordering::Release));
                return Err(failed_at("write", file, offset)(error));
            }
        }
        Ok(())
    }

    /// After a failed fsync the drive may have lost any page of sums that this opening has written. Those in memory are
    /// written again, and the others are recomputed when they are needed.
    fn doubt_written(&self) {
        let _writing = lock(&self.writes);
        let (mut zones, chunks) = (lock(&self.zones), read(&self.chunks));
        for (at, zone) in zones.own().filter(|(_, zone)| zone.written != 0) {
            for number in (at * ZONE_CHUNKS..(at + 1) * ZONE_CHUNKS).filter(|number| zone.has_written(*number)) {
                chunks.get(&number).into_iter().for_each(|chunk| chunk.is_dirty.store(true, Ordering::Release));
            }
            (zone.is_stale, zone.written) = (true, 0);
        }
    }
}

impl HasPages for PartSums {
    /// The write needs no fsync: the zone is marked, or the file is a draft. The sync that makes the zone clean reports
    /// an error.
    fn forget(&self, number: u64, entry: u64) -> Result<bool> {
        let _writing = lock(&self.writes);
        let found = read(&self.chunks).get(&number).filter(|chunk| chunk.is_entry(entry)).cloned();
        let Some(chunk) = found else { return Ok(true) };
        // One for the map, and one here.
        let is_held = Arc::strong_count(&chunk) > 2;
        if chunk.take_use() || is_held {
            return Ok(false);
        }
        self.write_before_leaving(number, &chunk)?;
        drop(chunk);
        let mut chunks = write(&self.chunks);
        // `get_mut` sees all changes of those that have held it.
        let is_free = |chunk: &mut Arc<Chunk>| Arc::get_mut(chunk).is_some_and(|chunk| !*chunk.is_dirty.get_mut());
        let is_free = chunks.get_mut(&number).is_none_or(is_free);
        if is_free {
            chunks.remove(&number);
        }
        Ok(is_free)
    }
}

/// The offset of a page of sums in the file.
fn offset_of(number: u64) -> u64 {
    (HEADS + number) * PAGE_BYTES as u64
}

/// Reads what a file has from an offset on, and leaves the memory past its end as it is. An error if the drive
/// returns less: zeros in place of sums would make every page wrong, and would stay.
fn read_there(file: &DriveFile, bytes: &mut [u8], offset: u64) -> Result<()> {
    let read = file.fs().read_at(file.handle(), bytes, offset).map_err(failed_at("read", file, offset))?;
    if read == bytes.len() {
        return Ok(());
    }
    let has = file.fs().len(file.handle()).map_err(|error| Error::io("measure", file.full_path(), error))?;
    let (ended, wanted) = (offset + read as u64, has.min(offset + bytes.len() as u64));
    match wanted.saturating_sub(ended) {
        0 => Ok(()),
        missing => Err(Error::PartCut { path: file.full_path(), offset: ended, missing }),
    }
}

/// The error of a call at an offset of a file.
fn failed_at<'a>(action: &'static str, file: &'a DriveFile, offset: u64) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: file.full_path(), offset: Some(offset), source }
}
