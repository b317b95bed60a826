//! The source of `put`: a file, a device, a pipe or the standard input.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Advice, fadvise, seek};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::streams;

/// How far ahead of the reader the kernel is asked to read, and the size of each request to it, in bytes.
const AHEAD_BYTES: u64 = 16 << 20;
const ASK_BYTES: u64 = 2 << 20;

/// The names of the standard input. By a path the kernel would open it anew, which a socket refuses.
const STDIN: [&str; 4] = ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];

/// An open source.
#[derive(Debug)]
pub struct Source {
    file: File,
    /// Its name in messages.
    place: String,
    /// Its length in bytes when it was opened, if it has one.
    len_bytes: Option<u64>,
    /// Offset of the next byte, and the end of the range that the kernel was asked to read ahead. Used for sources of
    /// known length.
    at: u64,
    asked: u64,
    /// Where the copy begins.
    start: u64,
    /// The end of the data at `at`, if the source has holes. From there on a hole or the end follows.
    data_end: Option<u64>,
}

impl Source {
    /// Whether this path means the standard input.
    pub fn is_stdin(path: &Path) -> bool {
        STDIN.iter().any(|name| path == Path::new(name))
    }

    /// Opens a source; `-` is the standard input.
    pub fn open(path: &Path) -> Result<Source> {
        if Source::is_stdin(path) {
            let place = "standard input".to_owned();
            // A descriptor of our own avoids the buffer and the lock of `std::io::stdin`.
            let opened = streams::stdin();
            let file = opened.map_err(|source| Failure::Local { action: "read", place: place.clone(), source })?;
            return Source::new(file, place);
        }
        let file = File::open(path).map_err(Failure::local("open", path))?;
        Source::new(file, path.display().to_string())
    }

    /// The same, until a signal comes: opening a pipe waits for a writer.
    pub fn open_until(path: &Path, interrupt: &Interrupt) -> Result<Source> {
        if Source::is_stdin(path) || std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
            return Source::open(path);
        }
        let path = path.to_owned();
        interrupt.outlast(move || Source::open(&path))?
    }

    fn new(mut file: File, place: String) -> Result<Source> {
        let measured = measure(&mut file);
        let measured = measured.map_err(|source| Failure::Local { action: "read", place: place.clone(), source })?;
        if measured.is_some() {
            // Only advice: without it reads are slower, and still right.
            let _ = fadvise(&file, 0, None, Advice::Sequential);
        }
        let at = measured.map_or(0, |(at, _)| at);
        let has_holes = file.metadata().is_ok_and(|found| found.is_file() && found.blocks() * 512 < found.len());
        let data_end = has_holes.then_some(at);
        Ok(Source { file, place, len_bytes: measured.map(|(_, len)| len), at, asked: at, start: at, data_end })
    }

    /// Whether it may have holes, which need no copy.
    pub fn has_holes(&self) -> bool {
        self.data_end.is_some()
    }

    /// All of a source of known length.
    pub fn read_all(&mut self) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(self.len_bytes.unwrap_or(0) as usize);
        self.file.read_to_end(&mut content).map_err(self.failed())?;
        Ok(content)
    }

    /// Reads the next data into the buffer. Returns where it is from the start of the copy, and its length. `None` at
    /// the end.
    pub fn read_next(&mut self, buffer: &mut [u8]) -> Result<Option<(u64, usize)>> {
        let mut most = buffer.len();
        if let Some(end) = self.data_end {
            if self.at >= end && !self.skip_hole()? {
                return Ok(None);
            }
            most = most.min((self.data_end.unwrap_or(u64::MAX) - self.at).min(usize::MAX as u64) as usize);
        }
        let offset = self.at - self.start;
        let len = self.read_full(&mut buffer[..most])?;
        // A source that has become shorter ends here.
        Ok((len > 0).then_some((offset, len)))
    }

    /// Where the source ends, from the start of the copy, after all was read.
    pub fn end(&self) -> Result<u64> {
        let end = match self.data_end {
            None => self.at,
            Some(_) => self.file.metadata().map_err(self.failed())?.len().max(self.at),
        };
        Ok(end - self.start)
    }

    /// Goes on to the next data. Returns false if only a hole follows.
    fn skip_hole(&mut self) -> Result<bool> {
        let data = match seek(&self.file, rustix::fs::SeekFrom::Data(self.at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(false),
            // A file system that knows no holes. All is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                self.data_end = Some(u64::MAX);
                return Ok(true);
            }
            Err(errno) => return Err(self.failed()(errno.into())),
        };
        let end = seek(&self.file, rustix::fs::SeekFrom::Hole(data)).map_err(|errno| self.failed()(errno.into()))?;
        seek(&self.file, rustix::fs::SeekFrom::Start(data)).map_err(|errno| self.failed()(errno.into()))?;
        (self.at, self.asked, self.data_end) = (data, self.asked.max(data), Some(end));
        Ok(true)
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> Failure + use<> {
        let place = self.place.clone();
        move |source| Failure::Local { action: "read", place, source }
    }

    /// Its length in bytes, if it is known. The source may grow or shrink while it is read.
    pub fn len_bytes(&self) -> Option<u64> {
        self.len_bytes
    }

    /// Reads until the buffer is full or the source ends. Returns the number of bytes.
    fn read_full(&mut self, buffer: &mut [u8]) -> Result<usize> {
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

    /// Asks the kernel to read far enough ahead to keep a fast drive busy. The kernel's own read-ahead of a few hundred
    /// KiB is too short for that.
    fn read_ahead(&mut self) {
        if self.len_bytes.is_none() {
            return;
        }
        let end = self.data_end.unwrap_or(u64::MAX).min(self.at + AHEAD_BYTES);
        while self.asked < end {
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
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory; `-r` copies all files in it"));
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
