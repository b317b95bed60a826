//! A drive's file operations on a real file system.
//!
//! Goals: every path stays below `<drive>/iomill`, and no symbolic link is followed there. Files have mode 0600 and
//! directories 0700, whatever the umask. Descriptors are not inherited. Non-goals: the data path (engines), and
//! caching: each call is its system calls.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use iomill_platform::tree::Tree;
use iomill_platform::{devices, mounts};
use rustix::fs::{
    self as sys, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags,
};
use rustix::io::Errno;

use super::fs::{Access, Alignment, DriveFs, Ground, Handle, Holder, Identity, Lock, Stamp};
use super::holder;
use super::memory::PageBuf;

/// The directory that an array keeps on each of its drives.
pub const DIRECTORY: &str = "iomill";

/// The unit of direct I/O: iomill moves whole pages.
const PAGE_BYTES: u32 = 4096;

/// The kernel's times of files are those of its last tick, which is at most 10 ms ago. A file that changed longer ago than this gets
/// another time by its next change.
const SETTLED_NS: i128 = 50_000_000;

/// What [`write_zeroes`] writes at once.
const ZEROES_BYTES: usize = 64 << 10;

/// How often `openat2` is repeated when a rename elsewhere disturbs its walk.
const OPEN_TRIES: usize = 16;

/// One drive: a descriptor of `<drive>/iomill`, so that a rename or mount above it changes nothing here. Or the directory of plain files.
#[derive(Debug)]
pub struct RealFs {
    location: PathBuf,
    /// Where `directory` was found.
    root: PathBuf,
    directory: OwnedFd,
    /// Cleared once the kernel (or a seccomp filter) has shown that it lacks `openat2`.
    has_openat2: AtomicBool,
    /// What the devices of opened files demand.
    demands: Demands,
}

impl RealFs {
    /// Attaches to the drive in the directory `path`, which must exist. With `create` it makes `<path>/iomill` first.
    pub fn attach(path: &Path, create: bool) -> io::Result<RealFs> {
        // Components drop a slash at the end, so that one place has one spelling.
        let location: PathBuf = std::path::absolute(path)?.components().collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The user chose the symbolic links up to here.
        let parent = sys::openat(CWD, &location, flags, Mode::empty())?;
        if create {
            make_dir_at(&parent, DIRECTORY)?;
            sys::fsync(&parent)?;
        }
        let directory = sys::openat(&parent, DIRECTORY, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let root = location.join(DIRECTORY);
        Ok(RealFs::new(location, root, directory))
    }

    /// The directory of plain files at a path without symbolic links. It may be one that this user can search, and not read.
    pub fn of_plain_files(directory: &Path) -> io::Result<RealFs> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = retry(|| sys::openat(CWD, directory, flags, Mode::empty()))?;
        Ok(RealFs::new(directory.to_owned(), directory.to_owned(), opened))
    }

    fn new(location: PathBuf, root: PathBuf, directory: OwnedFd) -> RealFs {
        let (has_openat2, demands) = (AtomicBool::new(true), Demands::default());
        RealFs { location, root, directory, has_openat2, demands }
    }

