//! The `iomill` command: arrays and their files from a shell.
//!
//! Goals: messages that help, output that a program can rely on (`--json`, `docs/json.md`), and no half-done work left
//! behind. Non-goals: work on arrays that the library does not do; this crate only gives it a command line.
//!
//! `commands` has one file per command. [`arguments`] is the one definition from which the parser, the help, the manual
//! pages and the shells' completions come.

pub mod arguments;
mod commands;
pub mod console;
pub mod context;
pub mod destination;
pub mod failure;
mod glob;
pub mod human;
pub mod interrupt;
pub mod machine;
pub mod naming;
mod probe;
pub mod progress;
mod pump;
mod quick;
mod selection;
mod source;
pub mod streams;
pub mod table;
pub mod terminal;
pub mod tune;

use std::ffi::OsString;

use iomill::Profile;

use arguments::{Cli, Command};
use console::Console;
use context::Context;
use failure::Result;

/// Parses a command line. Its first argument is the command's own name. Reads nothing except its arguments.
pub fn parse_arguments(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    arguments::parse(arguments)
}

/// Runs a command line and returns the exit code.
pub fn run(arguments: Vec<OsString>) -> u8 {
    let wants_json = console::wants_json(&arguments);
    let cli = match parse_arguments(arguments) {
        Ok(cli) => cli,
        Err(error) => return console::usage(&error, wants_json),
    };
    if cli.global.parse_only {
        return 0;
    }
    interrupt::fail_at_size_limits();
    let console = Console::of("iomill", cli.command.name(), &cli.global);
    match profile(&cli) {
        Ok(profile) => {
            let context = Context::new(&cli.global, profile);
            let result = commands::run(&context, &cli.command);
            console.finish(result, &context.take_notices())
        }
        Err(failure) => console.finish(Err(failure), &[]),
    }
}

/// The profile that the command uses.
fn profile(cli: &Cli) -> Result<Option<Profile>> {
    match (&cli.global.profile, &cli.command) {
        // `probe` writes the profile.
        (_, Command::Probe(_)) | (None, _) => Ok(None),
        (Some(_), Command::Bench(_)) => {
            let why =
                "a measurement takes no profile: leave --profile out, and give --depth or --drive-threads instead";
            Err(failure::Failure::Usage(why.to_owned()))
        }
        (Some(path), _) => Ok(Some(Profile::read(path)?)),
    }
}
