//! Calls that must not wait for themselves or for each other. They are made in callbacks, in wakers, beside a user's
//! task and a slow close, and after panics.
//!
//! Goals: each call ends, or is an error with the reason. Non-goals: the results of the calls.

pub mod held;
mod panics;
mod subscribers;

use std::future::Future;
use std::io::{Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use iomill::{
    Advice, Array, ArrayOptions, Error, File, FileOptions, PlainOptions, PutOptions, Remote, Request, Result, Runtime,
    Topology, Tuning, When,
};
use tempfile::TempDir;

use self::held::{Held, Hooks};
use crate::PATIENCE;
use crate::executor::block_on;

const PAGE: u64 = 4096;

struct Rig {
    _dir: TempDir,
    drives: Vec<PathBuf>,
    hooks: Arc<Hooks>,
    array: Array,
}

/// An array of `drives` drives with a cache of `cache_pages` pages.
fn rig(drives: usize, drive_threads: bool, cache_pages: u64) -> Rig {
    rig_of(drives, Tuning::new().drive_threads(drive_threads), cache_pages)
}

fn rig_of(drives: usize, tuning: Tuning, cache_pages: u64) -> Rig {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..drives).map(|drive| dir.path().join(drive.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let platform = Arc::new(Held::default());
    let hooks = Arc::clone(&platform.hooks);
    let options = ArrayOptions::new().tuning(tuning).depth(8).cache_bytes(cache_pages * PAGE).platform(platform);
    let array = options.create(&drives).unwrap();
    Rig { _dir: dir, drives, hooks, array }
}

impl Rig {
    /// A file of `pages` pages, each full of its number, with no page in the cache.
    fn file(&self, name: &str, pages: u64) -> File {
        let file = self.array.create_file(name, &FileOptions::new().block_bytes(4096)).unwrap();
        let bytes: Vec<u8> = (0..pages).flat_map(|page| [page as u8; PAGE as usize]).collect();
        file.write_at(&bytes, 0).unwrap();
        file.sync().unwrap();
        file.advise(.., Advice::DontNeed).unwrap();
        file.advise(.., Advice::Random).unwrap();
        file
    }
}

/// Runs `body` on another thread. Fails if it does not end.
fn ends<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, ended) = channel();
    let test = thread::spawn(move || {
        let result = body();
        // The test has failed already if nothing receives this.
        let _ = done.send(());
        result
    });
    if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(PATIENCE) {
        panic!("{what} does not end");
    }
    test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Calls a function once, when it is woken.
struct OnWake(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for OnWake {
    fn wake(self: Arc<Self>) {
        let call = self.0.lock().unwrap().take();
        if let Some(call) = call {
            call();
        }
    }
}

/// Lets the waker of a future call `call`, and drops the outcome. The future cannot end before the poll with that
/// waker.
fn in_waker<F: Future + Send + 'static>(rig: &Rig, begin: impl FnOnce() -> F, call: impl FnOnce() + Send + 'static) {
    rig.hooks.reads.shut();
    rig.hooks.writes.shut();
    let mut future = Box::pin(begin());
    let waker = Waker::from(Arc::new(OnWake(Mutex::new(Some(Box::new(call))))));
    let first = future.as_mut().poll(&mut Context::from_waker(&waker));
    rig.hooks.reads.open();
    rig.hooks.writes.open();
    assert!(first.is_pending(), "it ended before there was a waker");
}

type Call = fn(&Array, &File) -> Result<()>;

/// All calls that wait for drives or for other threads.
const BLOCKING: [(&str, Call); 43] = [
    ("read_at", |_, file| file.read_at(&mut [0; 10], 0).map(drop)),
    ("write_at", |_, file| file.write_at(&[1; 10], 0)),
    ("read_vectored_at", |_, file| file.read_vectored_at(&mut [], 0).map(drop)),
    ("write_vectored_at", |_, file| file.write_vectored_at(&[], 0)),
    ("read_many", |_, file| file.read_many(&mut [0; 10], &[0], 10)),
    ("read_ranges", |_, file| file.read_ranges(&mut [0; 10], &[(0, 10)])),
    ("read_rows", |_, file| file.read_rows(&mut [0; 10], &[0u32], 10, 0)),
    ("write_many", |_, file| file.write_many(&[0; 10], &[0], 10)),
    ("write_ranges", |_, file| file.write_ranges(&[0; 10], &[(0, 10)])),
    ("read_exact_at", |_, file| io(file.read_exact_at(&mut [0; 10], 0))),
    ("write_all_at", |_, file| io(file.write_all_at(&[0; 10], 0))),
    ("read", |_, file| io((&*file).read(&mut [0; 10]))),
    ("write", |_, file| io((&*file).write(&[0; 10]))),
    ("read", |_, file| io(file.cursor().read(&mut [0; 10]))),
    ("write", |_, file| io(file.cursor().write(&[0; 10]))),
    ("set_len", |_, file| file.set_len(1)),
    ("preallocate", |_, file| file.preallocate(1 << 20)),
    ("sync", |_, file| file.sync()),
    ("close", |_, file| file.clone().close()),
    ("pin", |_, file| file.pin(0).map(drop)),
    ("read_with", |_, file| file.read_with(0, 10, |_| ())),
    ("read", |array, _| array.read("x").map(drop)),
    ("create_file", |array, _| array.create_file("new", &FileOptions::new()).map(drop)),
    ("open_file", |array, _| array.open_file("x").map(drop)),
    ("open_or_create_file", |array, _| array.open_or_create_file("new", &FileOptions::new()).map(drop)),
    ("delete", |array, _| array.delete("y")),
    ("rename", |array, _| array.rename("y", "z")),
    ("rename_when", |array, _| array.rename_when("y", "z", When::Absent)),
    ("set_attribute", |array, _| array.set_attribute("y", "key", Some("value"))),
    ("resize_cache", |array, _| array.resize_cache(2 << 20)),
    ("close", |array, _| array.clone().close()),
    ("create", |_, _| Array::create(["/nowhere"]).map(drop)),
    ("open", |_, _| Array::open("/nowhere").map(drop)),
    ("open_at", |_, _| ArrayOptions::new().open_at(["/nowhere"]).map(drop)),
    ("open_or_create", |_, _| Array::open_or_create(["/nowhere"]).map(drop)),
    ("check_watched", |_, _| ArrayOptions::new().check_watched(["/nowhere"], false, &mut |_, _| ()).map(drop)),
    ("check", |_, _| Array::check(["/nowhere"]).map(drop)),
    ("repair", |_, _| Array::repair(["/nowhere"]).map(drop)),
    ("peek", |_, _| ArrayOptions::new().peek(["/nowhere"]).map(drop)),
    ("open_plain", |_, _| iomill::open_plain("/nowhere").map(drop)),
    ("open", |_, _| PlainOptions::new().open("/nowhere").map(drop)),
    ("open_list", |_, _| PlainOptions::new().open_list(["/nowhere"]).map(drop)),
    ("resize_cache", |_, _| Runtime::shared()?.resize_cache(2 << 20)),
];

/// A result with the error inside the `std::io` error.
fn io<T>(result: std::io::Result<T>) -> Result<()> {
    result.map(drop).map_err(|error| error.downcast().expect("an error of the library"))
}

/// Makes each call of `BLOCKING`. Returns the calls that were not refused as they should be.
fn not_refused(array: &Array, file: &File) -> Vec<String> {
    let refused = |(name, call): &(&str, Call)| match call(array, file) {
        Err(Error::BlockingCall { call, .. }) if call == *name => None,
        other => Some(format!("{name}: {other:?}")),
    };
    let mut wrong: Vec<String> = BLOCKING.iter().filter_map(refused).collect();
    let cursor = file.cursor().sync();
    if !matches!(cursor, Err(Error::BlockingCall { call: "sync", .. })) {
        wrong.push(format!("FileCursor::sync: {cursor:?}"));
    }
    let checked = ArrayOptions::new().check(["/nowhere"], false);
    if !matches!(checked, Err(Error::BlockingCall { call: "check", .. })) {
        wrong.push(format!("check: {checked:?}"));
    }
    wrong
}

/// Makes all calls that are allowed everywhere: calls that only read state, and calls that begin an operation and
/// return.
fn allowed(array: &Array, file: &File) {
    assert!(!array.list("").names().unwrap().is_empty());
    array.stat("y").unwrap();
    array.info().unwrap();
    let _ = (array.notices(), array.counters(), array.metrics(), array.buffer(4096).unwrap());
    let _ = (file.name(), file.len(), file.is_empty(), file.background());
    std::io::Write::flush(&mut file.cursor()).unwrap();
    file.advise(0..10 * PAGE, Advice::WillNeed).unwrap();
    drop(file.read_async(0, 100));
    drop(file.write_at_async(vec![0; 10], 0));
    drop(file.sync_async());
    file.submit(vec![Request::Read { offset: 0, len: 10 }], |_| ()).unwrap();
    file.try_submit(vec![Request::Read { offset: 0, len: 10 }], |_| ()).unwrap();
    file.submit_with(0, 10, |_| ()).unwrap();
    file.clone().discard();
}

/// Rule 7 of the cache and rule 1 of callbacks, in all places that call a user's code.
#[test]
fn calls_that_block_are_refused_in_callbacks_and_wakers() {
    for drive_threads in [false, true] {
        let rig = rig(2, drive_threads, 64);
        let file = rig.file("x", 128);
        rig.file("y", 1).close().unwrap();
        let (tell, told) = channel();
        let look = |place: &'static str| {
            let (array, file, tell) = (rig.array.clone(), file.clone(), Sender::clone(&tell));
            move || {
                let wrong = not_refused(&array, &file);
                allowed(&array, &file);
                drop((array, file));
                tell.send((place, wrong)).unwrap();
            }
        };
        let hear = || {
            let (place, wrong) = told.recv_timeout(PATIENCE).expect("a call in a callback or a waker does not end");
            assert!(wrong.is_empty(), "drive threads {drive_threads}, {place}: {wrong:?}");
        };
        let again = look("a callback");
        file.submit(vec![Request::Read { offset: 0, len: 10 }], move |_| again()).unwrap();
        hear();
        let again = look("a task in place");
        file.submit_with(0, 10, move |_| again()).unwrap();
        hear();
        in_waker(&rig, || file.read_async(50 * PAGE, 10), look("the waker of a read, which a drive thread wakes"));
        hear();
        in_waker(&rig, || file.read_async(0, 128 * PAGE as usize), look("the waker of a read of several waves"));
        hear();
        file.write_at(&[1; 10], 100 * PAGE).unwrap();
        in_waker(&rig, || file.sync_async(), look("the waker of a sync"));
        hear();
        file.close().unwrap();
        ends("closing", move || rig.array.close().unwrap());
    }
}

