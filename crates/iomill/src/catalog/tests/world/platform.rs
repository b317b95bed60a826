//! The world as the platform of an array.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Dir, Inner, MemFs, World, errno};
use crate::engine::platform::{Choice, Platform};
use crate::engine::{Engine, EngineConfig, EngineKind};
use crate::sys::clock::Clock;
use crate::sys::fs::{DriveFs, Handle};
use crate::sys::hash::xxh3_64_with_seed;

#[derive(Debug)]
struct Pauses(World);

impl Clock for Pauses {
    fn now_ns(&self) -> u64 {
        panic!("the catalog has no clock");
    }

    fn sleep(&self, pause: Duration) {
        let mut inner = self.0.inner();
        assert!(pause <= Duration::from_secs(1));
        let Inner { ending, ending_directories, .. } = &mut *inner;
        // A lock without a known holder is waited for as well. It is not given back meanwhile.
        if let Some(waits) = [ending, ending_directories].into_iter().find(|waits| **waits > 0) {
            *waits -= 1;
        }
    }
}

impl Platform for World {
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>> {
        let mut inner = self.inner();
        let disk = *inner.places.get(path).ok_or_else(|| errno(libc::ENOENT))?;
        if !inner.disks[disk].dirs.contains_key("") {
            if !create {
                return Err(errno(libc::ENOENT));
            }
            inner.disks[disk].dirs.insert(String::new(), Dir::default());
        }
        Ok(Arc::new(MemFs { world: self.clone(), location: path.to_owned(), disk, fsync_failures: Arc::default() }))
    }

    fn neighbours(&self, _: &Path) -> Vec<PathBuf> {
        self.inner().places.keys().cloned().collect()
    }

    fn choose(&self, _: &dyn DriveFs, _: Handle, _: Option<EngineKind>) -> io::Result<Choice> {
        Err(errno(libc::ENOSYS))
    }

    fn engine(&self, _: EngineKind, _: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        Err(errno(libc::ENOSYS))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(Pauses(self.clone()))
    }

    fn unix_ns(&self) -> u64 {
        self.inner().ops
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut inner = self.inner();
        for chunk in bytes.chunks_mut(8) {
            inner.next += 1;
            let word = xxh3_64_with_seed(&inner.next.to_le_bytes(), 7).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }

    fn threads(&self) -> bool {
        self.inner().threads
    }
}
