//! [`PlainFs`]: one plain file on a real file system. It finds and opens the file, and has its operations.
//!
//! Goals: the kernel resolves the path, once. All checks are of the opened file, not of the path, so neither magic
//! links in `/proc` nor a rename meanwhile lead to another file. A path is for messages, and files without one can be
//! opened, too. Non-goals: paths below a drive (`real_fs`).
//!
//! Rules:
//! 1. A file is first found by a descriptor that does not open it (`O_PATH`), so a pipe or a device notices nothing.
//!    Then the same file is opened by the number of that descriptor.
//! 2. The kernel's text for a descriptor counts as a path only if it leads to the same file. From another namespace it
//!    does not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as sys, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::calls::{self, Demands, PAGE_BYTES, retry};
use super::descriptor;
use super::fs::{Access, Alignment, DriveFs, Ground, Handle, Identity, Lock, Stamp};
use super::fsyncs::{FsyncFailures, Since};
use super::memory::PageBuf;
use super::real_fs::{DIRECTORY, drive_above};
use super::versions;
use crate::error::told;

/// The most tries to find and open a file that other programs replace meanwhile.
const OPEN_TRIES: usize = 16;

/// The most directories above a file.
const DEPTH_MAX: usize = 4096;

/// `f_type` of file systems with contents that the kernel makes when they are read: proc, sysfs, debugfs, tracefs, both
/// versions of cgroup, securityfs, configfs, bpf, pstore, selinuxfs, efivarfs, binfmt_misc.
const OF_KERNEL: [u32; 13] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x0027_e0eb,
    0x6367_7270,
    0x7363_6673,
    0x6265_6570,
    0xcafe_4a11,
    0x6165_676c,
    0xf97c_ff8c,
    0xde5e_81e4,
    0x4249_4e4d,
];

/// An open plain file.
#[derive(Debug)]
pub struct PlainFs {
    file: OwnedFd,
    /// The file's path, for messages.
    path: PathBuf,
    demands: Demands,
    /// The failures of the file's device.
    fsync_failures: Arc<FsyncFailures>,
}

/// The result of opening a plain file.
#[derive(Debug)]
pub enum Opened {
    /// The open file.
    File(PlainFs),
    /// The drive of an array: the path leads into its directory. The file was neither opened nor created.
    InDrive(PathBuf),
}

/// A file that was found at a path, before it is opened (rule 1).
#[derive(Debug)]
struct Found {
    file: OwnedFd,
    identity: Identity,
}

impl PlainFs {
    /// Finds and opens a file. With `access.create` it creates an empty file if there is none, durably. Every error has
    /// an errno: the kernel's own, or the one that the kernel uses for the same failure.
    pub fn open(path: &Path, access: Access) -> io::Result<Opened> {
        let (mut was_missing, since) = (false, Since::now());
        for _ in 0..OPEN_TRIES {
            let Some(found) = find(path)? else {
                if let Some(drive) = create(path, access.create)? {
                    return Ok(Opened::InDrive(drive));
                }
                was_missing = true;
                continue;
            };
            let text = text_of(&found, path);
            let drive =
                text.as_deref().map_or_else(|| drive_around(path), |text| drive_above(text).map(Path::to_owned));
            if let Some(drive) = drive {
                return Ok(Opened::InDrive(drive));
            }
            let Some(file) = found.open(path, access)? else { continue };
            let path = text.map_or_else(|| std::path::absolute(path), Ok)?;
            // A file that is only read has nothing to lose, and the look at its drive takes some system calls.
            let device = found.identity.device;
            let fsync_failures = match access.write {
                true => FsyncFailures::of_device(device, || calls::drive_of(file.as_fd(), device)),
                false => Arc::default(),
            };
            let fs = PlainFs { file, path, demands: Demands::default(), fsync_failures };
            fs.check_length()?;
            // An empty file may be one that another call has made, and that call may end before the name is durable.
            if access.create && (was_missing || calls::len(fs.handle())? == 0) {
                let directory =
                    descriptor::openat(CWD, split(&fs.path).0, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
                fs.fsync_failures.watch_since(since, sys::fsync(directory).map_err(io::Error::from))?;
            }
            return Ok(Opened::File(fs));
        }
        Err(told(libc::EAGAIN, "other programs replace the file again and again; stop them, or try again later"))
    }

    /// The handle, valid while `self` lives.
    pub fn handle(&self) -> Handle {
        Handle(self.file.as_raw_fd())
    }

    /// An error for a file with contents that the kernel makes when it is read: its length means nothing.
    fn check_length(&self) -> io::Result<()> {
        let kind = retry(|| sys::fstatfs(&self.file))?.f_type as u32;
        let is_made_up = OF_KERNEL.contains(&kind) || (calls::len(self.handle())? == 0 && self.holds_bytes()?);
        if is_made_up {
            let why = "its length is not known before it is read, as with files of the kernel; copy it to a file first";
            return Err(told(libc::EINVAL, why));
        }
        Ok(())
    }

    /// Whether a file of length 0 has bytes all the same.
    fn holds_bytes(&self) -> io::Result<bool> {
        // Reads a whole page, because the file may be open for direct I/O.
        let mut page = PageBuf::new(PAGE_BYTES as usize)?;
        let read = calls::read_at(self.file.as_fd(), page.as_mut_slice(), 0)?;
        // The file may just have grown, so its length is read once more.
        Ok(read > 0 && calls::len(self.handle())? == 0)
    }
}

impl Found {
    /// Opens the file. `None` if there is no `/proc`, and the path leads to another file by now.
    fn open(&self, path: &Path, access: Access) -> io::Result<Option<OwnedFd>> {
        let how = if access.write { OFlags::RDWR } else { OFlags::RDONLY };
        // Direct I/O writes whole pages. The last one may exceed the limit of file sizes, although the file does not.
        let is_limited = access.write && getrlimit(Resource::Fsize).current.is_some();
        if access.direct
            && !is_limited
            && let Some(opened) = self.open_direct(path, how)?
        {
            return Ok(Some(opened));
        }
        self.open_as(path, how)
    }

