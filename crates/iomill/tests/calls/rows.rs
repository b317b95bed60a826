//! Rows of a file by their numbers, on arrays and plain files.

use crate::executor::block_on;
use fastrand::Rng;
use iomill::{
    ArrayOptions, CacheOptions, Error, File, FileOptions, PlainOptions, RowId, Runtime, RuntimeOptions, Tuning,
};
use tempfile::TempDir;

use super::{PAGE, random};

fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Reads rows with numbers of a type, in both forms, and compares.
fn check<I: RowId + TryFrom<usize, Error: std::fmt::Debug>>(file: &File, all: &[u8], row_len: usize, base: usize) {
    let count = (all.len() - base) / row_len;
    let mut rng = Rng::with_seed((row_len + base) as u64);
    for most in [0, 1, 60] {
        let numbers: Vec<usize> = (0..most).map(|_| rng.usize(0..count)).collect();
        let ids: Vec<I> = numbers.iter().map(|&number| number.try_into().unwrap()).collect();
        let wanted: Vec<u8> =
            numbers.iter().flat_map(|number| &all[base + number * row_len..][..row_len]).copied().collect();
        let mut out = vec![0; wanted.len()];
        file.read_rows(&mut out, &ids, row_len, base as u64).unwrap();
        assert!(out == wanted, "{most} rows of {row_len} bytes from {base} on");
        out.fill(0);
        let out = block_on(file.read_rows_async(out, &ids, row_len, base as u64)).unwrap();
        assert!(out == wanted, "{most} rows of {row_len} bytes from {base} on, by a future");
    }
    let ids: Vec<I> = [0, count - 1, count].map(|number| number.try_into().unwrap()).into();
    let mut out = vec![0; 3 * row_len];
    let rows = if count == 1 { "row" } else { "rows" };
    let refused = |error: Error| {
        let text = error.to_string();
        assert!(
            matches!(error, Error::Invalid { .. }) && text.contains(&format!("row {count} at position 2")),
            "{text}"
        );
        assert!(text.contains(&format!("has {count} {rows} of {row_len} bytes")), "{text}");
    };
    refused(file.read_rows(&mut out, &ids, row_len, base as u64).unwrap_err());
    refused(block_on(file.read_rows_async(out, &ids, row_len, base as u64)).unwrap_err().into());
}

fn check_all(file: &File, all: &[u8]) {
    for (row_len, base) in [(512, 0), (1, 3), (3072, 128), (PAGE, PAGE), (10_000, 77), (700, 0)] {
        check::<i64>(file, all, row_len, base);
    }
    check::<u64>(file, all, 512, 0);
    check::<u32>(file, all, 512, 0);
    check::<i32>(file, all, 512, 0);
    let error = file.read_rows(&mut [0; 1024], &[3i64, -1], 512, 0).unwrap_err().to_string();
    assert!(error.contains("row -1 at position 1") && error.contains("the first is row 0"), "{error}");
    let error = file.read_rows(&mut [0; 512], &[i32::MIN], 512, 0).unwrap_err().to_string();
    assert!(error.contains("row -2147483648 at position 0"), "{error}");
    assert!(file.read_rows(&mut [0; 512], &[u64::MAX], 512, 0).is_err());
    assert!(file.read_rows(&mut [0; 512], &[0u32], 512, u64::MAX).is_err());
    assert!(file.read_rows(&mut [0; 511], &[0u32], 512, 0).is_err(), "too little room");
    assert!(file.read_rows(&mut [], &[0u32], 0, 0).is_err());
    assert!(block_on(file.read_rows_async(vec![0; 511], &[0u32], 512, 0)).is_err());
}

#[test]
fn rows_are_those_of_the_bytes() {
    let all = random(200_003, 1);
    for drive_threads in [false, true] {
        for cache in [64 << 10, 8 << 20, 0] {
            let dir = directory();
            let path = dir.path().join("plain");
            std::fs::write(&path, &all).unwrap();
            let runtime = RuntimeOptions::new().drive_threads(drive_threads).cache_bytes(cache).start().unwrap();
            check_all(&PlainOptions::new().runtime(&runtime).open(&path).unwrap(), &all);
            let drives = [dir.path().join("a"), dir.path().join("b")];
            drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
            let array = ArrayOptions::new()
                .tuning(Tuning::new().drive_threads(drive_threads))
                .cache_bytes(cache)
                .create(&drives)
                .unwrap();
            let file = array.create_file("file", &FileOptions::new()).unwrap();
            file.write_at(&all, 0).unwrap();
            check_all(&file, &all);
        }
    }
}

