//! How the drives' queues work: options of every command.

use clap::Args;
use iomill::ArrayOptions;

/// See the module.
#[derive(Debug, Args)]
pub struct Queues {
    /// Most I/Os in flight per drive: `fixed:N` (or N), 1 to 1024, or `adaptive`: as many as the drive's throughput asks for
    /// [default: the profile's, or else fixed:32]
    #[arg(
        long,
        value_name = "fixed:N|adaptive",
        value_parser = depth,
        global = true,
        help_heading = "Global options"
    )]
    pub depth: Option<Depth>,
    /// Serve requests in the order in which they come, not by their offset
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_sort: bool,
    /// Send each request to its drive by itself, not as one with its neighbours
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_merge: bool,
    /// How many requests to a drive that is busy wait for neighbours at most, 1 to 1024; 1: none waits
    /// [default: the profile's, or else 32]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024),
        global = true,
        help_heading = "Global options"
    )]
    pub plug: Option<u32>,
}

/// How many I/Os in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// So many.
    Fixed(u32),
    /// What the drive asks for.
    Adaptive,
}

impl std::fmt::Display for Depth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Depth::Fixed(depth) => write!(f, "fixed:{depth}"),
            Depth::Adaptive => f.write_str("adaptive"),
        }
    }
}

impl Depth {
    /// The depth where it does not adapt.
    pub fn fixed(self) -> u32 {
        match self {
            Depth::Fixed(depth) => depth,
            Depth::Adaptive => iomill::DEFAULT_DEPTH,
        }
    }

    /// The most that may be in flight.
    pub fn most(self) -> u32 {
        match self {
            Depth::Fixed(depth) => depth,
            Depth::Adaptive => iomill::ADAPTIVE_DEPTH,
        }
    }
}

impl Queues {
    /// The options with these.
    pub fn apply(&self, options: ArrayOptions) -> ArrayOptions {
        let options = options.sort(!self.no_sort).merge(!self.no_merge);
        let options = match self.depth {
            Some(depth) => options.depth(depth.most()).adaptive_depth(depth == Depth::Adaptive),
            None => options,
        };
        self.plug.into_iter().fold(options, ArrayOptions::plug)
    }

    /// The depth that was given, or the default, for those to whom no profile matters.
    pub fn depth(&self) -> Depth {
        self.depth.unwrap_or(Depth::Fixed(iomill::DEFAULT_DEPTH))
    }
}

fn depth(text: &str) -> Result<Depth, String> {
    if text == "adaptive" {
        return Ok(Depth::Adaptive);
    }
    match text.strip_prefix("fixed:").unwrap_or(text).parse() {
        Ok(depth) if (1..=1024).contains(&depth) => Ok(Depth::Fixed(depth)),
        _ => Err("give `fixed:N` or N with N from 1 to 1024, or `adaptive`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_read_and_shown_alike() {
        for (text, expected) in
            [("1", Depth::Fixed(1)), ("fixed:1024", Depth::Fixed(1024)), ("adaptive", Depth::Adaptive)]
        {
            assert_eq!(depth(text), Ok(expected));
            assert_eq!(depth(&expected.to_string()), Ok(expected));
        }
        for text in ["", "0", "fixed:", "fixed:1025", "-1", "adaptive:3", "Adaptive", "32x"] {
            assert!(depth(text).is_err(), "{text}");
        }
    }
}
