//! [`Drive`]: one directory of a cache: its label, data file, index and lock. Non-goals: the contents of appends
//! (`append`) and of reads (`reading`).

use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use iomill::{Advice, Buffer, PlainOptions, Runtime};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fstatvfs, seek, statvfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bounded::Bounded;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::identity::PAGE_BYTES;
use crate::index::Index;
use crate::label::Label;
use crate::lock::{Held, Lock};
use crate::notices::{Notices, locked};
use crate::options::Options;
use crate::watched::Watched;

/// See the module.
#[derive(Debug)]
pub struct Drive {
    home: PathBuf,
    pub label: Label,
    pub index: Index,
    /// For reads of granules: iomill's page cache and engines.
    pub file: iomill::File,
    /// For appends and summaries, past all caches. iomill does not open a plain file for reading and for writing in one
    /// process.
    raw: File,
    /// The right to append.
    lock: Lock,
    /// The call past iomill that is in flight. Rule D2.
    watched: Watched,
    runtime: Runtime,
    /// Its reads in flight, within bounds.
    pub bounded: Bounded,
    /// For each region, the life of its pages in the page cache. 0 if there are none.
    seen: Vec<AtomicU64>,
    reads: Failures,
    /// The last time at which late reads counted as a failure.
    late: Mutex<Option<Instant>>,
    writes: Failures,
    dead: AtomicBool,
    /// The file system had no room for another region.
    full: AtomicBool,
    /// On a file system that gives blocks only to writes: how often regions without blocks are still passed over.
    waits: AtomicU32,
    #[cfg(test)]
    pub hangs: Arc<AtomicBool>,
    #[cfg(test)]
    pub is_slow: AtomicBool,
    #[cfg(test)]
    pub call_hangs: AtomicBool,
    #[cfg(test)]
    pub faults: crate::faults::Faults,
    notices: Notices,
}

/// A read that has begun.
pub enum Gathered {
    Runs(iomill::Answer<Vec<u8>>),
    /// The drive does not answer.
    #[cfg(test)]
    Hangs(Arc<AtomicBool>),
    /// The first poll is not ready, as for pages that are not in memory.
    #[cfg(test)]
    Later(Option<iomill::Answer<Vec<u8>>>),
}

impl Future for Gathered {
    type Output = iomill::Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match this {
            Gathered::Runs(gather) => Pin::new(gather).poll(context),
            #[cfg(test)]
            Gathered::Hangs(hangs) if hangs.load(Relaxed) => Poll::Pending,
            #[cfg(test)]
            Gathered::Hangs(_) => Poll::Ready(Ok(Vec::new())),
            #[cfg(test)]
            Gathered::Later(gather) => {
                context.waker().wake_by_ref();
                if let Some(gather) = gather.take() {
                    *this = Gathered::Runs(gather);
                }
                Poll::Pending
            }
        }
    }
}

/// Failed reads or writes since the last successful one.
#[derive(Debug, Default)]
struct Failures(AtomicU32);

impl Failures {
    fn went_well(&self) {
        // A load first: the cache line stays shared.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    /// Whether this failure reached the limit.
    fn failed(&self) -> bool {
        self.0.fetch_add(1, Relaxed) + 1 >= FAILURES_MOST
    }
}

/// The arguments of an opening.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The cache of the drives before it.
    pub cache: Option<u128>,
    /// The cache of new drives, if no drive before them has one.
    pub new_cache: u128,
    /// The bytes of a new drive.
    pub share: Option<u64>,
    pub options: Options,
    pub runtime: Runtime,
    pub notices: Notices,
    /// No caller waits for the opening any more, so it makes no drive: others may have begun another cache.
    pub given_up: Arc<AtomicBool>,
}

/// How long a call waits for the right to append.
const HOLD_PATIENCE: Duration = Duration::from_secs(30);

/// On a file system that gives blocks only to writes: one block in this many holds the places of others.
const METADATA_SHARE: u64 = 128;
/// The number of regions that are emptied there after a write has found no room, before a region without blocks is tried
/// again.
const WAITS: u32 = 64;

/// The number of consecutive failures that makes a drive dead for this process.
pub const FAILURES_MOST: u32 = 8;

/// The default length of a region: a share of the drive's bytes, within bounds.
fn region_bytes(bytes: u64) -> u64 {
    (bytes / 256).clamp(1 << 20, 64 << 20).next_power_of_two().min(64 << 20)
}