/// Ranges by a future: their lengths differ, some are empty, and those beyond the end are refused.
#[test]
fn ranges_are_gathered_by_a_future() {
    let dir = directory();
    let path = dir.path().join("file");
    let all = random(50 * PAGE, 1);
    std::fs::write(&path, &all).unwrap();
    for cache in [0, 8 << 20] {
        let runtime = RuntimeOptions::new().cache_bytes(cache).start().unwrap();
        let file = PlainOptions::new().runtime(&runtime).open(&path).unwrap();
        let ranges = [(7, 3), (2 * PAGE as u64 - 5, PAGE), (9, 0), (0, all.len())];
        let wanted: Vec<u8> = ranges.iter().flat_map(|&(at, len)| &all[at as usize..][..len]).copied().collect();
        assert!(block_on(file.read_ranges_async(vec![0; wanted.len()], &ranges)).unwrap() == wanted);
        let refused = |len, ranges: &[(u64, usize)]| {
            let error = block_on(file.read_ranges_async(vec![0; len], ranges)).unwrap_err();
            assert!(matches!(error.error(), Error::Invalid { .. }), "{error}");
        };
        refused(1, &[(all.len() as u64, 1)]);
        refused(4, &[(0, 3)]);
        refused(0, &[(0, usize::MAX), (0, 2)]);
    }
}

/// Runs of I/O so far, and bytes read.
fn drive(runtime: &Runtime) -> (u64, u64) {
    let counters = runtime.counters();
    counters.drives.iter().fold((0, 0), |sum, drive| (sum.0 + drive.reads, sum.1 + drive.read_bytes))
}

/// Rows that miss are read once, however often a call names them, and rows of one page together.
#[test]
fn equal_rows_and_neighbours_are_one_io() {
    let dir = directory();
    let path = dir.path().join("file");
    std::fs::write(&path, random(400 * PAGE, 1)).unwrap();
    for drive_threads in [false, true] {
        let runtime = RuntimeOptions::new()
            .drive_threads(drive_threads)
            .cache_bytes(8 << 20)
            .cache(CacheOptions::new().read_ahead_bytes(0))
            .start()
            .unwrap();
        let file = PlainOptions::new().runtime(&runtime).open(&path).unwrap();
        // 3,000 times one of 8 rows in one page.
        let ids: Vec<i64> = (0..3000).map(|number| 80 + number * 5 % 8).collect();
        file.read_rows(&mut vec![0; ids.len() * 512], &ids, 512, 0).unwrap();
        assert_eq!(drive(&runtime), (1, PAGE as u64));
        // All rows of 128 pages in a row, in a mixed order: long pieces.
        let mut ids: Vec<i64> = (0..1024).map(|number| 8 * 200 + number).collect();
        Rng::with_seed(1).shuffle(&mut ids);
        block_on(file.read_rows_async(vec![0; ids.len() * 512], &ids, 512, 0)).unwrap();
        let (reads, bytes) = drive(&runtime);
        assert_eq!(bytes, 129 * PAGE as u64);
        assert!(reads <= 6, "{reads} reads");
        // Now they are there.
        let before = runtime.counters();
        file.read_rows(&mut vec![0; ids.len() * 512], &ids, 512, 0).unwrap();
        let after = runtime.counters();
        assert_eq!((after.hits - before.hits, after.misses), (1024, before.misses));
    }
}

/// A dropped future frees its buffer when the read has ended, and not before.
#[test]
fn a_future_of_rows_may_be_dropped() {
    let dir = directory();
    let path = dir.path().join("file");
    let all = random(400 * PAGE, 1);
    std::fs::write(&path, &all).unwrap();
    let runtime = RuntimeOptions::new().cache_bytes(64 << 10).start().unwrap();
    let file = PlainOptions::new().runtime(&runtime).open(&path).unwrap();
    let ids: Vec<u32> = (0..3200).collect();
    for _ in 0..20 {
        drop(file.read_rows_async(vec![0; ids.len() * 512], &ids, 512, 0));
    }
    let out = block_on(file.read_rows_async(vec![0; ids.len() * 512], &ids, 512, 0)).unwrap();
    assert!(out == all);
    // The last hold on the file is an operation's.
    let last = file.read_rows_async(vec![0; ids.len() * 512], &ids, 512, 0);
    drop((file, runtime));
    assert!(block_on(last).unwrap() == all);
}
