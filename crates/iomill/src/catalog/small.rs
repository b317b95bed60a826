//! Small files in shared parts (C34 to C39): which pages a file gets, and the flushes that callers share.
//!
//! Goals: a new small file makes no inode, and needs no descriptor; many callers share a flush of a shared part. Non-goals: the bytes and where
//! in a page they lie (`file::parts`).
//!
//! Rules:
//! 1. A page is given out to one file at a time (`journal::space`). Pages that no record names go back when their file is closed.
//! 2. Pages of a file are free when the change that took them away is durable, and no handle is left (C21, C37). Before that change they are
//!    noted as `leaving`. A thread that looks for the free pages meanwhile may or may not find a record of them, and leaves them out. So
//!    they become free once.
//! 3. A shared part grows by zeros that are synced (C35). So pages that were never given out read as zero. Others may hold bytes of an earlier
//!    file, and their new user clears them.
//! 4. After a flush that failed no flush of that part is tried (C12): each file with bytes in it takes no more writes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use super::journal::Journal;
use super::journal::commits::{CommitQueue, Commits, Failed};
use super::journal::space::Space;
use super::log::record::{Extent, FileRecord, LogFault, LogRecord};
use super::state::files::Files;
use super::store::{SHARED, absent_is_none, failed, full_path, is_full, sync_dir, write_zeros};
use super::{Catalog, PAGE_BYTES, lock};
use crate::engine::FileRef;
use crate::error::{Error, Result};
use crate::sys::flushes::Flushes;
use crate::sys::fs::{Access, Alignment, DriveFile, DriveFs};

/// Most pages of a shared part: 1 GiB.
const PART_MAX_PAGES: u32 = 1 << 18;
/// Fewest pages by which a shared part grows: 1 MiB.
const GROWTH_MIN_PAGES: u32 = 256;

/// The path of a shared part on its drive.
pub fn shared_path(shared: u16) -> String {
    format!("{SHARED}/{shared:04x}")
}

/// The highest stamp of the writes that callers want to be durable.
#[derive(Debug, Default)]
struct Wish(u64);

impl CommitQueue for Wish {
    fn empty(&mut self) {
        self.0 = 0;
    }
}

/// An open shared part.
#[derive(Debug)]
pub struct SharedPart {
    open: Arc<DriveFile>,
    align: Alignment,
    key: OnceLock<u64>,
    /// A leader flushes for all that wait.
    turns: Commits<Wish>,
    flushes: Arc<Flushes>,
}

impl SharedPart {
    /// The open file.
    pub fn open(&self) -> &Arc<DriveFile> {
        &self.open
    }

    /// The alignment that its drive's queues assume for I/O on it.
    pub fn align(&self) -> Alignment {
        self.align
    }

    /// By what engines know it. `next_key` makes a key that no other file has.
    pub fn file_ref(&self, next_key: impl FnOnce() -> u64) -> FileRef {
        FileRef { handle: self.open.handle(), key: *self.key.get_or_init(next_key) }
    }

    /// Its flushes.
    pub fn flushes(&self) -> &Arc<Flushes> {
        &self.flushes
    }

    /// Makes the writes durable that have a stamp up to this one, together with other callers (rule 4).
    pub fn flush(&self, stamp: u64) -> Result<()> {
        if self.flushes.cover(stamp) {
            return Ok(());
        }
        let (fs, path) = (&**self.open.fs(), self.open.path());
        let failed_before = || Error::Drive {
            path: fs.location().to_owned(),
            why: format!("an earlier flush of {path} failed; close the array and open it again"),
        };
        let wish = |wish: &mut Wish| {
            wish.0 = stamp.max(wish.0);
            Ok::<(), Failed>(())
        };
        let ticket = self.turns.queue(wish).map_err(|_| failed_before())?;
        let lead = |wish: &mut Wish| self.flushes.run(wish.0, || fs.sync_data(self.open.handle()));
        let flushed = self.turns.commit(ticket, lead);
        flushed.map_err(|error| error.map_or_else(failed_before, failed("sync", fs, path)))
    }
}

/// Pages that were given to a file.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The pages.
    pub extent: Extent,
    /// Whether they read as zero (rule 3).
    pub is_zero: bool,
}

/// The shared parts of an open array.
#[derive(Debug, Default)]
pub(super) struct SmallFiles {
    /// Those that are open, by drive and number.
    parts: Mutex<BTreeMap<(u16, u16), Arc<SharedPart>>>,
    space: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// The free pages, once they were asked for.
    free: Option<FreePages>,
    /// Pages that a change takes from their file at this moment (rule 2).
    leaving: Vec<Extent>,
}

