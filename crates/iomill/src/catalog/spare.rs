//! A little space set aside on each drive, so that a full drive can still take a tombstone (rule 12).

use std::sync::Arc;

use super::Catalog;
use super::store::{SPARE, failed};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs};

/// Enough for one record of the largest size and the directory entries.
const SPARE_BYTES: u64 = 128 << 10;

/// Whether a drive, or the user's share of it, is full.
pub(super) fn is_full(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Sets the space aside if it is not set aside yet.
pub(super) fn fill(fs: &Arc<dyn DriveFs>) -> Result<()> {
    let file = match DriveFile::open(fs, SPARE, Access::WRITE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => DriveFile::open(fs, SPARE, Access::CREATE),
        result => result,
    };
    let file = file.map_err(failed("open", &**fs, SPARE))?;
    if fs.len(file.handle()).map_err(failed("stat", &**fs, SPARE))? < SPARE_BYTES {
        fs.allocate(file.handle(), 0, SPARE_BYTES).map_err(failed("allocate", &**fs, SPARE))?;
    }
    Ok(())
}

impl Catalog {
    /// Sets space aside on all drives. Where none is left, changes still work as long as they find room.
    pub(super) fn fill_spares(&self) {
        for drive in &self.drives {
            if let Err(error) = fill(&drive.fs) {
                self.notice(format!("no space could be set aside for deleting from a full drive: {error}"));
            }
        }
    }

    /// Gives the space up.
    pub(super) fn give_spares_up(&self) -> Result<()> {
        for drive in &self.drives {
            let fs = &drive.fs;
            let file = DriveFile::open(fs, SPARE, Access::WRITE).map_err(failed("open", &**fs, SPARE))?;
            fs.set_len(file.handle(), 0).map_err(failed("cut", &**fs, SPARE))?;
        }
        Ok(())
    }
}
