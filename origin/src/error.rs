//! [`Error`]: the reason why a cache cannot be opened. Non-goals: errors of gets (`fault`).

use std::io;
use std::path::PathBuf;

/// Why [`crate::Cache::open`] failed. A message says what failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has an invalid value.
    #[error("{what}: {why}")]
    Invalid {
        /// The option or the argument.
        what: &'static str,
        /// The problem, and the valid values.
        why: String,
    },
    /// A directory is missing, so its drive may not be mounted.
    #[error("{}: no such directory; mount the drive, or make the directory", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory has no drive of a cache, and may be the mount point of an unmounted drive.
    #[error("{}: the directory has no drive of a cache, and is on the file system of `/`, so its drive may not be mounted: mount the \
        drive, or allow this place by `Options::on_root(true)` (as `iomill-cache init` and `on_root=True` do)", path.display())]
    Unmounted {
        /// The directory.
        path: PathBuf,
    },
    /// A directory was a drive of the cache, and has no label now.
    #[error("{}: a drive of this cache was here, and is missing: mount the drive; if it was exchanged or emptied, make it a drive \
        again by `iomill-cache init` with all directories of the cache (or by `Options::anew(true)`)", path.display())]
    Gone {
        /// The directory.
        path: PathBuf,
    },
    /// The share of a drive is too small.
    #[error("{}: {bytes} bytes are too few for a drive, which has at least 2 regions of {region_bytes} bytes: free some space, or give \
        the cache more bytes",
        path.display())]
    Small {
        /// The directory of the drive.
        path: PathBuf,
        /// The bytes of its share.
        bytes: u64,
        /// The length of a region.
        region_bytes: u64,
    },
    /// The directories belong to two caches.
    #[error("{} belongs to the cache {found}, and the drives before it to {expected}; open each cache by its own directories, or \
        remove {}/iomill-origin",
        path.display(), path.display())]
    Foreign {
        /// The directory of the other cache.
        path: PathBuf,
        /// The id of the cache of the directories before it.
        expected: String,
        /// The id of its own cache.
        found: String,
    },
    /// The label of a drive is damaged, or of an unknown version.
    #[error("the label {}: {why}; to make the drive anew, remove the directory of the label", path.display())]
    Label {
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// A drive does not answer. A system call cannot be cancelled, so a thread continues to wait for it.
    #[error("{}: no answer within {within:?}; check the drive, and open the cache again when it answers", path.display())]
    Late {
        /// The directory.
        path: PathBuf,
        /// The bound of the wait.
        within: std::time::Duration,
    },
    /// The index in shared memory cannot be made.
    #[error("the index {} of {len_bytes} bytes: {source}; give it a directory with room by `Options::index_dir`", path.display())]
    Index {
        /// The file of the index.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// Its file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// An error of the library.
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
