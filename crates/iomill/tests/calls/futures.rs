//! Futures and callbacks on the machine: on tokio, on an executor of a few lines, dropped, and from within callbacks.

use std::sync::mpsc::channel;

use crate::executor::block_on;
use iomill::{Array, ArrayOptions, Error, File, Layout, Request};

struct Site {
    _root: tempfile::TempDir,
    array: Array,
    file: File,
}

/// An array of three drives with a file of 64 pages, each full of its number.
fn site() -> Site {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<_> = (0..3).map(|n| root.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new().create(&drives).unwrap();
    let file = array.create_file("pages", Layout::striping().block_bytes(8192)).unwrap();
    let pages: Vec<u8> = (0..64u8).flat_map(|n| [n; 4096]).collect();
    file.write_at(&pages, 0).unwrap();
    Site { _root: root, array, file }
}

#[test]
fn on_tokio_from_many_tasks() {
    let site = site();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..200u64)
            .map(|n| {
                let file = site.file.clone();
                tokio::spawn(async move {
                    let page = (n % 64) as u8;
                    let bytes = file.read(u64::from(page) * 4096 + 100, 300).await.unwrap();
                    assert_eq!(bytes, [page; 300]);
                    // Pages beyond those that the other tasks read.
                    let back = file.write(vec![n as u8; 50], (64 + n) * 4096 + 7).await.unwrap();
                    assert_eq!(back, [n as u8; 50]);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        site.file.sync_async().await.unwrap();
        assert_eq!(site.file.len(), (64 + 199) * 4096 + 57);
        assert_eq!(site.file.read(site.file.len() - 10, 4096).await.unwrap(), [199; 10], "short at the end");
        assert!(site.file.read(u64::MAX - 5, 10).await.is_err());
    });
    site.file.close().unwrap();
    site.array.close().unwrap();
}

#[test]
fn on_an_executor_of_a_few_lines() {
    let site = site();
    let reads: Vec<_> = (0..64).map(|n| site.file.read(n * 4096, 4096)).collect();
    for (n, read) in reads.into_iter().enumerate() {
        assert_eq!(block_on(read).unwrap(), [n as u8; 4096]);
    }
}

#[test]
fn a_dropped_future_leaves_its_operation_whole() {
    let site = site();
    for round in 0..200u64 {
        drop(site.file.write(vec![5; 4096], (100 + round) * 4096));
        drop(site.file.read(0, 64 * 4096));
    }
    // Closing waits for I/O in flight.
    site.array.close().unwrap();
    assert!(matches!(block_on(site.file.read(0, 1)), Err(Error::Closed)));
}

#[test]
fn callbacks_come_with_their_bytes_and_may_submit_but_not_block() {
    let site = site();
    let (tell, told) = channel();
    let inner = site.file.clone();
    let tasks = vec![
        Request::Read { offset: 3 * 4096, len: 10 },
        Request::Write { offset: 5000, bytes: vec![9; 20] },
        Request::Read { offset: 63 * 4096, len: 4096 },
    ];
    let callback = move |result: iomill::Result<Vec<Vec<u8>>>| {
        let refused = inner.read_at(&mut [0; 10], 0);
        let again = tell.clone();
        inner
            .submit(vec![Request::Read { offset: 5000, len: 20 }], move |more| {
                again.send((result.unwrap(), refused, more.unwrap())).unwrap();
            })
            .unwrap();
    };
    site.file.submit(tasks, callback).unwrap();
    let (first, refused, more) = told.recv_timeout(crate::PATIENCE).unwrap();
    assert_eq!(first, [vec![3; 10], vec![9; 20], vec![63; 4096]]);
    assert!(matches!(refused, Err(Error::BlockingCall { .. })), "{refused:?}");
    assert_eq!(more, [vec![9; 20]]);
    let outside = site.file.submit(vec![Request::Read { offset: 64 * 4096, len: 1 }], |_| panic!("it never began"));
    assert!(matches!(outside, Err(Error::Invalid { .. })), "{outside:?}");
}
