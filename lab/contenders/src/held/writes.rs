//! Small writes to one plain file through the page cache, as most programs do.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use iomill::{Error, Result};
use rustix::fs::Advice;

use crate::arena::SEED;
use crate::contender::{Sample, Slice};
use crate::small_writes::{self, SmallWrites, Writer};
use crate::target::advise;
use crate::task::Task;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Plain {
    path: PathBuf,
    file: File,
    writes: SmallWrites,
}

impl Plain {
    pub(super) fn new(path: PathBuf, writes: SmallWrites) -> Result<Plain> {
        writes.check()?;
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|e| Error::io("open", &path, e))?;
        Ok(Plain { path, file, writes })
    }

    /// Runs one slice. Calls `ready` when it is set up and before the clock starts.
    pub(super) fn run(&mut self, slice: &Slice<'_>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Sample> {
        // H2.
        advise(&self.file, &self.path, Advice::DontNeed)?;
        advise(&self.file, &self.path, Advice::Random)?;
        let (file, path) = (&self.file, self.path.as_path());
        let sync = || file.sync_data().map_err(|e| Error::io("sync", path, e));
        small_writes::run(slice, &self.writes, SEED + 1, || Ok(Called { file, path }), ready, sync)
    }
}

struct Called<'a> {
    file: &'a File,
    path: &'a Path,
}

impl Writer for Called<'_> {
    #[inline(always)]
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|e| failed("write", self.path, offset, e))
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|e| failed("read", self.path, offset, e))
    }
}

#[cold]
fn failed(action: &'static str, path: &Path, offset: u64, source: std::io::Error) -> Error {
    Error::io_at(action, path.to_owned(), offset, source)
}
