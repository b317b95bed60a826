//! The counters of an array. They are cheap, and always on.
//!
//! Goals: a count costs the hot path a plain load, add and store, on a cache line that no other thread writes. Sums
//! never decrease. Other processes can read them (`iomill top`). Non-goals: one moment at which all counters agree.
//! Each is right by itself.
//!
//! - `bank.rs`, `tally.rs`, `board.rs`: banks, their owners, and the board of all banks.
//! - `meter.rs`: the counters and the stopwatch of a drive's queues.
//! - `latency.rs`: histograms, four buckets to each power of two.
//! - `snapshot.rs`, `metrics.rs`: sums, and their form for Prometheus.
//! - `published.rs`, `runtime.rs`: the file in memory that other processes read.
//!
//! Rules:
//! 1. A bank is an array of words in the memory of the array's [`Board`]. One owner at a time writes to it: a [`Tally`]
//!    of a thread, or a [`DriveTally`] of a drive queue. So an addition needs no locked instruction. Every thread and
//!    process may read it.
//! 2. A bank is never cleared. When its owner ends, the next owner of the same kind adds to the bank's values. So the
//!    sum over all banks never decreases.
//! 3. The words are std's atomics, in models, too: other processes may read their memory, and no protocol depends on
//!    them.
//!
//! A bank has 1 KiB. One request in 17 is timed.
//!
//! # What other processes see
//!
//! On the real platform the banks lie in a file in memory, which `iomill top` reads: in `$XDG_RUNTIME_DIR/iomill`, else
//! in `/dev/shm/iomill-<uid>`. The file belongs to the user alone.
//!
//! - The owner locks its file for as long as it lives. A file without a lock is stale. The process that finds it
//!   removes it.
//! - The owner allocates the memory before it touches the mapping. So a full `/dev/shm` costs a notice and not the
//!   process.
//! - The reader maps nothing, and trusts nothing in the file.
//! - A forked child that runs on without `exec` keeps the file of a killed parent, as it keeps the array's lock.

mod bank;
mod board;
mod latency;
mod meter;
mod metrics;
mod published;
mod runtime;
mod snapshot;
mod tally;

pub(crate) use bank::BANKS_BYTES;
pub use bank::Counter;
pub use board::{Board, Subject};
pub use latency::{BUCKETS, Latency};
pub use meter::{Meter, Probe, TIMED_ONE_IN};
pub use published::{Published, find};
pub use runtime::directories;
pub use snapshot::{Counters, DriveCounters};
pub use tally::{DriveTally, Tally};

#[cfg(test)]
mod tests;
