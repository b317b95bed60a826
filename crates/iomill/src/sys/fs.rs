//! The file operations of one drive that the catalog and the parts need, as a trait. So a simulated drive
//! (`iomill-sim`) can replace a real one.
//!
//! Goals: few operations, each with the meaning of its system call. Every path is relative to `<drive>/iomill` and
//! never leaves it. Non-goals: the data path. Engines read and write parts; `read_at` and `write_at` here serve labels,
//! records and lengths.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fsyncs::{FsyncFailures, Since};
pub use super::holder::Holder;
use crate::error::{Error, Result};

/// An open file of a drive: a descriptor number, or a number that a simulated drive chose for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub i32);

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Create the file (mode 1600). Fails if it exists.
    pub create: bool,
    /// Open the file for writing, too.
    pub write: bool,
    /// Ask for direct I/O. If the file system refuses it, the file is opened buffered, and `alignment` shows that.
    pub direct: bool,
}

impl Access {
    /// An existing file, for reading.
    pub const READ: Access = Access { create: false, write: false, direct: false };
    /// An existing file, for reading and writing.
    pub const WRITE: Access = Access { create: false, write: true, direct: false };
    /// A new file, for reading and writing.
    pub const CREATE: Access = Access { create: true, write: true, direct: false };

    /// The same access with direct I/O.
    pub const fn direct(self) -> Access {
        Access { direct: true, ..self }
    }
}

/// The alignment that I/O on a file needs, in bytes. Both are 1 if the file is open buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets and lengths are multiples of this.
    pub offset: u32,
    /// Memory addresses are multiples of this.
    pub memory: u32,
}

impl Alignment {
    /// No demands: buffered I/O.
    pub const NONE: Alignment = Alignment { offset: 1, memory: 1 };

    /// Whether the file is open for direct I/O.
    pub fn is_direct(self) -> bool {
        self.offset > 1
    }
}

/// A kind of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// One of many readers.
    Shared,
    /// The one writer.
    Exclusive,
}

/// The identity of a file or directory, whatever its path. On some file systems files share one
/// ([`Stamp::is_unique`]). A drive without inode numbers hashes its location instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The number of the file system's device.
    pub device: u64,
    /// The inode number on that device.
    pub inode: u64,
}

/// The version of an open file's contents, as far as the file system records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The file.
    pub identity: Identity,
    /// Whether no other file has this identity. A server may give the files of several devices equal numbers (FUSE,
    /// virtiofs, 9P), and a snapshot may have the numbers of its origin (bcachefs).
    pub is_unique: bool,
    /// The length in bytes.
    pub len: u64,
    /// The time of the last change of its bytes, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// The time of the last change of its bytes or its inode, in nanoseconds since 1970. No program can set it.
    pub changed_ns: i128,
    /// Whether a change from now on gets another time.
    pub is_settled: bool,
    /// The number of the mount, which the kernel never reuses. 0 if it is not known.
    pub mount: u64,
    /// Why cached pages must not outlive the file's last handle: a later change might not show in the times. `None` if
    /// they may.
    pub drops: Option<&'static str>,
}

/// The file system and device under a drive's directory, for messages and for placement.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Ground {
    /// The type of the file system, such as `ext4`. If the table of mounts does not show it, a name by `statfs`, such
    /// as `ext2/3/4`.
    pub file_system: String,
    /// The block device, such as `nvme0n1`; empty if it is not known.
    pub device: String,
    /// The number of the device. Directories with equal numbers share its limits.
    pub device_id: u64,
    /// The NUMA node of the device, if it has one.
    pub node: Option<u32>,
    /// The CPUs near the device; empty means any.
    pub cpus: Vec<usize>,
    /// The size of the file system in bytes.
    pub total_bytes: u64,
    /// The bytes that are free for this user.
    pub free_bytes: u64,
}

