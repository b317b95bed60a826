//! Threads that use one array with a cache that is far too small, compared with plain byte vectors.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{
    Advice, Array, ArrayOptions, CacheOptions, File, FileOptions, Layout, PolicyKind, Remote, Topology, Tuning,
};

use crate::executor::block_on;

const PAGE: usize = 4096;
const THREADS: usize = 4;

/// The node or nodes of a kind of cache. Several nodes are emulated. They share their drives, or do not. Pages of other
/// nodes are read in all ways.
fn nodes_of(index: usize, several: bool, options: ArrayOptions) -> (usize, ArrayOptions) {
    if !several {
        return (1, options.with_tuning(|tuning| tuning.topology(Topology::One)));
    }
    let remote = [Remote::Message, Remote::Auto, Remote::Message, Remote::Direct][index % 4];
    let options = options.with_tuning(|tuning| tuning.remote(remote));
    match index % 3 {
        0 => (2, options.with_tuning(|tuning| tuning.topology(Topology::Emulate(2)))),
        // With drive threads.
        1 => (
            2,
            options.with_tuning(|tuning| tuning.topology(Topology::Emulate(4)).cache_nodes([1, 3]).io_nodes([0, 2, 3])),
        ),
        _ => (4, options.with_tuning(|tuning| tuning.topology(Topology::Emulate(4)))),
    }
}

