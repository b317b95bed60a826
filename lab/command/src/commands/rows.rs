//! `iomill-lab rows`.

use std::time::Duration;

use iomill_bench::rounds::Turns;
use iomill_bench::rows::{self, Settings};

use super::cached::helper;
use super::common::{progress, reported};
use crate::arguments::BenchRows;
use crate::arguments::check_cache;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::Result;
use iomill_cli::interrupt::Interrupt;

pub fn run(context: &Context<'_>, arguments: &BenchRows) -> Result<Answer> {
    arguments.cache.map_or(Ok(()), check_cache)?;
    let settings = Settings {
        path: arguments.file.clone(),
        row_bytes: arguments.row_size,
        batch: arguments.rows,
        cache_bytes: arguments.cache,
        options: context.runtime_options(context.cached_options())?,
        depth: context.global.queues.depth().most(),
        turns: Turns {
            threads: vec![arguments.threads.into()],
            rounds: arguments.rounds.into(),
            slice: Duration::from_secs_f64(arguments.seconds),
        },
        helper: helper()?,
    };
    let interrupt = Interrupt::install()?;
    let report = progress(context, &interrupt, |stage| rows::run(&settings, interrupt.flag(), stage))?;
    let mut answer = reported(context, &report)?;
    rows::verdict(&report, arguments.rows).iter().for_each(|line| answer.text.push_str(&format!("{line}\n")));
    Ok(answer)
}
