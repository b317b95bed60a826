//! `iomill put`: copies a file, device or stream into a file of the array, which appears whole or not at all.

use iomill::{Array, Draft, Error, When};
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
        let mut progress = Progress::new(context.global, source.len_bytes());
        let draft = array.draft(layout(arguments))?;
        let written = write(array, &draft, source, &mut progress, &interrupt);
        let seconds = progress.seconds();
        drop(progress);
        let when = if replaces { When::Always } else { When::Absent };
        let published = written.and_then(|bytes| draft.publish(&name, when).map(|_| bytes).map_err(Failure::from));
        let bytes = published.map_err(|failure| explained(failure, &name, replaces))?;
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

/// Writes all of the source and makes it durable. Returns the number of bytes.
fn write(array: &Array, draft: &Draft, source: Source, progress: &mut Progress, interrupt: &Interrupt) -> Result<u64> {
    if let Some(len) = source.len_bytes() {
        draft.file().preallocate(len)?;
    }
    let bytes = pump::fill(array, draft.file(), source, progress, interrupt)?;
    progress.say("syncing");
    draft.file().sync()?;
    interrupt.check()?;
    Ok(bytes)
}

/// Adds to the failure what has become of the data. A draft that is dropped gives its space back.
fn explained(failure: Failure, name: &str, replaces: bool) -> Failure {
    match failure {
        Failure::Library(Error::OutcomeUnknown { .. }) => {
            failure.and(format!("the file {name:?} holds the old content or the new one, as a whole"))
        }
        _ if replaces => failure.and(format!("the new data has been removed, and {name:?} is unchanged")),
        _ => failure.and("the new data has been removed"),
    }
}
