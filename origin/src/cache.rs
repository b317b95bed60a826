//! [`Cache`]: the drives, and what all origins over them share. Non-goals: what a get does (`store`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_lock::{Semaphore, SemaphoreGuard};
use futures_timer::Delay;
use futures_util::future::{Either, select};
use iomill::{Runtime, RuntimeOptions};

use crate::counters::{Counters, Tally};
use crate::drive::Drive;
use crate::error::{Error, Result};
use crate::fill::{Fill, Filler};
use crate::flights::Flights;
use crate::identity::GranuleId;
use crate::notices::Notices;
use crate::options::{Cost, Options, PATIENCE};
use crate::shares::Shares;

/// A cache of objects on the drives of this machine. All processes of the machine may open it at the same time. Clones are one cache.
///
/// When the last clone and the last store over it are dropped, what waits is written, and the threads of the cache end.
#[derive(Clone, Debug)]
pub struct Cache(pub(crate) Arc<Inner>);

/// What all clones share.
#[derive(Debug)]
pub struct Inner {
    pub drives: Vec<Arc<Drive>>,
    fillers: Vec<Filler>,
    shares: RwLock<Arc<Shares>>,
    pub flights: Arc<Flights>,
    pub tally: Arc<Tally>,
    /// One permit for each GET in flight.
    gets: Semaphore,
    pub granule_bytes: u64,
    pub cost: Cost,
    pub wait_for_others: Duration,
    pub options: Options,
    runtime: Runtime,
    notices: Notices,
}

impl Cache {
    /// Opens a cache on directories, one for each drive. A directory that belongs to no cache becomes a drive of this one.
    ///
    /// A drive that cannot be opened is left out, and [`Cache::notices`] has the reason. An error if none can be, if the options are wrong, or if the
    /// directories belong to two caches.
    ///
    /// What a drive has is read behind this call, if no process had the cache open since the machine started. Hits begin at once.
    pub fn open<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>, options: Options) -> Result<Cache> {
        let mut dirs: Vec<PathBuf> = drives.into_iter().map(|dir| dir.as_ref().to_owned()).collect();
        check(&dirs, &options)?;
        // Two processes that make drives of the same directories label them in one order, whatever theirs is. So both end with one cache.
        dirs.sort_by_cached_key(|dir| std::fs::metadata(dir).map(|found| (found.dev(), found.ino())).ok());
        let notices = Notices::default();
        let runtime = runtime(&options)?;
        let share = options.bytes.map(|bytes| bytes / dirs.len() as u64);
        let (mut cache, mut opened, mut first_error) = (known_cache(&dirs), Vec::<Arc<Drive>>::new(), None);
        for dir in &dirs {
            match Drive::open(dir, &mut cache, share, &options, &runtime, &notices) {
                Ok(drive) if is_like(&opened, &drive) => opened.push(Arc::new(drive)),
                Ok(_) => {
                    let why =
                        format!("{} is given twice, or has other lengths of granules than the rest", dir.display());
                    return Err(Error::Invalid { what: "the directories", why });
                }
                Err(error @ (Error::Foreign { .. } | Error::Invalid { .. })) => return Err(error),
                Err(error) => {
                    notices.add(format!("a drive is left out: {error}"));
                    first_error.get_or_insert(error);
                }
            }
        }
        let granule_bytes = match (opened.first(), first_error) {
            (Some(drive), _) => drive.geometry().granule_bytes() as u64,
            (None, Some(error)) => return Err(error),
            (None, None) => return Err(Error::Invalid { what: "the directories", why: "there is none".into() }),
        };
        let (flights, tally) = (Arc::new(Flights::default()), Arc::new(Tally::default()));
        let most = (options.fill_bytes / opened.len() as u64).max(granule_bytes);
        let filler = |drive: &Arc<Drive>| {
            let started =
                Filler::start(Arc::clone(drive), Arc::clone(&flights), Arc::clone(&tally), most, options.admit);
            started.map_err(Error::io("start the thread of", drive.home()))
        };
        let fillers = opened.iter().map(filler).collect::<Result<Vec<_>>>()?;
        let shares = RwLock::new(Arc::new(shares_of(&opened)));
        let (cost, wait_for_others) = (options.cost, options.wait_for_others);
        let gets = Semaphore::new(cost.in_flight.max(1));
        let inner = Inner {
            drives: opened,
            fillers,
            shares,
            flights,
            tally,
            gets,
            granule_bytes,
            cost,
            wait_for_others,
            options,
            runtime,
            notices,
        };
        Ok(Cache(Arc::new(inner)))
    }

    /// What the cache has done in this process.
    pub fn counters(&self) -> Counters {
        self.0.tally.now()
    }

    /// The runtime that reads the drives. Its counters tell hits in memory from reads of drives.
    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// What a user should know and no call returns: drives that were left out, that failed, or that are full.
    pub fn notices(&self) -> Vec<String> {
        self.0.notices.all()
    }

    /// The bytes of memory that the indexes of all drives take. All processes share them.
    pub fn index_bytes(&self) -> u64 {
        self.0.drives.iter().map(|drive| drive.index.bytes()).sum()
    }

    /// Waits until all granules that were fetched are written, or dropped. It blocks.
    pub fn flush(&self) {
        self.0.fillers.iter().for_each(Filler::flush);
    }

    /// Waits until the indexes have what the drives have. It blocks. Nothing needs this call: what is not in an index yet is a miss.
    pub fn wait_until_loaded(&self) {
        self.0.fillers.iter().for_each(Filler::wait_until_loaded);
    }
}

