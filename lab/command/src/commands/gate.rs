//! `iomill-lab gate`.

use iomill_bench::gate::{self, Settings};

use super::common::{answer, defaults_only, named_or_fresh, on};
use crate::arguments::BenchGate;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::terminal;

pub fn run(context: &Context<'_>, arguments: &BenchGate) -> Result<Answer> {
    defaults_only(context, "gate holds ratios to bounds that were taken with")?;
    let settings =
        Settings { size_bytes: arguments.size, options: context.options(), turns: arguments.times.turns(vec![1]) };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.times.place.dir())?;
    let gate = on(context, &interrupt, arena, |arena, cancel, stage| gate::run(arena, &settings, cancel, stage))?;
    let failures = gate.fault().map(Failure::Unsound).into_iter().collect();
    Ok(Answer { failures, ..answer(context, gate.table(terminal::width()) + "\n", gate.json()?)? })
}
