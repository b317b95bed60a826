//! `iomill bench gate`.

use iomill_bench::gate::{self, Settings};

use super::{answer, named_or_fresh, progress};
use crate::arguments::BenchGate;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::terminal;

pub fn run(context: &Context<'_>, arguments: &BenchGate) -> Result<Answer> {
    if context.global.mode.is_some() || context.global.queues.depth.is_some() {
        let why = "bench gate holds ratios to bounds that were taken with the defaults; leave --mode and --depth out";
        return Err(Failure::Usage(why.to_owned()));
    }
    let settings =
        Settings { size_bytes: arguments.size, options: context.options(), turns: arguments.times.turns(vec![1]) };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.times.place.dir())?;
    let gate = progress(context, &interrupt, |stage| gate::run(arena, &settings, interrupt.flag(), stage))?;
    let failures = gate.fault().map(Failure::Unsound).into_iter().collect();
    Ok(Answer { failures, ..answer(context, gate.table(terminal::width()) + "\n", gate.json()?)? })
}
