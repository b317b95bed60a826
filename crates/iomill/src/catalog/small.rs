//! Small files in shared parts (C34 to C39, C50): the allocation of their pages, and the return of free pages to the
//! drives.
//!
//! Goals: a new small file makes no inode, and needs no descriptor. Pages that stay free leave their space to other
//! files of the drive, and no call fails because of a full drive while such pages would help. Non-goals: the bytes and
//! their place in a page (`file::parts`); the files that hold the pages (`shared`); which pages are free
//! (`journal::space`); the parts of large files (`remove`).
//!
//! Rules:
//! 1. A page belongs to one file at a time (`journal::space`). Pages that no record names are freed when their file is
//!    closed.
//! 2. Pages of a file are free when the change that took them away is durable, and no handle is left (C21, C37). Before
//!    that change they are noted as `leaving`. A thread that looks for the free pages meanwhile may or may not find a
//!    record of them, and leaves them out. So they become free once.
//! 3. A shared part grows by zeros that are synced (C35). So pages that were never allocated read as zero. Others may
//!    hold bytes of an earlier file, and their new owner clears them.
//! 4. Free pages are *ready* or *cold*. Ready pages have space and can be allocated. Cold pages are holes. They are
//!    filled with zeros, durably, before they are ready again, like a growing part. So a write to allocated pages never
//!    finds the drive full.
//! 5. The thread that frees pages makes some of them cold if more are ready than a share of those in use. It stops at
//!    half as many, so that short-lived files do not pay for it.
//! 6. While a run becomes cold it is in neither map. So no file gets it meanwhile.
//! 7. No part gets shorter, so no record says what is cold. After an opening the free pages of a part with holes all
//!    count as cold.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::journal::Journal;
use super::journal::space::{Place, Space};
use super::log::record::{Extent, FileRecord, LogFault, LogRecord};
use super::shared::{SharedPart, allocated};
use super::state::files::Files;
use super::store::{SHARED, is_full};
use super::{Catalog, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, Alignment, DriveFile, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::sync::{Mutex, lock};

/// Most pages of a shared part: 1 GiB.
pub const PART_MAX_PAGES: u32 = 1 << 18;
/// Fewest pages by which a shared part grows: 1 MiB.
const GROWTH_MIN_PAGES: u32 = 256;
/// The most runs that one call makes cold, unless it needs the space.
const RUNS_AT_ONCE: usize = 64;
/// Shorter runs stay ready, unless a call needs the space.
const RUN_LEAST_PAGES: u32 = 16;

/// The path of a shared part on its drive.
pub fn shared_path(shared: u16) -> String {
    format!("{SHARED}/{shared:04x}")
}

/// Pages that were given to a file.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The pages.
    pub extent: Extent,
    /// Whether they read as zero (rule 3).
    pub is_zero: bool,
}

/// The space of small files on one drive, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmallSpace {
    /// What small files have.
    pub used_bytes: u64,
    /// The free space of their shared parts, ready for more small files.
    pub ready_bytes: u64,
    /// What shared parts have given back to the drive.
    pub given_back_bytes: u64,
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
    /// The number of pages that became free before the free map was known.
    freed_unknown: u64,
}

impl SmallFiles {
    /// Closes the shared parts that no file uses.
    pub(super) fn close(&self) {
        lock(&self.parts).clear();
    }
}

/// The pages that no file has.
#[derive(Debug)]
struct FreePages {
    /// Those that are ready (rule 4).
    space: Space,
    /// Those of each drive that are cold.
    cold: BTreeMap<u16, ColdRuns>,
    /// From this page on no page was given out since the part grew (rule 3).
    zero_from: BTreeMap<(u16, u16), u32>,
}

/// Runs of pages that are holes, of one drive. No two touch.
#[derive(Debug, Default)]
struct ColdRuns(BTreeMap<Place, u32>);

impl ColdRuns {
    /// Adds a run, and joins it with its neighbours.
    fn add(&mut self, (part, page): Place, pages: u32) {
        let (mut first, mut end) = (page, page + pages);
        if let Some((&(of, before), &len)) = self.0.range(..(part, page)).next_back()
            && of == part
            && before + len == page
        {
            self.0.remove(&(of, before));
            first = before;
        }
        if let Some(len) = self.0.remove(&(part, end)) {
            end += len;
        }
        self.0.insert((part, first), end - first);
    }

