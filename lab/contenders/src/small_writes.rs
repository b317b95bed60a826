//! Small unaligned writes at random places, and the sync after them.
//!
//! Goals: the timed part starts with memory full of earlier writes, and ends when all writes are durable.
//! Non-goals: reads during the writes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::contender::{Sample, Slice};
use crate::pattern::{self, PAGE_BYTES, Rng};
use crate::slots::Timer;
use crate::task::Task;
use crate::threads::{self, Count, goes_on};
use iomill_cli::human;

/// Random bytes for writes.
const POOL_BYTES: usize = 1 << 16;

/// Writes per thread that a verifying slice reads back.
const CHECKED: usize = 10_000;

/// The description of the writes, the same for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallWrites {
    /// Bytes per write on average. Lengths vary by a tenth up and down.
    pub op_bytes: u32,
    /// Memory for written data, in bytes.
    pub cache_bytes: u64,
    /// Length of the file, in bytes.
    pub len_bytes: u64,
}

impl SmallWrites {
    fn longest(&self) -> u64 {
        u64::from(self.op_bytes) + u64::from(self.op_bytes) / 10
    }

    /// The offset and length of the next write.
    #[inline(always)]
    fn draw(&self, rng: &mut Rng) -> (u64, usize) {
        let below = |random: u64, n: u64| ((u128::from(random) * u128::from(n)) >> 64) as u64;
        let tenth = u64::from(self.op_bytes) / 10;
        let len = u64::from(self.op_bytes) - tenth + below(rng.draw(), 2 * tenth + 1);
        (below(rng.draw(), self.len_bytes - self.longest() + 1), len as usize)
    }
}

impl fmt::Display for SmallWrites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unaligned-write-{}", human::size(self.op_bytes.into()).replace(' ', ""))
    }
}

impl Task for SmallWrites {
    fn check(&self) -> Result<()> {
        if self.op_bytes == 0 || self.longest() > POOL_BYTES as u64 / 2 {
            return Err(Error::invalid(format!("writes of {} bytes", self.op_bytes), "give 1 to 29789"));
        }
        if self.len_bytes < 2 * self.longest() {
            let what = format!("a file of {} bytes", self.len_bytes);
            return Err(Error::invalid(what, "give a longer file, with room for many writes"));
        }
        if self.cache_bytes < 1 << 20 {
            let what = format!("a cache of {}", human::size(self.cache_bytes));
            return Err(Error::invalid(what, "give at least 1MiB"));
        }
        Ok(())
    }
}

/// How one thread writes into the file.
pub(crate) trait Writer {
    /// Called when the measured part starts.
    fn begin(&mut self) {}

    /// Writes bytes at an offset.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads bytes back.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Runs one slice. The threads write until the time is up, and the last thread to end calls `sync`, which makes all
/// writes durable. A verifying slice writes the pattern of `seed` and reads it back. The file should hold other bytes
/// than that pattern. `ready` is that of [`threads::run_told`].
pub(crate) fn run<W: Writer>(
    slice: &Slice<'_>,
    writes: &SmallWrites,
    seed: u64,
    set_up: impl Fn() -> Result<W> + Sync,
    ready: impl FnMut() -> Result<()>,
    sync: impl Fn() -> Result<()> + Sync,
) -> Result<Sample> {
    let ended = AtomicUsize::new(0);
    threads::run_told(
        &AtomicBool::new(false),
        slice,
        |thread| {
            let mut worker = Worker::new(set_up()?, *writes, thread);
            worker.fill_cache(slice)?;
            Ok(worker)
        },
        ready,
        |worker, stop| {
            worker.writer.begin();
            let outcome = if slice.verify { worker.verify(seed, stop) } else { worker.work(stop) };
            if ended.fetch_add(1, Ordering::AcqRel) + 1 == slice.threads.max(1) {
                sync()?;
            }
            let count = outcome?;
            worker.read_back(seed)?;
            Ok(count)
        },
    )
}

struct Worker<W> {
    writer: W,
    writes: SmallWrites,
    rng: Rng,
    pool: Vec<u8>,
    /// The writes that will be read back.
    written: Vec<(u64, usize)>,
}

impl<W: Writer> Worker<W> {
    fn new(writer: W, writes: SmallWrites, thread: usize) -> Worker<W> {
        let mut rng = Rng::new(pattern::mix(thread as u64) ^ u64::from(std::process::id()));
        let pool = (0..POOL_BYTES).map(|_| rng.draw() as u8).collect();
        Worker { writer, writes, rng, pool, written: Vec::new() }
    }

