//! The files of the log on one drive: their names, making them, and reading groups from them.
//!
//! Goals: a file under its own name is complete (C1). Non-goals: other drives (`voters`), and what groups mean.

use std::io;
use std::sync::Arc;

use super::group::{GROUP_HEADER_BYTES, GROUP_MAX_BYTES, Group, group_bytes};
use super::header::{BLOCK_BYTES, FileHeader, FileKind};
use super::record::LogFault;
use crate::catalog::Id;
use crate::catalog::store::{LOG, TEMPORARY, absent_is_none, failed, full_path, is_media_error, write_zeros};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile, DriveFs, sync_dir};
use crate::sys::fsyncs::Since;

/// The path of the space that is set aside for the next checkpoint and segment (C30).
pub const RESERVE: &str = "log/reserve";
/// The number of bytes to read at a time.
const WINDOW_BYTES: usize = 64 << 10;

/// The path of a segment.
pub fn segment_path(number: u64) -> String {
    format!("{LOG}/{number:016x}.segment")
}

/// The path of a checkpoint.
pub fn checkpoint_path(number: u64) -> String {
    format!("{LOG}/{number:016x}.checkpoint")
}

/// The path of the file with this header.
pub fn path_of(header: &FileHeader) -> String {
    match header.kind {
        FileKind::Segment { .. } => segment_path(header.number),
        FileKind::Checkpoint { .. } => checkpoint_path(header.number),
    }
}

/// The path of a file that is being made. After a crash the next writer removes the file.
fn temporary_path(path: &str) -> String {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    format!("{LOG}/{TEMPORARY}{name}")
}

/// The files in the directory of a log, each list sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFiles {
    /// Numbers of segments.
    pub segments: Vec<u64>,
    /// Numbers of checkpoints.
    pub checkpoints: Vec<u64>,
    /// Paths of files that were not finished.
    pub leftovers: Vec<String>,
    /// Paths of files that are not iomill's.
    pub strangers: Vec<String>,
}

impl LogFiles {
    /// Lists the log of a drive. A drive without a directory has none.
    pub fn list(fs: &dyn DriveFs) -> Result<LogFiles> {
        let names = absent_is_none(fs.list(LOG)).map_err(failed("list", fs, LOG))?;
        let mut files = LogFiles::default();
        for name in names.unwrap_or_default() {
            if name == "reserve" {
                continue;
            }
            match (classify(&name), name.starts_with(TEMPORARY)) {
                (Some((number, true)), _) => files.segments.push(number),
                (Some((number, false)), _) => files.checkpoints.push(number),
                (None, true) => files.leftovers.push(format!("{LOG}/{name}")),
                (None, false) => files.strangers.push(format!("{LOG}/{name}")),
            }
        }
        files.segments.sort_unstable();
        files.checkpoints.sort_unstable();
        files.leftovers.sort_unstable();
        files.strangers.sort_unstable();
        Ok(files)
    }
}

/// The number in a name, and whether it is a segment's.
fn classify(name: &str) -> Option<(u64, bool)> {
    let (digits, kind) = name.split_once('.')?;
    let number = crate::catalog::id::parse_hex_u64(digits)?;
    match kind {
        "segment" => Some((number, true)),
        "checkpoint" => Some((number, false)),
        _ => None,
    }
}

/// Sets space aside, at least `bytes` (C30).
pub fn fill_reserve(fs: &Arc<dyn DriveFs>, bytes: u64) -> Result<()> {
    let file = match DriveFile::open(fs, RESERVE, Access::WRITE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => DriveFile::open(fs, RESERVE, Access::CREATE),
        result => result,
    };
    let file = file.map_err(failed("open", &**fs, RESERVE))?;
    let has = || Ok(fs.len(file.handle())?.min(fs.allocated(file.handle())?));
    // A copy of the file may have its length, and no space.
    if has().map_err(failed("stat", &**fs, RESERVE))? < bytes {
        fs.allocate(file.handle(), 0, bytes).map_err(failed("allocate", &**fs, RESERVE))?;
    }
    Ok(())
}

/// Frees the reserved space.
pub fn cut_reserve(fs: &Arc<dyn DriveFs>) -> Result<()> {
    let opened = absent_is_none(DriveFile::open(fs, RESERVE, Access::WRITE)).map_err(failed("open", &**fs, RESERVE))?;
    let Some(file) = opened else { return Ok(()) };
    fs.set_len(file.handle(), 0).map_err(failed("cut", &**fs, RESERVE))
}

