//! Calls of the array as futures, on the machine. They do the same as the blocking calls.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;

use iomill::{Answer, Array, ArrayOptions, Error, File, FileOptions, PutOptions, Tuning, When};
use tempfile::TempDir;

use crate::PATIENCE;
use crate::executor::block_on;
use crate::hangs::held::Held;

fn drives(root: &TempDir) -> Vec<PathBuf> {
    let drives: Vec<_> = (0..2).map(|n| root.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    drives
}

#[test]
fn they_do_what_the_calls_do() {
    for drive_threads in [false, true] {
        for cache_bytes in [0, 4 << 20] {
            for root in super::places() {
                let options =
                    ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).cache_bytes(cache_bytes);
                let array = options.clone().create(drives(&root)).unwrap();
                block_on(use_all(&array));
                if cache_bytes > 0 {
                    block_on(array.resize_cache_async(2 << 20)).unwrap();
                    assert!(array.counters().cache_bytes <= 2 << 20);
                }
                block_on(array.clone().close_async()).unwrap();
                assert!(matches!(block_on(array.put_async("late", [1], &PutOptions::new())), Err(Error::Closed)));
                assert!(matches!(block_on(array.open_file_async("large")), Err(Error::Closed)));
                assert!(matches!(block_on(array.close_async()), Err(Error::Closed)));
                let array = options.open(root.path().join("ssd1")).unwrap();
                assert_eq!(array.list("").names().unwrap(), ["copy", "large", "renamed"]);
                assert_eq!(array.stat("renamed").unwrap().attributes["key"], "value");
                assert_eq!(array.open_file("large").unwrap().len(), 300_000);
                array.close().unwrap();
            }
        }
    }
}

async fn use_all(array: &Array) {
    let file = array.create_file_async("first", &FileOptions::new()).await.unwrap();
    file.write_at_async(vec![1; 5000], 0).await.unwrap();
    file.set_len_async(4000).await.unwrap();
    file.close_async().await.unwrap();
    assert!(matches!(array.create_file_async("first", &FileOptions::new()).await, Err(Error::Exists { .. })));
    array.set_attribute_async("first", "key", Some("value")).await.unwrap();
    array.rename_async("first", "renamed").await.unwrap();
    assert!(matches!(array.open_file_async("first").await, Err(Error::NotFound { .. })));
    let file = array.open_file_async("renamed").await.unwrap();
    assert_eq!(file.read_async(0, 5000).await.unwrap(), [1; 4000]);
    let copied = array.copy_async("renamed", "copy", When::Absent).await.unwrap();
    assert_eq!((copied.len_bytes, &copied.attributes["key"][..]), (4000, "value"));
    let put = array.put_async("large", vec![2; 300_000], &PutOptions::new()).await.unwrap();
    assert_eq!((put.len_bytes, put.version), (300_000, array.stat("large").unwrap().version));
    let large = array.open_file_async("large").await.unwrap();
    assert_eq!(large.read_async(299_990, 100).await.unwrap(), [2; 10]);
    let draft = array.draft(&FileOptions::new()).unwrap();
    draft.file().write_at_async(vec![3; 70_000], 0).await.unwrap();
    assert!(matches!(draft.publish_async("copy", When::Absent).await, Err(Error::Exists { .. })));
    draft.publish_async("drafted", When::Absent).await.unwrap();
    drop(draft);
    assert_eq!(array.open_file_async("drafted").await.unwrap().len(), 70_000);
    array.delete_async("drafted").await.unwrap();
    array.sync_async().await.unwrap();
    assert!(matches!(array.delete_async("drafted").await, Err(Error::NotFound { .. })));
}

