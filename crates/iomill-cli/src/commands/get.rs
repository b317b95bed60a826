//! `iomill get`: copies a file of the array to a file outside it, or to the standard output.

use serde_json::json;

use super::copied;
use crate::arguments::Get;
use crate::console::Answer;
use crate::context::Context;
use crate::destination::Destination;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::pump;

pub fn run(context: &Context<'_>, arguments: &Get) -> Result<Answer> {
    let is_stdout = Destination::is_stdout(arguments.dest.as_deref());
    if is_stdout && context.global.wants_document() {
        let why = "with `--json` the document goes to the standard output; name another destination for the file";
        return Err(Failure::Usage(why.to_owned()));
    }
    let interrupt = Interrupt::install()?;
    context.with_reader(|array| {
        let file = array.open_file(&arguments.name)?;
        let destination = Destination::open(arguments.dest.as_deref(), &arguments.name, arguments.force)?;
        destination.reserve(file.len())?;
        let mut progress = Progress::new(context.global, Some(file.len()));
        let bytes = pump::drain(array, &file, destination.sink()?, &mut progress, &interrupt)?;
        progress.say("syncing");
        let place = destination.finish()?;
        let seconds = progress.seconds();
        let mut document = copied(&arguments.name, bytes, seconds);
        document["destination"] = json!(place);
        Ok(Answer { is_silent: is_stdout, ..Answer::new("", document) })
    })
}
