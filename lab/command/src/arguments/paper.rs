//! Arguments of `paper`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::BenchPlace;

/// Arguments of `paper`.
#[derive(Debug, Args)]
pub struct BenchPaper {
    /// The directory of the report. It gets report.html, report.json, report.csv, and a document of each step
    #[arg(long, value_name = "DIR", default_value = "iomill-paper", value_hint = ValueHint::DirPath)]
    pub report: PathBuf,
    /// Small data and short turns: under five minutes, to check that everything works
    #[arg(long)]
    pub quick: bool,
    /// These experiments only
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// A directory on each drive, with commas between them. Without it and without --devices drives in memory are made,
    /// which takes root and zram
    #[arg(long, value_name = "DIR,DIR,...", value_delimiter = ',', value_hint = ValueHint::DirPath)]
    pub drives: Vec<PathBuf>,
    /// Empty block devices, with commas between them: they get a file system each, and then one over all as RAID 0.
    /// Takes root. The first MiB of each must be zeros; other devices are refused
    #[arg(long, value_name = "DEV,DEV,...", value_delimiter = ',', conflicts_with = "drives", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
    /// A recorded trace for the experiments on policies; may be given several times
    #[arg(long = "trace", value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The place of the rivals' files and of the results.
    #[command(flatten)]
    pub place: BenchPlace,
}
