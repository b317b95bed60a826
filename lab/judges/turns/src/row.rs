//! A comparison, and the work of a contender in it.

use anyhow::Result;

use crate::state::State;

/// The work of one contender in a row. It runs in a process of its own.
pub trait Load {
    /// The reads or operations of a slice.
    type Done;

    /// Brings the memory into the row's state, within the memory limit. It is called again when all contenders have
    /// done so.
    fn fill(&mut self) -> Result<()>;

    /// Prepares for a slice.
    fn settle(&mut self) -> Result<()>;

    /// Does the timed work.
    fn slice(&mut self, seed: u64) -> Result<Self::Done>;

    /// Checks the results of the slice.
    fn check(&mut self, seed: u64, done: Self::Done) -> Result<Work>;

    /// Closes the store, after the last slice.
    fn close(self) -> Result<()>;
}

/// The number of operations of a slice, and its results.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The number of operations, in the unit of the row.
    pub ops: u64,
    /// Bytes that a cold slice must have fetched from drives.
    pub bytes: u64,
    /// The same for all contenders of a round.
    pub digest: u64,
}

/// The goals of a row, as ratios of a contender's figures to those of the first contender.
#[derive(Clone, Copy, Debug, Default)]
pub struct Goal {
    /// The rate is at least this multiple of the first contender's.
    pub rate_min: Option<f64>,
    /// The CPU time per operation is at most this multiple of the first contender's.
    pub cpu_max: Option<f64>,
    /// The rate is at least the lowest rate of the first contender in any round.
    pub within_noise: bool,
}

/// One comparison. The first contender is the one to beat.
#[derive(Clone, Debug)]
pub struct Row {
    /// A short name, for `--only` and the table.
    pub name: &'static str,
    /// The work of the row.
    pub what: String,
    /// The unit of its operations.
    pub unit: &'static str,
    /// The state that each slice must be in.
    pub state: State,
    /// Memory for cached data beside a process's own, in bytes. `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Names of the contenders.
    pub contenders: &'static [&'static str],
    /// The goals.
    pub goal: Goal,
}
