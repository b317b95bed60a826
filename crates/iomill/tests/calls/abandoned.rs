//! Reads by futures that no task brings to their ends. Their pages and files are free for others all the same.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::PATIENCE;
use crate::executor::block_on;
use iomill::{Advice, Answer, Array, ArrayOptions, File, FileOptions, PutOptions};

use super::PAGE;

/// What happens to a future after its first poll.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Its thread sleeps, until the test is over.
    Sleeps,
    /// Its thread computes, until the test is over.
    Computes,
    /// Its thread ends, and another thread has the future.
    Moves,
    Drops,
    Leaks,
    /// It is not polled until the test is over.
    Waits,
}

const FATES: [Fate; 6] = [Fate::Sleeps, Fate::Computes, Fate::Moves, Fate::Drops, Fate::Leaks, Fate::Waits];

/// An array with a file of 64 pages, each full of its number, and none in the cache.
pub(crate) fn site() -> (tempfile::TempDir, Array, File) {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<_> = (0..2).map(|n| root.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let file = array.create_file("pages", &FileOptions::new()).unwrap();
    let pages: Vec<u8> = (0..64u8).flat_map(|n| [n; PAGE]).collect();
    file.write_at(&pages, 0).unwrap();
    file.sync().unwrap();
    file.advise(.., Advice::DontNeed).unwrap();
    file.advise(.., Advice::Random).unwrap();
    (root, array, file)
}

fn poll(reading: &mut Answer<Vec<u8>>) -> bool {
    Pin::new(reading).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// The thread of a future. It comes back to the future when this is dropped, or when a call has waited for it in vain.
struct Away {
    thread: Option<thread::JoinHandle<Option<Answer<Vec<u8>>>>>,
    comes_back: Arc<AtomicBool>,
}

impl Away {
    /// Ends the thread. Returns a future that it had not dropped.
    fn come_back(&mut self) -> Option<Answer<Vec<u8>>> {
        self.comes_back.store(true, Ordering::Relaxed);
        self.thread.take()?.join().unwrap()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.come_back();
    }
}

/// Begins to read a page on a thread of its own, and subjects the future to `fate`. Returns after that.
fn begin(file: &File, page: u64, fate: Fate) -> Away {
    let (file, (happened, happens), comes_back) = (file.clone(), channel(), Arc::new(AtomicBool::new(false)));
    let back = Arc::clone(&comes_back);
    let thread = thread::spawn(move || {
        // A second read is in flight with it, of a record across two pages.
        let mut readings =
            [page * PAGE as u64 + 7, (page + 2) * PAGE as u64 - 50].map(|at| Some(file.read_async(at, 100)));
        drop(file);
        if !matches!(fate, Fate::Waits) {
            // A quick drive may have answered already.
            readings.iter_mut().for_each(|reading| drop(reading.take_if(poll)));
        }
        happened.send(()).unwrap();
        let is_away = || !back.load(Ordering::Relaxed);
        match fate {
            Fate::Sleeps => {
                while is_away() {
                    thread::sleep(Duration::from_millis(1))
                }
            }
            Fate::Computes => while is_away() {},
            Fate::Moves => return readings[1].take(),
            Fate::Drops => drop(readings),
            Fate::Leaks => readings.into_iter().for_each(std::mem::forget),
            Fate::Waits => {
                while is_away() {
                    thread::sleep(Duration::from_millis(1))
                }
                for mut reading in readings.into_iter().flatten() {
                    while !poll(&mut reading) {}
                }
            }
        }
        None
    });
    happens.recv().unwrap();
    Away { thread: Some(thread), comes_back }
}

/// Makes a call while threads are away. If the call waits for one of them, they come back after [`PATIENCE`], so that
/// the test ends and fails.
fn beside<T>(what: &str, away: &[&Away], fate: Fate, call: impl FnOnce() -> T) -> T {
    let (ended, ends) = channel::<()>();
    thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let waits = ends.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
            away.iter().filter(|_| waits).for_each(|away| away.comes_back.store(true, Ordering::Relaxed));
            waits
        });
        let result = call();
        drop(ended);
        assert!(!watch.join().unwrap(), "{what} waits while a future {fate:?}");
        result
    })
}

/// A blocking read and a future of the same pages end, whatever the fate of the future that began to read them.
#[test]
fn pages_do_not_wait_for_the_thread_that_began_to_read_them() {
    let (_root, array, file) = site();
    for (number, fate) in FATES.into_iter().enumerate() {
        let page = number as u64 * 10;
        let mut first = begin(&file, page, fate);
        let mut bytes = [0; 64];
        beside("a blocking read", &[&first], fate, || file.read_at(&mut bytes, page * PAGE as u64)).unwrap();
        assert_eq!(bytes, [page as u8; 64]);
        let read =
            beside("a future", &[&first], fate, || block_on(file.read_async((page + 1) * PAGE as u64, 64))).unwrap();
        assert_eq!(read, [page as u8 + 1; 64]);
        if let Some(reading) = first.come_back() {
            let read = beside("a future that was moved", &[], fate, || block_on(reading)).unwrap();
            assert_eq!([&read[..50], &read[50..]], [[page as u8 + 1; 50], [page as u8 + 2; 50]]);
        }
    }
    drop(file);
    array.close().unwrap();
}

