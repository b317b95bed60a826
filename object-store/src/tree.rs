//! [`Tree`]: the ordinary files below a directory as objects, for reading. The name of an object is its path below the directory. Symbolic links
//! are followed, also out of the directory. Non-goals: files for writing.
//!
//! No poll waits for a file system: what the kernel does not have in its cache of names is asked for on another thread.

use std::fs::{File as StdFile, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use iomill::{PlainOptions, Runtime};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::entries::{Entries, Meta};
use crate::fault::{Fault, Kind, Result, kind_of_io};
use crate::handles::{Handle, Handles};
use crate::source::{Found, Version};

mod walk;

pub use walk::Walk;

/// A file that has changed more lately may change again without another time: clocks of file systems tick 100 times a second or more often.
const SETTLED_NS: i128 = 100_000_000;

/// See the module.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    options: PlainOptions,
    handles: Handles<Stamp>,
}

/// What tells a file, and a content of a file, from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified_ns: i128,
    changed_ns: i128,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The etag is that of `LocalFileSystem`, so an etag that one of them gave holds for the other.
    fn meta(&self) -> Meta {
        let modified_us = (self.modified_ns / 1000).max(0);
        let seconds = i64::try_from(self.modified_ns.div_euclid(1_000_000_000)).unwrap_or(i64::MAX);
        let last_modified: Option<DateTime<Utc>> =
            DateTime::from_timestamp(seconds, self.modified_ns.rem_euclid(1_000_000_000) as u32);
        Meta {
            len_bytes: self.len_bytes,
            last_modified: last_modified.unwrap_or(DateTime::<Utc>::MAX_UTC),
            e_tag: format!("\"{:x}-{modified_us:x}-{:x}\"", self.inode, self.len_bytes),
        }
    }

    /// Whether another content would have another stamp.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
        now - self.changed_ns > SETTLED_NS
    }
}

impl Tree {
    pub fn new(root: &Path, runtime: Option<&Runtime>, handles: usize) -> Result<Tree> {
        let failed = |e: io::Error| Fault::other(format!("cannot open the directory {}: {e}", root.display()));
        let root = std::fs::canonicalize(root).map_err(failed)?;
        if !std::fs::metadata(&root).map_err(failed)?.is_dir() {
            return Err(Fault::other(format!("{} is no directory; give the one above the files", root.display())));
        }
        let runtime = runtime.cloned().map_or_else(Runtime::shared, Ok)?;
        Ok(Tree { root, options: PlainOptions::new().runtime(&runtime), handles: Handles::new(handles) })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub async fn find(&self, name: &str) -> Result<Found> {
        let stamp = self.stamp(name).await?;
        let (meta, version) = (stamp.meta(), Version::Plain(stamp));
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
        // If the stamp is the same before and after, it is that of the file that was opened.
        if self.stamp(name).await? != stamp {
            return Ok(None);
        }
        if stamp.is_settled() {
            // What the kernel has forgotten may as well be opened again.
            let is_current = |name: &str, stamp| self.known(name).is_some_and(|known| known.ok() == Some(stamp));
            self.handles.hold(name, stamp, &handle, is_current);
        }
        Ok(Some(handle))
    }

    pub fn entries(&self, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Entries {
        Entries::Plain(Box::new(Walk::new(&self.root, prefix, after, delimiter)))
    }

    async fn stamp(&self, name: &str) -> Result<Stamp> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let (path, name) = (self.root.join(name), name.to_owned());
        blocking::unblock(move || stamp_of(&name, std::fs::metadata(&path))).await
    }

    /// The stamp of a file whose path and inode are in the kernel's memory. `None` if they are not, or if the kernel cannot say that.
    fn known(&self, name: &str) -> Option<Result<Stamp>> {
        let (flags, resolve) = (OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::CACHED);
        // Linux before 5.12 and containers that forbid the call refuse it.
        let file = openat2(CWD, &self.root.join(name), flags, Mode::empty(), resolve).ok()?;
        Some(stamp_of(name, StdFile::from(file).metadata()))
    }
}

fn stamp_of(name: &str, metadata: io::Result<Metadata>) -> Result<Stamp> {
    match metadata {
        Ok(metadata) if metadata.is_file() && !is_unfinished(name) => Ok(Stamp::of(&metadata)),
        Ok(_) => Err(Fault::new(Kind::NotFound, format!("{name:?} is no ordinary file; list what is below it"))),
        Err(error) => Err(Fault::new(kind_of_io(&error), format!("cannot examine {name:?}: {error}"))),
    }
}

/// Whether a file is an upload that `LocalFileSystem` has not finished: its name is that of the object, `#` and a number.
fn is_unfinished(name: &str) -> bool {
    let Some((_, number)) = name.rsplit('/').next().and_then(|file| file.split_once('#')) else { return false };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}
