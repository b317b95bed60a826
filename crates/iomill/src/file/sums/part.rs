//! [`PartSums`]: the sums of one part, in memory and in the file beside the part. Non-goals: which page of the file a
//! page of the part is.
//!
//! The file begins with two places for its head (`zones`). Behind them are the pages of sums. What lies beyond its end
//! is zeros: no sums.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use super::page::{CHUNK_PAGES, Chunk, Identity, NONE, UNKNOWN};
use super::zones::{Head, ZONE_CHUNKS, ZONE_PAGES, Zone, Zones};
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs};
use crate::sys::memory::PageBuf;
use crate::sys::sync::{Mutex, Ordering, RwLock, lock, read, write};

/// Pages of the head.
const HEADS: u64 = 2;
/// Pages that are read at a time where sums are made anew.
const REMAKE_PAGES: usize = 64;

/// Which zones become clean.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    /// Those that were last written to in an epoch before this one.
    pub before: u64,
}

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
    chunks: RwLock<HashMap<u64, Arc<Chunk>>>,
    /// One thread loads at a time.
    loads: Mutex<()>,
    zones: Mutex<Zones>,
    /// The version of the head on the drive. Its holder alone changes which zones are marked.
    version: Mutex<u64>,
}

/// How a part is opened with its sums.
#[derive(Debug)]
pub struct Opening<'a> {
    pub fs: &'a Arc<dyn DriveFs>,
    pub path: &'a str,
    pub is_writer: bool,
    /// Whether the part holds bytes of the file, so that it has sums.
    pub holds_bytes: bool,
    /// Pages that the part has.
    pub pages: u64,
}

impl PartSums {
    /// Opens the sums of a part. A writer makes the file if it is not there.
    pub fn open(
        identity: Identity,
        part: usize,
        data: Option<&Arc<DriveFile>>,
        opening: &Opening<'_>,
    ) -> Result<PartSums> {
        let Opening { fs, path, is_writer, holds_bytes, pages } = *opening;
        let whole_path = || fs.root().join(path);
        let access = if is_writer { Access::WRITE } else { Access::READ };
        let mut opened = DriveFile::open(fs, path, access);
        let is_missing = opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_missing && holds_bytes {
            let why = "the drive has lost the sums of this part, so its bytes cannot be proved";
            return Err(Error::corrupt(whole_path(), why));
        }
        if is_missing && is_writer {
            opened = DriveFile::open(fs, path, Access { create: true, ..access });
        }
        let file = match opened {
            Err(_) if is_missing && !is_writer => None,
            opened => Some(opened.map_err(|error| Error::io("open", whole_path(), error))?),
        };
        let mut sums = PartSums {
            identity,
            part,
            data: data.cloned(),
            file,
            chunks: RwLock::default(),
            loads: Mutex::new(()),
            zones: Mutex::default(),
            version: Mutex::new(0),
        };
        sums.read_head(pages.div_ceil(ZONE_PAGES))?;
        if is_writer {
            sums.cut_file(pages)?;
        }
        Ok(sums)
    }

