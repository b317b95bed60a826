//! The protocol between a measurement and its processes: one JSON value per line, each request followed by its answer.

use std::path::PathBuf;
use std::time::Duration;

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::access::Access;
use crate::contender::Sample;
use crate::rows::{RowReads, Way};
use crate::small_writes::SmallWrites;

/// The job of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Job {
    /// Accesses to the parts of an array's file.
    Access {
        /// True for a mapping, false for `pread` and `pwrite`.
        mapped: bool,
        /// Drives that name the array.
        drives: Vec<PathBuf>,
        /// The array's file.
        file_name: String,
        /// What to do.
        access: Access,
    },
    /// Random rows of a user's own file.
    Rows {
        /// The file.
        path: PathBuf,
        /// How they are read.
        way: Way,
        /// What to read.
        reads: RowReads,
    },
    /// Small writes to a plain file.
    Write {
        /// The file.
        path: PathBuf,
        /// What to do.
        writes: SmallWrites,
    },
}

/// A message from the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first request, sent once. The answer is `Ready` or `LeftOut`.
    Prepare(Job),
    /// Sets up a slice. The answer is `SetUp`.
    Run { threads: usize, duration_us: u64, verify: bool },
    /// Starts the slice's clock. The answer is `Sample`.
    Begin,
}

/// A message from the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Ready,
    /// The process cannot do the job, or not in a comparable way.
    LeftOut(String),
    /// The memory is filled for the slice. The process waits for `Begin`.
    SetUp,
    Sample(Figures),
    Failed(String),
}

/// A sample as it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    ops: u64,
    bytes: u64,
    wall_ns: u64,
    cpu_us: f64,
    fetched_bytes: Option<u64>,
    /// Latencies in nanoseconds, each with its number of operations.
    latency_ns: Vec<(u64, u64)>,
}

impl Figures {
    pub(super) fn of(sample: &Sample) -> Figures {
        let latency_ns =
            sample.latency_ns.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
        Figures {
            ops: sample.ops,
            bytes: sample.bytes,
            wall_ns: sample.wall.as_nanos() as u64,
            cpu_us: sample.cpu_us,
            fetched_bytes: sample.fetched_bytes,
            latency_ns,
        }
    }

    pub(super) fn into_sample(self) -> Result<Sample> {
        let mut sample = Sample {
            ops: self.ops,
            bytes: self.bytes,
            wall: Duration::from_nanos(self.wall_ns),
            cpu_us: self.cpu_us,
            fetched_bytes: self.fetched_bytes,
            ..Sample::empty()?
        };
        self.latency_ns.iter().for_each(|&(ns, count)| sample.latency_ns.saturating_record_n(ns, count));
        Ok(sample)
    }
}

impl Request {
    pub(super) fn line(&self) -> Result<String> {
        line(self)
    }

    pub(super) fn parse(text: &str) -> Result<Request> {
        serde_json::from_str(text).map_err(|e| not_understood(&e))
    }
}

impl Answer {
    pub(super) fn line(&self) -> Result<String> {
        line(self)
    }

    pub(super) fn parse(text: &str) -> Result<Answer> {
        serde_json::from_str(text).map_err(|e| not_understood(&e))
    }
}

fn line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| not_understood(&e))
}

fn not_understood(error: &serde_json::Error) -> Error {
    let what = "a line between a measurement and its process".into();
    Error::Tool { what, why: error.to_string() }
}
