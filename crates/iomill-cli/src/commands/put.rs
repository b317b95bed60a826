//! `iomill put`: copies a file, device or stream into a file of the array, which appears whole or not at all.
//!
//! The command writes under a name of its own ([`naming::UNFINISHED`]) and renames the file when it is durable. Only a kill or
//! a crash leaves such a file behind; `check` finds it.

use iomill::{Array, Error, File};
use serde_json::json;

use super::copied;
use crate::arguments::Put;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::naming;
use crate::progress::Progress;
use crate::pump;
use crate::source::Source;

pub fn run(context: &Context<'_>, arguments: &Put) -> Result<Answer> {
    let name = naming::for_source(&arguments.source, arguments.name.as_deref())?;
    let source = Source::open(&arguments.source)?;
    let interrupt = Interrupt::install()?;
    context.with_writer(|array| {
        let replaces = naming::refuse_taken(array, &name, arguments.force)?;
        let unfinished = naming::unfinished(&name)?;
        let mut progress = Progress::new(context.global, source.len_bytes());
        let file = array.create_file(&unfinished, layout(arguments))?;
        let written = write(array, file, source, &mut progress, &interrupt);
        let seconds = progress.seconds();
        drop(progress);
        let renamed = written.and_then(|bytes| array.rename(&unfinished, &name).map(|()| bytes).map_err(Failure::from));
        let bytes = renamed.map_err(|failure| take_back(array, &unfinished, failure, &name, replaces))?;
        let mut document = copied(&name, bytes, seconds);
        document["replaced"] = json!(replaces);
        Ok(Answer::new("", document))
    })
}

fn layout(arguments: &Put) -> iomill::Layout {
    let layout = iomill::Layout::new(arguments.layout.kind()).block_bytes(arguments.block_size);
    match &arguments.drives {
        Some(drives) => layout.drives(drives.clone()),
        None => layout,
    }
}

/// Writes all of the source and makes it durable. The file is closed when this returns.
fn write(array: &Array, file: File, source: Source, progress: &mut Progress, interrupt: &Interrupt) -> Result<u64> {
    if let Some(len) = source.len_bytes() {
        file.preallocate(len)?;
    }
    let bytes = pump::fill(array, &file, source, progress, interrupt)?;
    progress.say("syncing");
    file.close()?;
    interrupt.check()?;
    Ok(bytes)
}

/// Removes the new data, and adds to the failure whether that worked.
fn take_back(array: &Array, unfinished: &str, failure: Failure, name: &str, replaces: bool) -> Failure {
    if let Failure::Library(Error::OutcomeUnknown { .. }) = failure {
        return failure.and(format!("the new file has one of the names {name:?} and {unfinished:?}"));
    }
    match array.delete(unfinished) {
        Ok(()) if replaces => failure.and(format!("the new data has been removed, and {name:?} is unchanged")),
        Ok(()) => failure.and("the new data has been removed"),
        Err(error) => failure
            .and(format!("the new data could not be removed ({error}); remove it later with `iomill check --repair`")),
    }
}
