//! `iomill get`: copies a file of the array to a file outside it, or to the standard output. Several files are
//! `get_many`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use iomill::Array;
use serde_json::json;

use super::files::copied;
use super::get_many::{self, is_directory, sync_names};
use crate::arguments::Get;
use crate::console::Answer;
use crate::context::Context;
use crate::destination::Destination;
use crate::failure::{Failure, Result, shown};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::pump;
use crate::selection::{self, Selection};

pub fn run(context: &Context<'_>, arguments: &Get) -> Result<Answer> {
    let (names, dest) = operands(arguments)?;
    let is_stdout = Destination::is_stdout(dest.as_deref());
    if is_stdout && context.global.wants_document() {
        let why = "with `--json` the document goes to the standard output; name another destination for the file";
        return Err(Failure::Usage(why.to_owned()));
    }
    let interrupt = Interrupt::install()?;
    context.with_reader(|array| {
        let select = |name: &String| selection::select(&|prefix| array.list(prefix), name, arguments.recursive);
        let mut selections: Vec<Result<Selection>> = names.iter().map(select).collect();
        let is_one = matches!(selections.as_slice(), [Ok(one)] if one.is_one) && arguments.to.is_none();
        if !is_one && (selections.len() > 1 || selections[0].is_ok()) {
            if is_stdout {
                let why = "the standard output takes one file; name a directory for several";
                return Err(Failure::Usage(why.to_owned()));
            }
            let dest = dest.as_deref().unwrap_or(Path::new("."));
            return get_many::run(context, array, arguments, selections, dest, interrupt);
        }
        match selections.pop() {
            Some(Ok(_)) => one(context, array, &names[0], dest.as_deref(), arguments.force, &interrupt),
            Some(Err(failure)) => Err(failure),
            None => Ok(Answer::default()),
        }
    })
}

/// The names, and where their files go.
fn operands(arguments: &Get) -> Result<(Vec<String>, Option<PathBuf>)> {
    let (names, dest): (&[OsString], Option<PathBuf>) = match (&arguments.to, arguments.operands.as_slice()) {
        (Some(to), names) => (names, Some(to.clone())),
        (None, [names @ .., dest]) if !names.is_empty() => (names, Some(dest.into())),
        (None, names) => (names, None),
    };
    let text = |name: &OsString| match name.to_str() {
        Some(name) => Ok(name.to_owned()),
        None => Err(Failure::Usage(format!("{} is not UTF-8, as names in an array are", shown(name.as_ref())))),
    };
    Ok((names.iter().map(text).collect::<Result<_>>()?, dest))
}

fn one(
    context: &Context<'_>,
    array: &Array,
    name: &str,
    dest: Option<&Path>,
    force: bool,
    interrupt: &Interrupt,
) -> Result<Answer> {
    let file = array.open_file(name)?;
    // As for several files, it is made if it is missing.
    let made = dest.filter(|dest| is_directory(dest) && !dest.is_dir());
    if let Some(directory) = made {
        fs::create_dir_all(directory).map_err(Failure::local("make the directory", directory))?;
    }
    let destination = Destination::open_until(dest, name, force, interrupt)?;
    let mut progress = Progress::new(context.global, Some(file.len()));
    let bytes = pump::drain(array, &file, &destination, &mut progress, interrupt)?;
    progress.say("syncing");
    let place = destination.finish()?;
    if let Some(directory) = made {
        sync_names(directory)?;
    }
    let seconds = progress.seconds();
    let mut document = copied(name, bytes, seconds);
    document["destination"] = json!(place);
    Ok(Answer { is_silent: Destination::is_stdout(dest), ..Answer::new("", document) })
}
