//! The destination of `get`: a file that appears whole or not at all, a device or pipe, or the standard output. Also
//! checks whether the report of a measurement can be written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, OFlags, RenameFlags, fallocate, fcntl_getfl, renameat_with};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::naming;
use crate::streams;

/// The names of the standard output. By a path the kernel would open it anew, which a socket refuses, and at its start.
const STDOUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];

/// An open destination. If it is dropped before [`Destination::finish`], it leaves nothing behind.
#[derive(Debug)]
pub struct Destination {
    file: File,
    /// Its name in messages.
    place: String,
    /// For a regular file: its temporary and its final path.
    new: Option<NewFile>,
    /// The offset of the first byte, if the file has no byte there or later.
    start: Option<u64>,
    is_stdout: bool,
}

#[derive(Debug)]
struct NewFile {
    temporary: PathBuf,
    path: PathBuf,
    /// The mode of the file that is replaced.
    replaces: Option<fs::Permissions>,
    finished: bool,
}

impl Destination {
    /// Whether this path means the standard output.
    pub fn is_stdout(path: Option<&Path>) -> bool {
        path.is_some_and(|path| STDOUT.iter().any(|name| path == Path::new(name)))
    }

    /// Opens the destination of the file `name`. In a directory it is named by the last part of `name`.
    pub fn open(path: Option<&Path>, name: &str, force: bool) -> Result<Destination> {
        Destination::open_by(path, name, force, Destination::open_in_place)
    }

    /// The same, until a signal comes: opening a pipe waits for a reader.
    pub fn open_until(path: Option<&Path>, name: &str, force: bool, interrupt: &Interrupt) -> Result<Destination> {
        Destination::open_by(path, name, force, |path, force| {
            let path = path.to_owned();
            interrupt.outlast(move || Destination::open_in_place(&path, force))?
        })
    }

