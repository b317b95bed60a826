//! [`ArrayParts`]: the places of the bytes of an array's file and of their sums, as a [`Backing`]. Non-goals: changes
//! of the size of parts (`room`), and the sums themselves (`sums`).
//!
//! A new file has no place until it first grows. Up to one block, and at most 64 KiB, its bytes are in pages of a
//! shared part (C34). A longer file has parts. Its record says so durably before the parts are made (C22), and a
//! missing part is an empty one.
//!
//! Rules:
//! 1. A file has up to three places, one after the other: the pages that it first needs, the most pages of a small
//!    file, and parts. It never returns to an earlier place.
//! 2. It gets its first place while it is empty. The next sync that publishes a length publishes that place, too. Pages
//!    that no record names are freed when the file is closed.
//! 3. It moves to the next place with the gate closed: its bytes are copied. The copy is durable, and then the record,
//!    before the first write to the new place. So writes that have ended survive the end of the process.
//! 4. Bytes past the length read as zero in every place. A first write without the cache fills its pages (`first`).

use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};

use super::backing::{Backing, BackingKind, FirstPlace, Pages, Part, Place};
use super::mark::Mark;
use super::sums::{NONE, OpenSums, Opening, PartSums, Sums, SumsMemory, UNKNOWN, Writing};
use crate::catalog::{Catalog, Draft, Extent, PARTS, Record, SUMS_IN_PARTS, SharedPart, is_full, part_path, sums_path};
use crate::drive::PAGE_BYTES;
use crate::engine::FileRef;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::layout::{Layout, Map};
use crate::sys::fs::{Access, DriveFile, Handle, sync_dir};
use crate::sys::fsyncs::{Earliest, Since};
use crate::sys::memory::PageBuf;
use crate::sys::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Most pages of a small file.
const SMALL_MAX_PAGES: u64 = 16;
/// Places of a file (rule 1).
const PLACES_MAX: usize = 3;

/// An open file of an array: its layout and its place.
#[derive(Debug)]
pub struct ArrayParts {
    catalog: Arc<Catalog>,
    record: Arc<Record>,
    sums: Option<Arc<Sums>>,
    /// The draft of a nameless file, in place of records until the file has a name (C40).
    draft: Option<Arc<Draft>>,
    map: Map,
    block_bytes: u64,
    /// Set under `FileState::grow`, or before the file is shared.
    places: [OnceLock<FilePlace>; PLACES_MAX],
    /// The number of places that it has had. The last one holds its bytes.
    count: AtomicUsize,
    /// Whether the record names the first of them (rule 2).
    is_published: AtomicBool,
    /// The moment before parts got names that may not be durable. Such parts were made by this opening, or no durable
    /// length needs them, so an earlier opening may have ended before it synced them.
    new_names: Earliest,
}

/// A place of a file.
#[derive(Debug)]
struct FilePlace {
    parts: Box<[Part]>,
    /// The pages of a small file, and the shared part that has them.
    small: Option<(Extent, Arc<SharedPart>)>,
    /// The sums of parts, until the file has this place.
    sums: Option<Box<[OpenSums]>>,
}

impl FilePlace {
    fn in_pages(pages: Pages) -> FilePlace {
        FilePlace { parts: [pages.part].into(), small: Some((pages.extent, pages.shared)), sums: None }
    }

    fn extent(&self) -> Option<Extent> {
        self.small.as_ref().map(|(extent, _)| *extent)
    }
}

/// Bytes from the start of a shared part to an extent.
fn start_of(extent: Extent) -> u64 {
    u64::from(extent.page) * PAGE_BYTES as u64
}

fn bytes_of(extent: Extent) -> u64 {
    u64::from(extent.pages) * PAGE_BYTES as u64
}

