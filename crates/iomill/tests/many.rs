//! A hundred thousand futures in flight from one thread, on four drives: their memory, and the progress of each file,
//! drive and class under a growing load of the others. The test has its own process, because it counts the allocations
//! of all threads.
//!
//! For figures: `cargo test --release -p iomill --test all many:: -- --nocapture`.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use fastrand::Rng;
use iomill::engine::platform::{Choice, Platform};
use iomill::engine::real::RealPlatform;
use iomill::engine::{Completion, Engine, EngineConfig, EngineWake, IoRequest};
use iomill::sys::fs::{DriveFs, Handle};
use iomill::{Advice, Array, ArrayOptions, EngineKind, File, FileOptions};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::counting;

const PAGE: usize = 4096;
const DRIVES: usize = 4;
/// Of each file.
const PAGES: u64 = 1024;
const IN_FLIGHT: usize = 100_000;
const RECORD_BYTES: usize = 100;

/// The most bytes that the library may allocate for a future in flight, besides the future's buffer.
const BYTES_MAX: usize = 2560;

/// The most later futures of the same drive and class that may end before one does, without a cache. The kernel has up
/// to 32 reads of a drive, in any order. A thread may be interrupted for long between taking completions and reporting
/// them. A starved future is overtaken by its whole queue.
const OVERTAKERS_MAX: usize = 16_384;

/// A future starves if `STARVED * IN_FLIGHT` reads of drives end before one of the first does. One read of a page of
/// the cache may end hundreds.
const STARVED: usize = 100;

/// A switch that stops the drives, and lets them go on once: until then their engines keep new requests.
#[derive(Debug)]
struct Switch {
    stopped: AtomicBool,
    /// Readable once they go on.
    going_on: OwnedFd,
}

impl Switch {
    fn new() -> Arc<Switch> {
        Arc::new(Switch { stopped: AtomicBool::new(false), going_on: eventfd(0, EventfdFlags::CLOEXEC).unwrap() })
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    fn go_on(&self) {
        self.stopped.store(false, Ordering::Release);
        rustix::io::write(&self.going_on, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// The machine, with drives that can stop.
#[derive(Debug)]
struct Stopping {
    machine: RealPlatform,
    switch: Arc<Switch>,
}

impl Platform for Stopping {
    forward!(machine);
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        self.machine.choose(drive, probe, wish)
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        let inner = self.machine.engine(kind, config)?;
        let told = epoll::create(CreateFlags::CLOEXEC)?;
        if let Some(descriptor) = inner.descriptor() {
            // SAFETY: the engine's descriptor is open for as long as the engine.
            epoll::add(&told, unsafe { BorrowedFd::borrow_raw(descriptor) }, EventData::new_u64(0), EventFlags::IN)?;
        }
        epoll::add(&told, &self.switch.going_on, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Box::new(StoppingEngine { inner, kept: Vec::new(), told, switch: Arc::clone(&self.switch) }))
    }
}

struct StoppingEngine {
    inner: Box<dyn Engine>,
    /// The requests that came while the drives were stopped.
    kept: Vec<IoRequest>,
    /// Readable when the engine has completions, or may send the kept requests.
    told: OwnedFd,
    switch: Arc<Switch>,
}

impl Engine for StoppingEngine {
    forward_engine!(inner);
    unsafe fn push(&mut self, requests: &[IoRequest]) {
        if self.switch.stopped.load(Ordering::Acquire) {
            self.kept.extend_from_slice(requests);
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.inner.push(requests) };
        }
    }
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.kept.is_empty() {
            return self.inner.wait(min, timeout, done);
        }
        if self.switch.stopped.load(Ordering::Acquire) {
            // It returns early, and looks again when it is called again.
            let pause = Duration::from_millis(1);
            return self.inner.wait(min, Some(timeout.map_or(pause, |timeout| timeout.min(pause))), done);
        }
        // It stays readable, and would wake the poll again and again.
        epoll::delete(&self.told, &self.switch.going_on)?;
        // SAFETY: the promise of the caller of `push`, which holds until the completions.
        unsafe { self.inner.push(&std::mem::take(&mut self.kept)) };
        self.inner.wait(min, timeout, done)
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        self.inner.waker()
    }
    fn descriptor(&self) -> Option<RawFd> {
        self.inner.descriptor().map(|_| self.told.as_raw_fd())
    }
}

type Op = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks that are to be polled, and the thread that polls them.
struct Ready {
    tasks: Mutex<VecDeque<usize>>,
    thread: Thread,
}

struct TaskWaker(Arc<Ready>, usize);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.tasks.lock().unwrap().push_back(self.1);
        self.0.thread.unpark();
    }
}