/// A change of the length waits for reads that are inside the file, and closing the array for all of them.
#[test]
fn files_do_not_wait_for_the_thread_that_reads_them() {
    for fate in FATES {
        let (_root, array, file) = site();
        let mut first = begin(&file, 0, fate);
        beside("set_len", &[&first], fate, || file.set_len(32 * PAGE as u64)).unwrap();
        let mut second = begin(&file, 10, fate);
        drop(file);
        beside("close", &[&first, &second], fate, || array.close()).unwrap();
        for away in [&mut first, &mut second] {
            if let Some(mut reading) = away.come_back() {
                assert!(poll(&mut reading), "it has ended with its file");
            }
        }
    }
}

/// An array ends with its last handle without a call to `close`, also with a read in flight that no task waits for.
#[test]
fn an_array_ends_with_its_last_handle() {
    for fate in [Fate::Drops, Fate::Sleeps, Fate::Computes] {
        let (root, array, file) = site();
        let away = begin(&file, 0, fate);
        drop((array, file));
        let begun = Instant::now();
        let reopened = loop {
            match Array::open(root.path().join("ssd0")) {
                Ok(array) => break array,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{fate:?}: {error}"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        drop((away, reopened));
    }
}

/// A call goes on without its future. Calls that waited for a thread of a pool were refused when the array closed:
/// extending writes, changes of lengths, creations, puts.
#[test]
fn what_was_begun_ends_before_the_array() {
    for _ in 0..crate::rounds(10) {
        let (root, array, file) = site();
        let other = array.create_file("other", &FileOptions::new()).unwrap();
        let end = 64 * PAGE as u64;
        drop(file.write_at_async(vec![7; 2 << 20], end));
        drop(other.set_len_async(12_345));
        drop(array.create_file_async("created", &FileOptions::new()));
        drop(array.put_async("put", vec![9; 300_000], &PutOptions::new()));
        drop(array.set_attribute_async("pages", "key", Some("value")));
        array.close().unwrap();

        let array = Array::open(root.path().join("ssd0")).unwrap();
        let file = array.open_file("pages").unwrap();
        let mut bytes = vec![0; 2 << 20];
        file.read_exact_at(&mut bytes, end).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 7) && file.len() == end + bytes.len() as u64);
        assert_eq!(array.stat("other").unwrap().len_bytes, 12_345);
        assert_eq!(array.stat("created").unwrap().len_bytes, 0);
        assert_eq!(array.stat("put").unwrap().len_bytes, 300_000);
        assert_eq!(array.stat("pages").unwrap().attributes["key"], "value");
        drop(file);
        array.close().unwrap();
    }
}

/// Futures of reads may move between threads, and hits are ready at their first poll.
#[test]
fn a_hit_is_ready_at_once() {
    let (_root, _array, file) = site();
    file.read_at(&mut [0; PAGE], 0).unwrap();
    for _ in 0..10 {
        assert_eq!(
            Pin::new(&mut file.read_async(10, 20)).poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap),
            Poll::Ready(vec![0; 20])
        );
    }
}

/// `block_on` advances its own operations, those of other threads, and other futures.
#[test]
fn block_on_runs_any_future() {
    let (_root, _array, file) = site();
    let other = file.clone();
    let (unpolled, written) = thread::spawn(move || {
        (other.read_async(5 * PAGE as u64, 10), other.write_at_async(vec![77; 10], 6 * PAGE as u64 + 5))
    })
    .join()
    .unwrap();
    assert_eq!(iomill::block_on(unpolled).unwrap().unwrap(), [5; 10]);
    assert_eq!(iomill::block_on(written).unwrap().unwrap(), [77; 10]);
    let (tell, told) = tokio::sync::oneshot::channel();
    let teller = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        tell.send(3).unwrap();
    });
    let both = async {
        let number = told.await.unwrap();
        let reads: Vec<_> = (10..50u64).map(|page| (page, file.read_async(page * PAGE as u64, 5000))).collect();
        for (page, read) in reads {
            assert_eq!(read.await.unwrap()[..PAGE], [page as u8; PAGE]);
        }
        // One call within the other.
        number + iomill::block_on(async { file.read_async(55 * PAGE as u64, 1).await.unwrap()[0] }).unwrap()
    };
    assert_eq!(iomill::block_on(both).unwrap(), 58);
    teller.join().unwrap();
}
