//! Loops by hand over the parts: the code that an expert writes for these reads and nothing else.
//!
//! Goals: the figures hold neither set-up nor tear-down, and no loop reads a clock, allocates or locks. A thread that
//! fails, panics or cannot be started ends the run with an error, and never with a hang. Non-goals: writes; merging;
//! retries; fairness between drives.

mod aio;
mod pread;
mod reader;
mod slots;
#[cfg(test)]
mod tests;
mod uring;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use iomill::Error;

use super::clock::{Sample, Watch};
use super::parts::{self, Part};
use reader::Reader;
pub use reader::{Failed, Work};
use slots::Slots;

/// How often the measuring thread checks the clock and the cancel flag.
const TICK: Duration = Duration::from_millis(10);

/// A loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// io_uring, past the page cache.
    Uring,
    /// libaio, past the page cache.
    Aio,
    /// `pread` through the page cache, which is emptied before. No thread reads a block twice.
    Pread,
}

impl Loop {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Loop::Uring => "uring-by-hand",
            Loop::Aio => "aio-by-hand",
            Loop::Pread => "pread",
        }
    }

    /// Sets up all threads, starts them together, and stops them when the time is over. The first thread that ends
    /// stops all.
    pub fn run(
        self,
        parts: &[Part],
        work: &Work,
        time: Duration,
        cancel: &AtomicBool,
    ) -> std::result::Result<Sample, Failed> {
        if self == Loop::Pread {
            pread::check_cold(parts)?;
        }
        parts::drop_cached(parts)?;
        if cancel.load(Ordering::Relaxed) {
            return Ok(Sample::default());
        }
        let run = Run { of: self, parts, work, stop: AtomicBool::new(false), barriers: Default::default() };
        thread::scope(|scope| {
            let run = &run;
            // A thread waits at a barrier as long as the barrier is locked here. This closure unlocks both, also if it
            // ends by an error.
            let [first, last] =
                [0, 1].map(|barrier| run.barriers[barrier].write().unwrap_or_else(PoisonError::into_inner));
            let mut threads = Vec::new();
            for index in 0..work.threads {
                let (tell, told) = channel();
                let named = thread::Builder::new().name(format!("probe-{index}"));
                let spawned = named.spawn_scoped(scope, move || run.one_thread(index, &tell)).map_err(|error| {
                    run.stop.store(true, Ordering::Relaxed);
                    let what = format!("thread {} of {}", index + 1, work.threads);
                    Error::Tool { what, why: format!("{error}; ask for fewer threads") }
                })?;
                threads.push((spawned, told));
            }
            // A thread that has panicked tells nothing more, and the wait for it ends with an error that its end will
            // show again.
            let wait = || threads.iter().for_each(|(_, told)| _ = told.recv());
            wait();
            let watch = Watch::start();
            let start = Instant::now();
            drop(first);
            while let Ok(watch) = &watch
                && watch.goes_on(time, cancel)
                && !run.stop.load(Ordering::Relaxed)
            {
                thread::sleep(time.saturating_sub(start.elapsed()).min(TICK));
            }
            run.stop.store(true, Ordering::Relaxed);
            wait();
            let sample = watch.and_then(|watch| watch.end(0));
            drop(last);
            let mut all = Sample { wall: Duration::ZERO, ..sample? };
            for (thread, _) in threads {
                let (reads, end) = thread.join().map_err(|_| panicked())??;
                all.reads += reads;
                all.wall = all.wall.max(end.duration_since(start));
            }
            Ok(all)
        })
    }

    fn reader<'a>(
        self,
        parts: &'a [Part],
        work: &Work,
        thread: usize,
    ) -> std::result::Result<Box<dyn Reader + 'a>, Failed> {
        Ok(match self {
            Loop::Uring => Box::new(uring::Uring::new(Slots::new(parts, work, thread)?)?),
            Loop::Aio => Box::new(aio::Aio::new(Slots::new(parts, work, thread)?)?),
            Loop::Pread => Box::new(pread::Pread::new(parts, work)?),
        })
    }
}

/// A run, as its threads see it.
struct Run<'a> {
    of: Loop,
    parts: &'a [Part],
    work: &'a Work,
    stop: AtomicBool,
    /// Before the first read, and after the last one.
    barriers: [RwLock<()>; 2],
}

impl Run<'_> {
    /// Tells when it is set up, and when it has read. Returns the number of its reads, and when the last one ended.
    fn one_thread(&self, index: usize, tell: &Sender<()>) -> std::result::Result<(u64, Instant), Failed> {
        let mut reader = self.of.reader(self.parts, self.work, index);
        if reader.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        // The receiver lives as long as the run, unless another thread could not be started. Then nothing waits for
        // this one.
        let _heard = tell.send(());
        drop(self.barriers[0].read());
        let reads = reader.as_mut().ok().map(|reader| reader.read(&self.stop));
        let end = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let _heard = tell.send(());
        // What was set up lives until the CPU time was taken, because its tear-down is no part of the run.
        drop(self.barriers[1].read());
        drop(reader?);
        Ok((reads.transpose()?.unwrap_or(0), end))
    }
}

fn panicked() -> Error {
    Error::Tool { what: "a measuring thread".into(), why: "it panicked; its message is above".into() }
}