/// A future in flight.
struct Task {
    op: Op,
    /// A file, or the same file in the background: the files first, then the background's.
    queue: usize,
    /// Its number in its queue, in the order of begins.
    number: usize,
    /// Whether it was pending once. A hit is not: it needs no drive.
    waited: bool,
}

/// One file on each drive, with or without a cache, and the same files as background handles.
fn files(root: &tempfile::TempDir, platform: Stopping, cache_bytes: u64) -> (Array, Vec<File>) {
    let drives: Vec<PathBuf> = (0..DRIVES).map(|n| root.path().join(n.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new().cache_bytes(cache_bytes).platform(Arc::new(platform)).create(&drives).unwrap();
    let pages: Vec<u8> = (0..PAGES).flat_map(|n| [n as u8; PAGE]).collect();
    let file = |drive: usize| {
        let layout = FileOptions::new().drives([drive as u16]);
        let file = array.create_file(&format!("on {drive}"), &layout).unwrap();
        file.write_at(&pages, 0).unwrap();
        file.sync().unwrap();
        file.advise(.., Advice::Random).unwrap();
        file
    };
    let mut files: Vec<File> = (0..DRIVES).map(file).collect();
    files.extend_from_within(..);
    files[DRIVES..].iter_mut().for_each(|file| *file = file.background());
    (array, files)
}

/// The futures in flight, and counts of the ended ones.
struct Flight {
    tasks: Vec<Option<Task>>,
    ready: Arc<Ready>,
    rng: Rng,
    /// Per queue: the number of begun futures.
    begun: Vec<usize>,
    /// Per queue: the number of ended futures.
    ended: Vec<usize>,
    /// Per queue: the number of hits among them, which needed no drive.
    hits: Vec<usize>,
    /// Per queue: whether a future has ended, until all before it have.
    ends: Vec<Vec<bool>>,
    /// Per queue: the first future that has not ended.
    oldest: Vec<usize>,
    /// The most futures that overtook one.
    overtakers_max: usize,
}

impl Flight {
    fn new(queues: usize) -> Flight {
        let ready = Arc::new(Ready { tasks: Mutex::default(), thread: thread::current() });
        let zeroes = || vec![0; queues];
        let (tasks, rng, ends) = (Vec::with_capacity(IN_FLIGHT), Rng::with_seed(7), vec![Vec::new(); queues]);
        Flight {
            tasks,
            ready,
            rng,
            begun: zeroes(),
            ended: zeroes(),
            hits: zeroes(),
            ends,
            oldest: zeroes(),
            overtakers_max: 0,
        }
    }

    /// Begins a read of a file as the task at `place`.
    fn begin(&mut self, files: &[File], queue: usize, place: usize) {
        let page = self.rng.u64(..PAGES);
        let read = files[queue].read_at_async(vec![0; RECORD_BYTES], page * PAGE as u64 + 50);
        let op: Op = Box::pin(async move { assert_eq!(read.await.unwrap().0, [page as u8; RECORD_BYTES]) });
        let number = self.begun[queue];
        self.begun[queue] += 1;
        self.ends[queue].push(false);
        self.tasks.resize_with(self.tasks.len().max(place + 1), || None);
        self.tasks[place] = Some(Task { op, queue, number, waited: false });
        self.ready.tasks.lock().unwrap().push_back(place);
    }

    /// Polls the next woken task. Returns its queue and place if it has ended.
    fn poll_next(&mut self) -> Option<(usize, usize)> {
        let next = self.ready.tasks.lock().unwrap().pop_front();
        let Some(place) = next else {
            thread::park();
            return None;
        };
        let task = self.tasks[place].as_mut()?;
        let waker = Waker::from(Arc::new(TaskWaker(Arc::clone(&self.ready), place)));
        if task.op.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            task.waited = true;
            return None;
        }
        let Some(Task { queue, number, waited, .. }) = self.tasks[place].take() else { unreachable!("it was polled") };
        self.hits[queue] += usize::from(!waited);
        self.note_end(queue, number);
        Some((queue, place))
    }

    fn note_end(&mut self, queue: usize, number: usize) {
        self.ended[queue] += 1;
        self.ends[queue][number] = true;
        while self.ends[queue].get(self.oldest[queue]) == Some(&true) {
            self.oldest[queue] += 1;
        }
        // All ended futures but those before the oldest have overtaken it.
        self.overtakers_max = self.overtakers_max.max(self.ended[queue] - self.oldest[queue]);
    }
}

/// All queues are full, and each gets at least a third of its share. Each end on the first drive begins one more read
/// there, in the foreground, until the others have ended. With a cache the shares are not compared: one read of a page
/// ends some twenty futures, and no drive has the hits.
fn run(cache_bytes: u64) {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let switch = Switch::new();
    let platform = Stopping { machine: RealPlatform::default(), switch: Arc::clone(&switch) };
    let (array, files) = files(&root, platform, cache_bytes);
    switch.stop();
    let mut flight = Flight::new(files.len());
    let before = counting::bytes();
    for n in 0..IN_FLIGHT {
        // One in eight is of the background.
        let queue = n % DRIVES + if n / DRIVES % 8 == 7 { DRIVES } else { 0 };
        flight.begin(&files, queue, n);
    }
    // Each is polled once before the drives go on. Some are hits.
    let hits = (0..IN_FLIGHT).filter_map(|_| flight.poll_next()).count();
    assert!(hits < IN_FLIGHT / 2, "{hits} are hits");
    let of_all = (counting::bytes() - before) as usize / IN_FLIGHT;
    let theirs = RECORD_BYTES + size_of::<Task>() + size_of::<Op>();
    switch.go_on();
    println!("cache of {cache_bytes} B: {of_all} B a future, {theirs} B of them are the buffer and the test's own");
    assert!(of_all < BYTES_MAX + theirs, "{of_all} B a future");
    let firsts = flight.begun.clone();
    let is_over = |flight: &Flight| (1..files.len()).all(|queue| flight.oldest[queue] >= firsts[queue]);
    let mut quarters = (1..4).map(|n| n * IN_FLIGHT / 4).peekable();
    while !is_over(&flight) {
        if let Some((0, place)) = flight.poll_next() {
            flight.begin(&files, 0, place);
        }
        let all: usize = flight.ended.iter().sum();
        // Hits need no drive, so a drive that pauses does not starve.
        let by_drives = all - flight.hits.iter().sum::<usize>();
        assert!(by_drives < STARVED * IN_FLIGHT, "one of {firsts:?} starves: {:?} ended", flight.ended);
        if quarters.next_if(|quarter| *quarter <= all).is_some() {
            println!("of {all} that ended: {:?}", flight.ended);
            let is_fair = |(ended, first): (&usize, &usize)| 3 * ended * IN_FLIGHT > first * all;
            assert!(cache_bytes > 0 || flight.ended.iter().zip(&firsts).all(is_fair), "{:?}", flight.ended);
        }
    }
    let Flight { ended, hits, overtakers_max, .. } = &flight;
    println!("ended: {ended:?}, of which {firsts:?} were first and {hits:?} hits; overtaken by {overtakers_max}");
    // The first drive has the same share of the foreground's time as the others have, or less. The background's reads
    // have ended by then.
    assert!(cache_bytes > 0 || ended[0] < 4 * firsts[0], "{ended:?}");
    // With a cache, futures that wait for the same page may find that it left the cache before they were polled. They
    // read it again.
    assert!(
        cache_bytes > 0 || flight.overtakers_max < OVERTAKERS_MAX,
        "one was overtaken by {}",
        flight.overtakers_max
    );
    drop((flight, files));
    array.close().unwrap();
}

#[test]
fn many_futures_take_bounded_memory_and_starve_none() {
    alone!();
    counting::start();
    run(0);
    // Half of a file fits, so no file has hits alone.
    run(2 << 20);
}
