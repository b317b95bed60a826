use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bytes::Bytes;
use futures_executor::block_on;

use super::*;
use crate::append::{Appended, Item, append};
use crate::cache::Cache;
use crate::identity::{GranuleId, Version};
use crate::lock::Held;
use crate::options::Options;

const GRANULE: usize = 16 << 10;

/// A cache of one drive with two regions of 63 granules.
fn small(dir: &Path) -> Cache {
    let options = Options::new().bytes(2 << 20).region_bytes(1 << 20).memory_bytes(1 << 20).index_dir(dir);
    let cache = Cache::open([dir], options.on_root(true)).unwrap();
    cache.wait_until_loaded();
    cache
}

fn object(n: u64) -> ObjectId {
    ObjectId::new("o", &n.to_string(), &Version::Modified { ns: 0 }, 1 << 40)
}

fn appended(drive: &Drive, held: &Held<'_>, granules: impl Iterator<Item = GranuleId>) {
    let items: Vec<Item> = granules.map(|id| Item { id, bytes: Bytes::from(vec![1; GRANULE]) }).collect();
    append(drive, &items, held, &mut Appended::default()).unwrap();
}

/// The region of a granule is emptied while a pin waits for the right to append.
#[test]
fn a_granule_that_leaves_its_place_takes_no_mark_of_a_pin_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let cache = small(dir.path());
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    let range = 0..5 * GRANULE as u64;
    for (is_pinned, other) in [(true, 2), (false, 3)] {
        let held = drive.hold().unwrap();
        appended(drive, &held, (0..5).map(|n| object(1).granule(n)));
        assert!(has_all(inner, object(1), &range));
        let mut marking = Box::pin(mark(inner, object(1), &range, is_pinned));
        assert!(block_on(async { futures_util::poll!(&mut marking) }).is_pending(), "another call appends");
        appended(drive, &held, (0..130).map(|n| object(other).granule(n)));
        assert!(!has_all(inner, object(1), &range), "all regions were emptied");
        let has_granule = |place: &u64| drive.index.entry(*place).tag != 0;
        let others = (0..126).filter(|place| !is_pinned && has_granule(place));
        let pinned = others.map(|place| drive.index.pin(place, true)).count() as u64;
        drop(held);
        assert!(!block_on(marking).unwrap());
        assert_eq!(drive.index.count_pinned(), pinned);
        drive.unpin_all().unwrap();
        assert_eq!(drive.index.count_pinned(), 0);
    }
}

/// One thread pins granules and unpins them, and another one empties their regions all the time. Seen to fail when a pin did not take
/// the right to append: other granules had marks.
#[test]
fn a_pin_beside_appends_marks_no_other_granule() {
    let dir = tempfile::tempdir().unwrap();
    let cache = small(dir.path());
    let inner = cache.here().unwrap();
    let drive = &inner.drives[0];
    let ends = AtomicBool::new(false);
    drive.faults.marks_slowly.store(true, Relaxed);
    let mine = |n: u64| object(1).granule(n);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                for is_pinned in [true, false] {
                    block_on(mark(inner, object(1), &(0..8 * GRANULE as u64), is_pinned)).unwrap();
                }
            }
        });
        for round in 0..300 {
            let held = drive.hold().unwrap();
            // Most of a region, so that no granule stays for long.
            let others = (0..50).map(|n| object(2 + round).granule(n));
            appended(drive, &held, (0..8).map(mine).chain(others));
        }
        ends.store(true, Relaxed);
    });
    assert_eq!(drive.index.count_pinned(), 0);
}

/// A process that keeps the right to append makes a pin fail, and not wait without an end.
#[test]
fn a_pin_beside_a_stopped_process_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let cache = small(dir.path());
    let inner = cache.here().unwrap();
    let drive = Arc::clone(&inner.drives[0]);
    appended(&drive, &drive.hold().unwrap(), (0..5).map(|n| object(1).granule(n)));
    let other = crate::lock::Lock::open(&drive.home().join("lock")).unwrap();
    let held = other.try_take().unwrap();
    let why = block_on(unpin(inner, object(1), 0..5)).unwrap_err().source.to_string();
    assert!(why.contains("end that process") && why.contains("iomill-origin"), "{why}");
    drop(held);
    block_on(unpin(inner, object(1), 0..5)).unwrap();
}
