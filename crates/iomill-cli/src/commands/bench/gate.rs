//! `iomill bench gate`.

use iomill_bench::gate::{self, Settings};

use super::{answer, defaults_only, named_or_fresh, progress};
use crate::arguments::BenchGate;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::terminal;

pub fn run(context: &Context<'_>, arguments: &BenchGate) -> Result<Answer> {
    defaults_only(context, "bench gate holds ratios to bounds that were taken with")?;
    let settings =
        Settings { size_bytes: arguments.size, options: context.options(), turns: arguments.times.turns(vec![1]) };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.times.place.dir())?;
    let gate = progress(context, &interrupt, |stage| gate::run(arena, &settings, interrupt.flag(), stage))?;
    let failures = gate.fault().map(Failure::Unsound).into_iter().collect();
    Ok(Answer { failures, ..answer(context, gate.table(terminal::width()) + "\n", gate.json()?)? })
}
