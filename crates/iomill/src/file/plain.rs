//! Plain files: [`PlainFile`] is one that was found and opened, [`PlainParts`] is one or a list of them as a [`Backing`]. [`Claim`] keeps
//! a file from being open for reading and for writing at the same time in this process.
//!
//! Goals: a file is known by device and inode, and for reading also by its version; a list reads as one file. Non-goals: which queue
//! serves a device (`api::runtime`), and the length (rule 6 in `file`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::backing::{Backing, BackingKind, Part, Place};
use super::durable::DurableLength;
use super::mark::Mark;
use super::{FileState, MAX_FILE_BYTES};
use crate::catalog::Id;
use crate::drive::PIECE_BYTES;
use crate::engine::FileRef;
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::sys::fs::{Access, Alignment, DriveFile, Identity, Stamp};
use crate::sys::process::PerProcess;
use crate::sys::sync::{AtomicU64, Mutex, lock};

/// A block of a plain file: as long as the longest piece, because all blocks are on one drive.
const BLOCK_BYTES: u64 = PIECE_BYTES as u64;

/// How a plain file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainAccess {
    pub write: bool,
    /// Make an empty file if there is none.
    pub create: bool,
    /// Ask for direct I/O.
    pub direct: bool,
}

/// A plain file that is open, and not yet part of a file state.
#[derive(Debug)]
pub struct PlainFile {
    /// The open file.
    pub open: DriveFile,
    /// What tells it apart.
    pub stamp: Stamp,
    /// What direct I/O on it demands.
    pub align: Alignment,
}

impl PlainFile {
    /// Finds and opens a file.
    pub fn open(platform: &dyn Platform, path: &Path, access: PlainAccess) -> Result<PlainFile> {
        let failed = |action| move |source| Error::io(action, path, source);
        let place = platform.plain(path, access.create).map_err(failed("open"))?;
        if let Some(drive) = place.drive {
            let what = format!("opening {} as a plain file", path.display());
            let why = "it belongs to an array with a drive at";
            let help = "open the array, and the file in it by its name";
            return Err(Error::invalid(what, format!("{why} {}; {help}", drive.display())));
        }
        if place.is_new {
            place.fs.sync_dir("").map_err(failed("make durable the name of"))?;
        }
        let how = Access { create: false, write: access.write, direct: access.direct };
        let open = DriveFile::open(&place.fs, &place.name, how).map_err(failed("open"))?;
        let stamp = place.fs.stamp(open.handle()).map_err(failed("examine"))?;
        let align = place.fs.alignment(open.handle()).map_err(failed("examine"))?;
        if stamp.len > MAX_FILE_BYTES {
            let what = format!("length {} of {}", stamp.len, path.display());
            return Err(Error::invalid(what, "no file is that long"));
        }
        Ok(PlainFile { open, stamp, align })
    }
}

/// The id under which files are open as one. Files that are open for reading are known by their version, too: a file that has changed is
/// another one, and finds no pages of before.
pub fn id(files: &[PlainFile], write: bool) -> Id {
    let mut bytes = vec![u8::from(write)];
    for Stamp { identity, len, modified_ns, changed_ns, .. } in files.iter().map(|file| file.stamp) {
        bytes.extend([identity.device, identity.inode].into_iter().flat_map(u64::to_le_bytes));
        if !write {
            bytes
                .extend(len.to_le_bytes().into_iter().chain(modified_ns.to_le_bytes()).chain(changed_ns.to_le_bytes()));
        }
    }
    Id(xxh3_128(&bytes).to_le_bytes())
}

/// How this process has a plain file open.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    /// For reading, in so many file states.
    Read(usize),
    Write,
}

/// A file, and the world that it is in: 0 for the machine, else the instance of its simulation.
type Claimed = (u64, Identity);

static USES: PerProcess<Mutex<BTreeMap<Claimed, Use>>> = PerProcess::empty();

/// The right to have a plain file open, for reading beside other readers of this process, or for writing alone.
#[derive(Debug)]
struct Claim(Claimed);

impl Claim {
    fn new(claimed: Claimed, write: bool) -> Option<Claim> {
        let mut uses = lock(USES.get());
        match uses.get_mut(&claimed) {
            None => drop(uses.insert(claimed, if write { Use::Write } else { Use::Read(1) })),
            Some(Use::Read(count)) if !write => *count += 1,
            Some(_) => return None,
        }
        Some(Claim(claimed))
    }
}

