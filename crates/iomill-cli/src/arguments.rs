//! The command line. Parser, help, man pages and completions all come from this one definition.
//!
//! Goals: a wrong argument is refused here if that takes no look at an array. Non-goals: defaults that depend on the
//! machine.

mod bench;
mod catalog;
mod copying;
mod cp;
mod nodes;
mod platform;
mod queue;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use iomill::engine::EngineKind;

pub use bench::{Bench, BenchQuick, BenchWhat};
pub use catalog::{Catalog, CatalogWhat, Check};
pub use copying::{Get, Names, Put};
pub use cp::Cp;
pub use nodes::Nodes;
pub use platform::{Probe, Tune};
pub use queue::{Depth, Queues};
pub use values::{Layout, block_size, file, seconds, size};
use values::{interval, weight};

/// Many commodity SSDs as one very fast file.
#[derive(Debug, Parser)]
#[command(
    name = "iomill",
    version,
    max_term_width = 100,
    subcommand_required = true,
    after_help = "Example:\n  iomill init /mnt/ssd0 /mnt/ssd1\n  iomill -a /mnt/ssd0 put edges.bin graph/edges\n\n\
                  Exit codes: 0 good, 1 failed, 2 bad usage; 128 + the signal's number after an interrupt or a broken pipe."
)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Parses a command line. Its first argument is the command's own name.
pub fn parse<T: Into<OsString> + Clone>(arguments: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error> {
    let mut command = definition();
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Any drive of the array; repeat it for drives that have moved [env: IOMILL_ARRAY]
    ///
    /// Without it, IOMILL_ARRAY names the drive. Without that either, it is the current directory, if that is a drive.
    #[arg(short, long, value_name = "DIR", global = true, help_heading = "Global options")]
    pub array: Vec<PathBuf>,
    /// Print one JSON document for programs
    #[arg(long, num_args = 0, default_missing_value = "-", global = true, help_heading = "Global options")]
    pub json: Option<PathBuf>,
    /// Print no notes and no progress
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// Use this engine or fail, instead of the best one that each drive allows
    #[arg(long, value_enum, value_name = "ENGINE", global = true, help_heading = "Global options")]
    pub engine: Option<Engine>,
    /// Have a thread for each drive do its I/O, instead of the calling threads [default: the profile's, or else false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", global = true,
        help_heading = "Global options")]
    pub drive_threads: Option<bool>,
    /// Use the settings that `iomill probe --profile FILE` measured as best: depth, drive threads, weights of new
    /// files. Options on the command line take precedence
    #[arg(long, value_name = "FILE", value_parser = file(), global = true, help_heading = "Global options")]
    pub profile: Option<PathBuf>,
    /// How the drives' queues work.
    #[command(flatten)]
    pub queues: Queues,
    /// Poll for completions instead of taking interrupts, on drives that have queues for polling
    #[arg(long, global = true, help_heading = "Global options")]
    pub poll: bool,
    /// NUMA nodes.
    #[command(flatten)]
    pub nodes: Nodes,
    /// Parse the command line and do nothing
    #[arg(long, hide = true, global = true)]
    pub parse_only: bool,
}

/// Options of [`Global`] that say how I/O is done.
const IO_OPTIONS: [&str; 11] = [
    "engine",
    "drive_threads",
    "depth",
    "no_sort",
    "no_merge",
    "plug",
    "poll",
    "profile",
    "topology",
    "cache_nodes",
    "io_nodes",
];

/// Commands with those options in their help. The other commands do too little I/O for them to matter.
const IO_COMMANDS: [&str; 7] = ["info", "put", "get", "truncate", "check", "bench", "probe"];

/// A definition that has the options of [`Global`]. Those that say how I/O is done get a heading of their own.
pub fn under_heading(command: clap::Command) -> clap::Command {
    command.mut_args(|option| match IO_OPTIONS.contains(&option.get_id().as_str()) {
        true => option.help_heading("I/O options"),
        false => option,
    })
}

/// The definition of the command line.
pub fn definition() -> clap::Command {
    // `build` gives each command its own copy of the global options.
    let mut command = under_heading(Cli::command());
    command.build();
    let hide = |command: clap::Command| {
        command.mut_args(|option| {
            let is_io = IO_OPTIONS.contains(&option.get_id().as_str());
            if is_io { option.hide(true) } else { option }
        })
    };
    hide(command).mut_subcommands(|command| match IO_COMMANDS.contains(&command.get_name()) {
        true => in_full_help(command),
        false => hide(command),
    })
}