impl ArrayParts {
    /// Opens the place of the file.
    pub fn open(
        exec: &Exec,
        catalog: &Arc<Catalog>,
        record: &Arc<Record>,
        draft: Option<Arc<Draft>>,
        memory: &Arc<SumsMemory>,
    ) -> Result<ArrayParts> {
        let map = Map::new(record.layout, &record.weights, record.key)?;
        let parts = ArrayParts {
            catalog: Arc::clone(catalog),
            record: Arc::clone(record),
            sums: Sums::new(catalog, record, draft.as_ref(), &map, memory).map(Arc::new),
            draft,
            map,
            block_bytes: u64::from(record.block_bytes),
            places: Default::default(),
            count: AtomicUsize::new(0),
            is_published: AtomicBool::new(true),
            new_names: Earliest::new(None),
        };
        match record.extent {
            Some(extent) => {
                let pages = parts.open_pages(exec, extent, record.length > 0)?;
                // A write into lost pages would make other lost files of the part read as zeros.
                let bytes = if catalog.is_writer() { bytes_of(extent) } else { record.length };
                pages.shared.check_has(start_of(extent) + bytes)?;
                parts.hold(FilePlace::in_pages(pages));
                parts.remake_small(record.length)?;
            }
            // After a crash, the parts of a file that was about to move may exist. They are empty (C22).
            None if record.has_parts => parts.hold(parts.open_parts(exec, record.length)?),
            None => {}
        }
        parts.is_published.store(parts.count() > 0, Ordering::Relaxed);
        Ok(parts)
    }

    fn count(&self) -> usize {
        // Acquire: pairs with the Release in `hold`.
        self.count.load(Ordering::Acquire)
    }

    fn now(&self) -> Option<&FilePlace> {
        self.places.get(self.count().wrapping_sub(1))?.get()
    }

    /// Makes this the place of the file. The caller lets no other thread do this.
    fn hold(&self, mut held: FilePlace) {
        let count = self.count();
        if let (Some(own), Some(sums)) = (&self.sums, held.sums.take()) {
            own.take_parts(sums);
        }
        let _set_once = self.places[count].set(held);
        // Release: pairs with the Acquire in `count`.
        self.count.store(count + 1, Ordering::Release);
    }

    /// Most bytes in pages of a shared part.
    fn small_max(&self) -> u64 {
        self.block_bytes.min(SMALL_MAX_PAGES * PAGE_BYTES as u64)
    }

    /// The first block of the file: the position of its drive, and its number there.
    fn first_block(&self) -> (usize, u64) {
        let placement = self.map.place(0);
        (usize::from(placement.drive), placement.block)
    }

    fn open_pages(&self, exec: &Exec, extent: Extent, holds_bytes: bool) -> Result<Pages> {
        let shared = self.catalog.shared_part(extent.drive, extent.shared, exec.align(extent.drive))?;
        let part = Part {
            open: Some(Arc::clone(shared.open())),
            file: shared.file_ref(|| exec.next_key()),
            drive: extent.drive,
            align: shared.align(),
            reserved: AtomicU64::new(bytes_of(extent)),
            mark: Mark::in_shared(holds_bytes, shared.open().fs().fsync_failures(), Arc::clone(shared.fsyncs())),
        };
        Ok(Pages { part, extent, shared })
    }

    /// Pages for a file of `bytes` bytes.
    fn give_pages(&self, exec: &Exec, bytes: u64) -> Result<FirstPlace> {
        let drive = self.record.drives[self.first_block().0];
        let pages = bytes.div_ceil(PAGE_BYTES as u64) as u16;
        let given = self.catalog.give_pages(drive, pages, exec.align(drive))?;
        let opened = self.open_pages(exec, given.extent, false);
        let pages = opened.inspect_err(|_| self.catalog.take_pages_back(given.extent))?;
        Ok(FirstPlace::new(&self.catalog, pages, given.is_zero))
    }

    /// `give_pages` as a place. The pages read as zero.
    fn new_pages(&self, exec: &Exec, bytes: u64) -> Result<FilePlace> {
        let place = self.give_pages(exec, bytes)?;
        if !place.is_zero {
            let (part, start) = place.place();
            write_zeros(part, start, part.has())?;
        }
        Ok(FilePlace::in_pages(place.take()))
    }

    /// Records durably that the file has parts, and makes them. All are empty.
    fn new_parts(&self, exec: &Exec) -> Result<FilePlace> {
        if !self.catalog.has_announced(self.record.number) {
            self.refuse_other_parts()?;
        }
        match &self.draft {
            Some(draft) => self.catalog.announce_draft(draft)?,
            None => self.catalog.announce_parts(self.record.number)?,
        }
        let held = self.open_parts(exec, 0)?;
        // An earlier writer may have died before its record named these parts.
        for part in held.parts.iter().filter(|part| part.has() > 0) {
            let open = part.open()?;
            open.fs().set_len(open.handle(), 0).map_err(|e| Error::io("cut", part.path(), e))?;
            part.reserved.store(0, Ordering::Relaxed);
        }
        held.sums.iter().flatten().try_for_each(|part| part.clear())?;
        Ok(held)
    }

