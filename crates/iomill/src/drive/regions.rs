//! Memory that callers have registered with an array, and the numbers by which one engine knows it.

use std::collections::BTreeMap;
use std::sync::RwLock;

use crate::engine::{Engine, NO_REGION};
use crate::sys::sync::{AtomicU64, Ordering};

/// The registered memory of an array.
#[derive(Debug, Default)]
pub struct Regions {
    /// Start address to (length, id). Ranges do not overlap; ids are never used again.
    ranges: RwLock<BTreeMap<usize, (usize, u64)>>,
    /// Grows with every change, so that engines notice. Zero: nothing was ever registered.
    version: AtomicU64,
}

impl Regions {
    /// Adds memory and returns its id.
    pub fn add(&self, start: *mut u8, len: usize) -> u64 {
        let mut ranges = self.ranges.write().unwrap_or_else(|e| e.into_inner());
        let id = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        ranges.insert(start as usize, (len, id));
        id
    }

    /// Removes memory that is about to be unmapped. Engines let go of it before they next use any region.
    pub fn remove(&self, start: *mut u8) {
        let mut ranges = self.ranges.write().unwrap_or_else(|e| e.into_inner());
        self.version.fetch_add(1, Ordering::AcqRel);
        ranges.remove(&(start as usize));
    }

    /// The id and the range of the region that holds all of the memory.
    fn find(&self, start: *const u8, len: usize) -> Option<(u64, usize, usize)> {
        let ranges = self.ranges.read().unwrap_or_else(|e| e.into_inner());
        let (&at, &(size, id)) = ranges.range(..=start as usize).next_back()?;
        (start as usize + len <= at + size).then_some((id, at, size))
    }

    fn has(&self, id: u64) -> bool {
        self.ranges.read().unwrap_or_else(|e| e.into_inner()).values().any(|&(_, i)| i == id)
    }
}

/// What one engine knows of an array's regions.
#[derive(Debug)]
pub struct Known {
    /// The engine's number for the memory of the batch that runs now.
    pub current: u16,
    version: u64,
    /// Region id to the engine's number; [`NO_REGION`] where the engine refused it.
    numbers: Vec<(u64, u16)>,
}

impl Default for Known {
    fn default() -> Self {
        Known { current: NO_REGION, version: 0, numbers: Vec::new() }
    }
}

impl Known {
    /// The engine's number for memory, registering it at first use.
    pub fn number(&mut self, regions: &Regions, engine: &mut dyn Engine, start: *const u8, len: usize) -> u16 {
        let version = regions.version.load(Ordering::Acquire);
        if version == 0 {
            return NO_REGION;
        }
        if version != self.version {
            self.numbers.retain(|&(id, number)| {
                let stays = regions.has(id);
                if !stays && number != NO_REGION {
                    engine.unregister(number);
                }
                stays
            });
            self.version = version;
        }
        let Some((id, at, size)) = regions.find(start, len) else { return NO_REGION };
        if let Some(&(_, number)) = self.numbers.iter().find(|&&(known, _)| known == id) {
            return number;
        }
        // SAFETY: a region is mapped until its owner has called `Regions::remove` (the owner's contract). After that
        // the engine still holds it for a while, but the kernel has its own reference to the pages, and no request
        // names the region again, because the version has changed.
        let number = unsafe { engine.register(at as *mut u8, size) }.unwrap_or(NO_REGION);
        self.numbers.push((id, number));
        number
    }
}