/// Leaves the options of I/O to `--help`. `-h` has what most need, and says where the others are.
fn in_full_help(command: clap::Command) -> clap::Command {
    let full = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let name = command.get_bin_name().unwrap_or("iomill").to_owned();
    let short = format!("{full}\n\n`{name} --help` has the options of I/O, too.");
    let command = command.after_help(short.trim_start().to_owned()).after_long_help(full);
    let command = command.mut_subcommands(in_full_help);
    command.mut_args(|option| {
        let is_io = IO_OPTIONS.contains(&option.get_id().as_str());
        if is_io { option.hide_short_help(true) } else { option }
    })
}

impl Global {
    /// Whether the standard output gets a JSON document. A measurement may write its document to a file instead.
    pub fn wants_document(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// The file that gets a measurement's document, if a file is named.
    pub fn json_file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|_| !self.wants_document())
    }
}

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Rings shared with the kernel: the fastest, where the system allows it
    #[value(name = "io_uring")]
    Uring,
    /// `io_submit`, for direct I/O
    #[value(name = "libaio")]
    Aio,
    /// `pread` and `pwrite` on a few threads: works everywhere
    #[value(name = "posix")]
    Posix,
    /// Copies from and to mapped parts: for data in memory, and for devices that are memory
    #[value(name = "mmap")]
    Mmap,
}

impl Engine {
    /// The same engine as the library names it.
    pub fn kind(self) -> EngineKind {
        match self {
            Engine::Uring => EngineKind::Uring,
            Engine::Aio => EngineKind::Aio,
            Engine::Posix => EngineKind::Posix,
            Engine::Mmap => EngineKind::Mmap,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make directories into the drives of a new array
    #[command(after_help = "Example:\n  iomill init /mnt/ssd0 /mnt/ssd1 --weights 10,11")]
    Init(Init),
    /// Show the array and its drives
    #[command(after_help = "Example:\n  iomill -a /mnt/ssd0 info")]
    Info,
    /// List files
    #[command(after_help = "Example:\n  iomill ls graph/ -l")]
    Ls(Ls),
    /// Copy files into the array
    #[command(
        override_usage = "iomill put [OPTIONS] SOURCE [NAME]\n       iomill put [OPTIONS] [-r] SOURCE... PREFIX/\n       \
                          iomill put [OPTIONS] [-r] --to PREFIX/ SOURCE...",
        after_help = "Example:\n  iomill put edges.bin graph/edges --layout hash\n  \
                      zstd -dc edges.zst | iomill put - graph/edges\n  iomill put -r images labels.csv train/\n\n\
                      Each file appears whole or not at all. What a killed put leaves is removed when the array is next opened for \
                      writing. If one of several files fails, the others are copied all the same."
    )]
    Put(Put),
    /// Copy files out of the array
    #[command(
        override_usage = "iomill get [OPTIONS] NAME [DEST]\n       iomill get [OPTIONS] [-r] NAME... DIR\n       \
                          iomill get [OPTIONS] [-r] --to DIR NAME...",
        after_help = "Example:\n  iomill get graph/edges edges.bin\n  iomill get graph/edges - | sha256sum\n  \
                      iomill get -r train copy/\n  iomill get train/*.csv --to tables\n\n\
                      In names, * stands for any characters but /, ** for any, ? and [a-z] for one; quote them in a shell."
    )]
    Get(Get),
    /// Delete files
    #[command(
        after_help = "Example:\n  iomill rm graph/edges graph/nodes\n  iomill rm -r train\n  iomill rm tmp/*.bin\n\n\
                            In names, * stands for any characters but /, ** for any, ? and [a-z] for one; quote them in a shell."
    )]
    Rm(Names),
    /// Rename a file
    #[command(after_help = "Example:\n  iomill mv graph/edges graph/edges.old")]
    Mv(Mv),
    /// Copy a file within the array
    #[command(after_help = "Example:\n  iomill cp graph/edges graph/edges.old")]
    Cp(Cp),
    /// Show all details of files
    #[command(after_help = "Example:\n  iomill stat graph/edges")]
    Stat(Names),
    /// List, show, set or remove a file's attributes
    #[command(after_help = "Example:\n  iomill attr graph/edges version=3\n  iomill attr graph/edges --remove version")]
    Attr(Attr),
    /// Set a file's length
    #[command(after_help = "Example:\n  iomill truncate graph/edges 64GiB\n\n\
                            Bytes that are cut off are lost. Bytes that are added read as zero.")]
    Truncate(Truncate),
    /// Look for problems of an array, and repair them
    #[command(after_help = "Example:\n  iomill check --repair\n\n\
                            The exit code is 1 when a problem was found and not repaired.")]
    Check(Check),
    /// The catalog of an array as text, and a text as the catalog
    #[command(after_help = "Example:\n  iomill catalog export catalog.txt\n  iomill catalog import catalog.txt\n\n\
                            The text has a line for each layout, file and attribute. Run `iomill check` after an import.")]
    Catalog(Catalog),
    /// Measure iomill beside `pread`, `mmap` and io_uring by hand, on the same bytes
    #[command(after_help = "Example:\n  iomill bench quick\n  iomill bench quick --dir /mnt/ssd0 --json quick.json")]
    Bench(Bench),
    /// Watch the processes that use an array: its cache, its drives
    #[command(after_help = "Example:\n  iomill -a /mnt/ssd0 top\n  iomill top --interval 10s --count 6 --json\n\n\
                            It shows processes of the same user only. On a terminal, q ends it.")]
    Top(Top),
    /// Measure what drives and machine can do, and where the time goes
    #[command(
        after_help = "Example:\n  iomill -a /mnt/ssd0 probe\n  iomill probe /mnt/ssd0 /mnt/ssd1 --json probe.json\n  iomill probe features.bin\n  \
                            iomill -a /mnt/ssd0 probe --profile ssds.toml\n\n\
                            It makes files on each drive, reads them for about a minute, and removes them. It reads a raw device \
                            only if --raw names it, and never writes to one. Here --profile writes a profile; other commands \
                            use it: `iomill --profile ssds.toml ...`."
    )]
    Probe(Probe),
    /// Show which settings of this machine slow I/O down, and change them
    #[command(
        after_help = "Example:\n  iomill -a /mnt/ssd0 tune\n  iomill tune nvme0n1 nvme1n1 --apply\n  iomill tune --undo\n\n\
                            Without --apply it changes nothing. Before it sets anything, it saves the old values, in one file for all \
                            drives. A restart undoes everything except the files of --persist."
    )]
    Tune(Tune),
    /// Print completions for a shell
    #[command(after_help = "Example:\n  iomill completions bash > ~/.local/share/bash-completion/completions/iomill")]
    Completions(Completions),
    /// Print the manual page, or write those of all commands
    #[command(after_help = "Example:\n  iomill man --out /usr/local/share/man/man1")]
    Man(Man),
}

