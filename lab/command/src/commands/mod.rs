//! The measurements, one file each, and their common parts: the array, the progress, the report.

mod cached;
mod files;
mod gate;
mod ladder;
mod mapped;
mod paper;
mod picture;
mod replay;
mod rows;
mod work;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::Error;
use iomill_bench::arena::{Arena, Shape};
use iomill_bench::asynchronous::Flyer;
use iomill_bench::bench::{self, Settings, Stage};
use iomill_bench::contender::{IOMILL_DRIVE_THREADS, IOMILL_INLINE, IOMILL_NULL};
use iomill_bench::report::Report;
use iomill_bench::rivals::runtimes;
use iomill_bench::rounds::{Failed, Plan};
use iomill_bench::workload::{Order, Workload};

use crate::arguments::{BenchAccess, Measurement};
use crate::bar::Bar;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::destination::check_report;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::terminal;

/// Drives of an array that is made for the measurement.
const DRIVES: usize = 4;

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
        // Sequential requests of one caller leave nothing to have in flight.
        flyers: if order == Order::Random { flyers() } else { Vec::new() },
        options: context.options(),
        rivals: rounds.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, rounds.times.place.dir())?;
    measure(context, arena, &settings, &interrupt)
}

/// The named array. If none is named, it makes one below `dir`, as `quick` does.
fn named_or_fresh(context: &Context<'_>, dir: &Path) -> Result<Arena> {
    match context.starts_if_named()? {
        Some(starts) => Ok(Arena::existing(&starts)),
        None => fresh(context, dir),
    }
}

/// Refuses options that no measurement of defaults takes. `what` begins with the measurement's name.
fn defaults_only(context: &Context<'_>, what: &str) -> Result<()> {
    if context.global.drive_threads.is_some() || context.global.queues.depth.is_some() {
        return Err(Failure::Usage(format!("{what} the defaults; leave --drive-threads and --depth out")));
    }
    Ok(())
}

/// An array in a new directory below `dir`. A notice says which device lies under it.
fn fresh(context: &Context<'_>, dir: &Path) -> Result<Arena> {
    let base = std::path::absolute(dir).map_err(Failure::local("find", dir))?;
    let arena = Arena::fresh_over(std::slice::from_ref(&base), DRIVES)?;
    let info = context.options().peek(arena.drives())?.info()?;
    if let Some(drive) = info.drives.first() {
        let (file_system, device) = (&drive.ground.file_system, &drive.ground.device);
        if matches!(file_system.as_str(), "tmpfs" | "ramfs") {
            let what = format!("{} is in memory ({file_system})", base.display());
            let why =
                "memory has no drive to measure, and hides errors of alignment; name a directory on a disk with --dir";
            return Err(iomill::Error::Tool { what, why: why.into() }.into());
        }
        let device = if device.is_empty() { "an unknown device" } else { device };
        context.note([format!(
            "{DRIVES} directories under {}, all on one {file_system} on {device}: they share that device's limit",
            base.display()
        )]);
    }
    context.note(info.notices);
    Ok(arena)
}

/// The ways of iomill that take part, as the user chose.
fn ways(context: &Context<'_>) -> Vec<&'static str> {
    match context.global.drive_threads {
        None => Settings::all_ways(),
        Some(false) => vec![IOMILL_INLINE, IOMILL_NULL],
        Some(true) => vec![IOMILL_DRIVE_THREADS],
    }
}

/// The asynchronous ways.
fn flyers() -> Vec<Flyer> {
    Flyer::all().into_iter().chain(runtimes::flyers()).collect()
}

fn measure(context: &Context<'_>, arena: Arena, settings: &Settings, interrupt: &Interrupt) -> Result<Answer> {
    reported(
        context,
        &on(context, interrupt, arena, |arena, cancel, stage| bench::run(arena, settings, cancel, stage))?,
    )
}

/// Runs a measurement on an arena, shows its progress, and leaves nothing behind.
fn on<R>(
    context: &Context<'_>,
    interrupt: &Interrupt,
    arena: Arena,
    measure: impl FnOnce(&mut Arena, &AtomicBool, &mut dyn FnMut(Stage)) -> iomill::Result<R>,
) -> Result<R> {
    progress(context, interrupt, |stage| arena.measured(|arena| measure(arena, interrupt.flag(), stage)))
}

/// A report's table and document.
fn reported(context: &Context<'_>, report: &Report) -> Result<Answer> {
    let mut answer = answer(context, report.table(terminal::width()) + "\n", report.json()?)?;
    if let Some(Failed { what, why }) = report.failed.clone() {
        answer.failures.push(Error::Tool { what, why }.into());
    }
    Ok(answer)
}

/// Runs something that reports its progress, and shows that.
fn progress<R>(
    context: &Context<'_>,
    interrupt: &Interrupt,
    run: impl FnOnce(&mut dyn FnMut(Stage)) -> iomill::Result<R>,
) -> Result<R> {
    let mut bar = Bar::new(context);
    let ran = run(&mut |stage| bar.show(stage));
    drop(bar);
    // By now everything that the run made is removed.
    match (ran, interrupt.check()) {
        (Ok(result), Err(failure)) => {
            context.cut_short(failure);
            Ok(result)
        }
        (Err(_), Err(failure)) => Err(failure),
        (ran, Ok(())) => Ok(ran?),
    }
}

/// Whether a cancelled measurement has no results yet.
fn is_empty(document: &serde_json::Value) -> bool {
    let none = |list: &serde_json::Value| list.as_array().is_some_and(|list| list.iter().all(is_empty));
    document.get("results").or_else(|| document.get("ladders")).is_some_and(none)
}

/// The text, and the document for `--json`.
fn answer(context: &Context<'_>, text: String, json: String) -> Result<Answer> {
    let odd = |e: serde_json::Error| Error::Tool { what: "the report as JSON".into(), why: e.to_string() };
    let document = serde_json::from_str(&json).map_err(odd)?;
    if is_empty(&document)
        && let Some(failure) = context.take_cut()
    {
        return Err(failure);
    }
    if let Some(file) = context.global.json_file() {
        std::fs::write(file, json + "\n").map_err(Failure::local("write", file))?;
    }
    Ok(Answer::new(text, document))
}
