//! The time that an executor's thread spends in the library: in each call that makes a future, each poll and each drop,
//! while other threads resize the cache, close files, change lengths, and keep the queues full.
//!
//! Goals: none of them waits for a drive. The times are printed, and not checked. For figures, with all optimisations:
//! `cargo test --release -p iomill --test all polls:: -- --nocapture`. `IOMILL_POLLS_DIR` names a directory on the disk
//! that is to be measured.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::{Advice, Array, ArrayOptions, CacheOptions, File, FileOptions};

const PAGE: u64 = 4096;
const PAGES: u64 = 4096;
const IN_FLIGHT: usize = 512;
/// Tasks that end, in all.
const ENDS: u64 = 20_000;

type Op = Pin<Box<dyn Future<Output = ()> + Send>>;

/// CPU time of the calling thread, its sleeps, and its page faults.
fn spent() -> (Duration, i64, i64) {
    // SAFETY: both calls only write to their arguments.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time), 0);
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        (Duration::new(time.tv_sec as u64, time.tv_nsec as u32), usage.ru_nvcsw, usage.ru_minflt)
    }
}

/// The times of one kind of call.
#[derive(Default)]
struct Times {
    cpu: Vec<Duration>,
    wall: Vec<Duration>,
    /// The number of calls that slept.
    slept: usize,
    /// CPU times of calls during which the kernel gave the process memory, which it clears: up to a huge page of the
    /// cache, at its first use. They are not in `cpu`.
    touched: Vec<Duration>,
}

impl Times {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let ((cpu, sleeps, faults), begun) = (spent(), Instant::now());
        let result = call();
        let (wall, (cpu_after, sleeps_after, faults_after)) = (begun.elapsed(), spent());
        if faults_after > faults {
            self.touched.push(cpu_after - cpu);
        } else {
            self.cpu.push(cpu_after - cpu);
            self.wall.push(wall);
        }
        self.slept += usize::from(sleeps_after > sleeps);
        result
    }

    fn say(&mut self, what: &str) {
        self.cpu.sort_unstable();
        self.wall.sort_unstable();
        let at =
            |times: &[Duration], part: f64| times[((times.len() - 1) as f64 * part) as usize].as_nanos() as f64 / 1e3;
        println!(
            "{what:>6}: {} calls, CPU p50 {:.1} us, p99.9 {:.1} us, most {:.1} us; wall p50 {:.1} us, p99.9 {:.1} us, most {:.1} us; {} slept; \
             besides, {} calls that touched new memory, CPU at most {:?}",
            self.cpu.len(),
            at(&self.cpu, 0.5),
            at(&self.cpu, 0.999),
            at(&self.cpu, 1.0),
            at(&self.wall, 0.5),
            at(&self.wall, 0.999),
            at(&self.wall, 1.0),
            self.slept,
            self.touched.len(),
            self.touched.iter().max().copied().unwrap_or_default(),
        );
    }
}

/// The woken tasks.
#[derive(Default)]
struct Ready {
    tasks: Mutex<Vec<usize>>,
    thread: Mutex<Option<thread::Thread>>,
}

struct TaskWaker(Arc<Ready>, usize);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.tasks.lock().unwrap().push(self.1);
        if let Some(thread) = &*self.0.thread.lock().unwrap() {
            thread.unpark();
        }
    }
}

