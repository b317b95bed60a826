//! The commands, one file each. A command turns its arguments into an answer.

mod attr;
mod bench;
mod catalog;
mod check;
mod completions;
mod cp;
mod files;
mod get;
mod get_many;
mod info;
mod init;
mod ls;
mod man;
mod mv;
mod probe;
mod put;
mod put_many;
mod put_one;
mod rm;
mod stat;
mod top;
mod truncate;
mod tune;

use crate::arguments::Command;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;

/// Runs a command.
pub fn run(context: &Context<'_>, command: &Command) -> Result<Answer> {
    match command {
        Command::Init(arguments) => init::run(context, arguments),
        Command::Info => info::run(context),
        Command::Ls(arguments) => ls::run(context, arguments),
        Command::Put(arguments) => put::run(context, arguments),
        Command::Get(arguments) => get::run(context, arguments),
        Command::Rm(arguments) => rm::run(context, arguments),
        Command::Mv(arguments) => mv::run(context, arguments),
        Command::Cp(arguments) => cp::run(context, arguments),
        Command::Stat(arguments) => stat::run(context, arguments),
        Command::Attr(arguments) => attr::run(context, arguments),
        Command::Truncate(arguments) => truncate::run(context, arguments),
        Command::Check(arguments) => check::run(context, arguments),
        Command::Catalog(arguments) => catalog::run(context, arguments),
        Command::Bench(arguments) => bench::run(context, arguments),
        Command::Top(arguments) => top::run(context, arguments),
        Command::Probe(arguments) => probe::run(context, arguments),
        Command::Tune(arguments) => tune::run(context, arguments),
        Command::Completions(arguments) => completions::run(arguments),
        Command::Man(arguments) => man::run(arguments),
    }
}
