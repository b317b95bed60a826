//! `iomill-lab replay`: repeats recorded accesses, on an array, on a plain file, or in simulated caches.

mod granules;
pub(super) mod name;
mod real;
mod simulate;

use crate::arguments::Replay;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::Result;

pub fn run(context: &Context<'_>, arguments: &Replay) -> Result<Answer> {
    match arguments.simulate {
        true if !arguments.granule.is_empty() => granules::run(context, arguments),
        true => simulate::run(context, arguments),
        false => real::run(context, arguments),
    }
}
