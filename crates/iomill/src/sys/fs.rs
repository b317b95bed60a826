//! The file operations that the catalog and the parts need of one drive, as a trait. So a simulated drive
//! (`iomill-sim`) can replace a real one.
//!
//! Goals: few operations, each with the meaning of its system call. Every path is relative to `<drive>/iomill` and
//! never leaves it. Non-goals: the data path. Reads and writes of parts go through an engine. `read_at` and `write_at`
//! here serve labels, records and lengths.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::flushes::FlushFailures;
pub use super::holder::Holder;

/// An open file of a drive: a descriptor number, or a number that a simulated drive chose for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub i32);

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Access {
    /// Create the file (mode 1600). It is an error if it exists.
    pub create: bool,
    /// Open for writing, too.
    pub write: bool,
    /// Ask for direct I/O. If the file system refuses, the file opens buffered, and `alignment` says so.
    pub direct: bool,
}

impl Access {
    /// An existing file, for reading.
    pub const READ: Access = Access { create: false, write: false, direct: false };
    /// An existing file, for reading and writing.
    pub const WRITE: Access = Access { create: false, write: true, direct: false };
    /// A new file, for reading and writing.
    pub const CREATE: Access = Access { create: true, write: true, direct: false };

    /// The same access with direct I/O asked for.
    pub const fn direct(self) -> Access {
        Access { direct: true, ..self }
    }
}

/// What direct I/O on a file demands, in bytes. `1` and `1` if the file is open buffered.
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

/// Which lock to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// One of many readers.
    Shared,
    /// The one writer.
    Exclusive,
}

/// Tells directories apart. For drives without inode numbers the location does that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Number of the file system's device.
    pub device: u64,
    /// Inode number on it.
    pub inode: u64,
}

/// What tells an open file and its contents apart from others, as far as the file system notes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which file it is.
    pub identity: Identity,
    /// Its length in bytes.
    pub len: u64,
    /// When its bytes were last changed, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// When its bytes or its entry were last changed. No program can set it.
    pub changed_ns: i128,
    /// Whether a change from now on gets another time.
    pub is_settled: bool,
    /// The mount, by a number that no other mount gets. 0 if it is not known.
    pub mount: u64,
    /// Why pages of the file go with its last handle: a later change might not show in the times. `None` if they may be used again.
    pub drops: Option<&'static str>,
}

/// The file system and device under a drive's directory, for messages and for placement.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Ground {
    /// File system type, such as `ext4`. Where the table of mounts does not show it, the name that `statfs` gives, such as
    /// `ext2/3/4`.
    pub file_system: String,
    /// Block device, such as `nvme0n1`; empty if it is not known.
    pub device: String,
    /// Identity of the device. Directories with equal ids share its limits.
    pub device_id: u64,
    /// NUMA node of the device, if it has one.
    pub node: Option<u32>,
    /// CPUs near the device; empty means any.
    pub cpus: Vec<usize>,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
    /// Bytes still free for this user.
    pub free_bytes: u64,
}

