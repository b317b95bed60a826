//! Arguments of `ladder`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use iomill_bench::falcon::Load;
use iomill_trace::Format;

use iomill_cli::arguments::{seconds, size};

/// The papers that have steps here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Paper {
    /// Even interrupts, bound threads, the noop scheduler, I/O threads (Zheng, Burns, Szalay, SC'13)
    Sc13,
    /// Order, merging, gathering, adaptive depth in the drives' queues (Kumar, Huang, ATC'17)
    Falcon,
}

/// Arguments of `ladder`.
#[derive(Debug, Args)]
pub struct BenchLadder {
    /// The paper that describes the steps
    #[arg(long, value_enum, value_name = "PAPER")]
    pub of: Paper,
    /// Threads that call at the same time [default: one for each CPU that may be used]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Length of the measured file, which is removed afterwards
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,
    /// Length of one step's turn, 0.1 to 600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Turns of each step; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Where to make an array if none is named; it is removed afterwards [default: the current directory]. falcon takes
    /// several, and makes drives in them in turn
    #[arg(long, value_name = "DIR")]
    pub dir: Vec<PathBuf>,
    /// Numbers of drives of the arrays that falcon makes. With more drives than devices under DIR, some share a device
    /// [default: 1,2,4,8, up to the number of devices]
    #[arg(long, value_name = "N,N...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub drives: Option<Vec<u16>>,
    /// The reads of falcon's steps, in pages of 4 KiB [default: all loads; none with --trace]
    #[arg(long = "load", value_enum, value_name = "NAMES", value_delimiter = ',')]
    pub loads: Option<Vec<LoadName>>,
    /// A recorded trace that falcon's steps replay, plain or compressed (gzip, xz, zstd); may be given several times.
    /// Its offsets are taken modulo the file's length
    #[arg(long = "trace", value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// Form of the traces: csv, spc, msr or blkparse [default: detected by the first line]
    #[arg(long, requires = "traces")]
    pub format: Option<Format>,
    /// Take only the first N requests of each trace; they are kept in memory
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "traces",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub limit: u64,
    /// Where the machine's old settings are saved meanwhile [default: ladder.json beside the state of `iomill tune`]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Change a recorded machine, unpacked into a directory, instead of this one
    #[arg(long, value_name = "DIR", default_value = iomill_platform::tree::MACHINE, hide = true)]
    pub root: PathBuf,
    /// Write the results into this file as one JSON document. Without FILE, or with `-`, print it instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Global options")]
    pub json: Option<PathBuf>,
}

impl BenchLadder {
    /// Threads that read: the given number, or one for each CPU.
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}

/// The order of reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadName {
    /// Pages at random
    Random,
    /// Every other page
    Strided,
    /// Page after page
    Sequential,
    /// A sequential stream and random pages, in turn
    Mixed,
}

impl LoadName {
    /// The measurement's name for it.
    pub fn load(self) -> Load {
        match self {
            LoadName::Random => Load::Random,
            LoadName::Strided => Load::Strided,
            LoadName::Sequential => Load::Sequential,
            LoadName::Mixed => Load::Mixed,
        }
    }
}
