//! [`Cache`]: the drives, and the state that all origins over them share. Non-goals: the steps of a get (`store`).

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use async_lock::{Semaphore, SemaphoreGuard};
use futures_util::future::{Either, select};
use iomill::{CacheOptions, Runtime, RuntimeOptions};

use crate::counters::{Counters, Tally};
use crate::drive::Drive;
use crate::error::{Error, Result};
use crate::evict::{DriveStat, evict_all};
use crate::fill::{Fill, Filler};
use crate::flights::Flights;
use crate::geometry::Geometry;
use crate::identity::GranuleId;
use crate::known::Learned;
use crate::notices::{Notices, locked};
use crate::opening::opened;
use crate::options::{Options, PATIENCE};
use crate::process::PerProcess;
use crate::shares::Shares;
use crate::timer::{Timer, end_of};

/// A cache of objects on the drives of this machine. All processes of the machine may open it at the same time. Clones
/// are one cache.
///
/// When the last clone and the last store over it are dropped, the waiting granules are written, and the threads of the
/// cache end.
///
/// A forked child may use it, and opens the drives for itself at its first call.
#[derive(Clone, Debug)]
pub struct Cache(Arc<Opening>);

/// The state that all clones share, in this process and in its children.
struct Opening {
    dirs: Vec<PathBuf>,
    options: Options,
    runtime: Runtime,
    /// The memory of the runtime; each child gets a share of it.
    memory_bytes: u64,
    here: PerProcess<Inner>,
}

/// The state of a cache in one process.
pub struct Inner {
    pub drives: Vec<Arc<Drive>>,
    pub fillers: Vec<Filler>,
    shares: RwLock<Arc<Shares>>,
    pub flights: Arc<Flights>,
    pub tally: Arc<Tally>,
    /// One permit for each GET in flight.
    gets: Semaphore,
    pub granule_bytes: u64,
    pub timer: Timer,
    pub options: Options,
    runtime: Runtime,
    notices: Notices,
    /// The stores of this process, by the names of their origins.
    stores: Mutex<HashMap<String, Vec<Weak<Learned>>>>,
}

// Short: a cache has tables of many thousand numbers, and each store, object and content over it shows it.
impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("dirs", &self.dirs).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("drives", &self.drives.len()).finish_non_exhaustive()
    }
}

