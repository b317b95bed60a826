//! [`Space`]: the free map of the shared parts' pages (C34 to C37).
//!
//! Goals: the map follows from the extents of all files, so it is not stored. Small extents first fill small holes.
//! Non-goals: making shared parts longer, and the bytes in them.
//!
//! Rules:
//! 1. A page is free, or belongs to one extent.
//! 2. The caller frees pages when the change that took them from their file is durable (C21), and the last handle is
//!    closed (C37).

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::log::record::{Extent, LogFault};

/// Most pages of an extent: 64 KiB.
pub const EXTENT_MAX_PAGES: u16 = 16;

/// A place in the shared parts of a drive: the part's number, and the page.
pub type Place = (u16, u32);

/// See the module.
#[derive(Debug, Default)]
pub struct Space {
    drives: BTreeMap<u16, DriveSpace>,
}

/// The free runs of one drive.
#[derive(Debug, Default)]
struct DriveSpace {
    /// Pages of each shared part, by number.
    parts: BTreeMap<u16, u32>,
    /// Length in pages of each free run. No two touch.
    runs: BTreeMap<Place, u32>,
    /// The same runs by length. The last class has all runs that are at least as long as the largest extent.
    classes: [BTreeSet<Place>; EXTENT_MAX_PAGES as usize],
    free_pages: u64,
}

fn class_of(pages: u32) -> usize {
    (pages.min(u32::from(EXTENT_MAX_PAGES)) - 1) as usize
}

impl DriveSpace {
    fn add_run(&mut self, place: Place, pages: u32) {
        self.runs.insert(place, pages);
        self.classes[class_of(pages)].insert(place);
    }

    fn remove_run(&mut self, place: Place) -> Option<u32> {
        let pages = self.runs.remove(&place)?;
        self.classes[class_of(pages)].remove(&place);
        Some(pages)
    }

    /// Makes a run free, which is not. Joins it with its neighbours.
    fn free(&mut self, (part, page): Place, pages: u32) {
        self.free_pages += u64::from(pages);
        let (mut first, mut end) = (page, page + pages);
        if let Some((&before, &len)) = self.runs.range((part, 0)..(part, page)).next_back()
            && before.1 + len == page
        {
            self.remove_run(before);
            first = before.1;
        }
        if let Some(len) = self.remove_run((part, end)) {
            end += len;
        }
        self.add_run((part, first), end - first);
    }

    /// Takes pages out of the free run that has them all. `false` if none has.
    fn take(&mut self, (part, page): Place, pages: u32) -> bool {
        let Some((&run, &len)) = self.runs.range(..=(part, page)).next_back() else { return false };
        let (end, run_end) = (page + pages, run.1 + len);
        if run.0 != part || end > run_end {
            return false;
        }
        self.remove_run(run);
        if run.1 < page {
            self.add_run(run, page - run.1);
        }
        if end < run_end {
            self.add_run((part, end), run_end - end);
        }
        self.free_pages -= u64::from(pages);
        true
    }
}

impl Space {
    /// The space that shared parts have, and that `extents` take. An error means damage: two extents overlap, or one is
    /// not in a part.
    pub fn new(
        parts: impl Iterator<Item = ((u16, u16), u32)>,
        extents: impl Iterator<Item = (u64, Extent)>,
    ) -> Result<Space, LogFault> {
        let mut space = Space::default();
        for ((drive, shared), pages) in parts {
            space.grow(drive, shared, pages);
        }
        for (number, extent) in extents {
            let drive = space.drives.get_mut(&extent.drive);
            let place = (extent.shared, extent.page);
            if !drive.is_some_and(|drive| drive.take(place, u32::from(extent.pages))) {
                let Extent { drive, shared, page, pages } = extent;
                let what = format!(
                    "file {number} has {pages} pages from page {page} on of shared part {shared} of drive {drive}, which another file \
                     has too, or the part does not have"
                );
                return Err(LogFault::Damaged(what));
            }
        }
        Ok(space)
    }

    /// A shared part has `pages` now. It never gets shorter.
    pub fn grow(&mut self, drive: u16, shared: u16, pages: u32) {
        let space = self.drives.entry(drive).or_default();
        let before = space.parts.insert(shared, pages).unwrap_or(0);
        if pages > before {
            space.free((shared, before), pages - before);
        }
    }

    /// Takes pages on a drive. `None` if no run is long enough: then a shared part must grow.
    ///
    /// # Panics
    /// When `pages` is none or too many.
    pub fn allocate(&mut self, drive: u16, pages: u16) -> Option<Extent> {
        assert!((1..=EXTENT_MAX_PAGES).contains(&pages), "an extent of {pages} pages");
        let space = self.drives.get_mut(&drive)?;
        let classes = &space.classes[class_of(u32::from(pages))..];
        let place = *classes.iter().find_map(BTreeSet::first)?;
        space.take(place, u32::from(pages));
        Some(Extent { drive, shared: place.0, page: place.1, pages })
    }

    /// Takes pages that may be free. If they are not, nothing changes.
    pub fn withhold(&mut self, extent: Extent) {
        if let Some(space) = self.drives.get_mut(&extent.drive) {
            space.take((extent.shared, extent.page), u32::from(extent.pages));
        }
    }

    /// The free runs of a drive, in the order of their places: the place of each, and its pages.
    pub fn free_runs(&self, drive: u16) -> impl DoubleEndedIterator<Item = (Place, u32)> {
        self.drives.get(&drive).into_iter().flat_map(|space| &space.runs).map(|(place, pages)| (*place, *pages))
    }