    /// Takes at most `most` pages from a run that has `least`.
    fn take(&mut self, least: u32, most: u32) -> Option<(Place, u32)> {
        let (&place, &pages) = self.0.iter().find(|(_, pages)| **pages >= least)?;
        let taken = pages.min(most.max(least));
        self.0.remove(&place);
        if taken < pages {
            self.0.insert((place.0, place.1 + taken), pages - taken);
        }
        Some((place, taken))
    }

    /// All of them.
    fn into_runs(self) -> impl Iterator<Item = (Place, u32)> {
        self.0.into_iter()
    }

    /// How many pages there are.
    fn pages(&self) -> u64 {
        self.0.values().map(|pages| u64::from(*pages)).sum()
    }
}

impl Catalog {
    /// A shared part. The first call opens it. `align` is the alignment of I/O on the drive.
    pub fn shared_part(&self, drive: u16, shared: u16, align: Alignment) -> Result<Arc<SharedPart>> {
        let mut parts = lock(&self.small.parts);
        if let Some(part) = parts.get(&(drive, shared)) {
            return Ok(Arc::clone(part));
        }
        let Some(place) = self.drives().get(usize::from(drive)) else {
            let why = "the array has no such drive".to_owned();
            return Err(Error::corrupt(shared_path(shared), why));
        };
        let pages = self.with_files(|files| files.shared_pages(drive, shared));
        let access = if self.is_writer() { Access::WRITE } else { Access::READ };
        let part = SharedPart::open_at(&place.fs, &shared_path(shared), pages, align, access)?;
        let part = Arc::new(part);
        parts.insert((drive, shared), Arc::clone(&part));
        Ok(part)
    }

    /// Whether the shared part of an extent is open. `false` also where another thread may just be opening one.
    pub fn is_shared_open(&self, extent: Extent) -> bool {
        let parts = self.small.parts.try_lock();
        parts.is_ok_and(|parts| parts.contains_key(&(extent.drive, extent.shared)))
    }

    /// Allocates pages on a drive. A shared part grows if none is free. `align` is the alignment of I/O on the drive.
    pub fn give_pages(&self, drive: u16, pages: u16, align: Alignment) -> Result<Given> {
        let (_open, journal) = self.begin()?;
        match self.try_give(journal, drive, pages, align) {
            Err(error) if is_full(&error) && self.find_space(journal, drive) => {
                self.try_give(journal, drive, pages, align)
            }
            given => given,
        }
    }

    fn try_give(&self, journal: &Journal, drive: u16, pages: u16, align: Alignment) -> Result<Given> {
        // After a failure it is not known which pages the log names.
        journal.check_known()?;
        let mut pages_of_all = lock(&self.small.space);
        let free = self.known_free(&mut pages_of_all, journal)?;
        let given = match free.give(drive, pages) {
            Some(given) => given,
            None => {
                self.make_ready(journal, free, drive, pages, align)?;
                free.give(drive, pages).ok_or_else(|| self.no_more_parts(drive))?
            }
        };
        // A write beyond the end of a part that was cut would show zeros in place of other files.
        let part = self.shared_part(drive, given.extent.shared, align);
        let checked = part.and_then(|part| part.check_whole());
        checked.inspect_err(|_| free.space.give_back(given.extent))?;
        Ok(given)
    }

