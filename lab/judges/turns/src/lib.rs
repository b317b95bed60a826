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
mod row;
mod seen;
mod serve;
mod state;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use group::MemoryGroup;
pub use row::{Goal, Load, Row, Work};
pub use seen::drop_cached;
pub use serve::serve;
pub use state::State;

/// Makes three directories for the drives of an array, for tests.
pub fn drives(dir: &Path) -> std::io::Result<[PathBuf; 3]> {
    let drives = ["ssd0", "ssd1", "ssd2"].map(|name| dir.join(name));
    drives.iter().try_for_each(std::fs::create_dir)?;
    Ok(drives)
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
    /// Print JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// The row and the contender of this process; the program passes it to its contenders.
    #[arg(long, num_args = 2, hide = true)]
    contender: Vec<String>,
}

/// A program of measurements: its rows and their loads.
pub trait Rows {
    /// The comparisons.
    fn rows(&self) -> Vec<Row>;

    /// Makes the data of a row, if they do not exist.
    fn prepare(&self, row: &Row) -> Result<()>;

    /// Runs one contender by [`serve`].
    fn contend(&self, row: &Row, contender: &str) -> Result<()>;
}

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