impl Drive {
    /// Opens the drive of a directory, or makes it one: `may_begin` says whether it may.
    pub fn open(dir: &Path, terms: &Terms) -> Result<Drive> {
        let (options, runtime) = (&terms.options, &terms.runtime);
        let home = dir.join("iomill-origin");
        match fs::DirBuilder::new().mode(0o700).create(&home) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(Error::io("make the directory", home)(e)),
            _ => {}
        }
        refuse_foreign(&home)?;
        let lock_path = home.join("lock");
        let lock = Lock::open(&lock_path).map_err(Error::io("open", &lock_path))?;
        // Within the bound of the opening, so that the error says that the lock delays it.
        let held = lock.wait(options.open_within / 3 * 2).map_err(Error::io("lock", &lock_path))?;
        let label = match Label::read(&home)? {
            Some(label) => label,
            None => first_label(dir, &home, terms)?,
        };
        if let Some(expected) = terms.cache.filter(|expected| label.cache != *expected) {
            let text = |id| format!("{id:032x}");
            return Err(Error::Foreign { path: dir.into(), expected: text(expected), found: text(label.cache) });
        }
        let data = home.join("data");
        let raw = raw_file(&data, &label.geometry)?;
        let index = Index::open(&options.index_dir, &label)?;
        let file = PlainOptions::new().runtime(runtime).open(&data)?;
        // Granules of one object are not adjacent: read-ahead would read those of other objects.
        file.advise(.., Advice::Random)?;
        drop(held);
        let (bounded, reads, late, writes, dead, full, waits) = Default::default();
        let seen = (0..label.geometry.regions()).map(|_| AtomicU64::new(0)).collect();
        let (runtime, notices) = (runtime.clone(), terms.notices.clone());
        let watched = Watched::new(options.write_within);
        Ok(Drive {
            home,
            label,
            index,
            file,
            raw,
            lock,
            watched,
            runtime,
            bounded,
            seen,
            reads,
            late,
            writes,
            dead,
            full,
            waits,
            #[cfg(test)]
            hangs: Default::default(),
            #[cfg(test)]
            is_slow: AtomicBool::new(false),
            #[cfg(test)]
            call_hangs: AtomicBool::new(false),
            #[cfg(test)]
            faults: Default::default(),
            notices,
        })
    }

    pub fn geometry(&self) -> &Geometry {
        &self.label.geometry
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Takes the right to append. Waits for it within a bound.
    pub fn hold(&self) -> io::Result<Held<'_>> {
        self.lock.wait(HOLD_PATIENCE)
    }

    /// Takes the right to append, if it is free now. Rule W1.
    pub fn try_hold(&self) -> Option<Held<'_>> {
        self.lock.try_take().ok()
    }

    /// Aligned memory for [`Drive::write`] and [`Drive::read_raw`].
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Ok(self.runtime.buffer(len)?)
    }

    /// Makes a call past iomill, under the lock of the drive. Rule D2.
    fn watched<T>(&self, call: impl FnOnce() -> T) -> T {
        self.watched.call(|| {
            #[cfg(test)]
            while self.call_hangs.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            call()
        })
    }

    pub fn write(&self, bytes: &[u8], offset: u64, _held: &Held<'_>) -> io::Result<()> {
        let written = self.watched(|| {
            #[cfg(test)]
            self.faults.before_write(&self.raw, self.home.join("data"), bytes, offset)?;
            self.raw.write_all_at(bytes, offset)
        });
        self.noted_write("write", written)
    }

    /// Reads past iomill's cache, which is for the pages that users read.
    pub fn read_raw(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.watched(|| self.raw.read_exact_at(bytes, offset));
        match &read {
            Ok(()) => self.went_well(),
            Err(error) => self.failed("read", error),
        }
        read
    }

    /// Begins a read of places through iomill, into adjacent memory.
    pub fn gather(&self, places: &[(u64, usize)]) -> Gathered {
        #[cfg(test)]
        if self.hangs.load(Relaxed) {
            return Gathered::Hangs(Arc::clone(&self.hangs));
        }
        #[cfg(test)]
        if self.is_slow.load(Relaxed) {
            return Gathered::Later(Some(self.file.gather_async(places)));
        }
        Gathered::Runs(self.file.gather_async(places))
    }

    /// Is called before a read of a place, with the life of its region. The page cache forgets the pages of an earlier
    /// life. Rule R4.
    pub fn see(&self, place: u64, life: u64) {
        let region = self.geometry().region_of(place);
        let seen = &self.seen[region as usize];
        if seen.load(Relaxed) == life {
            return;
        }
        // One of two threads makes the page cache forget. The other one may read old pages: their proof fails.
        if seen.swap(life, Relaxed) != 0 {
            let begin = self.geometry().summary_offset(region, 0);
            let _closed = self.file.advise(begin..begin + self.geometry().region_bytes(), Advice::DontNeed);
        }
    }

    /// Rule W5: gives a region its blocks before it is used. `false` if the file system has none left.
    pub fn allocate(&self, region: u32, _held: &Held<'_>) -> io::Result<bool> {
        let (offset, len) = (self.geometry().summary_offset(region, 0), self.geometry().region_bytes());
        let allocate = || retry_on_intr(|| fallocate(&self.raw, FallocateFlags::KEEP_SIZE, offset, len));
        let allocated = self.watched(allocate);
        #[cfg(test)]
        let allocated = self.faults.allocation().and(allocated);
        match allocated {
            Ok(()) => Ok(true),
            // Without this call the writes allocate the blocks.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.may_find_room(offset, len),
            Err(e) => {
                // Some file systems keep the blocks that they had found. The region has no granules, so others get them.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _none_kept = self.watched(|| retry_on_intr(|| fallocate(&self.raw, flags, offset, len)));
                let noted = self.noted_write("allocate", Err(e.into()));
                if [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].contains(&e) { Ok(false) } else { noted.map(|()| false) }
            }
        }
    }

    /// Rule W5 on a file system that gives blocks only to writes: whether a region may find its blocks. Other files may
    /// take them meanwhile, and a quota is not in the numbers, so a write may fail nevertheless.
    fn may_find_room(&self, offset: u64, len: u64) -> io::Result<bool> {
        let waits = self.waits.load(Relaxed);
        if waits > 0 {
            // Under the drive's lock, so no other thread counts.
            self.waits.store(waits - 1, Relaxed);
            return Ok(false);
        }
        let (free, hole) = self.watched(|| {
            let free = fstatvfs(&self.raw).map(|found| found.f_bavail.saturating_mul(found.f_frsize));
            // It may have its blocks from an earlier life. Without holes in its answer the file system does not know.
            (free, seek(&self.raw, SeekFrom::Hole(offset)).unwrap_or(u64::MAX))
        });
        let needed = len + len / METADATA_SHARE;
        if free.is_ok_and(|free| free < needed) && hole < offset + len {
            let _told = self.noted_write("allocate", Err(Errno::NOSPC.into()));
            return Ok(false);
        }
        Ok(true)
    }

    /// A write has found no room in a region with blocks of its own. Where only writes find that out, the next regions
    /// without blocks are not tried.
    pub fn found_too_late(&self) {
        self.waits.store(WAITS, Relaxed);
    }

    /// Returns the blocks of a region, so that it reads as zeros. `false` if the file system cannot: then only its
    /// summary is zeros.
    pub fn give_back(&self, region: u32, held: &Held<'_>) -> io::Result<bool> {
        let (offset, len) = (self.geometry().summary_offset(region, 0), self.geometry().region_bytes());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.watched(|| retry_on_intr(|| fallocate(&self.raw, flags, offset, len))) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let mut zeroes = self.buffer(PAGE_BYTES).map_err(io::Error::other)?;
                zeroes.fill(0);
                (0..self.geometry().summary_pages())
                    .try_for_each(|page| self.write(&zeroes, self.geometry().summary_offset(region, page), held))?;
                Ok(false)
            }
            Err(e) => self.noted_write("give back blocks of", Err(e.into())).map(|()| false),
        }
    }

    /// Whether the file system had no room for a region.
    pub fn found_no_room(&self) -> bool {
        self.full.load(Relaxed)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Rule D2: whether the call past iomill in flight is late, so that no caller waits for the drive. A call that
    /// takes `FAILURES_MOST` times the bound makes the drive dead.
    pub fn is_late(&self) -> bool {
        let passed = self.watched.bounds_passed();
        if passed >= u64::from(FAILURES_MOST) {
            let within = self.watched.within();
            let late = format!("a call has not ended within {FAILURES_MOST} times {within:?}");
            self.die("write", &io::Error::new(io::ErrorKind::TimedOut, late));
        }
        passed > 0
    }

    /// A read of the drive has succeeded.
    pub fn went_well(&self) {
        self.reads.went_well();
    }

    /// A read has failed. After some consecutive failures the drive is dead for this process, with one notice.
    pub fn failed(&self, what: &str, error: &dyn std::error::Error) {
        if self.reads.failed() {
            self.die(what, error);
        }
    }

    /// Reads are late. A stall makes all reads in flight late at once, and those that waited for their turn. So they
    /// count as one failure in each bound (rule D1).
    pub fn were_late(&self, within: Duration) {
        let now = Instant::now();
        let mut last = locked(&self.late);
        if last.is_some_and(|last| now - last < within) {
            return;
        }
        *last = Some(now);
        drop(last);
        self.failed("read", &io::Error::new(io::ErrorKind::TimedOut, format!("nothing came within {within:?}")));
    }

    /// The same for writes. A drive that can be read and not written becomes dead, too: then its granules are cached on
    /// the other drives. A full file system is not a failure.
    fn noted_write(&self, what: &str, result: io::Result<()>) -> io::Result<()> {
        match &result {
            Ok(()) => self.writes.went_well(),
            Err(error) if says_full(error) => {
                if !self.full.swap(true, Relaxed) {
                    let home = self.home.display();
                    self.notices.add(format!(
                        "{home}: its file system is full; the cache goes on with the regions that it has there"
                    ));
                }
            }
            Err(error) => {
                if self.writes.failed() {
                    self.die(what, error);
                }
            }
        }
        result
    }

    fn die(&self, what: &str, error: &dyn std::error::Error) {
        if !self.dead.swap(true, Relaxed) {
            let home = self.home.display();
            self.notices.add(format!(
                "{home}: at least {FAILURES_MOST} calls in a row failed, the last one with: cannot {what}: {error}; the cache \
                 continues without this drive until it is opened again"
            ));
        }
    }

    /// A drive that takes no writes.
    #[cfg(test)]
    pub fn without_writes(mut self) -> Drive {
        self.raw = File::open(self.home.join("data")).unwrap();
        self
    }
}