    /// A part that exists before its record belongs to a file that is not in the catalog any more (C24). It is kept.
    fn refuse_other_parts(&self) -> Result<()> {
        let path = part_path(self.record.number);
        for &drive in &self.record.drives {
            let Some(drive) = self.catalog.drives().get(usize::from(drive)) else { continue };
            match DriveFile::open(&drive.fs, &path, Access::READ) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::in_array("look for", drive.fs.root().join(&path), error)),
                Ok(found) => {
                    let why = format!(
                        "a part with the number of {:?} is there, and this file has none yet: the catalog was once newer, or the part is \
                         a copy. It is kept, so this file cannot grow",
                        self.name()
                    );
                    return Err(Error::corrupt(found.full_path(), why)
                        .advise("check the array, move the part away if it is not missed, and write the file again"));
                }
            }
        }
        Ok(())
    }

    /// Opens the parts of a file that is `len` bytes long. A writer makes those that are missing and empty.
    fn open_parts(&self, exec: &Exec, len: u64) -> Result<FilePlace> {
        let path = part_path(self.record.number);
        let mut parts = Vec::with_capacity(self.record.drives.len());
        for (index, &drive) in self.record.drives.iter().enumerate() {
            let holds_bytes = self.map.part_bytes(index as u16, len, self.record.block_bytes) > 0;
            parts.push(self.open_part(exec, drive, &path, holds_bytes)?);
        }
        let sums = self.sums.as_ref().map(|sums| self.open_sums(sums, &parts, len)).transpose()?;
        Ok(FilePlace { parts: parts.into(), small: None, sums })
    }

    fn open_part(&self, exec: &Exec, drive: u16, path: &str, holds_bytes: bool) -> Result<Part> {
        let (catalog, record) = (&self.catalog, &self.record);
        let Some(place) = catalog.drives().get(usize::from(drive)) else {
            let what = format!("drive {drive} in the record of {:?}", record.name);
            return Err(Error::invalid(what, "the array has no such drive"));
        };
        let whole_path = || place.fs.location().join("iomill").join(path);
        let align = exec.align(drive);
        let access = if catalog.is_writer() { Access::WRITE } else { Access::READ };
        let access = Access { direct: align.is_direct(), ..access };
        let since = Since::now();
        let mut opened = DriveFile::open(&place.fs, path, access);
        let is_missing = opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound);
        if is_missing && holds_bytes {
            let why = format!("the drive has lost its part of {:?}", record.name);
            return Err(Error::corrupt(whole_path(), why));
        }
        if is_missing && !catalog.is_writer() {
            let file = FileRef { handle: Handle(-1), key: exec.next_key() };
            let (reserved, mark) = (AtomicU64::new(0), Mark::new(false, place.fs.fsync_failures()));
            return Ok(Part { open: None, file, drive, align, reserved, mark });
        }
        if is_missing {
            opened = DriveFile::open(&place.fs, path, Access { create: true, ..access });
        }
        if !holds_bytes {
            self.new_names.note(since);
        }
        let mut open = opened.map_err(|e| Error::in_array("open", whole_path(), e))?;
        let own = place.fs.alignment(open.handle()).map_err(|e| Error::in_array("examine", whole_path(), e))?;
        if own != align {
            // A file may differ from others of its drive (encrypted, journalled, inline). The queue aligns pieces by
            // its drive, and buffered I/O takes them all.
            let buffered = Access { direct: false, ..access };
            open = DriveFile::open(&place.fs, path, buffered).map_err(|e| Error::in_array("open", whole_path(), e))?;
        }
        let reserved = place.fs.len(open.handle()).map_err(|e| Error::in_array("measure", whole_path(), e))?;
        let file = FileRef { handle: open.handle(), key: exec.next_key() };
        let (reserved, mark) = (AtomicU64::new(reserved), Mark::new(holds_bytes, place.fs.fsync_failures()));
        Ok(Part { open: Some(Arc::new(open)), file, drive, align, reserved, mark })
    }

    /// Copies the first `len` bytes to another place, in whole pages.
    fn copy(&self, from: &FilePlace, to: &FilePlace, len: u64) -> Result<()> {
        let bytes = len.next_multiple_of(PAGE_BYTES as u64);
        if from.small.is_none() || bytes == 0 {
            return Ok(());
        }
        let buffer = read_pages(from, bytes)?;
        if let Some(sums) = &self.sums {
            for (page, bytes) in (0..).zip(buffer.as_slice().chunks(PAGE_BYTES)) {
                sums.check_small(page, bytes).map_err(|_| self.wrong_page(&from.parts[0], page))?;
            }
        }
        let (part, at) = match to.extent() {
            Some(extent) => (&to.parts[0], start_of(extent)),
            None => {
                let (part, block) = self.first_block();
                (&to.parts[part], block * self.block_bytes)
            }
        };
        let open = part.open()?;
        if to.small.is_none() {
            let pages = at / PAGE_BYTES as u64..(at + bytes) / PAGE_BYTES as u64;
            let sums = to.sums.as_ref().and_then(|sums| sums.get(self.first_block().0));
            let make = || {
                sums.map_or(Ok(()), |sums| sums.reserve(pages.clone()))?;
                let made = open.fs().allocate(open.handle(), 0, at + bytes);
                made.map_err(|e| Error::io("make room in", part.path(), e))
            };
            match make() {
                Err(error) if is_full(&error) && self.catalog.make_space(part.drive) => make(),
                made => made,
            }?;
            part.reserved.store(at + bytes, Ordering::Relaxed);
        }
        let write = || open.fs().write_at(open.handle(), buffer.as_slice(), at).map_err(failed_at("write", part, at));
        match &to.small {
            Some((_, shared)) => shared.durably(write),
            None => open.durably(write),
        }
    }

    /// Makes the names of new parts durable.
    fn sync_names(&self, held: &FilePlace) -> Result<()> {
        let Some(since) = self.new_names.take() else { return Ok(()) };
        let mut open = held.parts.iter().filter_map(|part| part.open.as_ref());
        let synced = open.try_for_each(|open| sync_dir(&**open.fs(), PARTS, since));
        // If descriptors were lacking, the next sync tries again. After a failed fsync, which may have lost the names,
        // the next one fails, too.
        synced.inspect_err(|_| self.new_names.note(since))
    }
}

