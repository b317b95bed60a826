//! One plain file that holds the pattern from start to end: the measured bytes for a program without an array.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use rustix::fs::Advice;

use crate::pattern::{self, PAGE_BYTES};
use crate::target::advise;

/// The file. It is removed on drop.
#[derive(Debug)]
pub struct FlatFile {
    path: PathBuf,
    len_bytes: u64,
}

impl FlatFile {
    /// Writes the file, which must not exist, in whole pages. `progress` gets the bytes written so far and the total.
    pub fn write(
        path: PathBuf,
        len_bytes: u64,
        seed: u64,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FlatFile> {
        let len_bytes = len_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if len_bytes == 0 {
            return Err(Error::invalid("a file of less than a page", "give at least one page, 4KiB"));
        }
        let mut file = File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        // From here on a failure removes the file.
        let flat = FlatFile { path, len_bytes };
        let failed = |action| {
            let path = &flat.path;
            move |e| Error::io(action, path, e)
        };
        let mut chunk = vec![0; 1 << 20];
        let mut done = 0;
        while done < len_bytes && !cancel.load(Ordering::Relaxed) {
            let len = (len_bytes - done).min(chunk.len() as u64) as usize;
            for (index, page) in chunk[..len].chunks_exact_mut(PAGE_BYTES).enumerate() {
                pattern::fill_page(seed, done / PAGE_BYTES as u64 + index as u64, page);
            }
            file.write_all(&chunk[..len]).map_err(failed("write"))?;
            done += len as u64;
            progress(done, len_bytes);
        }
        file.sync_all().map_err(failed("sync"))?;
        advise(&file, &flat.path, Advice::DontNeed)?;
        Ok(flat)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

impl Drop for FlatFile {
    /// An error is ignored: the file is also gone if its directory was removed before.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_pattern_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flat");
        let never = AtomicBool::new(false);
        let flat = FlatFile::write(path.clone(), (3 << 20) + 5, 4, &never, &mut |_, _| ()).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes.len() as u64, flat.len_bytes()), (3 << 20, 3 << 20));
        assert!(pattern::holds(4, 0, &bytes));
        assert!(FlatFile::write(path.clone(), 8192, 4, &never, &mut |_, _| ()).is_err(), "it exists");
        assert!(path.exists(), "what was there before stays");
        drop(flat);
        assert!(!path.exists());
        assert!(FlatFile::write(path, 4095, 4, &never, &mut |_, _| ()).is_err());
    }
}
