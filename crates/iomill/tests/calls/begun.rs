//! Where operations of futures begin, and which threads advance them: also when the system refuses a thread an engine,
//! and when no poll comes.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use iomill::engine::platform::{Choice, Platform};
use iomill::engine::real::RealPlatform;
use iomill::engine::{Completion, Engine, EngineConfig, EngineWake, IoRequest};
use iomill::sys::fs::{DriveFs, Handle};
use iomill::{Advice, Array, ArrayOptions, CacheOptions, EngineKind, File, FileOptions};
use tempfile::TempDir;

use super::PAGE;
use crate::PATIENCE;
use crate::executor::block_on;

thread_local! {
    /// The system refuses this thread engines that others may advance, as where a process has too many descriptors.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

type Hook = Box<dyn FnOnce() + Send>;

/// A test's hooks in shared engines.
#[derive(Default)]
struct Seen {
    made: AtomicUsize,
    pushes: AtomicUsize,
    /// Called once, when a thread has pushed requests to a shared engine.
    on_push: Mutex<Option<Hook>>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").finish_non_exhaustive()
    }
}

/// The machine, with hooks in its shared engines.
#[derive(Debug, Default)]
struct Watched {
    machine: RealPlatform,
    seen: Arc<Seen>,
    /// Drives in directories with this name have the posix engine.
    by_posix: Option<&'static str>,
}

impl Platform for Watched {
    forward!(machine);
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        let by_posix = self.by_posix.is_some_and(|name| drive.location().ends_with(name));
        self.machine.choose(drive, probe, if by_posix { Some(EngineKind::Posix) } else { wish })
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        if !config.shared {
            return self.machine.engine(kind, config);
        }
        if REFUSED.get() {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        self.seen.made.fetch_add(1, Ordering::SeqCst);
        let inner = self.machine.engine(kind, config)?;
        Ok(Box::new(WatchedEngine { inner, seen: Arc::clone(&self.seen) }))
    }
}

struct WatchedEngine {
    inner: Box<dyn Engine>,
    seen: Arc<Seen>,
}

impl Engine for WatchedEngine {
    forward_engine!(inner);
    unsafe fn push(&mut self, requests: &[IoRequest]) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.push(requests) };
        self.seen.pushes.fetch_add(1, Ordering::SeqCst);
        let hook = self.seen.on_push.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
    }
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        self.inner.wait(min, timeout, done)
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        self.inner.waker()
    }
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.inner.descriptor()
    }
}

struct Rig {
    _root: TempDir,
    array: Array,
    file: File,
    seen: Arc<Seen>,
}

const PAGES: u64 = 256;

/// An array with a file of `PAGES` pages, each full of its number, none of them in the cache. `None` where there is no
/// io_uring.
fn rig(by_posix: Option<&'static str>, drives: usize, cache_bytes: u64) -> Option<Rig> {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<_> = (0..drives).map(|drive| root.path().join(format!("d{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let platform = Arc::new(Watched { by_posix, ..Watched::default() });
    let seen = Arc::clone(&platform.seen);
    let options =
        ArrayOptions::new().cache_bytes(cache_bytes).cache(CacheOptions::new().read_ahead_bytes(0)).platform(platform);
    let array = options.create(&drives).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
    let bytes: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE]).collect();
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    forget(&file);
    let is_shared = array.info().unwrap().drives[0].engine == EngineKind::Uring;
    is_shared.then_some(Rig { _root: root, array, file, seen })
}

fn forget(file: &File) {
    file.advise(.., Advice::DontNeed).unwrap();
    file.advise(.., Advice::Random).unwrap();
}

/// Runs `body` on another thread. Fails if it does not end.
fn ends<R: Send + 'static>(what: &str, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = channel();
    thread::spawn(move || tell.send(body()));
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} does not end"))
}

fn gather(file: &File, pages: &[u64]) -> impl Future<Output = Vec<u8>> + use<> {
    let offsets: Vec<u64> = pages.iter().map(|page| page * PAGE as u64).collect();
    let reading = file.read_many_async(vec![0; pages.len()], &offsets, 1);
    async move { reading.await.unwrap() }
}

