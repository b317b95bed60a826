//! Arguments of the measurements of caches: `warm`, `cold`, `mixed`, `small-writes`, `nodes`, `soak`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use iomill_bench::draw::Choice;
use iomill_bench::records::Skew;
use iomill_bench::{limited, warm};

use super::turns::rivals_help;
use iomill_cli::arguments::size;

use super::{BenchPlace, BenchRounds, BenchThreads, BenchTimes, CacheKind};

/// Arguments of all measurements of caches.
#[derive(Debug, Args)]
pub struct BenchTurns {
    /// The kind of iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// Turns, and the contenders that take them.
    #[command(flatten)]
    pub rounds: BenchRounds,
}

/// Arguments of measurements that read.
#[derive(Debug, Args)]
pub struct BenchBatch {
    /// Operations per call, for contenders that take several per call, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: u32,
}

/// Arguments of `warm`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(warm::RIVALS))))]
pub struct BenchWarm {
    /// Bytes to read from. They are in memory twice: in the page cache and in iomill's; other caches have a third copy
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    pub size: u64,
    /// Size of iomill's cache. It must hold all of SIZE: each page can be in one small set only, so a cache as large as
    /// SIZE would not hold every page. Only present pages take memory [default: 4 times the size]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache: Option<u64>,
    /// Numbers of threads.
    #[command(flatten)]
    pub threads: BenchThreads,
    /// How the reads are distributed over the records; one measurement for each
    #[arg(long, value_enum, value_name = "NAMES", default_value = "uniform,zipf", value_delimiter = ',')]
    pub skew: Vec<SkewName>,
    /// Operations per call.
    #[command(flatten)]
    pub batch: BenchBatch,
    /// Arguments of all measurements.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// How reads are distributed over the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SkewName {
    /// All records equally
    Uniform,
    /// Mostly a few records, by a zipf law with exponent 0.99
    Zipf,
}

impl SkewName {
    /// The measurement's name for it.
    pub fn skew(self) -> Skew {
        match self {
            SkewName::Uniform => Skew::Uniform,
            SkewName::Zipf => Skew::Zipf,
        }
    }
}

/// Arguments of `cold` and `mixed`.
#[derive(Debug, Args)]
pub struct BenchCold {
    /// Memory for pages that were read, the same for each contender
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub cache: u64,
    /// Length of the measured file, which is removed afterwards [default: 8 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Threads that read at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Operations per call.
    #[command(flatten)]
    pub batch: BenchBatch,
    /// Arguments of all measurements.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// Arguments of `cold`: those that it shares with `mixed`, and its own.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(&limited::cold_rivals()))))]
pub struct BenchColdOnly {
    /// The pages to read; one measurement for each
    #[arg(long, value_enum, value_name = "NAMES", default_value = "random", value_delimiter = ',')]
    pub workload: Vec<ColdWorkload>,
    /// Memory, length and threads.
    #[command(flatten)]
    pub cold: BenchCold,
}

/// The pages to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColdWorkload {
    /// Random pages
    Random,
    /// One after the other, with and without read-ahead
    Sequential,
}

impl ColdWorkload {
    /// The measurement's name for it.
    pub fn choice(self) -> Choice {
        match self {
            ColdWorkload::Random => Choice::Uniform,
            ColdWorkload::Sequential => Choice::Sequential,
        }
    }
}

/// Arguments of `mixed`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(limited::MIXED_RIVALS))))]
pub struct BenchMixed {
    /// Shares of the reads that find their page in memory, 0 to 99; one measurement for each
    #[arg(
        long,
        value_name = "PERCENT,...",
        default_value = "0,20,40,60,80,90,95,99",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(0..=99)
    )]
    pub hit_percent: Vec<u8>,
    /// Draw operations per second against the share of hits, and those of the key-value loads
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Memory, length and threads as for `cold`.
    #[command(flatten)]
    pub cold: BenchCold,
}

/// Arguments of `small-writes`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(limited::WRITE_RIVALS))))]
pub struct BenchSmallWrites {
    /// Memory for pages that were written, the same for each contender
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub cache: u64,
    /// Length of the measured file, which is removed afterwards [default: 4 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Threads that write at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Arguments of all measurements.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// Arguments of `nodes`.
#[derive(Debug, Args)]
#[command(mut_arg("threads", |threads| threads.default_value("1")))]
pub struct BenchNodes {
    /// Length of the measured file, which is removed afterwards. For hits all of it is in memory, for misses an eighth
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    pub size: u64,
    /// Numbers of threads.
    #[command(flatten)]
    pub threads: BenchThreads,
    /// Pages per call; one measurement for each
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,16,256",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=65536)
    )]
    pub batch: Vec<u32>,
    /// The kind of iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
}

/// Arguments of `soak`.
#[derive(Debug, Args)]
pub struct BenchSoak {
    /// How long to run, 1 to 86400
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Size of iomill's cache
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub cache: u64,
    /// Length of the file, which is removed afterwards [default: 4 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Threads that work at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// The kind of iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// Where the array is made, and where the results go.
    #[command(flatten)]
    pub place: BenchPlace,
}
