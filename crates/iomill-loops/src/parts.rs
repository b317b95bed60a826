//! The files that are read: one on each drive, full of bytes that do not compress.
//!
//! Goals: no file that was there before is written to or removed. Non-goals: checking what is read; tests do that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use rustix::fs::{Advice, OFlags};

use super::draw::{PAGE_BYTES, Rng};

/// A file on one drive.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// Files that this process made. They are removed on drop.
#[derive(Debug, Default)]
pub struct Parts {
    paths: Vec<PathBuf>,
}

impl Parts {
    /// Makes a file that does not exist yet. A file that already has the name is not this process's: it is neither
    /// written nor removed.
    pub fn make(&mut self, path: &Path) -> io::Result<File> {
        let file = File::create_new(path)?;
        self.paths.push(path.to_owned());
        Ok(file)
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for path in &self.paths {
            // A failing drive may not remove a file. The next probe removes it.
            let _gone = fs::remove_file(path);
        }
    }
}

/// Makes a file with each of these paths, of `part_bytes` rounded down to whole pages. `progress` gets the bytes
/// written so far and the total. `cancel` ends it with an error.
pub fn write(
    parts: &mut Parts,
    paths: &[PathBuf],
    part_bytes: u64,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Part>> {
    let len_bytes = part_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let total = len_bytes * paths.len() as u64;
    let mut made = Vec::new();
    // All of them first, so that a place that refuses its file is found before the others are filled.
    for path in paths {
        made.push(parts.make(path).map_err(|e| Error::io("create", path, e))?);
    }
    let (mut rng, mut chunk, mut done) = (Rng::new(std::process::id().into()), vec![0; 1 << 20], 0);
    for (file, path) in made.iter_mut().zip(paths) {
        let failed = |action| move |e| Error::io(action, path, e);
        let mut left = len_bytes;
        while left > 0 {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Tool { what: "the files that are read".into(), why: "interrupted".into() });
            }
            let len = left.min(chunk.len() as u64);
            rng.fill(&mut chunk[..len as usize]);
            file.write_all(&chunk[..len as usize]).map_err(failed("write"))?;
            (left, done) = (left - len, done + len);
            progress(done, total);
        }
        file.sync_all().map_err(failed("sync"))?;
        advise(file, path, Advice::DontNeed)?;
    }
    Ok(paths.iter().map(|path| Part { path: path.clone(), len_bytes }).collect())
}

/// Opens a file for reading, with direct I/O or through the page cache.
pub fn open(path: &Path, direct: bool) -> Result<File> {
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let open = |flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    // Only the file's owner may switch off updates of its access time. For other users reads include that cost.
    let opened = match open(direct | OFlags::NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(direct),
        other => other,
    };
    opened.map_err(|e| Error::io("open", path, e))
}

/// Says that a file has no direct I/O, if that is why it could not be opened.
pub fn why_not_direct(error: &Error) -> Option<String> {
    match error {
        Error::Io { path, source, .. } if source.raw_os_error() == Some(libc::EINVAL) => {
            Some(format!("the file system of {} has no direct I/O", path.display()))
        }
        _ => None,
    }
}

/// Tells the kernel how a whole file will be used.
pub fn advise(file: &File, path: &Path, advice: Advice) -> Result<()> {
    rustix::fs::fadvise(file.as_fd(), 0, None, advice).map_err(|e| Error::io("advise on", path, e.into()))
}

/// Drops the parts from the page cache, unless another program holds their pages there. Direct I/O needs this too: the
/// kernel looks up each block among the cached pages.
pub fn drop_cached(parts: &[Part]) -> Result<()> {
    for part in parts {
        let file = open(&part.path, false)?;
        file.sync_data().map_err(|e| Error::io("sync", &part.path, e))?;
        advise(&file, &part.path, Advice::DontNeed)?;
    }
    Ok(())
}