impl Cache {
    /// Opens a cache on directories, one for each drive. A directory without a drive becomes a drive of this cache,
    /// unless it is on the file system of `/`: a mount point without its drive is there. [`Options::on_root`] allows
    /// that, too. A directory that was a drive of this cache and has no label does not become a drive again, unless
    /// [`Options::anew`] allows it.
    ///
    /// A drive that cannot be opened is left out, and [`Cache::notices`] has the reason. The same is true for a drive
    /// that does not answer within [`Options::open_within`]. It is an error if no drive can be opened, if the options
    /// are wrong, if the directories belong to two caches, or if a new cache cannot have all of them (rule M3 of
    /// `docs/origin.md`).
    ///
    /// If no process has had the cache open since the machine started, a thread reads the contents of the drives after
    /// this call has returned. Hits begin at once.
    pub fn open<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>, options: Options) -> Result<Cache> {
        let mut dirs: Vec<PathBuf> = drives.into_iter().map(|dir| dir.as_ref().to_owned()).collect();
        check(&dirs, &options)?;
        // A child may have another working directory.
        for dir in &mut dirs {
            *dir = std::path::absolute(&*dir).map_err(Error::io("find", &*dir))?;
        }
        let runtime = runtime(&options)?;
        let memory_bytes = runtime.counters().cache_bytes;
        let here = PerProcess::new(Inner::open(&dirs, &options, runtime.clone())?);
        Ok(Cache(Arc::new(Opening { dirs, options, runtime, memory_bytes, here })))
    }

    /// The state of this process. A forked child opens the cache here.
    pub(crate) fn here(&self) -> Result<&Inner> {
        let opening = &*self.0;
        opening
            .here
            .get_or_try(|| Inner::open(&opening.dirs, &opening.options, runtime_of_child(opening.memory_bytes)?))
    }

    /// The state of this process, if it has opened the cache.
    pub(crate) fn opened(&self) -> Option<&Inner> {
        self.0.here.get()
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// The counters of this process.
    pub fn counters(&self) -> Counters {
        self.0.here.get().map(|inner| inner.tally.now()).unwrap_or_default()
    }

    /// The runtime that reads the drives. Its counters distinguish hits in memory from reads of drives.
    pub fn runtime(&self) -> &Runtime {
        self.0.here.get().map_or(&self.0.runtime, |inner| &inner.runtime)
    }

    /// Messages for users that no call returns: drives that are left out, that have failed, or that are full.
    pub fn notices(&self) -> Vec<String> {
        self.0.here.get().map(|inner| inner.notices.all()).unwrap_or_default()
    }

    /// The memory of the indexes of all drives, in bytes. All processes share it.
    pub fn index_bytes(&self) -> u64 {
        self.0.here.get().map_or(0, |inner| inner.drives.iter().map(|drive| drive.index.bytes()).sum())
    }

    /// Waits until all fetched granules are written or dropped. It does not wait for a drive with a late write: see
    /// [`Options::write_within`]. It blocks.
    pub fn flush(&self) {
        let _late = self.flush_before(None);
    }

    /// [`Cache::flush`] within a bound. Returns whether no granule waits any more.
    pub fn flush_within(&self, most: Duration) -> bool {
        self.flush_before(Some(end_of(most)))
    }

    fn flush_before(&self, end: Option<Instant>) -> bool {
        let fillers = self.0.here.get().map(|inner| &inner.fillers[..]).unwrap_or_default();
        // All of them, also after one that is late.
        fillers.iter().filter(|filler| !filler.flush_before(end)).count() == 0
    }

    /// The contents of each drive, in numbers.
    pub fn stat(&self) -> Vec<DriveStat> {
        self.0.here.get().map(|inner| inner.drives.iter().map(|drive| drive.stat()).collect()).unwrap_or_default()
    }

    /// Evicts all granules, for all processes, and returns their space to the file systems. Returns the number of
    /// bytes. It blocks. Granules that other processes fetch meanwhile may stay.
    ///
    /// The first error is returned after all drives were tried. A drive that does not answer is an error after
    /// [`Options::write_within`]. If it answers later, it may still be emptied.
    pub fn evict(&self) -> Result<u64> {
        let inner = self.here()?;
        evict_all(&inner.drives, inner.options.write_within)
    }

    /// Unpins all granules, of all stores and for all processes. Returns their bytes. It blocks until a batch that another
    /// process writes has ended. The first error is returned after all drives were tried.
    pub fn unpin_all(&self) -> Result<u64> {
        let unpinned: Vec<Result<u64>> = self.here()?.drives.iter().map(|drive| drive.unpin_all()).collect();
        unpinned.into_iter().sum()
    }

    /// Waits until the indexes have the contents of the drives. It blocks. No program needs this call: a granule that
    /// is not yet in an index is a miss.
    pub fn wait_until_loaded(&self) {
        self.0.here.get().into_iter().for_each(|inner| inner.fillers.iter().for_each(Filler::wait_until_loaded));
    }
}

impl Drop for Inner {
    /// The threads of all drives end at the same time.
    fn drop(&mut self) {
        self.fillers.iter().for_each(Filler::end);
        self.drives.iter().filter(|drive| drive.bounded.late() > 0).for_each(leave);
    }
}

/// Rule D1: a drive is closed after its reads, which may not end. So a thread keeps the drive until they do.
fn leave(drive: &Arc<Drive>) {
    let kept = Arc::clone(drive);
    let wait = move || {
        while kept.bounded.late() > 0 {
            std::thread::sleep(LOOK);
        }
    };
    if std::thread::Builder::new().name("iomill-leaving".into()).spawn(wait).is_err() {
        // Without a thread its memory stays until the process ends, which is less than a caller that is held up.
        std::mem::forget(Arc::clone(drive));
    }
}

/// The interval at which a thread checks the reads of a drive that was left.
const LOOK: Duration = Duration::from_millis(50);

