//! Arguments of `mmap-vs-syscall`.

use clap::{Args, ValueEnum};
use iomill_bench::workload::Order;

use iomill_cli::arguments::size;

use super::{BenchThreads, BenchTimes};

/// Arguments of `mmap-vs-syscall`.
#[derive(Debug, Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("0.2")))]
pub struct BenchMapped {
    /// Bytes per read, 1 to 16 MiB; one measurement for each
    #[arg(
        long,
        value_name = "SIZE,...",
        default_value = "512,4KiB,16KiB,64KiB,256KiB,1MiB",
        value_delimiter = ',',
        value_parser = read_size
    )]
    pub request_size: Vec<u32>,
    /// Orders of the reads; one measurement for each
    #[arg(long, value_enum, value_name = "NAMES", default_value = "random,sequential", value_delimiter = ',')]
    pub order: Vec<OrderName>,
    /// Numbers of threads.
    #[command(flatten)]
    pub threads: BenchThreads,
    /// Length of the file that is read, which is removed afterwards
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub size: u64,
    /// Bytes by which a growing file grows, in writes of 4 KiB; 0 leaves that measurement out
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub growth: u64,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
}

/// Orders of the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// Random offsets
    Random,
    /// One after the other, each thread in a share of its own
    Sequential,
}

impl OrderName {
    /// The measurement's name for it.
    pub fn order(self) -> Order {
        match self {
            OrderName::Random => Order::Random,
            OrderName::Sequential => Order::Sequential,
        }
    }
}

fn read_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if (1..=16 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("a read is 1 byte to 16 MiB".to_owned()),
    }
}
