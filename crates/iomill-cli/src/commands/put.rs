//! `iomill put`: copies a file, device or stream into a file of the array, which appears whole or not at all. Several
//! files and directories are `put_many`.

use std::path::PathBuf;

use serde_json::json;

use super::files::copied;
use super::{put_many, put_one};
use crate::arguments::Put;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result, shown};
use crate::interrupt::Interrupt;
use crate::naming;
use crate::progress::Progress;
use crate::source::Source;

pub fn run(context: &Context<'_>, arguments: &Put) -> Result<Answer> {
    let (sources, target) = operands(arguments)?;
    let [source] = sources.as_slice() else { return put_many::run(context, arguments, &sources, target.as_deref()) };
    if arguments.recursive {
        return put_many::run(context, arguments, &sources, target.as_deref());
    }
    let name = naming::for_source(source, target.as_deref())?;
    let source = Source::open(source)?;
    let interrupt = Interrupt::install()?;
    context.with_writer(|array| {
        let replaces = naming::refuse_taken(array, &name, arguments.force)?;
        let mut progress = Progress::new(context.global, source.len_bytes());
        let bytes = put_one::copy(array, source, &name, replaces, arguments, &mut progress, &interrupt)?;
        let mut document = copied(&name, bytes, progress.seconds());
        document["replaced"] = json!(replaces);
        Ok(Answer::new("", document))
    })
}

/// The sources, and the name or prefix that they get.
fn operands(arguments: &Put) -> Result<(Vec<PathBuf>, Option<String>)> {
    let paths = |operands: &[std::ffi::OsString]| operands.iter().map(PathBuf::from).collect();
    match (&arguments.to, arguments.operands.as_slice()) {
        (Some(to), all) => Ok((paths(all), Some(format!("{}/", to.trim_end_matches('/'))))),
        (None, [source]) => Ok((vec![source.into()], None)),
        (None, [sources @ .., target]) => {
            let target = target.to_str().ok_or_else(|| {
                Failure::Usage(format!("{} is not UTF-8, as names in an array are", shown(target.as_ref())))
            })?;
            if sources.len() > 1 && !target.ends_with('/') {
                let why = format!(
                    "several sources need a prefix for their names: end {target:?} with `/`, or give `--to PREFIX/` and sources only"
                );
                return Err(Failure::Usage(why));
            }
            Ok((paths(sources), Some(target.to_owned())))
        }
        (None, []) => Ok((Vec::new(), None)),
    }
}
