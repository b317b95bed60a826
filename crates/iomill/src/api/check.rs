//! `ArrayOptions::check`: finds what is wrong with an array, and repairs it, for `iomill check`. Non-goals: reading data.

use std::path::{Path, PathBuf};

use super::options::ArrayOptions;
use crate::catalog;
use crate::error::Result;
use crate::exec::pools::check_may_block;
use crate::layout::Map;

pub use crate::catalog::{Problem, Report, Severity};

impl ArrayOptions {
    /// Checks all that the catalog knows about the array that these drives belong to. Data is not read. With `repair` it repairs what
    /// can be repaired without a loss. An error if another process has the array open for writing, or with `repair` for reading, too.
    pub fn check<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>, repair: bool) -> Result<Report> {
        check_may_block("check")?;
        self.check_all(drives, repair, &mut |_, _| ())
    }

    /// The same. From time to time it tells `watch` how many files are checked, and how many there are.
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
            // The catalog's own checks report a record with a layout that cannot be compiled.
            let map = Map::new(record.layout, &record.weights, record.key);
            map.map_or(0, |map| map.part_bytes(position as u16, len, record.block_bytes))
        };
        catalog::check(&self.platform, &starts, repair, &part_extent, watch)
    }
}
