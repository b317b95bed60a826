//! The cache's size is changed while threads read and write real files.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use iomill::{Array, ArrayOptions, CacheOptions, File, FileOptions, Remote, Topology, Tuning};

use crate::rounds;

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

/// Ends the other threads, also if this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Stop<'_> {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn resizes_beside_calls(drive_threads: bool, nodes: usize) {
    const THREADS: usize = 4;
    const PART: usize = 1_000_000;
    let (_dir, drives) = drives();
    let options = ArrayOptions::new()
        .tuning(Tuning::new().drive_threads(drive_threads))
        .depth(8)
        .cache_bytes(60 * SET)
        .cache(CacheOptions::new().max_bytes(300 * SET));
    let options = options.with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes)).remote(Remote::Message));
    let array = options.create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new().block_bytes(16 << 10)).unwrap();
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
        let stop = Stop(&stop);
        let mut rng = Rng::with_seed(9);
        let (mut resizes, mut busy) = (0, 0);
        while resizes < rounds(60) || busy == 0 {
            let least = nodes as u64;
            let bytes = SET * [least, least + 1, 20, 59, 60, 61, 130, 299, rng.u64(least..=300)][rng.usize(0..9)];
            let before = calls.load(Ordering::Relaxed);
            array.resize_cache(bytes).unwrap();
            assert_eq!(array.counters().cache_bytes, bytes);
            resizes += 1;
            busy += u64::from(calls.load(Ordering::Relaxed) > before);
            thread::sleep(Duration::from_micros(rng.u64(0..3000)));
        }
        // Calls went on during a resize.
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
    resizes_beside_calls(false, 1);
}

#[test]
fn resizes_beside_calls_on_drive_threads() {
    resizes_beside_calls(true, 1);
}

#[test]
fn resizes_beside_calls_on_nodes() {
    resizes_beside_calls(false, 4);
}

#[test]
fn resizes_beside_calls_on_nodes_and_drive_threads() {
    resizes_beside_calls(true, 2);
}

const WORD: usize = size_of::<u64>();

/// A file in which each word has the number of its page and the page's version.
struct Versions {
    file: File,
    /// Per page: the version that was begun last, and the last one that is written.
    begun: Vec<AtomicU64>,
    written: Vec<AtomicU64>,
}

impl Versions {
    fn page_bytes(page: usize, version: u64) -> Vec<u8> {
        ((page as u64) << 32 | version).to_le_bytes().repeat(PAGE / WORD)
    }

    /// Writes a page as a whole. One thread does this.
    fn write(&self, page: usize) {
        let version = self.begun[page].fetch_add(1, Ordering::Relaxed) + 1;
        self.file.write_at(&Self::page_bytes(page, version), (page * PAGE) as u64).unwrap();
        self.written[page].store(version, Ordering::Release);
    }

    /// Checks bytes of a page that were read since `least` was loaded from `written`.
    fn check(&self, page: usize, least: u64, bytes: &[u8]) {
        let word = u64::from_le_bytes(bytes[..WORD].try_into().unwrap());
        assert_eq!(word >> 32, page as u64, "bytes of another page");
        assert!(bytes[WORD..] == bytes[..bytes.len() - WORD], "page {page} is a mixture");
        let version = word & u64::from(u32::MAX);
        let most = self.begun[page].load(Ordering::Relaxed);
        assert!((least..=most).contains(&version), "page {page} has version {version} of {least} to {most}");
    }

    /// A few pages are used so often that readers and the writer meet there.
    fn some_page(&self, rng: &mut Rng) -> usize {
        let pages = if rng.u8(..) < 250 { 16 } else { self.begun.len() };
        rng.usize(0..pages)
    }

