//! Emptying whole drives, and [`DriveStat`]: the contents of a drive, in numbers. Rules W3, I4 and D3 of
//! `docs/origin.md`. Non-goals: emptying one region for new granules (`append`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::apart::Apart;
use crate::drive::Drive;
use crate::error::{Error, Result};
use crate::index::Region;
use crate::load;
use crate::lock::Held;

/// The contents of a drive of a cache, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriveStat {
    /// Its directory.
    pub path: PathBuf,
    /// Bytes that the cache may use on it.
    pub bytes: u64,
    /// Bytes of regions that have blocks of the file system.
    pub allocated_bytes: u64,
    /// Bytes of granules that were written and not evicted since. Some of these granules may also be on other drives,
    /// or no longer be found.
    pub filled_bytes: u64,
    /// Bytes of those that were recently read.
    pub touched_bytes: u64,
    /// Bytes of those that are pinned.
    pub pinned_bytes: u64,
    /// Whether all of its summaries were read.
    pub is_loaded: bool,
    /// Whether this process no longer uses it.
    pub is_dead: bool,
}

impl Drive {
    /// Unpins all granules of the drive. Returns their bytes. Rule W7: no granule moves meanwhile, and takes its mark
    /// along.
    pub fn unpin_all(&self) -> Result<u64> {
        let _held = self.hold().map_err(Error::io("lock", self.home()))?;
        Ok(self.index.unpin_all() * self.geometry().granule_bytes() as u64)
    }

    /// The numbers of the index.
    pub fn stat(&self) -> DriveStat {
        let (geometry, index) = (self.geometry(), &self.index);
        let granule_bytes = geometry.granule_bytes() as u64;
        let (mut allocated, mut filled, mut touched, mut pinned) = (0, 0, 0, 0);
        for region in 0..geometry.regions() {
            let state = index.region(region);
            allocated += u64::from(state.allocated);
            if state.life.is_some() {
                filled += u64::from(state.filled);
                touched += index.touched(region).len() as u64;
                pinned += index.pinned(region).len() as u64;
            }
        }
        DriveStat {
            path: self.home().to_owned(),
            bytes: geometry.file_bytes(),
            allocated_bytes: allocated * geometry.region_bytes(),
            filled_bytes: filled * granule_bytes,
            touched_bytes: touched * granule_bytes,
            pinned_bytes: pinned * granule_bytes,
            is_loaded: index.is_loaded(),
            is_dead: self.is_dead(),
        }
    }
}

/// The interval at which a call checks whether a drive is late.
const LOOK: Duration = Duration::from_millis(20);

/// Empties all drives at the same time, and continues without late ones. Returns the bytes that were returned to the
/// file systems, or the first error.
pub fn evict_all(drives: &[Arc<Drive>], within: Duration) -> Result<u64> {
    let begin = |drive: &Arc<Drive>| {
        let own = Arc::clone(drive);
        let call = move || {
            let held = own.hold().map_err(Error::io("lock", own.home()))?;
            evict(&own, &held).map_err(Error::io("empty", own.home()))
        };
        Apart::begin(call).map_err(Error::io("start a thread for", drive.home()))
    };
    let begun: Vec<_> = drives.iter().map(begin).collect();
    let ended = begun.into_iter().zip(drives).map(|(begun, drive)| {
        let begun = begun?;
        loop {
            match begun.wait_until(Instant::now() + LOOK).map_err(Error::io("empty", drive.home()))? {
                Some(freed) => return freed,
                None if drive.is_late() => return Err(Error::Late { path: drive.home().into(), within }),
                None => {}
            }
        }
    });
    // All of them, also after one that failed.
    let ended: Vec<Result<u64>> = ended.collect();
    ended.into_iter().sum()
}

/// Forgets all granules of a drive, and returns their blocks to the file system. Returns the bytes of these blocks.
pub fn evict(drive: &Drive, held: &Held<'_>) -> io::Result<u64> {
    load::recover(drive, held)?;
    let (geometry, index) = (drive.geometry(), &drive.index);
    index.set_open_region(None);
    let mut freed = 0;
    for region in 0..geometry.regions() {
        if !index.region(region).allocated {
            continue;
        }
        let emptied = Region { life: None, filled: 0, allocated: true };
        index.set_region(region, emptied);
        index.clear(region);
        // A crash before this leaves a summary that is right. After it there is none.
        if drive.give_back(region, held)? {
            index.set_region(region, Region { allocated: false, ..emptied });
            freed += geometry.region_bytes();
        }
    }
    Ok(freed)
}
