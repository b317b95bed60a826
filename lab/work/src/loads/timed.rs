//! The timed parts of a load.

use std::time::Instant;

use crate::job::{Measure, Result};

/// A load with its data open, and its data in memory.
pub trait Ready {
    /// Runs the load, and returns its times.
    fn run(&mut self, seed: u64) -> Result<Vec<Measure>>;
}

/// Times a part of a load. Returns the number of its operations, and its result.
pub fn timed(name: &str, unit: &str, work: impl FnOnce() -> Result<(u64, Option<u64>)>) -> Result<Measure> {
    let (cpu, start) = (cpu_seconds()?, Instant::now());
    let (operations, digest) = work()?;
    let (seconds, cpu_seconds) = (start.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    Ok(Measure { name: name.to_owned(), unit: unit.to_owned(), operations, seconds, cpu_seconds, digest })
}

/// CPU time of this process, of all its threads, in seconds.
fn cpu_seconds() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one `rusage`, which the call fills.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: zeroes are a valid value of this plain struct, and the call has filled it.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// A digest of a list of numbers, which depends on each number and its position.
pub fn digest(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, number| (sum ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(29))
}
