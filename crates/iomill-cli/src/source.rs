//! What `put` reads: a file, a device, a pipe or the standard input.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::failure::{Failure, Result};

/// How far ahead of the reader the kernel is asked to read, and the size of each request to it, in bytes.
const AHEAD_BYTES: u64 = 16 << 20;
const ASK_BYTES: u64 = 2 << 20;

/// An open source.
#[derive(Debug)]
pub struct Source {
    file: File,
    /// Its name in messages.
    place: String,
    /// Its length in bytes when it was opened, if it has one.
    len_bytes: Option<u64>,
    /// Offset of the next byte, and the end of what the kernel was asked to read. Used for sources of known length.
    at: u64,
    asked: u64,
}

impl Source {
    /// Opens a source; `-` is the standard input.
    pub fn open(path: &Path) -> Result<Source> {
        if path == Path::new("-") {
            let place = "standard input".to_owned();
            // A descriptor of our own avoids the buffer and the lock of `std::io::stdin`.
            let opened = io::stdin().as_fd().try_clone_to_owned();
            let file = opened.map_err(|source| Failure::Local { action: "read", place: place.clone(), source })?;
            return Source::new(File::from(file), place);
        }
        let file = File::open(path).map_err(Failure::local("open", path))?;
        Source::new(file, path.display().to_string())
    }

    fn new(mut file: File, place: String) -> Result<Source> {
        let measured = measure(&mut file);
        let measured = measured.map_err(|source| Failure::Local { action: "read", place: place.clone(), source })?;
        if measured.is_some() {
            // Only advice: without it reads are slower, and still right.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
        }
        let at = measured.map_or(0, |(at, _)| at);
        Ok(Source { file, place, len_bytes: measured.map(|(_, len)| len), at, asked: at })
    }

    /// Its length in bytes, if it is known. The source may grow or shrink while it is read.
    pub fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// Reads until the buffer is full or the source ends. Returns the number of bytes.
    pub fn read_full(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.read_ahead();
        let mut len = 0;
        while len < buffer.len() {
            match self.file.read(&mut buffer[len..]) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Failure::Local { action: "read", place: self.place.clone(), source }),
            }
        }
        self.at += len as u64;
        Ok(len)
    }

    /// Asks the kernel to read far enough ahead to keep a fast drive busy. The kernel's own read-ahead of a few hundred KiB is
    /// too short for that.
    fn read_ahead(&mut self) {
        if self.len_bytes.is_none() {
            return;
        }
        while self.asked < self.at + AHEAD_BYTES {
            // Only advice, as above.
            let _ = fadvise(&self.file, self.asked, NonZeroU64::new(ASK_BYTES), Advice::WillNeed);
            self.asked += ASK_BYTES;
        }
    }
}

/// The present offset, and how many bytes follow it. `None` for pipes and the like. A directory is refused.
fn measure(file: &mut File) -> io::Result<Option<(u64, u64)>> {
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory; put takes one file at a time"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(None);
    }
    let at = file.stream_position()?;
    let end = if kind.is_file() { metadata.len() } else { file.seek(SeekFrom::End(0))? };
    file.seek(SeekFrom::Start(at))?;
    // Files in /proc and the like have length 0 and yet hold data.
    Ok(if end == 0 { None } else { Some((at, end.saturating_sub(at))) })
}
