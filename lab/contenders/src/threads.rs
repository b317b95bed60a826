//! Runs one slice on several threads, and measures it from outside.
//!
//! Goals: the figures do not include set-up and tear-down. No loop reads the clock for the duration. A thread that
//! fails, panics or cannot be started ends the slice with an error, and never with a hang.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use iomill::{Error, Result};

use crate::contender::{Sample, Slice, latencies};
use crate::seen::{self, Seen, Watch};

/// How often the waiting thread checks the clock and the cancel flag.
const TICK: Duration = Duration::from_millis(10);

/// The work of one thread.
#[derive(Debug)]
pub struct Count {
    /// Operations that have ended.
    pub ops: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    pub(crate) latency_ns: Histogram<u64>,
}

impl Count {
    /// Nothing yet.
    pub fn new() -> Result<Count> {
        Ok(Count { ops: 0, bytes: 0, latency_ns: latencies()? })
    }

    /// Adds the latency of one operation.
    #[inline]
    pub fn record(&mut self, latency: Duration) {
        self.latency_ns.saturating_record(latency.as_nanos() as u64);
    }
}

/// Where the threads of a slice wait for each other. All threads arrive, then the measuring thread opens the gate.
#[derive(Debug, Default)]
struct Gate {
    /// The number of threads that have arrived, and whether the gate is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Gate {
    fn arrive_and_wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1));
    }

    fn wait_for(&self, threads: usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(state, |state| state.0 < threads));
    }

    fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}

/// Lets a limited number of threads through at a time.
#[derive(Debug)]
struct Turnstile {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Turnstile {
    fn new(most: usize) -> Turnstile {
        Turnstile { free: Mutex::new(most.max(1)), changed: Condvar::new() }
    }

    /// Runs `work` when it is this thread's turn. `work` must not panic.
    fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        let result = work();
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_one();
        result
    }
}

#[derive(Debug)]
struct Course<'a> {
    /// At most as many threads as CPUs set up at the same time. More are no faster, and a cancellation waits for them.
    set_up: Turnstile,
    cancel: &'a AtomicBool,
    start: Gate,
    end: Gate,
    stop: &'a AtomicBool,
    /// Threads that have ended. Release in `one_thread`: pairs with the Acquire in `wait_for_end`.
    finished: AtomicUsize,
}

/// Whether a worker continues after this number of operations: until it is stopped, and for at least one operation. On
/// a busy machine the slice may end before the thread starts, and a slice without operations would end the measurement.
#[inline(always)]
pub(crate) fn goes_on(ops: u64, stop: &AtomicBool) -> bool {
    ops == 0 || !stop.load(Ordering::Relaxed)
}

/// Sets up one worker per thread (in that thread), starts them together, and stops them when the slice is over.
/// `work` returns when its flag is set, or earlier when it has nothing left to do.
pub fn run<W>(
    slice: &Slice<'_>,
    set_up: impl Fn(usize) -> Result<W> + Sync,
    work: impl Fn(&mut W, &AtomicBool) -> Result<Count> + Sync,
) -> Result<Sample> {
    run_told(&AtomicBool::new(false), slice, set_up, || Ok(()), work)
}

/// The same with the caller's own stop flag, for work that may outlive a borrow of a local one. Calls `ready` once,
/// when all workers are set up and before the clock starts.
pub fn run_told<W>(
    stop: &AtomicBool,
    slice: &Slice<'_>,
    set_up: impl Fn(usize) -> Result<W> + Sync,
    mut ready: impl FnMut() -> Result<()>,
    work: impl Fn(&mut W, &AtomicBool) -> Result<Count> + Sync,
) -> Result<Sample> {
    let set_up = |index| -> Result<Worker<'_>> {
        let mut worker = set_up(index)?;
        let work = &work;
        Ok(Box::new(move |stop| work(&mut worker, stop)))
    };
    run_workers(stop, slice, &set_up, &mut ready)
}

/// A thread's prepared work. It runs until the thread's flag is set.
type Worker<'a> = Box<dyn FnMut(&AtomicBool) -> Result<Count> + 'a>;

/// `run_told` for all kinds of workers: compiled once, because it is long and the contenders are many.
fn run_workers<'a>(
    stop: &AtomicBool,
    slice: &Slice<'_>,
    set_up: &(dyn Fn(usize) -> Result<Worker<'a>> + Sync),
    ready: &mut dyn FnMut() -> Result<()>,
) -> Result<Sample> {
    let threads = slice.threads.max(1);
    let course = Course {
        set_up: Turnstile::new(thread::available_parallelism().map_or(1, usize::from)),
        cancel: slice.cancel,
        start: Gate::default(),
        end: Gate::default(),
        stop,
        finished: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        let course = &course;
        let mut spawned = Vec::with_capacity(threads);
        for index in 0..threads {
            let body = move || one_thread(course, || set_up(index));
            match thread::Builder::new().name(format!("bench-{index}")).spawn_scoped(scope, body) {
                Ok(thread) => spawned.push(thread),
                Err(error) => {
                    course.let_go();
                    let why = format!("{error}; ask for fewer threads");
                    return Err(Error::Tool { what: format!("thread {} of {threads}", index + 1), why });
                }
            }
        }
        course.start.wait_for(threads);
        ready().inspect_err(|_| course.let_go())?;
        let fetched_before = process_fetched_bytes();
        let (start, cpu_before) = (Instant::now(), process_cpu_us());
        course.start.open();
        wait_for_end(slice, start, course, threads);
        course.end.wait_for(threads);
        let cpu_us = cpu_before.and_then(|before| Ok(process_cpu_us()? - before));
        let fetched_bytes = fetched_before.and_then(|before| process_fetched_bytes()?.checked_sub(before));
        course.end.open();
        let mut sample = Sample { cpu_us: cpu_us?, fetched_bytes, ..Sample::empty()? };
        for thread in spawned {
            let (count, end, seen) = thread.join().map_err(|_| panicked())??;
            sample.seen = Some(sample.seen.map_or(seen, |before| before.and(seen)));
            sample.ops += count.ops;
            sample.bytes += count.bytes;
            sample.wall = sample.wall.max(end.duration_since(start));
            sample.latency_ns += count.latency_ns;
        }
        Ok(sample)
    })
}

