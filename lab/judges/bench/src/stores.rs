//! The compared stores, all on one drive.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use iomill::{Array, ArrayOptions, RuntimeOptions};
use iomill_object_store::v0_14::IomillStore;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;

/// The places of the data: a directory of ordinary files, and four directories of an array.
#[derive(Debug)]
pub struct Place {
    plain: PathBuf,
    drives: [PathBuf; 4],
}

impl Place {
    /// Below a directory.
    pub fn new(dir: &Path) -> Place {
        let drive = |number| dir.join("array").join(format!("drive{number}"));
        Place { plain: dir.join("plain"), drives: [0, 1, 2, 3].map(drive) }
    }

    /// Makes the directories and the array, if they do not exist.
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
    pub fn local(&self, fsync: bool) -> Result<Opened> {
        let store = LocalFileSystem::new_with_prefix(&self.plain)?.with_fsync(fsync);
        Ok(Opened { store: Arc::new(store), array: None, is_iomill: false })
    }

    /// iomill over the ordinary files, with a cache of its own.
    pub fn iomill_plain(&self, cache_bytes: u64) -> Result<Opened> {
        let runtime = RuntimeOptions::new().cache_bytes(cache_bytes).start()?;
        Ok(Opened { store: Arc::new(IomillStore::plain_with(&self.plain, &runtime)?), array: None, is_iomill: true })
    }

    /// iomill over the array.
    pub fn iomill_array(&self, cache_bytes: u64) -> Result<Opened> {
        let array = ArrayOptions::new().cache_bytes(cache_bytes).open(&self.drives[0])?;
        Ok(Opened { store: Arc::new(IomillStore::array(array.clone())), array: Some(array), is_iomill: true })
    }
}

/// An open store. It must be closed: a process that just ends keeps the lock of its array for a moment longer, while
/// the kernel frees its rings, and then the next process finds the array in use.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// Whether it is iomill's store.
    pub is_iomill: bool,
    array: Option<Array>,
}

impl Opened {
    /// Closes the array, if there is one.
    pub fn close(self) -> Result<()> {
        drop(self.store);
        self.array.map_or(Ok(()), |array| Ok(array.close()?))
    }
}
