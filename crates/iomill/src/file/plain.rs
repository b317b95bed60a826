//! Plain files: [`PlainFile`] is one that was found and opened, [`PlainParts`] is one or a list of them as a
//! [`Backing`]. [`Claim`] keeps a file from being open for reading and for writing at the same time in this process.
//!
//! Goals: a file is identified by device and inode, and for reading also by its version, and also by its path where its
//! file system may give two files one number; a list reads as one file.
//! Non-goals: which queue serves a device (`api::runtime`), and the length (rule 6 in `file`).

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backing::{Backing, BackingKind, Part, Place};
use super::durable::DurableLength;
use super::mark::Mark;
use super::{FileState, MAX_FILE_BYTES};
use crate::catalog::Id;
use crate::drive::PIECE_BYTES;
use crate::engine::platform::{PlainPlace, Platform};
use crate::engine::{BY_DESCRIPTOR, FileRef};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::sys::fs::{Access, Alignment, DriveFile, Identity, Stamp};
use crate::sys::hash::xxh3_128;
use crate::sys::process::PerProcess;
use crate::sys::sync::{AtomicU64, Mutex, Ordering, lock};

/// A block of a plain file: as long as the longest piece, because all blocks are on one drive.
const BLOCK_BYTES: u64 = PIECE_BYTES as u64;

/// An open plain file that is not yet part of a file state.
#[derive(Debug)]
pub struct PlainFile {
    /// The open file.
    pub open: DriveFile,
    /// Its identity and version.
    pub stamp: Stamp,
    /// The alignment that direct I/O on it needs.
    pub align: Alignment,
}

impl PlainFile {
    /// Finds and opens a file.
    pub fn open(platform: &dyn Platform, path: &Path, access: Access) -> Result<PlainFile> {
        let failed = |action| move |source| Error::io(action, path, source);
        let open = match platform.plain(path, access).map_err(failed("open"))? {
            PlainPlace::File(open) => open,
            PlainPlace::OfArray(drive) => {
                let what = format!("opening {} as a plain file", path.display());
                let why = "it belongs to an array with a drive at";
                let help = "open the array, and the file in it by its name";
                return Err(Error::invalid(what, format!("{why} {}", drive.display())).advise(help));
            }
        };
        // A hard link or a mount may lead to it by another path.
        if open.fs().is_of_array(open.handle()).map_err(failed("examine"))? {
            let what = format!("opening {} as a plain file", path.display());
            let help =
                "open the array, and the file in it by its name. If it is none, take the sticky bit away (`chmod -t`)";
            return Err(Error::invalid(what, "its mode is 1600, so it is a file of an array").advise(help));
        }
        let stamp = open.fs().stamp(open.handle()).map_err(failed("examine"))?;
        let align = open.fs().alignment(open.handle()).map_err(failed("examine"))?;
        Ok(PlainFile { open, stamp, align })
    }

    /// Reads the stamp of the file again.
    fn look(&mut self) -> Result<()> {
        let stamp = self.open.fs().stamp(self.open.handle());
        self.stamp = stamp.map_err(|source| Error::io("examine", self.open.full_path(), source))?;
        Ok(())
    }
}

/// Plain files that are to be opened as one.
#[derive(Debug)]
pub struct PlainList {
    pub files: Vec<PlainFile>,
    write: bool,
    /// The number of this opening.
    opening: u64,
}

/// Openings so far.
static OPENINGS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

impl PlainList {
    /// Finds and opens files.
    pub fn open(platform: &dyn Platform, paths: &[PathBuf], access: Access) -> Result<PlainList> {
        let files = paths.iter().map(|path| PlainFile::open(platform, path, access)).collect::<Result<_>>()?;
        Ok(PlainList { files, write: access.write, opening: OPENINGS.fetch_add(1, Ordering::Relaxed) })
    }

    /// Reads the stamps of all files again.
    pub fn look(&mut self) -> Result<()> {
        self.files.iter_mut().try_for_each(PlainFile::look)
    }

    /// The id under which the files are open as one. For files that are open for reading it includes their versions: a
    /// changed file is another file, and finds no earlier pages. If a file may change without a new version, each
    /// opening has an id of its own. Where files may share an identity, the id includes their paths.
    pub fn id(&self) -> Id {
        let mut bytes = vec![u8::from(self.write)];
        for file in &self.files {
            let Stamp { identity, is_unique, len, modified_ns, changed_ns, mount, .. } = file.stamp;
            bytes.extend([identity.device, identity.inode].into_iter().flat_map(u64::to_le_bytes));
            if !is_unique {
                bytes.extend(file.open.full_path().as_os_str().as_bytes());
                // No path has a zero.
                bytes.push(0);
            }
            if !self.write {
                bytes.extend([len, mount].into_iter().flat_map(u64::to_le_bytes));
                bytes.extend([modified_ns, changed_ns].into_iter().flat_map(i128::to_le_bytes));
            }
        }
        if !self.write && self.files.iter().any(|file| !file.stamp.is_settled) {
            bytes.extend(self.opening.to_le_bytes());
        }
        Id(xxh3_128(&bytes).to_le_bytes())
    }

