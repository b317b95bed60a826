//! `iomill bench files`.

use iomill_bench::files::{self, Settings};

use super::watched;
use crate::arguments::BenchFiles;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

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
        context.note(["`bench files` makes arrays of its own; the named one takes no part".to_owned()]);
    }
    watched(context, &interrupt, |stage| files::run(&settings, context.bring, interrupt.flag(), stage))
}
