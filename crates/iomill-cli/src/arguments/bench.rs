//! The measurements of `bench`, and the arguments of the general ones.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{
    BenchColdOnly, BenchFiles, BenchLadder, BenchMapped, BenchMixed, BenchNodes, BenchPlace, BenchRounds, BenchRows,
    BenchSmallWrites, BenchSoak, BenchTimes, BenchWarm, Layout,
};
use super::{block_size, request_size, size};

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
    /// Draw cold and warm random reads by iomill beside `mmap`, `pread` and io_uring by hand, in about two minutes
    Picture(BenchPicture),
    /// Random rows of a file of yours, from its drive and from memory, beside `mmap` and `pread`
    #[command(
        after_help = "Example:\n  iomill bench rows features.npy\n  iomill bench rows vectors.bin --row-size 3KiB --rows 1000\n\n\
                            The file is never written. For cold reads each contender has the same memory, which takes root. Without root \
                            the rivals have all of the machine's memory, and the table says `cold` instead of `held`."
    )]
    Rows(BenchRows),
    /// Many small files, made, looked up, opened, read, deleted and listed, beside plain files
    Files(BenchFiles),
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

/// Arguments of `bench picture`.
#[derive(Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("5")))]
pub struct BenchPicture {
    /// Length of the measured files, which are removed afterwards; they are in memory twice
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,
    /// The file that gets the picture; an old one is replaced
    #[arg(long, value_name = "FILE", default_value = "iomill-picture.svg")]
    pub svg: PathBuf,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
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