    /// The free pages, which are looked for at first.
    fn known_free<'a>(&self, pages: &'a mut Pages, journal: &Journal) -> Result<&'a mut FreePages> {
        let Pages { free: place, leaving, freed_unknown } = pages;
        *freed_unknown = 0;
        if place.is_none() {
            *place = Some(self.find_free(journal, leaving)?);
        }
        let Some(free) = place else { unreachable!("it was found above") };
        Ok(free)
    }

    fn find_free(&self, journal: &Journal, leaving: &[Extent]) -> Result<FreePages> {
        let mut found = FreePages::find(journal, leaving)?;
        for (index, drive) in (0u16..).zip(self.drives()) {
            let parts: Vec<(u16, u32)> = found.space.parts(index).collect();
            for (shared, pages) in parts {
                // What cannot be examined is examined again when the part is opened.
                let has = allocated(&drive.fs, &shared_path(shared)).unwrap_or(u64::MAX);
                if has < u64::from(pages) * u64::from(PAGE_BYTES) {
                    found.cool(index, shared);
                }
            }
        }
        Ok(found)
    }

    /// Makes pages ready that are cold, or a shared part longer.
    fn make_ready(
        &self,
        journal: &Journal,
        free: &mut FreePages,
        drive: u16,
        pages: u16,
        align: Alignment,
    ) -> Result<()> {
        let growth = growth_of(&free.space, drive);
        let Some((place, pages)) = free.cold.get_mut(&drive).and_then(|cold| cold.take(u32::from(pages), growth))
        else {
            return self.grow(journal, free, drive, align);
        };
        let filled = self.shared_part(drive, place.0, align).and_then(|part| part.fill(place.1, pages));
        match &filled {
            Ok(()) => free.space.free_run(drive, place, pages),
            Err(_) => free.cold.entry(drive).or_default().add(place, pages),
        }
        filled
    }

    fn no_more_parts(&self, drive: u16) -> Error {
        Error::drive(
            self.drives()[usize::from(drive)].path(),
            "it has no more place for small files: it has as many shared parts as can be",
        )
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
        let count: u64 = extents.iter().map(|extent| u64::from(extent.pages)).sum();
        // If the outcome is unknown, a handle may still use the pages, and a crash may leave them in their record. No
        // other file gets them in this opening.
        let is_unknown = matches!(changed, Err(Error::OutcomeUnknown { .. }));
        for extent in extents.iter().filter(|_| !is_unknown) {
            if let Some(at) = pages.leaving.iter().position(|leaving| leaving == extent) {
                pages.leaving.swap_remove(at);
            }
            // What is not known yet is found free when it is looked for.
            if let Some(free) = pages.free.as_mut().filter(|_| changed.is_ok()) {
                free.space.give_back(*extent);
            }
        }
        if pages.free.is_none() {
            pages.freed_unknown += count;
        }
        let are_many = pages.freed_unknown > 4 * u64::from(GROWTH_MIN_PAGES);
        if are_many && let Ok(journal) = self.journal() {
            // An error comes again where pages are asked for.
            let _ = self.known_free(&mut pages, journal);
        }
        drop(pages);
        if !extents.is_empty() {
            self.give_back_excess();
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
        let drives = 0..self.drives().len() as u16;
        let ready: i64 = drives.map(|drive| free.space.free_pages(drive) as i64).sum();
        let cold: i64 = free.cold.values().map(|cold| cold.pages() as i64).sum();
        all - named - ready - cold
    }

    /// Makes a shared part of a drive longer, and queues its record. Records that need it are later in the log (C16).
    fn grow(&self, journal: &Journal, free: &mut FreePages, drive: u16, align: Alignment) -> Result<()> {
        let growth = Growth::of(&free.space, drive).ok_or_else(|| self.no_more_parts(drive))?;
        let Growth { shared, before, after } = growth;
        let since = Since::now();
        let part = self.shared_part(drive, shared, align)?;
        part.lengthen(before, after)?;
        if before == 0 {
            sync_dir(&**part.open().fs(), SHARED, since)?;
        }
        let (_, _later) = journal.change(true, |_, change| {
            change.push(&LogRecord::Shared { drive, shared, pages: after });
            Ok(())
        })?;
        free.space.grow(drive, shared, after);
        free.zero_from.entry((drive, shared)).or_insert(before);
        Ok(())
    }

    /// Makes the new place of a file durable. Its bytes are durable there (C20). The pages of its old record are free
    /// afterwards.
    pub fn publish_move(&self, number: u64, extent: Option<Extent>, sums: Option<&[u8]>) -> Result<()> {
        self.set_place(number, None, extent, sums)
    }

    /// Makes a length durable, and the place of a small file's bytes. The bytes are durable there before the call
    /// (C20). The earlier pages of the file are free afterwards.
    pub fn publish(&self, number: u64, length: u64, extent: Option<Extent>, sums: Option<&[u8]>) -> Result<()> {
        self.set_place(number, Some(length), extent, sums)
    }

    /// Gives a file another place. Only the owner of the file calls this.
    fn set_place(&self, number: u64, length: Option<u64>, extent: Option<Extent>, sums: Option<&[u8]>) -> Result<()> {
        let before = self.with_files(|files| files.numbered(number)?.extent).filter(|before| extent != Some(*before));
        self.leave_pages(before.as_slice(), || self.record_place(number, length, extent, sums))
    }
}