/// A file that is being written under a temporary name. A drop removes it.
#[derive(Debug)]
pub struct Making {
    file: Option<DriveFile>,
    path: String,
    /// Bytes that are written.
    end: u64,
    /// The moment before it was made.
    since: Since,
}

impl Making {
    /// Begins a file with this header at `path`.
    pub fn begin(fs: &Arc<dyn DriveFs>, path: String, header: &FileHeader) -> Result<Making> {
        let temporary = temporary_path(&path);
        // The file of an earlier try is useless.
        absent_is_none(fs.unlink(&temporary)).map_err(failed("remove", &**fs, &temporary))?;
        let since = Since::now();
        let file = DriveFile::open(fs, &temporary, Access::CREATE).map_err(failed("create", &**fs, &temporary))?;
        let mut making = Making { file: Some(file), path, end: 0, since };
        making.append(&header.block())?;
        Ok(making)
    }

    fn file(&self) -> &DriveFile {
        self.file.as_ref().expect("it is taken at the end only")
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file();
        let fs = &**file.fs();
        fs.write_at(file.handle(), bytes, self.end).map_err(failed("write", fs, file.path()))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Appends zeros up to an offset.
    pub fn fill_to(&mut self, offset: u64) -> Result<()> {
        write_zeros(offset.saturating_sub(self.end), |zeros| self.append(zeros))
    }

    /// Makes the appended bytes durable, but not the name.
    pub fn sync(&self) -> Result<()> {
        self.file().sync_since(self.since)
    }

    /// Gives the file its name, durably, with all appended bytes.
    pub fn finish(mut self) -> Result<DriveFile> {
        self.sync()?;
        let file = self.file();
        let fs = Arc::clone(file.fs());
        fs.rename(file.path(), &self.path).map_err(failed("rename", &*fs, &self.path))?;
        sync_dir(&*fs, LOG, self.since)?;
        Ok(self.file.take().expect("it is taken here only"))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // An error has been reported, and the next writer removes the file.
            let _ = file.fs().unlink(file.path());
        }
    }
}

/// Makes a segment: filled with zeros, synced, and under its name (C1).
pub fn make_segment(fs: &Arc<dyn DriveFs>, header: &FileHeader) -> Result<DriveFile> {
    let FileKind::Segment { bytes } = header.kind else { unreachable!("the header of a segment") };
    let mut making = Making::begin(fs, segment_path(header.number), header)?;
    making.fill_to(bytes)?;
    making.finish()
}

/// Opens a segment for appending groups. With direct I/O, if the file system has it, they do not go through the page
/// cache. So no later process reads there what never came to the drive.
pub fn open_for_groups(fs: &Arc<dyn DriveFs>, path: &str) -> Result<DriveFile> {
    let open = |access| DriveFile::open(fs, path, access).map_err(failed("open", &**fs, path));
    let file = open(Access::WRITE.direct())?;
    let align = fs.alignment(file.handle()).map_err(failed("examine", &**fs, path))?;
    let suits = |demand: u32| BLOCK_BYTES.is_multiple_of(u64::from(demand));
    if suits(align.offset) && suits(align.memory) { Ok(file) } else { open(Access::WRITE) }
}

/// Why a group or header could not be read.
#[derive(Debug)]
pub enum Missing {
    /// There is none, or none that counts.
    Nothing,
    /// The drive could not read the place.
    Unreadable(io::Error),
}

/// The error of a place that a drive could not read.
pub fn unreadable(fs: &dyn DriveFs, path: &str, offset: u64, source: io::Error) -> Error {
    Error::Io { action: "read", path: full_path(fs, path), offset: Some(offset), source }
}

/// A segment or checkpoint that is being read.
#[derive(Debug)]
pub struct LogFile {
    file: DriveFile,
    /// Its header.
    pub header: FileHeader,
    window: Vec<u8>,
    window_start: u64,
}

