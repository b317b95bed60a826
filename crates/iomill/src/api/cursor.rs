//! Positions in files, for code that uses `std::io`: [`FileCursor`], and the position that the clones of a handle
//! share. Also the exact calls of [`std::os::unix::fs::FileExt`]. Non-goals: buffering.

use std::io::{self, Read, Seek, SeekFrom, Write};

use super::file::File;
use crate::error::{Error, Result};

/// Reads and writes a file sequentially, by [`std::io::Read`], [`Write`] and [`Seek`]. It has no buffer of its own, so
/// [`flush`](Write::flush) does nothing. Its writes are durable after [`FileCursor::sync`].
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
        let n = self.file.read_from("read", buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for FileCursor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, self.position).map_err(|error| error.of_call("write"))?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(&self.file, self.position, to)?;
        Ok(self.position)
    }
}

/// The position after a seek.
pub(super) fn sought(file: &File, position: u64, to: SeekFrom) -> Result<u64> {
    let sought = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::End(delta) => file.len().checked_add_signed(delta),
        SeekFrom::Current(delta) => position.checked_add_signed(delta),
    };
    sought.ok_or_else(|| Error::invalid(format!("seek to {to:?}"), "the position is outside the range of file offsets"))
}

impl File {
    /// Reads exactly `buf.len()` bytes at an offset in bytes. A range past the end of the file is an error of the kind
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_from("read_exact_at", buf, offset)? < buf.len() {
            let (name, file_len, len) = (self.name(), self.len(), buf.len());
            let why = format!("{name:?} has {file_len} bytes, and {len} bytes from offset {offset} on were to be read");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        Ok(())
    }

    /// [`File::read_at`] for `call`, but at any offset past the end it reads 0 bytes.
    fn read_from(&self, call: &'static str, buf: &mut [u8], offset: u64) -> Result<usize> {
        let file = self.here()?;
        if offset >= file.len() { Ok(0) } else { file.read_at(buf, offset).map_err(|error| error.of_call(call)) }
    }

    /// [`File::write_at`] under its name in [`std::os::unix::fs::FileExt`]. Both write all bytes.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Ok(self.write_at(bytes, offset).map_err(|error| error.of_call("write_all_at"))?)
    }
}

/// Clones of a handle share one position, like descriptors from `dup`. It begins at 0. A [`File::cursor`] has a
/// position of its own. Calls that move the position wait for each other.
impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.position()
            .pass("read", |offset| self.read_from("read", buf, offset).map(|read| (read, offset + read as u64)))
    }
}

/// Writes all of `bytes` at the position. They are durable after [`File::sync`], and [`flush`](Write::flush) does
/// nothing.
impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = |offset| offset + bytes.len() as u64;
        self.position().pass("write", |offset| match self.write_at(bytes, offset) {
            Ok(()) => Ok((bytes.len(), end(offset))),
            Err(error) => Err(error.of_call("write")),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Moves the position of the handle and its clones.
impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let file = self.here()?;
        self.position().pass("seek", |offset| sought(file, offset, to).map(|offset| (offset, offset)))
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Read::read(&mut &*self, buf)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut &*self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