    /// Opens the file for direct I/O. `None` also if the file system or device cannot do that by pages.
    fn open_direct(&self, path: &Path, how: OFlags) -> io::Result<Option<OwnedFd>> {
        let opened = match self.open_as(path, how | OFlags::DIRECT) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(None),
            opened => opened?,
        };
        let Some(file) = opened else { return Ok(None) };
        // As in `RealFs::open_direct`.
        Ok(calls::can_be_direct(file.as_fd())?.then_some(file))
    }

    fn open_as(&self, path: &Path, how: OFlags) -> io::Result<Option<OwnedFd>> {
        match descriptor::openat(CWD, number_path(&self.file), how, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            opened => return Ok(Some(opened?)),
        }
        // There is no `/proc`. The path may lead to a pipe by now, and opening it must not block.
        let file = descriptor::openat(CWD, path, how | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())?;
        if identity_of(file.as_fd())? != self.identity {
            return Ok(None);
        }
        let flags = sys::fcntl_getfl(&file)?;
        sys::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(Some(file))
    }
}

/// The path by which the kernel opens the file of a descriptor.
fn number_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Finds a regular file. `None` if there is nothing at the path.
fn find(path: &Path) -> io::Result<Option<Found>> {
    let file = match descriptor::openat(CWD, path, OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        found => found?,
    };
    let stat = sys::fstat(&file)?;
    check_kind(FileType::from_raw_mode(stat.st_mode))?;
    Ok(Some(Found { file, identity: Identity { device: stat.st_dev, inode: stat.st_ino } }))
}

/// An error for all but regular files.
fn check_kind(kind: FileType) -> io::Result<()> {
    let (errno, what) = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => (libc::EISDIR, "a directory"),
        FileType::Fifo => (libc::ESPIPE, "a pipe"),
        FileType::Socket => (libc::ENXIO, "a socket"),
        _ => (libc::ENODEV, "a device"),
    };
    Err(told(errno, format!("it is {what}, not a file")))
}