impl SmallFiles {
    /// Closes the shared parts, as far as no file has them.
    pub(super) fn close(&self) {
        lock(&self.parts).clear();
    }
}

#[derive(Debug)]
struct FreePages {
    space: Space,
    /// From this page on no page was given out since the part grew (rule 3).
    zero_from: BTreeMap<(u16, u16), u32>,
}

impl Catalog {
    /// A shared part, which is opened when it is first asked for. `align` is what I/O on the drive assumes.
    pub fn shared_part(&self, drive: u16, shared: u16, align: Alignment) -> Result<Arc<SharedPart>> {
        let mut parts = lock(&self.small.parts);
        if let Some(part) = parts.get(&(drive, shared)) {
            return Ok(Arc::clone(part));
        }
        let path = shared_path(shared);
        let Some(place) = self.drives().get(usize::from(drive)) else {
            let why = "the array has no such drive".to_owned();
            return Err(Error::Corrupt { path: path.into(), why });
        };
        let fs = &place.fs;
        let access = if self.is_writer() { Access::WRITE } else { Access::READ };
        let open = |direct| {
            let opened = absent_is_none(DriveFile::open(fs, &path, Access { direct, ..access }));
            let lost = || Error::Corrupt {
                path: full_path(&**fs, &path),
                why: "the drive has lost these pages of small files; `iomill check` tells what can be done".to_owned(),
            };
            opened.map_err(failed("open", &**fs, &path))?.ok_or_else(lost)
        };
        let mut file = open(align.is_direct())?;
        let own = fs.alignment(file.handle()).map_err(failed("examine", &**fs, &path))?;
        if own != align {
            file = open(false)?;
        }
        let part = SharedPart {
            open: Arc::new(file),
            align,
            key: OnceLock::new(),
            turns: Commits::default(),
            flushes: Arc::default(),
        };
        let part = Arc::new(part);
        parts.insert((drive, shared), Arc::clone(&part));
        Ok(part)
    }

    /// Whether the shared part of an extent is open. `false` also where another thread may just be opening one.
    pub fn is_shared_open(&self, extent: Extent) -> bool {
        let parts = self.small.parts.try_lock();
        parts.is_ok_and(|parts| parts.contains_key(&(extent.drive, extent.shared)))
    }

    /// Gives pages on a drive out. A shared part grows if none is free.
    pub fn give_pages(&self, drive: u16, pages: u16) -> Result<Given> {
        let (_open, journal) = self.begin()?;
        // After a failure it is not known which pages the log names.
        journal.check()?;
        let mut pages_of_all = lock(&self.small.space);
        let Pages { free: place, leaving } = &mut *pages_of_all;
        let free = match place {
            Some(free) => free,
            None => place.insert(FreePages::find(journal, leaving)?),
        };
        if let Some(given) = free.give(drive, pages) {
            return Ok(given);
        }
        self.grow(journal, free, drive)?;
        free.give(drive, pages).ok_or_else(|| Error::Drive {
            path: self.drives()[usize::from(drive)].path().to_owned(),
            why: "it has no more place for small files; it has as many shared parts as can be".to_owned(),
        })
    }

    /// Takes pages back that no record names (rule 1).
    pub fn take_pages_back(&self, extent: Extent) {
        if let Some(free) = &mut lock(&self.small.space).free {
            free.space.give_back(extent);
        }
    }

    /// Makes a change that takes pages from their files, and then frees them (rule 2).
    pub(super) fn leave_pages<R>(&self, extents: &[Extent], change: impl FnOnce() -> Result<R>) -> Result<R> {
        lock(&self.small.space).leaving.extend(extents);
        let changed = change();
        let mut pages = lock(&self.small.space);
        for extent in extents {
            if let Some(at) = pages.leaving.iter().position(|leaving| leaving == extent) {
                pages.leaving.swap_remove(at);
            }
            // What is not known yet is found free when it is looked for.
            if let Some(free) = pages.free.as_mut().filter(|_| changed.is_ok()) {
                free.space.give_back(*extent);
            }
        }
        changed
    }

    /// Pages that are taken and that no record names. Less than 0 if a page that a record names counts as free.
    pub fn unnamed_pages(&self) -> i64 {
        let pages = lock(&self.small.space);
        let Some(free) = &pages.free else { return 0 };
        let all: i64 = self.with_files(|files| files.shared().map(|(_, pages)| i64::from(pages)).sum());
        let extent_pages = |file: FileRecord<'_>| Some(i64::from(file.extent?.pages));
        let pages_of = |files: &Files| (0..files.slots()).filter_map(|slot| extent_pages(files.in_slot(slot)?)).sum();
        let named: i64 = self.with_files(pages_of);
        let free: i64 = (0..self.drives().len()).map(|drive| free.space.free_pages(drive as u16) as i64).sum();
        all - named - free
    }