/// Caches of all kinds: (set size, sets, policy, hash, drive threads, nodes).
fn each_kind(test: impl Fn(&mut Rng, &Array) + Sync) {
    let mut rng = Rng::with_seed(5);
    let kinds = PolicyKind::all().enumerate();
    for (several, (index, policy)) in kinds.flat_map(|kind| [(false, kind), (true, kind)]) {
        let ways = [4, 12, 32][index % 3];
        let mut sets = [1, 3, 16][index / 3 % 3].max(12 / ways);
        let mask = [u64::MAX, 0, 0xFF << 32, u64::MAX][index % 4];
        let drive_threads = (index + index / 3) % 3 == 2;
        let place = tempfile::tempdir().unwrap();
        let drives: Vec<_> = (0..3).map(|drive| place.path().join(drive.to_string())).collect();
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        let (nodes, options) = nodes_of(
            index,
            several,
            ArrayOptions::new()
                .tuning(Tuning::new().drive_threads(drive_threads))
                .cache(CacheOptions::new().set_pages(ways)),
        );
        sets = sets.max(nodes);
        let options = options.cache_bytes((sets * ways * PAGE) as u64);
        let array = options.with_cache(|cache| cache.policy(policy).hash_mask(mask)).create(&drives).unwrap();
        let (done, context) = (
            AtomicBool::new(false),
            format!("{policy} {ways}x{sets} {mask:x} drive threads {drive_threads} {nodes} nodes"),
        );
        thread::scope(|scope| {
            scope.spawn(|| {
                let start = Instant::now();
                while !done.load(Ordering::Relaxed) {
                    if start.elapsed() > crate::PATIENCE {
                        eprintln!("hangs: {context}");
                        std::process::abort();
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut rng, &array)));
            done.store(true, Ordering::Relaxed);
            if let Err(panic) = result {
                eprintln!("with {context}");
                std::panic::resume_unwind(panic);
            }
        });
        array.close().unwrap();
    }
}

/// Each thread has bytes of its own within pages that it shares with others.
#[test]
fn threads_find_what_they_wrote() {
    each_kind(|rng, array| {
        let file = array.create_file("file", &FileOptions::new().layout(Layout::Hash).block_bytes(8192)).unwrap();
        // Of every 1,500 bytes the first 375 are the first thread's, and so on.
        let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
        let models: Vec<Vec<u8>> = thread::scope(|scope| {
            let workers: Vec<_> = (seeds.iter().enumerate())
                .map(|(index, &seed)| {
                    let file = file.clone();
                    scope.spawn(move || owner(&file, index, Rng::with_seed(seed)))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        file.sync().unwrap();
        drop(file);
        let file = array.open_file("file").unwrap();
        for (index, model) in models.iter().enumerate() {
            check(&file, index, model, 0..ROWS);
        }
    });
}

const ROW: usize = 375;
const ROWS: usize = 400;

fn at(thread: usize, row: usize) -> u64 {
    ((row * THREADS + thread) * ROW) as u64
}

fn check(file: &File, thread: usize, model: &[u8], rows: std::ops::Range<usize>) {
    for row in rows {
        let mut got = vec![0; ROW];
        let read = file.read_at(&mut got, at(thread, row)).unwrap();
        got[read..].fill(0);
        let wanted = &model[row * ROW..][..ROW];
        assert!(got == wanted, "thread {thread}, row {row}: {:?}, not {:?}", &got[..8], &wanted[..8]);
    }
}

fn owner(file: &File, index: usize, mut rng: Rng) -> Vec<u8> {
    let mut model = vec![0u8; ROWS * ROW];
    for _ in 0..crate::rounds(300) {
        let row = rng.usize(0..ROWS);
        let value = rng.u8(1..);
        let fill = |model: &mut Vec<u8>, row: usize| {
            model[row * ROW..][..ROW].fill(value);
            vec![value; ROW]
        };
        match rng.u8(0..13) {
            0..4 => {
                let bytes = fill(&mut model, row);
                file.write_at(&bytes, at(index, row)).unwrap();
            }
            4 => {
                let mut rows: Vec<usize> = (0..rng.usize(1..40)).map(|_| rng.usize(0..ROWS)).collect();
                rows.sort_unstable();
                rows.dedup();
                let bytes: Vec<u8> = rows.iter().flat_map(|&row| fill(&mut model, row)).collect();
                let offsets: Vec<u64> = rows.iter().map(|&row| at(index, row)).collect();
                file.write_many(&bytes, &offsets, ROW).unwrap();
            }
            5 => {
                let bytes = fill(&mut model, row);
                block_on(file.write_at_async(bytes, at(index, row))).unwrap();
            }
            6 => {
                let mut got = block_on(file.read_async(at(index, row), ROW)).unwrap();
                got.resize(ROW, 0);
                assert!(got == model[row * ROW..][..ROW], "a future, row {row}");
            }
            7 => {
                let within = file.len();
                let rows: Vec<usize> = (0..rng.usize(1..40)).map(|_| rng.usize(0..ROWS)).collect();
                let rows: Vec<usize> = rows.into_iter().filter(|&r| at(index, r) + 375 <= within).collect();
                let offsets: Vec<u64> = rows.iter().map(|&row| at(index, row)).collect();
                let mut got = vec![0; rows.len() * ROW];
                file.read_many(&mut got, &offsets, ROW).unwrap();
                for (row, got) in rows.iter().zip(got.chunks(ROW)) {
                    assert!(got == &model[row * ROW..][..ROW], "read_many, row {row}");
                }
            }
            8 => {
                let start = at(index, row);
                if start < file.len() {
                    pinned(file, start, &model[row * ROW..][..ROW]);
                }
            }
            9 => file.sync().unwrap(),
            10 => {
                let advice = [Advice::Normal, Advice::Random, Advice::Sequential, Advice::WillNeed, Advice::DontNeed];
                file.advise(at(index, row)..at(index, row + rng.usize(0..20)), advice[rng.usize(0..5)]).unwrap();
            }
            _ => check(file, index, &model, row..(row + 3).min(ROWS)),
        }
    }
    model
}

/// Checks a row through a pin, up to the end of its first page.
fn pinned(file: &File, start: u64, wanted: &[u8]) {
    let (page, within) = (start / PAGE as u64, start as usize % PAGE);
    // Other threads may hold all available pins.
    let Ok(pin) = file.pin(page) else { return };
    let end = (within + wanted.len()).min(pin.len());
    let copy = pin.to_vec();
    assert!(pin[within..end] == wanted[..end - within], "a pin at {start}");
    thread::yield_now();
    assert!(copy[..] == pin[..], "a pinned page changed");
}

/// Any thread writes whole pages, each with one stamp. A reader finds only one stamp in a page.
#[test]
fn pages_never_tear() {
    each_kind(|rng, array| {
        const PAGES: usize = 60;
        let file = array.create_file("file", &FileOptions::new().layout(Layout::Rotated).block_bytes(8192)).unwrap();
        file.write_at(&vec![0; PAGES * PAGE], 0).unwrap();
        let stamp = AtomicU64::new(1);
        let whole = |bytes: &[u8]| {
            let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(words.clone().all(|word| word == first), "torn: {first} and {:?}", words.max());
            first
        };
        let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
        thread::scope(|scope| {
            for seed in seeds {
                let (file, stamp) = (&file, &stamp);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    let mut page_of = vec![0; PAGE];
                    for _ in 0..crate::rounds(400) {
                        let page = if rng.bool() { rng.usize(0..8) } else { rng.usize(0..PAGES) };
                        let offset = (page * PAGE) as u64;
                        match rng.u8(0..9) {
                            0 | 1 => {
                                let stamp = stamp.fetch_add(1, Ordering::Relaxed);
                                page_of.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
                                file.write_at(&page_of, offset).unwrap();
                            }
                            2 => {
                                if let Ok(pin) = file.pin(page as u64) {
                                    let seen = whole(&pin);
                                    thread::yield_now();
                                    assert_eq!(whole(&pin), seen, "a pinned page changed");
                                }
                            }
                            3 => {
                                whole(&block_on(file.read_async(offset, PAGE)).unwrap());
                            }
                            4 => {
                                let pages = (PAGES - page).min(2);
                                // More pages than may be pinned at a time is an error.
                                let _ = file.read_with(offset, pages * PAGE, |pages| {
                                    for page in pages.iter() {
                                        whole(page);
                                    }
                                });
                            }
                            5 if rng.u8(0..8) == 0 => file.sync().unwrap(),
                            _ => {
                                file.read_at(&mut page_of, offset).unwrap();
                                whole(&page_of);
                            }
                        }
                    }
                });
            }
        });
    });
}

/// A pin that finds its set full of dirty pages does not wait for another thread to flush them: there may be no other
/// thread.
#[test]
fn a_pin_makes_room_among_dirty_pages() {
    const PAGES: usize = 36;
    let place = tempfile::tempdir().unwrap();
    let options = ArrayOptions::new()
        .tuning(Tuning::new().topology(Topology::One))
        .cache(CacheOptions::new().set_pages(4).read_ahead_bytes(0));
    let array = options.cache_bytes((4 * PAGE) as u64).create([place.path()]).unwrap();
    let file = array.create_file("dirty", &FileOptions::new()).unwrap();
    file.set_len((PAGES * PAGE) as u64).unwrap();
    let (told, ended) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for round in 0..200 {
            for page in 0..4 {
                let page = (round * 5 + page) % PAGES;
                file.write_at(&[page as u8; PAGE], (page * PAGE) as u64).unwrap();
            }
            let page = (round * 5 + 4) % PAGES;
            let pin = file.pin(page as u64).unwrap();
            assert!(pin.iter().all(|&byte| byte == pin[0]) && [0, page as u8].contains(&pin[0]));
        }
        told.send(()).unwrap();
    });
    ended.recv_timeout(crate::PATIENCE).expect("a pin hangs");
    array.close().unwrap();
}

/// A thread's own variables are destroyed in the opposite order of their first use. This file is destroyed after the
/// thread's state for the cache.
#[test]
fn a_file_may_outlive_what_its_thread_keeps() {
    thread_local! {
        static MINE: std::cell::RefCell<Option<File>> = const { std::cell::RefCell::new(None) };
    }
    let dir = tempfile::tempdir().unwrap();
    let array = ArrayOptions::new().cache_bytes(1 << 20).create([dir.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    thread::spawn(move || {
        MINE.set(Some(file));
        MINE.with_borrow(|file| {
            let file = file.as_ref().unwrap();
            file.write_at(&[7; 3 * PAGE], 100).unwrap();
            assert_eq!(file.pin(1).unwrap()[0], 7);
        });
    })
    .join()
    .unwrap();
    let mut bytes = [0; 3 * PAGE];
    array.open_file("file").unwrap().read_at(&mut bytes, 100).unwrap();
    assert_eq!(bytes, [7; 3 * PAGE]);
}

/// A length changes while syncs, tasks, and operations that found their sets full are waiting. No call waits for ever.
/// Bytes that are read are zeroes or were written.
#[test]
fn the_length_changes_under_readers_and_writers() {
    each_kind(|rng, array| {
        const LEN: usize = 200_000;
        let file = array.create_file("file", &FileOptions::new().layout(Layout::Hash).block_bytes(4096)).unwrap();
        let pattern = |at: usize| (at % 251) as u8 | 1;
        let content: Vec<u8> = (0..LEN).map(pattern).collect();
        file.write_at(&content, 0).unwrap();
        let seeds: Vec<u64> = (0..THREADS).map(|_| rng.u64(..)).collect();
        thread::scope(|scope| {
            for seed in seeds {
                let (file, content) = (&file, &content);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    for _ in 0..crate::rounds(150) {
                        let at = rng.usize(0..LEN - 1);
                        let len = rng.usize(1..30_000).min(LEN - at);
                        let got = match rng.u8(0..6) {
                            0 => {
                                let bytes = content[at..at + len].to_vec();
                                block_on(file.write_at_async(bytes, at as u64)).unwrap();
                                continue;
                            }
                            1 => {
                                block_on(file.sync_async()).unwrap();
                                continue;
                            }
                            2 => {
                                let (sender, receiver) = std::sync::mpsc::channel();
                                let task = move |pages: iomill::Result<&iomill::PinnedRange<'_>>| {
                                    let pages = pages.map(|pages| pages.iter().flatten().copied().collect());
                                    sender.send(pages.unwrap_or_else(|_| Vec::new())).unwrap();
                                };
                                file.submit_with(at as u64, len.min(PAGE), task).unwrap();
                                receiver.recv().unwrap()
                            }
                            _ => block_on(file.read_async(at as u64, len)).unwrap(),
                        };
                        let wrong = got.iter().enumerate().find(|&(i, &byte)| byte != 0 && byte != pattern(at + i));
                        assert_eq!(wrong, None, "at {at}");
                    }
                });
            }
            let mut rng = Rng::with_seed(9);
            for _ in 0..crate::rounds(20) {
                file.set_len(rng.u64(0..LEN as u64)).unwrap();
                file.set_len(LEN as u64).unwrap();
                file.write_at(&content[..LEN / 2], 0).unwrap();
            }
        });
    });
}