    fn open_by(
        path: Option<&Path>,
        name: &str,
        force: bool,
        in_place: impl FnOnce(&Path, bool) -> Result<Destination>,
    ) -> Result<Destination> {
        if Destination::is_stdout(path) {
            let file = streams::stdout().map_err(Failure::stdout)?;
            let start = end_of_file(&file).map_err(Failure::stdout)?;
            return Ok(Destination { file, place: "standard output".to_owned(), new: None, start, is_stdout: true });
        }
        let mut path = path.unwrap_or(Path::new(".")).to_owned();
        if path.is_dir() {
            path.push(naming::last_part(name));
        }
        // The file that a link names is replaced, and the link stays.
        let path = behind_links(path).map_err(|(path, source)| Failure::local("open", &path)(source))?;
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
            return in_place(&path, force);
        }
        match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Destination::new_file(path, None),
            Err(error) => Err(Failure::local("open", &path)(error)),
            Ok(found) if found.is_dir() => {
                Err(Failure::local("write to", &path)(io::Error::from(ErrorKind::IsADirectory)))
            }
            Ok(found) if found.is_file() && !force => Err(Failure::Exists { what: path.display().to_string() }),
            Ok(found) if found.is_file() => Destination::new_file(path, Some(found.permissions())),
            Ok(_) => in_place(&path, true),
        }
    }

    /// Opens a destination that no rename can replace, and writes to it as it is: a device, a pipe, or the target of a
    /// link of `/proc`.
    fn open_in_place(path: &Path, force: bool) -> Result<Destination> {
        let is_file = fs::metadata(path).map_err(Failure::local("open", path))?.is_file();
        if is_file && !force {
            return Err(Failure::Exists { what: path.display().to_string() });
        }
        let opened = OpenOptions::new().write(true).truncate(is_file).open(path);
        let file = opened.map_err(Failure::local("open", path))?;
        let start = end_of_file(&file).map_err(Failure::local("open", path))?;
        Ok(Destination { file, place: path.display().to_string(), new: None, start, is_stdout: false })
    }

    fn new_file(path: PathBuf, replaces: Option<fs::Permissions>) -> Result<Destination> {
        let temporary = path.with_file_name(naming::temporary_file()?);
        let opened = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = opened.map_err(Failure::local("create a file beside", &path))?;
        let new = NewFile { temporary, path: path.clone(), replaces, finished: false };
        Ok(Destination { file, place: path.display().to_string(), new: Some(new), start: Some(0), is_stdout: false })
    }

    /// A new file that the kernel refuses to sync.
    #[cfg(test)]
    pub fn without_sync(path: &Path) -> Destination {
        use std::os::unix::fs::OpenOptionsExt;

        let mut destination = Destination::new_file(path.to_owned(), None).unwrap();
        let temporary = &destination.new.as_ref().unwrap().temporary;
        destination.file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(temporary).unwrap();
        destination
    }

    /// Reserves space for this number of bytes, so that a full disk is found before the copy.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        if self.new.is_none() || bytes == 0 {
            return Ok(());
        }
        match fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            // On a file system without `fallocate` the writes report a full disk.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => {
                Err(Failure::Local { action: "make room for", place: self.place.clone(), source: errno.into() })
            }
        }
    }

    /// The offset of the first byte, if ranges that are not written read as zero, so that holes need no copy.
    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// Ends a file that may end with a hole. The next program that writes to the descriptor goes on there.
    pub fn end_at(&self, end: u64) -> Result<()> {
        if self.file.metadata().map_err(self.failed("examine"))?.len() < end {
            self.file.set_len(end).map_err(self.failed("set the length of"))?;
        }
        (&self.file).seek(SeekFrom::Start(end)).map(drop).map_err(self.failed("set the position in"))
    }

    /// Whether it is written to as it is: the standard output, a device or a pipe.
    pub fn is_in_place(&self) -> bool {
        self.new.is_none()
    }

    /// The device of the file system that has the file.
    pub fn device(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(self.failed("examine"))?.dev())
    }

    /// Writes bytes at the present offset.
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        (&self.file).write_all(bytes).map_err(|source| Failure::write(&self.place, source))
    }

    /// Makes all durable that was written to the file system of the file.
    pub fn sync_file_system(&self) -> Result<()> {
        rustix::fs::syncfs(&self.file).map_err(|errno| self.failed("sync")(errno.into()))
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> Failure {
        let place = self.place.clone();
        move |source| Failure::Local { action, place, source }
    }

    /// A descriptor to write to, and its name in messages.
    pub fn sink(&self) -> Result<(File, String)> {
        let cloned = self.file.try_clone();
        let file = cloned.map_err(|source| Failure::Local { action: "open", place: self.place.clone(), source })?;
        Ok((file, self.place.clone()))
    }

    /// Makes the written file durable and gives it its name, durably. Returns the place for messages.
    pub fn finish(self) -> Result<String> {
        let Some(path) = self.new.as_ref().map(|new| new.path.clone()) else {
            self.sync_in_place()?;
            return Ok(self.place.clone());
        };
        self.file.sync_all().map_err(Failure::local("sync", &path))?;
        let place = self.publish()?;
        sync_directory(&path)?;
        Ok(place)
    }

    /// Makes durable what was written to a file or device as it is. The standard output is left to its owner, as by
    /// other tools.
    fn sync_in_place(&self) -> Result<()> {
        let kind = self.file.metadata().map_err(self.failed("examine"))?.file_type();
        if self.is_stdout || !(kind.is_file() || kind.is_block_device()) {
            return Ok(());
        }
        self.file.sync_all().map_err(self.failed("sync"))
    }

    /// Gives the written file its name. The caller makes the file durable before, and the name afterwards. Returns the
    /// place for messages.
    pub fn publish(mut self) -> Result<String> {
        let Some(new) = &mut self.new else { return Ok(self.place.clone()) };
        if let Some(permissions) = new.replaces.take() {
            self.file.set_permissions(permissions).map_err(Failure::local("set the mode of", &new.path))?;
            fs::rename(&new.temporary, &new.path).map_err(Failure::local("replace", &new.path))?;
        } else {
            rename_new(&new.temporary, &new.path)?;
        }
        new.finished = true;
        Ok(self.place.clone())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Some(new) = self.new.as_ref().filter(|new| !new.finished) {
            // The command reports its own failure. If the file cannot be removed, its name shows that it is temporary.
            let _ = fs::remove_file(&new.temporary);
        }
    }
}

/// The position in a regular file without a byte there or later. There is none if all writes go to the end of the
/// file, because another program may write there meanwhile.
fn end_of_file(mut file: &File) -> io::Result<Option<u64>> {
    let found = file.metadata()?;
    if !found.is_file() || fcntl_getfl(file)?.contains(OFlags::APPEND) {
        return Ok(None);
    }
    Ok(Some(file.stream_position()?).filter(|position| *position >= found.len()))
}

/// Checks before a measurement, which may take hours, whether its report can be written at the end. Leaves no empty
/// file.
pub fn check_report(option: &str, file: &Path) -> Result<()> {
    if Destination::is_stdout(Some(file)) {
        return streams::stdout().map(drop).map_err(Failure::stdout);
    }
    match fs::metadata(file) {
        // A link to a missing file: a trial would create that file and leave it. Writing the report creates it.
        Err(error) if error.kind() == ErrorKind::NotFound && file.is_symlink() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => make_and_remove(file, "write"),
        Err(error) => Err(Failure::local("write", file)(error)),
        Ok(found) if found.file_type().is_block_device() => {
            let why =
                format!("{option}: {} is a block device, and its data would be lost; name a file", file.display());
            Err(Failure::Usage(why))
        }
        Ok(found) if found.is_file() || found.is_dir() => {
            OpenOptions::new().append(true).open(file).map(drop).map_err(Failure::local("write", file))
        }
        // A pipe is not opened: closing it would end the input of the process that reads it.
        Ok(_) => Ok(()),
    }
}