/// A poll may call the waker of its own task, while the operation is inside the file (rule 3 of callbacks).
#[test]
fn a_waker_that_a_poll_calls_does_not_block() {
    let rig = rig(1, false, 0);
    let file = rig.file("x", 64);
    let polling = Arc::new(AtomicBool::new(false));
    let (tell, told) = channel();
    let mut in_polls = 0;
    for page in 0..64 {
        let mut read = Box::pin(file.read_async(page * PAGE, 10));
        let here = thread::current().id();
        let (file, polls, tell) = (file.clone(), Arc::clone(&polling), tell.clone());
        let call = move || {
            let in_poll = thread::current().id() == here && polls.load(Ordering::SeqCst);
            tell.send((in_poll, file.set_len(64 * PAGE))).unwrap();
        };
        let waker = Waker::from(Arc::new(OnWake(Mutex::new(Some(Box::new(call))))));
        polling.store(true, Ordering::SeqCst);
        let polled = read.as_mut().poll(&mut Context::from_waker(&waker));
        polling.store(false, Ordering::SeqCst);
        if polled.is_pending() {
            let (in_poll, refused) = told.recv_timeout(PATIENCE).expect("the waker does not end");
            assert!(matches!(refused, Err(Error::BlockingCall { call: "set_len", .. })), "{refused:?}");
            in_polls += u32::from(in_poll);
        }
    }
    assert!(in_polls > 0, "no poll has called its waker");
}

