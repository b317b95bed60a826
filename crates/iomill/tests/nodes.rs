//! Several nodes, emulated. Each has its share of the pages. Pages of other nodes come by message or directly. Nodes
//! that cache need not own drives.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{Array, ArrayOptions, File, FileOptions, Remote, Topology, Tuning};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::PATIENCE;

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
const LEN: usize = 4 << 20;

fn drives() -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..3).map(|drive| dir.path().join(drive.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    (dir, drives)
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 12) as u8
}

/// A file of known bytes, with no page in the cache.
fn cold(drives: &[PathBuf], options: ArrayOptions) -> (Array, File) {
    let array = ArrayOptions::new().cache_bytes(0).create(drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&(0..LEN).map(pattern).collect::<Vec<u8>>(), 0).unwrap();
    drop(file);
    array.close().unwrap();
    let array = options.open(&drives[0]).unwrap();
    let file = array.open_file("f").unwrap();
    (array, file)
}

fn nodes(count: usize) -> ArrayOptions {
    ArrayOptions::new().tuning(Tuning::new().topology(Topology::Emulate(count))).cache_bytes(16 * MIB)
}

fn check(file: &File, offset: usize, len: usize) {
    let mut got = vec![0; len];
    assert_eq!(file.read_at(&mut got, offset as u64).unwrap(), len);
    let wrong = got.iter().enumerate().find(|&(at, &byte)| byte != pattern(offset + at));
    assert_eq!(wrong, None, "{len} bytes at {offset}");
}

fn sent(array: &Array) -> Vec<u64> {
    array.info().unwrap().nodes.iter().map(|node| node.sent_pages).collect()
}

/// Binds the test's thread to its present CPU, and so to one node. Returns whether the system allows that.
fn stay_on_one_cpu() -> bool {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu());
    sched_setaffinity(None, &cpus).is_ok()
}

/// Missing pages go to their nodes by message, once. Present pages are read directly, unless the options send
/// everything by message.
#[test]
fn missing_pages_travel_and_hits_are_read_directly() {
    alone!();
    // At most one of the four nodes is the caller's, unless the thread moves to the CPU of another one.
    let most_near = if stay_on_one_cpu() { 1 } else { 3 };
    for (remote, misses_travel, hits_travel) in
        [(Remote::Auto, true, false), (Remote::Direct, false, false), (Remote::Message, true, true)]
    {
        let (_dir, drives) = drives();
        let (array, file) = cold(&drives, nodes(4).with_tuning(|tuning| tuning.remote(remote)));
        check(&file, 0, LEN);
        let cold = sent(&array);
        let pages = (LEN / PAGE) as u64;
        assert_eq!(array.counters().misses, pages, "{remote:?}: each page is missed once");
        let near = cold.iter().filter(|&&sent| sent == 0).count();
        let is_right = if misses_travel { near <= most_near } else { near == 4 };
        assert!(is_right, "{remote:?}: {cold:?}");
        check(&file, 0, LEN);
        let offsets: Vec<u64> = (0..pages).map(|page| page * PAGE as u64 + 7).collect();
        let mut out = vec![0; offsets.len() * 100];
        file.read_many(&mut out, &offsets, 100).unwrap();
        for (offset, got) in offsets.iter().zip(out.chunks(100)) {
            assert!((0..100).all(|at| got[at] == pattern(*offset as usize + at)), "{offset}");
        }
        (0..64).for_each(|at| check(&file, at * 65_000, 50));
        assert_eq!(sent(&array) != cold, hits_travel, "{remote:?}");
        let counted = array.counters();
        assert_eq!((counted.misses, counted.fills), (pages, pages));
        assert!(counted.hits >= 2 * pages + 64, "{counted:?}");
        assert_eq!(counted.bytes_read, (2 * LEN + out.len() + 64 * 50) as u64, "{remote:?}");
        array.close().unwrap();
    }
}

/// Nodes that cache have equal shares of the pages. Drives belong to the nodes for I/O.
#[test]
fn info_shows_the_nodes() {
    let (_dir, drives) = drives();
    let (array, file) = cold(&drives, nodes(4).with_tuning(|tuning| tuning.cache_nodes([3, 1]).io_nodes([0, 2])));
    let info = array.info().unwrap();
    assert_eq!(info.nodes.iter().map(|node| node.caches).collect::<Vec<_>>(), [false, true, false, true]);
    let pages: Vec<u64> = info.nodes.iter().map(|node| node.pages).collect();
    assert!(pages[1].abs_diff(pages[3]) <= 12 && pages[1] + pages[3] == 16 * MIB / PAGE as u64 / 12 * 12, "{pages:?}");
    let owned: Vec<Vec<u16>> = info.nodes.iter().map(|node| node.drives.clone()).collect();
    assert_eq!(owned, [vec![0, 2], vec![], vec![1], vec![]]);
    check(&file, 0, LEN);
    array.resize_cache(4 * MIB).unwrap();
    let shrunk: u64 = array.info().unwrap().nodes.iter().map(|node| node.pages).sum();
    assert_eq!(shrunk, 4 * MIB / PAGE as u64 / 12 * 12);
    check(&file, 0, LEN);
    let one = ArrayOptions::new().tuning(Tuning::new().topology(Topology::One)).peek(&drives).unwrap().info().unwrap();
    assert_eq!((one.nodes.len(), one.nodes[0].drives.clone()), (1, vec![0, 1, 2]));
    array.close().unwrap();
}