/// A read that this thread begins while the system refuses it a context.
fn read_refused(file: &File, page: u64) -> iomill::Result<Vec<u8>> {
    REFUSED.set(true);
    let read = block_on(file.read_async(page * PAGE as u64, 10));
    REFUSED.set(false);
    read
}

/// The future looked for its context again after its operation had begun, and found none. Then no thread brought the
/// end.
#[test]
fn a_future_ends_if_another_thread_is_refused_a_context_while_it_begins() {
    let Some(rig) = rig(None, 2, 1 << 20) else { return };
    let (other, (tell, told)) = (rig.file.clone(), channel());
    let refused = move || drop(thread::spawn(move || tell.send(read_refused(&other, 9))));
    *rig.seen.on_push.lock().unwrap() = Some(Box::new(refused));
    let file = rig.file.clone();
    let bytes = ends("the future", move || block_on(gather(&file, &[1, 2, 3])));
    assert_eq!(bytes, [1, 2, 3]);
    let read = told.recv_timeout(PATIENCE).expect("a thread was refused meanwhile, and ends");
    assert_eq!(read.unwrap(), [9; 10], "by the context of the other thread");
    rig.array.close().unwrap();
}

/// One refusal took contexts from all threads, as long as the array was open.
#[test]
fn a_refusal_concerns_one_thread_and_passes() {
    let Some(rig) = rig(None, 1, 1 << 20) else { return };
    let made = || rig.seen.made.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let refused = scope.spawn(|| {
            let error = read_refused(&rig.file, 3).unwrap_err();
            assert_eq!((error.errno(), made()), (Some(libc::EMFILE), 0), "no thread has one");
            block_on(gather(&rig.file, &[4, 5]))
        });
        assert_eq!(refused.join().unwrap(), [4, 5]);
    });
    assert_eq!(made(), 1, "the thread has its context at the next call");
    let (begun, wait) = channel();
    let (go_on, until) = channel::<()>();
    let file = rig.file.clone();
    // Its context is the one that the thread above has left.
    let holder = thread::spawn(move || {
        assert_eq!(block_on(gather(&file, &[6])), [6]);
        begun.send(()).unwrap();
        until.recv().unwrap();
    });
    wait.recv_timeout(PATIENCE).unwrap();
    for page in [7, 8] {
        assert_eq!(read_refused(&rig.file, page).unwrap(), [page as u8; 10], "by the context of another thread");
    }
    let file = rig.file.clone();
    assert_eq!(ends("a read of another thread", move || block_on(gather(&file, &[10]))), [10]);
    assert_eq!(made(), 2, "another thread makes its own");
    go_on.send(()).unwrap();
    holder.join().unwrap();
}

/// A context has an engine for each kind of drives. Drives without io_uring had no part in contexts.
#[test]
fn a_context_serves_drives_of_all_kinds() {
    let Some(rig) = rig(Some("d1"), 2, 1 << 20) else { return };
    assert_eq!(rig.array.info().unwrap().drives[1].engine, EngineKind::Posix);
    let pushes = || rig.seen.pushes.load(Ordering::SeqCst);
    let file = rig.file.clone();
    ends("reads of all drives", move || {
        for page in 0..PAGES {
            assert_eq!(block_on(gather(&file, &[page])), [page as u8]);
        }
    });
    assert_eq!(pushes(), PAGES as usize);
    forget(&rig.file);
    let file = rig.file.clone();
    let all: Vec<u64> = (0..PAGES).collect();
    let bytes = ends("a gather of all drives", move || block_on(gather(&file, &all)));
    assert!((0..PAGES).all(|page| bytes[page as usize] == page as u8));
    rig.array.close().unwrap();
}

/// Polls a future once, with a waker that does nothing.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until `is_so`. Fails if that takes too long.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what} never comes");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The number of bytes that the drives have read.
fn bytes_read(array: &Array) -> u64 {
    array.counters().drives.iter().map(|drive| drive.read_bytes).sum()
}

