//! Arguments of the general measurements: `random`, `sequential`, `gate`, `picture`.

use std::path::PathBuf;

use clap::Args;
use iomill_bench::task::Task;
use iomill_bench::workload::Workload;
use iomill_cli::arguments::{Layout, block_size, size};

use super::{BenchRounds, BenchTimes};

/// Arguments of `gate`.
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

/// Arguments of `picture`.
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

/// Arguments of `random` and `sequential`.
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

fn request_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    let workload = Workload { block_bytes: u32::try_from(bytes).unwrap_or(u32::MAX), ..Workload::RANDOM_READ };
    workload.check().map_err(|error| error.to_string())?;
    Ok(workload.block_bytes)
}
