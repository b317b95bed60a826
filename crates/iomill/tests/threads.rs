//! Many threads on one array of real files: every call ends, with the right bytes or an error with the reason.
//!
//! Goals: races that a simulation on one thread cannot have, between calls, opening, naming and closing. Non-goals:
//! speed; faults of drives, which the simulator covers.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::task::{Context, Wake, Waker};
use std::thread::{self};
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, File, FileOptions, Layout, Request, Result, Tuning};
use tempfile::TempDir;

use crate::executor::block_on;
use crate::{PATIENCE, rounds};

const DRIVE_THREADS: [bool; 2] = [false, true];

struct Rig {
    _dir: TempDir,
    drives: Vec<PathBuf>,
}

impl Rig {
    fn new(drives: usize) -> Rig {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let drives: Vec<PathBuf> = (0..drives).map(|drive| dir.path().join(drive.to_string())).collect();
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        Rig { _dir: dir, drives }
    }

    fn create(&self, drive_threads: bool) -> Array {
        ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).depth(8).create(&self.drives).unwrap()
    }

    /// Opens the array as soon as its present user has closed it.
    fn open(&self) -> Array {
        let start = Instant::now();
        loop {
            match Array::open(&self.drives[0]) {
                Ok(array) => return array,
                Err(Error::Locked { .. }) if start.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Runs a test. Fails if it does not end.
fn ends(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let test = thread::spawn(move || {
        body();
        // The test has failed already if nothing receives this.
        let _ = done.send(());
    });
    match ended.recv_timeout(PATIENCE) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it does not end"),
        _ => test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// Writes, or reads and checks, a range of a thread's own part of the file, by a random call.
fn call(rng: &mut Rng, file: &File, start: usize, model: &mut [u8]) -> Result<()> {
    let at = rng.usize(0..model.len());
    let most = [100, 5000, 40_000][rng.usize(0..3)];
    let len = rng.usize(0..=(model.len() - at).min(most));
    let (offset, range) = ((start + at) as u64, at..at + len);
    let new: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
    let mut got = vec![0; len];
    match rng.u8(0..9) {
        0 | 1 => {
            file.write_at(&new, offset)?;
            model[range].copy_from_slice(&new);
        }
        2 => {
            assert_eq!(block_on(file.write_at_async(new.clone(), offset))?, new);
            model[range].copy_from_slice(&new);
        }
        3 => {
            let (send, receive) = channel();
            let tasks = vec![Request::Write { offset, bytes: new.clone() }];
            file.submit(tasks, move |result| send.send(result).unwrap())?;
            receive.recv().unwrap()?;
            model[range].copy_from_slice(&new);
        }
        4 => {
            let half = len / 2;
            file.write_ranges(&new, &[(offset + half as u64, len - half), (offset, half)])?;
            model[at + half..at + len].copy_from_slice(&new[..len - half]);
            model[at..at + half].copy_from_slice(&new[len - half..]);
        }
        5 => {
            assert_eq!(file.read_at(&mut got, offset)?, len);
            assert!(got == model[range], "read_at {offset}, {len}");
        }
        6 => assert!(block_on(file.read_async(offset, len))? == model[range], "read {offset}, {len}"),
        7 => {
            let step = (len / 5).max(1);
            let offsets: Vec<u64> = (0..len / step).map(|record| offset + (record * step) as u64).collect();
            got.truncate(offsets.len() * step);
            file.read_many(&mut got, &offsets, step)?;
            assert!(got == model[at..at + got.len()], "read_many {offset}, {step}");
        }
        _ if rng.u8(0..10) == 0 => file.sync()?,
        _ => {}
    }
    Ok(())
}

#[test]
fn threads_on_parts_of_one_file_do_not_disturb_each_other() {
    ends(|| {
        for (drive_threads, layout) in [(false, FileOptions::new()), (true, FileOptions::new().layout(Layout::Hash))] {
            let rig = Rig::new(3);
            let array = rig.create(drive_threads);
            let file = array.create_file("file", &layout.block_bytes(8192)).unwrap();
            // Not whole pages, so that neighbouring threads share pages.
            let len = 61_007;
            file.write_at(&vec![0; 8 * len], 0).unwrap();
            let models: Vec<Vec<u8>> = thread::scope(|scope| {
                let work = |index: usize| {
                    let file = file.clone();
                    scope.spawn(move || {
                        let (mut rng, mut model) = (Rng::with_seed(index as u64), vec![0; len]);
                        (0..rounds(120)).for_each(|_| call(&mut rng, &file, index * len, &mut model).unwrap());
                        model
                    })
                };
                let threads: Vec<_> = (0..8).map(work).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            drop(file);
            array.close().unwrap();
            let mut all = vec![0; 8 * len];
            assert_eq!(rig.open().open_file("file").unwrap().read_at(&mut all, 0).unwrap(), 8 * len);
            assert!(all == models.concat());
        }
    });
}

#[test]
fn names_opened_made_renamed_and_deleted_by_all() {
    ends(|| {
        let rig = Rig::new(2);
        let array = rig.create(false);
        // The notices about the chosen engine.
        let before = array.notices();
        let (opened, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_enough = || opened.load(Ordering::Relaxed) > 10 && deleted.load(Ordering::Relaxed) > 3;
        thread::scope(|scope| {
            for index in 0..6 {
                let (array, opened, deleted, is_enough) = (array.clone(), &opened, &deleted, &is_enough);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(index);
                    for _ in (0..).take_while(|round| *round < rounds(100) || !is_enough()) {
                        let name = ["a", "b", "c"][rng.usize(0..3)];
                        let to = ["a", "b", "c"][rng.usize(0..3)];
                        let result = match rng.u8(0..12) {
                            0..3 => array.create_file(name, &FileOptions::new()).and_then(|file| write_same(&file)),
                            3..7 => array.open_file(name).and_then(|file| {
                                opened.fetch_add(1, Ordering::Relaxed);
                                assert_same(&file)?;
                                write_same(&file)
                            }),
                            7 | 8 => array.delete(name).inspect(|()| _ = deleted.fetch_add(1, Ordering::Relaxed)),
                            9 | 10 => array.rename(name, to),
                            _ => array.stat(name).map(|stat| assert!([0, 10_000].contains(&stat.len_bytes))),
                        };
                        match result {
                            Ok(()) => {}
                            Err(Error::NotFound { .. } | Error::Exists { .. } | Error::Busy { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert_eq!(array.notices(), before);
        let names = array.list("").names().unwrap();
        array.close().unwrap();
        let array = rig.open();
        assert_eq!(array.list("").names().unwrap(), names);
        names.iter().for_each(|name| assert_same(&array.open_file(name).unwrap()).unwrap());
        array.close().unwrap();
    });
}

/// Writes the content of every file of these tests. A file is empty or has this length.
fn write_same(file: &File) -> Result<()> {
    file.write_at(&[7; 10_000], 0)
}

fn assert_same(file: &File) -> Result<()> {
    let mut got = vec![0; 10_001];
    let read = file.read_at(&mut got, 0)?;
    assert!([0, 10_000].contains(&read), "{read} bytes");
    assert!(got[..read].iter().all(|&byte| byte == 7));
    Ok(())
}

#[test]
fn renames_in_opposite_directions_end() {
    ends(|| {
        let rig = Rig::new(1);
        let array = rig.create(false);
        let both = Barrier::new(2);
        thread::scope(|scope| {
            for (from, to) in [("a", "b"), ("b", "a")] {
                let (array, both) = (array.clone(), &both);
                scope.spawn(move || {
                    for _ in 0..rounds(30) {
                        match array.create_file(from, &FileOptions::new()) {
                            Ok(_) | Err(Error::Exists { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                        both.wait();
                        match array.rename(from, to) {
                            Ok(()) | Err(Error::NotFound { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                        both.wait();
                    }
                });
            }
        });
        array.close().unwrap();
    });
}

/// The byte that a file holds at an offset after a write there.
fn pattern(offset: usize) -> u8 {
    (offset / 7 % 251) as u8 + 1
}

#[test]
fn a_file_shrinks_and_grows_under_its_readers() {
    ends(|| {
        for drive_threads in DRIVE_THREADS {
            let rig = Rig::new(3);
            let array = rig.create(drive_threads);
            let file = array.create_file("file", &FileOptions::new().layout(Layout::Hash).block_bytes(4096)).unwrap();
            let whole: Vec<u8> = (0..300_000).map(pattern).collect();
            file.write_at(&whole, 0).unwrap();
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for index in 0..5 {
                    let (file, stop) = (file.clone(), &stop);
                    scope.spawn(move || {
                        let mut rng = Rng::with_seed(index);
                        while !stop.load(Ordering::Relaxed) {
                            let (at, len) = (rng.usize(0..300_000), rng.usize(0..30_000));
                            let mut got = vec![0; len];
                            if rng.bool() {
                                let read = file.read_at(&mut got, at as u64).unwrap();
                                got.truncate(read);
                            } else {
                                got = block_on(file.read_async(at as u64, len)).unwrap();
                            }
                            let wrong = got.iter().enumerate().find(|&(i, &b)| b != 0 && b != pattern(at + i));
                            assert_eq!(wrong, None, "at {at}");
                        }
                    });
                }
                let mut rng = Rng::with_seed(99);
                for _ in 0..rounds(20) {
                    let cut = rng.usize(0..300_000);
                    file.set_len(cut as u64).unwrap();
                    file.set_len(300_000).unwrap();
                    let mut tail = vec![1; 300_000 - cut];
                    assert_eq!(file.read_at(&mut tail, cut as u64).unwrap(), tail.len());
                    assert!(tail.iter().all(|&byte| byte == 0), "cut at {cut}");
                    file.write_at(&whole, 0).unwrap();
                }
                stop.store(true, Ordering::Relaxed);
            });
            drop(file);
            array.close().unwrap();
        }
    });
}

#[test]
fn an_array_is_closed_while_threads_use_it() {
    ends(|| {
        for round in 0..rounds(12) as usize {
            let rig = Rig::new(2);
            let array = rig.create(DRIVE_THREADS[round % 2]);
            let file =
                array.create_file("file", &FileOptions::new().layout(Layout::Rotated).block_bytes(4096)).unwrap();
            let len = 20_001;
            file.write_at(&vec![0; 6 * len], 0).unwrap();
            let start = Barrier::new(8);
            let models: Vec<Vec<u8>> = thread::scope(|scope| {
                let work = |index: usize| {
                    let (file, start) = (file.clone(), &start);
                    scope.spawn(move || {
                        let (mut rng, mut model) = (Rng::with_seed((round * 10 + index) as u64), vec![0; len]);
                        start.wait();
                        // A failed call has not begun. I/O in flight at the close has succeeded.
                        loop {
                            match call(&mut rng, &file, index * len, &mut model) {
                                Ok(()) => {}
                                Err(Error::Closed) => return model,
                                Err(error) => panic!("{error}"),
                            }
                        }
                    })
                };
                let threads: Vec<_> = (0..6).map(work).collect();
                let (namer, start) = (array.clone(), &start);
                scope.spawn(move || {
                    start.wait();
                    let mut rng = Rng::with_seed(round as u64);
                    loop {
                        let name = ["x", "y"][rng.usize(0..2)];
                        let result = match rng.u8(0..4) {
                            0 => namer
                                .create_file(name, &FileOptions::new().layout(Layout::Hash))
                                .and_then(|file| file.set_len(9000)),
                            1 => namer.open_file(name).and_then(|file| file.write_at(&[1; 5000], 3)),
                            2 => namer.rename(name, "x"),
                            _ => namer.delete(name),
                        };
                        match result {
                            Err(Error::Closed) => return,
                            Ok(()) | Err(Error::NotFound { .. } | Error::Exists { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
                start.wait();
                thread::sleep(Duration::from_millis(round as u64 % 12 * 4));
                array.close().unwrap();
                // The lock is free, and no thread works on without it.
                let again = rig.open();
                let mut all = vec![0; 6 * len];
                again.open_file("file").unwrap().read_at(&mut all, 0).unwrap();
                again.close().unwrap();
                let models: Vec<Vec<u8>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
                assert!(all == models.concat(), "what was written before the close");
                models
            });
            assert_eq!(models.len(), 6);
            assert!(matches!(file.write_at(&[1], 0), Err(Error::Closed)));
            assert!(matches!(file.set_len(1), Err(Error::Closed)));
        }
    });
}

/// The last reference to a file, and with it to the array, belongs to an operation that ends on a drive thread.
#[test]
fn what_is_dropped_in_flight_is_finished() {
    ends(|| {
        for round in 0..rounds(20) as usize {
            let rig = Rig::new(2);
            let array = rig.create(DRIVE_THREADS[round % 2]);
            let file = array.create_file("file", &FileOptions::new().block_bytes(4096)).unwrap();
            let content: Vec<u8> = (0..200_000).map(pattern).collect();
            drop(file.write_at_async(content.clone(), 0));
            drop(file.sync_async());
            if round % 4 < 2 {
                drop(array);
                drop(file);
            } else {
                drop(file);
                drop(array);
            }
            let array = rig.open();
            let mut got = vec![0; content.len() + 1];
            let read = array.open_file("file").unwrap().read_at(&mut got, 0).unwrap();
            assert!(got[..read] == content, "{read} bytes");
            array.close().unwrap();
        }
    });
}

#[test]
fn a_callback_that_panics_takes_no_other_along() {
    ends(|| {
        let rig = Rig::new(1);
        let array = rig.create(false);
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        let (send, receive) = channel();
        for index in 0..20 {
            let send = send.clone();
            let callback = move |result: Result<Vec<Vec<u8>>>| {
                assert!(index % 3 > 0, "this one panics, as it should");
                send.send(result.map(|_| index)).unwrap();
            };
            file.submit(vec![Request::Write { offset: index * 100, bytes: vec![1; 100] }], callback).unwrap();
        }
        drop(send);
        let synced = file.sync_async();
        let mut called: Vec<u64> = receive.iter().map(|result| result.unwrap()).collect();
        called.sort_unstable();
        assert_eq!(called, (0..20).filter(|index| index % 3 > 0).collect::<Vec<u64>>());
        block_on(synced).unwrap();
        array.close().unwrap();
    });
}

#[test]
fn a_file_can_be_deleted_once_its_last_call_has_ended() {
    ends(|| {
        for drive_threads in DRIVE_THREADS {
            let rig = Rig::new(2);
            let array = rig.create(drive_threads);
            let file = array.create_file("x", &FileOptions::new()).unwrap();
            let (sender, receiver) = channel();
            let (go_on, gone_on) = channel::<()>();
            let write = vec![Request::Write { offset: 0, bytes: vec![1; 4096] }];
            file.submit(write, move |result| {
                sender.send(result).unwrap();
                // The callback still runs while the file is closed and deleted.
                gone_on.recv().unwrap();
            })
            .unwrap();
            receiver.recv().unwrap().unwrap();
            file.close().unwrap();
            array.delete("x").unwrap();
            go_on.send(()).unwrap();
            for _ in 0..20 {
                let file = array.create_file("x", &FileOptions::new()).unwrap();
                file.write_at(&[1; 100], 0).unwrap();
                let reading = file.read_async(0, 100);
                let syncing = file.sync_async();
                file.close().unwrap();
                assert_eq!(block_on(reading).unwrap(), [1; 100]);
                block_on(syncing).unwrap();
                array.delete("x").unwrap();
            }
            array.close().unwrap();
        }
    });
}

/// A user's waker runs on a drive thread. The thread must survive its panic.
#[test]
fn a_waker_that_panics_stops_no_other_operation() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("as it should");
        }
    }
    ends(|| {
        let rig = Rig::new(2);
        let array = rig.create(false);
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&vec![7; 1 << 20], 0).unwrap();
        let waker = Waker::from(Arc::new(Bomb));
        for _ in 0..20 {
            let mut futures = [file.read_async(0, 1 << 20), file.read_async(0, 1 << 20)];
            for future in &mut futures {
                let _ = Pin::new(future).poll(&mut Context::from_waker(&waker));
            }
        }
        file.submit(vec![Request::Read { offset: 0, len: 100 }], |outcome| drop(outcome.unwrap())).unwrap();
        file.close().unwrap();
        array.close().unwrap();
    });
}
