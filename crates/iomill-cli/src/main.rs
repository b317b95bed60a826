//! The `iomill` command. All of it is in the library of this crate, so that tests and fuzzers reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(iomill_cli::run(std::env::args_os().collect(), None))
}