/// Whether the file system has no room.
pub fn says_full(error: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
    error.raw_os_error().is_some_and(|raw| full.iter().any(|errno| errno.raw_os_error() == raw))
}

fn first_label(dir: &Path, home: &Path, terms: &Terms) -> Result<Label> {
    let options = &terms.options;
    let bytes = match terms.share {
        Some(bytes) => bytes,
        None => {
            let found = statvfs(home).map_err(|e| Error::io("ask for the free space of", home)(e.into()))?;
            found.f_bavail.saturating_mul(found.f_frsize) / 4 * 3
        }
    };
    let region_bytes = options.region_bytes.unwrap_or_else(|| region_bytes(bytes));
    let regions = u32::try_from(bytes.checked_div(region_bytes).unwrap_or(0)).unwrap_or(u32::MAX);
    if regions < 2 {
        return Err(Error::Small { path: dir.into(), bytes, region_bytes });
    }
    let geometry = Geometry::new(options.granule_bytes, region_bytes, regions);
    let geometry = geometry.map_err(|why| Error::Invalid { what: "Options", why })?;
    let cache = terms.cache.unwrap_or(terms.new_cache);
    let drive = random_id().map_err(Error::io("take a random number for", home))?;
    let label = Label { cache, drive, geometry };
    if terms.given_up.load(Relaxed) {
        return Err(Error::Late { path: dir.into(), within: options.open_within });
    }
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
        "others may write to it: deny them that (chmod go-w), or remove it"
    } else {
        return Ok(());
    };
    Err(Error::Label { path: home.into(), why: why.into() })
}

/// From the kernel: two children of one process have the same generators in memory.
pub fn random_id() -> io::Result<u128> {
    random().map(u128::from_le_bytes)
}

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let (mut bytes, mut have) = ([0; N], 0);
    while have < N {
        have += retry_on_intr(|| getrandom(&mut bytes[have..], GetRandomFlags::empty()))?;
    }
    Ok(bytes)
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
    // If the file was cut, it gets its length again. The cut bytes read as zeros, and no sum fits them.
    if len < geometry.file_bytes() {
        file.set_len(geometry.file_bytes()).map_err(Error::io("lengthen", path))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in two children of one process: their generators have the same state.
    #[test]
    fn ids_of_processes_with_the_same_state_differ() {
        let id = || {
            fastrand::seed(7);
            random_id().unwrap()
        };
        assert_ne!(id(), id());
    }

    #[test]
    fn regions_are_a_share_within_bounds() {
        assert_eq!(region_bytes(0), 1 << 20);
        assert_eq!(region_bytes(1 << 30), 4 << 20);
        assert_eq!(region_bytes(10 << 30), 64 << 20);
        assert_eq!(region_bytes(10 << 40), 64 << 20);
    }
}