impl Inner {
    fn open(dirs: &[PathBuf], options: &Options, runtime: Runtime) -> Result<Inner> {
        let notices = Notices::default();
        let opened = opened(dirs, options, &runtime, &notices)?;
        // There is one at least.
        let granule_bytes = opened.first().map_or(1, |drive| drive.geometry().granule_bytes() as u64);
        let (flights, tally) = (Arc::new(Flights::default()), Arc::new(Tally::default()));
        let most = (options.fill_bytes / opened.len() as u64).max(granule_bytes);
        let filler = |drive: &Arc<Drive>| {
            let started =
                Filler::start(Arc::clone(drive), Arc::clone(&flights), Arc::clone(&tally), most, options.admit);
            started.map_err(Error::io("start the thread of", drive.home()))
        };
        let fillers = opened.iter().map(filler).collect::<Result<Vec<_>>>()?;
        let timer = Timer::start().map_err(Error::io("start the timer of", &dirs[0]))?;
        let shares = RwLock::new(Arc::new(shares_of(&opened)));
        let gets = Semaphore::new(options.cost.in_flight.max(1));
        let options = options.clone();
        Ok(Inner {
            drives: opened,
            fillers,
            shares,
            flights,
            tally,
            gets,
            granule_bytes,
            timer,
            options,
            runtime,
            notices,
            stores: Mutex::default(),
        })
    }

    /// The facts for a new store of an origin. Each store finds its own ones, because it may have other rights.
    pub fn new_learned(&self, name: &str) -> Arc<Learned> {
        let (mut stores, made) = (locked(&self.stores), Arc::<Learned>::default());
        let all = stores.entry(name.to_owned()).or_default();
        // Seldom, so that thousands of stores cost little.
        if all.len().is_power_of_two() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(Arc::downgrade(&made));
        made
    }