/// The calls of many tasks at once, beside blocking calls, and futures that are dropped at once.
#[test]
fn from_many_tasks() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = ArrayOptions::new().create(drives(&root)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let task = |n: u32| {
        let array = array.clone();
        async move {
            let (name, other) = (format!("file {n}"), format!("other {n}"));
            array.put_async(&name, vec![n as u8; 3000 + n as usize], &PutOptions::new()).await.unwrap();
            let file = array.open_file_async(&name).await.unwrap();
            assert_eq!(file.read_async(0, 9000).await.unwrap(), vec![n as u8; 3000 + n as usize]);
            drop(array.put_async(&other, vec![0; 10], &PutOptions::new()));
            array.rename_async(&name, &format!("new {n}")).await.unwrap();
            if n.is_multiple_of(2) {
                array.delete_async(&format!("new {n}")).await.unwrap();
            }
        }
    };
    runtime.block_on(async {
        let tasks: Vec<_> = (0..200).map(|n| tokio::spawn(task(n))).collect();
        for n in 0..50 {
            let name = format!("blocking {n}");
            array.put(&name, &[1; 4096], &PutOptions::new()).unwrap();
            array.delete(&name).unwrap();
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
    // Calls without a waiter are done when the array is closed.
    array.close().unwrap();
    let array = Array::open(root.path().join("ssd0")).unwrap();
    assert_eq!(
        (
            array.list("new ").names().unwrap().len(),
            array.list("other ").names().unwrap().len(),
            array.list("").names().unwrap().len()
        ),
        (100, 200, 300)
    );
    array.close().unwrap();
}

/// In a callback the blocking calls are errors, and these are not.
#[test]
fn from_a_callback() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = ArrayOptions::new().create(drives(&root)).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let inner = array.clone();
    let callback = move |_| {
        assert!(matches!(inner.delete("file"), Err(Error::BlockingCall { .. })));
        tell.send(inner.delete_async("file")).unwrap();
    };
    file.submit(vec![iomill::Request::Read { offset: 0, len: 100 }], callback).unwrap();
    block_on(told.recv().unwrap()).unwrap();
    assert!(array.list("").names().unwrap().is_empty());
    drop(file);
    array.close().unwrap();
}

/// A rename keeps its condition, as a call and as a future.
#[test]
fn a_rename_keeps_its_condition() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = Array::create(drives(&root)).unwrap();
    let put = |name: &str, byte| array.put(name, &[byte; 100], &PutOptions::new()).unwrap().version;
    let (first, second) = (put("first", 1), put("second", 2));
    for refused in [
        array.rename_when("first", "second", When::Absent).unwrap_err(),
        block_on(array.rename_when_async("first", "second", When::Absent)).unwrap_err(),
        array.rename_when("first", "first", When::Absent).unwrap_err(),
    ] {
        assert!(matches!(refused, Error::Exists { .. }), "{refused}");
    }
    let refused = array.rename_when("first", "second", When::Version(first)).unwrap_err();
    assert!(matches!(refused, Error::Conflict { found: Some(found), .. } if found == second), "{refused}");
    for to in ["new", "second"] {
        assert!(matches!(array.rename_when("none", to, When::Absent), Err(Error::NotFound { .. })));
        assert!(matches!(array.copy("none", to, When::Absent), Err(Error::NotFound { .. })));
    }
    assert_eq!(array.list("").names().unwrap(), ["first", "second"]);
    block_on(array.rename_when_async("first", "second", When::Version(second))).unwrap();
    assert_eq!(
        (array.list("").names().unwrap(), array.stat("second").unwrap().version),
        (vec!["second".to_owned()], first)
    );
    array.rename_when("second", "third", When::Absent).unwrap();
    assert_eq!(array.list("").names().unwrap(), ["third"]);
}

/// A file is opened by name and version, whether it is small or long, open or closed.
#[test]
fn a_version_is_opened_only_while_the_name_has_it() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = Array::create(drives(&root)).unwrap();
    for len in [100, 300_000] {
        let put = |byte| array.put("file", &vec![byte; len], &PutOptions::new()).unwrap().version;
        let old = put(1);
        let held = array.open_version("file", old).unwrap();
        let (again, version) = (block_on(array.open_version_async("file", old)).unwrap(), put(2));
        assert_ne!(old, version);
        for refused in [
            array.open_version("file", old).unwrap_err(),
            block_on(array.open_version_async("file", old)).unwrap_err(),
            array.open_version("none", version).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Conflict { .. }), "{refused}");
        }
        // Handles keep their content.
        let new = block_on(array.open_version_async("file", version)).unwrap();
        for (file, byte) in [(held, 1), (again, 1), (new, 2)] {
            assert_eq!((file.len(), block_on(file.read_async(0, 1)).unwrap()), (len as u64, vec![byte]));
        }
        array.rename("file", "renamed").unwrap();
        assert!(matches!(array.open_version("file", version), Err(Error::Conflict { found: None, .. })));
        assert_eq!(array.open_version("renamed", version).unwrap().len(), len as u64);
    }
}

/// An opening waited for the writes of all long puts before it, which take most of a put's time.
#[test]
fn an_opening_does_not_wait_behind_long_puts() {
    const PUTS: usize = 48;
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let platform = Arc::new(Held::default());
    let hooks = Arc::clone(&platform.hooks);
    let array = ArrayOptions::new().platform(platform).create(drives(&root)).unwrap();
    block_on(array.put_async("long", vec![1; 300_000], &PutOptions::new())).unwrap();
    // The drives take no bytes until the file is open.
    hooks.writes.shut();
    let put = |n| array.put_async(&format!("put {n}"), vec![2; 2 << 20], &PutOptions::new());
    let puts: Vec<_> = (0..PUTS).map(put).collect();
    hooks.writes.wait_for(1);
    let (told, opened) = channel();
    let opening = array.open_file_async("long");
    let thread = thread::spawn(move || told.send(block_on(opening)).unwrap());
    let file = opened.recv_timeout(PATIENCE);
    hooks.writes.open();
    thread.join().unwrap();
    puts.into_iter().for_each(|put| drop(block_on(put).unwrap()));
    let file = file.expect("the opening waits for the puts").unwrap();
    assert_eq!(file.len(), 300_000);
}

/// Each opening by a version took a thread, also for a small file or an open one.
#[test]
fn openings_that_take_no_call_of_the_system_are_ready_at_once() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = Array::create(drives(&root)).unwrap();
    let small = array.put("small", &[1; 100], &PutOptions::new()).unwrap().version;
    let large = array.put("large", &[1; 300_000], &PutOptions::new()).unwrap().version;
    let _held = array.open_file("large").unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut is_ready =
        |mut answer: Answer<File>| matches!(Pin::new(&mut answer).poll(&mut context), Poll::Ready(Ok(_)));
    assert!(is_ready(array.open_file_async("small")));
    assert!(is_ready(array.open_file_async("large")));
    assert!(is_ready(array.open_version_async("small", small)));
    assert!(is_ready(array.open_version_async("large", large)));
}
