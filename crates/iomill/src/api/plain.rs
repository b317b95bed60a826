//! [`open_plain`] and [`PlainOptions`]: opening plain files. Non-goals: the cache and engines that they share
//! (`runtime`).

use std::path::{Path, PathBuf};

use super::answer::Answer;
use super::file::File;
use super::runtime::Runtime;
use crate::error::{Error, Result};
use crate::sys::fs::Access;

/// Opens an ordinary file, outside any array, for reading: [`PlainOptions::open`] with the defaults.
///
/// ```
/// # fn main() -> iomill::Result<()> {
/// # let path = std::env::temp_dir().join(format!("iomill-doc-{}", std::process::id()));
/// # std::fs::write(&path, [[1u8; 512], [2; 512], [3; 512]].concat()).unwrap();
/// let file = iomill::open_plain(&path)?;
/// let mut rows = [0; 2 * 512];
/// file.read_rows(&mut rows, &[2, 0], 512, 0)?;
/// assert_eq!(rows[0], 3);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(()) }
/// ```
pub fn open_plain(path: impl AsRef<Path>) -> Result<File> {
    PlainOptions::new().open_paths("open_plain", vec![path.as_ref().to_owned()])
}

/// Options for opening a plain file: an ordinary file outside any array, on any file system. If another program writes
/// to an open file, reads may return the old bytes. If another program cuts it, reads of the lost bytes return
/// [`Error::FileCut`].
///
/// A file is identified by its device and inode, whatever its path. On some file systems two files may have one inode
/// number, so there the path counts, too (`docs/plain-files.md`). A second opening shares the cached pages if the
/// file has not changed since. In one process a file is open either for reading or for writing ([`Error::Busy`]).
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// let file = iomill::PlainOptions::new().write(true).create(true).open("scores.bin")?;
/// file.write_at(&[7; 100], 0)?;
/// file.sync()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until a file is opened with them"]
pub struct PlainOptions {
    write: bool,
    create: bool,
    runtime: Option<Runtime>,
}

impl PlainOptions {
    /// The defaults: for reading, with the shared runtime.
    pub fn new() -> PlainOptions {
        PlainOptions::default()
    }

    /// Opens for reading and writing.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Creates an empty file if there is none, durably. Only for writing.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Uses another runtime than the shared one.
    pub fn runtime(mut self, runtime: &Runtime) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Opens a file.
    ///
    /// It is an error if there is no file and `create` is off, and if the file belongs to an array. Directories, pipes,
    /// sockets, devices and files that the kernel generates (as in `/proc`) are errors, too. A file without a name is
    /// opened by `/proc/self/fd/NUMBER`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_paths("open", vec![path.as_ref().to_owned()])
    }

    /// [`PlainOptions::open`] as a future. The system calls run on a thread of the runtime.
    pub fn open_async(&self, path: impl AsRef<Path>) -> Answer<File> {
        let (options, path) = (self.clone(), path.as_ref().to_owned());
        let runtime = match self.runtime.clone().map_or_else(Runtime::shared, Ok) {
            Ok(runtime) => runtime,
            Err(error) => return Answer::now(Err(error)),
        };
        runtime.open_later(move || options.open(path))
    }

    /// Opens files as one, for reading: the bytes of the first, then those of the second, and so on. Reading is fastest
    /// if the length of every file but the last is a multiple of 4,096 bytes. The errors are those of
    /// [`PlainOptions::open`].
    pub fn open_list<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) -> Result<File> {
        let paths: Vec<PathBuf> = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        if paths.is_empty() {
            return Err(
                Error::invalid("an empty list of files", "there is nothing to open").advise("name at least one")
            );
        }
        if self.write && paths.len() > 1 {
            let what = format!("a list of {} files for writing", paths.len());
            let error = Error::invalid(what, "a list is for reading");
            return Err(error.advise("open each file for writing by itself"));
        }
        self.open_paths("open_list", paths)
    }

    fn open_paths(&self, call: &'static str, paths: Vec<PathBuf>) -> Result<File> {
        if self.create && !self.write {
            let error = Error::invalid("creating a file for reading only", "it is empty");
            return Err(error.advise("open it for writing, too"));
        }
        let runtime = self.runtime.clone().map_or_else(Runtime::shared, Ok)?;
        runtime.open(call, &paths, Access { write: self.write, create: self.create, direct: runtime.is_direct() })
    }
}
