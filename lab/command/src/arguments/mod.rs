//! The command line of the lab. Parser, help and messages come from this one definition.
//!
//! Goals: a wrong argument is refused here if no look at an array is needed for that. Non-goals: options that every
//! command of iomill has, which are [`iomill_cli::arguments::Global`].

mod access;
mod cache;
mod cached;
mod files;
mod ladder;
mod mapped;
mod paper;
mod replay;
mod rows;
mod turns;
mod work;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use iomill_cli::arguments::{Global, under_heading};

pub use access::{BenchAccess, BenchGate, BenchPicture};
pub use cache::{CacheKind, check_cache};
pub use cached::{
    BenchCold, BenchColdOnly, BenchMixed, BenchNodes, BenchSmallWrites, BenchSoak, BenchTurns, BenchWarm,
};
pub use files::BenchFiles;
pub use ladder::{BenchLadder, Paper};
pub use mapped::BenchMapped;
pub use paper::BenchPaper;
pub use replay::Replay;
pub use rows::BenchRows;
pub use turns::{BenchPlace, BenchRounds, BenchThreads, BenchTimes};
pub use work::BenchWork;

/// iomill beside its rivals, on the same bytes.
#[derive(Debug, Parser)]
#[command(
    name = "iomill-lab",
    version,
    max_term_width = 100,
    subcommand_required = true,
    after_help = "Example:\n  iomill-lab random --threads 2 --size 8GiB -a /mnt/ssd0\n  iomill-lab warm --json warm.json\n\n\
                  Exit codes: 0 good, 1 failed, 2 bad usage; 128 + the signal's number after an interrupt or a broken pipe."
)]
pub struct Lab {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// The measurement.
    #[command(subcommand)]
    pub measurement: Measurement,
}

/// Parses a command line. Its first argument is the command's own name.
pub fn parse<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> Result<Lab, clap::Error> {
    let mut command = under_heading(Lab::command());
    command.build();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Lab::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The measurements.
#[derive(Debug, Subcommand)]
pub enum Measurement {
    /// Random requests on an array
    Random(BenchAccess),
    /// Sequential requests on an array
    Sequential(BenchAccess),
    /// The ratios that no change may make worse, each with its bound and its noise, in under three minutes
    #[command(after_help = "The exit code is 1 when a ratio is worse than its bound by more than its noise.")]
    Gate(BenchGate),
    /// Draw cold and warm random reads by iomill beside `mmap`, `pread` and io_uring by hand, in about two minutes
    Picture(BenchPicture),
    /// Random rows of your own file, from its drive and from memory, beside `mmap` and `pread`
    #[command(
        after_help = "Example:\n  iomill-lab rows features.npy\n  iomill-lab rows vectors.bin --row-size 3KiB --rows 1000\n\n\
                            The file is never written. For cold reads each contender has the same memory, which takes root. Without root \
                            the rivals have all of the machine's memory, and the table says `cold` instead of `held`."
    )]
    Rows(BenchRows),
    /// Many small files, made, looked up, opened, read, deleted and listed, beside plain files
    Files(BenchFiles),
    /// Small random reads of data that is all in memory: the cost of a hit
    Warm(BenchWarm),
    /// Random reads of data far larger than the memory: the cost of a miss
    Cold(BenchColdOnly),
    /// Random reads with a given share of hits, and a key-value load
    Mixed(BenchMixed),
    /// Small unaligned writes, and the sync after them
    SmallWrites(BenchSmallWrites),
    /// The steps of a paper, switched on one after the other; afterwards the machine's settings are the old ones
    Ladder(BenchLadder),
    /// Reads of pages that are on other NUMA nodes, directly and by message
    Nodes(BenchNodes),
    /// Reads and growth of a file that is mapped, beside system calls
    MmapVsSyscall(BenchMapped),
    /// All calls at once, for minutes or hours. It checks every byte, and the bound of the memory
    #[command(
        after_help = "The exit code is 1 when a byte is wrong, or when the process takes more than the cache's size, 3% and 8 MiB."
    )]
    Soak(BenchSoak),
    /// Whole programs: a key-value store, a graph, labels, vector search or training, each contender with the same
    /// memory
    #[command(
        after_help = "Example:\n  iomill-lab work graph\n  iomill-lab work kv --size 4GiB --rounds 5 --json kv.json\n\n\
                      The programs are the examples of the library. It takes root, because memory is limited by a memory cgroup. The rivals \
                      RocksDB, LMDB and WiredTiger take part where their libraries and a C compiler are: on Debian \
                      `apt install gcc librocksdb-dev liblmdb-dev libwiredtiger-dev`."
    )]
    Work(BenchWork),
    /// All experiments of the works on which iomill is based, beside today's rivals, as one report
    #[command(
        after_help = "Example:\n  iomill-lab paper --quick\n  iomill-lab paper --drives /mnt/ssd0,/mnt/ssd1 --trace oltp.csv.xz\n  \
                      iomill-lab paper --only kv,graph\n\nA run that was stopped goes on where it was: what the directory of the report has is not \
                      measured again."
    )]
    Paper(BenchPaper),
    /// Do the turn of `work` that the standard input describes
    #[command(hide = true)]
    WorkTurn,
    /// Serve the requests of a measurement on the standard input, within its memory limit
    #[command(hide = true)]
    Held,
    /// Repeat recorded accesses on an array or a plain file, or simulate caches that serve them
    #[command(after_help = "Example:\n  iomill-lab replay oltp.csv.xz -a /mnt/ssd0 --threads 4\n  \
                            iomill-lab replay oltp.csv.xz --plain tables.db --cache 256MiB\n  iomill-lab replay --simulate *.csv.xz --svg hits.svg\n\n\
                            Traces are CSV (`op,offset,length`), SPC, MSR Cambridge, or the output of blkparse.")]
    Replay(Replay),
}