impl Catalog {
    /// Makes pages cold if many are free (rule 5). A failure is tried again with the next pages that become free.
    pub(super) fn give_back_excess(&self) {
        for drive in 0..self.drives().len() as u16 {
            let runs = {
                let mut pages = lock(&self.small.space);
                let Some(free) = &mut pages.free else { return };
                let Some(keep) = free.keep_if_many(drive) else { continue };
                free.take_excess(drive, keep, false)
            };
            self.make_cold(drive, runs);
        }
    }

    /// Returns all free pages of a drive to its file system. Returns the number of bytes. After an opening cold pages
    /// may have space (rule 7).
    fn give_all_back(&self, journal: &Journal, drive: u16) -> Result<u64> {
        let before = self.allocated_on(drive)?;
        let runs = {
            let mut pages = lock(&self.small.space);
            let free = self.known_free(&mut pages, journal)?;
            let mut runs = free.take_excess(drive, 0, true);
            runs.extend(free.cold.remove(&drive).unwrap_or_default().into_runs());
            runs
        };
        self.make_cold(drive, runs);
        Ok(before.saturating_sub(self.allocated_on(drive)?))
    }

    /// Bytes that the shared parts of a drive take there.
    fn allocated_on(&self, drive: u16) -> Result<u64> {
        let fs = &self.drives()[usize::from(drive)].fs;
        let parts: Vec<(u16, u16)> = self.with_files(|files| files.shared().map(|(place, _)| place).collect());
        let of_drive = parts.into_iter().filter(|(of, _)| *of == drive);
        of_drive.map(|(_, shared)| allocated(fs, &shared_path(shared))).sum()
    }

    /// Returns all free pages to the drives, and continues after failures. Returns the number of bytes.
    pub(super) fn give_everything_back(&self) -> u64 {
        let Ok((_open, journal)) = self.begin() else { return 0 };
        let drives = 0..self.drives().len() as u16;
        drives.map(|drive| self.give_all_back(journal, drive).unwrap_or(0)).sum()
    }

    /// Makes runs that were taken cold.
    fn make_cold(&self, drive: u16, runs: Vec<(Place, u32)>) {
        let mut open: Option<(u16, DriveFile)> = None;
        for (place, pages) in runs {
            let punched = self.punch(&mut open, drive, place, pages);
            let mut all = lock(&self.small.space);
            let Some(free) = &mut all.free else { continue };
            if punched {
                free.cold.entry(drive).or_default().add(place, pages);
            } else {
                free.space.free_run(drive, place, pages);
            }
        }
    }

