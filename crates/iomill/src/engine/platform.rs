//! The world of an array: its drives, engines, clock and randomness. The real platform is the machine; the simulator
//! brings another.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Engine, EngineConfig, EngineKind};
use crate::sys::clock::Clock;
use crate::sys::fs::{Access, DriveFile, DriveFs, Handle};
use crate::sys::fsyncs::Since;

/// The engine for a drive.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The engine.
    pub kind: EngineKind,
    /// Why it is not the first choice, in one line. `None` if it is.
    pub why: Option<String>,
}

/// The result of opening a plain file.
#[derive(Debug)]
pub enum PlainPlace {
    /// The open file.
    File(DriveFile),
    /// The directory of a drive: the path names a file of an array, which was not opened.
    OfArray(PathBuf),
}

/// A write that [`write_durably`] makes durable.
#[derive(Clone, Copy, Debug)]
pub struct DurableWrite<'a> {
    /// The drive of the file.
    pub fs: &'a dyn DriveFs,
    /// The file, open for writing.
    pub handle: Handle,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Their offset in the file, in bytes.
    pub offset: u64,
}

/// The kind of file system under a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footing {
    /// A file system of its own, or at least not that of `/`.
    Drive,
    /// The file system of `/`: the directory may be the mount point of a drive that is not mounted.
    Root,
}

/// Makes writes to several files durable, at the same time if the platform can. The results are in the order of
/// `writes`. A write also fails if any other fsync of its drive fails meanwhile, because that fsync may have lost the
/// write (rule 4 of `sys::fsyncs`).
pub fn write_durably(platform: &dyn Platform, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
    let since = Since::now();
    let mut results = platform.write_and_sync(writes);
    for (write, result) in writes.iter().zip(&mut results) {
        if result.is_ok() && write.fs.fsync_failures().any_since(since) {
            *result = Err(io::Error::from_raw_os_error(libc::EIO));
        }
    }
    results
}

/// The environment of an array.
pub trait Platform: Send + Sync + fmt::Debug {
    /// Attaches to the drive in directory `path`, which must exist. With `create` it makes `<path>/iomill` first.
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>>;

    /// The kind of file system under a directory. Fails if the directory does not exist.
    fn footing(&self, path: &Path) -> io::Result<Footing> {
        let _there_are_only_drives = path;
        Ok(Footing::Drive)
    }

    /// Opens a plain file. With `access.create` it creates an empty file if there is none, durably. If the path names
    /// no regular file, the error says what it names.
    fn plain(&self, path: &Path, access: Access) -> io::Result<PlainPlace> {
        let what = format!("{} ({access:?}): this platform has no plain files", path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// The directories to search for an array's other drives if the label's paths are out of date: the siblings of
    /// `near`, and the roots of mounted file systems.
    fn neighbours(&self, near: &Path) -> Vec<PathBuf>;

    /// Chooses an engine for a drive. `probe` is an open file on it. With a `wish` no other engine is chosen. If no
    /// engine works, the error says which were tried, and why each does not.
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice>;

    /// Makes an engine for the calling thread.
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>>;

    /// Drops the engines' shared hold on a file that is about to be closed for good. The file has no I/O in flight.
    fn forget(&self, key: u64) {
        let _none_is_held = key;
    }

    /// Writes to several files and syncs them, at the same time if the platform can. The results are in the order of
    /// `writes`. A failed fsync is not repeated, and counts in its drive's `fsync_failures`. The caller aligns writes
    /// to files that are open for direct I/O, and calls [`write_durably`].
    fn write_and_sync(&self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        let one = |write: &DurableWrite<'_>| {
            write.fs.write_at(write.handle, write.bytes, write.offset)?;
            write.fs.sync_data(write.handle)
        };
        writes.iter().map(one).collect()
    }

    /// The clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Nanoseconds since the start of 1970 (UTC), for the times of files. Users see them; nothing is decided by them.
    fn unix_ns(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    /// Fills `bytes` with random bytes, for ids and names of temporary files.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Directories in which other processes look for counters, the preferred one first. A simulation has none: its
    /// counters are in its own memory.
    fn counter_directories(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether an array may start threads. In a simulation it may not: drive queues then advance only while a call
    /// waits (or steps the array), all on one thread.
    fn threads(&self) -> bool;
}
