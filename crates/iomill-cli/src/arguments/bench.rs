//! The arguments of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::values::size;

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
    /// A first look: random reads of an array of four directories made here, beside `pread`, `mmap` and io_uring, in
    /// half a minute
    Quick(BenchQuick),
}

/// Arguments of `bench quick`.
#[derive(Debug, Args)]
pub struct BenchQuick {
    /// Length of the file that is read, which is removed afterwards [default: 1GiB, or what disk, memory and ten
    /// seconds allow]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Where to make the array; it is removed afterwards [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write the results into this file as one JSON document. Without FILE, or with `-`, print it instead of the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", help_heading = "Global options")]
    pub json: Option<PathBuf>,
}
