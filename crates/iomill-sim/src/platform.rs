//! The platform of the simulated machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use iomill::engine::platform::{Choice, PlainPlace, Platform};
use iomill::engine::{Engine, EngineConfig, EngineKind};
use iomill::sys::clock::Clock;
use iomill::sys::fs::{Access, DriveFile, DriveFs, Handle};

use crate::engine::SimEngine;
use crate::errno;
use crate::fault::Kind;
use crate::fs::SimFs;
use crate::state::CLOCK_NS;
use crate::world::World;

/// A view of a [`World`] during one boot (or process). A view of an earlier boot cannot act any more.
#[derive(Debug)]
pub(crate) struct SimPlatform {
    pub world: World,
    pub boot: u64,
}

impl World {
    /// The machine's platform. It is valid until the machine crashes or reboots, or the process is killed. Take a new
    /// one then.
    pub fn platform(&self) -> Arc<dyn Platform> {
        Arc::new(SimPlatform { world: self.clone(), boot: self.state().boot })
    }
}

impl Platform for SimPlatform {
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>> {
        let mut state = self.world.state();
        state.check_boot(self.boot)?;
        let Some(drive) = state.drives.iter().position(|drive| drive.plugged && drive.path == path) else {
            return Err(errno(libc::ENOENT));
        };
        state.enter(self.boot, drive, Kind::Attach, "")?.go()?;
        if !state.drives[drive].disk.made {
            if !create {
                return Err(errno(libc::ENOENT));
            }
            state.drives[drive].disk.made = true;
            state.effect()?;
        }
        drop(state);
        Ok(Arc::new(SimFs::new(self.world.clone(), drive, path.to_owned(), self.boot)))
    }

    /// Plain files are directly on a drive, in the directory that an array on it would have.
    fn plain(&self, path: &Path, access: Access) -> io::Result<PlainPlace> {
        let (Some(drive), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
            return Err(errno(libc::EINVAL));
        };
        let fs = self.attach(drive, access.create)?;
        let existing = Access { create: false, ..access };
        let open = match DriveFile::open(&fs, name, existing) {
            Err(error) if access.create && error.kind() == io::ErrorKind::NotFound => {
                fs.close(fs.open(name, Access::CREATE)?);
                fs.sync_dir("")?;
                DriveFile::open(&fs, name, existing)?
            }
            opened => opened?,
        };
        Ok(PlainPlace::File(open))
    }

    fn neighbours(&self, near: &Path) -> Vec<PathBuf> {
        let state = self.world.state();
        let plugged = state.drives.iter().filter(|drive| drive.plugged).map(|drive| drive.path.clone());
        let (mut siblings, others): (Vec<_>, Vec<_>) = plugged.partition(|path| path.parent() == near.parent());
        siblings.extend(others);
        siblings
    }

    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        drive.alignment(probe)?;
        match wish {
            None | Some(EngineKind::Simulated) => Ok(Choice { kind: EngineKind::Simulated, why: None }),
            Some(other) => Err(unsupported(other)),
        }
    }

    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        if kind != EngineKind::Simulated {
            return Err(unsupported(kind));
        }
        Ok(Box::new(SimEngine::new(&self.world, self.boot, config)?))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SimClock { world: self.world.clone() })
    }

    fn unix_ns(&self) -> u64 {
        self.clock().now_ns()
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.world.state().chance.names.fill(bytes);
        Ok(())
    }

    fn threads(&self) -> bool {
        false
    }
}

fn unsupported(kind: EngineKind) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("the {kind} engine was asked for, but simulated drives have only the simulated engine"),
    )
}

/// The virtual clock. Each read of it takes a moment, so that a loop of reads ends.
#[derive(Debug)]
struct SimClock {
    world: World,
}

impl SimClock {
    fn advance(&self, time_ns: u64) -> u64 {
        let mut state = self.world.state();
        let until_ns = state.now_ns.saturating_add(time_ns);
        state.advance_to(until_ns);
        state.now_ns
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.advance(CLOCK_NS)
    }

    fn sleep(&self, time: Duration) {
        self.advance(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}
