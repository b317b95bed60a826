//! The data of the measurement: an array of four directories, in a new directory, and one file in it.
//!
//! Goals: nothing is left behind. Dropping a site removes it, also after an error or a signal. A place that cannot be
//! measured is refused before anything is made, with what to do.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::human;
use iomill::sys::limits::available_bytes;
use iomill::{ArrayOptions, Error, FileOptions};
use iomill_loops::leftovers::{self, By};
use iomill_loops::quick::{BLOCK_BYTES, DRIVES, PAGE_BYTES, fill};
use iomill_platform::mounts;
use rustix::fs::{Advice, OFlags, StatVfsMountFlags, fadvise, statfs, statvfs};

use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// Lengths are multiples of this, so that the parts of the file and of its warm quarter are as long as each other.
const UNIT: u64 = 1 << 20;

/// The file's length where disk and memory have room.
const USUAL_BYTES: u64 = 1 << 30;

/// Without `--size` the file is not shorter: its figures would say little.
const LEAST_BYTES: u64 = 64 << 20;

/// The lengths that `--size` may ask for.
const ASKED_MIN: u64 = 4 << 20;
const ASKED_MAX: u64 = 64 << 30;

/// What stays free on the disk besides the file: catalog, and other programs.
const SPARE_BYTES: u64 = 64 << 20;

/// Without `--size` the file ends where writing it has taken so long.
const WRITING_MAX: Duration = Duration::from_secs(8);

/// The file's name in the array.
const NAME: &str = "measured";

/// The array and its file.
#[derive(Debug)]
pub struct Site {
    /// The directory that was made, with everything in it.
    dir: PathBuf,
    pub drives: Vec<PathBuf>,
    /// The file's parts, in the layout's order.
    pub parts: Vec<PathBuf>,
    pub size: Size,
}

/// The lengths of the file and of its warm part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The whole file.
    pub bytes: u64,
    /// Its start, which is read warm. The rest is read cold.
    pub warm_bytes: u64,
}

impl Size {
    /// The lengths for a place with this much room. `asked` is the user's wish.
    fn plan(asked: Option<u64>, free: u64, memory: u64, place: &Path) -> Result<Size> {
        let short = |bytes: u64, least: &str| {
            let (free, need) = (human::size(free), human::size(bytes + SPARE_BYTES));
            let what = format!("{} has {free} free", place.display());
            let why = format!("{least}the measurement takes {need}; free space, or name another directory with --dir");
            Failure::from(Error::Tool { what, why })
        };
        let bytes = match asked {
            Some(bytes) if !(ASKED_MIN..=ASKED_MAX).contains(&bytes) => {
                let (least, most) = (human::size(ASKED_MIN), human::size(ASKED_MAX));
                return Err(Failure::Usage(format!("--size takes {least} to {most}")));
            }
            Some(bytes) if bytes + SPARE_BYTES > free => return Err(short(bytes, "")),
            Some(bytes) => bytes,
            None if free < LEAST_BYTES + SPARE_BYTES => return Err(short(LEAST_BYTES, "even for its shortest file ")),
            None => USUAL_BYTES.min(memory).min(free / 2).max(LEAST_BYTES),
        };
        Ok(Size::of(bytes, memory))
    }

    fn of(bytes: u64, memory: u64) -> Size {
        let whole = |bytes: u64| (bytes / UNIT * UNIT).max(UNIT);
        // The warm part is in memory twice, in iomill's cache and in the kernel's.
        Size { bytes: whole(bytes), warm_bytes: whole((bytes / 4).min(memory / 8)) }
    }

    /// Numbers of the pages that are read warm, and of those that are read cold.
    pub fn pages(self) -> (std::ops::Range<u32>, std::ops::Range<u32>) {
        let page = |bytes: u64| (bytes / PAGE_BYTES as u64) as u32;
        (0..page(self.warm_bytes), page(self.warm_bytes)..page(self.bytes))
    }

    /// How much of each part is read warm.
    pub fn warm_bytes_of_part(self) -> u64 {
        self.warm_bytes / DRIVES as u64
    }
}

/// Refuses a place that cannot be measured, and returns how much room it has.
fn room(base: &Path) -> Result<u64> {
    let kind = statfs(base).map_err(|e| Failure::local("use", base)(e.into()))?;
    let kind = mounts::kind(kind.f_type as u32);
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        let what = format!("{} is in memory ({kind})", base.display());
        let why =
            "memory has no drive to measure, and hides errors of alignment; name a directory on a disk with --dir";
        return Err(Error::Tool { what, why: why.into() }.into());
    }
    let room = statvfs(base).map_err(|e| Failure::local("use", base)(e.into()))?;
    if room.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let what = format!("{} is on a file system that is read-only", base.display());
        return Err(Error::Tool { what, why: ELSEWHERE.into() }.into());
    }
    Ok(room.f_bavail * room.f_frsize)
}

const ELSEWHERE: &str = "name a directory that can be written with --dir";