/// Creates the file and removes it. Fails if no file can be created there.
pub fn make_and_remove(file: &Path, action: &'static str) -> Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).open(file);
    made.map_err(Failure::local(action, file))?;
    fs::remove_file(file).map_err(Failure::local(action, file))
}

/// Most links in a row, as in the kernel.
const LINKS_MAX: usize = 40;

/// Follows symbolic links as far as their texts lead where the kernel leads. The text of a link of `/proc` may name
/// another file.
fn behind_links(mut path: PathBuf) -> std::result::Result<PathBuf, (PathBuf, io::Error)> {
    for _ in 0..LINKS_MAX {
        let Ok(text) = fs::read_link(&path) else { break };
        let there = fs::metadata(&path).map_err(|error| (path.clone(), error))?;
        let next = path.parent().unwrap_or(Path::new("")).join(text);
        match fs::metadata(&next) {
            Ok(found) if (found.dev(), found.ino()) == (there.dev(), there.ino()) => path = next,
            _ => break,
        }
    }
    Ok(path)
}

/// Renames, unless another process has made a file of that name meanwhile.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) if to.is_dir() => Err(covered(to)),
        Err(Errno::EXIST) => Err(Failure::Exists { what: to.display().to_string() }),
        // Without that flag, a hard link does the same: it does not replace a file either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to).map_err(Failure::local("create", to))?;
            fs::remove_file(from).map_err(Failure::local("remove", from))
        }
        Err(errno) => Err(Failure::local("create", to)(errno.into())),
    }
}

/// The failure of a file if there is a directory at its path: an array may have the files `a` and `a/b`.
pub fn covered(path: &Path) -> Failure {
    let why = "there is a directory of that name, maybe for files below it; get the file alone, to another path";
    Failure::local("create", path)(io::Error::new(ErrorKind::IsADirectory, why))
}

fn sync_directory(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|directory| directory.sync_all()).map_err(Failure::local("sync", parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let destination = Destination::open(Some(&path), "a/b", false).unwrap();
        destination.sink().unwrap().0.write_all(b"new").unwrap();
        assert!(!path.exists());
        drop(destination);
        assert!(names(directory.path()).is_empty());

        let destination = Destination::open(Some(directory.path()), "a/b", false).unwrap();
        destination.reserve(3).unwrap();
        destination.sink().unwrap().0.write_all(b"new").unwrap();
        destination.finish().unwrap();
        assert_eq!(names(directory.path()), ["b"]);
        assert_eq!(fs::read(directory.path().join("b")).unwrap(), b"new");
    }

    #[test]
    fn what_exists_is_replaced_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let racing = Destination::open(Some(&path), "f", false).unwrap();
        fs::write(&path, "old").unwrap();
        assert_eq!(racing.finish().unwrap_err().kind(), "exists");
        assert_eq!(Destination::open(Some(&path), "f", false).unwrap_err().kind(), "exists");
        assert_eq!(fs::read(&path).unwrap(), b"old");

        Destination::open(Some(&path), "f", true).unwrap().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(names(directory.path()), ["f"]);
    }

    #[test]
    fn a_link_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("f"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Destination::open(Some(&link), "f", true).unwrap().finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// A file that has lost its name can be reached by its descriptor only. The text of that link is no path, or that
    /// of another file.
    ///
    /// Seen to fail when links were resolved as text.
    #[test]
    fn a_link_of_proc_leads_where_the_kernel_leads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let file = File::create_new(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(directory.path().join("f (deleted)"), "another").unwrap();
        let link = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert_eq!(Destination::open(Some(&link), "f", false).unwrap_err().kind(), "exists");
        let destination = Destination::open(Some(&link), "f", true).unwrap();
        destination.sink().unwrap().0.write_all(b"new").unwrap();
        destination.finish().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        assert_eq!(fs::read(directory.path().join("f (deleted)")).unwrap(), b"another");
    }

    #[test]
    fn devices_are_written_to_as_they_are() {
        let destination = Destination::open(Some(Path::new("/dev/null")), "f", false).unwrap();
        assert!(destination.new.is_none());
        destination.finish().unwrap();
        assert_eq!(Destination::open(Some(Path::new("/no/such/f")), "f", false).unwrap_err().kind(), "local");
    }
}