/// The first pages of a small file, from its place.
fn read_pages(held: &FilePlace, bytes: u64) -> Result<PageBuf> {
    let mut buffer = PageBuf::new(bytes as usize).map_err(Error::memory("moving a small file", bytes))?;
    let Some(extent) = held.extent() else { return Ok(buffer) };
    held.parts[0].read_whole(start_of(extent), buffer.as_mut_slice())?;
    Ok(buffer)
}

impl ArrayParts {
    /// The file's pages, if no record names them.
    fn unpublished(&self) -> Option<Extent> {
        let extent = self.now().and_then(FilePlace::extent)?;
        let is_named = self.is_published.load(Ordering::Relaxed)
            || self.draft.as_ref().is_some_and(|draft| draft.has_published(extent));
        (!is_named).then_some(extent)
    }

    /// Opens the sums of parts, as `open_parts` does the parts.
    fn open_sums(&self, sums: &Sums, parts: &[Part], len: u64) -> Result<Box<[OpenSums]>> {
        let path = sums_path(self.record.number);
        let open = |(index, part): (usize, &Part)| {
            let drive = self.catalog.drives().get(usize::from(part.drive));
            let no_drive = || Error::invalid(format!("drive {}", part.drive), "the array has no such drive");
            let opening = Opening {
                fs: &drive.ok_or_else(no_drive)?.fs,
                path: &path,
                is_writer: self.catalog.is_writer(),
                used: self.map.part_bytes(index as u16, len, self.block_bytes as u32).div_ceil(PAGE_BYTES as u64),
                pages: part.has().div_ceil(PAGE_BYTES as u64),
                memory: sums.memory(),
            };
            PartSums::open(*sums.identity(), index, part.open.as_ref(), &opening)
        };
        parts.iter().enumerate().map(open).collect()
    }

