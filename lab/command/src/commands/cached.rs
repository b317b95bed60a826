//! `iomill-lab warm`, `cold`, `mixed`, `small-writes`: iomill's cache beside others. `nodes`, `soak`: iomill's cache
//! alone.

use std::io;
use std::path::Path;
use std::time::Duration;

use iomill::Topology;
use iomill_bench::held::{self, Helper};
use iomill_bench::limited::{self, What};
use iomill_bench::nodes;
use iomill_bench::report::Report;
use iomill_bench::soak;
use iomill_bench::{chart, warm};

use super::common::{answer, flyers, named_or_fresh, on, reported};
use crate::arguments::check_cache;
use crate::arguments::{
    BenchCold, BenchColdOnly, BenchMixed, BenchNodes, BenchSmallWrites, BenchSoak, BenchTurns, BenchWarm,
};
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::destination::check_report;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;

/// The file's length as a multiple of the cache's size, if no length is given.
const COLD_SIZE_OVER_CACHE: u64 = 8;
const WRITES_SIZE_OVER_CACHE: u64 = 4;
const SOAK_SIZE_OVER_CACHE: u64 = 4;

/// How many nodes are emulated on a machine with one node.
const EMULATED_NODES: usize = 4;

pub fn warm(context: &Context<'_>, arguments: &BenchWarm) -> Result<Answer> {
    let turns = &arguments.turns;
    arguments.cache.map_or(Ok(()), check_cache)?;
    let settings = warm::Settings {
        size_bytes: arguments.size,
        cache_bytes: arguments.cache,
        options: turns.kind.apply(context.options()),
        skews: arguments.skew.iter().map(|skew| skew.skew()).collect(),
        batch: arguments.batch.batch,
        turns: turns.rounds.times.turns(arguments.threads.counts()),
        flyers: flyers(),
        rivals: turns.rounds.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, turns.rounds.times.place.dir())?;
    reported(
        context,
        &on(context, &interrupt, arena, |arena, cancel, stage| warm::run(arena, &settings, cancel, stage))?,
    )
}

pub fn cold(context: &Context<'_>, arguments: &BenchColdOnly) -> Result<Answer> {
    let what = What::Cold(arguments.workload.iter().map(|workload| workload.choice()).collect());
    let report = limited(context, &what, &cold_settings(context, &arguments.cold)?, &arguments.cold.turns)?;
    reported(context, &report)
}

pub fn mixed(context: &Context<'_>, arguments: &BenchMixed) -> Result<Answer> {
    arguments.svg.as_deref().map_or(Ok(()), |path| check_report("--svg", path))?;
    let what = What::Mixed(arguments.hit_percent.clone());
    let report = limited(context, &what, &cold_settings(context, &arguments.cold)?, &arguments.cold.turns)?;
    // The document is written first: then a picture that cannot be written loses no results. An empty picture is not
    // drawn.
    let answer = reported(context, &report)?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, chart::svg(&report)?).map_err(Failure::local("write", path))?;
    }
    Ok(answer)
}

pub fn small_writes(context: &Context<'_>, arguments: &BenchSmallWrites) -> Result<Answer> {
    let size = arguments.size.unwrap_or(arguments.cache.saturating_mul(WRITES_SIZE_OVER_CACHE));
    let settings = settings(context, size, arguments.cache, arguments.threads, &arguments.turns)?;
    let report = limited(context, &What::SmallWrites, &settings, &arguments.turns)?;
    reported(context, &report)
}

pub fn nodes(context: &Context<'_>, arguments: &BenchNodes) -> Result<Answer> {
    let wanted = &context.global.nodes;
    if wanted.cache_nodes.is_some() || wanted.io_nodes.is_some() {
        let why = "nodes chooses the nodes itself, first all and then half of them for drives; leave out --cache-nodes and --io-nodes";
        return Err(Failure::Usage(why.to_owned()));
    }
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.times.place.dir())?;
    let ids = |options: iomill::ArrayOptions| -> Result<Vec<usize>> {
        Ok(options.peek(arena.drives())?.info()?.nodes.iter().map(|node| node.id).collect())
    };
    let (mut topology, mut nodes) = (wanted.topology, ids(context.options())?);
    if nodes.len() == 1 && topology == Topology::Machine {
        topology = Topology::Emulate(EMULATED_NODES);
        nodes = ids(context.options().with_tuning(|tuning| tuning.topology(topology)))?;
        context.note([format!("this machine has one node: measured as {topology}")]);
    }
    let settings = nodes::Settings {
        size_bytes: arguments.size,
        options: arguments.kind.apply(context.options()),
        topology,
        nodes,
        batches: arguments.batch.clone(),
        turns: arguments.times.turns(arguments.threads.counts()),
    };
    reported(
        context,
        &on(context, &interrupt, arena, |arena, cancel, stage| nodes::run(arena, &settings, cancel, stage))?,
    )
}

/// Serves the measurement that started this process. It prints no result of its own.
pub fn held() -> Result<Answer> {
    held::serve(io::stdin().lock(), io::stdout().lock())?;
    Ok(Answer { is_silent: true, ..Answer::default() })
}

fn cold_settings(context: &Context<'_>, arguments: &BenchCold) -> Result<limited::Settings> {
    let size = arguments.size.unwrap_or(arguments.cache.saturating_mul(COLD_SIZE_OVER_CACHE));
    let settings = settings(context, size, arguments.cache, arguments.threads, &arguments.turns)?;
    Ok(limited::Settings { batch: arguments.batch.batch, ..settings })
}

fn settings(
    context: &Context<'_>,
    size_bytes: u64,
    cache_bytes: u64,
    threads: u16,
    turns: &BenchTurns,
) -> Result<limited::Settings> {
    check_cache(cache_bytes)?;
    Ok(limited::Settings {
        size_bytes,
        cache_bytes,
        options: turns.kind.apply(context.options()),
        // For contenders that take several operations per call; `cold_settings` sets it.
        batch: 1,
        depth: context.global.queues.depth().most(),
        turns: turns.rounds.times.turns(vec![threads.into()]),
        flyers: flyers(),
        rivals: turns.rounds.rivals.clone(),
        helper: helper()?,
    })
}

/// Starts this program as a process with limited memory.
pub(super) fn helper() -> Result<Helper> {
    let program = std::env::current_exe().map_err(Failure::local("find", Path::new("this executable")))?;
    Ok(Helper { program, arguments: vec!["held".to_owned()] })
}

fn limited(context: &Context<'_>, what: &What, settings: &limited::Settings, turns: &BenchTurns) -> Result<Report> {
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, turns.rounds.times.place.dir())?;
    on(context, &interrupt, arena, |arena, cancel, stage| limited::run(arena, what, settings, cancel, stage))
}

pub fn soak(context: &Context<'_>, arguments: &BenchSoak) -> Result<Answer> {
    check_cache(arguments.cache)?;
    let settings = soak::Settings {
        size_bytes: arguments.size.unwrap_or(arguments.cache.saturating_mul(SOAK_SIZE_OVER_CACHE)),
        cache_bytes: arguments.cache,
        options: arguments.kind.apply(context.options()),
        threads: arguments.threads.into(),
        length: Duration::from_secs(arguments.seconds.into()),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, arguments.place.dir())?;
    let soaked = on(context, &interrupt, arena, |arena, cancel, stage| soak::run(arena, &settings, cancel, stage))?;
    let failures = soaked.fault().map(Failure::Unsound).into_iter().collect();
    Ok(Answer { failures, ..answer(context, soaked.text(), soaked.json()?)? })
}
