//! Small files on drives: read whole, replaced atomically on several drives at once.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::id::{Id, fill_random};
use crate::engine::platform::Platform;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, Holder, Lock, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::real_fs::DIRECTORY;

/// Path of the lock on each drive.
pub(super) const LOCK: &str = "lock";
/// Path of the label on each drive.
pub(super) const LABEL: &str = "label";
/// Path of the note of openings on each drive.
pub(super) const OPENING: &str = "opening";
/// Directory of the log.
pub(super) const LOG: &str = "log";
/// Directory of parts.
pub const PARTS: &str = "parts";
/// Directory of parts that small files share.
pub(super) const SHARED: &str = "shared";
/// How names of temporary files begin.
pub(super) const TEMPORARY: &str = "tmp-";

/// How long to wait for a lock of a process that has ended. Its I/O in flight ends long before, unless a drive hangs.
const LOCK_WAIT: Duration = Duration::from_secs(20);
/// The same where it is not known what holds the lock. In a namespace of processes, as containers have, the list of
/// locks lacks those of processes that have ended, and of all outside.
const UNKNOWN_WAIT: Duration = Duration::from_secs(1);
/// The pauses of such a wait grow from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Whether a name directly in a drive's directory is one of ours.
pub(super) fn is_ours(name: &str) -> bool {
    matches!(name, LOCK | LABEL | OPENING | LOG | PARTS | SHARED) || name.starts_with(TEMPORARY)
}

/// One drive of an open array.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Its file operations.
    pub fs: Arc<dyn DriveFs>,
    /// Its id.
    pub id: Id,
    /// Its place in the array's order.
    pub index: u16,
    /// Its share in hashed files made from now on.
    pub weight: u32,
}

impl Drive {
    /// The directory it was found in.
    pub fn path(&self) -> &std::path::Path {
        self.fs.location()
    }
}

/// The whole path of a file of a drive, for messages.
pub(super) fn full_path(fs: &dyn DriveFs, path: &str) -> PathBuf {
    fs.location().join(DIRECTORY).join(path)
}

/// Turns an `io::Error` into one that names the file ([`Error::in_array`]).
pub(super) fn failed<'a>(action: &'static str, fs: &'a dyn DriveFs, path: &'a str) -> impl Fn(io::Error) -> Error + 'a {
    move |source| Error::in_array(action, full_path(fs, path), source)
}

/// `Ok(None)` if nothing has that name.
pub(super) fn absent_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a drive could not read its own copy, so that another drive's copy should serve. All other errors (a limit, a
/// permission) say nothing about the copy.
pub(super) fn is_media_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EUCLEAN | libc::EBADMSG | libc::ENODATA))
}

