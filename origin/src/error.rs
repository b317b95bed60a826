//! [`Error`]: why a cache cannot be opened. Non-goals: errors of gets (`fault`).

use std::io;
use std::path::PathBuf;

/// Why [`crate::Cache::open`] failed. A message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that it cannot have.
    #[error("{what}: {why}")]
    Invalid {
        /// The option or the argument.
        what: &'static str,
        /// What is wrong, and what is right.
        why: String,
    },
    /// A directory is not there, so its drive may not be mounted.
    #[error("{}: no such directory; mount the drive, or make the directory", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory has no drive of a cache, and may be the empty mount point of a drive that is not mounted.
    #[error("{}: no cache has a drive here, and the directory is on the file system of `/`, as the mount point of a drive that is not \
        mounted: mount the drive, or allow this place by `Options::on_root(true)` (`iomill-cache init` and `on_root=True` do)", path.display())]
    Unmounted {
        /// The directory.
        path: PathBuf,
    },
    /// A directory has been a drive of the cache, and has no label now.
    #[error("{}: a drive of this cache was here, and now there is none: mount the drive; if it was exchanged or emptied, begin it anew by \
        `iomill-cache init` with all directories of the cache (or `Options::anew(true)`)", path.display())]
    Gone {
        /// The directory.
        path: PathBuf,
    },
    /// The share of a drive is too small.
    #[error("{}: {bytes} bytes for a drive, which has at least 2 regions of {region_bytes} bytes: free some space, or give the cache more bytes",
        path.display())]
    Small {
        /// The directory of the drive.
        path: PathBuf,
        /// What it would have.
        bytes: u64,
        /// The length of a region.
        region_bytes: u64,
    },
    /// The directories belong to two caches.
    #[error("{} belongs to the cache {found}, and the drives before it to {expected}; open each cache by its own directories, or remove {}/iomill-origin",
        path.display(), path.display())]
    Foreign {
        /// The directory of the other cache.
        path: PathBuf,
        /// The id of the cache of the directories before it.
        expected: String,
        /// The id of its own cache.
        found: String,
    },
    /// The label of a drive is damaged, or of a version that this one does not know.
    #[error("the label {}: {why}; to begin the drive again, remove the directory that holds the label", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A drive does not answer. A call of the system cannot be ended from outside, so a thread waits for it on.
    #[error("{}: no answer within {within:?}; look after the drive, and open the cache again when it answers", path.display())]
    Late {
        /// The directory.
        path: PathBuf,
        /// How long it was waited for.
        within: std::time::Duration,
    },
    /// The index in shared memory cannot be made.
    #[error("the index {} of {len_bytes} bytes: {source}; give it a directory with room by `Options::index_dir`", path.display())]
    Index {
        /// The file of the index.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A call of the system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The library failed.
    #[error(transparent)]
    Iomill(#[from] iomill::Error),
}

/// A result of opening a cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }
}
