//! How the drives' queues work: options of every command.

use clap::Args;
use iomill::ArrayOptions;

/// Options of the drives' queues.
#[derive(Debug, Args)]
pub struct Queues {
    /// The most I/Os in flight per drive: `fixed:N` (or N), 1 to 1024, or `adaptive`: as many as raise the drive's
    /// throughput [default: the profile's, or else fixed:32]
    #[arg(
        long,
        value_name = "fixed:N|adaptive",
        value_parser = depth,
        global = true,
        help_heading = "Global options"
    )]
    pub depth: Option<Depth>,
    /// Serve requests in the order of their arrival, not by their offset
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_sort: bool,
    /// Send each request to its drive by itself, not merged with its neighbours
    #[arg(long, global = true, help_heading = "Global options")]
    pub no_merge: bool,
    /// How many requests to a busy drive may wait for neighbours, 1 to 1024; with 1 none waits
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

/// How many I/Os are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// This number.
    Fixed(u32),
    /// The number that the drive's throughput asks for.
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
    /// The depth that a fixed queue has.
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
    /// The same as options of an array.
    pub fn apply(&self, options: ArrayOptions) -> ArrayOptions {
        let options = options.with_tuning(|tuning| tuning.sort(!self.no_sort).merge(!self.no_merge));
        let options = match self.depth {
            Some(depth) => {
                options.depth(depth.most()).with_tuning(|tuning| tuning.adaptive_depth(depth == Depth::Adaptive))
            }
            None => options,
        };
        self.plug.into_iter().fold(options, |options, plug| options.with_tuning(|tuning| tuning.plug(plug)))
    }

    /// The depth on the command line, or the default; for commands that read no profile.
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
