//! The counters of arrays on real files, and their view from other processes.

use std::path::Path;

use iomill::counters::{self, TIMED_ONE_IN};
use iomill::{Array, ArrayOptions, CacheOptions, FileOptions, Tuning};
use tempfile::TempDir;

use super::PAGE;

fn array(directory: &Path, drives: usize, drive_threads: bool) -> Array {
    let drives: Vec<_> = (0..drives).map(|drive| directory.join(format!("d{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    // These tests count requests to the drives. With merges there would be too few requests to time one of them.
    ArrayOptions::new()
        .tuning(Tuning::new().drive_threads(drive_threads).merge(false))
        .cache_bytes(0)
        .create(drives)
        .unwrap()
}

/// A directory on a disk if the test runs on one: the system's directory of temporary files may be in memory.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Bytes of a file with sums that go past a full set were counted by the call, and again on their way.
#[test]
fn bytes_past_a_full_set_are_counted_once() {
    for sums in [false, true] {
        let directory = directory();
        // All pages are of one set.
        let cache = CacheOptions::new().set_pages(4).hash_mask(0).read_ahead_bytes(0);
        let options = ArrayOptions::new().cache(cache).cache_bytes(256 * PAGE as u64);
        let array = options.create([directory.path()]).unwrap();
        let file = array.create_file("f", &FileOptions::new().checksums(sums)).unwrap();
        file.write_at(&vec![7; 40 * PAGE], 0).unwrap();
        file.sync().unwrap();
        let pins: Vec<_> = (0..4).map(|page| file.pin(page).unwrap()).collect();
        let before = array.counters();
        file.read_at(&mut [0; PAGE], 10 * PAGE as u64).unwrap();
        file.write_at(&[8; PAGE], 20 * PAGE as u64).unwrap();
        let passed = array.counters().since(&before);
        assert_eq!(passed.bypasses, 2, "sums {sums}");
        assert_eq!((passed.bytes_read, passed.bytes_written), (PAGE as u64, PAGE as u64), "sums {sums}");
        drop(pins);
        array.close().unwrap();
    }
}

#[test]
fn every_way_of_io_is_counted_once() {
    for drive_threads in [false, true] {
        let directory = directory();
        let array = array(directory.path(), 2, drive_threads);
        let file = array.create_file("f", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
        file.write_at(&vec![7; 200 * PAGE], 0).unwrap();
        let wrote = array.counters();
        assert_eq!(wrote.bytes_written, 200 * PAGE as u64, "drive threads {drive_threads}");
        for drive in &wrote.drives {
            assert_eq!((drive.write_bytes, drive.writes), (100 * PAGE as u64, 100), "drive threads {drive_threads}");
            assert_eq!((drive.read_bytes, drive.errors, drive.in_flight), (0, 0, 0), "drive threads {drive_threads}");
            let timed = drive.latency.count();
            assert!(
                timed > 0 && timed <= drive.writes.div_ceil(TIMED_ONE_IN.into()),
                "drive threads {drive_threads}: {timed}"
            );
            assert!(drive.latency.sum_ns > 0 && drive.latency.quantile_us(0.5).unwrap() > 0.0);
        }
        // Unaligned, from another thread, and asynchronously: the caller's bytes count, not the transferred ones.
        let mut bytes = [0; 100];
        std::thread::scope(|scope| scope.spawn(|| file.read_at(&mut bytes, 10).unwrap()).join().unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        let task = iomill::Request::Read { offset: PAGE as u64, len: 50 };
        file.submit(vec![task], move |result| tell.send(result.unwrap()[0].clone()).unwrap()).unwrap();
        assert_eq!(told.recv().unwrap(), [7; 50]);
        let read = array.counters().since(&wrote);
        assert_eq!((read.bytes_read, read.bytes_written), (150, 0), "drive threads {drive_threads}");
        assert_eq!((read.drives[0].reads, read.drives[0].read_bytes), (1, 100), "drive threads {drive_threads}");
        assert_eq!((read.drives[1].reads, read.drives[1].read_bytes), (1, 50), "drive threads {drive_threads}");
        assert!(array.metrics().contains("\niomill_drive_read_bytes_total{drive=\"1\"} 50\n"));
        drop(file);
        array.close().unwrap();
    }
}

#[test]
fn threads_that_end_leave_their_counts() {
    let directory = directory();
    let array = array(directory.path(), 1, false);
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&[1; PAGE], 0).unwrap();
    for round in 1..=20 {
        std::thread::scope(|scope| scope.spawn(|| file.read_at(&mut [0; PAGE], 0).unwrap()).join().unwrap());
        let counters = array.counters();
        assert_eq!((counters.drives[0].reads, counters.bytes_read), (round, round * PAGE as u64));
    }
}

#[test]
fn others_see_an_open_array() {
    let directory = directory();
    let array = array(directory.path(), 3, false);
    let id = array.info().unwrap().id;
    let mine = || {
        // Notices are about boards of other processes, which other users may own.
        let (found, _notices) = counters::find(&counters::directories());
        found.into_iter().find(|board| board.array_id() == id)
    };
    let Some(board) = mine() else {
        // Without `/dev/shm` or a similar directory no process can watch, and the array says so.
        let notices = array.notices().join("\n");
        assert!(notices.contains("cannot watch the counters of this one"), "{notices}");
        return;
    };
    assert_eq!(board.pid(), std::process::id());
    assert!(board.drives()[2].ends_with("d2"), "{:?}", board.drives());
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&[1; PAGE], 0).unwrap();
    assert_eq!(board.read().unwrap().unwrap(), array.counters());
    assert_eq!(array.counters().bytes_written, PAGE as u64);
    drop(file);
    array.close().unwrap();
    assert!(mine().is_none());
    assert_eq!(board.read().unwrap(), None);
}

/// A page counts once for each range that needs it, also within one call.
#[test]
fn a_page_is_a_hit_for_each_range() {
    let directory = directory();
    let array = ArrayOptions::new().cache_bytes(1 << 20).create([directory.path()]).unwrap();
    array.put("f", &[7; 4 * PAGE], &iomill::PutOptions::new()).unwrap();
    array.close().unwrap();
    let array = ArrayOptions::new().cache_bytes(1 << 20).open(directory.path()).unwrap();
    let file = array.open_file("f").unwrap();
    for (misses, hits) in [(1, 9), (0, 10)] {
        let before = array.counters();
        file.read_rows(&mut [0; 10 * 8], &[0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9], 8, 0).unwrap();
        let counted = array.counters().since(&before);
        assert_eq!((counted.misses, counted.hits), (misses, hits));
    }
}
