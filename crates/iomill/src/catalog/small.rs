//! Small files in shared parts (C34 to C39): the allocation of their pages.
//!
//! Goals: a new small file makes no inode, and needs no descriptor. Non-goals: the bytes and their place in a page
//! (`file::parts`); the files that hold the pages (`shared`).
//!
//! Rules:
//! 1. A page belongs to one file at a time (`journal::space`). Pages that no record names are freed when their file is
//!    closed.
//! 2. Pages of a file are free when the change that took them away is durable, and no handle is left (C21, C37). Before
//!    that change they are noted as `leaving`. A thread that looks for the free pages meanwhile may or may not find a
//!    record of them, and leaves them out. So they become free once.
//! 3. A shared part grows by zeros that are synced (C35). So pages that were never allocated read as zero. Others may
//!    hold bytes of an earlier file, and their new owner clears them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cold::ColdRuns;
use super::journal::Journal;
use super::journal::space::Space;
use super::log::record::{Extent, FileRecord, LogFault, LogRecord};
use super::shared::{SharedPart, allocated};
use super::state::files::Files;
use super::store::{SHARED, is_full};
use super::{Catalog, PAGE_BYTES};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, Alignment, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::sync::{Mutex, lock};

/// Most pages of a shared part: 1 GiB.
const PART_MAX_PAGES: u32 = 1 << 18;
/// Fewest pages by which a shared part grows: 1 MiB.
pub(super) const GROWTH_MIN_PAGES: u32 = 256;

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

/// The shared parts of an open array.
#[derive(Debug, Default)]
pub(super) struct SmallFiles {
    /// Those that are open, by drive and number.
    parts: Mutex<BTreeMap<(u16, u16), Arc<SharedPart>>>,
    pub(super) space: Mutex<Pages>,
}

#[derive(Debug, Default)]
pub(super) struct Pages {
    /// The free pages, once they were asked for.
    pub(super) free: Option<FreePages>,
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
pub(super) struct FreePages {
    /// Those that are ready (`give_back`).
    pub(super) space: Space,
    /// Those of each drive that are holes.
    pub(super) cold: BTreeMap<u16, ColdRuns>,
    /// From this page on no page was given out since the part grew (rule 3).
    zero_from: BTreeMap<(u16, u16), u32>,
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
    pub(super) fn known_free<'a>(&self, pages: &'a mut Pages, journal: &Journal) -> Result<&'a mut FreePages> {
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
        for extent in extents {
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
}
