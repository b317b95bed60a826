//! [`Drive`]: one directory of a cache: its label, data file, index and lock. Non-goals: what is appended (`append`) and what is read (`reading`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use iomill::{Buffer, PlainOptions, Runtime};
use rustix::fs::{FlockOperation, OFlags, flock, statvfs};
use rustix::io::{Errno, retry_on_intr};

use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::index::Index;
use crate::label::Label;
use crate::notices::Notices;
use crate::options::Options;

/// See the module.
#[derive(Debug)]
pub struct Drive {
    home: PathBuf,
    pub label: Label,
    pub index: Index,
    /// For reads of granules: iomill's page cache and engines.
    pub file: iomill::File,
    /// For appends and summaries, past all caches. A process may not have a plain file of iomill open for reading and for writing.
    raw: File,
    /// Its `flock` is the right to append. Rule W1.
    lock: File,
    runtime: Runtime,
    /// Failures since the last I/O that went well.
    failures: AtomicU32,
    dead: AtomicBool,
    /// The file system had no room for another region.
    full: AtomicBool,
    notices: Notices,
}

/// The right to append to a drive, as a witness. The kernel gives it back if the process dies.
#[derive(Debug)]
pub struct Held<'a> {
    lock: &'a File,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _unlocked = flock(self.lock, FlockOperation::Unlock);
    }
}

/// So many failures one after the other make a drive dead for this process.
const FAILURES_MOST: u32 = 8;
/// How long an opening waits for the lock, and how often it asks.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1);

/// The default length of a region: a share of the drive's bytes, within bounds.
fn region_bytes(bytes: u64) -> u64 {
    (bytes / 256).clamp(1 << 20, 64 << 20).next_power_of_two().min(64 << 20)
}

impl Drive {
    /// Opens the drive of a directory, or makes it one. `cache` is the cache of the drives before it, and `share` are its bytes.
    pub fn open(
        dir: &Path,
        cache: &mut Option<u128>,
        share: Option<u64>,
        options: &Options,
        runtime: &Runtime,
        notices: &Notices,
    ) -> Result<Drive> {
        if !dir.is_dir() {
            return Err(Error::NoDirectory { path: dir.into() });
        }
        let home = dir.join("iomill-origin");
        match fs::DirBuilder::new().mode(0o700).create(&home) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(Error::io("make the directory", home)(e)),
            _ => {}
        }
        refuse_foreign(&home)?;
        let lock_path = home.join("lock");
        let no_link = OFlags::NOFOLLOW.bits() as i32;
        let mut lock = OpenOptions::new();
        lock.create(true).truncate(false).write(true).mode(0o600).custom_flags(no_link);
        let lock = lock.open(&lock_path);
        let lock = lock.map_err(Error::io("open", &lock_path))?;
        let held = wait_for(&lock).map_err(Error::io("lock", &lock_path))?;
        let label = match Label::read(&home)? {
            Some(label) => label,
            None => first_label(&home, *cache, share, options)?,
        };
        let expected = *cache.get_or_insert(label.cache);
        if label.cache != expected {
            let text = |id| format!("{id:032x}");
            return Err(Error::Foreign { path: dir.into(), expected: text(expected), found: text(label.cache) });
        }
        let data = home.join("data");
        let raw = raw_file(&data, &label.geometry)?;
        let index = Index::open(&options.index_dir, &label)?;
        let file = PlainOptions::new().runtime(runtime).open(&data)?;
        drop(held);
        let (failures, dead, full) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let (runtime, notices) = (runtime.clone(), notices.clone());
        Ok(Drive { home, label, index, file, raw, lock, runtime, failures, dead, full, notices })
    }

    pub fn geometry(&self) -> &Geometry {
        &self.label.geometry
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Takes the right to append, if no other process has it now. Rule W1.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        try_lock(&self.lock).ok()
    }

    /// Aligned memory for [`Drive::write`] and [`Drive::read_raw`].
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Ok(self.runtime.buffer(len)?)
    }

    pub fn write(&self, bytes: &[u8], offset: u64, _held: &Held<'_>) -> io::Result<()> {
        self.noted("write", self.raw.write_all_at(bytes, offset))
    }

    /// Reads past iomill's cache, which is for what users ask for.
    pub fn read_raw(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.noted("read", self.raw.read_exact_at(bytes, offset))
    }

    /// Rule W5: gives a region its blocks before it is used. `false` if the file system has none left.
    pub fn allocate(&self, region: u32, _held: &Held<'_>) -> io::Result<bool> {
        let (offset, len) = (self.geometry().summary_offset(region, 0), self.geometry().region_bytes());
        let allocated =
            retry_on_intr(|| rustix::fs::fallocate(&self.raw, rustix::fs::FallocateFlags::KEEP_SIZE, offset, len));
        match allocated {
            // Without the call the writes take the blocks, and one that finds none fails.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(true),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
                if !self.full.swap(true, Relaxed) {
                    let home = self.home.display();
                    self.notices.add(format!(
                        "{home}: its file system is full; the cache goes on with the regions that it has there"
                    ));
                }
                Ok(false)
            }
            Err(e) => self.noted("allocate", Err(e.into())),
        }
    }

    /// Whether the file system had no room for a region.
    pub fn found_no_room(&self) -> bool {
        self.full.load(Relaxed)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// An I/O of iomill on the drive went well.
    pub fn went_well(&self) {
        // A load first: the line stays shared.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// An I/O failed. After some in a row the drive is dead for this process, which is told once.
    pub fn failed(&self, what: &str, error: &dyn std::error::Error) {
        let failures = self.failures.fetch_add(1, Relaxed) + 1;
        if failures >= FAILURES_MOST && !self.dead.swap(true, Relaxed) {
            let home = self.home.display();
            self.notices.add(format!(
                "{home}: {failures} calls failed one after the other, the last one with: cannot {what}: {error}; \
                 the cache goes on without this drive until it is opened again"
            ));
        }
    }

    fn noted<T>(&self, what: &str, result: io::Result<T>) -> io::Result<T> {
        match &result {
            Ok(_) => self.went_well(),
            Err(error) => self.failed(what, error),
        }
        result
    }
}

fn try_lock(lock: &File) -> io::Result<Held<'_>> {
    retry_on_intr(|| flock(lock, FlockOperation::NonBlockingLockExclusive))?;
    Ok(Held { lock })
}

