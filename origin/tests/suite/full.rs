//! Full file systems: with blocks of their own for each region, without, and such that copy on write. The cache shrinks
//! or drops fills, and no read fails.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FsPath;
use std::sync::Arc;

use iomill_origin::{Cache, Options, Revalidate};

use super::drives::{PATIENCE, in_namespace, unshared};
use super::object_store::path::Path;
use super::object_store::{ObjectStore, ObjectStoreExt};
use super::{GRANULE, InMemory, expected, random, scratch};

fn never(options: Options) -> Options {
    options.revalidate("", Revalidate::Never)
}

/// The environment variable with the directory of the full file system, in the process that has it.
const FULL: &str = "IOMILL_ORIGIN_FULL";

/// A file system of 6 MiB in a namespace of the test, for a cache of 32 MiB.
#[test]
fn a_full_file_system_shrinks_the_cache() {
    if let Some(dir) = std::env::var_os(FULL) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(on_full_file_system(FsPath::new(&dir)));
        return;
    }
    let dir = scratch();
    let script = r#"mount -t tmpfs -o size=6m tmpfs "$0" || exit 77; exec "$@""#;
    in_namespace(script, dir.path(), FULL, dir.path());
}

async fn on_full_file_system(dir: &FsPath) {
    let index = scratch();
    let options = Options::new().bytes(32 << 20).region_bytes(1 << 20).memory_bytes(8 << 20).index_dir(index.path());
    let cache = Cache::open([dir], never(options).read_within(PATIENCE)).unwrap();
    let memory = Arc::new(InMemory::new());
    let (path, bytes) = (Path::from("a"), random(20 << 20, 1));
    memory.put(&path, bytes.clone().into()).await.unwrap();
    let store = cache.over(memory as Arc<dyn ObjectStore>, "memory://");
    for begin in (0..20u64 << 20).step_by(1 << 20) {
        let wanted: Vec<_> = (begin..begin + (1 << 20)).step_by(GRANULE as usize).map(|at| at..at + 512).collect();
        assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
        cache.flush();
    }
    let counters = cache.counters();
    assert_eq!((counters.filled, counters.dropped), ((20 << 20) / GRANULE, 0), "{counters:?}");
    assert!(counters.emptied > 10, "{counters:?}");
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("full"), "told once: {notices:?}");
    // The last ones are there.
    let wanted = [(20 << 20) - 5000..20 << 20];
    assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(cache.counters().since(&counters).gets, 0);
}

/// Runs a test in a process of its own, with the file system that `script` mounts at `ssd0` of a directory. `variable`
/// has that directory there.
fn on_image(variable: &str, script: &str, test: impl AsyncFn(&FsPath)) {
    if let Some(dir) = std::env::var_os(variable) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(FsPath::new(&dir)));
        return;
    }
    let dir = scratch();
    fs::create_dir(dir.path().join("ssd0")).unwrap();
    unshared(&["-m", "sh", "-c", script], dir.path(), variable, dir.path());
}

/// Options of a cache on the small file system of [`on_image`].
fn on_blocks(index: &FsPath, bytes: u64, region_bytes: u64) -> Options {
    let options = Options::new().bytes(bytes).region_bytes(region_bytes).memory_bytes(8 << 20).index_dir(index);
    never(options).on_root(true).read_within(PATIENCE)
}

/// Reads an object through a cache, a MiB at a time. Each is right, and its fills end before the next one.
async fn read_through(cache: &Cache, len: usize) {
    let memory = Arc::new(InMemory::new());
    let (path, bytes) = (Path::from("a"), random(len, 1));
    memory.put(&path, bytes.clone().into()).await.unwrap();
    let store = cache.over(memory as Arc<dyn ObjectStore>, "memory://");
    for begin in (0..len as u64).step_by(1 << 20) {
        let wanted = [begin..begin + (1 << 20)];
        assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
        cache.flush();
    }
}

/// The environment variable with the directory above a small file system with blocks, in the process that has it.
const BLOCKS: &str = "IOMILL_ORIGIN_BLOCKS";

/// ext4 keeps the blocks of an allocation that found too few. The cache could not use them, and others may need them.
#[test]
fn a_region_that_finds_no_room_keeps_no_blocks() {
    let script = r#"truncate -s 30M "$0/image" && mkfs.ext4 -q "$0/image" && mount -o loop "$0/image" "$0/ssd0" || exit 77; exec "$@""#;
    on_image(BLOCKS, script, on_small_file_system);
}