impl Inner {
    pub fn shares(&self) -> Arc<Shares> {
        Arc::clone(&self.shares.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A permit for a GET. It is a throttle, and no right: futures that nothing polls may have all of them, so a call waits within a bound.
    pub async fn permit(&self) -> Option<SemaphoreGuard<'_>> {
        match select(std::pin::pin!(self.gets.acquire()), Delay::new(PATIENCE)).await {
            Either::Left((permit, _)) => Some(permit),
            Either::Right(_) => None,
        }
    }

    pub fn drive_of(&self, id: GranuleId) -> Option<Arc<Drive>> {
        self.shares().drive(id.tag).map(|drive| Arc::clone(&self.drives[drive]))
    }

    /// Whether some process may have brought granules of an object. A hint: it decides which request learns of the object.
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

    /// Hands a granule to the thread of its drive.
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
    Ok(())
}

/// The cache that the drives belong to, if one of them has a label. A new drive among old ones gets their cache.
fn known_cache(dirs: &[PathBuf]) -> Option<u128> {
    let label = |dir: &PathBuf| crate::label::Label::read(&dir.join("iomill-origin")).ok().flatten();
    dirs.iter().find_map(label).map(|label| label.cache)
}

fn is_like(opened: &[Arc<Drive>], drive: &Drive) -> bool {
    opened.iter().all(|other| {
        other.label.drive != drive.label.drive && other.geometry().granule_bytes() == drive.geometry().granule_bytes()
    })
}

fn shares_of(drives: &[Arc<Drive>]) -> Shares {
    let weight = |drive: &Arc<Drive>| (!drive.is_dead()).then(|| (drive.label.drive, drive.geometry().places()));
    Shares::new(&drives.iter().map(weight).collect::<Vec<_>>())
}

/// The runtime of the options, or a new one. Granules of one object lie apart, so a read ahead would bring strangers.
fn runtime(options: &Options) -> Result<Runtime> {
    if let Some(runtime) = &options.runtime {
        return Ok(runtime.clone());
    }
    let made = RuntimeOptions::new().read_ahead_bytes(0);
    let made = match options.memory_bytes {
        Some(bytes) => made.cache_bytes(bytes),
        None => made,
    };
    Ok(made.start()?)
}

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
        let cache = Cache::open(&drives, options).unwrap();
        let inner = &cache.0;
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
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None }, false);
        assert_eq!(of_first(), 0);
        assert_eq!(cache.counters().dropped, 1);
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None }, false);
        cache.flush();
        assert_eq!(cache.counters().filled, 1);
        let notices = cache.notices();
        assert!(notices.len() == 1 && notices[0].contains("without this drive"), "{notices:?}");
        (0..2).for_each(|_| inner.drives[1].failed("read", &error));
        (0..7).for_each(|_| inner.drives[1].failed("read", &error));
        inner.leave_out_dead();
        assert!(inner.drive_of(id).is_none(), "no drive is left");
        inner.offer(Fill { id, bytes: vec![1; 16 << 10].into(), claim: None }, false);
    }
}
