//! `iomill-lab ladder --of falcon`.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use iomill_bench::falcon::{self, DrivesLeftOut, Ladder, Load, NAMES, STEPS, Settings, Trace};
use iomill_bench::report::Row;
use iomill_bench::rounds::Turns;
use iomill_cli::human;

use super::super::common::{answer, progress};
use iomill_cli::arguments::Depth;

use super::super::replay::name::trace_name;
use crate::arguments::BenchLadder;
use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::table::Table;

/// The numbers of drives that are tried if none are given.
const DRIVES: [usize; 4] = [1, 2, 4, 8];

pub fn run(context: &Context<'_>, arguments: &BenchLadder) -> Result<Answer> {
    if !context.global.array.is_empty() {
        let why = "falcon makes arrays of several numbers of drives, and measures on those: name directories with --dir \
                   instead of an array";
        return Err(Failure::Usage(why.to_owned()));
    }
    switched_by_the_steps(context)?;
    let dirs = dirs(arguments)?;
    let devices = devices(&dirs)?;
    let (drives, drives_left_out) = match &arguments.drives {
        Some(drives) => (once(drives.iter().map(|&drives| drives.into())), Vec::new()),
        None => offered(devices),
    };
    if let Some(most) = drives.iter().max().filter(|most| **most > devices) {
        context.note([format!("{most} drives are directories on {}, and share the limit of that", number(devices))]);
    }
    let loads = match &arguments.loads {
        Some(names) => once(names.iter().map(|name| name.load())),
        None if arguments.traces.is_empty() => Load::ALL.to_vec(),
        None => Vec::new(),
    };
    let settings = Settings {
        drives,
        dirs,
        len_bytes: arguments.size,
        loads,
        traces: traces(arguments)?,
        turns: Turns {
            threads: vec![arguments.threads()],
            rounds: arguments.rounds.into(),
            slice: Duration::from_secs_f64(arguments.seconds),
        },
        options: context.options(),
        depth: context.global.queues.depth().fixed(),
    };
    let interrupt = Interrupt::install()?;
    let mut ladder = progress(context, &interrupt, |stage| falcon::run(&settings, interrupt.flag(), stage))?;
    ladder.drives_left_out = drives_left_out;
    answer(context, table(&ladder, &settings.workloads()), ladder.json()?)
}

/// Refuses options that the steps set themselves, because they would have no effect.
fn switched_by_the_steps(context: &Context<'_>) -> Result<()> {
    let (global, queues) = (context.global, &context.global.queues);
    let given = [
        ("--no-sort", queues.no_sort),
        ("--no-merge", queues.no_merge),
        ("--depth adaptive", queues.depth == Some(Depth::Adaptive)),
        ("--drive-threads", global.drive_threads.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "falcon's steps choose order, merging, adaptive depth and drive threads themselves: leave {option} out; \
             --depth N and --plug N give the values of the first step"
        ))),
        None => Ok(()),
    }
}

/// The names without repetitions, so that each is measured once.
fn once<T: PartialEq>(named: impl Iterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for one in named {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    once
}

fn dirs(arguments: &BenchLadder) -> Result<Vec<PathBuf>> {
    let given = if arguments.dir.is_empty() { vec![PathBuf::from(".")] } else { arguments.dir.clone() };
    given.iter().map(|dir| std::path::absolute(dir).map_err(Failure::local("find", dir))).collect()
}

/// The number of devices below the directories. A directory that is named twice is refused.
fn devices(dirs: &[PathBuf]) -> Result<usize> {
    let (mut devices, mut seen) = (HashSet::new(), HashSet::new());
    for dir in dirs {
        let found = dir.metadata().map_err(Failure::local("find", dir))?;
        devices.insert(found.dev());
        if !seen.insert((found.dev(), found.ino())) {
            let why =
                format!("--dir: {} is named twice; `--drives N` makes several drives in one directory", dir.display());
            return Err(Failure::Usage(why));
        }
    }
    Ok(devices.len())
}

/// The usual numbers of drives for which there are devices, and separately the larger ones.
fn offered(devices: usize) -> (Vec<usize>, Vec<DrivesLeftOut>) {
    let (there, missing) = DRIVES.into_iter().partition::<Vec<_>, _>(|&drives| drives <= devices);
    let why = |drives| {
        format!("there is only {} under --dir; `--drives {drives}` makes several drives on one", number(devices))
    };
    (there, missing.into_iter().map(|drives| DrivesLeftOut { drives, why: why(drives) }).collect())
}

fn number(devices: usize) -> String {
    format!("{devices} device{}", if devices == 1 { "" } else { "s" })
}

fn traces(arguments: &BenchLadder) -> Result<Vec<Trace>> {
    let mut names = HashSet::new();
    let mut traces = Vec::new();
    for path in &arguments.traces {
        let name = trace_name(path);
        if !names.insert(name.clone()) {
            return Err(Failure::Usage(format!(
                "two traces are called {name:?}, and results name traces; rename one of them"
            )));
        }
        traces.push(Trace::open(name, path, arguments.format, arguments.limit, arguments.size)?);
    }
    Ok(traces)
}

/// A row for each step, with its ratio to the step before and to the first.
fn table(ladder: &Ladder, workloads: &[String]) -> String {
    let headings = [">drives", "load", "way", "step", ">ops/s", ">bytes/s", ">CPU/op", ">x before", ">x plain"];
    let mut table = Table::new(&headings);
    for rung in &ladder.ladders {
        for load in workloads {
            for (names, way) in NAMES.iter().zip(["inline", "drive threads"]) {
                let row =
                    |name: &str| rung.report.results.iter().find(|row| row.workload == *load && row.contender == name);
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
                        human::size(now.bytes_per_s as u64),
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
    text.push_str(
        "Each step adds to those above it. x: times the operations per second of the step before, or of plain.\n",
    );
    for out in &ladder.drives_left_out {
        text.push_str(&format!("Not measured with {} drives: {}.\n", out.drives, out.why));
    }
    if ladder.ladders.iter().any(|rung| rung.report.cancelled) {
        text.push_str("Cancelled: only complete rounds are counted.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drives_that_are_there_are_offered() {
        assert_eq!(offered(9), (DRIVES.to_vec(), Vec::new()));
        let (there, missing) = offered(3);
        assert_eq!(there, [1, 2]);
        assert_eq!(missing.iter().map(|out| out.drives).collect::<Vec<_>>(), [4, 8]);
        assert!(missing[0].why.contains("only 3 devices") && missing[0].why.contains("--drives 4"), "{missing:?}");
        assert_eq!(once([2, 1, 2].into_iter()), [2, 1]);
        assert!(offered(1).1[0].why.contains("only 1 device under"));
    }
}
