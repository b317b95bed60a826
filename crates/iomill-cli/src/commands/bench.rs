//! `iomill bench`: iomill beside its rivals on the same bytes. The lab has all measurements but the first look.

use crate::arguments::{Bench, BenchWhat};
use crate::console::Answer;
use crate::context::Context;
use crate::destination::check_report;
use crate::failure::Result;
use crate::quick;

pub fn run(context: &Context<'_>, arguments: &Bench) -> Result<Answer> {
    if let Some(file) = context.global.json_file() {
        check_report("--json", file)?;
    }
    let BenchWhat::Quick(arguments) = &arguments.what;
    quick::run(context, arguments)
}
