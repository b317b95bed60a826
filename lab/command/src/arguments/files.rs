//! Arguments of `files`.

use clap::Args;
use iomill_bench::bench::Rivals;
use iomill_bench::files::RIVALS;

use super::BenchTimes;
use super::turns::rivals_help;

/// Arguments of `files`.
#[derive(Debug, Args)]
#[command(mut_arg("seconds", |seconds| seconds.default_value("0.5")))]
pub struct BenchFiles {
    /// Files that exist while others are made and deleted
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub files: u32,
    /// Numbers of threads; one measurement for each
    #[arg(long, value_name = "N,N,...", default_value = "1,16", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Vec<u16>,
    /// Which rivals take part
    #[arg(long, value_name = "NAMES", default_value = "all", help = rivals_help(RIVALS))]
    pub rivals: Rivals,
    /// How long, how often, and where.
    #[command(flatten)]
    pub times: BenchTimes,
}
