//! The cost of gathers: each page of a gather is read once, and never more often than by one call per row.

use std::sync::mpsc::channel;

use fastrand::Rng;
use iomill::{
    ArrayOptions, CacheOptions, Counters, File, FileOptions, PlainOptions, Request, Runtime, RuntimeOptions, Topology,
    Tuning,
};
use tempfile::TempDir;

use super::{PAGE, random};
use crate::executor::block_on;

const PAGES: usize = 512;
const ROW: usize = 256;
/// A quarter of the pages fit.
const CACHE_BYTES: u64 = (PAGES * PAGE / 4) as u64;

/// A plain file of `PAGES` pages.
fn plain() -> (TempDir, Vec<u8>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let all = random(PAGES * PAGE, 3);
    std::fs::write(dir.path().join("file"), &all).unwrap();
    (dir, all)
}

fn open(dir: &TempDir, drive_threads: bool) -> (Runtime, File) {
    let runtime = RuntimeOptions::new()
        .drive_threads(drive_threads)
        .cache_bytes(CACHE_BYTES)
        .cache(CacheOptions::new().read_ahead_bytes(0))
        .start()
        .unwrap();
    let file = PlainOptions::new().runtime(&runtime).open(dir.path().join("file")).unwrap();
    (runtime, file)
}

/// Pages that came in, and bytes that the drives read.
fn cost(counters: &Counters) -> (u64, u64) {
    (counters.fills + counters.bypasses, counters.drives.iter().map(|drive| drive.read_bytes).sum())
}

fn wanted(all: &[u8], offsets: &[u64]) -> Vec<u8> {
    offsets.iter().flat_map(|&offset| &all[offset as usize..][..ROW]).copied().collect()
}

type Way = fn(&File, &[u64]) -> Vec<u8>;

/// All ways to read rows by one call.
const WAYS: [(&str, Way); 4] = [
    ("read_many", |file, offsets| {
        let mut out = vec![0; offsets.len() * ROW];
        file.read_many(&mut out, offsets, ROW).unwrap();
        out
    }),
    ("read_many_async", |file, offsets| {
        block_on(file.read_many_async(vec![0; offsets.len() * ROW], offsets, ROW)).unwrap()
    }),
    ("gather", |file, offsets| {
        let ranges: Vec<(u64, usize)> = offsets.iter().map(|&offset| (offset, ROW)).collect();
        block_on(file.gather_async(&ranges)).unwrap()
    }),
    ("submit", |file, offsets| {
        let (tell, told) = channel();
        let requests = offsets.iter().map(|&offset| Request::Read { offset, len: ROW }).collect();
        file.submit(requests, move |outcome| drop(tell.send(outcome))).unwrap();
        told.recv().unwrap().unwrap().concat()
    }),
];

/// Offsets of rows: in order, in none, over the edges of pages, few pages often, and backwards.
fn orders() -> Vec<(&'static str, Vec<u64>)> {
    let mut random = Rng::with_seed(5);
    let sorted: Vec<u64> = (0..PAGES * PAGE / ROW).map(|row| (row * ROW) as u64).collect();
    let mut shuffled = sorted.clone();
    random.shuffle(&mut shuffled);
    let across = sorted.iter().map(|offset| offset.saturating_sub(100)).collect();
    let few = (0..4000).map(|_| random.u64(0..30) * 17 * PAGE as u64 + random.u64(0..3000)).collect();
    let backwards = sorted.iter().rev().copied().collect();
    vec![("sorted", sorted), ("shuffled", shuffled), ("across", across), ("few", few), ("backwards", backwards)]
}

fn pages_of(offsets: &[u64]) -> u64 {
    let page = PAGE as u64;
    let both = offsets.iter().flat_map(|offset| [offset / page, (offset + ROW as u64 - 1) / page]);
    both.collect::<std::collections::BTreeSet<_>>().len() as u64
}

/// Where the cache was smaller than the file, a page was read once for each of its rows.
#[test]
fn a_gather_reads_each_page_once() {
    let (dir, all) = plain();
    for (order, offsets) in orders() {
        let (runtime, file) = open(&dir, false);
        let mut row = vec![0; ROW];
        offsets.iter().for_each(|&offset| assert_eq!(file.read_at(&mut row, offset).unwrap(), ROW));
        let by_calls = cost(&runtime.counters());
        for drive_threads in [false, true] {
            for (way, read) in WAYS {
                let (runtime, file) = open(&dir, drive_threads);
                assert!(read(&file, &offsets) == wanted(&all, &offsets), "{way}, {order}");
                let (came, bytes) = cost(&runtime.counters());
                assert_eq!(
                    (came, bytes),
                    (pages_of(&offsets), came * PAGE as u64),
                    "{way}, {order}, drive threads {drive_threads}"
                );
                assert!(
                    came <= by_calls.0 && bytes <= by_calls.1,
                    "{way}, {order}: {by_calls:?} by a call for each row"
                );
            }
        }
    }
}

