//! Stores of the standard library and of iomill: an array, and plain files in a directory.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use iomill::{Array, Error, FileOptions, PutOptions, Result};

use super::Store;

impl Store for Array {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create_file(name, &FileOptions::new())?;
        file.write_at(bytes, 0)?;
        file.close()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        Array::put(self, name, bytes, &PutOptions::new()).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        Array::rename(self, from, to)
    }

    fn stat(&self, name: &str) -> Result<u64> {
        Ok(Array::stat(self, name)?.len_bytes)
    }

    fn open(&self, name: &str) -> Result<()> {
        drop(self.open_file(name)?);
        Ok(())
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        self.open_file(name)?.read_at(page, 0).map(drop)
    }

    fn delete(&self, name: &str) -> Result<()> {
        Array::delete(self, name)
    }

    fn list(&self) -> Result<u64> {
        Ok(Array::list(self, "").names()?.iter().map(|name| u64::from(!name.is_empty())).sum())
    }

    fn array(&self) -> Option<&Array> {
        Some(self)
    }
}

/// Plain files in a directory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name.replace('/', "-"))
    }

    /// Makes a file with these bytes, which are durable. Its name is not.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let mut file = fs::File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        file.write_all(bytes).map_err(|e| Error::io("write", &path, e))?;
        file.sync_all().map_err(|e| Error::io("sync", &path, e))
    }

    fn sync(&self) -> Result<()> {
        let directory = fs::File::open(&self.0).map_err(|e| Error::io("open", &self.0, e))?;
        directory.sync_all().map_err(|e| Error::io("sync", &self.0, e))
    }
}

impl Store for Directory {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write(name, bytes)?;
        self.sync()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let draft = format!("{name}.draft");
        self.write(&draft, bytes)?;
        self.rename(&draft, name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let path = self.path(from);
        fs::rename(&path, self.path(to)).map_err(|e| Error::io("rename", &path, e))?;
        self.sync()
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let path = self.path(name);
        Ok(fs::metadata(&path).map_err(|e| Error::io("stat", &path, e))?.len())
    }

    fn open(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::File::open(&path).map(drop).map_err(|e| Error::io("open", &path, e))
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        let path = self.path(name);
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        let file = match opened {
            // Without direct I/O only the page cache can be used.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => fs::File::open(&path),
            opened => opened,
        };
        let read = file.map_err(|e| Error::io("open", &path, e))?.read_exact_at(page, 0);
        read.map_err(|e| Error::io("read", &path, e))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
        self.sync()
    }

    fn list(&self) -> Result<u64> {
        let failed = |e| Error::io("list", &self.0, e);
        let mut found = 0;
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            found += u64::from(!entry.map_err(failed)?.file_name().is_empty());
        }
        Ok(found)
    }
}
