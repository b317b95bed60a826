//! The world of an array: its drives, engines, clock and randomness. The real platform is the machine; the simulator
//! brings another.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Engine, EngineConfig, EngineKind};
use crate::sys::clock::Clock;
use crate::sys::fs::{Access, DriveFile, DriveFs, Handle};

/// The engine that suits a drive, and the reason if it is not a better one.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The engine.
    pub kind: EngineKind,
    /// One clear line, if it is not the first choice.
    pub why: Option<String>,
}

/// What is at the path of a plain file.
#[derive(Debug)]
pub enum PlainPlace {
    /// The file, open.
    File(DriveFile),
    /// A file of an array, with a drive there. It was not opened.
    OfArray(PathBuf),
}

/// A write that is to be durable.
#[derive(Clone, Copy, Debug)]
pub struct DurableWrite<'a> {
    /// The drive of the file.
    pub fs: &'a dyn DriveFs,
    /// The file, open for writing.
    pub handle: Handle,
    /// What to write.
    pub bytes: &'a [u8],
    /// Where to write it, in bytes.
    pub offset: u64,
}

/// What a directory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Footing {
    /// A file system of its own, or at least not that of `/`.
    Drive,
    /// The file system of `/`: it may be the mount point of a drive that is not mounted.
    Root,
}

/// The world in which an array lives.
pub trait Platform: Send + Sync + fmt::Debug {
    /// Attaches to the drive in directory `path`, which must exist. With `create` it makes `<path>/iomill` first.
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>>;

    /// What a directory is on. An error if there is no such directory.
    fn footing(&self, path: &Path) -> io::Result<Footing> {
        let _there_are_only_drives = path;
        Ok(Footing::Drive)
    }

    /// Finds and opens a plain file. With `access.create` it makes an empty one if there is none, durably. An error says what the path is, if
    /// it is no file.
    fn plain(&self, path: &Path, access: Access) -> io::Result<PlainPlace> {
        let what = format!("{} ({access:?}): this platform has no plain files", path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Directories in which an array's other drives may be, if they are not where the label says. These are the
    /// siblings of `near` and the roots of mounted file systems.
    fn neighbours(&self, near: &Path) -> Vec<PathBuf>;

    /// Chooses an engine for a drive. `probe` is an open file on it. `wish` demands one engine and allows no other. If
    /// no engine is suitable, the error says what was tried.
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice>;

    /// Makes an engine for the calling thread.
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>>;

    /// Lets go of a file, by its key, that is about to be closed for good and has no I/O in flight: what engines hold in common.
    fn forget(&self, key: u64) {
        let _none_is_held = key;
    }

    /// Writes to several files and makes that durable on each, at the same time if the platform can. The results are in the order of
    /// `writes`. No flush is tried twice. Files that are open for direct I/O get bytes that suit it.
    fn write_durably(&self, writes: &[DurableWrite<'_>]) -> Vec<io::Result<()>> {
        let one = |write: &DurableWrite<'_>| {
            write.fs.write_at(write.handle, write.bytes, write.offset)?;
            write.fs.sync_data(write.handle)
        };
        writes.iter().map(one).collect()
    }

    /// The clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Nanoseconds since the start of 1970 (UTC), for the times of files. They are only shown.
    fn unix_ns(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    /// Fills `bytes` with random bytes, for ids and names of temporary files.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Directories in which other processes can see the counters, the preferred one first. A simulation has none, and
    /// counts in its own memory.
    fn counter_directories(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether an array may start threads. A simulation says no. Then drive queues advance only when a call waits (or
    /// steps the array), all on one thread.
    fn threads(&self) -> bool;
}
