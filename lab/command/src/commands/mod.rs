//! The measurements, one file each.

mod cached;
mod common;
mod files;
mod gate;
mod ladder;
mod mapped;
mod paper;
mod picture;
mod replay;
mod rows;
mod work;

use std::time::Duration;

use iomill_bench::arena::{Arena, Shape};
use iomill_bench::asynchronous::Flyer;
use iomill_bench::bench::{self, Settings};
use iomill_bench::contender::{IOMILL_DRIVE_THREADS, IOMILL_INLINE, IOMILL_NULL};
use iomill_bench::rounds::Plan;
use iomill_bench::workload::{Order, Workload};

use crate::arguments::{BenchAccess, Measurement};
use common::{flyers, named_or_fresh, on, reported};
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::destination::check_report;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;

/// Runs a measurement.
pub fn run(context: &Context<'_>, measurement: &Measurement) -> Result<Answer> {
    if context.global.profile.is_some() {
        let why = "a measurement takes no profile: leave --profile out, and give --depth or --drive-threads instead";
        return Err(Failure::Usage(why.to_owned()));
    }
    if let Some(file) = context.global.json_file() {
        check_report("--json", file)?;
    }
    let mut answer = match measurement {
        Measurement::Random(arguments) => access(context, arguments, Order::Random),
        Measurement::Sequential(arguments) => access(context, arguments, Order::Sequential),
        Measurement::Gate(arguments) => gate::run(context, arguments),
        Measurement::Picture(arguments) => picture::run(context, arguments),
        Measurement::Rows(arguments) => rows::run(context, arguments),
        Measurement::Files(arguments) => files::run(context, arguments),
        Measurement::Warm(arguments) => cached::warm(context, arguments),
        Measurement::Cold(arguments) => cached::cold(context, arguments),
        Measurement::Mixed(arguments) => cached::mixed(context, arguments),
        Measurement::SmallWrites(arguments) => cached::small_writes(context, arguments),
        Measurement::MmapVsSyscall(arguments) => mapped::run(context, arguments),
        Measurement::Ladder(arguments) => ladder::run(context, arguments),
        Measurement::Nodes(arguments) => cached::nodes(context, arguments),
        Measurement::Soak(arguments) => cached::soak(context, arguments),
        Measurement::Paper(arguments) => paper::run(context, arguments),
        Measurement::Work(arguments) => work::run(context, arguments),
        Measurement::WorkTurn => work::turn(),
        Measurement::Held => cached::held(),
        Measurement::Replay(arguments) => replay::run(context, arguments),
    }?;
    answer.failures.extend(context.take_cut());
    Ok(answer)
}

fn access(context: &Context<'_>, arguments: &BenchAccess, order: Order) -> Result<Answer> {
    let layout = iomill::FileOptions::new().layout(arguments.layout.kind()).block_bytes(arguments.block_size);
    let workload = Workload {
        order,
        block_bytes: arguments.request_size,
        read_percent: arguments.read_percent,
        depth: context.global.queues.depth().most(),
    };
    let rounds = &arguments.rounds;
    let slice = rounds.times.slice();
    let plan = Plan {
        workload,
        threads: arguments.threads.into(),
        rounds: rounds.times.rounds.into(),
        slice,
        warm_up: slice.min(Duration::from_millis(500)),
    };
    let settings = Settings {
        shape: Shape { len_bytes: arguments.size, layout },
        plan,
        ways: ways(context),
        // Sequential requests of one caller cannot be in flight together.
        flyers: if order == Order::Random { [flyers(), vec![Flyer::plain()]].concat() } else { Vec::new() },
        options: context.options(),
        rivals: rounds.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, rounds.times.place.dir())?;
    measure(context, arena, &settings, &interrupt)
}

/// The ways of iomill that take part, as the user chose.
fn ways(context: &Context<'_>) -> Vec<&'static str> {
    match context.global.drive_threads {
        None => Settings::all_ways(),
        Some(false) => vec![IOMILL_INLINE, IOMILL_NULL],
        Some(true) => vec![IOMILL_DRIVE_THREADS],
    }
}

fn measure(context: &Context<'_>, arena: Arena, settings: &Settings, interrupt: &Interrupt) -> Result<Answer> {
    reported(
        context,
        &on(context, interrupt, arena, |arena, cancel, stage| bench::run(arena, settings, cancel, stage))?,
    )
}
