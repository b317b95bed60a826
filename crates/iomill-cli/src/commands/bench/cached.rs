//! `iomill bench warm`, `cold`, `mixed` and `small-writes`: iomill's cache beside those of Linux and of others.

use std::io;
use std::path::Path;
use std::time::Duration;

use iomill_bench::held::{self, Helper};
use iomill_bench::limited::{self, What};
use iomill_bench::warm;

use super::{named_or_fresh, watched};
use crate::arguments::{BenchCold, BenchColdOnly, BenchMixed, BenchSmallWrites, BenchTurns, BenchWarm};
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// The file's length over the memory for it, where no length is given.
const COLD_SIZE_OVER_CACHE: u64 = 8;
const WRITES_SIZE_OVER_CACHE: u64 = 4;

pub fn warm(context: &Context<'_>, arguments: &BenchWarm) -> Result<Answer> {
    let turns = &arguments.turns;
    let settings = warm::Settings {
        size_bytes: arguments.size,
        cache_bytes: arguments.cache,
        options: turns.kind.apply(context.options()),
        skews: arguments.skew.iter().map(|skew| skew.skew()).collect(),
        threads: arguments.threads.iter().map(|&threads| threads.into()).collect(),
        batch: turns.batch,
        rounds: turns.rounds.into(),
        slice: Duration::from_secs_f64(turns.seconds),
        rivals: turns.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, dir(turns))?;
    watched(context, &interrupt, |stage| warm::run(arena, &settings, interrupt.flag(), stage))
}

pub fn cold(context: &Context<'_>, arguments: &BenchColdOnly) -> Result<Answer> {
    let what = What::Cold(arguments.workload.iter().map(|workload| workload.choice()).collect());
    limited(context, &what, &cold_settings(context, &arguments.cold)?, &arguments.cold.turns)
}

pub fn mixed(context: &Context<'_>, arguments: &BenchMixed) -> Result<Answer> {
    let what = What::Mixed(arguments.hit_percent.clone());
    limited(context, &what, &cold_settings(context, &arguments.cold)?, &arguments.cold.turns)
}

pub fn small_writes(context: &Context<'_>, arguments: &BenchSmallWrites) -> Result<Answer> {
    let size = arguments.size.unwrap_or(arguments.cache.saturating_mul(WRITES_SIZE_OVER_CACHE));
    let settings = settings(context, size, arguments.cache, arguments.threads, &arguments.turns)?;
    limited(context, &What::SmallWrites, &settings, &arguments.turns)
}

/// Serves the measurement that started this process, and says nothing itself.
pub fn held() -> Result<Answer> {
    held::serve(io::stdin().lock(), io::stdout().lock())?;
    Ok(Answer { is_silent: true, ..Answer::default() })
}

fn cold_settings(context: &Context<'_>, arguments: &BenchCold) -> Result<limited::Settings> {
    let size = arguments.size.unwrap_or(arguments.cache.saturating_mul(COLD_SIZE_OVER_CACHE));
    settings(context, size, arguments.cache, arguments.threads, &arguments.turns)
}

fn settings(
    context: &Context<'_>,
    size_bytes: u64,
    cache_bytes: u64,
    threads: u16,
    turns: &BenchTurns,
) -> Result<limited::Settings> {
    let program = std::env::current_exe().map_err(Failure::local("find", Path::new("this executable")))?;
    Ok(limited::Settings {
        size_bytes,
        cache_bytes,
        options: turns.kind.apply(context.options()),
        threads: threads.into(),
        batch: turns.batch,
        rounds: turns.rounds.into(),
        slice: Duration::from_secs_f64(turns.seconds),
        rivals: turns.rivals.clone(),
        helper: Helper { program, arguments: vec!["bench".to_owned(), "held".to_owned()] },
    })
}

fn limited(context: &Context<'_>, what: &What, settings: &limited::Settings, turns: &BenchTurns) -> Result<Answer> {
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, dir(turns))?;
    watched(context, &interrupt, |stage| limited::run(arena, what, settings, interrupt.flag(), stage))
}

fn dir(turns: &BenchTurns) -> &Path {
    turns.dir.as_deref().unwrap_or(Path::new("."))
}
