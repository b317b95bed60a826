//! Time: on the clock, and of CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iomill::{Error, Result};
use rustix::time::{ClockId, clock_gettime};

/// User and system time so far, of `ThreadCPUTime` or of all threads of `ProcessCPUTime`. The kernel's workers for the
/// process's rings are among its threads.
pub fn cpu_time(whose: ClockId) -> Result<Duration> {
    let time = clock_gettime(whose);
    let whole = u64::try_from(time.tv_sec).ok();
    whole.map(|whole| Duration::new(whole, time.tv_nsec as u32)).ok_or_else(|| Error::Tool {
        what: "the CPU time of this process".into(),
        why: "the kernel gave a negative time".into(),
    })
}

/// Measures a number of reads from its start on.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    cpu: Duration,
}

/// What some reads took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// The number of reads.
    pub reads: u64,
    /// The time that all of them took together.
    pub wall: Duration,
    /// The CPU time of the process meanwhile.
    pub cpu: Duration,
}

impl Watch {
    /// Starts to measure.
    pub fn start() -> Result<Watch> {
        let cpu = cpu_time(ClockId::ProcessCPUTime)?;
        Ok(Watch { start: Instant::now(), cpu })
    }

    /// Whether the time is not over, and nothing was cancelled.
    pub fn goes_on(&self, time: Duration, cancel: &AtomicBool) -> bool {
        self.start.elapsed() < time && !cancel.load(Ordering::Relaxed)
    }

    /// What has been measured.
    pub fn end(self, reads: u64) -> Result<Sample> {
        let wall = self.start.elapsed();
        Ok(Sample { reads, wall, cpu: cpu_time(ClockId::ProcessCPUTime)?.saturating_sub(self.cpu) })
    }
}

impl Sample {
    /// Reads per second.
    pub fn iops(&self) -> f64 {
        self.reads as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// CPU time per read in microseconds.
    pub fn cpu_us_per_op(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.reads.max(1) as f64
    }

    /// CPUs that were kept busy.
    pub fn cpus_used(&self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(1e-9)
    }

    /// The sum of two samples that were taken one after the other.
    pub fn and(self, other: Sample) -> Sample {
        Sample { reads: self.reads + other.reads, wall: self.wall + other.wall, cpu: self.cpu + other.cpu }
    }
}
