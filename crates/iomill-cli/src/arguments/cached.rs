//! Arguments of the measurements of caches: `bench warm`, `cold`, `mixed`, `small-writes`, `nodes`, `soak`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use iomill_bench::draw::Choice;
use iomill_bench::records::Skew;
use iomill_bench::{limited, warm};

use super::bench::rivals_help;
use super::{BenchPlace, BenchRounds, BenchThreads, BenchTimes, CacheKind, size};

/// What all of them have.
#[derive(Debug, Args)]
pub struct BenchTurns {
    /// Iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// Turns, and who takes them.
    #[command(flatten)]
    pub rounds: BenchRounds,
}

/// What those have that read.
#[derive(Debug, Args)]
pub struct BenchBatch {
    /// Operations per call of those who take many, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: u32,
}

/// Arguments of `bench warm`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(warm::RIVALS))))]
pub struct BenchWarm {
    /// Bytes that are read from; they are in memory two times over, in the page cache and in iomill's; three times with other caches
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    pub size: u64,
    /// Size of iomill's cache, which must hold all of that: a page has one small set to be in, so that a cache of the same size
    /// could not; memory is taken for pages that are there [default: 4 times the size]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache: Option<u64>,
    /// Numbers of threads.
    #[command(flatten)]
    pub threads: BenchThreads,
    /// Which records are popular; one measurement each
    #[arg(long, value_enum, value_name = "NAMES", default_value = "uniform,zipf", value_delimiter = ',')]
    pub skew: Vec<SkewName>,
    /// Operations per call.
    #[command(flatten)]
    pub batch: BenchBatch,
    /// What all of them have.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// Which records are popular.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SkewName {
    /// All alike
    Uniform,
    /// A few, by a zipf law with exponent 0.99
    Zipf,
}

impl SkewName {
    /// The measurement's word for it.
    pub fn skew(self) -> Skew {
        match self {
            SkewName::Uniform => Skew::Uniform,
            SkewName::Zipf => Skew::Zipf,
        }
    }
}

/// Arguments of `bench cold` and `bench mixed`.
#[derive(Debug, Args)]
pub struct BenchCold {
    /// Memory for what was read, the same for everybody
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
    /// What all of them have.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// Arguments of `bench cold`, those that `bench mixed` has too and its own.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(limited::COLD_RIVALS))))]
pub struct BenchColdOnly {
    /// Which pages are read; one measurement each
    #[arg(long, value_enum, value_name = "NAMES", default_value = "random", value_delimiter = ',')]
    pub workload: Vec<ColdWorkload>,
    /// Memory, length and threads.
    #[command(flatten)]
    pub cold: BenchCold,
}

/// Which pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColdWorkload {
    /// Any of them
    Random,
    /// One after the other, with read-ahead and without it
    Sequential,
}

impl ColdWorkload {
    /// The measurement's word for it.
    pub fn choice(self) -> Choice {
        match self {
            ColdWorkload::Random => Choice::Uniform,
            ColdWorkload::Sequential => Choice::Sequential,
        }
    }
}

/// Arguments of `bench mixed`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(limited::MIXED_RIVALS))))]
pub struct BenchMixed {
    /// Shares of the reads that find their page in memory, 0 to 99; one measurement each
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
    /// Memory, length and threads as of `bench cold`.
    #[command(flatten)]
    pub cold: BenchCold,
}

/// Arguments of `bench small-writes`.
#[derive(Debug, Args)]
#[command(mut_arg("rivals", |rivals| rivals.help(rivals_help(limited::WRITE_RIVALS))))]
pub struct BenchSmallWrites {
    /// Memory for what was written, the same for everybody
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub cache: u64,
    /// Length of the measured file, which is removed afterwards [default: 4 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Threads that write at the same time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// What all of them have.
    #[command(flatten)]
    pub turns: BenchTurns,
}

/// Arguments of `bench nodes`.
#[derive(Debug, Args)]
#[command(mut_arg("threads", |threads| threads.default_value("1")))]
pub struct BenchNodes {
    /// Length of the measured file, which is removed afterwards; for hits all of it is in memory, for misses an eighth
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = size)]
    pub size: u64,
    /// Numbers of threads.
    #[command(flatten)]
    pub threads: BenchThreads,
    /// Pages per call; one measurement each
    #[arg(
        long,
        value_name = "N,N,...",
        default_value = "1,16,256",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=65536)
    )]
    pub batch: Vec<u32>,
    /// Iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// How long, how often, where.
    #[command(flatten)]
    pub times: BenchTimes,
}

/// Arguments of `bench soak`.
#[derive(Debug, Args)]
pub struct BenchSoak {
    /// How long, 1 to 86400
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
    /// Iomill's cache.
    #[command(flatten)]
    pub kind: CacheKind,
    /// Where, and where to.
    #[command(flatten)]
    pub place: BenchPlace,
}