    /// Whether pages of a shared part are holes now. A file system may not be able to do that.
    fn punch(&self, open: &mut Option<(u16, DriveFile)>, drive: u16, (part, page): Place, pages: u32) -> bool {
        let fs = &self.drives()[usize::from(drive)].fs;
        if open.as_ref().is_none_or(|(of, _)| *of != part) {
            *open = DriveFile::open(fs, &shared_path(part), Access::WRITE).ok().map(|file| (part, file));
        }
        let Some((_, file)) = open else { return false };
        let (first, bytes) = (u64::from(page) * u64::from(PAGE_BYTES), u64::from(pages) * u64::from(PAGE_BYTES));
        let punched = fs.punch(file.handle(), first, bytes);
        if let Err(error) = &punched
            && !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS))
        {
            let path = fs.root().join(shared_path(part));
            self.notice(format!("space of small files could not be given back in {}: {error}", path.display()));
        }
        punched.is_ok()
    }

    /// Looks for space on a drive that is full: what deleted files still have, and pages that are free. Whether there
    /// is some now.
    pub(super) fn find_space(&self, journal: &Journal, drive: u16) -> bool {
        let waits = !lock(&self.waiting).is_empty();
        // A deletion frees space when it is durable (C21).
        if waits && journal.commit_all().is_ok() {
            self.remove_waiting(journal);
        }
        let given = self.give_all_back(journal, drive).unwrap_or(0);
        waits || given > 0
    }

    /// `find_space` for a caller that has found a drive full.
    pub fn make_space(&self, drive: u16) -> bool {
        self.begin().is_ok_and(|(_open, journal)| self.find_space(journal, drive))
    }

    /// The space of small files on each drive.
    pub fn small_space(&self) -> Result<Vec<SmallSpace>> {
        let mut spaces = vec![SmallSpace::default(); self.drives().len()];
        let (parts, extents) = self.with_files(|files| (files.shared().collect::<Vec<_>>(), extents_of(files)));
        for extent in extents {
            if let Some(space) = spaces.get_mut(usize::from(extent.drive)) {
                space.used_bytes += u64::from(extent.pages) * u64::from(PAGE_BYTES);
            }
        }
        for ((drive, shared), pages) in parts {
            let Some(place) = self.drives().get(usize::from(drive)) else { continue };
            let space = &mut spaces[usize::from(drive)];
            let allocated = allocated(&place.fs, &shared_path(shared))?;
            space.ready_bytes += allocated;
            space.given_back_bytes += (u64::from(pages) * u64::from(PAGE_BYTES)).saturating_sub(allocated);
        }
        for space in &mut spaces {
            space.ready_bytes = space.ready_bytes.saturating_sub(space.used_bytes);
        }
        Ok(spaces)
    }
}

fn extents_of(files: &Files) -> Vec<Extent> {
    (0..files.slots()).filter_map(|slot| files.in_slot(slot)?.extent).collect()
}

/// The pages that no file's extent has (C36). An error means damage.
pub(super) fn free_pages(files: &Files) -> Result<Space, LogFault> {
    let extent_of = |file: FileRecord<'_>| Some((file.number, file.extent?));
    let extents = (0..files.slots()).filter_map(|slot| files.in_slot(slot)).filter_map(extent_of);
    Space::new(files.shared(), extents)
}

impl FreePages {
    fn find(journal: &Journal, leaving: &[Extent]) -> Result<FreePages> {
        journal.check_known()?;
        let mut space = free_pages(&journal.files()).map_err(|fault| Error::corrupt(SHARED, fault.to_string()))?;
        leaving.iter().for_each(|extent| space.withhold(*extent));
        Ok(FreePages { space, cold: BTreeMap::new(), zero_from: BTreeMap::new() })
    }

    /// Counts the free pages of a part as cold.
    fn cool(&mut self, drive: u16, shared: u16) {
        let runs: Vec<_> = self.space.free_runs(drive).filter(|((part, _), _)| *part == shared).collect();
        let cold = self.cold.entry(drive).or_default();
        for (place, pages) in runs {
            self.space.withhold_run(drive, place, pages);
            cold.add(place, pages);
        }
    }

    fn give(&mut self, drive: u16, pages: u16) -> Option<Given> {
        let extent = self.space.allocate(drive, pages)?;
        let zero_from = self.zero_from.get_mut(&(drive, extent.shared));
        let is_zero = zero_from.as_ref().is_some_and(|from| extent.page >= **from);
        if let Some(from) = zero_from {
            // Pages that begin before it may end after it.
            *from = (extent.page + u32::from(pages)).max(*from);
        }
        Some(Given { extent, is_zero })
    }

    /// The runs of a drive that are to become cold, so that `keep` pages stay ready. They are taken out of the map
    /// (rule 6).
    fn take_excess(&mut self, drive: u16, keep: u64, is_needed: bool) -> Vec<(Place, u32)> {
        let (least, most) = if is_needed { (1, usize::MAX) } else { (RUN_LEAST_PAGES, RUNS_AT_ONCE) };
        let mut excess = self.space.free_pages(drive).saturating_sub(keep);
        let mut runs = Vec::new();
        // From the end, because pages are given out from the start.
        for ((part, page), pages) in self.space.free_runs(drive).rev() {
            let taken = u64::from(pages).min(excess) as u32;
            if runs.len() == most || excess == 0 {
                break;
            }
            if taken >= least {
                runs.push(((part, page + pages - taken), taken));
                excess -= u64::from(taken);
            }
        }
        runs.iter().for_each(|(place, pages)| self.space.withhold_run(drive, *place, *pages));
        runs
    }

