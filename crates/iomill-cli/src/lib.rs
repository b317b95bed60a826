//! The `iomill` command: arrays and their files from a shell.
//!
//! Goals: messages that help, output that a program can rely on (`--json`, `docs/json.md`), and no half-done work left
//! behind. Non-goals: work on arrays that the library does not do; this crate only gives it a command line.
//!
//! `commands` has one file per command. [`arguments`] is the one definition from which the parser, the help, the manual
//! pages and the shells' completions come.

pub mod arguments;
mod commands;
mod console;
mod context;
mod destination;
mod failure;
mod interrupt;
mod naming;
mod progress;
mod pump;
mod source;
mod table;
mod terminal;

use std::ffi::OsString;

use arguments::Cli;
use console::Console;
use context::Context;
use iomill_bench::rivals::Bring;

/// Parses a command line. Its first argument is the command's own name. Reads nothing except its arguments.
pub fn parse_arguments(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    arguments::parse(arguments)
}

/// Runs a command line and returns the exit code. The rivals in `bring` take part in measurements.
pub fn run(arguments: Vec<OsString>, bring: Option<&dyn Bring>) -> u8 {
    let wants_json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    let cli = match parse_arguments(arguments) {
        Ok(cli) => cli,
        Err(error) => return console::usage(&error, wants_json),
    };
    if cli.global.parse_only {
        return 0;
    }
    interrupt::fail_at_size_limits();
    let console = Console::new(cli.command.name(), &cli.global);
    match Context::new(&cli.global, &cli.command, bring) {
        Ok(context) => {
            let result = commands::run(&context, &cli.command);
            console.finish(result, &context.take_notices())
        }
        Err(failure) => console.finish(Err(failure), &[]),
    }
}
