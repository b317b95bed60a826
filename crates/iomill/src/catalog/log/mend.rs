//! Completing copies of the log from the merge of all voters (C11, C15).
//!
//! Goals: the same code completes a copy after a crash, mends rot, and makes a copy on a drive without one. A crash at
//! any point leaves the other copies unchanged, and a new file replaces the old one when it is whole (C54). Non-goals:
//! the choice of the ruling copy (`merged`).

use std::mem;
use std::sync::Arc;

use super::header::{BLOCK_BYTES, FileHeader, FileKind};
use super::merged::{LogEnd, Merged, Replay, Stop, Visit, Voter};
use super::place::{
    LogFile, LogFiles, Making, Missing, checkpoint_path, make_segment, path_of, segment_path, unreadable,
};
use crate::catalog::store::{LOG, failed, full_path, unlink_if_there};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, sync_dir};
use crate::sys::fsyncs::Since;

/// Makes the copy on `voter` equal to `merged` up to `end`, and durable. `is_certain` says that after a clean close the
/// end of the copy proves all of it. Returns the problem that it found, if any.
pub fn bring_up(merged: &mut Merged, end: &LogEnd, voter: &Voter, is_certain: bool) -> Result<Option<String>> {
    let fs = &voter.fs;
    // A killed process may have left bytes of the active segment in the kernel, so all of it is synced at the end.
    let since = Since::now();
    let mut found = None;
    if !is_certain || !end.is_closed || !merged.has_all(end, voter)? {
        fs.make_dir(LOG).map_err(failed("create", &**fs, LOG))?;
        sync_dir(&**fs, "", since)?;
        let has_whole = merged.has_whole(end.position.segment)?;
        // If no copy is whole, it is not known what was cut off (C52).
        let whole = Some(end.position.segment).filter(|_| has_whole);
        let mut mender = Mender { fs, whole, target: None, visited: Vec::new(), found: None };
        if merged.read(&mut mender)? != *end {
            // A new file would lack groups (C54).
            let why = "the log could not be read a second time as it was read before";
            return Err(Error::corrupt(fs.root().join(LOG), why).advise("try again, then check the array"));
        }
        mender.end_target()?;
        // A segment without groups was not visited: the first one, if the checkpoint begins at its end, or the last one,
        // if the group before it names it and no group has followed. The others must not be looked at again: if their
        // header were unreadable now, a file without groups would replace them.
        let visited = mem::take(&mut mender.visited);
        for number in (end.first_segment..=end.position.segment).filter(|number| !visited.contains(number)) {
            if let Some(header) = merged.segment_header(number)? {
                mender.begin_target(&header)?;
                mender.end_target()?;
            }
        }
        found = mender.found.take();
    }
    refuse_hidden(fs, end)?;
    write_again(fs, end)?;
    let active = segment_path(end.position.segment);
    let file = DriveFile::open(fs, &active, Access::WRITE).map_err(failed("open", &**fs, &active))?;
    file.sync_since(since)?;
    sync_dir(&**fs, LOG, since)?;
    Ok(found)
}

/// A copy may have an unacknowledged group behind the end that could not be read a moment ago, when the other copies
/// proved the end (C54). If it stayed, it would come back after a crash, or as a group apart from that of this opening.
fn refuse_hidden(fs: &Arc<dyn DriveFs>, end: &LogEnd) -> Result<()> {
    let path = segment_path(end.position.segment);
    let mut file = open_mended(fs, &path, Access::READ)?;
    let salt = file.header.salt;
    let offset = end.position.offset;
    match file.group(offset) {
        Ok(group) if group.follows(salt, end.sequence, end.checksum) => {
            let why = format!("it has a group behind group {}, which could not be read a moment ago", end.sequence);
            Err(Error::corrupt(full_path(&**fs, &path), why))
        }
        Err(Missing::Unreadable(source)) => Err(unreadable(&**fs, &path, offset, source)),
        Ok(_) | Err(Missing::Nothing) => Ok(()),
    }
}

/// Writes the last group again, with the same bytes, and syncs it. Its fsync may have failed in a process that has
/// ended. Then the kernel still shows the group, and takes it for written, so that an fsync alone would do nothing
/// (C12).
fn write_again(fs: &Arc<dyn DriveFs>, end: &LogEnd) -> Result<()> {
    let Some(place) = end.last_group else { return Ok(()) };
    let path = segment_path(place.segment);
    let mut file = open_mended(fs, &path, Access::WRITE)?;
    let bytes = match file.group_and_bytes(place.offset) {
        Ok((_, bytes)) => bytes.to_vec(),
        Err(Missing::Unreadable(source)) => return Err(unreadable(&**fs, &path, place.offset, source)),
        Err(Missing::Nothing) => {
            return Err(Error::corrupt(full_path(&**fs, &path), "its last group is damaged again"));
        }
    };
    let since = Since::now();
    file.write(&bytes, place.offset)?;
    file.into_file().sync_since(since)
}

/// Opens a segment of a copy that has just been completed.
pub fn open_mended(fs: &Arc<dyn DriveFs>, path: &str, access: Access) -> Result<LogFile> {
    let why =
        "the copy was complete a moment ago, and now the segment is missing, or its header is damaged or unreadable";
    LogFile::open(fs, path, access, true)?.ok_or_else(|| Error::corrupt(full_path(&**fs, path), why))
}