/// One drive's directory `<drive>/iomill`, or one plain file.
///
/// Errors are plain `io::Error`; callers add the drive and the path. No operation follows a symbolic link.
pub trait DriveFs: Send + Sync + fmt::Debug {
    /// The drive's path as the user gave it, made absolute, without `/iomill`.
    fn location(&self) -> &Path;
    /// The directory to which paths are relative.
    fn root(&self) -> PathBuf {
        self.location().join("iomill")
    }
    /// The identity of the directory, whatever its path. Two ways to the same directory (a bind mount, a symbolic link)
    /// give one identity. A copy of the directory has another.
    fn identity(&self) -> io::Result<Identity> {
        let inode = crate::sys::hash::xxh3_64(self.location().as_os_str().as_encoded_bytes());
        Ok(Identity { device: u64::MAX, inode })
    }
    /// Makes one directory (mode 0700). An existing directory is no error.
    fn make_dir(&self, dir: &str) -> io::Result<()>;
    /// Whether [`Platform::attach`](crate::engine::platform::Platform::attach) has created the directory
    /// `<drive>/iomill` for this value.
    fn is_new(&self) -> bool {
        false
    }
    /// Removes an empty directory (`""` is `<drive>/iomill` itself).
    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("this drive keeps its directories ({dir:?})")))
    }
    /// The names in a directory, in no order, without `.` and `..`.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Opens a file.
    fn open(&self, path: &str, access: Access) -> io::Result<Handle>;
    /// Closes a file. I/O in flight on it goes on.
    fn close(&self, handle: Handle);
    /// Reads at an offset. Returns the number of bytes: fewer than `buf` has only at the end of the file.
    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all bytes at an offset.
    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The length of an open file in bytes.
    fn len(&self, handle: Handle) -> io::Result<u64>;
    /// Cuts or extends (with a hole) an open file.
    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()>;
    /// Allocates space for a range, and makes the file at least that long. Bytes that were never written read as zero.
    /// If the file system cannot allocate, the file is extended with a hole.
    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// Makes a range within the file read as zero, whatever its alignment. The length stays the same. No other code
    /// writes to the range's pages meanwhile.
    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// The drive's failed fsyncs. [`DriveFs::sync_data`] and [`DriveFs::sync_dir`] note their own failures there.
    fn fsync_failures(&self) -> &Arc<FsyncFailures>;
    /// The owner of a file or directory, as the number of a user, if the directory `<drive>/iomill` has another owner.
    fn other_owner(&self, path: &str) -> io::Result<Option<u32>> {
        let _none_has_users = path;
        Ok(None)
    }
    /// Gives a file or directory to the owner of the directory `<drive>/iomill`. Only root can do that.
    fn give_to_owner(&self, path: &str) -> io::Result<()> {
        let _none_has_users = path;
        Ok(())
    }
    /// Locks the directory `<drive>/iomill` itself, without waiting. So an array stays locked even if its file `lock`
    /// is removed. Returns `false` if another process holds the lock. Does nothing where a file system cannot lock
    /// directories.
    fn lock_directory(&self, lock: Lock) -> io::Result<bool> {
        let _none_has_locks = lock;
        Ok(true)
    }
    /// The handle of the directory, as long as `self` lives. The lock of [`DriveFs::lock_directory`] lasts until all that
    /// have the handle open have closed it, also the kernel for I/O in flight.
    fn directory(&self) -> Option<Handle> {
        None
    }
    /// The holder of the directory's lock.
    fn directory_holder(&self) -> Holder {
        Holder::Unknown
    }
    /// Releases the directory's lock.
    fn unlock_directory(&self) -> io::Result<()> {
        Ok(())
    }
    /// Whether an open file was created by [`DriveFs::open`] for an array, whatever path led to it.
    fn is_of_array(&self, handle: Handle) -> io::Result<bool> {
        let _no_plain_files = handle;
        Ok(false)
    }
    /// Returns the space of a range to the file system. The range then reads as zero, and the length stays the same. No
    /// other code uses the range. Fails if the file system cannot do that.
    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// The space that an open file takes on its drive, in bytes.
    fn allocated(&self, handle: Handle) -> io::Result<u64>;
    /// The start and end, in bytes, of the first range at or after an offset that may hold data. All bytes before it
    /// read as zero. Bytes beyond the end of the file count as data, so that a read finds the end.
    fn next_data(&self, handle: Handle, offset: u64) -> io::Result<(u64, u64)> {
        let _no_holes_are_known = handle;
        Ok((offset, u64::MAX))
    }
    /// Makes a file's data and length durable.
    fn sync_data(&self, handle: Handle) -> io::Result<()>;
    /// Makes a directory's entries durable (`""` is `<drive>/iomill` itself). Call [`sync_dir`](self::sync_dir()),
    /// which compares.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Renames a file atomically, and replaces a file at `to`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Unlinks a file.
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// Locks an open file, without waiting. Returns `false` if another process or handle holds the lock.
    fn lock(&self, handle: Handle, lock: Lock) -> io::Result<bool>;
    /// The holder of a lock on this file.
    fn lock_holder(&self, handle: Handle) -> Holder {
        let _unknown = handle;
        Holder::Unknown
    }
    /// Releases a lock, also if a ring still has the file open.
    fn unlock(&self, handle: Handle) -> io::Result<()>;
    /// The stamp of an open file. Only plain files need it.
    fn stamp(&self, handle: Handle) -> io::Result<Stamp> {
        let _none_is_kept = handle;
        Err(io::Error::new(io::ErrorKind::Unsupported, "this drive has no plain files"))
    }
    /// The alignment that I/O on an open file needs.
    fn alignment(&self, handle: Handle) -> io::Result<Alignment>;
    /// The file system and device under the drive, with their sizes.
    fn ground(&self) -> io::Result<Ground>;
}

