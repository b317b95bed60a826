//! Contenders in processes of their own that take turns.
//!
//! Goals: equal work, equal memory, and a state (cold, warm) that is checked for each slice. A slice in another state
//! is an error. A [`Row`] is one comparison, and a [`Load`] the work of one contender in it. The process runs its own
//! program again for each contender. Non-goals: the comparisons themselves; latencies.
//!
//! Rules:
//! - T1: A contender has its memory limit before it touches a measured byte.
//! - T2: Contenders take turns, and each round begins with another one, so that a slow minute hits all.
//! - T3: In a round all contenders get the same seed. Their results must have the same digest.
//! - T4: The clock runs only in [`Load::slice`]. Checks of results are not timed.

mod group;
mod play;
mod report;
mod seen;
mod serve;
mod state;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use group::MemoryGroup;
pub use seen::drop_cached;
pub use state::State;

/// Makes three directories for the drives of an array, for tests.
pub fn drives(dir: &Path) -> std::io::Result<[PathBuf; 3]> {
    let drives = ["ssd0", "ssd1", "ssd2"].map(|name| dir.join(name));
    drives.iter().try_for_each(std::fs::create_dir)?;
    Ok(drives)
}

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
    /// Operations, in the unit of the row.
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
    /// The rate is at least the lowest one that the first has had in a round.
    pub within_noise: bool,
}

/// One comparison. The first contender is the one to beat.
#[derive(Clone, Debug)]
pub struct Row {
    /// Short, for `--only` and the table.
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

/// Arguments that all programs of measurements share.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Directory for the data, on the drive to measure. Data stay there for the next run.
    #[arg(long)]
    pub dir: PathBuf,
    /// Rounds of each row.
    #[arg(long, default_value_t = 7)]
    pub rounds: u32,
    /// Only this row; may be repeated.
    #[arg(long)]
    pub only: Vec<String>,
    /// Print JSON in the place of the table.
    #[arg(long)]
    pub json: bool,
    /// The row and the contender of this process; the program gives it to its contenders.
    #[arg(long, num_args = 2, hide = true)]
    contender: Vec<String>,
}

/// A program of measurements: its rows and their loads.
pub trait Rows {
    /// The comparisons.
    fn rows(&self) -> Vec<Row>;

    /// Makes the data of a row, if they are not there yet.
    fn prepare(&self, row: &Row) -> Result<()>;

    /// Runs one contender by [`serve`].
    fn contend(&self, row: &Row, contender: &str) -> Result<()>;
}

pub use serve::serve;

/// Runs all rows and prints their figures; or, in a contender's process, the contender.
pub fn run(options: &Options, rows: &impl Rows) -> Result<()> {
    let all = rows.rows();
    let named = |name: &String| {
        let row = all.iter().find(|row| row.name == name).cloned();
        let names = || all.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        row.with_context(|| format!("there is no row {name:?}; the rows are {}", names()))
    };
    if let [row, contender] = &options.contender[..] {
        return rows.contend(&named(row)?, contender);
    }
    let chosen = match &options.only[..] {
        [] => all.clone(),
        names => names.iter().map(named).collect::<Result<Vec<_>>>()?,
    };
    std::fs::create_dir_all(&options.dir).with_context(|| format!("cannot make {}", options.dir.display()))?;
    let mut results = Vec::new();
    for row in &chosen {
        rows.prepare(row).with_context(|| format!("the data of row {} cannot be made", row.name))?;
        let result = play::row(row, options.rounds)?;
        if !options.json {
            report::print_table(&result)?;
        }
        results.push(result);
    }
    if options.json { report::print_json(&results) } else { Ok(()) }
}
