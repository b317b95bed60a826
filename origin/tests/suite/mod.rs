//! Tests that are compiled for each version of `object_store`, and their common code.

// Helpers of tests may unwrap as tests do. A gather may well have one range.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iomill_origin::{Cache, Counters, Options, Revalidate};
use tempfile::TempDir;

use super::object_store::memory::InMemory;
use super::object_store::path::Path;
use super::object_store::{ObjectStore, ObjectStoreExt, Result};
use super::{Cached, object_store, result};

mod changes;
mod command;
mod content;
mod damage;
mod drives;
mod eviction;
mod fork;
mod full;
mod hostile;
mod integration;
mod kill;
mod liar;
mod machine;
mod ranges;
mod scripted;
mod sharing;
mod turns;

use scripted::{Act, Scripted};

/// The length of a granule in most tests.
pub const GRANULE: u64 = 16 << 10;

/// Drives, a cache, and a store in memory below it.
pub struct Rig {
    /// Declared first: dropped before the directory is.
    pub store: Arc<dyn ObjectStore>,
    pub cache: Cache,
    pub scripted: Arc<Scripted>,
    pub memory: Arc<InMemory>,
    pub dir: TempDir,
}

pub fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The directories of two drives.
pub fn drives(dir: &TempDir) -> Vec<PathBuf> {
    let drives: Vec<_> = (0..2).map(|n| dir.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir_all(drive).unwrap());
    drives
}

/// Small regions, and an index that is removed with the directory.
pub fn options(dir: &TempDir) -> Options {
    on_any_machine(Options::new().bytes(32 << 20).region_bytes(1 << 20).memory_bytes(8 << 20).index_dir(dir.path()))
}

/// Scratch directories are where they are, and no drive is too slow.
pub fn on_any_machine(options: Options) -> Options {
    options.on_root(true).read_within(Duration::from_secs(600))
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(|options| options)
    }

    /// Objects never change, so that a hit asks the origin for nothing.
    pub fn immutable() -> Rig {
        Rig::with(|options| options.revalidate("", Revalidate::Never))
    }

    pub fn with(options: impl FnOnce(Options) -> Options) -> Rig {
        let dir = scratch();
        let given = options(self::options(&dir));
        let memory = Arc::new(InMemory::new());
        Rig::of(dir, given, memory)
    }

    pub fn of(dir: TempDir, options: Options, memory: Arc<InMemory>) -> Rig {
        let cache = Cache::open(drives(&dir), options).unwrap();
        assert_eq!(cache.notices(), [""; 0]);
        let scripted = Arc::new(Scripted::new(memory.clone()));
        let store = cache.over(scripted.clone() as Arc<dyn ObjectStore>, "memory://");
        Rig { store, cache, scripted, memory, dir }
    }

    /// Another opening of the same drives, like that of another process, over the same origin.
    pub fn another(&self, options: Options) -> (Cache, Arc<dyn ObjectStore>) {
        let cache = Cache::open(drives(&self.dir), options).unwrap();
        cache.wait_until_loaded();
        let store = cache.over(self.scripted.clone() as Arc<dyn ObjectStore>, "memory://");
        (cache, store)
    }

    /// Closes the cache, changes its files, and opens it again with a new index.
    pub fn reopened(self, options: impl FnOnce(Options) -> Options, between: impl FnOnce(&TempDir)) -> Rig {
        let Rig { store, cache, scripted, memory, dir } = self;
        cache.flush();
        drop((store, cache));
        between(&dir);
        let given = options(self::options(&dir));
        let cache = Cache::open(drives(&dir), given).unwrap();
        cache.wait_until_loaded();
        let store = cache.over(scripted.clone() as Arc<dyn ObjectStore>, "memory://");
        Rig { store, cache, scripted, memory, dir }
    }

    /// Puts an object into the origin, past the cache.
    pub async fn behind(&self, path: &str, bytes: Vec<u8>) {
        self.memory.put(&Path::from(path), bytes.into()).await.unwrap();
    }

    pub async fn ranges(&self, path: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.store.get_ranges(&Path::from(path), ranges).await
    }

    /// The increase of the counters since then.
    pub fn since(&self, before: &Counters) -> Counters {
        self.cache.counters().since(before)
    }
}

/// Removes the indexes, as a restart of the machine does.
pub fn forget_index(dir: &TempDir) {
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// The bytes of ranges.
pub fn expected(bytes: &[u8], ranges: &[Range<u64>]) -> Vec<Bytes> {
    let of = |range: &Range<u64>| Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize]);
    ranges.iter().map(of).collect()
}

pub fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Single pages all over an object.
pub fn rows(len: u64) -> Vec<Range<u64>> {
    (0..len / GRANULE).map(|n| n * GRANULE + 4096..n * GRANULE + 4608).collect()
}

/// The factor for the rounds of a test of chance.
pub fn rounds(n: u64) -> u64 {
    n * std::env::var("IOMILL_ROUNDS").ok().and_then(|factor| factor.parse::<u64>().ok()).unwrap_or(1)
}

/// Deletes the objects that a test left in the origin.
pub async fn empty(store: &InMemory) {
    use futures_util::TryStreamExt;
    let left: Vec<_> = store.list(None).try_collect().await.unwrap();
    for object in left {
        store.delete(&object.location).await.unwrap();
    }
}

/// [`forget_index`], without one file.
pub fn forget_index_but(dir: &TempDir, kept: &str) {
    let path = dir.path().join(kept);
    let bytes = std::fs::read(&path).unwrap();
    forget_index(dir);
    std::fs::write(&path, bytes).unwrap();
}
