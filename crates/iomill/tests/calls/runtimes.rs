//! Runtimes of tokio that drive: their tasks get their bytes, and operations that a runtime leaves behind go on without
//! it.

use std::fs;
use std::time::Duration;

use iomill::{File, drive_by_tokio};
use tokio::runtime::{Builder, Runtime};

use super::PAGE;
use super::abandoned::site;

fn runtimes() -> [Runtime; 2] {
    let current = Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    let several = Builder::new_multi_thread().worker_threads(2).enable_io().enable_time().build().unwrap();
    for runtime in [&current, &several] {
        drive_by_tokio(runtime.handle()).unwrap();
        // Twice is as good as once.
        drive_by_tokio(runtime.handle()).unwrap();
    }
    [current, several]
}

/// The number of times that reaping threads of this process have gone to sleep.
fn sleeps_of_reapers() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let reapers =
        tasks.filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "iomill-reap\n"));
    let sleeps = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).map(str::to_owned);
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    reapers.filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).map(sleeps).sum()
}

async fn reads_in_turn(file: File, pages: std::ops::Range<u64>) {
    for page in pages {
        assert_eq!(file.read_async(page * PAGE as u64 + 5, 50).await.unwrap(), [page as u8; 50]);
    }
}

#[test]
fn tasks_of_a_runtime_that_drives_find_their_bytes() {
    for runtime in runtimes() {
        let (_root, array, file) = site();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..8).map(|n| tokio::spawn(reads_in_turn(file.clone(), n * 8..n * 8 + 8))).collect();
            for task in tasks {
                task.await.unwrap();
            }
            file.write_at_async(vec![9; 3 * PAGE], 7).await.unwrap();
            file.sync_async().await.unwrap();
            assert_eq!(file.read_async(PAGE as u64, 4).await.unwrap(), [9; 4]);
        });
        drop((file, runtime));
        array.close().unwrap();
    }
}

/// Drive threads may reap, so one of several tries is enough.
#[test]
fn no_reaper_wakes_for_a_runtime_that_drives() {
    alone!();
    let [runtime, _] = runtimes();
    let quiet = (0..20).any(|_| {
        let (_root, _array, file) = site();
        let before = runtime.block_on(async {
            reads_in_turn(file.clone(), 0..1).await;
            sleeps_of_reapers()
        });
        runtime.block_on(reads_in_turn(file, 1..64));
        sleeps_of_reapers() < before + 32
    });
    assert!(quiet, "reapers wake for reads on a runtime that drives");
}

/// A runtime that ends, or polls nothing any more, leaves reads in flight.
#[test]
fn reads_outlive_their_runtime() {
    for keeps in [false, true] {
        for runtime in runtimes() {
            let (_root, array, file) = site();
            let reads = runtime.block_on(async {
                let mut reads: Vec<_> = (0..16).map(|page| file.read_async(page * PAGE as u64 + 1, 9)).collect();
                let first = tokio::time::timeout(Duration::ZERO, &mut reads[0]).await;
                drop(first);
                reads.split_off(1)
            });
            let kept = keeps.then_some(runtime);
            for (page, read) in (1u8..).zip(reads) {
                assert_eq!(crate::executor::block_on(read).unwrap(), [page; 9]);
            }
            drop(file);
            array.close().unwrap();
            drop(kept);
        }
    }
}

/// A call that hangs fails.
fn in_time<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (ended, ends) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || drop(ended.send(call())));
    match ends.recv_timeout(crate::PATIENCE) {
        Ok(result) => {
            thread.join().unwrap();
            result
        }
        Err(error) => panic!("it hangs, or panics: {error}"),
    }
}

fn read_elsewhere(file: &File, pages: std::ops::Range<u64>) {
    for page in pages {
        let read = crate::executor::block_on(file.read_async(page * PAGE as u64 + 5, 50));
        assert_eq!(read.unwrap(), [page as u8; 50]);
    }
}

/// The thread's context has a driver, and that runtime polls nothing: it is idle, it is not running, or its task waits
/// in another executor.
#[test]
fn reads_end_while_their_runtime_does_something_else() {
    for runtime in runtimes() {
        in_time(move || {
            let (_root, array, file) = site();
            runtime.block_on(reads_in_turn(file.clone(), 0..8));
            read_elsewhere(&file, 8..16);
            {
                let _entered = runtime.enter();
                read_elsewhere(&file, 16..24);
                assert_eq!(iomill::block_on(file.read_async(24 * PAGE as u64, 1)).unwrap().unwrap(), [24]);
            }
            let nested = file.clone();
            runtime.block_on(async { tokio::spawn(async move { read_elsewhere(&nested, 25..30) }).await.unwrap() });
            // A read that the runtime began moves to a thread for which the runtime waits.
            let mut moved = file.read_async(30 * PAGE as u64 + 1, 2);
            runtime.block_on(async {
                let polled = tokio::time::timeout(Duration::ZERO, &mut moved).await;
                if polled.is_err() {
                    let read = std::thread::spawn(move || iomill::block_on(moved).unwrap().unwrap());
                    assert_eq!(read.join().unwrap(), [30; 2]);
                }
            });
            drop(file);
            array.close().unwrap();
        });
    }
}

/// A thread takes the context of a thread of a runtime that has ended, and another runtime begins there.
#[test]
fn a_context_outlives_its_runtime() {
    let (_root, array, file) = site();
    for pages in [0..8, 8..16] {
        for (runtime, offset) in runtimes().into_iter().zip([0, 16]) {
            let (file, pages) = (file.clone(), pages.start + offset..pages.end + offset);
            in_time(move || {
                runtime.block_on(reads_in_turn(file.clone(), pages.clone()));
                drop(runtime);
                read_elsewhere(&file, 32 + pages.start..32 + pages.end);
            });
        }
    }
    drop(file);
    array.close().unwrap();
}

#[test]
fn a_runtime_without_io_is_refused() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let error = drive_by_tokio(runtime.handle()).unwrap_err().to_string();
    assert!(error.contains("enable_io"), "{error}");
}