impl Measurement {
    /// The name of the measurement, with which its messages begin.
    pub fn name(&self) -> &'static str {
        match self {
            Measurement::Random(_) => "random",
            Measurement::Sequential(_) => "sequential",
            Measurement::Gate(_) => "gate",
            Measurement::Picture(_) => "picture",
            Measurement::Rows(_) => "rows",
            Measurement::Files(_) => "files",
            Measurement::Warm(_) => "warm",
            Measurement::Cold(_) => "cold",
            Measurement::Mixed(_) => "mixed",
            Measurement::SmallWrites(_) => "small-writes",
            Measurement::Ladder(_) => "ladder",
            Measurement::Nodes(_) => "nodes",
            Measurement::MmapVsSyscall(_) => "mmap-vs-syscall",
            Measurement::Soak(_) => "soak",
            Measurement::Paper(_) => "paper",
            Measurement::Work(_) => "work",
            Measurement::WorkTurn => "work-turn",
            Measurement::Held => "held",
            Measurement::Replay(_) => "replay",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Lab::command().debug_assert();
    }

    #[test]
    fn examples_parse() {
        for command in Lab::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for example in help.lines().filter_map(|line| line.trim_start().strip_prefix("iomill-lab ")) {
                let line = std::iter::once("iomill-lab").chain(example.split_whitespace());
                assert_eq!(parse(line).unwrap().measurement.name(), command.get_name(), "{example}");
            }
        }
    }

    /// The lines of a page's `sh` blocks that run this command, as words.
    fn commands_of(page: &str) -> Vec<Vec<&str>> {
        let mut in_shell = false;
        let mut found = Vec::new();
        for line in page.lines() {
            if line.starts_with("```") {
                in_shell = line == "```sh";
            } else if let Some((before, after)) = line.split_once("lab/Cargo.toml -- ").filter(|_| in_shell)
                && !before.contains("-p ")
            {
                found.push(after.split_whitespace().collect());
            } else if let Some(after) = line.strip_prefix("iomill-lab ").filter(|_| in_shell) {
                found.push(after.split_whitespace().collect());
            }
        }
        found
    }

    #[test]
    fn commands_in_pages_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut checked = 0;
        for directory in ["", "docs", "lab", "lab/judges"] {
            for entry in fs::read_dir(root.join(directory)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "md") {
                    continue;
                }
                for words in commands_of(&fs::read_to_string(&path).unwrap()) {
                    let line = std::iter::once("iomill-lab").chain(words.iter().copied());
                    let parsed = parse(line).map(|lab| lab.measurement.name());
                    assert!(parsed.is_ok(), "{}: {words:?}: {}", path.display(), parsed.unwrap_err());
                    checked += 1;
                }
            }
        }
        assert!(checked > 10, "only {checked} commands were found");
    }
}