impl Course<'_> {
    /// The slice was cancelled, or a thread failed. Threads that have not started need not start.
    fn is_over(&self) -> bool {
        self.cancel.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed)
    }

    /// Ends all threads that were started: the slice has failed.
    fn let_go(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.start.open();
        self.end.open();
    }
}

fn one_thread<'a>(course: &Course<'_>, set_up: impl FnOnce() -> Result<Worker<'a>>) -> Result<(Count, Instant, Seen)> {
    let worker = course.set_up.pass(|| match course.is_over() {
        true => Ok(None),
        false => catch_unwind(AssertUnwindSafe(set_up)).unwrap_or_else(|_| Err(panicked())).map(Some),
    });
    if worker.is_err() {
        course.stop.store(true, Ordering::Relaxed);
    }
    let watch = Watch::begin();
    course.start.arrive_and_wait();
    // The worker lives until the end has been measured, because its tear-down is no part of the slice.
    let outcome = worker.map(|mut worker| {
        let count = match &mut worker {
            Some(worker) => catch_unwind(AssertUnwindSafe(|| worker(course.stop))),
            None => Ok(Count::new()),
        };
        (worker, count.unwrap_or_else(|_| Err(panicked())))
    });
    let end = Instant::now();
    if !matches!(outcome, Ok((_, Ok(_)))) {
        course.stop.store(true, Ordering::Relaxed);
    }
    course.finished.fetch_add(1, Ordering::Release);
    course.end.arrive_and_wait();
    // The CPU time has been taken by now, so this check does not count in it.
    let seen = watch.and_then(Watch::end);
    let (_worker, count) = outcome?;
    Ok((count?, end, seen?))
}

fn wait_for_end(slice: &Slice<'_>, start: Instant, course: &Course<'_>, threads: usize) {
    while course.finished.load(Ordering::Acquire) < threads && !course.stop.load(Ordering::Relaxed) {
        let left = slice.duration.saturating_sub(start.elapsed());
        if left.is_zero() || slice.cancel.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(left.min(TICK));
    }
    course.stop.store(true, Ordering::Relaxed);
}

fn panicked() -> Error {
    Error::Tool { what: "a measuring thread".into(), why: "it panicked; its message is above".into() }
}

/// User and system time of all threads of this process so far, in microseconds. It includes the kernel workers of its
/// rings.
pub fn process_cpu_us() -> Result<f64> {
    let usage = seen::usage(libc::RUSAGE_SELF, "the CPU time of this process")?;
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    Ok(us(usage.ru_utime) + us(usage.ru_stime))
}

/// Bytes that all threads of this process made drives fetch so far; `None` on kernels that do not count them.
fn process_fetched_bytes() -> Option<u64> {
    seen::fetched_bytes("/proc/self/io")
}

#[cfg(test)]
mod tests {
    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn slice(duration_ms: u64) -> Slice<'static> {
        Slice { threads: 3, duration: Duration::from_millis(duration_ms), verify: false, cancel: &NEVER }
    }

    fn spin(_: &mut usize, stop: &AtomicBool) -> Result<Count> {
        let mut count = Count::new()?;
        while goes_on(count.ops, stop) {
            count.ops += 1;
            std::hint::spin_loop();
        }
        Ok(count)
    }

    #[test]
    fn counts_add_up_and_cpu_time_is_measured() {
        let sample = run(&slice(60), Ok, spin).unwrap();
        // The share of the time that a busy machine leaves for these threads is unknown.
        assert!(sample.ops >= 3 && sample.cpu_us > 0.0, "{sample:?}");
        assert!(sample.wall >= Duration::from_millis(60));
    }

    #[test]
    fn workers_that_have_nothing_left_end_the_slice() {
        let begin = Instant::now();
        let sample = run(&slice(60_000), Ok, |_, _| Count::new()).unwrap();
        assert!(sample.wall < Duration::from_secs(5) && begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn one_failure_or_panic_ends_all() {
        let fail = || Error::invalid("it", "failed");
        let error = run(&slice(60_000), |i| if i == 1 { Err(fail()) } else { Ok(i) }, spin).unwrap_err();
        assert!(error.to_string().contains("failed"));
        let error = run(&slice(60_000), Ok, |i, stop| if *i == 2 { Err(fail()) } else { spin(i, stop) }).unwrap_err();
        assert!(error.to_string().contains("failed"));
        let error = run(&slice(60_000), Ok, |i, stop| if *i == 0 { panic!("on purpose") } else { spin(i, stop) });
        assert!(error.unwrap_err().to_string().contains("panicked"));
        let error = run::<usize>(&slice(60_000), |i| if i == 2 { panic!("on purpose") } else { Ok(i) }, spin);
        assert!(error.unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn cancel_ends_a_slice() {
        static CANCEL: AtomicBool = AtomicBool::new(true);
        let cancelled = Slice { cancel: &CANCEL, ..slice(60_000) };
        assert!(run(&cancelled, Ok, spin).unwrap().wall < Duration::from_secs(5));
        // No thread is set up after the cancellation.
        let many = Slice { threads: 300, ..cancelled };
        let never = |_| -> Result<usize> { Err(Error::invalid("set up", "after it was cancelled")) };
        assert_eq!(run(&many, never, spin).unwrap().ops, 0);
    }
}