impl Command {
    /// The command's name, which messages begin with.
    pub fn name(&self) -> &'static str {
        match self {
            Command::Init(_) => "init",
            Command::Info => "info",
            Command::Ls(_) => "ls",
            Command::Put(_) => "put",
            Command::Get(_) => "get",
            Command::Rm(_) => "rm",
            Command::Mv(_) => "mv",
            Command::Cp(_) => "cp",
            Command::Stat(_) => "stat",
            Command::Attr(_) => "attr",
            Command::Truncate(_) => "truncate",
            Command::Check(_) => "check",
            Command::Catalog(_) => "catalog",
            Command::Bench(_) => "bench",
            Command::Top(_) => "top",
            Command::Probe(_) => "probe",
            Command::Tune(_) => "tune",
            Command::Completions(_) => "completions",
            Command::Man(_) => "man",
        }
    }
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct Init {
    /// Existing directories, one on each drive
    #[arg(required = true, value_name = "DRIVE")]
    pub drives: Vec<PathBuf>,
    /// Shares of the drives in files with the hash layout, 1 to 1000 each [default: equal shares]
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = weight)]
    pub weights: Option<Vec<u32>>,
    /// On how many drives the catalog is, 1 to 3 [default: 3, or all if there are fewer]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub copies: Option<u8>,
}

/// Arguments of `ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// Show sizes and layouts too
    #[arg(short, long)]
    pub long: bool,
}

/// Arguments of `mv`.
#[derive(Debug, Args)]
pub struct Mv {
    /// The file's present name
    pub from: String,
    /// Its new name. After a name that ends with `/`, the last part of the old name is appended
    pub to: String,
    /// Replace a file that has the new name
    #[arg(short, long)]
    pub force: bool,
}

/// Arguments of `attr`.
#[derive(Debug, Args)]
pub struct Attr {
    /// The file
    pub name: String,
    /// Show this attribute, or set it [default: list all]
    #[arg(value_name = "KEY[=VALUE]")]
    pub item: Option<String>,
    /// Remove this attribute
    #[arg(long, value_name = "KEY", conflicts_with = "item")]
    pub remove: Option<String>,
}

