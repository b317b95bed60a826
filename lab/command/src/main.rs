//! The command `iomill-lab`: iomill beside its rivals on the same bytes, and recorded accesses on arrays and in
//! simulated caches.
//!
//! Goals: a measurement is one command with a table, a document and a bound of time. Non-goals: contenders and their
//! loops (`iomill-contenders`), the choice of contenders and figures (`iomill-bench`), and running an array
//! (`iomill-cli`).

mod arguments;
mod bar;
mod commands;

use std::process::ExitCode;

use iomill_cli::console::{self, Console};
use iomill_cli::context::Context;

/// The words before a command line of `iomill`.
const PRODUCT: &str = "product";

fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os().collect()))
}

/// Runs a command line and returns the exit code.
fn run(arguments: Vec<std::ffi::OsString>) -> u8 {
    // An experiment of the evaluation may be a command of the product.
    if arguments.get(1).is_some_and(|argument| argument == PRODUCT) {
        return iomill_cli::run(std::iter::once("iomill".into()).chain(arguments.into_iter().skip(2)).collect());
    }
    let wants_json = console::wants_json(&arguments);
    let lab = match arguments::parse(arguments) {
        Ok(lab) => lab,
        Err(error) => return console::usage(&error, wants_json),
    };
    if lab.global.parse_only {
        return 0;
    }
    iomill_cli::interrupt::fail_at_size_limits();
    let console = Console::of("iomill-lab", lab.measurement.name(), &lab.global);
    let context = Context::new(&lab.global, None);
    let result = commands::run(&context, &lab.measurement);
    console.finish(result, &context.take_notices())
}
