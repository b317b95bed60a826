//! `iomill-lab files`.

use iomill_bench::files::{self, Settings};

use super::common::{progress, reported};
use crate::arguments::BenchFiles;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;

pub fn run(context: &Context<'_>, arguments: &BenchFiles) -> Result<Answer> {
    let dir = arguments.times.place.dir();
    let settings = Settings {
        dir: std::path::absolute(dir).map_err(Failure::local("find", dir))?,
        files: arguments.files,
        options: context.options(),
        turns: arguments.times.turns(arguments.threads.iter().map(|&threads| threads.into()).collect()),
        rivals: arguments.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    if context.starts_if_named()?.is_some() {
        context.note(["`files` makes arrays of its own; the named one takes no part".to_owned()]);
    }
    reported(context, &progress(context, &interrupt, |stage| files::run(&settings, interrupt.flag(), stage))?)
}