    /// The facts of all stores of an origin.
    pub fn learned(&self, name: &str) -> Vec<Arc<Learned>> {
        let stores = locked(&self.stores);
        stores.get(name).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    pub fn shares(&self) -> Arc<Shares> {
        Arc::clone(&self.shares.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A permit for a GET. It only limits the number of GETs. Futures that nothing polls may hold all permits, so a
    /// call waits within a bound.
    pub async fn permit(&self) -> Option<SemaphoreGuard<'_>> {
        if let Some(permit) = self.gets.try_acquire() {
            return Some(permit);
        }
        match select(std::pin::pin!(self.gets.acquire()), self.timer.after(PATIENCE)).await {
            Either::Left((permit, _)) => Some(permit),
            Either::Right(_) => None,
        }
    }

    pub fn drive_of(&self, id: GranuleId) -> Option<Arc<Drive>> {
        self.shares().drive(id.tag).map(|drive| Arc::clone(&self.drives[drive]))
    }

    /// Whether some process may have written granules of an object. A hint: it decides which request learns the version
    /// of the object.
    pub fn may_have_object(&self, hash: u64) -> bool {
        let drive = self.shares().drive(hash);
        drive.is_some_and(|drive| self.drives[drive].index.may_have_object(hash))
    }

    pub fn note_object(&self, hash: u64) {
        if let Some(drive) = self.shares().drive(hash) {
            self.drives[drive].index.note_object(hash);
        }
    }

    /// A drive has died: its share goes to the others.
    pub fn leave_out_dead(&self) {
        let shares = Arc::new(shares_of(&self.drives));
        *self.shares.write().unwrap_or_else(PoisonError::into_inner) = shares;
    }

    /// Whether all drives have room for their shares of `bytes` among the waiting granules.
    pub fn has_room(&self, bytes: u64) -> bool {
        let share = bytes / self.fillers.len().max(1) as u64;
        self.fillers.iter().all(|filler| filler.has_room(share))
    }

    /// Gives a granule to the thread of its drive.
    pub fn offer(&self, fill: Fill, extra: bool) {
        if let Some(drive) = self.shares().drive(fill.id.tag) {
            if self.drives[drive].is_dead() {
                self.leave_out_dead();
            }
            self.fillers[drive].offer(fill, extra);
        }
    }
}

fn check(dirs: &[PathBuf], options: &Options) -> Result<()> {
    let invalid = |what, why: &str| Err(Error::Invalid { what, why: why.into() });
    if dirs.is_empty() || dirs.len() > 1024 {
        return invalid("the directories", "a cache has from 1 to 1024 drives");
    }
    if !(options.admit > 0.0 && options.admit <= 1.0) {
        return invalid("Options::admit", "it is a share, more than 0 and at most 1");
    }
    // Whether a drive is long enough is a matter of that drive.
    let lengths = Geometry::new(options.granule_bytes, options.region_bytes.unwrap_or(1 << 20), 2);
    lengths.map(drop).map_err(|why| Error::Invalid { what: "Options", why })
}

fn shares_of(drives: &[Arc<Drive>]) -> Shares {
    let weight = |drive: &Arc<Drive>| (!drive.is_dead()).then(|| (drive.label.drive, drive.geometry().places()));
    Shares::new(&drives.iter().map(weight).collect::<Vec<_>>())
}

/// The runtime of the options, or a new one. Granules of one object are not adjacent, so read-ahead would read those of
/// other objects.
fn runtime(options: &Options) -> Result<Runtime> {
    if let Some(runtime) = &options.runtime {
        return Ok(runtime.clone());
    }
    let made = RuntimeOptions::new().cache(CacheOptions::new().read_ahead_bytes(0));
    let made = match options.memory_bytes {
        Some(bytes) => made.cache_bytes(bytes),
        None => made,
    };
    Ok(made.start()?)
}

/// The runtime of a forked child: with a share of its parent's memory, because there are usually as many workers as
/// CPUs.
fn runtime_of_child(memory_bytes: u64) -> Result<Runtime> {
    const LEAST_BYTES: u64 = 1 << 20;
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let share = (memory_bytes / cpus).max(memory_bytes.min(LEAST_BYTES));
    Ok(RuntimeOptions::new().cache(CacheOptions::new().read_ahead_bytes(0)).cache_bytes(share).start()?)
}

#[cfg(test)]
mod forked;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{ObjectId, Version};

    #[test]
    fn a_drive_that_fails_again_and_again_gives_its_share_to_the_others_and_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let drives = ["0", "1"].map(|name| dir.path().join(name));
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        let options = Options::new().bytes(8 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir.path());
        let cache = Cache::open(&drives, options.on_root(true)).unwrap();
        let inner = cache.here().unwrap();
        let ids = || (0..1000).map(|n| ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1).granule(n));
        let of_first = || ids().filter(|id| inner.drive_of(*id).unwrap().home() == inner.drives[0].home()).count();
        assert!((300..700).contains(&of_first()), "both have a share");
        let error = std::io::Error::from_raw_os_error(5);
        (0..7).for_each(|_| inner.drives[0].failed("read", &error));
        // One that goes well makes it a new count.
        inner.drives[0].went_well();
        (0..7).for_each(|_| inner.drives[0].failed("read", &error));
        assert!(!inner.drives[0].is_dead());
        (0..7).for_each(|_| inner.drives[0].failed("read", &error));
        assert!(inner.drives[0].is_dead());
        // The next granule for it finds that out, and is dropped.
        let id = ids().find(|id| inner.drive_of(*id).unwrap().home() == inner.drives[0].home()).unwrap();
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None, is_ahead: false }, false);
        assert_eq!(of_first(), 0);
        assert_eq!(cache.counters().dropped, 1);
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None, is_ahead: false }, false);
        cache.flush();
        assert_eq!(cache.counters().filled, 1);
        let notices = cache.notices();
        assert!(notices.len() == 1 && notices[0].contains("without this drive"), "{notices:?}");
        (0..2).for_each(|_| inner.drives[1].failed("read", &error));
        (0..7).for_each(|_| inner.drives[1].failed("read", &error));
        inner.leave_out_dead();
        assert!(inner.drive_of(id).is_none(), "no drive is left");
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None, is_ahead: false }, false);
    }
}
