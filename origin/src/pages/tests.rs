use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures_executor::block_on;

use super::*;
use crate::cache::Cache;
use crate::drive::FAILURES_MOST;
use crate::fill::Fill;
use crate::identity::{ObjectId, Version};
use crate::index::Region;
use crate::options::Options;
use crate::summary::Life;

const GRANULE: usize = 16 << 10;

fn cache(dir: &Path, within: Duration) -> Cache {
    let options = Options::new().bytes(8 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir);
    Cache::open([dir], options.on_root(true).read_within(within)).unwrap()
}

fn patient(dir: &Path) -> Cache {
    cache(dir, Duration::from_secs(600))
}

fn id(n: u64) -> GranuleId {
    ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1 << 40).granule(n)
}

fn fill(cache: &Cache, granules: std::ops::Range<u64>) {
    for n in granules {
        cache
            .here()
            .unwrap()
            .offer(Fill { id: id(n), bytes: vec![n as u8; GRANULE].into(), claim: None, is_ahead: false }, false);
    }
    cache.flush();
}

fn plan(inner: &Inner, granules: std::ops::Range<u64>) -> Vec<Planned> {
    let planned = |n: u64| {
        let found = inner.drives[0].index.find(id(n).tag).unwrap();
        Planned { piece: n as usize, id: id(n), pages: 0..4, found }
    };
    granules.map(planned).collect()
}

fn read(cache: &Cache, plan: Vec<Planned>) -> (Vec<(usize, Bytes)>, Vec<usize>) {
    let inner = cache.here().unwrap();
    block_on(gathered(inner, &inner.drives[0], plan))
}

/// A drive that does not answer: its reads are misses after a while, and after some such reads it is left out.
#[test]
fn a_drive_that_hangs_is_a_miss_within_the_bound_and_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_millis(20));
    fill(&cache, 0..100);
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    drive.hangs.store(true, Relaxed);
    let begun = Instant::now();
    let mut calls = 0;
    while !drive.is_dead() {
        let (right, lost) = read(&cache, plan(inner, 0..100));
        assert_eq!((right.len(), lost.len()), (0, 100));
        calls += 1;
        assert_eq!(cache.counters().misses_late, calls * 100);
    }
    assert!(calls >= u64::from(FAILURES_MOST));
    assert!(begun.elapsed() >= Duration::from_millis(20) * (FAILURES_MOST - 1));
    let notices = cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("nothing came within"), "{notices:?}");
    assert!(inner.drive_of(id(0)).is_none(), "it has no share any more");
    // Reads are under way without an end. No more of them begin.
    assert!(drive.bounded.is_stuck());
}

/// The end of a cache does not wait for reads that do not end. Their memory stays until they do.
#[test]
fn a_drive_that_hangs_in_a_read_does_not_hold_the_end_up() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_millis(20));
    fill(&cache, 0..3);
    let inner = cache.here().unwrap();
    let (hangs, drive) = (Arc::clone(&inner.drives[0].hangs), Arc::downgrade(&inner.drives[0]));
    hangs.store(true, Relaxed);
    assert_eq!(read(&cache, plan(inner, 0..3)).1.len(), 3);
    let begun = Instant::now();
    drop(cache);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    std::thread::sleep(Duration::from_millis(200));
    assert!(drive.strong_count() > 0, "the read uses it");
    hangs.store(false, Relaxed);
    while drive.strong_count() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is kept for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// More pieces than there are slots for reads: the call takes its slots again and again, and reads all. No read ends at
/// its first poll, so a slot is free again only after the call has waited for its read.
#[test]
fn a_gather_of_more_than_the_bound_gets_all() {
    let dir = tempfile::tempdir().unwrap();
    let cache = patient(dir.path());
    fill(&cache, 0..100);
    let inner = cache.here().unwrap();
    inner.drives[0].is_slow.store(true, Relaxed);
    let slots: Vec<_> = std::iter::from_fn(|| inner.drives[0].bounded.try_slot()).collect();
    let wanted: Vec<Planned> = (0..20).flat_map(|_| plan(inner, 0..100)).collect();
    let one_free = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let mut slots = slots;
        slots.truncate(slots.len() - 1);
        // The others stay taken until the end of the test.
        slots
    });
    let (right, lost) = read(&cache, wanted);
    assert_eq!((right.len(), lost.len()), (2000, 0));
    drop(one_free.join().unwrap());
}

