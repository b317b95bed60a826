//! [`ActiveVoter`]: a copy of the log to which groups are appended.
//!
//! Non-goals: the groups, and the consequences of a failure of a copy (`writer`).

use super::header::FileHeader;
use super::merged::{LogEnd, Voter};
use super::place::{LogFile, open_for_groups, segment_path};
use crate::catalog::store::full_path;
use crate::engine::platform::DurableWrite;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile};

/// A voter that groups go to.
#[derive(Debug)]
pub struct ActiveVoter {
    /// The drive and its place among the voters.
    pub voter: Voter,
    /// The segment that groups go to.
    pub file: DriveFile,
    /// The segment after it, if it is made.
    pub next: Option<DriveFile>,
    /// Why `next` could not be made.
    pub next_failure: Option<Error>,
    /// It has failed, and no fsync is tried on it again (C12).
    pub failure: Option<Error>,
}

impl ActiveVoter {
    /// A voter and its open active segment.
    pub fn new(voter: &Voter, file: DriveFile) -> ActiveVoter {
        ActiveVoter { voter: voter.clone(), file, next: None, next_failure: None, failure: None }
    }

    /// An error if the segment is shorter than it was made. A write into it would leave a hole in place of groups that
    /// are lost.
    pub fn check_uncut(&self, least: u64) -> Result<()> {
        let path = || full_path(&*self.voter.fs, self.file.path());
        let len = self.file.fs().len(self.file.handle()).map_err(|error| Error::io("measure", path(), error))?;
        if len >= least {
            return Ok(());
        }
        Err(Error::corrupt(path(), format!("it has {len} bytes of {least}: it was cut")))
    }

    /// A group that is to be written to it.
    pub fn write<'a>(&'a self, bytes: &'a [u8], offset: u64) -> DurableWrite<'a> {
        DurableWrite { fs: &**self.file.fs(), handle: self.file.handle(), bytes, offset }
    }
}

/// The notice about a voter that is left behind.
pub fn left_behind(voter: &Voter, error: &Error) -> String {
    format!(
        "{}: this copy of the log is left behind ({error}); the next opening for writing brings it up",
        voter.fs.location().display()
    )
}

/// The error of a log without a voter.
pub fn no_voter(voters: &[Voter]) -> Error {
    let path = voters.first().map(|voter| voter.fs.location().to_owned()).unwrap_or_default();
    Error::drive(path, "no copy of the log can be written").advise("see the notices, or open for reading")
}

/// Opens the active segment for groups, and reads its header.
pub fn open_active(voter: &Voter, end: &LogEnd) -> Result<(DriveFile, FileHeader)> {
    let path = segment_path(end.position.segment);
    let gone = || Error::corrupt(full_path(&*voter.fs, &path), "it is gone");
    let header = LogFile::open(&voter.fs, &path, Access::READ, true)?.ok_or_else(gone)?.header;
    Ok((open_for_groups(&voter.fs, &path)?, header))
}