/// Whether a drive, or the user's share of it, is full.
pub fn is_full(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Reads at most `max` bytes of a file; the rest is cut off.
pub(super) fn read_whole(fs: &Arc<dyn DriveFs>, path: &str, max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = absent_is_none(DriveFile::open(fs, path, Access::READ))? else { return Ok(None) };
    let len = usize::try_from(fs.len(file.handle())?).unwrap_or(max).min(max);
    let mut bytes = vec![0; len];
    let count = fs.read_at(file.handle(), &mut bytes, 0)?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// Removes a file. A missing file is not an error.
pub(super) fn unlink_if_there(fs: &dyn DriveFs, path: &str) -> Result<()> {
    absent_is_none(fs.unlink(path)).map_err(failed("remove", fs, path))?;
    Ok(())
}

/// Zeros at an address that direct I/O takes.
#[repr(align(4096))]
struct Zeros([u8; 64 << 10]);

/// Writes zeros, in pieces of up to 64 KiB. They are aligned for direct I/O; `bytes` must be, too.
pub fn write_zeros(bytes: u64, mut write: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    static ZEROS: Zeros = Zeros([0; 64 << 10]);
    let mut left = bytes;
    while left > 0 {
        let len = left.min(ZEROS.0.len() as u64);
        write(&ZEROS.0[..len as usize])?;
        left -= len;
    }
    Ok(())
}

/// The directory of a path.
fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// A new version of a file on one or more drives: durable beside its place, but not yet in its place (rule 2). Dropping
/// it removes the file. After a crash the next writer removes it.
#[derive(Debug)]
pub(super) struct Staged {
    /// Files from index `in_place` on still have their temporary name.
    files: Vec<StagedFile>,
    in_place: usize,
}

#[derive(Debug)]
struct StagedFile {
    fs: Arc<dyn DriveFs>,
    temporary: String,
    target: String,
}

impl Staged {
    /// Writes each of `files` (drive, path, bytes) beside its place. A lack of space fails here, before anything has
    /// changed.
    pub(super) fn write<'a>(
        platform: &dyn Platform,
        files: impl IntoIterator<Item = (&'a Arc<dyn DriveFs>, String, &'a [u8])>,
    ) -> Result<Staged> {
        let mut staged = Staged { files: Vec::new(), in_place: 0 };
        for (fs, target, bytes) in files {
            let directory = directory_of(&target);
            let slash = if directory.is_empty() { "" } else { "/" };
            let mut random = [0; 16];
            fill_random(platform, &mut random)?;
            let temporary = format!("{directory}{slash}{TEMPORARY}{}", Id(random));
            let file = DriveFile::open(fs, &temporary, Access::CREATE).map_err(failed("create", &**fs, &temporary))?;
            staged.files.push(StagedFile { fs: Arc::clone(fs), temporary, target: target.clone() });
            file.durably(|| fs.write_at(file.handle(), bytes, 0).map_err(failed("write", &**fs, &target)))?;
        }
        Ok(staged)
    }

    /// Puts all files into their places and makes that durable. After an error some files are in their places and some
    /// are not.
    pub(super) fn commit(mut self) -> Result<()> {
        let since = Since::now();
        for file in &self.files {
            file.fs.rename(&file.temporary, &file.target).map_err(failed("replace", &*file.fs, &file.target))?;
            self.in_place += 1;
        }
        for file in &self.files {
            sync_dir(&*file.fs, directory_of(&file.target), since)?;
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        for file in &self.files[self.in_place..] {
            // An error here follows one that the caller reports, and the next writer tries again (rule 2).
            let _ = file.fs.unlink(&file.temporary);
        }
    }
}

/// The locks of all drives (rule 8). They are given back explicitly, because a ring may hold the descriptors longer.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: Vec<DriveFile>,
    /// Drives with a locked directory, too: the file `lock` may be removed and made anew.
    directories: Vec<Arc<dyn DriveFs>>,
}

impl Locks {
    /// Takes the locks of all drives in the given order, or none. It waits for a process that has ended: its last I/O
    /// may hold a lock for a while.
    pub(super) fn take<'a>(
        platform: &dyn Platform,
        drives: impl IntoIterator<Item = &'a Arc<dyn DriveFs>>,
        lock: Lock,
    ) -> Result<Locks> {
        let (access, wanted) = match lock {
            Lock::Shared => (Access::READ, "opened for reading"),
            Lock::Exclusive => (Access::WRITE, "opened for writing"),
        };
        let mut locks = Locks::default();
        for fs in drives {
            let opened = absent_is_none(DriveFile::open(fs, LOCK, access)).map_err(failed("open", &**fs, LOCK))?;
            let file = opened.ok_or_else(|| {
                Error::corrupt(full_path(&**fs, LOCK), "the lock is missing")
                    .advise("make sure that no process uses the array, then check and repair the array")
            })?;
            let holder = match take_lock(platform, &file, lock)? {
                None => take_directory(platform, &**fs, lock)?,
                holder => holder,
            };
            if let Some(holder) = holder {
                return Err(Error::Locked { path: fs.location().to_owned(), holder: holder.process(), wanted });
            }
            locks.files.push(file);
            locks.directories.push(Arc::clone(fs));
        }
        Ok(locks)
    }

    pub(super) fn files(&self) -> &[DriveFile] {
        &self.files
    }

    /// Releases all locks, and returns the first failure.
    pub(super) fn release(&mut self) -> Result<()> {
        let mut result = Ok(());
        for fs in self.directories.drain(..) {
            result = result.and(fs.unlock_directory().map_err(failed("unlock", &*fs, "")));
        }
        for file in self.files.drain(..) {
            let unlocked = file.fs().unlock(file.handle()).map_err(failed("unlock", &**file.fs(), LOCK));
            result = result.and(unlocked);
        }
        result
    }
}

/// Takes a lock. Returns its holder, if the holder does not release it.
fn take_lock(platform: &dyn Platform, file: &DriveFile, lock: Lock) -> Result<Option<Holder>> {
    let fs = &**file.fs();
    let take = || fs.lock(file.handle(), lock).map_err(failed("lock", fs, LOCK));
    take_from_ending(platform, take, || fs.lock_holder(file.handle()))
}

/// `take` for the lock of a drive's directory.
pub(super) fn take_directory(platform: &dyn Platform, fs: &dyn DriveFs, lock: Lock) -> Result<Option<Holder>> {
    let take = || fs.lock_directory(lock).map_err(failed("lock", fs, ""));
    take_from_ending(platform, take, || fs.directory_holder())
}

/// Tries again while the holder has ended, or may have.
pub(super) fn take_from_ending(
    platform: &dyn Platform,
    take: impl Fn() -> Result<bool>,
    holder: impl Fn() -> Holder,
) -> Result<Option<Holder>> {
    let (mut pause, mut waited) = (FIRST_PAUSE, Duration::ZERO);
    loop {
        if take()? {
            return Ok(None);
        }
        let holder = holder();
        let most = match holder {
            Holder::Ending => LOCK_WAIT,
            Holder::Unknown => UNKNOWN_WAIT,
            Holder::Process(_) => Duration::ZERO,
        };
        if waited >= most {
            // The holder may have ended since the first try.
            return Ok((!take()?).then_some(holder));
        }
        platform.clock().sleep(pause);
        waited += pause;
        pause = (2 * pause).min(LAST_PAUSE);
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        // Closing the descriptors unlocks, too, unless a ring holds them. No caller is left to get an error.
        let _ = self.release();
    }
}
