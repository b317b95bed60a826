//! Futures and callbacks on the machine: on tokio, on an executor of a few lines, dropped, and from within callbacks.

use std::sync::mpsc::channel;
use std::time::Instant;

use crate::executor::block_on;
use iomill::{Advice, Array, ArrayOptions, Error, File, FileOptions, Request};

struct Site {
    _root: tempfile::TempDir,
    array: Array,
    file: File,
}

/// An array of three drives with a file of 64 pages, each full of its number.
fn site() -> Site {
    site_with(ArrayOptions::new())
}

fn site_with(options: ArrayOptions) -> Site {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<_> = (0..3).map(|n| root.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = options.create(&drives).unwrap();
    let file = array.create_file("pages", &FileOptions::new().block_bytes(8192)).unwrap();
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
                    let bytes = file.read_async(u64::from(page) * 4096 + 100, 300).await.unwrap();
                    assert_eq!(bytes, [page; 300]);
                    // Pages beyond those of the other tasks' reads.
                    let back = file.write_at_async(vec![n as u8; 50], (64 + n) * 4096 + 7).await.unwrap();
                    assert_eq!(back, [n as u8; 50]);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        site.file.sync_async().await.unwrap();
        assert_eq!(site.file.len(), (64 + 199) * 4096 + 57);
        assert_eq!(site.file.read_async(site.file.len() - 10, 4096).await.unwrap(), [199; 10], "short at the end");
        assert!(site.file.read_async(u64::MAX - 5, 10).await.is_err());
    });
    site.file.close().unwrap();
    site.array.close().unwrap();
}

#[test]
fn on_an_executor_of_a_few_lines() {
    let site = site();
    let reads: Vec<_> = (0..64).map(|n| site.file.read_async(n * 4096, 4096)).collect();
    for (n, read) in reads.into_iter().enumerate() {
        assert_eq!(block_on(read).unwrap(), [n as u8; 4096]);
    }
}

