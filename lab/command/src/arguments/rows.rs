//! Arguments of `rows`.

use std::path::PathBuf;

use clap::Args;

use iomill_cli::arguments::{seconds, size};

/// Arguments of `rows`.
#[derive(Debug, Args)]
pub struct BenchRows {
    /// The file. It is read and never written
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Bytes of a row, 1 to 16MiB
    #[arg(long, value_name = "SIZE", default_value = "512", value_parser = row_size)]
    pub row_size: u32,
    /// Rows of a gather, 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub rows: u32,
    /// Memory for the cold reads, the same for each contender [default: an eighth of the file, at least 16MiB, at most
    /// half, and at most a quarter of the available memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache: Option<u64>,
    /// Threads that gather at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Length of one contender's turn, 0.1 to 600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub seconds: f64,
    /// Turns of each contender; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Write the results into this file as one JSON document. Without FILE, or with `-`, print it instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Global options")]
    pub json: Option<PathBuf>,
}

fn row_size(text: &str) -> Result<u32, String> {
    match u32::try_from(size(text)?) {
        Ok(bytes) if (1..=16 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("a row has 1 byte to 16MiB".to_owned()),
    }
}