    /// Opens a path below the drive's directory. It follows no symbolic link at any step.
    fn open_below(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let names = components(path)?;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if names.is_empty() { "." } else { path };
        if self.has_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let mut tries = OPEN_TRIES;
            loop {
                match sys::openat2(&self.directory, path, flags, mode, resolve) {
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) if tries > 0 => tries -= 1,
                    Err(Errno::NOSYS) => {
                        self.has_openat2.store(false, Ordering::Relaxed);
                        break;
                    }
                    // Old seccomp filters answer this to calls that they do not know. If the error is real, openat
                    // returns it again.
                    Err(Errno::PERM) => break,
                    result => return Ok(result?),
                }
            }
        }
        self.open_by_steps(&names, flags, mode)
    }

    /// Opens a regular file, and refuses everything else: opening a pipe would wait for its other end.
    fn open_file(&self, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let file = self.open_below(path, flags | OFlags::NONBLOCK, mode)?;
        if FileType::from_raw_mode(sys::fstat(&file)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
        }
        // With the flag O_NONBLOCK io_uring would fail requests that it cannot do at once.
        let flags = sys::fcntl_getfl(&file)?;
        sys::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Does what `openat2` does, one component at a time.
    fn open_by_steps(&self, names: &[&str], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let Some((last, above)) = names.split_last() else {
            return Ok(retry(|| sys::openat(&self.directory, ".", flags, mode))?);
        };
        let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut here: Option<OwnedFd> = None;
        for name in above {
            let at = here.as_ref().unwrap_or(&self.directory).as_fd();
            // A symbolic link opens with O_PATH|O_NOFOLLOW, but is not a directory: ENOTDIR.
            here = Some(retry(|| sys::openat(at, *name, walk, Mode::empty()))?);
        }
        let at = here.as_ref().unwrap_or(&self.directory).as_fd();
        Ok(retry(|| sys::openat(at, *last, flags, mode))?)
    }

    /// The directory that holds `path`, and the name in it, for calls that take no `openat2` flags.
    fn parent<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err(io::Error::from(Errno::INVAL));
        }
        components(name)?;
        Ok((self.open_below(directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// Opens an existing file for direct I/O; `None` if the file system or device cannot do it by pages.
    fn open_direct(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let file = match self.open_file(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => file,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        match direct_demands(file.as_fd())? {
            // Zero means that this file cannot do direct I/O (it may be encrypted). A unit larger than a page does not
            // fit ours.
            Some((offset, _)) if offset == 0 || offset > PAGE_BYTES => Ok(None),
            _ => Ok(Some(file)),
        }
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
        make_dir_at(&parent, name)
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
            retry(|| sys::fchmod(&file, Mode::RUSR | Mode::WUSR))?;
            // A second step, since O_CREAT with O_DIRECT leaves the file behind if direct I/O is refused.
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
        // SAFETY: `open` gave the descriptor away as a plain number, and its owner (`DriveFile`) closes a handle once.
        // So this is the only owner now.
        drop(unsafe { OwnedFd::from_raw_fd(handle.0) });
    }

    fn read_at(&self, handle: Handle, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        read_at(borrow(handle), buf, offset)
    }

    fn write_at(&self, handle: Handle, bytes: &[u8], offset: u64) -> io::Result<()> {
        write_at(borrow(handle), bytes, offset)
    }

    fn len(&self, handle: Handle) -> io::Result<u64> {
        let stat = sys::fstat(borrow(handle))?;
        u64::try_from(stat.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))
    }

    fn set_len(&self, handle: Handle, len: u64) -> io::Result<()> {
        Ok(retry(|| sys::ftruncate(borrow(handle), len))?)
    }

    fn allocate(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        match retry(|| sys::fallocate(borrow(handle), FallocateFlags::empty(), offset, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
                if self.len(handle)? < end { self.set_len(handle, end) } else { Ok(()) }
            }
            result => Ok(result?),
        }
    }

    fn zero(&self, handle: Handle, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        // Punching also returns the space, and zeroes pages that it covers only in part.
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| sys::fallocate(borrow(handle), punch, offset, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeroes(handle, offset, len),
            result => Ok(result?),
        }
    }

    fn sync_data(&self, handle: Handle) -> io::Result<()> {
        // Not repeated after EINTR: a second fdatasync may report success for pages that the first one lost.
        Ok(sys::fdatasync(borrow(handle))?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let directory = self.open_below(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(sys::fsync(directory)?)
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
        let Ok(stat) = sys::fstat(borrow(handle)) else { return Holder::Unknown };
        holder::find(Path::new("/proc"), (sys::major(stat.st_dev), sys::minor(stat.st_dev)), stat.st_ino)
    }

    fn unlock(&self, handle: Handle) -> io::Result<()> {
        Ok(retry(|| sys::flock(borrow(handle), FlockOperation::Unlock))?)
    }

    fn stamp(&self, handle: Handle) -> io::Result<Stamp> {
        let stat = sys::fstat(borrow(handle))?;
        // A clock before 1970 settles nothing.
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(i128::MIN, |since| since.as_nanos() as i128);
        let changed_ns = nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64);
        Ok(Stamp {
            identity: Identity { device: stat.st_dev, inode: stat.st_ino },
            len: u64::try_from(stat.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))?,
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns,
            is_settled: changed_ns + SETTLED_NS < now_ns,
        })
    }

    fn alignment(&self, handle: Handle) -> io::Result<Alignment> {
        let file = borrow(handle);
        if !sys::fcntl_getfl(file)?.contains(OFlags::DIRECT) {
            return Ok(Alignment::NONE);
        }
        let kernel_says = direct_demands(file)?.map(|(_, memory)| memory);
        let number = sys::fstat(file)?.st_dev;
        let memory = self.demands.memory(Tree::machine, (sys::major(number), sys::minor(number)), kernel_says);
        Ok(Alignment { offset: PAGE_BYTES, memory })
    }

    fn ground(&self) -> io::Result<Ground> {
        let space = sys::fstatvfs(&self.directory)?;
        let stat = sys::fstat(&self.directory)?;
        let tree = Tree::machine();
        let mount =
            mount_id(self.directory.as_fd()).and_then(|id| mounts::all(&tree).into_iter().find(|mount| mount.id == id));
        let mut number = (sys::major(stat.st_dev), sys::minor(stat.st_dev));
        if number.0 == 0 {
            // btrfs and others put files on virtual devices. The mount's source is the real device.
            if let Some(Ok(source)) = mount.as_ref().map(|mount| fs::metadata(&mount.source)) {
                number = (sys::major(source.rdev()), sys::minor(source.rdev()));
            }
        }
        let device = devices::find(&tree, number).unwrap_or_default();
        let whole = device.number.map_or(stat.st_dev, |(major, minor)| sys::makedev(major, minor));
        let file_system = match mount {
            Some(mount) => mount.kind,
            // Within a chroot the table lacks mounts that begin outside, and there may be no table.
            None => mounts::kind(retry(|| sys::fstatfs(&self.directory))?.f_type as u32),
        };
        Ok(Ground {
            file_system,
            device: device.name,
            device_id: whole,
            node: device.node,
            cpus: device.cpus,
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        })
    }
}

/// The drive of an array in the directory of which a file lies, if there is one. `path` has no symbolic links.
pub fn drive_above(path: &Path) -> Option<&Path> {
    let is_drive = |dir: &&Path| {
        dir.file_name().is_some_and(|name| name == DIRECTORY)
            && dir.join("label").is_file()
            && dir.join("parts").is_dir()
    };
    path.ancestors().skip(1).find(is_drive)?.parent()
}

/// What a file is that is no regular file.
pub fn special_kind(kind: fs::FileType) -> Option<&'static str> {
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a directory"),
        kind if kind.is_fifo() => Some("a pipe"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

/// Makes a directory of mode 0700, whatever the umask. A directory that exists keeps its mode.
fn make_dir_at(parent: &OwnedFd, name: &str) -> io::Result<()> {
    match sys::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => Ok(sys::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?),
        Err(Errno::EXIST) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            sys::openat(parent, name, flags, Mode::empty())?;
            Ok(())
        }
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

fn into_handle(file: OwnedFd) -> Handle {
    Handle(file.into_raw_fd())
}

fn borrow<'a>(handle: Handle) -> BorrowedFd<'a> {
    // SAFETY: the handle came out of `open`, and stays open until its owner is dropped, which the callers here outlive.
    // Only system calls use the descriptor, so one that is not open would only give EBADF. It is never -1, since `open`
    // hands out descriptors that the kernel opened.
    unsafe { BorrowedFd::borrow_raw(handle.0) }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// What direct I/O on an open file demands: the alignment of offsets and of memory. `None` if the kernel does not say.
fn direct_demands(file: BorrowedFd<'_>) -> io::Result<Option<(u32, u32)>> {
    match retry(|| sys::statx(file, "", AtFlags::EMPTY_PATH, sys::StatxFlags::DIOALIGN)) {
        Ok(stat) if stat.stx_mask & sys::StatxFlags::DIOALIGN.bits() != 0 => {
            Ok(Some((stat.stx_dio_offset_align, stat.stx_dio_mem_align)))
        }
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What devices demand of direct I/O's memory. Each device is looked up in sysfs once, because a look takes some ten
/// system calls, and every part of a file asks. The drive's directory is open, so its file system stays mounted, and no
/// other device gets the number.
#[derive(Debug, Default)]
struct Demands {
    known: Mutex<Vec<((u32, u32), Demand)>>,
}

#[derive(Clone, Copy, Debug)]
struct Demand {
    /// The device's logical block; a page if the device does not show its block.
    block: u32,
    /// What the device demands whatever the kernel says.
    least: u32,
}

impl Demands {
    /// The alignment of memory that direct I/O on a device needs; `kernel_says` is what the kernel says. If the kernel does
    /// not say (before Linux 6.1), it is the device's logical block: Linux before 6.0 demands that much, and no version
    /// demands more. If the device does not show its block, as under btrfs, it is a page.
    fn memory(&self, tree: impl FnOnce() -> Tree, number: (u32, u32), kernel_says: Option<u32>) -> u32 {
        let Demand { block, least } = self.of(tree, number);
        kernel_says.unwrap_or(block).max(least)
    }

    /// Makes the tree only for a device that is not known yet: every open of a file asks.
    fn of(&self, tree: impl FnOnce() -> Tree, number: (u32, u32)) -> Demand {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, demand)) = known.iter().find(|(known, _)| *known == number) {
            return demand;
        }
        let tree = tree();
        let device = devices::find(&tree, number).unwrap_or_default();
        let block = devices::logical_block_bytes(&tree, &device.name).filter(|bytes| bytes.is_power_of_two());
        // zram fills whole pages of memory, from the page's start. If the memory starts within a page, zram overwrites
        // what lies before it (Linux, drivers/block/zram/zram_drv.c, `is_partial_io`; seen on 6.18).
        let least = if device.name.starts_with("zram") { PAGE_BYTES } else { 1 };
        let demand = Demand { block: block.unwrap_or(PAGE_BYTES), least };
        known.push((number, demand));
        demand
    }
}

fn mount_id(directory: BorrowedFd<'_>) -> Option<u64> {
    let flags = sys::StatxFlags::MNT_ID;
    let stat = sys::statx(directory, "", AtFlags::EMPTY_PATH, flags).ok()?;
    (stat.stx_mask & flags.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Writes zeroes by whole pages from whole pages of memory, because the file may be open for direct I/O. First it reads
/// the other bytes of the first and the last page.
fn write_zeroes(handle: Handle, offset: u64, len: u64) -> io::Result<()> {
    let (file, page) = (borrow(handle), u64::from(PAGE_BYTES));
    let file_len = u64::try_from(sys::fstat(file)?.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
    let end = (offset + len).min(file_len);
    let mut pages = PageBuf::new(ZEROES_BYTES)?;
    let mut at = offset;
    while at < end {
        let start = at / page * page;
        let to = end.min(start + ZEROES_BYTES as u64);
        let whole = (to.next_multiple_of(page) - start) as usize;
        let (from, until) = ((at - start) as usize, (to - start) as usize);
        let bytes = &mut pages.as_mut_slice()[..whole];
        if from > 0 || until < whole {
            read_at(file, bytes, start)?;
        }
        bytes[from..until].fill(0);
        write_at(file, bytes, start)?;
        at = to;
    }
    // The last page may have gone beyond the end.
    if sys::fstat(file)?.st_size as u64 > file_len {
        retry(|| sys::ftruncate(file, file_len))?;
    }
    Ok(sys::fdatasync(file)?)
}

fn read_at(file: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match retry(|| rustix::io::pread(file, &mut buf[done..], offset + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn write_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match retry(|| rustix::io::pwrite(file, &bytes[done..], offset + done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "real_fs_tests.rs"]
pub(crate) mod tests;
