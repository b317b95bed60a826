//! [`NextSegment`] and [`MadeSegment`]: the segment after the active one, which is made while groups are appended
//! (C29).
//!
//! Non-goals: when it is made, and when groups go there (`writer`).

use super::active::no_voter;
use super::header::FileHeader;
use super::merged::Voter;
use super::place::{make_segment, open_for_groups, segment_path};
use crate::catalog::store::{is_full, unlink_if_there};
use crate::error::{Error, Result};
use crate::sys::fs::DriveFile;

/// A segment that is to be made on all voters, without the writer (C29).
#[derive(Debug)]
pub struct NextSegment {
    /// What its file begins with.
    pub header: FileHeader,
    /// The voters that are to have it.
    pub voters: Vec<Voter>,
}

/// A segment that was made on at least one voter, with what each voter has of it.
#[derive(Debug)]
pub struct MadeSegment {
    /// What its file begins with.
    pub header: FileHeader,
    /// By their drives.
    pub files: Vec<(usize, Result<DriveFile>)>,
}

impl NextSegment {
    /// Makes it. An error if no voter has it, or if one has no space, or if the process lacks something: then it is on
    /// none.
    pub fn make(self) -> Result<MadeSegment> {
        let NextSegment { header, voters } = self;
        let path = segment_path(header.number);
        let make = |voter: &Voter| {
            let made = make_segment(&voter.fs, &header).and_then(|_made| open_for_groups(&voter.fs, &path));
            (voter.drive, made)
        };
        let mut files: Vec<(usize, Result<DriveFile>)> = voters.iter().map(make).collect();
        // Neither lack of space nor what passes is a voter's fault.
        let is_lack = |error: &Error| is_full(error) || error.passes();
        let full = files.iter().position(|(_, result)| result.as_ref().is_err_and(is_lack));
        if full.is_none() && files.iter().any(|(_, result)| result.is_ok()) {
            return Ok(MadeSegment { header, files });
        }
        for (voter, _) in voters.iter().zip(&files).filter(|(_, (_, result))| result.is_ok()) {
            match unlink_if_there(&*voter.fs, &segment_path(header.number)) {
                // The next try makes it anew.
                Err(error) if !error.passes() => return Err(error),
                _ => {}
            }
        }
        let cause = if files.is_empty() { None } else { files.swap_remove(full.unwrap_or(0)).1.err() };
        Err(cause.unwrap_or_else(|| no_voter(&voters)))
    }
}