/// Removes a copy of the log that was left behind (C15). The kernel's pages of it may not be on the drive.
pub fn remove_copy(fs: &dyn DriveFs) -> Result<()> {
    let files = LogFiles::list(fs)?;
    let segments = files.segments.iter().map(|number| segment_path(*number));
    let checkpoints = files.checkpoints.iter().map(|number| checkpoint_path(*number));
    segments.chain(checkpoints).try_for_each(|path| unlink_if_there(fs, &path))
}

/// Removes files that the log up to `end` does not have: segments that were made ahead, and remains of an interrupted
/// change. No copy is read after this, because the others still list such files.
pub fn remove_others(fs: &dyn DriveFs, end: &LogEnd) -> Result<()> {
    let files = LogFiles::list(fs)?;
    let used = end.first_segment..=end.position.segment;
    let segments = files.segments.iter().filter(|number| !used.contains(number)).map(|number| segment_path(*number));
    let others = files.checkpoints.iter().filter(|number| end.checkpoint != Some(**number));
    let checkpoints = others.map(|number| checkpoint_path(*number));
    for path in segments.chain(checkpoints).chain(files.leftovers.iter().cloned()) {
        unlink_if_there(fs, &path)?;
    }
    Ok(())
}

/// Compares one copy with the visited groups, and writes those that differ.
struct Mender<'a> {
    fs: &'a Arc<dyn DriveFs>,
    /// A segment that another copy has whole.
    whole: Option<u64>,
    target: Option<Target>,
    /// Numbers of the segments that have visited groups.
    visited: Vec<u64>,
    /// The first difference.
    found: Option<String>,
}

/// The file of the copy that is compared.
struct Target {
    header: FileHeader,
    kind: TargetKind,
}

enum TargetKind {
    /// The file was there. It was changed after this moment, if at all.
    Existing { file: LogFile, is_changed: bool, since: Since },
    /// It is made anew, and gets its name when it has all groups (C54).
    New(Making),
}

impl Mender<'_> {
    fn end_target(&mut self) -> Result<()> {
        let Some(Target { header, kind }) = self.target.take() else { return Ok(()) };
        match kind {
            TargetKind::Existing { file, is_changed: true, since } => file.into_file().sync_since(since),
            TargetKind::New(mut making) => {
                if let FileKind::Segment { bytes } = header.kind {
                    making.fill_to(bytes)?;
                }
                making.finish().map(drop)
            }
            TargetKind::Existing { is_changed: false, .. } => Ok(()),
        }
    }

    fn begin_target(&mut self, header: &FileHeader) -> Result<()> {
        let path = path_of(header);
        let is_cut = |file: &LogFile| self.whole == Some(header.number) && file.is_cut();
        let existing = LogFile::open(self.fs, &path, Access::WRITE, true)?;
        let existing = existing.filter(|file| file.header == *header && !is_cut(file));
        if existing.is_none() {
            self.note(|| format!("{path} was missing or damaged"));
        }
        let kind = match existing {
            Some(file) => TargetKind::Existing { file, is_changed: false, since: Since::now() },
            None => TargetKind::New(Making::begin(self.fs, path, header)?),
        };
        self.target = Some(Target { header: *header, kind });
        Ok(())
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if self.found.is_none() {
            self.found = Some(what());
        }
    }

    fn write(&mut self, visit: &Visit<'_>) -> Result<()> {
        if self.target.as_ref().is_none_or(|target| target.header != *visit.header) {
            self.end_target()?;
            self.begin_target(visit.header)?;
            if let FileKind::Segment { .. } = visit.header.kind {
                self.visited.push(visit.header.number);
            }
        }
        let Some(target) = &mut self.target else { return Ok(()) };
        match &mut target.kind {
            TargetKind::New(making) => {
                making.fill_to(visit.offset)?;
                making.append(visit.bytes)?;
            }
            TargetKind::Existing { file, is_changed, .. } => {
                if file.bytes(visit.offset, visit.bytes.len()).is_ok_and(|own| own == visit.bytes) {
                    return Ok(());
                }
                *is_changed = true;
                let path = file.path().to_owned();
                file.write(visit.bytes, visit.offset)?;
                let sequence = visit.group.header.sequence;
                self.note(|| format!("{path} lacked group {sequence}"));
            }
        }
        Ok(())
    }
}

impl Replay for Mender<'_> {
    fn reset(&mut self) {
        self.target = None;
        self.visited.clear();
    }

    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        Ok(self.write(visit)?)
    }
}

/// Makes the first segment of a new log on a drive, with its first group.
pub fn make_first(fs: &Arc<dyn DriveFs>, header: &FileHeader, group: &[u8]) -> Result<()> {
    let since = Since::now();
    fs.make_dir(LOG).map_err(failed("create", &**fs, LOG))?;
    sync_dir(&**fs, "", since)?;
    let file = make_segment(fs, header)?;
    file.durably(|| fs.write_at(file.handle(), group, BLOCK_BYTES).map_err(failed("write", &**fs, file.path())))
}
