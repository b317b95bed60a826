//! The cache's size is changed while threads read and write real files.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{Array, ArrayOptions, File, Layout, Mode, Remote, Topology};

const PAGE: usize = 4096;
const SET: u64 = 12 * PAGE as u64;
const MIB: u64 = 1 << 20;

fn drives() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..2).map(|drive| dir.path().join(drive.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    (dir, drives)
}

/// One call on a thread's own part of the file, which `model` holds.
fn call(rng: &mut Rng, file: &File, start: usize, model: &mut [u8]) {
    let at = rng.usize(0..model.len());
    let most = [100, 5000, 60_000][rng.usize(0..3)];
    let len = rng.usize(0..=(model.len() - at).min(most));
    let offset = (start + at) as u64;
    match rng.u8(0..8) {
        0..3 => {
            let new: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            file.write_at(&new, offset).unwrap();
            model[at..at + len].copy_from_slice(&new);
        }
        3 if len > 0 => {
            // A pin keeps its bytes, and its page changes.
            let page = offset / PAGE as u64;
            let inside = (offset % PAGE as u64) as usize;
            let Ok(pin) = file.pin(page) else { return };
            let byte = model[at];
            assert_eq!(pin[inside], byte);
            file.write_at(&[byte ^ 0xFF], offset).unwrap();
            thread::sleep(Duration::from_micros(rng.u64(0..300)));
            assert_eq!(pin[inside], byte);
            model[at] = byte ^ 0xFF;
        }
        4 if rng.u8(0..20) == 0 => file.sync().unwrap(),
        _ => {
            let mut got = vec![0; len];
            assert_eq!(file.read_at(&mut got, offset).unwrap(), len);
            assert!(got == model[at..at + len], "{len} bytes at {offset}");
        }
    }
}

fn resizes_beside_calls(mode: Mode, nodes: usize) {
    const THREADS: usize = 4;
    const PART: usize = 1_000_000;
    let (_dir, drives) = drives();
    let options = ArrayOptions::new().mode(mode).depth(8).cache_bytes(60 * SET).cache_bytes_max(300 * SET);
    let options = options.topology(Topology::Emulate(nodes)).remote(Remote::Message);
    let array = options.create(&drives).unwrap();
    let file = array.create_file("f", Layout::striping().block_bytes(16 << 10)).unwrap();
    file.write_at(&vec![0; THREADS * PART], 0).unwrap();
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let models: Vec<Vec<u8>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|index| {
                let (file, stop, calls) = (&file, &stop, &calls);
                scope.spawn(move || {
                    let (mut rng, mut model) = (Rng::with_seed(index as u64), vec![0; PART]);
                    while !stop.load(Ordering::Relaxed) {
                        call(&mut rng, file, index * PART, &mut model);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        // If one thread panics, the others end.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stop = Stop(&stop);
        let (mut rng, start) = (Rng::with_seed(9), Instant::now());
        let (mut resizes, mut busy) = (0, 0);
        while start.elapsed() < Duration::from_secs(3) || resizes < 20 {
            let least = nodes as u64;
            let bytes = SET * [least, least + 1, 20, 59, 60, 61, 130, 299, rng.u64(least..=300)][rng.usize(0..9)];
            let before = calls.load(Ordering::Relaxed);
            array.resize_cache(bytes).unwrap();
            assert_eq!(array.counters().cache_bytes, bytes);
            resizes += 1;
            busy += u64::from(calls.load(Ordering::Relaxed) > before);
            thread::sleep(Duration::from_micros(rng.u64(0..3000)));
        }
        assert!(busy > 0, "calls go on during {resizes} resizes");
        drop(stop);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let check = |file: &File| {
        for (index, model) in models.iter().enumerate() {
            let mut got = vec![0; PART];
            file.read_at(&mut got, (index * PART) as u64).unwrap();
            assert!(got == *model, "part {index}");
        }
    };
    check(&file);
    array.resize_cache(nodes as u64 * SET).unwrap();
    check(&file);
    drop(file);
    array.close().unwrap();
    // The bytes on the drives, with no cache in between.
    let array = ArrayOptions::new().cache_bytes(0).open(&drives[0]).unwrap();
    check(&array.open_file("f").unwrap());
}

#[test]
fn resizes_beside_calls_inline() {
    resizes_beside_calls(Mode::Auto, 1);
}

#[test]
fn resizes_beside_calls_on_drive_threads() {
    resizes_beside_calls(Mode::DriveThreads, 1);
}

#[test]
fn resizes_beside_calls_on_nodes() {
    resizes_beside_calls(Mode::Auto, 4);
}

#[test]
fn resizes_beside_calls_on_nodes_and_drive_threads() {
    resizes_beside_calls(Mode::DriveThreads, 2);
}

fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE as u64
}

fn fill(array: &Array, bytes: u64) -> File {
    let file = array.create_file("f", Layout::striping()).unwrap();
    let chunk: Vec<u8> = (0..MIB).map(|at| (at / 8) as u8).collect();
    (0..bytes / MIB).for_each(|at| file.write_at(&chunk, at * MIB).unwrap());
    file.sync().unwrap();
    let mut got = vec![0; MIB as usize];
    for at in 0..bytes / MIB {
        file.read_at(&mut got, at * MIB).unwrap();
        assert!(got == chunk);
    }
    file
}

/// Alone in its process, so that no other test's memory is measured.
#[test]
fn memory_goes_back() {
    if std::env::var_os("IOMILL_MEASURES_ITSELF").is_none() {
        let test = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory_goes_back", "--nocapture"])
            .env("IOMILL_MEASURES_ITSELF", "1")
            .status();
        assert!(test.unwrap().success());
        return;
    }
    let (_dir, drives) = drives();
    let array = ArrayOptions::new().cache_bytes(64 * MIB).create(&drives).unwrap();
    let file = fill(&array, 64 * MIB);
    let full = rss_bytes();
    array.resize_cache(8 * MIB).unwrap();
    let small = rss_bytes();
    // 64 MiB without some pages that did not stay, less 8 MiB and a chunk of 4 MiB.
    assert!(small + 40 * MIB < full, "{full} -> {small}");
    let mut got = vec![0; MIB as usize];
    file.read_at(&mut got, 5 * MIB).unwrap();
    assert!((0..MIB).all(|at| got[at as usize] == (at / 8) as u8));
    array.resize_cache(64 * MIB).unwrap();
    (0..64).for_each(|at| assert_eq!(file.read_at(&mut got, at * MIB).unwrap(), got.len()));
    let again = rss_bytes();
    assert!(again > small + 40 * MIB, "{small} -> {again}: it is used again");
    array.resize_cache(4 * MIB).unwrap();
    assert!(rss_bytes() + 40 * MIB < again);
}

#[test]
fn senseless_sizes_are_errors() {
    let (_dir, drives) = drives();
    let error = ArrayOptions::new().cache_bytes(20 * SET).cache_bytes_max(10 * SET).create(&drives).unwrap_err();
    assert!(error.to_string().contains("cache_bytes_max"), "{error}");
    let (_dir, drives) = self::drives();
    let array = ArrayOptions::new().cache_bytes(20 * SET).cache_bytes_max(30 * SET).create(&drives).unwrap();
    for (bytes, says) in
        [(0, "one set"), (SET - 1, "one set"), (31 * SET, "cache_bytes_max"), (u64::MAX, "cache_bytes_max")]
    {
        let error = array.resize_cache(bytes).unwrap_err().to_string();
        assert!(error.contains(says), "{bytes}: {error}");
    }
    assert_eq!(array.counters().cache_bytes, 20 * SET);
    array.resize_cache(30 * SET).unwrap();
    array.resize_cache(SET).unwrap();
    array.close().unwrap();
    let array = ArrayOptions::new().cache_bytes(0).open(&drives[0]).unwrap();
    let error = array.resize_cache(SET).unwrap_err().to_string();
    assert!(error.contains("without one"), "{error}");
}
