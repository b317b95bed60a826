//! `iomill-lab mmap-vs-syscall`.

use std::path::{Path, PathBuf};

use iomill_bench::mapped::{self, Settings};
use iomill_cli::human;

use super::common::{answer, progress};
use crate::arguments::BenchMapped;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::terminal;

pub fn run(context: &Context<'_>, arguments: &BenchMapped) -> Result<Answer> {
    if let Some(request) = arguments.request_size.iter().find(|&&request| u64::from(request) > arguments.size) {
        let (request, size) = (human::size((*request).into()), human::size(arguments.size));
        return Err(Failure::Usage(format!(
            "a read of {request} is longer than the file of {size}; give a larger --size"
        )));
    }
    let settings = Settings {
        size_bytes: arguments.size,
        request_bytes: arguments.request_size.clone(),
        orders: arguments.order.iter().map(|order| order.order()).collect(),
        growth_bytes: arguments.growth,
        turns: arguments.times.turns(arguments.threads.counts()),
    };
    let interrupt = Interrupt::install()?;
    let dir = place(context, arguments.times.place.dir())?;
    let report = progress(context, &interrupt, |stage| mapped::run(dir, &settings, interrupt.flag(), stage))?;
    answer(context, report.table(terminal::width()) + "\n", report.json()?)
}

/// The directory of the plain file that is measured: the first drive of the named array, or else `dir`.
fn place(context: &Context<'_>, dir: &Path) -> Result<PathBuf> {
    let named = context.starts_if_named()?.and_then(|drives| drives.into_iter().next());
    match named {
        Some(drive) => Ok(drive),
        None => std::path::absolute(dir).map_err(Failure::local("find", dir)),
    }
}