async fn on_small_file_system(dir: &FsPath) {
    let index = scratch();
    let cache = Cache::open([dir.join("ssd0")], on_blocks(index.path(), 64 << 20, 8 << 20)).unwrap();
    read_through(&cache, 32 << 20).await;
    let stat = &cache.stat()[0];
    assert!(stat.allocated_bytes > 0 && stat.allocated_bytes < 30 << 20, "{stat:?}");
    let kept = fs::metadata(dir.join("ssd0/iomill-origin/data")).unwrap().blocks() * 512;
    // Some blocks have the places of the others.
    assert!(kept <= stat.allocated_bytes + (256 << 10), "{kept} bytes for {stat:?}");
    assert!(cache.notices().len() == 1 && cache.notices()[0].contains("full"), "{:?}", cache.notices());
}

/// The environment variable with the directory above a file system that copies on write, in the process that has it.
const COPIES: &str = "IOMILL_ORIGIN_COPIES";

/// btrfs writes changed blocks to new places, so a full one has no room for the bytes of an emptied region.
#[test]
fn a_full_file_system_that_copies_on_write_shrinks_the_cache() {
    let script = r#"truncate -s 128M "$0/image" && mkfs.btrfs -q "$0/image" && mount -o loop "$0/image" "$0/ssd0" || exit 77; exec "$@""#;
    on_image(COPIES, script, on_copying_file_system);
}

async fn on_copying_file_system(dir: &FsPath) {
    let index = scratch();
    let cache = Cache::open([dir.join("ssd0")], on_blocks(index.path(), 256 << 20, 4 << 20)).unwrap();
    read_through(&cache, 160 << 20).await;
    // Some fills find no room. Others use that of regions that were given back.
    let (counters, stat) = (cache.counters(), &cache.stat()[0]);
    assert!(counters.emptied > 5 && counters.dropped < counters.filled, "{counters:?} {stat:?}");
    assert!(stat.filled_bytes > 8 << 20 && !stat.is_dead, "{stat:?}");
    assert!(cache.notices().len() == 1 && cache.notices()[0].contains("full"), "{:?}", cache.notices());
}

/// The environment variable with the directory above a file system without allocations, in the process that has it.
const LATE: &str = "IOMILL_ORIGIN_LATE";

/// A file of ext2 gets blocks only by writes, so a write finds out that there are none. Other files take and free room.
/// Seen to fail when each region counted as one with blocks: 2,432 of 3,072 granules were dropped.
#[test]
fn a_full_file_system_that_allocates_nothing_ahead_shrinks_the_cache() {
    let script = r#"truncate -s 24M "$0/image" && mkfs.ext2 -q -O ^extents "$0/image" && mount -t ext4 -o loop "$0/image" "$0/ssd0" || exit 77; exec "$@""#;
    on_image(LATE, script, on_file_system_without_allocations);
}

async fn on_file_system_without_allocations(dir: &FsPath) {
    let (index, drive) = (scratch(), dir.join("ssd0"));
    let options = on_blocks(index.path(), 64 << 20, 1 << 20);
    let memory = Arc::new(InMemory::new());
    let (path, bytes) = (Path::from("a"), random(48 << 20, 1));
    memory.put(&path, bytes.clone().into()).await.unwrap();
    for round in 0..3 {
        let cache = Cache::open([&drive], options.clone()).unwrap();
        let store = cache.over(memory.clone() as Arc<dyn ObjectStore>, &format!("memory://{round}"));
        // Another program takes what is left while regions are filled.
        let other = drive.join("other");
        for begin in (0..48u64 << 20).step_by(1 << 20) {
            let wanted = [begin..begin + (1 << 20)];
            assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
            cache.flush();
            if round == 0 && begin == 8 << 20 {
                let free = rustix::fs::statvfs(&drive).unwrap();
                let free = free.f_bavail * free.f_frsize - (300 << 10);
                assert!(free > 4 << 20, "it is full already");
                fs::write(&other, vec![1; free as usize]).unwrap();
            }
        }
        let (counters, stat) = (cache.counters(), &cache.stat()[0]);
        assert!(counters.emptied > 20 && !stat.is_dead, "{counters:?} {stat:?}");
        assert!(counters.dropped * 10 < counters.filled, "{counters:?} {stat:?}");
        assert!(stat.allocated_bytes >= 4 << 20 && stat.allocated_bytes < 24 << 20, "{stat:?}");
        assert!(cache.notices().len() == 1 && cache.notices()[0].contains("full"), "{:?}", cache.notices());
        // The last ones are there.
        let wanted = [(48 << 20) - (1 << 19)..48 << 20];
        assert_eq!(store.get_ranges(&path, &wanted).await.unwrap(), expected(&bytes, &wanted));
        assert_eq!(cache.counters().since(&counters).gets, 0);
        // A file that leaves makes room.
        drop((store, cache));
        super::forget_index(&index);
        if round == 1 {
            fs::remove_file(&other).unwrap();
        }
    }
}