/// A task that its waker polls at once, as an executor without threads may do.
struct Polled {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Woken while it is polled.
    again: AtomicBool,
    done: Mutex<Sender<()>>,
}

impl Polled {
    fn spawn(future: impl Future<Output = ()> + Send + 'static, done: &Sender<()>) {
        let future = Mutex::new(Some(Box::pin(future) as _));
        Arc::new(Polled { future, again: AtomicBool::new(false), done: Mutex::new(done.clone()) }).wake();
    }
}

impl Wake for Polled {
    fn wake(self: Arc<Self>) {
        self.again.store(true, Ordering::SeqCst);
        while self.again.load(Ordering::SeqCst) {
            let Ok(mut future) = self.future.try_lock() else { return };
            self.again.store(false, Ordering::SeqCst);
            let Some(polled) = future.as_mut() else { return };
            if polled.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self)))).is_ready() {
                *future = None;
                self.done.lock().unwrap().send(()).unwrap();
                return;
            }
        }
    }
}

#[test]
fn an_executor_that_polls_inside_wake_works() {
    for (drive_threads, cache_pages) in [(false, 0), (false, 64), (true, 0)] {
        let rig = rig(1, drive_threads, cache_pages);
        let file = rig.file("x", 200);
        let (done, ended) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        // Closes the gate again and again while reads and writes are in flight on the one drive.
        let closer = thread::spawn({
            let (file, stop) = (file.clone(), Arc::clone(&stop));
            move || {
                for len in (0..).map(|round| (200 + round % 7) * PAGE) {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    file.set_len(len).unwrap();
                    // A task that waits at the gate polls it now and then.
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        for task in 0..8_u64 {
            let file = file.clone();
            let work = async move {
                for step in 0..50_u64 {
                    let page = (task * 31 + step * 7) % 200;
                    let bytes = file.read_async(page * PAGE, PAGE as usize).await.unwrap();
                    assert_eq!(bytes, [page as u8; PAGE as usize], "page {page}");
                    file.write_at_async(bytes, page * PAGE).await.unwrap();
                    if step % 25 == 0 {
                        file.sync_async().await.unwrap();
                    }
                }
            };
            Polled::spawn(work, &done);
        }
        for _ in 0..8 {
            ended.recv_timeout(PATIENCE).expect("a task that is polled inside wake does not end");
        }
        stop.store(true, Ordering::SeqCst);
        closer.join().unwrap();
        drop(file);
        ends("closing", move || rig.array.close().unwrap());
    }
}

/// Rule 3 of the inbox: its server's own thread may send more than the inbox holds.
#[test]
fn a_waker_may_ask_for_more_than_a_queue_holds() {
    let rig = rig(1, false, 0);
    let file = rig.file("x", 1);
    file.set_len(9000 * PAGE).unwrap();
    let (tell, told) = channel();
    let again = file.clone();
    in_waker(
        &rig,
        || file.read_async(0, 10),
        move || {
            let reads: Vec<_> = (0..3).map(|_| again.read_async(0, 9000 * PAGE as usize)).collect();
            tell.send(reads).unwrap();
        },
    );
    let reads = told.recv_timeout(PATIENCE).expect("a waker waits for room that only its own thread makes");
    let (done, ended) = channel();
    let all = async move {
        for read in reads {
            assert_eq!(read.await.unwrap().len(), 9000 * PAGE as usize);
        }
    };
    Polled::spawn(all, &done);
    ended.recv_timeout(PATIENCE).unwrap();
}

/// The last reference to a file, and to the array, is dropped where no call may wait.
#[test]
fn the_last_hold_may_go_in_a_callback_and_in_a_waker() {
    for place in ["a callback", "a task in place", "a waker"] {
        let rig = rig(2, false, 64);
        let file = rig.file("x", 64);
        file.write_at(b"kept", 0).unwrap();
        let (tell, told) = channel();
        let held = (file.clone(), rig.array.clone());
        let let_go = move || {
            drop(held);
            tell.send(()).unwrap();
        };
        match place {
            "a callback" => file.submit(vec![Request::Read { offset: 50 * PAGE, len: 10 }], move |_| let_go()).unwrap(),
            "a task in place" => file.submit_with(50 * PAGE, 10, move |_| let_go()).unwrap(),
            _ => in_waker(&rig, || file.read_async(50 * PAGE, 10), let_go),
        }
        let Rig { _dir, drives, hooks: _, array } = rig;
        drop((file, array));
        told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("letting go in {place} does not end"));
        // The array is closed by another thread, soon.
        let start = Instant::now();
        let array = loop {
            match Array::open(&drives[0]) {
                Ok(array) => break array,
                Err(Error::Locked { .. }) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{place}: {error}"),
            }
        };
        let mut kept = [0; 4];
        array.open_file("x").unwrap().read_at(&mut kept, 0).unwrap();
        assert_eq!(&kept, b"kept", "{place}");
    }
}

/// `delete` does not wait for a user's task on its file. The last holder removes the file's parts and pages.
#[test]
fn a_delete_does_not_wait_for_a_users_task() {
    let rig = rig(1, false, 64);
    let file = rig.file("x", 40);
    let parts = rig.drives[0].join("iomill/parts");
    let count = move || std::fs::read_dir(&parts).unwrap().count();
    assert_eq!(count(), 1);
    let (started, start) = channel();
    let (go, may_go) = channel::<()>();
    let task = move |_: Result<&iomill::PinnedRange<'_>>| {
        started.send(()).unwrap();
        // Until the test is over, or has failed.
        let _ = may_go.recv();
    };
    file.submit_with(0, 10, task).unwrap();
    start.recv_timeout(PATIENCE).unwrap();
    drop(file);
    let array = rig.array.clone();
    ends("deleting and renaming beside a task", move || {
        array.delete("x").unwrap();
        array.create_file("y", &FileOptions::new()).unwrap();
        array.rename("y", "x").unwrap();
        array.delete("x").unwrap();
    });
    assert_eq!(count(), 1, "the task holds the file");
    drop(go);
    let begun = Instant::now();
    while count() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the space of a deleted file is not given back");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An operation has the last reference to a file. The file is closed after the operation, by a flush that may take
/// long.
#[test]
fn a_slow_close_holds_up_no_operation() {
    for in_place in [false, true] {
        let rig = rig(1, false, 64);
        let (slow, other) = (rig.file("slow", 64), rig.file("other", 64));
        slow.write_at(b"dirty", 0).unwrap();
        rig.hooks.reads.shut();
        match in_place {
            true => slow.submit_with(10 * PAGE, 10, |_| ()).unwrap(),
            // More than a wave: the threads for rests do the remainder.
            false => drop(slow.read_async(10 * PAGE, 40 * PAGE as usize)),
        }
        drop(slow);
        rig.hooks.writes.shut();
        rig.hooks.reads.open();
        // The flush of the close has begun, and makes no progress.
        rig.hooks.writes.wait_for(1);
        let (tell, told) = channel();
        for _ in 0..4 {
            let tell = tell.clone();
            let tasks = vec![Request::Read { offset: 0, len: 40 * PAGE as usize }];
            other.submit(tasks, move |result| tell.send(result.unwrap().len()).unwrap()).unwrap();
        }
        for _ in 0..4 {
            told.recv_timeout(PATIENCE).expect("an operation waits for the close of another file");
        }
        rig.hooks.writes.open();
        drop(other);
        ends("closing", move || rig.array.close().unwrap());
    }
}

/// A user's task that panics over pages in place.
#[test]
fn a_task_that_panics_lets_go_of_its_pages() {
    let rig = rig(1, false, 64);
    let file = rig.file("x", 64);
    for _ in 0..100 {
        let task = catch_unwind(AssertUnwindSafe(|| file.read_with(0, 16 * PAGE as usize, |_| panic!("a task's own"))));
        assert!(task.is_err());
        file.submit_with(0, 16 * PAGE as usize, |_| panic!("a task's own")).unwrap();
    }
    ends("what comes after a task that panicked", move || {
        let mut all = vec![0; 64 * PAGE as usize];
        file.read_at(&mut all, 0).unwrap();
        file.write_at(&all, 0).unwrap();
        file.read_with(0, 16 * PAGE as usize, |pages| assert_eq!(pages.len(), 16 * PAGE as usize)).unwrap();
        file.set_len(PAGE).unwrap();
        file.close().unwrap();
        rig.array.close().unwrap();
    });
}

/// When a drive thread panics, its requests end, and later ones fail. Nothing waits for the thread, and the other
/// drives go on.
#[test]
fn a_drive_thread_that_panics_is_waited_for_by_no_call() {
    [false, true].into_iter().for_each(a_drive_thread_panics);
}

/// With `twice` the engine panics once more while the drop of the thread's server waits for its requests.
///
/// `twice` was seen to abort the process when that drop called the engine without `end_in_drop`.
fn a_drive_thread_panics(twice: bool) {
    let rig = rig_of(2, Tuning::new().drive_threads(true).merge(false), 0);
    let file = rig.file("x", 64);
    *rig.hooks.panics_in.lock().unwrap() = Some("iomill-drive-0");
    rig.hooks.panics_twice.store(twice, Ordering::SeqCst);
    rig.hooks.panics.store(1, Ordering::SeqCst);
    let again = file.clone();
    ends("what goes to a thread that panics", move || {
        // Requests that were in flight succeed. Later ones fail.
        let mut all = vec![0; 64 * PAGE as usize];
        assert_eq!(again.read_at(&mut all, 0).unwrap_err().errno(), Some(libc::ECANCELED));
    });
    let read = |page: u64| {
        let (file, mut bytes) = (file.clone(), [0; 10]);
        let read = move || file.read_at(&mut bytes, page * PAGE).map(|_| bytes);
        ends("a read beside a thread that has panicked", read)
    };
    let reads = [read(0), read(1)];
    let refused = reads.iter().flat_map(|read| read.as_ref().err()).map(Error::errno).collect::<Vec<_>>();
    assert_eq!(refused, [Some(libc::ECANCELED)], "of two drives one has no thread any more");
    let left = (rig.hooks.panics_twice.load(Ordering::SeqCst), rig.hooks.panics.load(Ordering::SeqCst));
    assert_eq!(left, (false, 0), "the engine has not panicked {}", if twice { "twice" } else { "once" });
    let (array, file) = (rig.array, file);
    ends("closing", move || {
        drop(file);
        array.close().unwrap();
    });
}

/// A callback waits for a future, and the operation of that future is the last holder of the array. The future must
/// resolve before the array closes, because closing it waits for callbacks.
#[test]
fn a_callback_may_wait_for_the_last_operation_of_an_array() {
    let Rig { _dir, hooks, array, .. } = rig(1, false, 0);
    let file = array.create_file("x", &FileOptions::new()).unwrap();
    file.write_at(&[1; 2 * PAGE as usize], 0).unwrap();
    hooks.reads.shut();
    let read = file.read_async(PAGE, PAGE as usize);
    let (tell, told) = channel();
    // It needs no drive, so its callback runs while the read is held.
    let wait = move |_: Result<Vec<Vec<u8>>>| tell.send(block_on(read).map(|bytes| bytes.len())).unwrap();
    file.submit(vec![Request::Write { offset: 0, bytes: Vec::new() }], wait).unwrap();
    drop(file);
    drop(array);
    hooks.reads.wait_for(1);
    hooks.reads.open();
    assert_eq!(told.recv_timeout(PATIENCE).expect("the callback waits for itself").unwrap(), PAGE as usize);
}

/// A thread moves a position and waits for a drive. A callback would wait for that thread.
#[test]
fn a_callback_does_not_wait_for_a_position() {
    let rig = rig(1, false, 64);
    let file = rig.file("x", 64);
    file.read_at(&mut [0; 10], 0).unwrap();
    (&file).seek(SeekFrom::Start(10 * PAGE)).unwrap();
    rig.hooks.reads.shut();
    let reading = thread::spawn({
        let file = file.clone();
        move || (&file).read_exact(&mut [0; 10]).map(|()| (&file).stream_position())
    });
    rig.hooks.reads.wait_for(1);
    let (tell, told) = channel();
    let calling = file.clone();
    let callback = move |_| tell.send((&calling).stream_position()).unwrap();
    file.submit(vec![Request::Read { offset: 0, len: 10 }], callback).unwrap();
    let refused = told.recv_timeout(PATIENCE).expect("the callback waits");
    rig.hooks.reads.open();
    let error = refused.unwrap_err().downcast::<Error>().unwrap();
    assert!(matches!(error, Error::BlockingCall { call: "seek", .. }), "{error}");
    assert_eq!(reading.join().unwrap().unwrap().unwrap(), 10 * PAGE + 10);
    file.close().unwrap();
    ends("closing", move || rig.array.close().unwrap());
}