/// An array with a file of `PAGES` pages on two drives, none of them in the cache.
fn array(topology: Topology) -> (TempDir, iomill::Array, File, Vec<u8>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives = [dir.path().join("a"), dir.path().join("b")];
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let options = ArrayOptions::new()
        .cache_bytes(CACHE_BYTES)
        .cache(CacheOptions::new().read_ahead_bytes(0))
        .tuning(Tuning::new().topology(topology));
    let array = options.create(&drives).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    let all = random(PAGES * PAGE, 4);
    file.write_at(&all, 0).unwrap();
    file.sync().unwrap();
    file.advise(.., iomill::Advice::DontNeed).unwrap();
    (dir, array, file, all)
}

/// As for reads: each page that a call writes in part comes in once, or goes past its full set. Later rows of one call
/// overwrite earlier ones.
#[test]
fn a_scatter_reads_each_page_once() {
    for (order, offsets) in orders() {
        for is_async in [false, true] {
            let (_dir, array, file, mut all) = array(Topology::default());
            let before = array.counters();
            let bytes = random(offsets.len() * ROW, 9);
            if is_async {
                block_on(file.write_many_async(bytes.clone(), &offsets, ROW)).unwrap();
            } else {
                file.write_many(&bytes, &offsets, ROW).unwrap();
            }
            let after = array.counters();
            assert!(after.fills - before.fills <= pages_of(&offsets), "{order}: a page came in twice");
            for (offset, row) in offsets.iter().zip(bytes.chunks(ROW)) {
                all[*offset as usize..][..ROW].copy_from_slice(row);
            }
            file.sync().unwrap();
            let mut now = vec![0; all.len()];
            file.read_at(&mut now, 0).unwrap();
            assert!(now == all, "{order}");
            array.close().unwrap();
        }
    }
}

/// Calls with more rows than one list holds.
#[test]
fn long_gathers_are_right() {
    let (_dir, array, file, mut all) = array(Topology::default());
    let mut rng = Rng::with_seed(8);
    let offsets: Vec<u64> = (0..(1 << 20) + 5000).map(|_| rng.u64(0..all.len() as u64)).collect();
    let bytes = random(offsets.len(), 10);
    file.write_many(&bytes, &offsets, 1).unwrap();
    offsets.iter().zip(&bytes).for_each(|(offset, byte)| all[*offset as usize] = *byte);
    let right: Vec<u8> = offsets.iter().map(|offset| all[*offset as usize]).collect();
    let mut out = vec![0; offsets.len()];
    file.read_many(&mut out, &offsets, 1).unwrap();
    assert!(out == right);
    let out = block_on(file.read_many_async(out, &offsets, 1)).unwrap();
    assert!(out == right);
    let mut now = vec![0; all.len()];
    file.read_at(&mut now, 0).unwrap();
    assert!(now == all);
    let refused = file.read_many(&mut vec![0; offsets.len() + 1], &[&offsets[..], &[all.len() as u64]].concat(), 1);
    assert!(matches!(refused, Err(iomill::Error::Invalid { .. })), "{refused:?}");
    array.close().unwrap();
}

/// The same where pages are on several nodes, and go by message.
#[test]
fn a_gather_over_nodes_reads_each_page_once() {
    for (order, offsets) in orders() {
        let (_dir, array, file, all) = array(Topology::Emulate(2));
        for (way, read) in WAYS {
            file.advise(.., iomill::Advice::DontNeed).unwrap();
            let before = cost(&array.counters()).0;
            assert!(read(&file, &offsets) == wanted(&all, &offsets), "{way}, {order}");
            assert_eq!(cost(&array.counters()).0 - before, pages_of(&offsets), "{way}, {order}");
        }
        array.close().unwrap();
    }
}

/// Rows of a page with a full set were read past the cache one at a time.
#[test]
fn rows_that_go_past_a_full_set_are_one_io() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // All pages are of one set.
    let options = ArrayOptions::new()
        .cache(CacheOptions::new().set_pages(4).hash_mask(0).read_ahead_bytes(0))
        .cache_bytes(256 * PAGE as u64);
    let array = options.create([dir.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    let all = random(20 * PAGE, 4);
    file.write_at(&all, 0).unwrap();
    file.sync().unwrap();
    let pins: Vec<_> = (0..4).map(|page| file.pin(page).unwrap()).collect();
    for (_, offsets) in orders() {
        let offsets: Vec<u64> = offsets.iter().map(|offset| 10 * PAGE as u64 + offset % (PAGE - ROW) as u64).collect();
        let before = array.counters();
        let mut out = vec![0; offsets.len() * ROW];
        file.read_many(&mut out, &offsets, ROW).unwrap();
        assert!(out == wanted(&all, &offsets));
        let after = array.counters();
        assert_eq!(after.bypasses - before.bypasses, 1);
        assert_eq!(after.drives[0].reads - before.drives[0].reads, 1);
    }
    drop(pins);
    array.close().unwrap();
}