/// Makes those changes of a directory's entries durable that began at this moment or later (`""` is `<drive>/iomill`
/// itself). An error also if another fsync of the drive has failed since (rule 4 of `fsyncs`).
pub fn sync_dir(fs: &dyn DriveFs, dir: &str, since: Since) -> Result<()> {
    fs.sync_dir(dir).map_err(|error| Error::in_array("sync", fs.root().join(dir), error))?;
    check_fsyncs(fs, since)
}

/// After an fsync that has ended well: an error if another fsync of the drive has failed since a moment.
pub fn check_fsyncs(fs: &dyn DriveFs, since: Since) -> Result<()> {
    if fs.fsync_failures().any_since(since) { Err(Error::fsync_failed(fs.location())) } else { Ok(()) }
}

/// An open file that closes itself.
#[derive(Debug)]
pub struct DriveFile {
    fs: Arc<dyn DriveFs>,
    handle: Handle,
    path: String,
}

impl DriveFile {
    /// Opens the file at `path` on `fs`.
    pub fn open(fs: &Arc<dyn DriveFs>, path: &str, access: Access) -> io::Result<DriveFile> {
        let handle = fs.open(path, access)?;
        Ok(DriveFile { fs: Arc::clone(fs), handle, path: path.to_owned() })
    }

    /// An open plain file, the only file of `fs`.
    pub fn of_plain(fs: Arc<dyn DriveFs>, handle: Handle) -> DriveFile {
        DriveFile { fs, handle, path: String::new() }
    }

    /// The handle, valid while `self` lives.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The drive that holds the file.
    pub fn fs(&self) -> &Arc<dyn DriveFs> {
        &self.fs
    }

    /// Makes writes durable that began at this moment or later. An error also if another fsync of the drive has failed
    /// since (rule 4 of `fsyncs`).
    pub fn sync_since(&self, since: Since) -> Result<()> {
        self.fs.sync_data(self.handle).map_err(|error| Error::io("sync", self.full_path(), error))?;
        check_fsyncs(&*self.fs, since)
    }

    /// Writes to the file, and makes that durable.
    pub fn durably(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let since = Since::now();
        write()?;
        self.sync_since(since)
    }

    /// The path within the drive's directory. Empty for a plain file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The whole path, for messages.
    pub fn full_path(&self) -> PathBuf {
        if self.path.is_empty() { self.fs.root() } else { self.fs.root().join(&self.path) }
    }
}

impl Drop for DriveFile {
    fn drop(&mut self) {
        self.fs.close(self.handle);
    }
}