impl LogFile {
    /// Opens a file. `None` if nothing has that name, or if its header is damaged: then another copy may serve.
    /// `writes` says whether this program writes to the array.
    pub fn open(fs: &Arc<dyn DriveFs>, path: &str, access: Access, writes: bool) -> Result<Option<LogFile>> {
        let file = match absent_is_none(DriveFile::open(fs, path, access)) {
            Ok(Some(file)) => file,
            Ok(None) => return Ok(None),
            Err(error) if is_media_error(&error) => return Ok(None),
            Err(error) => return Err(failed("open", &**fs, path)(error)),
        };
        let mut block = vec![0; BLOCK_BYTES as usize];
        match fs.read_at(file.handle(), &mut block, 0) {
            Ok(read) => block.truncate(read),
            Err(error) if is_media_error(&error) => return Ok(None),
            Err(error) => return Err(failed("read", &**fs, path)(error)),
        }
        match FileHeader::parse(&block, writes) {
            Ok(header) => Ok(Some(LogFile { file, header, window: Vec::new(), window_start: 0 })),
            Err(LogFault::Damaged(_)) => Ok(None),
            Err(newer) => {
                Err(Error::drive(fs.location(), format!("its log ({}): {newer}", full_path(&**fs, path).display())))
            }
        }
    }

    /// Whether its header is that of an array, and of its name. A valid file may have the name of another.
    pub fn is_of(&self, array: Id) -> bool {
        self.header.array == array && self.path() == path_of(&self.header)
    }

    /// Whether it is a segment that is shorter than at its making (C52), or that cannot be measured.
    pub fn is_cut(&self) -> bool {
        let FileKind::Segment { bytes } = self.header.kind else { return false };
        !self.file.fs().len(self.file.handle()).is_ok_and(|len| len >= bytes)
    }

    /// Whether no group was ever written at a place: a segment is made of zeros (C1). Anything else may be what rot has
    /// left of a group.
    pub fn is_unwritten(&mut self, offset: u64) -> bool {
        let block = BLOCK_BYTES as usize;
        !self.is_cut()
            && self.bytes(offset, block).is_ok_and(|bytes| bytes.len() == block && bytes.iter().all(|byte| *byte == 0))
    }

    /// The open file.
    pub fn into_file(self) -> DriveFile {
        self.file
    }

    /// Writes at an offset. It is not durable yet.
    pub fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.window.clear();
        let fs = &**self.file.fs();
        fs.write_at(self.file.handle(), bytes, offset).map_err(failed("write", fs, self.file.path()))
    }

    /// The path within the drive's directory.
    pub fn path(&self) -> &str {
        self.file.path()
    }

    /// The drive.
    pub fn fs(&self) -> &Arc<dyn DriveFs> {
        self.file.fs()
    }

    /// The group at a place, if it is whole.
    pub fn group(&mut self, offset: u64) -> Result<Group<'_>, Missing> {
        self.group_and_bytes(offset).map(|(group, _)| group)
    }

    /// The group at a place, if it is whole, and its bytes in whole blocks.
    pub fn group_and_bytes(&mut self, offset: u64) -> Result<(Group<'_>, &[u8]), Missing> {
        let header = self.bytes(offset, GROUP_HEADER_BYTES)?;
        let records_bytes = header.get(4..8).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]));
        let records_bytes = (records_bytes as usize).min(GROUP_MAX_BYTES);
        let bytes = self.bytes(offset, group_bytes(records_bytes) as usize)?;
        Ok((Group::parse(bytes).ok_or(Missing::Nothing)?, bytes))
    }

    /// Bytes of the file, fewer at its end.
    pub fn bytes(&mut self, offset: u64, len: usize) -> Result<&[u8], Missing> {
        let has = |window: &[u8], start: u64| offset >= start && offset + len as u64 <= start + window.len() as u64;
        if !has(&self.window, self.window_start) {
            self.window.resize(WINDOW_BYTES.max(len), 0);
            self.window_start = offset;
            let read = self.file.fs().read_at(self.file.handle(), &mut self.window, offset);
            self.window.truncate(*read.as_ref().unwrap_or(&0));
            if let Err(error) = read {
                // A window may be unreadable past the wanted bytes.
                self.window.resize(len, 0);
                let read = self.file.fs().read_at(self.file.handle(), &mut self.window, offset);
                self.window.truncate(*read.as_ref().unwrap_or(&0));
                read.map_err(|_| Missing::Unreadable(error))?;
            }
        }
        let start = (offset - self.window_start) as usize;
        let end = (start + len).min(self.window.len());
        Ok(self.window.get(start..end).unwrap_or_default())
    }
}