/// Rule I6: the sum of a page is right, and its region was emptied during the read.
#[test]
fn a_page_of_a_region_that_was_emptied_meanwhile_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let cache = patient(dir.path());
    fill(&cache, 0..3);
    let inner = cache.here().unwrap();
    let (drive, planned) = (&inner.drives[0], plan(inner, 0..3));
    assert_eq!(read(&cache, planned.clone()).0.len(), 3);
    let region = drive.geometry().region_of(planned[0].found.place);
    let was = drive.index.region(region);
    let life = was.life.unwrap();
    drive.index.set_region(region, Region { life: Some(Life { number: life.number + 1, ..life }), ..was });
    let (right, lost) = read(&cache, planned);
    assert_eq!((right.len(), lost.len(), cache.counters().misses_wrong), (0, 3, 3));
}

/// Rule R4: no sum is checked here, because the page is read by iomill's file itself.
#[test]
fn the_page_cache_forgets_a_region_that_has_another_life() {
    let dir = tempfile::tempdir().unwrap();
    let cache = patient(dir.path());
    fill(&cache, 0..3);
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    let found = plan(inner, 1..2)[0].found;
    let offset = drive.geometry().offset(found.place);
    let page = || block_on(drive.gather(&[(offset, PAGE_BYTES)])).unwrap();
    drive.see(found.place, found.life);
    assert_eq!(page(), vec![1; PAGE_BYTES]);
    let mut new = drive.buffer(PAGE_BYTES).unwrap();
    new.fill(9);
    drive.write(&new, offset, &drive.try_hold().unwrap()).unwrap();
    drive.see(found.place, found.life);
    assert_eq!(page(), vec![1; PAGE_BYTES], "it is in memory");
    drive.see(found.place, found.life + 1);
    assert_eq!(page(), vec![9; PAGE_BYTES]);
}

/// Rule R5: places past the end of a cut file cannot be read. They are forgotten and filled again elsewhere, and the
/// drive stays in use.
#[test]
fn a_granule_that_cannot_be_read_is_filled_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = patient(dir.path());
    fill(&cache, 0..40);
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    let last = plan(inner, 39..40)[0].found.place;
    let data = std::fs::OpenOptions::new().write(true).open(drive.home().join("data")).unwrap();
    data.set_len(drive.geometry().offset(last)).unwrap();
    for _ in 0..2 * FAILURES_MOST {
        let (right, lost) = read(&cache, plan(inner, 30..40));
        assert_eq!((right.len(), lost), (9, vec![39]));
        assert!(!drive.is_dead() && drive.index.find(id(39).tag).is_none());
        // The file has its length again, so that a place behind this one can be written. Then it is cut there again.
        fill(&cache, 39..40);
        let place = plan(inner, 39..40)[0].found.place;
        assert!(place > last, "it has another place");
        data.set_len(drive.geometry().offset(place)).unwrap();
    }
    assert_eq!(cache.counters().misses_failed, 2 * u64::from(FAILURES_MOST));
}

/// The bound of the waiting granules is one of memory: a granule keeps only its own bytes.
#[test]
fn a_granule_that_waits_does_not_keep_the_memory_of_its_get() {
    let dir = tempfile::tempdir().unwrap();
    let cache = patient(dir.path());
    let inner = cache.here().unwrap();
    // As another process that is stopped.
    let lock = std::fs::File::open(inner.drives[0].home().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let body = Bytes::from(vec![7; 64 * GRANULE]);
    let slice = body.slice(GRANULE..2 * GRANULE);
    inner.offer(Fill { id: id(1), bytes: slice, claim: None, is_ahead: false }, false);
    assert!(body.is_unique(), "the granule keeps all of it");
    let found = inner.flights.begin(id(1));
    assert!(matches!(found, crate::flights::Begun::Have(bytes) if bytes == vec![7; GRANULE]));
}

/// A stall makes many calls late at once, and calls after it wait for slots. Seen to fail when each of them counted as a
/// failure: the drive was left out.
#[test]
fn calls_that_are_late_together_are_one_failure() {
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(dir.path(), Duration::from_secs(1));
    fill(&cache, 0..4);
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    let slots: Vec<_> = std::iter::from_fn(|| drive.bounded.try_slot()).collect();
    let mut calls: Vec<_> =
        (0..3 * FAILURES_MOST).map(|_| Box::pin(gathered(inner, drive, plan(inner, 0..4)))).collect();
    block_on(async {
        for call in &mut calls {
            assert!(futures_util::poll!(call).is_pending());
        }
    });
    for (right, lost) in block_on(futures_util::future::join_all(calls)) {
        assert_eq!((right.len(), lost.len()), (0, 4));
    }
    assert!(!drive.is_dead(), "{:?}", cache.notices());
    drop(slots);
    assert_eq!(read(&cache, plan(inner, 0..4)).1, [0; 0]);
}