impl Site {
    /// Makes the array below `base`, and writes the file. Calls `written` with the written bytes and the length.
    pub fn make(
        base: &Path,
        asked: Option<u64>,
        options: &ArrayOptions,
        interrupt: &Interrupt,
        written: &mut dyn FnMut(u64, u64),
    ) -> Result<Site> {
        // Before the room is counted, because leftovers may occupy it.
        leftovers::remove_in(base);
        let memory = available_bytes(Path::new("/")).unwrap_or(USUAL_BYTES);
        let size = Size::plan(asked, room(base)?, memory, base)?;
        let dir = base.join(leftovers::name(By::Bench));
        let made = fs::create_dir(&dir).map_err(Failure::local("create", &dir));
        made.map_err(|failure| failure.and(ELSEWHERE))?;
        let mut site = Site { dir, drives: Vec::new(), parts: Vec::new(), size };
        // From here on a failure removes the directory.
        for index in 0..DRIVES {
            let drive = site.dir.join(format!("ssd{index}"));
            fs::create_dir(&drive).map_err(Failure::local("create", &drive))?;
            site.drives.push(drive);
        }
        let bytes = site.write(asked.is_some(), options, interrupt, written)?;
        site.size = Size::of(bytes, memory);
        Ok(site)
    }

    /// Writes the file, and returns its length.
    fn write(
        &mut self,
        is_asked: bool,
        options: &ArrayOptions,
        interrupt: &Interrupt,
        written: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        let array = options.clone().create(&self.drives)?;
        let file = array.create_file(NAME, &FileOptions::new().block_bytes(BLOCK_BYTES))?;
        let (total, started) = (self.size.bytes, Instant::now());
        file.preallocate(total)?;
        let mut chunk = array.buffer(4 << 20)?;
        let mut done = 0;
        while done < total && (is_asked || done < LEAST_BYTES || started.elapsed() < WRITING_MAX) {
            interrupt.check()?;
            let len = chunk.len().min((total - done) as usize);
            fill(done / PAGE_BYTES as u64, &mut chunk[..len]);
            file.write_at(&chunk[..len], done)?;
            done += len as u64;
            written(done, total);
        }
        file.sync()?;
        self.parts = array.stat(NAME)?.parts.into_iter().map(|(path, _)| path).collect();
        file.close()?;
        drop(chunk);
        array.close()?;
        Ok(done)
    }

    /// Opens the file by iomill, for reading, with a cache of that size.
    pub fn open(&self, options: &ArrayOptions, cache_bytes: u64) -> Result<Opened> {
        let array = options.clone().cache_bytes(cache_bytes).read_only(true).open_at(&self.drives)?;
        let file = array.open_file(NAME)?;
        Ok(Opened { array, file })
    }

    /// Opens the parts.
    pub fn open_parts(&self, is_direct: bool) -> Result<Vec<File>, Error> {
        let direct = if is_direct { OFlags::DIRECT } else { OFlags::empty() };
        let open =
            |path: &PathBuf, flags: OFlags| OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        let opened = self.parts.iter().map(|path| {
            // Updates of access times are not measured. iomill's reads do not cause them either.
            let opened = open(path, direct | OFlags::NOATIME).or_else(|_| open(path, direct));
            opened.map_err(|source| Error::io("open", path, source))
        });
        opened.collect()
    }

    /// Drops the cold part of the file from the kernel's page cache.
    pub fn drop_cold(&self, parts: &[File]) -> Result<(), Error> {
        parts.iter().zip(&self.parts).try_for_each(|(file, path)| {
            let dropped = fadvise(file, self.size.warm_bytes_of_part(), None, Advice::DontNeed);
            dropped.map_err(|error| Error::io("drop from the page cache", path, error.into()))
        })
    }

    /// Removes everything.
    pub fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.dir).map_err(Failure::local("remove", &self.dir))
    }
}

impl Drop for Site {
    /// Removes the array. After a failure the user sees that failure; [`Site::remove`] reports its own.
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The file, opened by iomill.
#[derive(Debug)]
pub struct Opened {
    pub array: iomill::Array,
    pub file: iomill::File,
}

impl Opened {
    pub fn close(self) -> Result<()> {
        self.file.close()?;
        Ok(self.array.close()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn lengths_fit_disk_and_memory() {
        let plan = |asked, free, memory| Size::plan(asked, free, memory, Path::new("/x"));
        let planned =
            |asked, free, memory| plan(asked, free, memory).map(|size| (size.bytes >> 20, size.warm_bytes >> 20));
        assert_eq!(planned(None, 100 * GIB, 8 * GIB).unwrap(), (1024, 256));
        assert_eq!(planned(None, GIB, 8 * GIB).unwrap(), (512, 128));
        assert_eq!(planned(None, 100 * GIB, GIB / 2).unwrap(), (512, 64));
        assert_eq!(planned(None, 130 << 20, GIB).unwrap(), (65, 16));
        assert_eq!(planned(Some(10 * GIB + 5), 11 * GIB, 8 * GIB).unwrap(), (10240, 1024));
        assert_eq!(planned(Some(4 << 20), GIB, 8 * GIB).unwrap(), (4, 1));
        for (asked, free) in [(None, 127 << 20), (Some(GIB), GIB)] {
            let refused = plan(asked, free, GIB).unwrap_err();
            let said = refused.to_string();
            assert!(said.starts_with("/x has ") && said.contains("--dir") && refused.exit_code() == 1, "{said}");
        }
        for asked in [0, ASKED_MIN - 1, ASKED_MAX + 1, u64::MAX] {
            assert_eq!(plan(Some(asked), u64::MAX, GIB).unwrap_err().exit_code(), 2, "{asked}");
        }
    }

    #[test]
    fn the_warm_part_is_the_start_of_each_part() {
        let size = Size::of(8 << 20, GIB);
        assert_eq!((size.pages(), size.warm_bytes_of_part()), ((0..512, 512..2048), 512 << 10));
        for page in 0..2048 {
            let is_warm = iomill_loops::quick::place(page).1 < size.warm_bytes_of_part();
            assert_eq!(is_warm, page < 512, "{page}");
        }
    }
}
