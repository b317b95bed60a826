//! [`Tree`]: the ordinary files below a directory as objects, for reading. The name of an object is its path below the
//! directory. Symbolic links are followed, also out of the directory. Non-goals: files for writing.
//!
//! No poll waits for a file system: names outside the kernel's cache are looked up on another thread.

use std::fs::{File as StdFile, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iomill::{PlainOptions, Runtime};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::common::{Fault, Kind, Result, kind_of_io};
use crate::handles::{Handle, Handles};
use crate::known::{Found, Meta, Version};
use crate::stamp::Stamp;

mod walk;

pub use walk::Walk;
use walk::is_unfinished;

/// See the module.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    options: PlainOptions,
    handles: Handles<Stamp>,
}

/// The most files that stay open. Each has a descriptor.
const HANDLES_MOST: usize = 64;

impl Tree {
    pub fn new(root: &Path, runtime: Option<&Runtime>) -> Result<Tree> {
        let failed = |e: io::Error| Fault::other(format!("cannot open the directory {}: {e}", root.display()));
        let found = std::fs::metadata(root).map_err(failed)?;
        if !found.is_dir() {
            return Err(Fault::other(format!("{} is no directory; give the one above the files", root.display())));
        }
        let root = settled_path(root, &found).map_err(failed)?;
        let runtime = runtime.cloned().map_or_else(Runtime::shared, Ok)?;
        Ok(Tree { root, options: PlainOptions::new().runtime(&runtime), handles: Handles::new(HANDLES_MOST) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub async fn find(&self, name: &str) -> Result<Found> {
        let stamp = self.stamp(name).await.inspect_err(|fault| {
            if fault.kind == Kind::NotFound {
                self.handles.forget(name);
            }
        })?;
        let (meta, version) = (Meta::of_file(&stamp), Version::Plain(stamp));
        Ok(Found { meta, version, attributes: Default::default() })
    }

    /// Opens a file if it still has this stamp.
    pub async fn open(&self, name: &str, stamp: Stamp) -> Result<Option<Arc<Handle>>> {
        if let Some(handle) = self.handles.find(name, stamp) {
            return Ok(Some(handle));
        }
        let file = match self.options.open_async(self.root.join(name)).await {
            Ok(file) => file,
            Err(iomill::Error::Io { source, .. }) if kind_of_io(&source) == Kind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let handle = Arc::new(Handle::new(file));
        // A stamp that is the same before and after is the opened file's.
        if self.stamp(name).await? != stamp {
            return Ok(None);
        }
        if stamp.is_settled() {
            self.handles.hold(name, stamp, &handle, |name, stamp| self.is_current(name, stamp));
        }
        Ok(Some(handle))
    }

    pub fn entries(&self, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Walk {
        Walk::new(&self.root, prefix, after, delimiter)
    }

    async fn stamp(&self, name: &str) -> Result<Stamp> {
        if let Ok(known) = self.known(name) {
            return known;
        }
        let (path, name) = (self.root.join(name), name.to_owned());
        blocking::unblock(move || stamp_of(&name, std::fs::metadata(&path))).await
    }

    /// The stamp of a file with its path and inode in the kernel's cache. Fails if they are not there, or if the kernel
    /// cannot tell.
    fn known(&self, name: &str) -> Result<Result<Stamp>, Errno> {
        let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::CACHED);
        let file = openat2(CWD, self.root.join(name), flags, Mode::empty(), resolve)?;
        Ok(stamp_of(name, StdFile::from(file).metadata()))
    }

    /// Whether an open file has this stamp, as far as the kernel knows without a wait.
    fn is_current(&self, name: &str, stamp: Stamp) -> bool {
        match self.known(name) {
            Ok(known) => known.ok() == Some(stamp),
            // Linux before 5.12 and containers that forbid the call refuse it. The next get compares the stamp.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => true,
            // The file may be deleted. If it is not, the next get opens it again.
            Err(_) => false,
        }
    }
}

/// The path of a directory that does not depend on the working directory, and without symbolic links where that is the
/// same directory. The links of `/proc` lead elsewhere than their text says.
fn settled_path(root: &Path, found: &Metadata) -> io::Result<PathBuf> {
    let is_found = |other: &PathBuf| {
        let other = std::fs::metadata(other);
        other.is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
    };
    match std::fs::canonicalize(root).ok().filter(is_found) {
        Some(text) => Ok(text),
        None => std::path::absolute(root),
    }
}

fn stamp_of(name: &str, metadata: io::Result<Metadata>) -> Result<Stamp> {
    match metadata {
        Ok(metadata) if metadata.is_file() && !is_unfinished(name) => Ok(Stamp::of(&metadata)),
        Ok(_) => Err(Fault::new(Kind::NotFound, format!("{name:?} is no ordinary file; list what is below it"))),
        Err(error) => Err(Fault::new(kind_of_io(&error), format!("cannot examine {name:?}: {error}"))),
    }
}
