//! Space of deleted small files: returned to the drives, and taken again (C50).
//!
//! Goals: pages that stay free leave their space to other files of the drive, and no call fails because of a full drive
//! while such pages would help. Non-goals: which pages are free (`journal::space`), and the parts of large files
//! (`remove`).
//!
//! Rules:
//! 1. Pages are *ready* or *cold*. Ready pages have space and can be allocated. Cold pages are holes. They are filled
//!    with zeros, durably, before they are ready again, like a growing part. So a write to allocated pages never finds
//!    the drive full.
//! 2. The thread that frees pages makes some of them cold if more are ready than a share of those in use. It stops at
//!    half as many, so that short-lived files do not pay for it.
//! 3. While a run becomes cold it is in neither map. So no file gets it meanwhile.
//! 4. No part gets shorter, so no record says what is cold. After an opening the free pages of a part with holes all
//!    count as cold.

use super::Catalog;
use super::cold::ColdRuns;
use super::journal::Journal;
use super::journal::space::Place;
use super::log::record::{Extent, PAGE_BYTES};
use super::shared::allocated;
use super::small::{FreePages, GROWTH_MIN_PAGES, shared_path};
use super::state::files::Files;
use crate::error::Result;
use crate::sys::fs::{Access, DriveFile};
use crate::sys::sync::lock;

/// The most runs that one call makes cold, unless it needs the space.
const RUNS_AT_ONCE: usize = 64;
/// Shorter runs stay ready, unless a call needs the space.
const RUN_LEAST_PAGES: u32 = 16;

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

/// The number of pages that stay ready beside `used` pages in use (rule 2).
fn ready_least(used: u64) -> u64 {
    (used / 8).max(u64::from(GROWTH_MIN_PAGES))
}

impl FreePages {
    /// The runs of a drive that are to become cold, so that `keep` pages stay ready. They are taken out of the map
    /// (rule 3).
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
    /// (rule 2).
    fn keep_if_many(&self, drive: u16) -> Option<u64> {
        let all: u64 = self.space.parts(drive).map(|(_, pages)| u64::from(pages)).sum();
        let ready = self.space.free_pages(drive);
        let cold = self.cold.get(&drive).map_or(0, ColdRuns::pages);
        let keep = ready_least(all.saturating_sub(ready + cold));
        (ready > 2 * keep + 3 * u64::from(GROWTH_MIN_PAGES)).then_some(keep)
    }
}

impl Catalog {
    /// Makes pages cold if many are free (rule 2). A failure is tried again with the next pages that become free.
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
    /// may have space (rule 4).
    pub(super) fn give_all_back(&self, journal: &Journal, drive: u16) -> Result<u64> {
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

    /// `give_back` for a caller that has found a drive full.
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