/// Waits for another process to append its batch, or to open the drive, within a bound: that process may be stopped.
fn wait_for(lock: &File) -> io::Result<Held<'_>> {
    let begun = Instant::now();
    loop {
        match try_lock(lock) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let why = format!("another process has held it for {PATIENCE:?}; end that process if it is stopped");
                return Err(io::Error::new(e.kind(), why));
            }
            taken => return taken,
        }
    }
}

fn first_label(home: &Path, cache: Option<u128>, share: Option<u64>, options: &Options) -> Result<Label> {
    let bytes = match share {
        Some(bytes) => bytes,
        None => {
            let found = statvfs(home).map_err(|e| Error::io("ask for the free space of", home)(e.into()))?;
            found.f_bavail.saturating_mul(found.f_frsize) / 4 * 3
        }
    };
    let region_bytes = options.region_bytes.unwrap_or_else(|| region_bytes(bytes));
    let regions = u32::try_from(bytes.checked_div(region_bytes).unwrap_or(0)).unwrap_or(u32::MAX);
    let geometry = Geometry::new(options.granule_bytes, region_bytes, regions);
    let geometry = geometry.map_err(|why| Error::Invalid { what: "Options", why })?;
    let label = Label { cache: cache.unwrap_or_else(random_id), drive: random_id(), geometry };
    label.write(home)?;
    Ok(label)
}

/// Refuses a directory that another user has made, or may write to: the sums of pages have no secret.
fn refuse_foreign(home: &Path) -> Result<()> {
    let found = fs::symlink_metadata(home).map_err(Error::io("examine", home))?;
    let why = if !found.is_dir() {
        "it is no directory"
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user: remove it, or run as that user"
    } else if found.mode() & 0o022 != 0 {
        "others may write to it: take that right away (chmod go-w), or remove it"
    } else {
        return Ok(());
    };
    Err(Error::Label { path: home.into(), why: why.into() })
}

fn random_id() -> u128 {
    u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..))
}

/// The data file at its full length, most of it a hole at first.
fn raw_file(path: &Path, geometry: &Geometry) -> Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    // File systems without direct I/O refuse the flag.
    let file = match open(OFlags::NOFOLLOW | OFlags::DIRECT) {
        Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => open(OFlags::NOFOLLOW),
        opened => opened,
    };
    let file = file.map_err(Error::io("open", path))?;
    let len = file.metadata().map_err(Error::io("examine", path))?.len();
    // A file that was cut gets its length again. What was cut off reads as zeroes, which no sum fits.
    if len < geometry.file_bytes() {
        file.set_len(geometry.file_bytes()).map_err(Error::io("lengthen", path))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_a_share_within_bounds() {
        assert_eq!(region_bytes(0), 1 << 20);
        assert_eq!(region_bytes(1 << 30), 4 << 20);
        assert_eq!(region_bytes(10 << 30), 64 << 20);
        assert_eq!(region_bytes(10 << 40), 64 << 20);
    }
}
