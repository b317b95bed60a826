//! Files in memory through which processes show their counters.
//!
//! Rules:
//! 1. Files are in a directory that no other user can enter: it belongs to this user, has mode 0700, and is not a
//!    symbolic link. Any other directory is not used.
//! 2. A file gets its name only when it is complete and its owner has locked it. The lock ends with the owner, also
//!    if that is killed. So a file with a free lock is stale, and a process that finds it removes it.
//! 3. A file's memory is allocated before a mapping touches it. Otherwise a full file system in memory would end the
//!    process by a signal.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::sys::descriptor;

/// The directories in which this user's processes show their counters, the preferred one first: in `$XDG_RUNTIME_DIR`,
/// then in `/dev/shm`.
pub fn directories() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let shared = format!("/dev/shm/iomill-{}", geteuid().as_raw());
    runtime.map(|path| path.join("iomill")).into_iter().chain([PathBuf::from(shared)]).collect()
}

/// Opens a directory by rule 1. With `create` it creates a missing one.
pub(super) fn open_directory(path: &Path, create: bool) -> io::Result<OwnedFd> {
    if create {
        match sys::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = descriptor::openat(CWD, path, flags, Mode::empty())?;
    let stat = sys::fstat(&directory)?;
    if stat.st_uid != geteuid().as_raw() {
        return Err(refused("it belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(refused("other users may enter it: its mode must be 0700"));
    }
    Ok(directory)
}

/// A file of this process.
#[derive(Debug)]
pub(super) struct OwnFile {
    pub file: OwnedFd,
    directory: OwnedFd,
    name: String,
}

/// Creates a nameless file of `len` bytes, and locks it.
pub(super) fn create(directory: OwnedFd, name: String, len: u64) -> io::Result<OwnFile> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = descriptor::openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR)?;
    sys::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    sys::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    sys::ftruncate(&file, len)?;
    Ok(OwnFile { file, directory, name })
}

impl OwnFile {
    /// Allocates memory of the file (rule 3).
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::io::retry_on_intr(|| sys::fallocate(&self.file, FallocateFlags::empty(), offset, len))?)
    }

    /// Gives the file its name (rule 2).
    pub fn show(&self) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        Ok(sys::linkat(CWD, path, &self.directory, &self.name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // A nameless file needs no removal. A named one that stays is stale once its lock is released. The lock is
        // released here, because a forked child may have the file open, too.
        let _gone = sys::unlinkat(&self.directory, &self.name, AtFlags::empty());
        let _unlocked = sys::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The name of a file: the array's id, the number of the process, and a part that no other user can guess.
pub(super) fn file_name(array: &[u8; 16], pid: u32, salt: u64) -> String {
    format!("{:032x}-{pid}-{salt:016x}", u128::from_be_bytes(*array))
}

/// Whether a name has the form of [`file_name`]. Files with other names are neither opened nor removed.
fn is_ours(name: &str) -> bool {
    let hex = |text: &str, len| text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let mut fields = name.split('-');
    let (Some(array), Some(pid), Some(salt), None) = (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    hex(array, 32) && hex(salt, 16) && pid.parse::<u32>().is_ok()
}

/// The files of living processes, with their names. Removes the files of dead processes.
pub(super) fn living(directory: &OwnedFd) -> io::Result<Vec<(String, OwnedFd)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Some(name) = CStr::to_str(entry.file_name()).ok().filter(|name| is_ours(name)) else { continue };
        // NONBLOCK, because the open of a pipe would wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match descriptor::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            // Its owner has just removed it, or it is a symbolic link and so not ours.
            Err(Errno::NOENT | Errno::LOOP) => continue,
            Err(error) => return Err(error.into()),
        };
        let stat = sys::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_uid != geteuid().as_raw() {
            continue;
        }
        if is_alive(&file)? {
            found.push((name.to_owned(), file));
        } else {
            match sys::unlinkat(directory, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(found)
}

/// Whether the owner of a file still lives (rule 2).
pub(super) fn is_alive(file: &OwnedFd) -> io::Result<bool> {
    match rustix::io::retry_on_intr(|| sys::flock(file, FlockOperation::NonBlockingLockShared)) {
        Ok(()) => {
            sys::flock(file, FlockOperation::Unlock)?;
            Ok(false)
        }
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
