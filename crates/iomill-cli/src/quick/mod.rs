//! `iomill bench quick`: a first look at random reads by iomill, beside io_uring by hand, `pread` and `mmap`.
//!
//! Goals: a table within half a minute that a newcomer understands at first reading; nothing is left behind; a machine
//! that lacks something gets the rest, and the reason. Non-goals: other workloads, several threads, files of the user.

mod course;
mod meter;
mod report;
mod site;

use std::path::Path;

use iomill::EngineKind;
use iomill_loops::parts::Part;
use iomill_loops::quick::DRIVES;

use crate::arguments::BenchQuick;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::progress::Progress;
use course::{CONTENDERS, Course, ROUNDS, TURN};
use report::{Report, Row};
use site::Site;

/// Runs the measurement.
pub fn run(context: &Context<'_>, arguments: &BenchQuick) -> Result<Answer> {
    let interrupt = Interrupt::install()?;
    if context.starts_if_named()?.is_some() {
        context.note(["`bench quick` makes an array of its own; `iomill probe` measures the named one".to_owned()]);
    }
    let dir = arguments.dir.as_deref().unwrap_or(Path::new("."));
    let base = std::path::absolute(dir).map_err(Failure::local("find", dir))?;
    let mut progress = Progress::of_phases(context.global);
    let mut written = |done, total| shown(&mut progress, done, total);
    let site = Site::make(&base, arguments.size, &context.options(), &interrupt, &mut written)?;
    let report = measure(context, &site, base.display().to_string(), &interrupt, &mut progress);
    drop(progress);
    // A failure of the measurement takes precedence over one of the removal.
    let removed = site.remove();
    let report = report?;
    removed?;
    if report.is_empty() {
        interrupt.check()?;
    }
    let document = report.json();
    if let Some(file) = context.global.json_file() {
        std::fs::write(file, format!("{document}\n")).map_err(Failure::local("write", file))?;
    }
    let mut answer = Answer::new(report.text(), document);
    answer.failures.extend(interrupt.check().err());
    Ok(answer)
}

/// How long all turns take, in milliseconds.
fn turns_ms(turns: usize) -> u64 {
    turns as u64 * TURN.as_millis() as u64
}

/// Shows how much of the file is written. The bar counts milliseconds: those elapsed, and those elapsed and left.
fn shown(progress: &mut Progress, done: u64, total: u64) {
    let elapsed_ms = progress.seconds() * 1e3;
    let left_ms = elapsed_ms * (total - done) as f64 / done.max(1) as f64;
    progress.say(format!("writing {}", human::size(total)));
    progress.set(elapsed_ms as u64, (elapsed_ms + left_ms) as u64 + turns_ms((ROUNDS + 1) * CONTENDERS.len()));
}

fn measure(
    context: &Context<'_>,
    site: &Site,
    place: String,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Report> {
    let depth = context.global.queues.depth().most() as usize * DRIVES;
    progress.say("opening the file, and bringing a part of it into memory");
    let mut course = Course::open(site, &context.options(), depth)?;
    let info = course.cold.array.info()?;
    let mut notices: Vec<String> =
        course.cold.array.notices().iter().map(|notice| without_drive(site, notice)).collect();
    notices.dedup();
    let is_complete = course.run(interrupt, &mut |round, done, total| {
        progress.say(match round {
            0 => "a first round, which is not counted".to_owned(),
            round => format!("round {round} of {ROUNDS}"),
        });
        let elapsed_ms = (progress.seconds() * 1e3) as u64;
        progress.set(elapsed_ms, elapsed_ms + turns_ms(total - done));
    })?;
    let (counts_fetches, is_registered) = (course.counts_fetches, course.is_registered);
    let rows = course.close()?.iter().map(Row::of).collect();
    context.note(notices);
    let len_bytes = site.size.bytes / DRIVES as u64;
    let parts: Vec<Part> = site.parts.iter().map(|path| Part { path: path.clone(), len_bytes }).collect();
    let (machine, size, drive) = (Machine::look(&parts), site.size, info.drives.first());
    let engine = drive.map_or(EngineKind::Posix, |drive| drive.engine);
    let is_direct = drive.is_some_and(|drive| drive.direct);
    Ok(Report { machine, engine, is_direct, place, size, depth, rows, counts_fetches, is_registered, is_complete })
}

/// A notice without the name of its drive: all directories here are on one drive.
fn without_drive(site: &Site, notice: &str) -> String {
    let names = site.drives.iter().map(|drive| format!("drive {}: ", drive.display()));
    let rest = names.into_iter().find_map(|name| notice.strip_prefix(&name));
    rest.unwrap_or(notice).to_owned()
}