    /// Forgets all, also on the drive: the part is empty, and an earlier writer may have left something.
    pub fn clear(&self) -> Result<()> {
        let file = self.file()?;
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

    /// Takes the marks that the last opening has left. `zones` is how many the part has.
    fn read_head(&mut self, zones: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut bytes = vec![0; HEADS as usize * PAGE_BYTES];
        read_there(file, &mut bytes, 0)?;
        let (first, second) = bytes.split_at(PAGE_BYTES);
        let decode = |bytes| Head::decode(&self.identity, self.part, zones, bytes);
        let heads = [decode(first), decode(second)];
        // Without a head no zone was ever marked. If both have rotted, a page that a crash has left without its sum
        // shows as corrupt.
        let Some(head) = heads.into_iter().flatten().max_by_key(|head| head.version) else { return Ok(()) };
        self.version = Mutex::new(head.version);
        let stale = Zone { is_marked: true, is_stale: true, ..Zone::default() };
        self.zones = Mutex::new(head.marked.into_iter().map(|zone| (zone, stale)).collect());
        Ok(())
    }

    /// Cuts the pages of sums behind those of the first `pages` pages of the part.
    fn cut_file(&self, pages: u64) -> Result<()> {
        let file = self.file()?;
        let failed = |error| Error::io("cut", file.full_path(), error);
        let end = (HEADS + pages.div_ceil(CHUNK_PAGES)) * PAGE_BYTES as u64;
        if file.fs().len(file.handle()).map_err(failed)? > end {
            file.fs().set_len(file.handle(), end).map_err(failed)?;
        }
        Ok(())
    }

    /// The sum of a page of the part. `None` if it is not in memory.
    pub fn sum(&self, page: u64) -> Option<u32> {
        read(&self.chunks).get(&(page / CHUNK_PAGES)).map(|chunk| chunk.get(page % CHUNK_PAGES))
    }

    /// Replaces the sum of a page, if it is in memory.
    pub fn set(&self, page: u64, sum: u32) {
        if let Some(chunk) = read(&self.chunks).get(&(page / CHUNK_PAGES)) {
            chunk.set(page % CHUNK_PAGES, sum);
        }
    }

    /// Takes the sums of the first pages of the file, which begin with this page. They were durable elsewhere, and are
    /// here. Their zone is marked, unless `is_draft` says that it need not be. The part is new.
    pub fn take_first(&self, first: u64, sums: impl Iterator<Item = u32>, is_draft: bool) -> Result<()> {
        let zone = first / ZONE_PAGES;
        if is_draft {
            lock(&self.zones).entry(zone).or_default();
        } else {
            self.mark(BTreeSet::from([zone]))?;
        }
        let mut chunks = write(&self.chunks);
        for (page, sum) in (first..).zip(sums) {
            chunks.entry(page / CHUNK_PAGES).or_default().set(page % CHUNK_PAGES, sum);
        }
        Ok(())
    }

    /// Brings the sum of a page to memory. `sum_of` makes the sum of a page of the part.
    pub fn load(&self, page: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        self.chunk(page / CHUNK_PAGES, sum_of).map(drop)
    }

    fn chunk(&self, number: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<Arc<Chunk>> {
        if let Some(chunk) = read(&self.chunks).get(&number) {
            return Ok(Arc::clone(chunk));
        }
        let _loading = lock(&self.loads);
        if let Some(chunk) = read(&self.chunks).get(&number) {
            return Ok(Arc::clone(chunk));
        }
        let is_stale = lock(&self.zones).get(&(number / ZONE_CHUNKS)).is_some_and(|zone| zone.is_stale);
        let chunk = if is_stale { self.remake(number, sum_of)? } else { self.read_chunk(number)? };
        let chunk = Arc::new(chunk);
        write(&self.chunks).insert(number, Arc::clone(&chunk));
        Ok(chunk)
    }

    fn read_chunk(&self, number: u64) -> Result<Chunk> {
        let Some(file) = &self.file else { return Ok(Chunk::default()) };
        let mut bytes = vec![0; PAGE_BYTES];
        let offset = (HEADS + number) * PAGE_BYTES as u64;
        read_there(file, &mut bytes, offset)?;
        Chunk::decode(&self.identity, self.part, number, &bytes).ok_or_else(|| {
            let (first, end) = (number * CHUNK_PAGES, (number + 1) * CHUNK_PAGES);
            let why = format!(
                "the page of sums at offset {offset} is damaged, so pages {first} to {end} of the part beside it cannot be \
                 proved"
            );
            Error::corrupt(file.full_path(), why)
        })
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
        for page in (first..end).step_by(REMAKE_PAGES) {
            let (pages, offset) = ((end - page).min(REMAKE_PAGES as u64), page * PAGE_BYTES as u64);
            let bytes = &mut buffer.as_mut_slice()[..pages as usize * PAGE_BYTES];
            bytes.fill(0);
            read_there(data, bytes, offset)?;
            for (at, bytes) in (page..).zip(bytes.chunks(PAGE_BYTES)) {
                chunk.set(at - first, sum_of(at, bytes));
            }
        }
        Ok(chunk)
    }

    /// A write to zones begins. They are marked before this returns, unless `is_draft` says that they need not be.
    /// `epoch` is the present one.
    pub fn begin(&self, zones: &BTreeSet<u64>, epoch: impl Fn() -> u64, marks: impl Fn() -> bool) -> Result<()> {
        loop {
            let unmarked = {
                let mut all = lock(&self.zones);
                // Under the lock: the end of a draft marks those that are busy.
                let marks = marks();
                let is_unmarked = |zone: &&u64| marks && !all.get(zone).is_some_and(|zone| zone.is_marked);
                let unmarked: BTreeSet<u64> = zones.iter().filter(is_unmarked).copied().collect();
                if unmarked.is_empty() {
                    for zone in zones {
                        let zone = all.entry(*zone).or_default();
                        (zone.busy, zone.last) = (zone.busy + 1, epoch());
                    }
                    return Ok(());
                }
                unmarked
            };
            self.mark(unmarked)?;
        }
    }

    /// The end of a write.
    pub fn end(&self, zones: &BTreeSet<u64>, epoch: impl Fn() -> u64) {
        let mut all = lock(&self.zones);
        for zone in zones {
            let zone = all.entry(*zone).or_default();
            (zone.busy, zone.last) = (zone.busy.saturating_sub(1), epoch());
        }
    }

    /// Marks zones durably.
    fn mark(&self, zones: BTreeSet<u64>) -> Result<()> {
        let mut version = lock(&self.version);
        let mut marked = self.marked();
        if zones.is_subset(&marked) {
            return Ok(());
        }
        marked.extend(&zones);
        self.file()?.durably(|| self.write_head(&mut version, marked))?;
        let mut all = lock(&self.zones);
        for zone in zones {
            all.entry(zone).or_default().is_marked = true;
        }
        Ok(())
    }

    /// Marks the zones of a draft that writes are under way to. `all` marks those, too, to which they have ended.
    pub fn end_draft(&self, all: bool) -> Result<()> {
        let zones = lock(&self.zones).iter().filter(|(_, zone)| all || zone.busy > 0).map(|(zone, _)| *zone).collect();
        self.mark(zones)
    }

    fn marked(&self) -> BTreeSet<u64> {
        lock(&self.zones).iter().filter(|(_, zone)| zone.is_marked).map(|(zone, _)| *zone).collect()
    }

    fn write_head(&self, version: &mut u64, marked: BTreeSet<u64>) -> Result<()> {
        let file = self.file()?;
        let head = Head { version: *version + 1, marked };
        let offset = Head::place(head.version) * PAGE_BYTES as u64;
        let bytes = head.encode(&self.identity, self.part);
        let written = file.fs().write_at(file.handle(), &bytes, offset);
        written.map_err(failed_at("write", file, offset))?;
        *version = head.version;
        Ok(())
    }

    /// Whether an earlier opening has left zones marked.
    pub fn is_stale(&self) -> bool {
        lock(&self.zones).values().any(|zone| zone.is_stale)
    }

    /// Makes zones clean. The pages that were written to them before the epoch are durable. `pages` is how many the
    /// part has.
    pub fn settle(&self, which: Settling, pages: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let ready: BTreeMap<u64, Zone> = {
            let is_ready = |zone: &Zone| zone.busy == 0 && zone.last < which.before;
            lock(&self.zones).iter().filter(|(_, zone)| is_ready(zone)).map(|(at, zone)| (*at, *zone)).collect()
        };
        if ready.is_empty() {
            return Ok(());
        }
        let mut version = lock(&self.version);
        let end = pages.div_ceil(CHUNK_PAGES);
        if ready.values().any(|zone| zone.is_stale) {
            // What a crash has left behind the part's end must not come back when it grows.
            self.cut_file(pages)?;
        }
        let written = self.write_zones(&ready, end, &sum_of);
        written.inspect_err(|_| self.put_back(&ready))?;
        let is_named = {
            let mut all = lock(&self.zones);
            let mut is_named = false;
            for at in ready.into_keys() {
                // A write that has begun meanwhile keeps its zone as it is.
                if all.get(&at).is_some_and(|zone| zone.busy == 0 && zone.last < which.before) {
                    is_named |= all.remove(&at).is_some_and(|zone| zone.is_marked);
                }
            }
            is_named
        };
        // It needs no flush: the head before names more zones.
        if is_named { self.write_head(&mut version, self.marked()) } else { Ok(()) }
    }

    /// Makes the sums of zones durable. `end` is the first page of sums behind the part.
    fn write_zones(&self, zones: &BTreeMap<u64, Zone>, end: u64, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let chunks = |at: u64| at * ZONE_CHUNKS..((at + 1) * ZONE_CHUNKS).min(end);
        let write = |(at, zone): (&u64, &Zone)| self.write_sums(chunks(*at), zone.is_stale, &sum_of);
        self.file()?.durably(|| zones.iter().try_for_each(write))
    }

    /// After a failure it is not known which pages of sums are durable: the next time they are written again.
    fn put_back(&self, zones: &BTreeMap<u64, Zone>) {
        for (number, chunk) in read(&self.chunks).iter() {
            if zones.contains_key(&(number / ZONE_CHUNKS)) {
                chunk.is_dirty.store(true, Ordering::Release);
            }
        }
    }

    /// Writes the pages of sums that differ from what is on the drive.
    fn write_sums(&self, chunks: Range<u64>, is_stale: bool, sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let (mut run, mut start) = (Vec::new(), chunks.start);
        for number in chunks {
            let chunk =
                if is_stale { Some(self.chunk(number, &sum_of)?) } else { read(&self.chunks).get(&number).cloned() };
            let Some(chunk) = chunk.filter(|chunk| is_stale || chunk.is_dirty.load(Ordering::Acquire)) else {
                self.write_run(&mut run, start)?;
                continue;
            };
            // Before its sums are read: one that changes behind this is written again.
            chunk.is_dirty.store(false, Ordering::SeqCst);
            if run.is_empty() {
                start = number;
            }
            let at = run.len();
            run.resize(at + PAGE_BYTES, 0);
            chunk.encode(&self.identity, self.part, number, &mut run[at..]);
        }
        self.write_run(&mut run, start)
    }

    /// Writes pages of sums, from the page with this number on.
    fn write_run(&self, run: &mut Vec<u8>, start: u64) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        let (file, offset) = (self.file()?, (HEADS + start) * PAGE_BYTES as u64);
        let written = file.fs().write_at(file.handle(), run, offset);
        written.map_err(failed_at("write", file, offset))?;
        run.clear();
        Ok(())
    }

    /// The pages in these ranges, which go up, are to become zeros, and the part ends with the last of them. Marks
    /// their zones, and loads the sums that share a page of sums with others. Nothing is in flight.
    pub fn begin_cut(&self, ranges: &[Range<u64>], sum_of: impl Fn(u64, &[u8]) -> u32) -> Result<()> {
        let Some(end) = ranges.last().map(|range| range.end) else { return Ok(()) };
        // An empty range stands for a page that is cut within.
        let zones = |range: &Range<u64>| range.start / ZONE_PAGES..range.end.max(range.start + 1).div_ceil(ZONE_PAGES);
        self.mark(ranges.iter().flat_map(zones).collect())?;
        let chunks = |range: &Range<u64>| range.start / CHUNK_PAGES..range.end.div_ceil(CHUNK_PAGES);
        for number in ranges.iter().flat_map(chunks) {
            let (first, behind) = (number * CHUNK_PAGES, (number + 1) * CHUNK_PAGES);
            let is_whole = ranges.iter().any(|range| range.start <= first && (range.end >= behind || range.end == end));
            // What lies behind the last page that stays goes as a whole.
            if !is_whole {
                self.chunk(number, &sum_of)?;
            }
        }
        Ok(())
    }

    /// It is not known what the pages in these ranges have.
    pub fn forget(&self, ranges: &[Range<u64>]) {
        for (number, chunk) in read(&self.chunks).iter() {
            let first = number * CHUNK_PAGES;
            for range in ranges {
                let pages = range.start.max(first)..range.end.min(first + CHUNK_PAGES);
                pages.for_each(|page| chunk.set(page - first, UNKNOWN));
            }
        }
    }

    /// They are zeros now.
    pub fn end_cut(&self, ranges: &[Range<u64>]) -> Result<()> {
        let Some(last) = ranges.last() else { return Ok(()) };
        self.cut_file(last.start)?;
        let end = last.start.div_ceil(CHUNK_PAGES);
        let mut chunks = write(&self.chunks);
        chunks.retain(|number, _| *number < end);
        for range in ranges {
            for number in range.start / CHUNK_PAGES..range.end.div_ceil(CHUNK_PAGES).min(end) {
                let first = number * CHUNK_PAGES;
                // One that is not in memory is of pages that all become zeros.
                let chunk = chunks.entry(number).or_default();
                let pages = range.start.max(first)..range.end.min(first + CHUNK_PAGES);
                pages.for_each(|page| chunk.set(page - first, NONE));
            }
        }
        Ok(())
    }
}

/// Reads what a file has from an offset on, and leaves the memory behind its end as it is. An error if the drive returns
/// less: zeros in place of sums would make every page wrong, and would stay.
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
