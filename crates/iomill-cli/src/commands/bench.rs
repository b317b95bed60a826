//! `iomill bench`: iomill beside its rivals on the same bytes.

mod cached;
mod files;
mod gate;
mod ladder;
mod mapped;
mod picture;
mod rows;

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use iomill::Error;
use iomill_bench::arena::{Arena, Shape};
use iomill_bench::asynchronous::Flyer;
use iomill_bench::bench::{self, Settings, Stage};
use iomill_bench::contender::{IOMILL_DRIVE_THREADS, IOMILL_INLINE, IOMILL_NULL};
use iomill_bench::human;
use iomill_bench::report::Report;
use iomill_bench::rounds::{Failed, Plan};
use iomill_bench::workload::{Order, Workload};

use crate::arguments::{Bench, BenchAccess, BenchQuick, BenchWhat, Mode};
use crate::console::Answer;
use crate::context::Context;
use crate::destination::check_report;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::terminal;

/// Drives of an array that is made for the measurement.
const DRIVES: usize = 4;

pub fn run(context: &Context<'_>, arguments: &Bench) -> Result<Answer> {
    if let Some(file) = context.global.json_file() {
        check_report("--json", file)?;
    }
    let mut answer = match &arguments.what {
        BenchWhat::Quick(arguments) => quick(context, arguments),
        BenchWhat::Random(arguments) => access(context, arguments, Order::Random),
        BenchWhat::Sequential(arguments) => access(context, arguments, Order::Sequential),
        BenchWhat::Gate(arguments) => gate::run(context, arguments),
        BenchWhat::Picture(arguments) => picture::run(context, arguments),
        BenchWhat::Rows(arguments) => rows::run(context, arguments),
        BenchWhat::Files(arguments) => files::run(context, arguments),
        BenchWhat::Warm(arguments) => cached::warm(context, arguments),
        BenchWhat::Cold(arguments) => cached::cold(context, arguments),
        BenchWhat::Mixed(arguments) => cached::mixed(context, arguments),
        BenchWhat::SmallWrites(arguments) => cached::small_writes(context, arguments),
        BenchWhat::MmapVsSyscall(arguments) => mapped::run(context, arguments),
        BenchWhat::Ladder(arguments) => ladder::run(context, arguments),
        BenchWhat::Nodes(arguments) => cached::nodes(context, arguments),
        BenchWhat::Soak(arguments) => cached::soak(context, arguments),
        BenchWhat::Held => cached::held(),
    }?;
    answer.failures.extend(context.take_cut());
    Ok(answer)
}

fn quick(context: &Context<'_>, arguments: &BenchQuick) -> Result<Answer> {
    let settings = Settings { options: context.options(), ways: ways(context), ..bench::quick() };
    let interrupt = Interrupt::install()?;
    if context.starts_if_named()?.is_some() {
        let what = "`bench quick` makes an array of its own; use `bench random` to measure the named one";
        context.note([what.to_owned()]);
    }
    let arena = fresh(context, arguments.place.dir())?;
    measure(context, arena, &settings, &interrupt)
}

fn access(context: &Context<'_>, arguments: &BenchAccess, order: Order) -> Result<Answer> {
    let layout = iomill::Layout::new(arguments.layout.kind()).block_bytes(arguments.block_size);
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
        flyers: if order == Order::Random { flyers(context) } else { Vec::new() },
        options: context.options(),
        rivals: rounds.rivals.clone(),
    };
    let interrupt = Interrupt::install()?;
    let arena = named_or_fresh(context, rounds.times.place.dir())?;
    measure(context, arena, &settings, &interrupt)
}

/// The named array. If none is named, it makes one below `dir`, as `bench quick` does.
fn named_or_fresh(context: &Context<'_>, dir: &Path) -> Result<Arena> {
    match context.starts_if_named()? {
        Some(starts) => Ok(Arena::existing(&starts)),
        None => fresh(context, dir),
    }
}

/// Refuses options that no measurement of defaults takes. `what` begins with the measurement's name.
fn defaults_only(context: &Context<'_>, what: &str) -> Result<()> {
    if context.global.mode.is_some() || context.global.queues.depth.is_some() {
        return Err(Failure::Usage(format!("{what} the defaults; leave --mode and --depth out")));
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

/// The ways of iomill that take part, by the mode that the user chose.
fn ways(context: &Context<'_>) -> Vec<&'static str> {
    match context.global.mode {
        None | Some(Mode::Auto) => Settings::all_ways(),
        Some(Mode::Inline) => vec![IOMILL_INLINE, IOMILL_NULL],
        Some(Mode::DriveThreads) => vec![IOMILL_DRIVE_THREADS],
    }
}

/// The asynchronous ways. Inline they would end within their call, so there are none.
fn flyers(context: &Context<'_>) -> Vec<Flyer> {
    if context.global.mode == Some(Mode::Inline) {
        return Vec::new();
    }
    let brought = context.bring.into_iter().flat_map(|bring| bring.flyers());
    Flyer::all().into_iter().chain(brought).collect()
}

fn measure(context: &Context<'_>, arena: Arena, settings: &Settings, interrupt: &Interrupt) -> Result<Answer> {
    watched(context, interrupt, |stage| bench::run(arena, settings, interrupt.flag(), stage))
}

/// Runs a measurement, shows its progress, and answers with its report.
fn watched(
    context: &Context<'_>,
    interrupt: &Interrupt,
    measure: impl FnOnce(&mut dyn FnMut(Stage)) -> iomill::Result<Report>,
) -> Result<Answer> {
    let report = progress(context, interrupt, measure)?;
    reported(context, &report)
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
    let bar = Bar::new(context);
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

/// A progress bar, on a terminal only.
pub(super) struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    pub(super) fn new(context: &Context<'_>) -> Bar {
        let wanted = !context.global.quiet;
        let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {msg}");
        let bar = wanted.then(|| ProgressBar::new(100)).map(|bar| match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        });
        Bar { bar }
    }

    pub(super) fn show(&self, stage: Stage) {
        let Some(bar) = &self.bar else { return };
        match stage {
            Stage::Filling(done, total) => {
                bar.set_length(total.max(1));
                bar.set_position(done);
                bar.set_message(format!("writing {}", human::size(total)));
            }
            Stage::Measuring(at) => {
                bar.set_length(at.total as u64);
                bar.set_position(at.done as u64);
                bar.set_message(at.contender);
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
