//! The world an array lives in: its drives, its engines, its clock, its randomness. The real one is the machine; the
//! simulator brings another.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Engine, EngineConfig, EngineKind};
use crate::sys::clock::Clock;
use crate::sys::fs::{DriveFs, Handle};

/// The engine that suits a drive, and why not a better one.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The engine.
    pub kind: EngineKind,
    /// One clear line where it is not the first choice.
    pub why: Option<String>,
}

/// Where an array lives.
pub trait Platform: Send + Sync + fmt::Debug {
    /// Attaches to the drive in directory `path` (which must exist); with `create`, makes `<path>/iomill` first.
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>>;

    /// Directories in which the other drives of an array may be found when they are not where the label says: the
    /// siblings of `near` and the roots of mounted file systems.
    fn neighbours(&self, near: &Path) -> Vec<PathBuf>;

    /// Chooses an engine for a drive. `probe` is an open file on it; `wish` asks for one engine and nothing else.
    /// Nothing suitable is an error that says what was tried.
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice>;

    /// Makes an engine, to be used by the calling thread.
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>>;

    /// The clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Fills `bytes` with randomness: ids and names of temporary files.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;

    /// Directories in which counters are shown to other processes, the preferred one first. A simulation has none, and counts
    /// in memory of its own.
    fn counter_directories(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Whether threads may be started. A simulation says no; then drive queues advance only when somebody waits
    /// (or steps the array), all on one thread.
    fn threads(&self) -> bool;
}
