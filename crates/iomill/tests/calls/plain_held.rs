//! Nothing holds a closed plain file: its space is free when it is deleted, and its file system can be unmounted.
//! Threads that have read it live on.

use std::future::Future;
use std::path::Path;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use iomill::{EngineKind, Error, File, PlainOptions, Runtime, RuntimeOptions};

use super::disks::{Disk, skipped};
use super::{PAGE, random};
use crate::PATIENCE;
use crate::executor::block_on;

const LEN: usize = 4 << 20;

/// Runtimes with each engine, and each of its ways to do I/O. A machine may forbid some.
fn runtimes() -> Vec<(String, Runtime)> {
    let mut all = Vec::new();
    for engine in
        [None, Some(EngineKind::Uring), Some(EngineKind::Aio), Some(EngineKind::Posix), Some(EngineKind::Mmap)]
    {
        for drive_threads in [false, true] {
            let options = RuntimeOptions::new().cache_bytes(1 << 20).drive_threads(drive_threads);
            let options = engine.map_or(options.clone(), |engine| options.engine(engine));
            all.push((format!("{engine:?} drive threads {drive_threads}"), options.start().unwrap()));
        }
    }
    all
}

fn use_file(file: &File, way: usize) {
    let mut bytes = vec![0; 300_000];
    match way {
        0 => assert_eq!(file.read_at(&mut bytes, 5).unwrap(), 300_000),
        // By parts, so that the next ones are read ahead.
        1 => (0..20).for_each(|part| assert!(file.read_at(&mut bytes[..50_000], part * 50_000).is_ok())),
        2 => file.read_many(&mut bytes[..50 * PAGE], &(0..50).map(|at| at * 9999).collect::<Vec<_>>(), PAGE).unwrap(),
        3 => drop(block_on(file.read_async(5000, 100_000)).unwrap()),
        _ => {
            // A future that is polled once, and never again.
            let mut read = Box::pin(file.read_async(1_000_000, 100_000));
            let _begun: Poll<_> = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

fn opened(runtime: &Runtime, path: &Path, write: bool, about: &str) -> Option<File> {
    match PlainOptions::new().runtime(runtime).write(write).open(path) {
        Ok(file) => Some(file),
        Err(error @ Error::Drive { .. }) => {
            println!("skipped: {about}: {error}");
            None
        }
        Err(error) => panic!("{about}: {error}"),
    }
}

/// Seen to fail with files that rings register, with mappings that go at the thread's next I/O, and with a `close` that
/// does not wait for pages that are read ahead. Seen to fail once in five runs with a ring that gives the last sync to a
/// worker thread of the kernel.
#[test]
fn nothing_holds_a_file_that_was_closed() {
    let Some(disk) = Disk::ext4(64, &[]) else { return skipped("no ext4 on a loop device here") };
    let path = disk.path().join("file");
    for (about, runtime) in runtimes() {
        thread::scope(|scope| {
            // They live until all is done.
            let mut done = Vec::new();
            for way in 0..10 {
                let (write, way) = (way >= 5, way % 5);
                std::fs::write(&path, random(LEN, 1)).unwrap();
                let free_before = disk.free_bytes();
                let Some(file) = opened(&runtime, &path, write, &about) else { return };
                let theirs = file.clone();
                let (tell, told) = mpsc::channel();
                let (end, ended) = mpsc::channel::<()>();
                done.push(end);
                scope.spawn(move || {
                    if write {
                        theirs.write_at(&random(100_000, 2), 50_000).unwrap();
                        theirs.write_at(&random(10_000, 2), LEN as u64).unwrap();
                    }
                    use_file(&theirs, way);
                    if write {
                        theirs.sync().unwrap();
                    }
                    drop(theirs);
                    tell.send(()).unwrap();
                    let _until_the_end = ended.recv();
                });
                told.recv().unwrap();
                file.close().unwrap();
                std::fs::remove_file(&path).unwrap();
                // The kernel drops the reference of a libaio request a moment after its completion.
                let patience = Instant::now() + PATIENCE;
                while disk.free_bytes() < free_before + LEN as u64 || !disk.unmount() {
                    assert!(Instant::now() < patience, "{about}, write {write}, way {way}: the file is held");
                    thread::yield_now();
                }
                assert!(disk.mount_again());
            }
        });
    }
}
