//! The stores that are compared, all on one drive.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use iomill::{Array, ArrayOptions, RuntimeOptions};
use iomill_object_store::v0_14::IomillStore;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

/// Where the data are: a directory of ordinary files, and four directories of an array.
#[derive(Debug)]
pub struct Place {
    plain: PathBuf,
    drives: [PathBuf; 4],
}

/// So often an array in use is opened again, with this pause.
const OPENINGS_MAX: u32 = 100;
const BETWEEN_OPENINGS: Duration = Duration::from_millis(50);

/// A store of any kind.
pub type Store = Arc<dyn ObjectStore>;

impl Place {
    /// Below a directory.
    pub fn new(dir: &Path) -> Place {
        let drive = |number| dir.join("array").join(format!("drive{number}"));
        Place { plain: dir.join("plain"), drives: [0, 1, 2, 3].map(drive) }
    }

    /// Makes the directories and the array, if they are not there yet.
    pub fn make(&self) -> Result<()> {
        for dir in self.drives.iter().chain([&self.plain]) {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let empty = self.drives[0]
            .read_dir()
            .with_context(|| format!("cannot list {}", self.drives[0].display()))?
            .next()
            .is_none();
        if empty {
            Array::create(&self.drives)?.close()?;
        }
        Ok(())
    }

    /// The directory of ordinary files.
    pub fn plain(&self) -> &Path {
        &self.plain
    }

    /// The local file system of object_store. With `fsync` a put is durable when it returns.
    pub fn local(&self, fsync: bool) -> Result<Store> {
        Ok(Arc::new(LocalFileSystem::new_with_prefix(&self.plain)?.with_fsync(fsync)))
    }

    /// iomill over the ordinary files, with a cache of its own.
    pub fn iomill_plain(&self, cache_bytes: u64) -> Result<Store> {
        let runtime = RuntimeOptions::new().cache_bytes(cache_bytes).start()?;
        Ok(Arc::new(IomillStore::plain_with(&self.plain, &runtime)?))
    }

    /// iomill over the array.
    pub fn iomill_array(&self, cache_bytes: u64) -> Result<Store> {
        let open = || ArrayOptions::new().cache_bytes(cache_bytes).open(&self.drives[0]);
        let mut opened = open();
        // The contender of the row before may have ended a moment ago. The kernel lets go of a ring's files after the end of its process.
        for _ in 0..OPENINGS_MAX {
            if !matches!(opened, Err(iomill::Error::Locked { .. })) {
                break;
            }
            std::thread::sleep(BETWEEN_OPENINGS);
            opened = open();
        }
        Ok(Arc::new(IomillStore::array(opened?)))
    }
}