    /// Makes a shared part of a drive longer, and queues the record that says so. Records that need it come later (C16).
    fn grow(&self, journal: &Journal, free: &mut FreePages, drive: u16) -> Result<()> {
        let fs = &self.drives()[usize::from(drive)].fs;
        let all: u32 = free.space.parts(drive).map(|(_, pages)| pages).sum();
        let growth = (all / 8).max(GROWTH_MIN_PAGES);
        let (shared, before) = match free.space.parts(drive).last() {
            Some((shared, pages)) if pages < PART_MAX_PAGES => (shared, pages),
            Some((shared, _)) => (shared.saturating_add(1), 0),
            None => (0, 0),
        };
        let after = (before + growth).min(PART_MAX_PAGES);
        lengthen(fs, shared, before, after)?;
        let (_, _later) = journal.change(true, |_, change| {
            change.push(&LogRecord::Shared { drive, shared, pages: after });
            Ok(())
        })?;
        free.space.grow(drive, shared, after);
        free.zero_from.entry((drive, shared)).or_insert(before);
        Ok(())
    }

    /// Makes the new place of a file durable, of which the bytes are durable there (C20). The pages that its record had are free afterwards.
    pub fn publish_move(&self, number: u64, extent: Option<Extent>) -> Result<()> {
        self.set_place(number, None, extent)
    }

    /// Makes a length durable, and where a small file's bytes lie. Before the call, they are durable there (C20). The pages that the file had
    /// before are free afterwards.
    pub fn publish(&self, number: u64, length: u64, extent: Option<Extent>) -> Result<()> {
        self.set_place(number, Some(length), extent)
    }

    /// Gives a file another place. Only the holder of the file does so.
    fn set_place(&self, number: u64, length: Option<u64>, extent: Option<Extent>) -> Result<()> {
        let before = self.with_files(|files| files.numbered(number)?.extent).filter(|before| extent != Some(*before));
        self.leave_pages(before.as_slice(), || self.record_place(number, length, extent))
    }
}

/// What the extents of all files leave (C36). An error means damage.
pub(super) fn free_pages(files: &Files) -> Result<Space, LogFault> {
    let extent_of = |file: FileRecord<'_>| Some((file.number, file.extent?));
    let extents = (0..files.slots()).filter_map(|slot| files.in_slot(slot)).filter_map(extent_of);
    Space::new(files.shared(), extents)
}

impl FreePages {
    fn find(journal: &Journal, leaving: &[Extent]) -> Result<FreePages> {
        journal.check()?;
        let mut space = free_pages(&journal.files())
            .map_err(|fault| Error::Corrupt { path: SHARED.into(), why: format!("{fault}; run `iomill check`") })?;
        leaving.iter().for_each(|extent| space.withhold(*extent));
        Ok(FreePages { space, zero_from: BTreeMap::new() })
    }

    fn give(&mut self, drive: u16, pages: u16) -> Option<Given> {
        let extent = self.space.allocate(drive, pages)?;
        let zero_from = self.zero_from.get_mut(&(drive, extent.shared));
        let is_zero = zero_from.as_ref().is_some_and(|from| extent.page >= **from);
        if let Some(from) = zero_from {
            // Pages that begin before it may end behind it.
            *from = (extent.page + u32::from(pages)).max(*from);
        }
        Some(Given { extent, is_zero })
    }
}

/// Fills a shared part with zeros, durably, from one page to another.
fn lengthen(fs: &Arc<dyn DriveFs>, shared: u16, before: u32, after: u32) -> Result<()> {
    let path = shared_path(shared);
    let opened = absent_is_none(DriveFile::open(fs, &path, Access::WRITE)).map_err(failed("open", &**fs, &path))?;
    let is_new = opened.is_none();
    let file = match opened {
        Some(file) => file,
        None => DriveFile::open(fs, &path, Access::CREATE).map_err(failed("create", &**fs, &path))?,
    };
    let first = u64::from(before) * u64::from(PAGE_BYTES);
    let mut at = first;
    let filled = write_zeros(u64::from(after - before) * u64::from(PAGE_BYTES), |zeros| {
        fs.write_at(file.handle(), zeros, at).map_err(failed("write", &**fs, &path))?;
        at += zeros.len() as u64;
        Ok(())
    });
    filled.inspect_err(|error| {
        if is_full(error) {
            // What was taken goes back. If that fails, the next growth uses it.
            let _ = fs.set_len(file.handle(), first);
        }
    })?;
    fs.sync_data(file.handle()).map_err(failed("sync", &**fs, &path))?;
    if is_new { sync_dir(&**fs, SHARED) } else { Ok(()) }
}
