//! `iomill bench ladder --of falcon`.

use std::path::PathBuf;
use std::time::Duration;

use iomill_bench::falcon::{self, Ladder, Load, NAMES, STEPS, Settings};
use iomill_bench::human;
use iomill_bench::report::Row;
use iomill_bench::rounds::Plan;

use super::super::{answer, progress};
use super::threads;
use crate::arguments::BenchLadder;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::table::Table;

pub fn run(context: &Context<'_>, arguments: &BenchLadder) -> Result<Answer> {
    if !context.global.array.is_empty() {
        let why = "the steps of falcon are measured on arrays of several numbers of drives, which are made for it: name \
                   directories with --dir instead of an array";
        return Err(Failure::Usage(why.to_owned()));
    }
    let slice = Duration::from_secs_f64(arguments.seconds);
    let given = if arguments.dir.is_empty() { vec![PathBuf::from(".")] } else { arguments.dir.clone() };
    let mut dirs = Vec::new();
    for dir in given {
        dirs.push(std::path::absolute(&dir).map_err(Failure::local("find", &dir))?);
    }
    let settings = Settings {
        drives: arguments.drives.iter().map(|&drives| drives.into()).collect(),
        dirs,
        len_bytes: arguments.size,
        plan: Plan {
            workload: Load::Random,
            threads: threads(arguments),
            rounds: arguments.rounds.into(),
            slice,
            warm_up: slice.min(Duration::from_millis(200)),
        },
        options: context.options(),
        depth: context.global.queues.depth().fixed(),
    };
    let interrupt = Interrupt::install()?;
    let ladder = progress(context, &interrupt, |stage| falcon::run(&settings, interrupt.flag(), stage))?;
    answer(context, table(&ladder), ladder.json()?)
}

/// Each step beside the one before it and the first.
fn table(ladder: &Ladder) -> String {
    let mut table = Table::new(&[">drives", "load", "way", "step", ">ops/s", ">CPU/op", ">x before", ">x plain"]);
    for rung in &ladder.ladders {
        for load in Load::ALL.map(|load| load.to_string()) {
            for (names, way) in NAMES.iter().zip(["inline", "drive threads"]) {
                let row =
                    |name: &str| rung.report.results.iter().find(|row| row.workload == load && row.contender == name);
                let ratio = |now: &Row, to: Option<&Row>| match to {
                    Some(to) => human::ratio(now.ops_per_s / to.ops_per_s.max(1e-9)),
                    None => "-".to_owned(),
                };
                for (step, name) in names.iter().enumerate() {
                    let Some(now) = row(name) else { continue };
                    table.row([
                        rung.drives.to_string(),
                        load.trim_end_matches("-read-4KiB").to_owned(),
                        way.to_owned(),
                        STEPS[step].to_owned(),
                        human::count(now.ops_per_s),
                        human::time_us(now.cpu_us_per_op),
                        ratio(now, step.checked_sub(1).and_then(|before| row(names[before]))),
                        ratio(now, row(names[0])),
                    ]);
                }
            }
        }
    }
    let machine = ladder.ladders.first().map(|rung| rung.report.machine.line()).unwrap_or_default();
    let mut text = format!("{machine}\n{}", table.render());
    text.push_str("Each step is on top of those above it; x: operations per second over theirs.\n");
    if ladder.ladders.iter().any(|rung| rung.report.cancelled) {
        text.push_str("Cancelled: only complete rounds are counted.\n");
    }
    text
}
