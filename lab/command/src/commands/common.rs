//! The common parts of measurements: the array, the progress, the report.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use iomill::Error;
use iomill_bench::arena::Arena;
use iomill_bench::asynchronous::Flyer;
use iomill_bench::bench::Stage;
use iomill_bench::report::Report;
use iomill_bench::rivals::runtimes;
use iomill_bench::rounds::Failed;

use crate::bar::Bar;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::terminal;

/// Drives of an array that is made for the measurement.
pub const DRIVES: usize = 4;

/// The named array. If none is named, it makes one below `dir`, as `quick` does.
pub fn named_or_fresh(context: &Context<'_>, dir: &Path) -> Result<Arena> {
    match context.starts_if_named()? {
        Some(starts) => Ok(Arena::existing(&starts)),
        None => fresh(context, dir),
    }
}

/// Refuses options that do not apply to measurements of the defaults. `what` begins with the measurement's name.
pub fn defaults_only(context: &Context<'_>, what: &str) -> Result<()> {
    if context.global.drive_threads.is_some() || context.global.queues.depth.is_some() {
        return Err(Failure::Usage(format!("{what} the defaults; leave --drive-threads and --depth out")));
    }
    Ok(())
}

/// An array in a new directory below `dir`. A notice names the device below it.
pub fn fresh(context: &Context<'_>, dir: &Path) -> Result<Arena> {
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

/// The asynchronous ways.
pub fn flyers() -> Vec<Flyer> {
    Flyer::all().into_iter().chain(runtimes::flyers()).collect()
}

/// Runs a measurement on an arena, shows its progress, and leaves nothing behind.
pub fn on<R>(
    context: &Context<'_>,
    interrupt: &Interrupt,
    arena: Arena,
    measure: impl FnOnce(&mut Arena, &AtomicBool, &mut dyn FnMut(Stage)) -> iomill::Result<R>,
) -> Result<R> {
    progress(context, interrupt, |stage| arena.measured(|arena| measure(arena, interrupt.flag(), stage)))
}

/// A report's table and document.
pub fn reported(context: &Context<'_>, report: &Report) -> Result<Answer> {
    let mut answer = answer(context, report.table(terminal::width()) + "\n", report.json()?)?;
    if let Some(Failed { what, why }) = report.failed.clone() {
        answer.failures.push(Error::Tool { what, why }.into());
    }
    Ok(answer)
}

/// Runs a function that reports its progress, and shows the progress.
pub fn progress<R>(
    context: &Context<'_>,
    interrupt: &Interrupt,
    run: impl FnOnce(&mut dyn FnMut(Stage)) -> iomill::Result<R>,
) -> Result<R> {
    let mut bar = Bar::new(context);
    let ran = run(&mut |stage| bar.show(stage));
    drop(bar);
    // By now all files of the run are removed.
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
pub fn is_empty(document: &serde_json::Value) -> bool {
    let none = |list: &serde_json::Value| list.as_array().is_some_and(|list| list.iter().all(is_empty));
    document.get("results").or_else(|| document.get("ladders")).is_some_and(none)
}

/// The text, and the document for `--json`.
pub fn answer(context: &Context<'_>, text: String, json: String) -> Result<Answer> {
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