    /// Recomputes the sums of a small file, if a crash has made them doubtful (C60).
    fn remake_small(&self, len: u64) -> Result<()> {
        let Some((sums, small)) = self.sums.as_ref().and_then(|sums| Some((sums, sums.small()?))) else {
            return Ok(());
        };
        let bytes = len.next_multiple_of(PAGE_BYTES as u64);
        let Some(held) = self.now().filter(|_| bytes > 0 && small.is_unknown()) else { return Ok(()) };
        let Some(extent) = held.extent() else { return Ok(()) };
        let mut buffer = PageBuf::new(PAGE_BYTES).map_err(Error::memory("making sums anew", PAGE_BYTES as u64))?;
        for page in 0..bytes / PAGE_BYTES as u64 {
            let at = start_of(extent) + page * PAGE_BYTES as u64;
            let sum = match held.parts[0].read_whole(at, buffer.as_mut_slice()) {
                // A sector that cannot be read concerns its own page.
                Err(error @ Error::Io { .. }) if !error.passes() => UNKNOWN,
                read => read.map(|()| sums.identity().sum(page, buffer.as_slice()))?,
            };
            small.set(page, sum);
        }
        Ok(())
    }

    /// A page of a small file that is not what was written.
    fn wrong_page(&self, part: &Part, page: u64) -> Error {
        let offset = self.now().and_then(FilePlace::extent).map_or(0, start_of) + page * PAGE_BYTES as u64;
        Error::CorruptPage { file: self.name().to_owned(), page, drive: part.drive, path: part.path(), offset }
    }

    /// Calls `record` with the sums of the present place as a record of `len` bytes has them.
    fn with_sums<R>(&self, len: u64, record: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let Some(sums) = &self.sums else { return record(None) };
        match sums.small() {
            Some(small) => small.record(len.div_ceil(PAGE_BYTES as u64), |field| record(Some(field))),
            None => record(Some(&[SUMS_IN_PARTS])),
        }
    }

    /// Moves the sums of the first `len` bytes of a small file to the place `to`. Calls `record` with the sums as a
    /// record of that place has them. Nothing is in flight.
    fn move_sums(&self, to: &FilePlace, len: u64, record: impl FnOnce(Option<&[u8]>) -> Result<()>) -> Result<()> {
        let Some(sums) = &self.sums else { return record(None) };
        let (pages, Some(small)) = (len.div_ceil(PAGE_BYTES as u64), sums.small()) else { return record(None) };
        let Some(parts) = &to.sums else { return small.record_moved(pages, |field| record(Some(field))) };
        let (part, block) = self.first_block();
        let first = block * self.block_bytes / PAGE_BYTES as u64;
        if let Some(part) = parts.get(part).filter(|_| pages > 0) {
            let own: Vec<u32> = (0..pages).map(|page| small.sum(page)).collect();
            part.take_first(first, &own, !sums.marks())?;
        }
        record(Some(&[SUMS_IN_PARTS]))
    }

    /// Before a move: makes the record name the present place, if an earlier move has failed with an unknown outcome.
    /// Otherwise a crash could leave the file in the other place, which this move makes anew.
    fn name_again(&self, from: &FilePlace, len: u64) -> Result<()> {
        let names_it = |record: Arc<Record>| record.extent == from.extent();
        if self.unpublished().is_some() || self.catalog.numbered(self.record.number).is_none_or(names_it) {
            return Ok(());
        }
        self.with_sums(len, |sums| self.catalog.publish_move(self.record.number, from.extent(), sums))
    }

