//! The `iomill` command. All its code is in this crate's library, so that tests and fuzz targets can call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(iomill_cli::run(std::env::args_os().collect()))
}
