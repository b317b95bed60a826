//! Arguments of `work`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use clap::{Args, ValueHint};
use iomill_cli::arguments::size;
use iomill_work::{Contender, Load};

use super::BenchPlace;

/// Arguments of `work`.
#[derive(Debug, Args)]
pub struct BenchWork {
    /// The program
    #[arg(value_name = "LOAD", value_parser = PossibleValuesParser::new(Load::ALL.map(Load::name)).try_map(load))]
    pub load: Load,
    /// Approximate bytes of its data, 8MiB to 1TiB. Each contender has memory for an eighth of them, or for a quarter
    /// in `train`
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = data_size)]
    pub size: u64,
    /// Turns of each contender; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Rivals that take part [default: all rivals of the load]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(Contender::ALL.map(Contender::name)).try_map(contender))]
    pub rivals: Option<Vec<Contender>>,
    /// A directory on each drive of iomill's array, with commas between them [default: four directories below --dir]
    #[arg(long, value_name = "DIR,DIR,...", value_delimiter = ',', value_hint = ValueHint::DirPath)]
    pub drives: Option<Vec<PathBuf>>,
    /// The place of the rivals' files and of the results.
    #[command(flatten)]
    pub place: BenchPlace,
}

fn load(name: String) -> Result<Load, String> {
    Load::ALL.into_iter().find(|load| load.name() == name).ok_or(name)
}

fn contender(name: String) -> Result<Contender, String> {
    Contender::ALL.into_iter().find(|contender| contender.name() == name).ok_or(name)
}

fn data_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if (8 << 20..=1 << 40).contains(&bytes) => Ok(bytes),
        _ => Err("the data have 8MiB to 1TiB".to_owned()),
    }
}
