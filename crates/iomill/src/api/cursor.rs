//! [`FileCursor`]: a position in a file, for code that uses `std::io`. Non-goals: buffering.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::file::File;
use crate::error::{Error, Result};

/// Reads and writes a file sequentially, by [`std::io::Read`], [`Write`] and [`Seek`].
/// It has no buffer of its own, so [`flush`](Write::flush) does nothing. Its writes are durable after [`FileCursor::sync`].
#[derive(Clone, Debug)]
pub struct FileCursor {
    file: File,
    position: u64,
}

impl File {
    /// A cursor at the start of the file.
    pub fn cursor(&self) -> FileCursor {
        FileCursor { file: self.clone(), position: 0 }
    }
}

impl FileCursor {
    /// Makes the file durable: [`File::sync`].
    pub fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}

impl Read for FileCursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for FileCursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.position)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(delta) => self.file.len().checked_add_signed(delta),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
        };
        self.position =
            position.ok_or_else(|| Error::invalid(format!("seek to {to:?}"), "before the start of the file"))?;
        Ok(self.position)
    }
}