    /// Writes this thread's share of twice the pages that fit in memory, without a time limit, so that slow drives also
    /// fill it.
    fn fill_cache(&mut self, slice: &Slice<'_>) -> Result<()> {
        let pages = 2 * self.writes.cache_bytes.div_ceil(PAGE_BYTES as u64);
        for _ in 0..pages.div_ceil(slice.threads.max(1) as u64) {
            if slice.cancel.load(Ordering::Relaxed) {
                break;
            }
            let (offset, len) = self.writes.draw(&mut self.rng);
            self.writer.write(offset, &self.pool[..len])?;
        }
        Ok(())
    }

    fn work(&mut self, stop: &AtomicBool) -> Result<Count> {
        let (mut count, mut timer) = (Count::new()?, Timer::new());
        let mut from = 0;
        while goes_on(count.ops, stop) {
            let (offset, len) = self.writes.draw(&mut self.rng);
            let bytes = &self.pool[from..from + len];
            // The step is coprime to the range of starts, so that all starts come in turn.
            from = (from + 1021) % (POOL_BYTES / 2);
            timer.time(&mut count, || self.writer.write(offset, bytes))?;
            count.ops += 1;
            count.bytes += len as u64;
        }
        Ok(count)
    }

    fn verify(&mut self, seed: u64, stop: &AtomicBool) -> Result<Count> {
        let mut count = Count::new()?;
        while goes_on(count.ops, stop) && self.written.len() < CHECKED {
            let (offset, len) = self.writes.draw(&mut self.rng);
            let bytes = &mut self.pool[..len];
            pattern::fill_bytes(seed, offset, bytes);
            self.writer.write(offset, bytes)?;
            self.written.push((offset, len));
            count.ops += 1;
            count.bytes += len as u64;
        }
        Ok(count)
    }

    fn read_back(&mut self, seed: u64) -> Result<()> {
        for (offset, len) in std::mem::take(&mut self.written) {
            let bytes = &mut self.pool[..len];
            self.writer.read(offset, bytes)?;
            if !pattern::holds(seed, offset, bytes) {
                let what = format!("{len} bytes at offset {offset} of the measured file");
                return Err(Error::Tool { what, why: "what was read is not what was just written".into() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    static NEVER: AtomicBool = AtomicBool::new(false);
    const WRITES: SmallWrites = SmallWrites { op_bytes: 1000, cache_bytes: 1 << 20, len_bytes: 1 << 20 };

    /// A file in memory that can lose one write in `loses`.
    struct Memory<'a> {
        bytes: &'a Mutex<Vec<u8>>,
        loses: usize,
        written: usize,
    }

    impl Writer for Memory<'_> {
        fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
            self.written += 1;
            if self.loses == 0 || !self.written.is_multiple_of(self.loses) {
                self.bytes.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Ok(())
        }

        fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
            bytes.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..bytes.len()]);
            Ok(())
        }
    }

    fn slice(verify: bool) -> Slice<'static> {
        Slice { threads: 3, duration: Duration::from_millis(60), verify, cancel: &NEVER }
    }

    #[test]
    fn it_syncs_once_and_verifies() {
        for (verify, loses) in [(false, 0), (true, 0), (true, 5)] {
            let bytes = Mutex::new(vec![0; 1 << 20]);
            let synced = AtomicUsize::new(0);
            let set_up = || Ok(Memory { bytes: &bytes, loses, written: 0 });
            let sync = || {
                synced.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            // Writes may overlap and hide a lost write. So the writes are short, and enough of them are lost.
            let writes = SmallWrites { op_bytes: 10, ..WRITES };
            let sample = run(&slice(verify), &writes, 5, set_up, || Ok(()), sync);
            assert_eq!(synced.load(Ordering::Relaxed), 1);
            assert_eq!(sample.is_err(), loses > 0, "{sample:?}");
        }
    }

    #[test]
    fn places_stay_inside_and_keep_no_alignment() {
        let mut rng = Rng::new(1);
        let drawn: Vec<(u64, usize)> = (0..10_000).map(|_| WRITES.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|&(offset, len)| offset + len as u64 <= 1 << 20 && (900..=1100).contains(&len)));
        assert!(drawn.iter().filter(|(offset, _)| offset % 2 == 1).count() > 4000);
        for bad in [
            SmallWrites { op_bytes: 0, ..WRITES },
            SmallWrites { op_bytes: 1 << 20, ..WRITES },
            SmallWrites { len_bytes: 2000, ..WRITES },
            SmallWrites { cache_bytes: 5, ..WRITES },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert_eq!(WRITES.to_string(), "unaligned-write-1000B");
    }
}
