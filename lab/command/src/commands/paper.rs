//! `iomill-lab paper`.

use std::fs;

use iomill_cli::console::Answer;
use iomill_cli::context::Context;
use iomill_cli::failure::{Failure, Result};
use iomill_cli::interrupt::Interrupt;
use iomill_cli::progress::Progress;
use iomill_cli::table::Table;
use iomill_cli::terminal;
use iomill_paper::{Drives, Section, Settings};
use serde_json::json;

use super::cached;
use super::common::{answer, defaults_only};
use crate::arguments::BenchPaper;

pub fn run(context: &Context<'_>, arguments: &BenchPaper) -> Result<Answer> {
    defaults_only(context, "paper measures")?;
    let place = arguments.place.dir();
    let mut helper = cached::helper()?;
    helper.arguments = Vec::new();
    fs::create_dir_all(&arguments.report).map_err(Failure::local("create", &arguments.report))?;
    let settings = Settings {
        report: arguments.report.clone(),
        place: std::path::absolute(place).map_err(Failure::local("find", place))?,
        drives: match (&arguments.drives[..], &arguments.devices[..]) {
            ([], []) => Drives::Memory,
            (directories, []) => Drives::Directories(directories.to_vec()),
            (_, devices) => Drives::Devices(devices.to_vec()),
        },
        traces: arguments.traces.clone(),
        only: arguments.only.clone(),
        is_quick: arguments.quick,
        helper,
    };
    let interrupt = Interrupt::install()?;
    let mut progress = Progress::of_steps(context.global);
    let sections = iomill_paper::run(&settings, interrupt.flag(), &mut |step, behind, all| {
        progress.say(step);
        progress.set(behind, all);
    });
    drop(progress);
    if let (Err(_), Err(interrupted)) = (&sections, interrupt.check()) {
        return Err(interrupted);
    }
    let sections = sections?;
    let document =
        json!({ "report": arguments.report, "experiments": sections, "cancelled": interrupt.check().is_err() });
    let mut answer = answer(context, text(arguments, &sections), document.to_string())?;
    answer.failures.extend(interrupt.check().err());
    Ok(answer)
}

fn text(arguments: &BenchPaper, sections: &[Section]) -> String {
    let mut table = Table::new(&["experiment", "of", "holds here", "why"]);
    for section in sections {
        let holds = match section.verdict.holds {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not told",
        };
        table.row([section.name, section.work, holds, &section.verdict.why].map(str::to_owned));
    }
    let report = arguments.report.join("report.html");
    format!("{}\nThe report is {}.\n", table.render_for(terminal::width()), report.display())
}
