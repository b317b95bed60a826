//! A drive's file operations on a real file system.
//!
//! Goals: every path stays below `<drive>/iomill`, and no symbolic link is followed there. Files have mode 1600 and
//! directories 0700, whatever the umask. The sticky bit means nothing to the kernel: it marks the files of arrays, by
//! whatever path they are opened. Files that root creates get the owner of `<drive>/iomill`. Descriptors are not
//! inherited. Non-goals: the data path (engines), and caching: each operation makes its system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::calls::{self, Demands, FILE_MODE, borrow, into_handle, read_at, retry, write_at};
use super::descriptor;
use super::fs::{Access, Alignment, DriveFs, Ground, Handle, Holder, Identity, Lock};
use super::fsyncs::{FsyncFailures, Since};
use super::holder;

/// The directory that an array keeps on each of its drives.
pub const DIRECTORY: &str = "iomill";

/// The most tries of `openat2` while a rename elsewhere disturbs its walk.
const OPEN_TRIES: usize = 16;

/// One drive: a descriptor of `<drive>/iomill`, so that a rename or mount above it changes nothing here.
#[derive(Debug)]
pub struct RealFs {
    location: PathBuf,
    /// The path of `directory` when it was opened.
    root: PathBuf,
    directory: OwnedFd,
    /// Cleared once the kernel or a seccomp filter has refused `openat2` as unknown.
    has_openat2: AtomicBool,
    /// The demands of the devices of opened files.
    demands: Demands,
    /// The failures of the device, which all its directories share.
    fsync_failures: Arc<FsyncFailures>,
    /// The user and group of the directory, if root creates files for them.
    owner: Option<(Uid, Gid)>,
    /// Whether the directory was created for this value.
    is_new: bool,
}

impl RealFs {
    /// Attaches to the drive in the directory `path`, which must exist. With `create` it creates `<path>/iomill` first.
    pub fn attach(path: &Path, create: bool) -> io::Result<RealFs> {
        // Components have no slash at the end, so that one place has one spelling.
        let location: PathBuf = std::path::absolute(path)?.components().collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Symbolic links up to here are the user's choice, and followed.
        let parent = descriptor::openat(CWD, &location, flags, Mode::empty())?;
        let since = Since::now();
        let is_new = create && make_dir_at(&parent, DIRECTORY)?;
        let directory = descriptor::openat(&parent, DIRECTORY, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let root = location.join(DIRECTORY);
        let fs = RealFs { is_new, ..RealFs::new(location, root, directory)? };
        if create {
            fs.fsync_failures.watch_since(since, sys::fsync(&parent).map_err(io::Error::from))?;
        }
        Ok(fs)
    }

    /// The same drive with a failure count of its own, shared with no other directory of the device.
    #[cfg(test)]
    pub fn as_own_device(self) -> RealFs {
        RealFs { fsync_failures: Arc::default(), ..self }
    }

    fn new(location: PathBuf, root: PathBuf, directory: OwnedFd) -> io::Result<RealFs> {
        let (has_openat2, demands) = (AtomicBool::new(true), Demands::default());
        let stat = sys::fstat(&directory)?;
        let fsync_failures = FsyncFailures::of_device(stat.st_dev, || calls::drive_of(directory.as_fd(), stat.st_dev));
        let is_array = root != location;
        let owner = (is_array && geteuid().is_root() && stat.st_uid != 0)
            .then(|| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
        Ok(RealFs { location, root, directory, has_openat2, demands, fsync_failures, owner, is_new: false })
    }

    /// Opens a path below the drive's directory. No step follows a symbolic link.
    fn open_below(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let names = components(path)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if names.is_empty() { "." } else { path };
        if self.has_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let mut tries = OPEN_TRIES;
            loop {
                match descriptor::openat2(&self.directory, path, flags, mode, resolve) {
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) if tries > 0 => tries -= 1,
                    Err(Errno::NOSYS) => {
                        self.has_openat2.store(false, Ordering::Relaxed);
                        break;
                    }
                    // Old seccomp filters answer so to calls that they do not know. If the error is real, `openat`
                    // returns it again.
                    Err(Errno::PERM) => break,
                    result => return Ok(result?),
                }
            }
        }
        self.open_by_steps(&names, flags, mode)
    }