/// Arguments of `truncate`.
#[derive(Debug, Args)]
pub struct Truncate {
    /// The file
    pub name: String,
    /// Its new length, such as 4096, 64KiB, 1T
    #[arg(value_parser = size)]
    pub size: u64,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct Top {
    /// Only this process, whatever array it uses [default: all that use the array, or any array if none is named]
    #[arg(long, value_name = "PID", conflicts_with = "array")]
    pub pid: Option<u32>,
    /// Time between pages, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// End after this many pages [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct Man {
    /// Write the pages of all commands into this directory, which must exist
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_io_are_shown_where_it_is_done() {
        let definition = definition();
        for command in definition.get_subcommands().filter(|command| command.get_name() != "help") {
            let of_io = command.get_arguments().filter(|option| IO_OPTIONS.contains(&option.get_id().as_str()));
            let shown: Vec<bool> = of_io.map(|option| !option.is_hide_set()).collect();
            assert_eq!(
                shown,
                vec![IO_COMMANDS.contains(&command.get_name()); IO_OPTIONS.len()],
                "{}",
                command.get_name()
            );
        }
        let help = |words: &[&str]| match parse([&["iomill"], words, &["--help"]].concat()) {
            Err(help) => help.to_string(),
            Ok(_) => panic!("{words:?} has no help"),
        };
        assert!(help(&["get"]).contains("I/O options") && help(&["bench", "quick"]).contains("--engine"));
        assert!(!help(&["ls"]).contains("--engine") && !help(&[]).contains("--engine"));
        let short = |words: &[&str]| parse([&["iomill"], words, &["-h"]].concat()).unwrap_err().to_string();
        for words in [&["get"][..], &["put"], &["check"], &["info"], &["bench", "quick"], &["probe"]] {
            let (short, full) = (short(words), help(words));
            assert!(!short.contains("--engine") && !short.contains("I/O options"), "{short}");
            assert!(short.contains("--help` has the options of I/O, too"), "{short}");
            assert!(full.contains("--engine") && !full.contains("has the options of I/O"), "{full}");
            // The command's own options come before the common ones.
            assert!(full.find("I/O options:") > full.find("Global options:"), "{full}");
        }
        assert!(parse(["iomill", "ls", "--engine", "posix"]).is_ok());
        let asked = |words: &[&str]| parse([&["iomill", "help"], words].concat()).unwrap_err().to_string();
        assert!(asked(&["get"]) == help(&["get"]) && asked(&["ls"]) == help(&["ls"]) && asked(&[]) == help(&[]));
    }

    #[test]
    fn every_command_has_an_example_that_parses() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples: Vec<&str> =
                help.lines().filter_map(|line| line.trim_start().strip_prefix("iomill ")).collect();
            assert!(!examples.is_empty(), "{} has no example", command.get_name());
            for example in examples {
                let words = example.split_whitespace().take_while(|word| !matches!(*word, ">" | "|"));
                let line = std::iter::once("iomill").chain(words);
                let parsed = Cli::try_parse_from(line).map(|cli| cli.command.name());
                assert_eq!(parsed.unwrap(), command.get_name(), "{example}");
            }
        }
    }

    #[test]
    fn times_have_units() {
        let ms = |text| interval(text).unwrap().as_millis();
        assert_eq!(["500ms", "1s", "2", "0.5", "1.5m", "1h"].map(ms), [500, 1000, 2000, 500, 90_000, 3_600_000]);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for bad in [
            vec!["put", "a", "--block-size", "5G"],
            vec!["put", "a", "--block-size", "64 KiB"],
            vec!["put", "a", "b", "--drives", "0,x"],
            vec!["put", "a", ""],
            vec!["truncate", "a", "-1"],
            vec!["truncate", "a", "16E"],
            vec!["--depth", "0", "info"],
            vec!["--engine", "null", "info"],
            vec!["attr", "a", "k", "--remove", "k"],
            vec!["top", "--interval", "50ms"],
            vec!["top", "--interval", "2h"],
            vec!["top", "--interval", "inf"],
            vec!["top", "--interval", "1x"],
            vec!["top", "--count", "0"],
            vec!["top", "-a", "x", "--pid", "1"],
            vec!["--topology", "emulate:0", "info"],
            vec!["--cache-nodes", "", "info"],
            vec!["--io-nodes", "0,x", "info"],
            vec!["rm"],
            vec!["probe", "--html", "-"],
            vec!["tune", "--record", "-"],
            vec!["--profile", "-", "info"],
            vec![],
        ] {
            let line = std::iter::once("iomill").chain(bad.iter().copied());
            assert!(Cli::try_parse_from(line).is_err(), "{bad:?}");
        }
    }
}
