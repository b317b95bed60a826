use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::cache::Cache;
use crate::identity::{ObjectId, Version};
use crate::index::Claimed;
use crate::options::Options;

const GRANULE: usize = 16 << 10;

fn cache(dir: &Path, within: Duration) -> Cache {
    let options = Options::new().bytes(8 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir);
    let cache = Cache::open([dir], options.on_root(true).write_within(within)).unwrap();
    // The thread of the drive reads first. Only a write is to hang.
    cache.wait_until_loaded();
    cache
}

fn id(n: u64) -> GranuleId {
    ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1 << 40).granule(n)
}

fn offer(cache: &Cache, n: u64) {
    let inner = cache.here().unwrap();
    let claim = match inner.drives[0].index.claim(id(n).tag, Duration::from_secs(3600)) {
        Claimed::Mine(claim) => Some(claim),
        other => panic!("{other:?}"),
    };
    inner.offer(Fill { id: id(n), bytes: vec![n as u8; GRANULE].into(), claim, is_ahead: false }, false);
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// No call waits for a drive that never answers. Its fills are dropped, and the drive is left out.
#[test]
fn a_drive_that_hangs_in_a_write_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_millis(200));
    offer(&cache, 0);
    assert!(cache.flush_within(Duration::MAX));
    let inner = cache.here().unwrap();
    let drive = Arc::clone(&inner.drives[0]);
    drive.call_hangs.store(true, Relaxed);
    let begun = Instant::now();
    offer(&cache, 1);
    assert!(!cache.flush_within(Duration::MAX), "it is late");
    cache.flush();
    assert!(!drive.is_dead() && inner.fillers[0].has_room(u64::MAX / 4));
    offer(&cache, 2);
    assert_eq!(cache.counters().dropped, 1);
    assert!(matches!(drive.index.claim(id(2).tag, Duration::ZERO), Claimed::Mine(_)), "the claim was given back");
    until("it is not left out", || drive.is_late() && drive.is_dead());
    assert!(begun.elapsed() >= Duration::from_millis(1600));
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("has not ended"), "{notices:?}");
    offer(&cache, 3);
    assert!(inner.drive_of(id(3)).is_none(), "it has no share any more");
    // The thread is in the write still.
    assert!(drive.try_hold().is_none());
    let closing = Instant::now();
    drop(cache);
    assert!(closing.elapsed() < Duration::from_secs(10), "{:?}", closing.elapsed());
    drive.call_hangs.store(false, Relaxed);
    until("the thread goes on for ever", || Arc::strong_count(&drive) == 1);
}

/// If the drive dies, the granules behind the write are dropped, and do not stay in memory as long as the thread is
/// stuck.
#[test]
fn a_drive_that_dies_in_a_write_keeps_no_memory_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_millis(200));
    let inner = cache.here().unwrap();
    let drive = Arc::clone(&inner.drives[0]);
    drive.call_hangs.store(true, Relaxed);
    offer(&cache, 0);
    until("the write does not begin", || locked(&inner.fillers[0].shared.queue).writing);
    (1..20).for_each(|n| offer(&cache, n));
    until("it is not left out", || drive.is_late() && drive.is_dead());
    inner.fillers[0].offer(Fill { id: id(20), bytes: vec![1; GRANULE].into(), claim: None, is_ahead: false }, false);
    assert_eq!(locked(&inner.fillers[0].shared.queue).bytes, GRANULE as u64, "what is being written");
    assert_eq!(cache.counters().dropped, 20);
    assert!(matches!(drive.index.claim(id(7).tag, Duration::ZERO), Claimed::Mine(_)));
    drive.call_hangs.store(false, Relaxed);
}

/// A drive that was late for a while is used again.
#[test]
fn a_late_write_that_ends_makes_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_millis(100));
    let drive = Arc::clone(&cache.here().unwrap().drives[0]);
    drive.call_hangs.store(true, Relaxed);
    offer(&cache, 0);
    until("it is not late", || drive.is_late());
    drive.call_hangs.store(false, Relaxed);
    until("it stays late", || !drive.is_late());
    offer(&cache, 1);
    assert!(cache.flush_within(Duration::MAX) && !drive.is_dead());
    assert_eq!((cache.counters().filled, cache.notices().len()), (2, 0));
}

/// Seen to fail if each drive was waited for, and if the first error ended the call: it did not end, and the other
/// drive stayed full.
#[test]
fn an_eviction_goes_on_without_a_drive_that_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let drives = ["0", "1"].map(|name| dir.path().join(name));
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let options = Options::new().bytes(8 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir.path());
    let cache = Cache::open(&drives, options.on_root(true).write_within(Duration::from_millis(200))).unwrap();
    let inner = cache.here().unwrap();
    (0..40).for_each(|n| {
        inner.offer(Fill { id: id(n), bytes: vec![n as u8; GRANULE].into(), claim: None, is_ahead: false }, false)
    });
    assert!(cache.flush_within(Duration::MAX));
    let filled = || cache.stat().iter().map(|drive| drive.allocated_bytes > 0).collect::<Vec<_>>();
    assert_eq!(filled(), [true, true]);
    inner.drives[0].call_hangs.store(true, Relaxed);
    let error = cache.evict().unwrap_err();
    assert!(matches!(&error, crate::Error::Late { path, .. } if *path == inner.drives[0].home()), "{error}");
    until("the other drive is not emptied", || filled() == [true, false]);
    // The call goes on when the drive answers.
    inner.drives[0].call_hangs.store(false, Relaxed);
    until("it is not emptied", || filled() == [false, false]);
    assert_eq!(cache.evict().unwrap(), 0);
}

/// Seen to fail by not ending: the thread asked for the right without an end, and reported nothing.
#[test]
fn a_process_that_keeps_the_right_to_append_holds_no_wait_up() {
    use crate::drive::Terms;
    let dir = tempfile::tempdir().unwrap();
    let runtime = iomill::RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let (share, options) = (Some(8 << 20), Options::new().region_bytes(1 << 20).index_dir(dir.path()));
    let (notices, given_up) = Default::default();
    let terms = Terms { cache: None, new_cache: 1, share, options, runtime, notices, given_up };
    let drive = Arc::new(Drive::open(dir.path(), &terms).unwrap());
    let other = crate::lock::Lock::open(&drive.home().join("lock")).unwrap();
    let held = other.try_take().unwrap();
    let filler = Filler::start(Arc::clone(&drive), Arc::default(), Arc::default(), 1 << 20, 1.0).unwrap();
    filler.wait_until_loaded();
    assert!(!drive.index.is_loaded());
    drop(held);
    until("it does not go on", || drive.index.is_loaded());
}
