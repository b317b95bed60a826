//! The values of options: how users write them, and what is refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::human::parse_size;

/// How blocks are spread over the drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// One block after the other, drive after drive
    Striping,
    /// Striping in which each stripe begins one drive further on
    Rotated,
    /// A permutation, in proportion to the drives' weights
    Hash,
}

impl Layout {
    /// The same layout as the library names it.
    pub fn kind(self) -> iomill::Layout {
        match self {
            Layout::Striping => iomill::Layout::Striping,
            Layout::Rotated => iomill::Layout::Rotated,
            Layout::Hash => iomill::Layout::Hash,
        }
    }
}

/// Parses the path of a file that is no standard stream.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        true => Err("a standard stream cannot be used here: name a file, `./-` if its name is `-`"),
        false => Ok(path),
    })
}

/// Parses a size; see [`parse_size`].
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses the length of a turn.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 600".to_owned()),
    }
}

/// Parses the weight of a drive.
pub fn weight(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a weight is a number from 1 to 1000".to_owned())
}

/// Parses the interval of `top`.
pub fn interval(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a time such as 500ms, 1s, 5m or 1h".to_owned()),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a time from 100ms to 1h, such as 500ms, 1s or 5m".to_owned()),
    }
}

/// Parses the size of a block.
pub fn block_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes).map_err(|_| "a block is at most 64 MiB".to_owned())
}