    fn draft_has_no_name(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.is_unpublished())
    }

    fn publish_with(&self, len: u64, sums: Option<&[u8]>) -> Result<()> {
        let held = self.now();
        let extent = held.and_then(FilePlace::extent);
        if self.draft.as_ref().is_some_and(|draft| draft.note_length(len, extent, sums)) {
            return Ok(());
        }
        let published = self.catalog.publish(self.record.number, len, extent, sums);
        // If the outcome is unknown, the record may name the pages, and so no other file may get them.
        let is_named = matches!(published, Ok(()) | Err(Error::OutcomeUnknown { .. }));
        if held.is_some() && is_named {
            self.is_published.store(true, Ordering::Relaxed);
        }
        published
    }

    /// Makes the bytes of a small file past `len` read as zero.
    fn clear_pages_beyond(&self, len: u64) -> Result<()> {
        let Some(held) = self.now() else { return Ok(()) };
        let Some(extent) = held.extent().filter(|extent| len < bytes_of(*extent)) else { return Ok(()) };
        let within = (len % PAGE_BYTES as u64) as usize;
        let first = len - within as u64;
        let bytes = (bytes_of(extent) - first) as usize;
        let mut buffer = PageBuf::new(bytes).map_err(Error::memory("clearing pages", bytes as u64))?;
        let (part, at) = (&held.parts[0], start_of(extent) + first);
        let open = part.open()?;
        let number = first / PAGE_BYTES as u64;
        let mut writing = None;
        if within > 0 {
            let page = &mut buffer.as_mut_slice()[..PAGE_BYTES];
            part.read_whole(at, page)?;
            if let Some(sums) = &self.sums {
                sums.check_small(number, page).map_err(|_| self.wrong_page(part, number))?;
            }
            page[within..].fill(0);
            if let Some(sums) = &self.sums {
                writing = Some(Writing::begin(sums, vec![(number, sums.identity().sum(number, page))])?);
            }
        }
        let since = Since::now();
        open.fs().write_at(open.handle(), buffer.as_slice(), at).map_err(failed_at("clear", part, at))?;
        part.mark.set(since);
        if let Some(writing) = writing {
            writing.all_written();
        }
        if let Some(small) = self.sums.as_ref().and_then(|sums| sums.small()) {
            (number + u64::from(within > 0)..u64::from(extent.pages)).for_each(|page| small.set(page, NONE));
        }
        Ok(())
    }
}

impl Drop for ArrayParts {
    /// Nothing is in flight.
    fn drop(&mut self) {
        self.unpublished().into_iter().for_each(|extent| self.catalog.take_pages_back(extent));
    }
}

/// The error of a call at an offset of a part.
fn failed_at<'a>(action: &'static str, part: &'a Part, offset: u64) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: part.path(), offset: Some(offset), source }
}

/// Zeros in whole pages.
fn write_zeros(part: &Part, at: u64, bytes: u64) -> Result<()> {
    let zeros = PageBuf::new(bytes as usize).map_err(Error::memory("clearing pages", bytes))?;
    let (open, since) = (part.open()?, Since::now());
    open.fs().write_at(open.handle(), zeros.as_slice(), at).map_err(failed_at("clear", part, at))?;
    part.mark.set(since);
    Ok(())
}

impl Backing for ArrayParts {
    fn kind(&self) -> BackingKind {
        BackingKind::Parts
    }