#[test]
fn a_dropped_future_leaves_its_operation_whole() {
    let site = site();
    for round in 0..200u64 {
        drop(site.file.write_at_async(vec![5; 4096], (100 + round) * 4096));
        drop(site.file.read_async(0, 64 * 4096));
    }
    // Closing waits for I/O in flight.
    site.array.close().unwrap();
    assert!(matches!(block_on(site.file.read_async(0, 1)), Err(Error::Closed)));
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

/// Hits and misses, within a page and over several, at the end of the file and past it.
#[test]
fn reads_into_a_buffer_of_the_caller_come_with_the_buffer() {
    for cache_bytes in [0, 1 << 20] {
        let site = site_with(ArrayOptions::new().cache_bytes(cache_bytes));
        let (tell, told) = channel();
        let end = 64 * 4096;
        for (offset, len) in [(0, 10), (5000, 4096), (4096, 4096), (100, 3 * 4096), (end - 5, 10), (end, 10), (0, 0)] {
            for file in [site.file.clone(), site.file.background(), site.file.clone()] {
                let (buf, tell) = (vec![77; len], tell.clone());
                let memory = buf.as_ptr();
                file.read_at_then(buf, offset, move |ended| tell.send(ended.unwrap()).unwrap()).unwrap();
                let (buf, read) = told.recv_timeout(crate::PATIENCE).unwrap();
                let mut wanted = vec![77; len];
                assert_eq!(read, site.file.read_at(&mut wanted, offset).unwrap(), "{len} at {offset}");
                assert!(buf == wanted && buf.as_ptr() == memory, "{len} at {offset}");
            }
        }
        let outside = site.file.read_at_then(vec![1; 10], u64::MAX - 5, |_| panic!("it never began")).unwrap_err();
        assert!(matches!(outside.error(), Error::Invalid { .. }), "{outside:?}");
        assert_eq!(outside.into_parts().1, Some(vec![1; 10]));
        site.array.close().unwrap();
        let closed = site.file.read_at_then(vec![1; 10], 0, |_| panic!("it never began")).unwrap_err();
        assert!(matches!(closed.error(), Error::Closed), "{closed:?}");
        assert_eq!(closed.into_parts().1, Some(vec![1; 10]));
    }
}

/// The first pages of a write are cached, or all, or none. A page of a write with dirty neighbours is one, too.
#[test]
fn writes_to_cached_pages_and_to_others_keep_all_bytes() {
    let site = site_with(ArrayOptions::new().cache_bytes(1 << 20));
    let mut wanted = vec![0; 64 * 4096];
    for (round, (cached, offset, len)) in
        [(1, 100, 3 * 4096), (3, 5 * 4096, 2 * 4096), (2, 20_000, 50), (0, 30 * 4096, 4096), (9, 40 * 4096 + 1, 30_000)]
            .into_iter()
            .enumerate()
    {
        site.file.read_at(&mut wanted, 0).unwrap();
        site.file.sync().unwrap();
        site.file.advise(.., Advice::DontNeed).unwrap();
        site.file.advise(.., Advice::Random).unwrap();
        site.file.read_at(&mut vec![0; cached * 4096], offset).unwrap();
        wanted[offset as usize..][..len].fill(100 + round as u8);
        let bytes = block_on(site.file.write_at_async(vec![100 + round as u8; len], offset)).unwrap();
        assert_eq!(bytes, vec![100 + round as u8; len]);
        let mut read = vec![0; 64 * 4096];
        site.file.read_at(&mut read, 0).unwrap();
        assert!(read == wanted, "{cached} pages cached, {len} bytes at {offset}");
    }
    site.file.sync().unwrap();
    let rows = [3 * 4096 + 7, 50 * 4096, 3 * 4096 + 9, 60 * 4096 + 4090];
    block_on(site.file.write_many_async((0..40).collect::<Vec<u8>>(), &rows, 10)).unwrap();
    let mut read = vec![0; 40];
    site.file.read_many(&mut read, &rows, 10).unwrap();
    let mut first: Vec<u8> = (0..40).collect();
    first[2..10].copy_from_slice(&[20, 21, 22, 23, 24, 25, 26, 27]);
    assert_eq!(read, first);
}

/// The reads of this thread are posted to the thread that runs callbacks, which is in a callback.
#[test]
fn reads_with_callbacks_begin_while_another_callback_runs() {
    let site = site_with(ArrayOptions::new().cache_bytes(0));
    let ((tell, told), (go_on, waits)) = (channel(), channel());
    let tell_first = tell.clone();
    let wait = move |outcome: iomill::Result<Vec<Vec<u8>>>| {
        tell_first.send((0, outcome.unwrap())).unwrap();
        waits.recv().unwrap();
    };
    site.file.submit(vec![Request::Read { offset: 0, len: 10 }], wait).unwrap();
    assert_eq!(told.recv_timeout(crate::PATIENCE).unwrap(), (0, vec![vec![0; 10]]));
    for page in 1..41u64 {
        let tell = tell.clone();
        let callback = move |outcome: iomill::Result<Vec<Vec<u8>>>| tell.send((page, outcome.unwrap())).unwrap();
        site.file.submit(vec![Request::Read { offset: page * 4096, len: 10 }], callback).unwrap();
    }
    let (begun, reads) = (Instant::now(), || site.array.counters().drives.iter().map(|drive| drive.reads).sum::<u64>());
    while reads() < 41 {
        assert!(begun.elapsed() < crate::PATIENCE, "the reads wait for a user's callback: {} of 41", reads());
        std::thread::yield_now();
    }
    go_on.send(()).unwrap();
    for _ in 1..41 {
        let (page, bytes) = told.recv_timeout(crate::PATIENCE).unwrap();
        assert_eq!(bytes, [[page as u8; 10]]);
    }
}

/// A callback may take as long as it likes, also until other calls have ended. A future of a write past the end waited
/// for the callback's thread.
#[test]
fn a_file_becomes_longer_while_a_callback_runs() {
    let site = site();
    let ((tell, told), (go_on, waits)) = (channel(), channel());
    let wait = move |outcome: iomill::Result<Vec<Vec<u8>>>| {
        tell.send(outcome.unwrap()).unwrap();
        waits.recv().unwrap();
    };
    site.file.submit(vec![Request::Read { offset: 5, len: 10 }], wait).unwrap();
    assert_eq!(told.recv_timeout(crate::PATIENCE).unwrap(), [[0; 10]]);
    let (end, ended) = channel();
    let file = site.file.clone();
    std::thread::spawn(move || end.send(block_on(file.write_at_async(vec![7; 100], 32 << 20)).unwrap()));
    assert_eq!(ended.recv_timeout(crate::PATIENCE).expect("a write waits for a user's callback"), [7; 100]);
    go_on.send(()).unwrap();
    assert_eq!(site.file.len(), (32 << 20) + 100);
    site.array.close().unwrap();
}

#[test]
fn callbacks_of_many_threads_come_with_their_bytes() {
    for cache_bytes in [0, 1 << 20] {
        let site = site_with(ArrayOptions::new().cache_bytes(cache_bytes));
        let read = |thread: u64| {
            let (tell, told) = channel();
            let submit = |n: u64| {
                let (tell, page) = (tell.clone(), (n * 7 + thread) % 64);
                let callback =
                    move |outcome: iomill::Result<Vec<Vec<u8>>>| tell.send((page, outcome.unwrap())).unwrap();
                site.file.submit(vec![Request::Read { offset: page * 4096 + n % 97, len: 300 }], callback).unwrap();
            };
            (0..50).for_each(submit);
            for n in 50..1_050 {
                let (page, bytes) = told.recv_timeout(crate::PATIENCE).unwrap();
                assert_eq!(bytes, [[page as u8; 300]]);
                if n < 1_000 {
                    submit(n);
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || read(thread)))));
        site.array.close().unwrap();
    }
}
