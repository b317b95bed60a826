//! Looking for what is wrong with an array, and mending it: for `iomill check`.

use std::path::{Path, PathBuf};

use super::options::ArrayOptions;
use crate::catalog;
use crate::error::Result;
use crate::layout::Map;

pub use crate::catalog::{Problem, Report, Severity};

impl ArrayOptions {
    /// Checks all that the catalog can know about the array that these drives belong to; with `repair`, puts right what
    /// can be without losing anything. Data is not read. Nobody else has the array open for writing, or at all with
    /// `repair`.
    pub fn check<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>, repair: bool) -> Result<Report> {
        crate::exec::pools::check_may_block("check")?;
        let starts: Vec<PathBuf> = drives.into_iter().map(|p| p.as_ref().to_owned()).collect();
        catalog::check(&self.platform, &starts, repair, &|record, len, position| {
            // A layout that cannot be compiled is a fault of the record, which the catalog's own checks tell.
            let map = Map::new(record.layout, &record.weights, record.key);
            map.map_or(0, |map| map.part_bytes(position as u16, len, record.block_bytes))
        })
    }
}
