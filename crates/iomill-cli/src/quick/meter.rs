//! What this process does while a loop runs: time, CPU time, page faults, and bytes that drives deliver.
//!
//! Goals: counting is not timed. Non-goals: telling threads apart. While a loop runs, the rest of the process sleeps.

use std::fs;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use iomill::{Error, Result};

/// The differences of all meters between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    pub wall: Duration,
    /// User and system time of all threads, also of those that the kernel made for io_uring.
    pub cpu_us: f64,
    pub faults: u64,
    /// Bytes that came from drives; `None` on kernels that do not count them.
    pub fetched_bytes: Option<u64>,
}

/// Sees what happens from its start on.
#[derive(Debug)]
pub struct Meter {
    usage: (f64, u64),
    fetched_bytes: Option<u64>,
    started: Instant,
}

impl Meter {
    pub fn start() -> Result<Meter> {
        let fetched_bytes = fetched_bytes();
        Ok(Meter { usage: usage()?, fetched_bytes, started: Instant::now() })
    }

    /// The changes since then.
    pub fn end(self) -> Result<Seen> {
        let wall = self.started.elapsed();
        let (cpu_us, faults) = usage()?;
        let fetched = fetched_bytes().zip(self.fetched_bytes).map(|(now, before)| now.saturating_sub(before));
        let faults = faults.saturating_sub(self.usage.1);
        Ok(Seen { wall, cpu_us: cpu_us - self.usage.0, faults, fetched_bytes: fetched })
    }
}

/// CPU time of this process in microseconds, and its page faults.
fn usage() -> Result<(f64, u64)> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one `rusage`, which the call fills.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        let why = std::io::Error::last_os_error().to_string();
        return Err(Error::Tool { what: "the CPU time of this process".into(), why });
    }
    // SAFETY: zeroes are a valid value of this plain struct, and the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    Ok((us(usage.ru_utime) + us(usage.ru_stime), (usage.ru_minflt + usage.ru_majflt) as u64))
}

/// Bytes that drives have delivered to this process.
fn fetched_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}