/// One drive's directory `<drive>/iomill`, or one plain file.
///
/// Errors are plain `io::Error`; callers add the drive and the path. No operation follows a symbolic link.
pub trait DriveFs: Send + Sync + fmt::Debug {
    /// The drive as its user named it, as an absolute path, without `/iomill`.
    fn location(&self) -> &Path;
    /// The directory that paths are relative to.
    fn root(&self) -> PathBuf {
        self.location().join("iomill")
    }
    /// Identifies the directory, whatever its path. The same directory reached in two ways (a bind mount, a symbolic
    /// link) has one identity. A copy of it has another.
    fn identity(&self) -> io::Result<Identity> {
        let inode = xxhash_rust::xxh3::xxh3_64(self.location().as_os_str().as_encoded_bytes());
        Ok(Identity { device: u64::MAX, inode })
    }
    /// Makes one directory (mode 0700). If it exists already, that is not an error.
    fn make_dir(&self, dir: &str) -> io::Result<()>;
    /// Whether [`Platform::attach`](crate::engine::platform::Platform::attach) has made the directory `<drive>/iomill` for this value.
    fn is_new(&self) -> bool {
        false
    }
    /// Removes an empty directory (`""` is `<drive>/iomill` itself).
    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("this drive keeps its directories ({dir:?})")))
    }
    /// The names in a directory, without `.` and `..`, in no order.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Opens a file.
    fn open(&self, path: &str, access: Access) -> io::Result<Handle>;
    /// Closes a file. I/O in flight on it continues unharmed.
    fn close(&self, handle: Handle);
    /// Reads at an offset. It returns fewer bytes than asked for only at the end of the file.
    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all bytes at an offset.
    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Length of an open file in bytes.
    fn len(&self, handle: Handle) -> io::Result<u64>;
    /// Cuts or extends (with a hole) an open file.
    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()>;
    /// Gives the range real space, and makes the file at least that long. Bytes that were never written read as zero.
    /// If the file system cannot do that, it extends the file with a hole.
    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// Makes a range within the file read as zero, whatever its alignment. The length stays. No other code writes to its pages
    /// meanwhile.
    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// The flushes of the drive that have failed. [`DriveFs::sync_data`] notes its own failures there.
    fn flush_failures(&self) -> &Arc<FlushFailures>;
    /// Which user has a file or directory, if that is another one than the user of the directory `<drive>/iomill`.
    fn other_owner(&self, path: &str) -> io::Result<Option<u32>> {
        let _none_has_users = path;
        Ok(None)
    }
    /// Gives a file or directory to the user of the directory `<drive>/iomill`. Only root can do that.
    fn give_to_owner(&self, path: &str) -> io::Result<()> {
        let _none_has_users = path;
        Ok(())
    }
    /// Locks the directory `<drive>/iomill` itself, without waiting. So an array stays locked if its file `lock` is removed. Returns
    /// `false` if another process holds it. Where directories have no locks, this does nothing.
    fn lock_directory(&self, lock: Lock) -> io::Result<bool> {
        let _none_has_locks = lock;
        Ok(true)
    }
    /// What holds such a lock.
    fn directory_holder(&self) -> Holder {
        Holder::Unknown
    }
    /// Gives such a lock back.
    fn unlock_directory(&self) -> io::Result<()> {
        Ok(())
    }
    /// Whether an open file was made by [`DriveFs::open`] for an array, whatever path leads to it.
    fn is_of_array(&self, handle: Handle) -> io::Result<bool> {
        let _no_plain_files = handle;
        Ok(false)
    }
    /// Gives the space of a range back to the file system. The range reads as zero, and the length stays. The caller holds the range alone. An
    /// error where the file system cannot do that.
    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()>;
    /// Bytes of the drive that an open file takes.
    fn allocated(&self, handle: Handle) -> io::Result<u64>;
    /// The first range at or after an offset that may hold data: its start and its end in bytes. Before it all bytes read as zero. What is
    /// beyond the end of the file counts as data, so that a read tells.
    fn next_data(&self, handle: Handle, offset: u64) -> io::Result<(u64, u64)> {
        let _no_holes_are_known = handle;
        Ok((offset, u64::MAX))
    }
    /// Makes a file's data and length durable.
    fn sync_data(&self, handle: Handle) -> io::Result<()>;
    /// Makes a directory's entries durable (`""` is `<drive>/iomill` itself).
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Renames, replacing what is at `to`, atomically.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Unlinks a file.
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// Takes a lock without waiting. Returns `false` if another process or handle holds it.
    fn lock(&self, handle: Handle, lock: Lock) -> io::Result<bool>;
    /// What holds a lock on this file.
    fn lock_holder(&self, handle: Handle) -> Holder {
        let _unknown = handle;
        Holder::Unknown
    }
    /// Gives a lock back, also if a ring still refers to the file.
    fn unlock(&self, handle: Handle) -> io::Result<()>;
    /// What tells this open file apart. Only plain files need it.
    fn stamp(&self, handle: Handle) -> io::Result<Stamp> {
        let _none_is_kept = handle;
        Err(io::Error::new(io::ErrorKind::Unsupported, "this drive has no plain files"))
    }
    /// What I/O on this open file demands.
    fn alignment(&self, handle: Handle) -> io::Result<Alignment>;
    /// File system, device, place and space.
    fn ground(&self) -> io::Result<Ground>;
}

/// An open file that closes itself.
#[derive(Debug)]
pub struct DriveFile {
    fs: Arc<dyn DriveFs>,
    handle: Handle,
    path: String,
}

impl DriveFile {
    /// Opens `path` on `fs`.
    pub fn open(fs: &Arc<dyn DriveFs>, path: &str, access: Access) -> io::Result<DriveFile> {
        let handle = fs.open(path, access)?;
        Ok(DriveFile { fs: Arc::clone(fs), handle, path: path.to_owned() })
    }

    /// A plain file that is open: `fs` has only this one.
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
