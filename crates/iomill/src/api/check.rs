//! [`Array::check`] and [`Array::repair`]: the faults of an array, found and repaired. Non-goals: reading data
//! (`scrub`).

use std::path::{Path, PathBuf};

use super::array::Array;
use super::options::ArrayOptions;
use crate::catalog;
use crate::error::Result;
use crate::exec::users_code::check_may_block;
use crate::layout::Map;
use crate::sys::events;

pub use crate::catalog::{Problem, Report, Severity};

impl Array {
    /// Compares the array of these drives with its catalog, and reports all differences. Changes nothing, and reads no
    /// data: [`Array::scrub`] reads data. [`Error::Locked`](crate::Error::Locked) if another process has the array open
    /// for writing.
    pub fn check<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Report> {
        check_may_block("check")?;
        ArrayOptions::new().check_all(drives, false, &mut |_, _| ())
    }

    /// [`Array::check`] that also repairs all faults that can be repaired without a loss.
    /// [`Error::Locked`](crate::Error::Locked) if another process has the array open.
    pub fn repair<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Result<Report> {
        check_may_block("repair")?;
        ArrayOptions::new().check_all(drives, true, &mut |_, _| ())
    }
}

impl ArrayOptions {
    /// [`Array::check`], or [`Array::repair`], on the platform of these options.
    #[cfg(feature = "internals")]
    pub fn check<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>, repair: bool) -> Result<Report> {
        check_may_block("check")?;
        self.check_all(drives, repair, &mut |_, _| ())
    }

    /// `check_or_repair` that calls `watch` from time to time, with the number of checked files and the number of all
    /// files.
    #[cfg(feature = "internals")]
    pub fn check_watched<P: AsRef<Path>>(
        self,
        drives: impl IntoIterator<Item = P>,
        repair: bool,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Report> {
        check_may_block("check_watched")?;
        self.check_all(drives, repair, watch)
    }

    fn check_all<P: AsRef<Path>>(
        self,
        drives: impl IntoIterator<Item = P>,
        repair: bool,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Report> {
        let starts: Vec<PathBuf> = drives.into_iter().map(|p| p.as_ref().to_owned()).collect();
        let part_extent = |record: &catalog::Record, len, position| {
            // The checks of the catalog report a record with a layout that does not compile.
            let map = Map::new(record.layout, &record.weights, record.key);
            map.map_or(0, |map| map.part_bytes(position as u16, len, record.block_bytes))
        };
        let span = if repair { events::repair(&starts) } else { events::check(&starts) };
        span.run(|| catalog::check(&self.platform, &starts, repair, &part_extent, watch))
    }
}
