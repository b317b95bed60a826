//! The measurements of `bench`, and the arguments of the general ones.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use iomill_bench::bench::{ACCESS_RIVALS, Rivals};
use iomill_bench::rivals::{BROUGHT_BY, Names};
use iomill_bench::rounds::Turns;

use super::{
    BenchColdOnly, BenchLadder, BenchMapped, BenchMixed, BenchNodes, BenchSmallWrites, BenchSoak, BenchWarm, Layout,
};
use super::{block_size, request_size, seconds, size};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure
    #[command(subcommand)]
    pub what: BenchWhat,
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum BenchWhat {
    /// Random reads on four directories made here, with no preparation, in under two minutes
    Quick(BenchQuick),
    /// Random requests on an array
    Random(BenchAccess),
    /// Sequential requests on an array
    Sequential(BenchAccess),
    /// The ratios that no change may make worse, each with its bound and its noise, in under three minutes
    #[command(after_help = "The exit code is 1 when a ratio is worse than its bound by more than its noise.")]
    Gate(BenchGate),
    /// Small random reads of data that is all in memory: what a hit costs
    Warm(BenchWarm),
    /// Random reads of far more than fits in memory: what a miss costs
    Cold(BenchColdOnly),
    /// Random reads with a given share of hits, and a key-value load
    Mixed(BenchMixed),
    /// Small unaligned writes, and the sync after them
    SmallWrites(BenchSmallWrites),
    /// The steps of a paper, switched on one after the other; afterwards the machine's settings are the old ones
    Ladder(BenchLadder),
    /// Reads of pages that are on other NUMA nodes, directly and by message
    Nodes(BenchNodes),
    /// Reads and growth of a file that is mapped, beside system calls
    MmapVsSyscall(BenchMapped),
    /// Everything at once for minutes or hours: it checks every byte, and that memory stays within its bound
    #[command(
        after_help = "The exit code is 1 when a byte is wrong, or when the process takes more than the cache's size, 3% and 8 MiB."
    )]
    Soak(BenchSoak),
    /// Do what a measurement asks for on the standard input, within the memory that it gives
    #[command(hide = true)]
    Held,
}

/// Arguments of `bench quick`.
#[derive(Debug, Args)]
pub struct BenchQuick {
    /// Where the array is made, and where the results go.
    #[command(flatten)]
    pub place: BenchPlace,
}

/// Arguments of `bench gate`.
#[derive(Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("9")), mut_arg("seconds", |seconds| seconds.default_value("0.4")))]
pub struct BenchGate {
    /// Length of the measured files, which are removed afterwards; they are in memory twice
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
}

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
    /// The directory to make an array in.
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
    /// Turns of each contender; the median counts
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

/// The help of `--rivals`: it lists the rivals of this build.
pub(super) fn rivals_help(names: Names) -> String {
    let own = names.own.join(",");
    let brought = match names.brought {
        [] => String::new(),
        names => format!("; also {}, with `{BROUGHT_BY} ...` in iomill's repository", names.join(",")),
    };
    format!("Which rivals take part: `all`, `none`, or some of {own}{brought}")
}

/// Arguments of `bench random` and `bench sequential`.
#[derive(Debug, Args)]
pub struct BenchAccess {
    /// Threads that call at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Length of the measured file, which is removed afterwards
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,
    /// Bytes per operation: a multiple of 4 KiB, at most 16 MiB
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = request_size)]
    pub request_size: u32,
    /// Share of reads among the operations; the rest are writes
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub read_percent: u8,
    /// How the file's blocks are spread over the drives
    #[arg(long, value_enum, default_value = "striping")]
    pub layout: Layout,
    /// Unit of placement: a multiple of 4 KiB, at most 64 MiB
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = block_size)]
    pub block_size: u32,
    /// Turns, and the contenders that take them.
    #[command(flatten)]
    pub rounds: BenchRounds,
}