    /// One call of a reader. Returns whether it was a pin.
    fn read(&self, rng: &mut Rng, bytes: &mut [u8]) -> bool {
        let len = WORD * rng.usize(1..=PAGE / WORD);
        let pages: Vec<usize> = (0..bytes.len() / PAGE).map(|_| self.some_page(rng)).collect();
        let least: Vec<u64> = pages.iter().map(|&page| self.written[page].load(Ordering::Acquire)).collect();
        let offsets: Vec<u64> =
            pages.iter().map(|page| (page * PAGE + WORD * rng.usize(0..=(PAGE - len) / WORD)) as u64).collect();
        match rng.u8(0..4) {
            0 => {
                let bytes = &mut bytes[..pages.len() * len];
                self.file.read_many(bytes, &offsets, len).unwrap();
                bytes.chunks(len).zip(pages.iter().zip(&least)).for_each(|(got, (&page, &least))| {
                    self.check(page, least, got);
                });
            }
            1 => {
                // The smallest cache has room for one pin.
                let Ok(pin) = self.file.pin(pages[0] as u64) else { return false };
                self.check(pages[0], least[0], &pin);
                let before = pin.to_vec();
                thread::yield_now();
                assert!(pin[..] == before, "the pinned page {} has changed", pages[0]);
                return true;
            }
            _ => {
                assert_eq!(self.file.read_at(&mut bytes[..len], offsets[0]).unwrap(), len);
                self.check(pages[0], least[0], &bytes[..len]);
            }
        }
        false
    }
}

/// The memory of frames and hints goes back to the system and is used again, without a pause. Readers meanwhile get
/// bytes of the right page only, and of one write of it.
///
/// Seen to fail when every proof counted as valid, when a reader ignored the key, when a write or a move did not mark
/// the frame as changing, and when pins were ignored.
#[test]
fn every_byte_is_right_while_memory_comes_and_goes() {
    const PAGES: usize = 3000;
    let (_dir, drives) = drives();
    let options = ArrayOptions::new().cache_bytes(16 * MIB).cache(CacheOptions::new().max_bytes(16 * MIB));
    let array = options.create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new().block_bytes(16 << 10)).unwrap();
    let all: Vec<u8> = (0..PAGES).flat_map(|page| Versions::page_bytes(page, 0)).collect();
    file.write_at(&all, 0).unwrap();
    let zeroes = || (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let versions = Versions { file, begun: zeroes(), written: zeroes() };
    let (stop, pins) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let stop = Stop(&stop);
        scope.spawn(|| {
            let (mut rng, stop) = (Rng::with_seed(1), Stop(stop.0));
            while !stop.is_set() {
                versions.write(versions.some_page(&mut rng));
            }
        });
        for seed in 2..4 {
            let (versions, pins, stop) = (&versions, &pins, Stop(stop.0));
            scope.spawn(move || {
                let (mut rng, mut bytes) = (Rng::with_seed(seed), vec![0; 20 * PAGE]);
                while !stop.is_set() {
                    pins.fetch_add(u64::from(versions.read(&mut rng, &mut bytes)), Ordering::Relaxed);
                }
            });
        }
        let mut resizes = 0;
        let is_enough = |resizes| resizes >= rounds(200) && pins.load(Ordering::Relaxed) >= 20;
        while !stop.is_set() && !is_enough(resizes) {
            array.resize_cache([16 * MIB, 2 * MIB, 16 * MIB, SET][resizes as usize % 4]).unwrap();
            resizes += 1;
        }
    });
    for page in 0..PAGES {
        let mut bytes = [0; PAGE];
        versions.file.read_at(&mut bytes, (page * PAGE) as u64).unwrap();
        versions.check(page, versions.written[page].load(Ordering::Acquire), &bytes);
    }
}

fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE as u64
}

fn fill(array: &Array, bytes: u64) -> File {
    let file = array.create_file("f", &FileOptions::new()).unwrap();
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
    alone!();
    let (_dir, drives) = drives();
    let array = ArrayOptions::new().cache_bytes(64 * MIB).create(&drives).unwrap();
    let file = fill(&array, 64 * MIB);
    let full = rss_bytes();
    array.resize_cache(8 * MIB).unwrap();
    let small = rss_bytes();
    // 64 MiB without some pages that were evicted, less 8 MiB and a chunk of 4 MiB.
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
    let error = ArrayOptions::new()
        .cache_bytes(20 * SET)
        .cache(CacheOptions::new().max_bytes(10 * SET))
        .create(&drives)
        .unwrap_err();
    assert!(error.to_string().contains("max_bytes"), "{error}");
    let (_dir, drives) = self::drives();
    let array = ArrayOptions::new()
        .cache_bytes(20 * SET)
        .cache(CacheOptions::new().max_bytes(30 * SET))
        .create(&drives)
        .unwrap();
    for (bytes, says) in [(0, "one set"), (SET - 1, "one set"), (31 * SET, "max_bytes"), (u64::MAX, "max_bytes")] {
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