    /// Claims all files for this process.
    pub fn claim(&self, exec: &Exec) -> Result<Claims> {
        let world = if exec.has_threads() { 0 } else { exec.instance() + 1 };
        let claim = |file: &PlainFile| {
            let busy = || Error::Busy { name: file.open.full_path().display().to_string() };
            Claim::new((world, file.stamp.identity), self.write).ok_or_else(busy)
        };
        Ok(Claims { _held: self.files.iter().map(claim).collect::<Result<_>>()? })
    }
}

/// The use of a plain file by this process.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    /// For reading, in this number of file states.
    Read(usize),
    Write,
}

/// A file, with 0 for the machine or the instance of its simulation.
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

/// The number of open files of each drive, by index.
#[derive(Debug)]
pub struct DriveUsers(Box<[AtomicU64]>);

impl DriveUsers {
    /// For this number of drives, without files.
    pub fn new(most: usize) -> Arc<DriveUsers> {
        Arc::new(DriveUsers((0..most).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Counts a file, until the result is dropped. The caller lets no other thread look for an idle drive meanwhile.
    pub fn hold(self: &Arc<Self>, drive: u16) -> DriveHold {
        self.0[usize::from(drive)].fetch_add(1, Ordering::Relaxed);
        DriveHold { drive, users: Arc::clone(self) }
    }

    /// The number of open files of a drive.
    pub fn count(&self, drive: u16) -> u64 {
        // Acquire: pairs with the Release in the drop of `DriveHold`, after which no I/O of that file is in flight.
        self.0[usize::from(drive)].load(Ordering::Acquire)
    }
}

/// The drive of an open file.
#[derive(Debug)]
pub struct DriveHold {
    pub drive: u16,
    users: Arc<DriveUsers>,
}

impl Drop for DriveHold {
    fn drop(&mut self) {
        self.users.0[usize::from(self.drive)].fetch_sub(1, Ordering::Release);
    }
}

/// The rights to have all files of a list open.
#[derive(Debug)]
pub struct Claims {
    _held: Vec<Claim>,
}

/// One plain file, or several as one.
#[derive(Debug)]
pub struct PlainParts {
    name: String,
    parts: Vec<Part>,
    /// Where each file begins, in bytes. The last entry is the end of the last file when it was opened.
    starts: Vec<u64>,
    is_known: bool,
    _claims: Claims,
    /// Dropped after the files.
    _drives: Vec<DriveHold>,
}

impl PlainParts {
    /// Makes the backing of `files`, each with its drive. There is at least one. Their stamps were read after the
    /// claims.
    fn new(exec: &Exec, files: Vec<(PlainFile, DriveHold)>, claims: Claims, write: bool) -> Result<PlainParts> {
        let is_known = !write && files.iter().all(|(file, _)| file.stamp.is_settled && file.stamp.drops.is_none());
        let first = files[0].0.open.full_path();
        let name = match files.len() {
            1 => first.display().to_string(),
            count => format!("{} and {} more", first.display(), count - 1),
        };
        let (mut parts, mut starts, mut drives) = (Vec::new(), vec![0], Vec::new());
        let mut end = 0u64;
        for (PlainFile { open, stamp, align }, drive) in files {
            end = end.saturating_add(stamp.len);
            if end > MAX_FILE_BYTES {
                return Err(Error::invalid(format!("{name}, of {end} bytes"), "no file is that long"));
            }
            starts.push(end);
            let file = FileRef { handle: open.handle(), key: exec.next_key() | BY_DESCRIPTOR };
            let mark = Mark::new(write && stamp.len > 0, open.fs().fsync_failures());
            parts.push(Part {
                open: Some(Arc::new(open)),
                file,
                drive: drive.drive,
                align,
                reserved: AtomicU64::new(stamp.len),
                mark,
            });
            drives.push(drive);
        }
        Ok(PlainParts { name, parts, starts, is_known, _claims: claims, _drives: drives })
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
        // The last file that begins at the offset or before; empty files have no bytes there. Offsets past the end
        // belong to the last file.
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
    pub fn open_plain(
        exec: &Arc<Exec>,
        files: Vec<(PlainFile, DriveHold)>,
        claims: Claims,
        write: bool,
    ) -> Result<FileState> {
        let parts = PlainParts::new(exec, files, claims, write)?;
        let len = parts.starts.last().copied().unwrap_or_default();
        FileState::new(exec, Box::new(parts), write, DurableLength { len })
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::engine::real::RealPlatform;

    /// Two files that a server gives one inode number, such as the first ones of two of its devices.
    ///
    /// Seen to fail without the path: the second was taken for the first, so a write to it changed the first one.
    #[test]
    fn files_that_share_a_number_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, "bytes").unwrap());
        for access in [Access::READ, Access::WRITE] {
            let open = |path: &PathBuf| PlainList::open(&RealPlatform::default(), std::slice::from_ref(path), access);
            let [mut a, mut b, mut again] = [&paths[0], &paths[1], &paths[0]].map(|path| open(path).unwrap());
            assert_ne!(a.id(), b.id());
            for is_unique in [true, false] {
                for list in [&mut a, &mut b, &mut again] {
                    let identity = Identity { device: 7, inode: 12 };
                    list.files[0].stamp = Stamp {
                        identity,
                        is_unique,
                        len: 5,
                        modified_ns: 0,
                        changed_ns: 0,
                        is_settled: true,
                        mount: 0,
                        drops: None,
                    };
                }
                assert_eq!(a.id(), again.id(), "one file");
                assert_eq!(a.id() == b.id(), is_unique);
            }
        }
    }

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