    /// Opens a regular file, and refuses all others. It never waits: the open of a pipe would wait for its other end.
    fn open_file(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let file = self.open_below(path, flags | OFlags::NONBLOCK, mode)?;
        if FileType::from_raw_mode(sys::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
        }
        // With O_NONBLOCK, io_uring would fail requests that it cannot do at once.
        let flags = sys::fcntl_getfl(&file)?;
        sys::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Opens a path as `openat2` does, one component at a time.
    fn open_by_steps(&self, names: &[&str], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let Some((last, above)) = names.split_last() else {
            return Ok(descriptor::openat(&self.directory, ".", flags, mode)?);
        };
        let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut here: Option<OwnedFd> = None;
        for name in above {
            let at = here.as_ref().unwrap_or(&self.directory).as_fd();
            // A symbolic link opens with O_PATH|O_NOFOLLOW, but is not a directory: ENOTDIR.
            here = Some(descriptor::openat(at, *name, walk, Mode::empty())?);
        }
        let at = here.as_ref().unwrap_or(&self.directory).as_fd();
        Ok(descriptor::openat(at, *last, flags, mode)?)
    }

    /// The directory of `path`, open, and the name in it, for calls that take no `openat2` flags.
    fn parent<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err(io::Error::from(Errno::INVAL));
        }
        components(name)?;
        Ok((self.open_below(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Gives a file that root has created to the owner of the directory, so that this user can use it.
    fn give(&self, file: &OwnedFd) -> io::Result<()> {
        let Some((user, group)) = self.owner else { return Ok(()) };
        match retry(|| sys::fchown(file, Some(user), Some(group))) {
            // A file system without owners, or one that gives root no rights. `check` reports files of other owners.
            Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            given => Ok(given?),
        }
    }

    /// Opens an existing file for direct I/O; `None` if the file system or device cannot do it by pages.
    fn open_direct(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let file = match self.open_file(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => file,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(calls::can_be_direct(file.as_fd())?.then_some(file))
    }
}

impl DriveFs for RealFs {
    fn location(&self) -> &Path {
        &self.location
    }

    fn root(&self) -> PathBuf {
        self.root.clone()
    }

    fn identity(&self) -> io::Result<Identity> {
        let stat = sys::fstat(&self.directory)?;
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let (parent, name) = self.parent(dir)?;
        if make_dir_at(&parent, name)? {
            let made = self.open_below(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            self.give(&made)?;
        }
        Ok(())
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        if dir.is_empty() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let parent = descriptor::openat(CWD, &self.location, flags, Mode::empty())?;
            return Ok(sys::unlinkat(parent, DIRECTORY, AtFlags::REMOVEDIR)?);
        }
        let (parent, name) = self.parent(dir)?;
        Ok(sys::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let directory = self.open_below(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        Ok(names)
    }

    fn open(&self, path: &str, access: Access) -> io::Result<Handle> {
        let write = if access.write || access.create { OFlags::RDWR } else { OFlags::RDONLY };
        if access.create {
            let file = self.open_file(path, write | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)?;
            match retry(|| sys::fchmod(&file, FILE_MODE)) {
                // Some file systems have no such bit.
                Err(Errno::PERM | Errno::INVAL) => retry(|| sys::fchmod(&file, Mode::RUSR | Mode::WUSR))?,
                set => set?,
            }
            self.give(&file)?;
            // A second step: O_CREAT with O_DIRECT fails where direct I/O is refused, and leaves the file behind.
            let direct = if access.direct { self.open_direct(path, write)? } else { None };
            return Ok(into_handle(direct.unwrap_or(file)));
        }
        let direct = if access.direct { self.open_direct(path, write)? } else { None };
        match direct {
            Some(file) => Ok(into_handle(file)),
            None => Ok(into_handle(self.open_file(path, write, Mode::empty())?)),
        }
    }

    fn close(&self, handle: Handle) {
        // SAFETY: `open` has given the descriptor away as a plain number, and its owner (`DriveFile`) closes a handle
        // once. So no other code owns it now.
        drop(unsafe { OwnedFd::from_raw_fd(handle.0) });
    }

    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(borrow(handle), buf, offset)
    }

    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_at(borrow(handle), bytes, offset)
    }

    fn len(&self, handle: Handle) -> io::Result<u64> {
        calls::len(handle)
    }

    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()> {
        calls::set_len(handle, len)
    }

    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        calls::allocate(handle, offset, len)
    }

    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        // It syncs where the file system punches no holes.
        self.fsync_failures.watch(calls::zero(handle, offset, len))
    }

    fn other_owner(&self, path: &str) -> io::Result<Option<u32>> {
        let own = sys::fstat(&self.directory)?.st_uid;
        let found = match self.parent(path) {
            Ok((parent, name)) => sys::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_uid,
            Err(error) => return Err(error),
        };
        Ok((found != own).then_some(found))
    }

    fn give_to_owner(&self, path: &str) -> io::Result<()> {
        let own = sys::fstat(&self.directory)?;
        let (parent, name) = self.parent(path)?;
        let (user, group) = (Uid::from_raw(own.st_uid), Gid::from_raw(own.st_gid));
        Ok(sys::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn lock_directory(&self, lock: Lock) -> io::Result<bool> {
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match retry(|| sys::flock(&self.directory, operation)) {
            Err(Errno::WOULDBLOCK) => Ok(false),
            // Network file systems lock only files that are open for writing, and no directory is.
            Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn directory(&self) -> Option<Handle> {
        Some(Handle(self.directory.as_raw_fd()))
    }

    fn directory_holder(&self) -> Holder {
        holder_of(self.directory.as_fd(), DIRECTORY)
    }

    fn unlock_directory(&self) -> io::Result<()> {
        match retry(|| sys::flock(&self.directory, FlockOperation::Unlock)) {
            Ok(()) | Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        calls::punch(handle, offset, len)
    }

    fn next_data(&self, handle: Handle, offset: u64) -> io::Result<(u64, u64)> {
        calls::next_data(handle, offset)
    }

    fn allocated(&self, handle: Handle) -> io::Result<u64> {
        calls::allocated(handle)
    }

    fn fsync_failures(&self) -> &Arc<FsyncFailures> {
        &self.fsync_failures
    }

    fn sync_data(&self, handle: Handle) -> io::Result<()> {
        self.fsync_failures.watch(calls::sync_data(handle))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let directory = self.open_below(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        self.fsync_failures.watch(sys::fsync(directory).map_err(io::Error::from))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (old_parent, old_name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        Ok(sys::renameat(old_parent, old_name, new_parent, new_name)?)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(sys::unlinkat(parent, name, AtFlags::empty())?)
    }

    fn lock(&self, handle: Handle, lock: Lock) -> io::Result<bool> {
        let operation = match lock {
            Lock::Shared => FlockOperation::NonBlockingLockShared,
            Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match retry(|| sys::flock(borrow(handle), operation)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn lock_holder(&self, handle: Handle) -> Holder {
        holder_of(borrow(handle), "lock")
    }

    fn unlock(&self, handle: Handle) -> io::Result<()> {
        Ok(retry(|| sys::flock(borrow(handle), FlockOperation::Unlock))?)
    }

    fn alignment(&self, handle: Handle) -> io::Result<Alignment> {
        calls::alignment(handle, &self.demands)
    }

    fn ground(&self) -> io::Result<Ground> {
        calls::ground(self.directory.as_fd())
    }
}

/// The drive of an array above a file, if there is one. `path` has no symbolic links.
pub fn drive_above(path: &Path) -> Option<&Path> {
    let is_drive = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name == DIRECTORY)
            && dir.join("label").is_file()
            && dir.join("parts").is_dir()
    };
    path.ancestors().skip(1).find(is_drive)?.parent()
}

/// The holder of a lock on an open file or directory with this name.
fn holder_of(file: std::os::fd::BorrowedFd<'_>, name: &str) -> Holder {
    let Ok(stat) = sys::fstat(file) else { return Holder::Unknown };
    holder::find(Path::new("/proc"), name, (sys::major(stat.st_dev), sys::minor(stat.st_dev)), stat.st_ino)
}

/// Creates a directory of mode 0700, whatever the umask. Whether it was created: an existing directory keeps its mode.
fn make_dir_at(parent: &OwnedFd, name: &str) -> io::Result<bool> {
    match sys::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => {
            sys::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            Ok(true)
        }
        Err(Errno::EXIST) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            descriptor::openat(parent, name, flags, Mode::empty())?;
            Ok(false)
        }
        // `/proc` and its like make no directories. The parent is there, unless it was just removed.
        Err(Errno::NOENT) if sys::fstat(parent)?.st_nlink > 0 => Err(Errno::OPNOTSUPP.into()),
        Err(error) => Err(error.into()),
    }
}

/// The names of a path below the drive's directory; none for the directory itself.
fn components(path: &str) -> io::Result<Vec<&str>> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = path.split('/').collect();
    if names.iter().any(|name| matches!(*name, "" | "." | "..") || name.contains('\0')) {
        return Err(io::Error::from(Errno::INVAL));
    }
    Ok(names)
}

#[cfg(test)]
#[path = "real_fs_tests.rs"]
pub(crate) mod tests;
