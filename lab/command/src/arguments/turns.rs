//! Arguments that measurements share: their place, the length and number of turns, and the choice of contenders.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use iomill_bench::bench::{ACCESS_RIVALS, Rivals};
use iomill_bench::rounds::Turns;

use iomill_cli::arguments::seconds;

/// Arguments of all measurements.
#[derive(Debug, Args)]
pub struct BenchPlace {
    /// Where to make an array if none is named; it is removed afterwards [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write the results into this file as one JSON document. Without FILE, or with `-`, print it instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Global options")]
    pub json: Option<PathBuf>,
}

impl BenchPlace {
    /// The directory in which to make an array.
    pub fn dir(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new("."))
    }
}

/// Arguments of measurements in which contenders take turns.
#[derive(Debug, Args)]
pub struct BenchTimes {
    /// Length of one contender's turn, 0.1 to 600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Turns of each contender; the figure is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Where the array is made, and where the results go.
    #[command(flatten)]
    pub place: BenchPlace,
}

impl BenchTimes {
    /// Length of a turn.
    pub fn slice(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Turns for these numbers of threads.
    pub fn turns(&self, threads: Vec<usize>) -> Turns {
        Turns { threads, rounds: self.rounds.into(), slice: self.slice() }
    }
}

/// Arguments of measurements in which the user chooses rivals.
#[derive(Debug, Args)]
pub struct BenchRounds {
    /// Which rivals take part
    #[arg(long, value_name = "NAMES", default_value = "all", help = rivals_help(ACCESS_RIVALS))]
    pub rivals: Rivals,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
}

/// Numbers of threads.
#[derive(Debug, Args)]
pub struct BenchThreads {
    /// Numbers of threads that read at the same time; one measurement for each
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,2",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub threads: Vec<u16>,
}

impl BenchThreads {
    /// The numbers as the measurements take them.
    pub fn counts(&self) -> Vec<usize> {
        self.threads.iter().map(|&threads| threads.into()).collect()
    }
}

/// The help of `--rivals`.
pub(super) fn rivals_help(names: &[&str]) -> String {
    format!("Which rivals take part: `all`, `none`, or some of {}", names.join(","))
}