    /// Only one process at a time writes to an array.
    fn is_known(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        self.draft.as_ref().and_then(|draft| draft.name()).unwrap_or(&self.record.name)
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn parts(&self) -> &[Part] {
        self.now().map_or(&[], |held| &held.parts)
    }

    fn is_small(&self) -> bool {
        self.now().is_some_and(|held| held.small.is_some())
    }

    fn make_place(&self, exec: &Exec, end: u64) -> Result<()> {
        if self.count() == 0 && end > 0 {
            self.hold(if end <= self.small_max() { self.new_pages(exec, end)? } else { self.new_parts(exec)? });
        }
        Ok(())
    }

    fn give_first(&self, exec: &Exec, bytes: u64) -> Result<Option<FirstPlace>> {
        if self.count() > 0 || bytes > self.small_max() {
            return Ok(None);
        }
        self.give_pages(exec, bytes).map(Some)
    }

    fn take_first(&self, place: FirstPlace) -> bool {
        if self.count() > 0 {
            return false;
        }
        place.place().0.mark.set(place.since);
        self.hold(FilePlace::in_pages(place.take()));
        true
    }

    fn must_move(&self, end: u64) -> bool {
        self.now().and_then(FilePlace::extent).is_some_and(|extent| end > bytes_of(extent))
    }

    fn move_for(&self, exec: &Exec, len: u64, end: u64) -> Result<()> {
        let Some(from) = self.now() else { return Ok(()) };
        if from.small.is_none() {
            return Ok(());
        }
        self.name_again(from, len)?;
        let is_small = end <= self.small_max();
        let to = if is_small { self.new_pages(exec, self.small_max())? } else { self.new_parts(exec)? };
        let copied = self.copy(from, &to, len).and_then(|()| self.sync_names(&to));
        if let Err(error) = copied {
            to.extent().into_iter().for_each(|extent| self.catalog.take_pages_back(extent));
            return Err(error);
        }
        let mut left = None;
        let moved = self.move_sums(&to, len, |sums| {
            if self.draft.as_ref().is_some_and(|draft| draft.note_place(to.extent(), sums)) {
                left = from.extent();
                return Ok(());
            }
            left = self.unpublished();
            self.catalog.publish_move(self.record.number, to.extent(), sums)?;
            self.is_published.store(true, Ordering::Relaxed);
            Ok(())
        });
        if let Err(error) = moved {
            // If the outcome is unknown, the record may name the old pages or the new ones, so none are freed.
            let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
            to.extent().filter(|_| !is_unknown).into_iter().for_each(|extent| self.catalog.take_pages_back(extent));
            return Err(error);
        }
        left.into_iter().for_each(|extent| self.catalog.take_pages_back(extent));
        self.hold(to);
        Ok(())
    }

    fn find_space(&self, part: usize) -> bool {
        self.parts().get(part).is_some_and(|part| self.catalog.make_space(part.drive))
    }

    fn clear_beyond(&self, len: u64) -> Result<()> {
        self.clear_pages_beyond(len)
    }

    fn sync_shared(&self, stamp: u64) -> Option<Result<()>> {
        let (_, shared) = self.now()?.small.as_ref()?;
        Some(shared.fsync(stamp))
    }

    fn sync_changes(&self) -> Result<()> {
        // A publication that syncs its content must not wait for earlier changes of names.
        if self.draft.as_ref().is_some_and(|draft| draft.is_unpublished()) {
            return Ok(());
        }
        self.catalog.sync_changes()
    }

    fn settle_names(&self) -> Result<()> {
        self.now().map_or(Ok(()), |held| self.sync_names(held))
    }

    fn publish(&self, len: u64) -> Result<()> {
        self.with_sums(len, |sums| self.publish_with(len, sums))
    }

    fn sums(&self) -> Option<&Arc<Sums>> {
        self.sums.as_ref()
    }

    fn is_unnamed(&self) -> bool {
        self.draft_has_no_name()
    }

    fn settle_record(&self, before: u64, len: u64) -> Result<()> {
        let Some(small) = self.sums.as_ref().and_then(|sums| sums.small()) else { return Ok(()) };
        small.settle(before, len.div_ceil(PAGE_BYTES as u64), |field| self.publish_with(len, Some(field)))
    }

    fn touch(&self) -> Result<()> {
        if self.draft.as_ref().is_some_and(|draft| draft.is_unpublished()) {
            return Ok(());
        }
        self.catalog.touch(self.record.number)
    }

    fn locate(&self, offset: u64) -> Place {
        if let Some(extent) = self.now().and_then(FilePlace::extent) {
            // No two files have a block with this number in the shared part.
            let (block, left) = (u64::from(extent.page), bytes_of(extent).saturating_sub(offset));
            return Place { part: 0, block, offset: start_of(extent) + offset, left };
        }
        let placement = self.map.place(offset / self.block_bytes);
        let within = offset % self.block_bytes;
        let (offset, left) = (placement.block * self.block_bytes + within, self.block_bytes - within);
        Place { part: usize::from(placement.drive), block: placement.block, offset, left }
    }

    fn part_bytes(&self, part: usize, len: u64) -> u64 {
        if self.is_small() { len } else { self.map.part_bytes(part as u16, len, self.record.block_bytes) }
    }

    fn unused_ranges(&self, part: usize, len: u64, part_end: u64) -> Vec<(u64, u64)> {
        if self.record.layout != Layout::Hash || self.is_small() {
            return Vec::new();
        }
        let (index, block_bytes) = (part as u16, self.block_bytes);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // Only the last group of blocks can be partly used: all earlier groups are full.
        let group = self.map.group_blocks();
        let first = self.map.part_blocks(index, len / block_bytes / group * group);
        for rank in first..part_end.div_ceil(block_bytes) {
            let start = self.map.block(index, rank) * block_bytes;
            let used = len.saturating_sub(start).min(block_bytes);
            let (from, to) = (rank * block_bytes + used, ((rank + 1) * block_bytes).min(part_end));
            if from < to {
                match ranges.last_mut() {
                    Some((offset, length)) if *offset + *length == from => *length += to - from,
                    _ => ranges.push((from, to - from)),
                }
            }
        }
        ranges
    }
}