/// The names of this process's threads that begin with `name`.
fn threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).collect()
}

/// Waits until the threads of that name satisfy a condition: the kernel shows a thread a little after its end, and
/// before it has its name.
fn wait_for(name: &str, is_right: impl Fn(usize) -> bool) {
    let begun = Instant::now();
    while !is_right(threads(name).len()) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", threads(name));
        thread::sleep(Duration::from_millis(1));
    }
}

/// If the nodes that cache own no drives, the drives' threads serve misses. If they own drives, those threads do not
/// exist. Alone in its process, so that other tests' threads are not counted.
#[test]
fn nodes_that_own_no_drives_leave_io_to_those_that_do() {
    alone!();
    let (_dir, drives) = drives();
    drop(cold(&drives, ArrayOptions::new()));
    for (io_nodes, drive_threads) in [(vec![2, 3], 3), (vec![0, 1, 2, 3], 0)] {
        let options = nodes(4)
            .with_tuning(|tuning| tuning.cache_nodes([0, 1]).io_nodes(io_nodes).remote(Remote::Message))
            .read_only(true);
        let array = options.open(&drives[0]).unwrap();
        let file = array.open_file("f").unwrap();
        check(&file, 0, LEN);
        wait_for("iomill-drive-", |count| count == drive_threads);
        wait_for("iomill-node-", |count| (1..=2).contains(&count));
        let fetched: u64 = array.counters().drives.iter().map(|drive| drive.read_bytes).sum();
        assert_eq!(fetched, LEN as u64);
        drop(file);
        array.close().unwrap();
        wait_for("iomill-", |count| count == 0);
    }
}

#[test]
fn senseless_nodes_are_errors() {
    let (_dir, drives) = drives();
    drop(cold(&drives, ArrayOptions::new()));
    let two = || ArrayOptions::new().tuning(Tuning::new().topology(Topology::Emulate(2)));
    for (options, says) in [
        (two().with_tuning(|tuning| tuning.cache_nodes([0, 2])), "there are nodes 0, 1"),
        (two().with_tuning(|tuning| tuning.io_nodes([7])), "I/O node 7"),
        (two().with_tuning(|tuning| tuning.cache_nodes(Vec::new())), "name at least one"),
        (two().with_tuning(|tuning| tuning.cache_nodes([1, 1])), "named twice"),
        (ArrayOptions::new().tuning(Tuning::new().topology(Topology::One).cache_nodes([1])), "there is one node, 0"),
        (ArrayOptions::new().tuning(Tuning::new().topology(Topology::Emulate(0))), "give 1 to 64"),
        (two().cache_bytes(12 * PAGE as u64), "for each of 2 nodes"),
    ] {
        let error = options.read_only(true).open(&drives[0]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Many threads miss the same and other pages by message while some write, and each sees its own bytes. Then everything
/// is dropped without a close.
#[test]
fn threads_share_the_nodes_threads() {
    for (drive_threads, io_nodes) in [(false, vec![0, 1, 2]), (true, vec![0, 1, 2]), (false, vec![0])] {
        let (_dir, drives) = drives();
        let options = nodes(3)
            .with_tuning(|tuning| tuning.drive_threads(drive_threads).io_nodes(io_nodes).remote(Remote::Message))
            .cache_bytes(MIB);
        let (array, file) = cold(&drives, options);
        thread::scope(|scope| {
            for seed in 0..6u64 {
                let file = &file;
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let (first, last) = (seed as usize * LEN / 6, (seed as usize + 1) * LEN / 6);
                    for _ in 0..150 {
                        let at = rng.usize(first..last - 1);
                        let len = rng.usize(1..200_000).min(last - at);
                        match rng.u8(0..4) {
                            0 => {
                                let bytes: Vec<u8> = (at..at + len).map(pattern).collect();
                                file.write_at(&bytes, at as u64).unwrap();
                            }
                            1 => check(file, rng.usize(0..LEN - PAGE), 100),
                            _ => check(file, at, len),
                        }
                    }
                });
            }
        });
        file.sync().unwrap();
        drop(file);
        array.close().unwrap();
        let array = ArrayOptions::new().cache_bytes(0).open(&drives[0]).unwrap();
        check(&array.open_file("f").unwrap(), 0, LEN);
    }
}