/// A read waited for a second poll, which need not come. A read that was never polled waited for its first.
#[test]
fn a_read_begins_and_ends_without_polls() {
    let Some(rig) = rig(None, 1, 1 << 20) else { return };
    let begin = |page: u64| (page, bytes_read(&rig.array), rig.file.read_async(page * PAGE as u64, 10));
    let ends_alone = |(page, before, reading): (u64, u64, iomill::Answer<Vec<u8>>)| {
        until("the read", || bytes_read(&rig.array) > before);
        until("its end", || rig.array.counters().drives[0].in_flight == 0);
        let bytes = ends("a read that has ended", move || block_on(reading).unwrap());
        assert_eq!(bytes, [page as u8; 10]);
    };
    ends_alone(begin(0));
    // A drive may end a read within its first poll: then the next page is read.
    let mut polled = (1..PAGES).map(begin).filter_map(|mut read| poll_once(&mut read.2).is_pending().then_some(read));
    ends_alone(polled.next().expect("a read that is pending after its first poll"));
}

/// A blocking read within a poll of `block_on` was left to `block_on`, which waited for the poll, and so for the read.
#[test]
fn a_poll_of_block_on_may_wait_for_another_executor() {
    let Some(rig) = rig(None, 1, 1 << 20) else { return };
    let file = rig.file.clone();
    let bytes = ends("the inner executor", move || {
        iomill::block_on(async { block_on(file.read_async(30 * PAGE as u64, 10)).unwrap() }).unwrap()
    });
    assert_eq!(bytes, [30; 10]);
}

/// Polls its future inside `wake`.
struct PollsInWake {
    /// Wakes that no poll has seen.
    wakes: AtomicUsize,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for PollsInWake {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        if self.wakes.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        loop {
            let seen = self.wakes.load(Ordering::SeqCst);
            let mut future = self.future.lock().unwrap();
            if future.as_mut().is_some_and(|future| future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()) {
                *future = None;
            }
            drop(future);
            if self.wakes.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return;
            }
        }
    }
}

/// A turn of the inner `block_on` begins a read in another context of the thread, and waits for that read. It slept
/// beside it.
#[test]
fn a_nested_block_on_sees_what_its_turns_begin() {
    let (Some(one), Some(other)) = (rig(None, 1, 1 << 20), rig(None, 1, 1 << 20)) else { return };
    let (first, second) = (one.file.clone(), other.file.clone());
    ends("a nested block_on", move || {
        for page in 0..PAGES {
            let run = || {
                let (first, second) = (first.clone(), second.clone());
                let (tell, told) = tokio::sync::oneshot::channel();
                let both = async move {
                    assert_eq!(first.read_async(page * PAGE as u64, 1).await.unwrap(), [page as u8]);
                    assert_eq!(second.read_async(page * PAGE as u64 + 5, 1).await.unwrap(), [page as u8]);
                    tell.send(()).unwrap();
                };
                let task = PollsInWake { wakes: AtomicUsize::new(0), future: Mutex::new(Some(Box::pin(both))) };
                Arc::new(task).wake();
                iomill::block_on(told).unwrap().unwrap();
            };
            iomill::block_on(async { run() }).unwrap();
        }
    });
}

/// Without a cache a write of part of a page holds the lock of its block from its read to its end. A future that was
/// begun and never polled kept that lock.
#[test]
fn a_write_that_no_poll_brings_on_does_not_block_the_background() {
    for is_polled in [false, true] {
        let Some(rig) = rig(None, 2, 0) else { return };
        let (file, behind) = (rig.file.clone(), rig.file.background());
        let (begun, wait) = channel();
        let (go_on, until) = channel::<()>();
        let holder = thread::spawn(move || {
            let mut write = file.write_at_async(vec![7; 100], 100);
            if is_polled {
                let _ends_without_more = poll_once(&mut write);
            }
            begun.send(()).unwrap();
            until.recv().unwrap();
            block_on(write).unwrap();
        });
        wait.recv_timeout(PATIENCE).unwrap();
        ends("a write in the background", move || block_on(behind.write_at_async(vec![9; 100], 300)).unwrap());
        go_on.send(()).unwrap();
        holder.join().unwrap();
        let mut page = [0; PAGE];
        rig.file.read_at(&mut page, 0).unwrap();
        assert_eq!((page[99], &page[100..200], &page[300..400], page[400]), (0, &[7; 100][..], &[9; 100][..], 0));
    }
}