    /// The number of pages of a drive that should stay ready, if so many more are ready that some should become cold
    /// (rule 5).
    fn keep_if_many(&self, drive: u16) -> Option<u64> {
        let all: u64 = self.space.parts(drive).map(|(_, pages)| u64::from(pages)).sum();
        let ready = self.space.free_pages(drive);
        let cold = self.cold.get(&drive).map_or(0, ColdRuns::pages);
        let keep = ready_least(all.saturating_sub(ready + cold));
        (ready > 2 * keep + 3 * u64::from(GROWTH_MIN_PAGES)).then_some(keep)
    }
}

/// The number of pages that stay ready beside `used` pages in use (rule 5).
fn ready_least(used: u64) -> u64 {
    (used / 8).max(u64::from(GROWTH_MIN_PAGES))
}

/// The number of pages by which the shared parts of a drive grow.
fn growth_of(space: &Space, drive: u16) -> u32 {
    let all: u64 = space.parts(drive).map(|(_, pages)| u64::from(pages)).sum();
    (all / 8).clamp(u64::from(GROWTH_MIN_PAGES), u64::from(PART_MAX_PAGES)) as u32
}

/// Which shared part gets longer, and from how many pages to how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    shared: u16,
    before: u32,
    after: u32,
}

impl Growth {
    /// `None` if the drive has as many shared parts as can be.
    fn of(space: &Space, drive: u16) -> Option<Growth> {
        let growth = growth_of(space, drive);
        let (shared, before) = match space.parts(drive).last() {
            Some((shared, pages)) if pages < PART_MAX_PAGES => (shared, pages),
            Some((shared, _)) => (shared.checked_add(1)?, 0),
            None => (0, 0),
        };
        Some(Growth { shared, before, after: (before + growth).min(PART_MAX_PAGES) })
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    fn space(parts: impl Iterator<Item = (u16, u32)>) -> Space {
        Space::new(parts.map(|(shared, pages)| ((0, shared), pages)), std::iter::empty())
            .expect("no two extents overlap")
    }

    #[test]
    fn parts_grow_by_an_eighth() {
        let of = |parts: &[(u16, u32)]| Growth::of(&space(parts.iter().copied()), 0).unwrap();
        assert_eq!(of(&[]), Growth { shared: 0, before: 0, after: 256 });
        assert_eq!(of(&[(0, 256)]), Growth { shared: 0, before: 256, after: 512 });
        assert_eq!(of(&[(0, 8000)]), Growth { shared: 0, before: 8000, after: 9000 });
        assert_eq!(of(&[(0, PART_MAX_PAGES)]), Growth { shared: 1, before: 0, after: PART_MAX_PAGES / 8 });
    }

    /// 16 TiB of shared parts have 2^32 pages.
    #[test]
    fn pages_of_many_parts_do_not_overflow() {
        let many = space((0..16_385).map(|shared| (shared, PART_MAX_PAGES)));
        assert_eq!(Growth::of(&many, 0), Some(Growth { shared: 16_385, before: 0, after: PART_MAX_PAGES }));
    }

    #[test]
    fn the_last_part_is_not_made_again() {
        let full = space([(0, 5), (u16::MAX, PART_MAX_PAGES)].into_iter());
        assert_eq!(Growth::of(&full, 0), None);
    }

    #[test]
    fn cold_runs_are_joined_and_divided() {
        let mut cold = ColdRuns::default();
        for (place, pages) in [((0, 10), 5), ((0, 20), 5), ((1, 0), 30), ((0, 15), 5)] {
            cold.add(place, pages);
        }
        assert_eq!((cold.pages(), cold.0.len()), (45, 2));
        assert_eq!(cold.take(16, 100), Some(((1, 0), 30)));
        assert_eq!(cold.take(16, 100), None);
        assert_eq!(cold.take(3, 4), Some(((0, 10), 4)));
        assert_eq!((cold.take(1, 100), cold.pages()), (Some(((0, 14), 11)), 0));
    }
}
