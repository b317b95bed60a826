//! `iomill-lab ladder`: the steps of a paper, switched on one after the other.

mod falcon;

use std::path::Path;
use std::time::Duration;

use iomill_bench::arena::Shape;
use iomill_bench::ladder::{self, STEPS, Settings};
use iomill_bench::report::{Report, Row};
use iomill_bench::rounds::Plan;
use iomill_bench::workload::Workload;
use iomill_cli::human;
use iomill_cli::tune::state;
use iomill_platform::tree::Tree;

use super::common::{answer, named_or_fresh, progress};
use crate::arguments::{BenchLadder, Paper};
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::table::Table;

pub fn run(context: &Context<'_>, arguments: &BenchLadder) -> Result<Answer> {
    match arguments.of {
        Paper::Sc13 => sc13(context, arguments),
        Paper::Falcon if arguments.state.is_some() => Err(Failure::Usage(
            "--state is for sc13: falcon changes no setting of the machine; leave --state out".to_owned(),
        )),
        Paper::Falcon => falcon::run(context, arguments),
    }
}

fn sc13(context: &Context<'_>, arguments: &BenchLadder) -> Result<Answer> {
    if arguments.drives.is_some() || arguments.loads.is_some() || !arguments.traces.is_empty() {
        let why =
            "sc13 measures random reads of one array: leave out --drives, --load and --trace, which are for falcon";
        return Err(Failure::Usage(why.to_owned()));
    }
    let slice = Duration::from_secs_f64(arguments.seconds);
    let threads = arguments.threads();
    let workload = Workload { depth: context.global.queues.depth().most(), ..Workload::RANDOM_READ };
    let warm_up = slice.min(Duration::from_millis(500));
    let settings = Settings {
        shape: Shape { len_bytes: arguments.size, layout: iomill::FileOptions::new() },
        plan: Plan { workload, threads, rounds: arguments.rounds.into(), slice, warm_up },
        options: context.options(),
    };
    let state = match &arguments.state {
        Some(path) => path.clone(),
        None => state::default_path()?.with_file_name("ladder.json"),
    };
    let tree = Tree::at(&arguments.root).map_err(Failure::local("look into", &arguments.root))?;
    let interrupt = Interrupt::install()?;
    let dir = match &arguments.dir[..] {
        [] => Path::new("."),
        [dir] => dir,
        _ => return Err(Failure::Usage("sc13 measures in one directory: give --dir only once".to_owned())),
    };
    let arena = named_or_fresh(context, dir)?;
    let report =
        progress(context, &interrupt, |stage| ladder::run(arena, &settings, &tree, &state, interrupt.flag(), stage))?;
    answer(context, table(&report), report.json()?)
}

/// A row for each step, with its ratio to the step before and to the first.
fn table(report: &Report) -> String {
    let mut table = Table::new(&["step", ">thr", ">ops/s", ">CPU/op", ">x before", ">x plain"]);
    let mut before: Option<&Row> = None;
    for row in &report.results {
        let ratio = |to: Option<&Row>| match to {
            Some(to) => human::ratio(row.ops_per_s / to.ops_per_s.max(1e-9)),
            None => "-".to_owned(),
        };
        table.row([
            row.contender.trim_start_matches("iomill-sc13-").to_owned(),
            row.threads.to_string(),
            human::count(row.ops_per_s),
            human::time_us(row.cpu_us_per_op),
            ratio(before),
            ratio(report.results.first().filter(|first| first.contender == STEPS[0])),
        ]);
        before = Some(row);
    }
    let mut text = format!("{}\n{}", report.machine.line(), table.render());
    text.push_str(
        "Each step adds to those above it. x: times the operations per second of the step before, or of plain.\n",
    );
    for out in &report.left_out {
        text.push_str(&format!(
            "{} changes nothing here: {}\n",
            out.contender.trim_start_matches("iomill-sc13-"),
            out.why
        ));
    }
    if report.cancelled {
        text.push_str("Cancelled: only complete rounds are counted.\n");
    }
    text
}