fn array(root: &tempfile::TempDir) -> (Array, File) {
    let drives: Vec<PathBuf> = (0..4).map(|n| root.path().join(n.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let options = ArrayOptions::new().cache_bytes(2 << 20).cache(CacheOptions::new().max_bytes(8 << 20)).depth(64);
    let array = options.create(&drives).unwrap();
    let file = array.create_file("pages", &FileOptions::new()).unwrap();
    let pages: Vec<u8> = (0..PAGES).flat_map(|n| [n as u8; PAGE as usize]).collect();
    file.write_at(&pages, 0).unwrap();
    file.sync().unwrap();
    file.advise(.., Advice::Random).unwrap();
    (array, file)
}

/// A read, a write, or a write past the end of its own file.
fn op(rng: &mut Rng, file: &File, log: &File) -> Op {
    let page = rng.u64(..PAGES);
    match rng.u32(..20) {
        0 => {
            let read = file.read_many_async(vec![0; 8 * PAGE as usize], &[page * PAGE; 8], PAGE as usize);
            Box::pin(async move { drop(read.await.unwrap()) })
        }
        1 => {
            let write = file.write_at_async(vec![page as u8; PAGE as usize], page * PAGE);
            Box::pin(async move { drop(write.await.unwrap()) })
        }
        2 => {
            let write = log.write_at_async(vec![1; 100], log.len());
            Box::pin(async move { drop(write.await.unwrap()) })
        }
        _ => {
            let read = file.read_async(page * PAGE + 5, 1000);
            Box::pin(async move { assert_eq!(read.await.unwrap(), [page as u8; 1000]) })
        }
    }
}

/// The work of the other threads until `stop`.
fn disturb(array: &Array, stop: &Arc<AtomicBool>) -> Vec<thread::JoinHandle<()>> {
    let again = |what: fn(&Array, u64)| {
        let (array, stop) = (array.clone(), Arc::clone(stop));
        thread::spawn(move || {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                what(&array, round);
                thread::sleep(Duration::from_millis(3));
            }
        })
    };
    vec![
        again(|array, round| array.resize_cache((1 + round % 7) << 20).unwrap()),
        again(|array, round| {
            let file = array.open_file("pages").unwrap();
            drop(file.read_async(round % PAGES * PAGE, 100));
            file.sync().unwrap();
            file.close().unwrap();
        }),
        again(|array, round| {
            let log = array.open_file("log").unwrap();
            log.set_len(round % 5 * PAGE).unwrap();
            log.close().unwrap();
        }),
    ]
}

#[test]
fn no_poll_and_no_drop_waits() {
    alone!();
    let root = match std::env::var_os("IOMILL_POLLS_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
    };
    let (array, file) = array(&root);
    let log = array.create_file("log", &FileOptions::new()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let others = disturb(&array, &stop);
    let (ready, mut rng) = (Arc::new(Ready::default()), Rng::with_seed(5));
    *ready.thread.lock().unwrap() = Some(thread::current());
    let wakers: Vec<Waker> = (0..IN_FLIGHT).map(|n| Arc::new(TaskWaker(Arc::clone(&ready), n)).into()).collect();
    let (mut begins, mut polls, mut drops) = (Times::default(), Times::default(), Times::default());
    let mut tasks: Vec<Option<Op>> = (0..IN_FLIGHT).map(|_| None).collect();
    ready.tasks.lock().unwrap().extend(0..IN_FLIGHT);
    let mut ends = 0;
    while ends < crate::rounds(ENDS) {
        let woken = std::mem::take(&mut *ready.tasks.lock().unwrap());
        if woken.is_empty() {
            thread::park_timeout(Duration::from_secs(30));
        }
        for n in woken {
            let mut task = match tasks[n].take() {
                Some(task) => task,
                None => begins.time(|| op(&mut rng, &file, &log)),
            };
            let polled = polls.time(|| task.as_mut().poll(&mut Context::from_waker(&wakers[n])));
            match polled {
                Poll::Pending if rng.u32(..10) > 0 => tasks[n] = Some(task),
                // Some are dropped.
                Poll::Pending => {
                    drops.time(|| drop(task));
                    wakers[n].wake_by_ref();
                }
                Poll::Ready(()) => {
                    ends += 1;
                    wakers[n].wake_by_ref();
                }
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
    drop((tasks, file, log));
    array.close().unwrap();
    for (times, what) in [(&mut begins, "begin"), (&mut polls, "poll"), (&mut drops, "drop")] {
        times.say(what);
        assert!(times.cpu.len() > 100, "{what}: {}", times.cpu.len());
        // Calls may wait for a lock that another thread holds for a moment. If they waited for drives, nearly every
        // call would sleep.
        assert!(times.slept * 2 < times.cpu.len(), "{} of {} {what}s slept", times.slept, times.cpu.len());
    }
}