    /// Takes a run that is free.
    pub fn withhold_run(&mut self, drive: u16, place: Place, pages: u32) {
        if let Some(space) = self.drives.get_mut(&drive) {
            space.take(place, pages);
        }
    }

    /// Frees such a run.
    pub fn free_run(&mut self, drive: u16, place: Place, pages: u32) {
        if let Some(space) = self.drives.get_mut(&drive) {
            space.free(place, pages);
        }
    }

    /// Frees pages that no record names: their file was never queued.
    pub fn give_back(&mut self, extent: Extent) {
        if let Some(space) = self.drives.get_mut(&extent.drive) {
            space.free((extent.shared, extent.page), u32::from(extent.pages));
        }
    }

    /// Free pages of a drive.
    pub fn free_pages(&self, drive: u16) -> u64 {
        self.drives.get(&drive).map_or(0, |space| space.free_pages)
    }

    /// Pages of the shared parts of a drive, by their numbers.
    pub fn parts(&self, drive: u16) -> impl Iterator<Item = (u16, u32)> {
        self.drives.get(&drive).into_iter().flat_map(|space| &space.parts).map(|(shared, pages)| (*shared, *pages))
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::sys::property::{check, list, weighted};

    fn pages_of(extent: &Extent) -> impl Iterator<Item = (u16, u16, u32)> + use<> {
        let Extent { drive, shared, page, pages } = *extent;
        (page..page + u32::from(pages)).map(move |page| (drive, shared, page))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(u16, u16),
        /// That of the extents in use, counted around.
        Free(usize),
        Grow(u16, u16, u32),
    }

    fn step(bytes: &mut arbitrary::Unstructured<'_>) -> arbitrary::Result<Step> {
        let kind = weighted(bytes, &[(5, 0), (4, 1), (1, 2)])?;
        let drive = bytes.int_in_range(0..=1)?;
        Ok(match kind {
            0 => Step::Allocate(drive, bytes.int_in_range(1..=EXTENT_MAX_PAGES)?),
            1 => Step::Free(bytes.arbitrary()?),
            _ => Step::Grow(drive, bytes.int_in_range(0..=2)?, bytes.int_in_range(1..=89)?),
        })
    }

    /// Each page has one owner, what is free is found, and the map is the same when it is made anew from the extents
    /// (C36).
    #[test]
    fn pages_have_one_owner() {
        check(
            256,
            |bytes| list(bytes, 1..=299, step),
            |steps| {
                let (mut space, mut held) = (Space::default(), Vec::<Extent>::new());
                let mut parts: BTreeMap<(u16, u16), u32> = BTreeMap::new();
                for step in steps {
                    match step {
                        Step::Allocate(drive, pages) => match space.allocate(drive, pages) {
                            Some(extent) => {
                                assert_eq!((extent.drive, extent.pages), (drive, pages));
                                held.push(extent);
                            }
                            None => {
                                let longest =
                                    space.drives.get(&drive).and_then(|space| space.runs.values().max().copied());
                                assert!(longest.unwrap_or(0) < u32::from(pages));
                            }
                        },
                        Step::Free(_) if held.is_empty() => {}
                        Step::Free(at) => {
                            let extent = held.swap_remove(at % held.len());
                            space.give_back(extent);
                        }
                        Step::Grow(drive, shared, pages) => {
                            let now = parts.entry((drive, shared)).or_default();
                            *now = (*now).max(pages);
                            space.grow(drive, shared, *now);
                        }
                    }
                    let owned: BTreeSet<_> = held.iter().flat_map(pages_of).collect();
                    assert_eq!(owned.len(), held.iter().map(|extent| usize::from(extent.pages)).sum::<usize>());
                    for drive in 0..2 {
                        let all: u64 =
                            parts.iter().filter(|((of, _), _)| *of == drive).map(|(_, pages)| u64::from(*pages)).sum();
                        let used = owned.iter().filter(|(of, ..)| *of == drive).count() as u64;
                        assert_eq!(space.free_pages(drive), all - used);
                    }
                }
                let extents = held.iter().zip(1..).map(|(extent, number)| (number, *extent));
                let anew = Space::new(parts.iter().map(|(place, pages)| (*place, *pages)), extents).unwrap();
                for drive in 0..2u16 {
                    let runs =
                        |space: &Space| space.drives.get(&drive).map(|space| space.runs.clone()).unwrap_or_default();
                    assert_eq!(runs(&anew), runs(&space));
                }
            },
        );
    }

    #[test]
    fn extents_that_overlap_or_lie_outside_are_damage() {
        let extent = |page, pages| Extent { drive: 0, shared: 1, page, pages };
        let made = |extents: &[Extent]| {
            let extents = extents.iter().map(|extent| (1, *extent));
            Space::new([((0, 1), 20)].into_iter(), extents).is_ok()
        };
        assert!(made(&[extent(0, 4), extent(4, 16)]));
        assert!(!made(&[extent(0, 4), extent(3, 1)]) && !made(&[extent(3, 1), extent(0, 4)]));
        assert!(!made(&[extent(19, 2)]) && !made(&[extent(20, 1)]));
        assert!(!made(&[Extent { shared: 2, ..extent(0, 1) }]) && !made(&[Extent { drive: 1, ..extent(0, 1) }]));
    }
}
