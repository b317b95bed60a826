//! [`Drive`]: one directory of a cache: its label, data file, index and lock. Non-goals: what is appended (`append`) and what is read (`reading`).

use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use iomill::{Advice, Buffer, PlainOptions, Runtime};
use rustix::fs::{FallocateFlags, OFlags, fallocate, statvfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::bounded::Bounded;
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use crate::identity::PAGE_BYTES;
use crate::index::Index;
use crate::label::Label;
use crate::lock::{Held, Lock};
use crate::notices::Notices;
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
    /// For appends and summaries, past all caches. A process may not have a plain file of iomill open for reading and for writing.
    raw: File,
    /// The right to append.
    lock: Lock,
    /// The call past iomill that is under way. Rule D2.
    watched: Watched,
    runtime: Runtime,
    /// Its reads that are under way, within bounds.
    pub bounded: Bounded,
    /// The life of each region of which the page cache may have pages. 0: of none.
    seen: Vec<AtomicU64>,
    reads: Failures,
    writes: Failures,
    dead: AtomicBool,
    /// The file system had no room for another region.
    full: AtomicBool,
    #[cfg(test)]
    pub hangs: Arc<AtomicBool>,
    #[cfg(test)]
    pub is_slow: AtomicBool,
    #[cfg(test)]
    pub call_hangs: AtomicBool,
    notices: Notices,
}

/// A read that was begun.
pub enum Gathered {
    Runs(iomill::Answer<Vec<u8>>),
    /// The drive does not answer.
    #[cfg(test)]
    Hangs(Arc<AtomicBool>),
    /// The first poll finds nothing, as it does of what is not in memory.
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

/// Reads or writes that failed since the last one that went well.
#[derive(Debug, Default)]
struct Failures(AtomicU32);

impl Failures {
    fn went_well(&self) {
        // A load first: the line stays shared.
        if self.0.load(Relaxed) != 0 {
            self.0.store(0, Relaxed);
        }
    }

    /// Whether it was one too many.
    fn failed(&self) -> bool {
        self.0.fetch_add(1, Relaxed) + 1 >= FAILURES_MOST
    }
}

/// What a drive is opened with.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The cache of the drives before it.
    pub cache: Option<u128>,
    /// The cache of new drives, if there is none before them.
    pub new_cache: u128,
    /// The bytes of a new drive.
    pub share: Option<u64>,
    pub options: Options,
    pub runtime: Runtime,
    pub notices: Notices,
    /// Nothing waits for the opening any more, so it makes no drive: others may have begun another cache.
    pub given_up: Arc<AtomicBool>,
}

/// How long a call waits for the right to append.
const HOLD_PATIENCE: Duration = Duration::from_secs(30);

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
        // Within the bound of the opening, so that it is told what holds it up.
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
        // Granules of one object lie apart: a read ahead would bring strangers.
        file.advise(.., Advice::Random)?;
        drop(held);
        let (bounded, reads, writes, dead, full) = Default::default();
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
            writes,
            dead,
            full,
            #[cfg(test)]
            hangs: Default::default(),
            #[cfg(test)]
            is_slow: AtomicBool::new(false),
            #[cfg(test)]
            call_hangs: AtomicBool::new(false),
            notices,
        })
    }

    pub fn geometry(&self) -> &Geometry {
        &self.label.geometry
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Takes the right to append, and waits for it within a bound.
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
        let written = self.watched(|| self.raw.write_all_at(bytes, offset));
        self.noted_write("write", written)
    }

    /// Reads past iomill's cache, which is for what users ask for.
    pub fn read_raw(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.watched(|| self.raw.read_exact_at(bytes, offset));
        match &read {
            Ok(()) => self.went_well(),
            Err(error) => self.failed("read", error),
        }
        read
    }

    /// Begins a read of places through iomill, one after the other into one memory.
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

    /// Before a read of a place, with the life of its region: lets the page cache forget what the region held in an earlier one. Rule R4.
    pub fn see(&self, place: u64, life: u64) {
        let region = self.geometry().region_of(place);
        let seen = &self.seen[region as usize];
        if seen.load(Relaxed) == life {
            return;
        }
        // Of two threads one lets the pages go. What the other one reads meanwhile is proved like all else.
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
        match allocated {
            // Without the call the writes take the blocks, and one that finds none fails.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(true),
            Err(e) => {
                let noted = self.noted_write("allocate", Err(e.into()));
                if [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].contains(&e) { Ok(false) } else { noted.map(|()| false) }
            }
        }
    }

    /// Gives the blocks of a region back, so that it reads as zeroes. `false` if the file system cannot: then its summary alone is zeroes.
    pub fn give_back(&self, region: u32, held: &Held<'_>) -> io::Result<bool> {
        let (offset, len) = (self.geometry().summary_offset(region, 0), self.geometry().region_bytes());
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.watched(|| retry_on_intr(|| fallocate(&self.raw, flags, offset, len))) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP) => {
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

    /// Rule D2: whether the call past iomill that is under way is late, so that nothing waits for the drive. One that takes as long as so many late
    /// calls makes the drive dead.
    pub fn is_late(&self) -> bool {
        let passed = self.watched.bounds_passed();
        if passed >= u64::from(FAILURES_MOST) {
            let within = self.watched.within();
            let late = format!("a call has not ended within {FAILURES_MOST} times {within:?}");
            self.die("write", &io::Error::new(io::ErrorKind::TimedOut, late));
        }
        passed > 0
    }

    /// A read of the drive went well.
    pub fn went_well(&self) {
        self.reads.went_well();
    }

    /// A read failed. After some in a row the drive is dead for this process, which is told once.
    pub fn failed(&self, what: &str, error: &dyn std::error::Error) {
        if self.reads.failed() {
            self.die(what, error);
        }
    }

    /// The same for what changes the drive. A drive that can be read and not written dies, too: what is fetched goes to the others then. A full
    /// file system is no failure.
    fn noted_write(&self, what: &str, result: io::Result<()>) -> io::Result<()> {
        match &result {
            Ok(()) => self.writes.went_well(),
            Err(error) if is_full(error) => {
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
                "{home}: calls failed one after the other, {FAILURES_MOST} or more, the last one with: cannot {what}: {error}; \
                 the cache goes on without this drive until it is opened again"
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

fn is_full(error: &io::Error) -> bool {
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
        "others may write to it: take that right away (chmod go-w), or remove it"
    } else {
        return Ok(());
    };
    Err(Error::Label { path: home.into(), why: why.into() })
}

/// From the kernel: two processes that were forked from one have the same generators in memory.
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
    // A file that was cut gets its length again. What was cut off reads as zeroes, which no sum fits.
    if len < geometry.file_bytes() {
        file.set_len(geometry.file_bytes()).map_err(Error::io("lengthen", path))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in two children of one process: their generators are in the same state.
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
