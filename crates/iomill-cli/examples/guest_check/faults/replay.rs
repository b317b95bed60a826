//! The log of the target `log-writes`, and images of a drive as parts of the log leave it: [`Log`], [`Images`].
//!
//! The target logs a write when a flush that covers it has ended, directly before that flush; a write with FUA when it
//! has ended; and a mark at once. So all writes before a flush, a FUA write or a mark are on the drive for good, and
//! the plain writes directly before a flush were on their way until its end.
//!
//! Non-goals: what the writes mean.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};

use crate::{Random, Result, check};

/// "jsfwshr", the target's magic number.
const MAGIC: u64 = 0x6a_7366_7773_6872;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;

const STEP_BYTES: usize = 64 << 10;

/// A write, a flush or a mark. Its numbers are 64 bits each, little-endian, at the begin of a sector; its data follow.
pub struct Entry {
    /// The first sector on the drive, and how many.
    sector: u64,
    sectors: u64,
    flags: u64,
    /// The text of a mark.
    pub mark: Option<String>,
    /// The data's offset in the log.
    at: u64,
}

impl Entry {
    /// Whether all before it, and itself, is on the drive for good.
    pub fn is_end(&self) -> bool {
        self.flags & (FLUSH | FUA | MARK) != 0
    }

    pub fn is_flush(&self) -> bool {
        self.flags & FLUSH != 0
    }
}

pub struct Log {
    file: File,
    sector_bytes: u64,
    pub entries: Vec<Entry>,
    pub bytes: u64,
}

impl Log {
    /// Reads the log on a device, which no target uses any more.
    pub fn read(device: &Path) -> Result<Log> {
        let file = File::open(device)?;
        let mut head = [0; 512];
        file.read_exact_at(&mut head, 0)?;
        let [magic, version, count, sector_bytes] = numbers(&head);
        let sector_bytes = sector_bytes & u64::from(u32::MAX);
        check(
            magic == MAGIC && version == 1 && matches!(sector_bytes, 512 | 4096),
            format!("no log: magic {magic:x}, version {version}, sectors of {sector_bytes}"),
        )?;
        let (mut entries, mut at) = (Vec::new(), sector_bytes);
        for _ in 0..count {
            file.read_exact_at(&mut head, at)?;
            let [sector, sectors, flags, text_len] = numbers(&head);
            at += sector_bytes;
            let text =
                || String::from_utf8_lossy(&head[32..32 + (text_len as usize).min(head.len() - 32)]).into_owned();
            let mark = (flags & MARK != 0).then(text);
            entries.push(Entry { sector, sectors, flags, mark, at });
            if flags & DISCARD == 0 {
                at += sectors * sector_bytes;
            }
        }
        let is_whole = entries.last().is_some_and(|entry| entry.mark.as_deref() == Some("dm-log-writes-end"));
        check(is_whole, format!("the log of {} entries has no end: its device is full", entries.len()))?;
        Ok(Log { file, sector_bytes, entries, bytes: at })
    }

    /// Does a write to an image.
    pub fn apply(&self, entry: &Entry, image: &File) -> Result<()> {
        if entry.flags & DISCARD != 0 || entry.sectors == 0 {
            return Ok(());
        }
        let mut bytes = vec![0; (entry.sectors * self.sector_bytes) as usize];
        self.file.read_exact_at(&mut bytes, entry.at)?;
        Ok(image.write_all_at(&bytes, entry.sector * self.sector_bytes)?)
    }
}

fn numbers(head: &[u8; 512]) -> [u64; 4] {
    std::array::from_fn(|index| u64::from_le_bytes(std::array::from_fn(|byte| head[index * 8 + byte])))
}

/// The image of a drive that grows with the log, and copies of it.
pub struct Images {
    now: File,
    now_path: PathBuf,
    copy_path: PathBuf,
}

impl Images {
    /// Begins with the content of a device.
    pub fn new(device: &Path, bytes: u64) -> Result<Images> {
        let (now_path, copy_path) = (PathBuf::from("/tmp/now"), PathBuf::from("/tmp/copy"));
        let now = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&now_path)?;
        now.set_len(bytes)?;
        let (mut device, mut buffer) = (File::open(device)?, vec![0; STEP_BYTES]);
        for at in (0..bytes).step_by(STEP_BYTES) {
            let len = (bytes - at).min(STEP_BYTES as u64) as usize;
            device.read_exact(&mut buffer[..len])?;
            if buffer[..len].iter().any(|byte| *byte != 0) {
                now.write_all_at(&buffer[..len], at)?;
            }
        }
        Ok(Images { now, now_path, copy_path })
    }

    /// Does these writes.
    pub fn apply<'a>(&self, log: &Log, entries: impl IntoIterator<Item = &'a Entry>) -> Result<()> {
        entries.into_iter().try_for_each(|entry| log.apply(entry, &self.now))
    }

    /// A copy of the present image, with half of these writes, at random.
    pub fn copy(&self, log: &Log, some: &[&Entry], random: &mut Random) -> Result<&Path> {
        let copy = OpenOptions::new().write(true).create(true).truncate(true).open(&self.copy_path)?;
        let len = self.now.metadata()?.len();
        copy.set_len(len)?;
        let (mut at, mut buffer) = (0, vec![0; STEP_BYTES]);
        // Holes are left out.
        while let Ok(begin) = seek(&self.now, SeekFrom::Data(at)) {
            let end = seek(&self.now, SeekFrom::Hole(begin))?;
            at = begin;
            while at < end {
                let part = &mut buffer[..(end - at).min(STEP_BYTES as u64) as usize];
                self.now.read_exact_at(part, at)?;
                copy.write_all_at(part, at)?;
                at += part.len() as u64;
            }
        }
        for entry in some {
            if random.below(2) == 0 {
                log.apply(entry, &copy)?;
            }
        }
        Ok(&self.copy_path)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for path in [&self.now_path, &self.copy_path] {
            if let Err(error) = fs::remove_file(path) {
                println!("{} is left over: {error}", path.display());
            }
        }
    }
}