/// Creates an empty file, if that is wanted. If the file would be in the directory of a drive, nothing is created, and
/// the result is the drive. No error if another program has just created the file.
fn create(path: &Path, is_wanted: bool) -> io::Result<Option<PathBuf>> {
    if !is_wanted {
        return Err(Errno::NOENT.into());
    }
    let (above, name) = split(path);
    let directory = descriptor::openat(CWD, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let identity = identity_of(directory.as_fd())?;
    let found = Found { file: directory, identity };
    let inside = Path::new("file");
    let drive = match text_of(&found, above) {
        Some(text) => drive_above(&text.join(inside)).map(Path::to_owned),
        None => drive_around(&above.join(inside)),
    };
    if drive.is_some() {
        return Ok(drive);
    }
    let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    match descriptor::openat(&found.file, name, how, Mode::from_raw_mode(0o666)) {
        Ok(_made) => Ok(None),
        // If nothing is found, the name is a symbolic link to nothing. No file is created through such a link.
        Err(Errno::EXIST) if find(path)?.is_some() => Ok(None),
        Err(Errno::EXIST) => Err(Errno::NOENT.into()),
        Err(error) => Err(error.into()),
    }
}

/// The directory of a path, and the rest with the slashes at its end.
fn split(path: &Path) -> (&Path, &Path) {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let Some(slash) = bytes[..end].iter().rposition(|&byte| byte == b'/') else { return (Path::new("."), path) };
    let part = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
    (part(&bytes[..=slash]), part(&bytes[slash + 1..]))
}

/// The path of a found file, without symbolic links. `None` for a file without a name, or without a name that leads to
/// it from here (rule 2).
fn text_of(found: &Found, path: &Path) -> Option<PathBuf> {
    let text = match retry(|| sys::readlinkat(CWD, number_path(&found.file), Vec::new())) {
        Ok(text) => PathBuf::from(std::ffi::OsString::from_vec(text.into_bytes())),
        // There is no `/proc`.
        Err(_) => std::fs::canonicalize(path).ok()?,
    };
    let there = std::fs::metadata(&text).ok()?;
    let is_same = Identity { device: there.dev(), inode: there.ino() } == found.identity;
    (is_same && text.is_absolute()).then_some(text)
}

/// The drive of an array above a path, found by descriptors: for files without a path of their own.
fn drive_around(path: &Path) -> Option<PathBuf> {
    let look = OFlags::PATH | OFlags::DIRECTORY;
    let (above, _) = split(path);
    let mut here = descriptor::openat(CWD, above, look, Mode::empty()).ok()?;
    for depth in 1..DEPTH_MAX {
        let above_here = descriptor::openat(&here, "..", look, Mode::empty()).ok()?;
        let (own, named) = (identity_of(here.as_fd()).ok()?, sys::statat(&above_here, DIRECTORY, AtFlags::empty()));
        if identity_of(above_here.as_fd()).ok()? == own {
            return None;
        }
        let has = |name, kind| {
            let stat = sys::statat(&here, name, AtFlags::empty());
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
        };
        let is_named = named.is_ok_and(|stat| Identity { device: stat.st_dev, inode: stat.st_ino } == own);
        if is_named && has("label", FileType::RegularFile) && has("parts", FileType::Directory) {
            let dots: PathBuf = std::iter::repeat_n("..", depth).collect();
            return Some(above.join(dots));
        }
        here = above_here;
    }
    None
}

fn identity_of(file: std::os::fd::BorrowedFd<'_>) -> io::Result<Identity> {
    let stat = sys::fstat(file)?;
    Ok(Identity { device: stat.st_dev, inode: stat.st_ino })
}

/// The error of operations on paths: a plain file is open, and has no paths below it.
fn no_paths<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "a plain file has no directory"))
}

impl DriveFs for PlainFs {
    /// The file's directory.
    fn location(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// The file itself.
    fn root(&self) -> PathBuf {
        self.path.clone()
    }

    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        no_paths()
    }

    fn list(&self, _dir: &str) -> io::Result<Vec<String>> {
        no_paths()
    }

    fn open(&self, _path: &str, _access: Access) -> io::Result<Handle> {
        no_paths()
    }

    /// Does nothing: the descriptor is closed when `self` is dropped.
    fn close(&self, _handle: Handle) {}

    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        calls::read_at(calls::borrow(handle), buf, offset)
    }

    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()> {
        calls::write_at(calls::borrow(handle), bytes, offset)
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

    fn punch(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        calls::punch(handle, offset, len)
    }

    fn next_data(&self, handle: Handle, offset: u64) -> io::Result<(u64, u64)> {
        calls::next_data(handle, offset)
    }

    fn allocated(&self, handle: Handle) -> io::Result<u64> {
        calls::allocated(handle)
    }

    fn is_of_array(&self, handle: Handle) -> io::Result<bool> {
        calls::is_of_array(handle)
    }

    fn fsync_failures(&self) -> &Arc<FsyncFailures> {
        &self.fsync_failures
    }

    fn sync_data(&self, handle: Handle) -> io::Result<()> {
        self.fsync_failures.watch(calls::sync_data(handle))
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        no_paths()
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        no_paths()
    }

    fn unlink(&self, _path: &str) -> io::Result<()> {
        no_paths()
    }

    fn lock(&self, _handle: Handle, _lock: Lock) -> io::Result<bool> {
        no_paths()
    }

    fn unlock(&self, _handle: Handle) -> io::Result<()> {
        no_paths()
    }

    fn stamp(&self, handle: Handle) -> io::Result<Stamp> {
        versions::stamp(handle)
    }

    fn alignment(&self, handle: Handle) -> io::Result<Alignment> {
        calls::alignment(handle, &self.demands)
    }

    fn ground(&self) -> io::Result<Ground> {
        calls::ground(self.file.as_fd())
    }
}
