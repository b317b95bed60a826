//! One file of `iomill put`, by large buffers. Non-goals: small files, which share fsyncs (`put_many`).

use iomill::{Array, Draft, Error, When};

use crate::arguments::Put;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::pump;
use crate::source::Source;

/// Copies a source into a file, durably and as a whole. Returns the number of bytes.
pub fn copy(
    array: &Array,
    source: Source,
    name: &str,
    replaces: bool,
    arguments: &Put,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<u64> {
    let draft = array.draft(&file_options(arguments))?;
    let written = write(array, &draft, source, progress, interrupt);
    let when = if replaces { When::Always } else { When::Absent };
    let published = written.and_then(|bytes| draft.publish(name, when).map(|_| bytes).map_err(Failure::from));
    published.map_err(|failure| explained(failure, name, replaces))
}

/// The options of the file in the arguments.
pub fn file_options(arguments: &Put) -> iomill::FileOptions {
    let options = iomill::FileOptions::new().layout(arguments.layout.kind());
    let options = options.block_bytes(arguments.block_size).checksums(arguments.checksums);
    match &arguments.drives {
        Some(drives) => options.drives(drives.clone()),
        None => options,
    }
}

/// Writes all of the source and makes it durable. Returns the number of bytes.
fn write(array: &Array, draft: &Draft, source: Source, progress: &mut Progress, interrupt: &Interrupt) -> Result<u64> {
    match source.len_bytes() {
        // Holes stay holes within the length. Writes beyond it would allocate space for the range that they skip.
        Some(len) if source.has_holes() => draft.file().set_len(len)?,
        Some(len) => draft.file().preallocate(len)?,
        None => {}
    }
    let bytes = pump::fill(array, draft.file(), source, progress, interrupt)?;
    progress.say("syncing");
    draft.file().sync()?;
    interrupt.check()?;
    Ok(bytes)
}

/// Adds to the failure whether data were left. A draft that is dropped frees its space.
fn explained(failure: Failure, name: &str, replaces: bool) -> Failure {
    match failure {
        Failure::Library(Error::OutcomeUnknown { .. }) => {
            failure.and(format!("the file {name:?} holds the old content or the new one, as a whole"))
        }
        _ if replaces => failure.and(format!("the new data has been removed, and {name:?} is unchanged")),
        _ => failure.and("the new data has been removed"),
    }
}