/// Pages that no handle can read any more are not written, except those that the flusher has written before. Pages of
/// another handle are written.
#[test]
fn only_the_last_handle_gives_up_what_is_in_memory() {
    const PAGES: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let array = ArrayOptions::new().cache_bytes(4 << 20).create([dir.path()]).unwrap();
    let written = || array.counters().drives[0].write_bytes;
    for name in ["discarded", "kept by a clone", "kept by another"] {
        let file = array.create_file(name, &FileOptions::new()).unwrap();
        let other = match name {
            "discarded" => None,
            "kept by a clone" => Some(file.clone()),
            _ => Some(array.open_file(name).unwrap()),
        };
        let before = written();
        (0..PAGES).for_each(|page| file.write_at(&[7; PAGE], page * PAGE as u64).unwrap());
        let is_discarded = other.is_none();
        file.discard();
        drop(other);
        // The flusher may have written some of them.
        let now = written() - before;
        assert_eq!(now < PAGES * PAGE as u64, is_discarded, "{name}: {now} bytes");
        let file = array.open_file(name).unwrap();
        assert_eq!(file.len(), if is_discarded { 0 } else { PAGES * PAGE as u64 });
        drop(file);
        array.delete(name).unwrap();
    }
    array.close().unwrap();
}

/// A file that is closed and opened again finds its pages, unless it was discarded, or is another file by now.
#[test]
fn a_file_that_is_opened_again_finds_its_pages() {
    const PAGES: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let options = || ArrayOptions::new().cache_bytes(16 << 20).cache(CacheOptions::new().read_ahead_bytes(0));
    let array = options().create([dir.path()]).unwrap();
    let misses = |array: &Array| array.counters().misses;
    let all = |file: &File, value: u8| {
        let mut page = [0; PAGE];
        for number in 0..file.len() / PAGE as u64 {
            file.read_at(&mut page, number * PAGE as u64).unwrap();
            assert_eq!(page, [value; PAGE], "page {number}");
        }
    };
    let write = |file: &File, value: u8, pages: u64| {
        (0..pages).for_each(|page| file.write_at(&[value; PAGE], page * PAGE as u64).unwrap());
    };
    let file = array.create_file("x", &FileOptions::new()).unwrap();
    write(&file, 1, PAGES);
    file.close().unwrap();
    for _ in 0..3 {
        let before = misses(&array);
        let file = array.open_file("x").unwrap();
        all(&file, 1);
        drop(file);
        assert_eq!(misses(&array), before, "its pages were in the cache");
    }
    // Discarded bytes are gone, also from the cache: only the file's length is durable.
    let file = array.open_file("x").unwrap();
    write(&file, 2, PAGES);
    file.discard();
    let file = array.open_file("x").unwrap();
    let before = misses(&array);
    let mut page = [0; PAGE];
    (0..PAGES).for_each(|number| _ = file.read_at(&mut page, number * PAGE as u64).unwrap());
    assert_eq!(misses(&array) - before, PAGES);
    file.close().unwrap();
    // Another file of the same name is another file.
    array.delete("x").unwrap();
    let file = array.create_file("x", &FileOptions::new()).unwrap();
    write(&file, 3, PAGES);
    file.close().unwrap();
    all(&array.open_file("x").unwrap(), 3);
    // A file that was cut and extended has zeroes there.
    let file = array.open_file("x").unwrap();
    file.set_len(5 * PAGE as u64).unwrap();
    file.close().unwrap();
    let file = array.open_file("x").unwrap();
    all(&file, 3);
    file.set_len(PAGES * PAGE as u64).unwrap();
    file.read_at(&mut page, 100 * PAGE as u64).unwrap();
    assert_eq!(page, [0; PAGE]);
    file.close().unwrap();
    array.close().unwrap();
    // Files of an array that is open for reading, too.
    let array = options().read_only(true).open(dir.path()).unwrap();
    let look = || {
        let (file, before) = (array.open_file("x").unwrap(), misses(&array));
        let mut page = [0; PAGE];
        (0..PAGES).for_each(|number| _ = file.read_at(&mut page, number * PAGE as u64).unwrap());
        misses(&array) - before
    };
    assert_eq!((look(), look()), (PAGES, 0));
}