impl Drop for Claim {
    /// Not in a child of a fork, where no file state is dropped (rule 3 of the fork).
    fn drop(&mut self) {
        let mut uses = lock(USES.get());
        match uses.get_mut(&self.0) {
            Some(Use::Read(count)) if *count > 1 => *count -= 1,
            _ => drop(uses.remove(&self.0)),
        }
    }
}

/// One plain file, or several as one.
#[derive(Debug)]
pub struct PlainParts {
    name: String,
    parts: Vec<Part>,
    /// Where each file begins, in bytes. The last entry is the end of the last file when it was opened.
    starts: Vec<u64>,
    is_known: bool,
    _claims: Vec<Claim>,
}

impl PlainParts {
    /// `files` with the drive of each. There is at least one.
    fn new(exec: &Exec, files: Vec<(PlainFile, u16)>, write: bool) -> Result<PlainParts> {
        let is_known = !write && files.iter().all(|(file, _)| file.stamp.is_settled);
        let first = files[0].0.open.full_path();
        let name = match files.len() {
            1 => first.display().to_string(),
            count => format!("{} and {} more", first.display(), count - 1),
        };
        let (mut parts, mut starts, mut claims) = (Vec::new(), vec![0], Vec::new());
        let world = if exec.has_threads() { 0 } else { exec.instance() + 1 };
        let mut end = 0u64;
        for (PlainFile { open, stamp, align }, drive) in files {
            let Some(claim) = Claim::new((world, stamp.identity), write) else {
                return Err(Error::Busy { name: open.full_path().display().to_string() });
            };
            claims.push(claim);
            end = end.saturating_add(stamp.len);
            if end > MAX_FILE_BYTES {
                return Err(Error::invalid(format!("a list of {end} bytes"), "no file is that long"));
            }
            starts.push(end);
            let file = FileRef { handle: open.handle(), key: exec.next_key() };
            let mark = Mark::new(write && stamp.len > 0);
            parts.push(Part {
                open: Some(Arc::new(open)),
                file,
                drive,
                align,
                reserved: AtomicU64::new(stamp.len),
                mark,
            });
        }
        Ok(PlainParts { name, parts, starts, is_known, _claims: claims })
    }

    fn is_list(&self) -> bool {
        self.parts.len() > 1
    }
}

impl Backing for PlainParts {
    fn kind(&self) -> BackingKind {
        if self.is_list() { BackingKind::List } else { BackingKind::Plain }
    }

    fn is_known(&self) -> bool {
        self.is_known
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn block_bytes(&self) -> u64 {
        BLOCK_BYTES
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn locate(&self, offset: u64) -> Place {
        let to_edge = |offset: u64| BLOCK_BYTES - offset % BLOCK_BYTES;
        if !self.is_list() {
            return Place { part: 0, block: offset / BLOCK_BYTES, offset, left: to_edge(offset) };
        }
        // The last file that begins there or before; empty files have no bytes there. What lies beyond the end is the last file's.
        let part = self.starts[..self.parts.len()].partition_point(|&start| start <= offset) - 1;
        let within = offset - self.starts[part];
        let left = to_edge(within).min(self.starts[part + 1].saturating_sub(offset)).max(1);
        Place { part, block: within / BLOCK_BYTES, offset: within, left }
    }

    fn part_bytes(&self, part: usize, len: u64) -> u64 {
        if self.is_list() { self.starts[part + 1].min(len).saturating_sub(self.starts[part]) } else { len }
    }

    fn unused_ranges(&self, _part: usize, _len: u64, _part_end: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// The length of a plain file is durable when its fdatasync has ended (rule 6 of the length).
    fn publish(&self, _len: u64) -> Result<()> {
        Ok(())
    }

    fn touch(&self) -> Result<()> {
        Ok(())
    }
}

impl FileState {
    /// Opens plain files as one, each with its drive. There is at least one, and one only for writing.
    pub fn open_plain(exec: &Arc<Exec>, files: Vec<(PlainFile, u16)>, write: bool) -> Result<FileState> {
        let parts = PlainParts::new(exec, files, write)?;
        let len = parts.starts.last().copied().unwrap_or_default();
        FileState::new(exec, Box::new(parts), write, DurableLength { len })
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_claimed_by_readers_or_by_a_writer() {
        let identity = (0, Identity { device: u64::MAX, inode: 7 });
        let readers = [Claim::new(identity, false), Claim::new(identity, false)];
        assert!(readers.iter().all(Option::is_some));
        assert!(Claim::new(identity, true).is_none());
        drop(readers);
        let writer = Claim::new(identity, true);
        assert!(writer.is_some());
        assert!(Claim::new(identity, true).is_none() && Claim::new(identity, false).is_none());
        drop(writer);
        assert!(Claim::new(identity, false).is_some());
    }
}
