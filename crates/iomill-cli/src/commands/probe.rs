//! `iomill probe`: what drives and machine can do, and where the time goes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use iomill_bench::human;
use iomill_bench::probe::{self, Figures, Point, Settings};
use iomill_platform::tree::Tree;
use serde_json::{Value, json};

use super::bench::Bar;
use crate::arguments::Probe;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::table::Table;

pub fn run(context: &Context<'_>, arguments: &Probe) -> Result<Answer> {
    let document_file = context.global.json.as_deref().filter(|file| *file != Path::new("-"));
    for file in document_file.into_iter().chain(arguments.html.as_deref()) {
        // Not after a minute's work.
        let made = File::options().create(true).append(true).open(file);
        made.map_err(Failure::local("write", file))?;
    }
    let mut why = Vec::new();
    let settings = Settings {
        places: places(context, arguments, &mut why)?,
        part_bytes: arguments.size,
        slice: Duration::from_secs_f64(arguments.seconds),
        threads: match arguments.threads {
            Some(threads) => threads.into(),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        },
    };
    let interrupt = Interrupt::install()?;
    let bar = Bar::new(context);
    let tree = Tree::machine();
    let probed = probe::run(&settings, &tree, interrupt.flag(), &mut |stage| bar.show(stage), &mut why);
    drop(bar);
    interrupt.check()?;
    let Some(figures) = probed? else {
        let text: String = why.iter().map(|why| format!("nothing to measure: {why}\n")).collect();
        return Ok(Answer::new(text, json!({ "verdict": why, "drives": [] })));
    };
    context.note(figures.left_out.iter().map(|why| format!("not measured: {why}")));
    let document = serde_json::to_value(&figures).unwrap_or(Value::Null);
    if let Some(file) = document_file {
        std::fs::write(file, format!("{document}\n")).map_err(Failure::local("write", file))?;
    }
    if let Some(file) = &arguments.html {
        std::fs::write(file, probe::html::page(&figures)?).map_err(Failure::local("write", file))?;
    }
    Ok(Answer::new(text(&figures), document))
}

/// The directories that are named, or the array's drives.
fn places(context: &Context<'_>, arguments: &Probe, why: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    if !arguments.places.is_empty() {
        return Ok(arguments.places.clone());
    }
    if context.starts_if_named()?.is_none() {
        why.push("name a directory on each drive, or an array by -a".to_owned());
        return Ok(Vec::new());
    }
    let info = context.peek()?.info()?;
    Ok(info.drives.iter().map(|drive| drive.path.clone()).collect())
}

fn text(figures: &Figures) -> String {
    let mut text: String = figures.verdict.iter().map(|words| format!("- {words}\n")).collect();
    text.push_str(&format!("\n{}\n\n", figures.machine.line()));
    let mut table =
        Table::new(&["drive", "devices", ">node", ">p50", ">p99", ">drive's", ">platform's", ">CPU", ">reads/s"]);
    for drive in &figures.drives {
        let (latency, time) = (&drive.latency, |us: Option<f64>| us.map_or("?".to_owned(), human::time_us));
        table.row([
            drive.path.display().to_string(),
            drive.devices.join(","),
            drive.node.map_or("-".to_owned(), |node| node.to_string()),
            human::time_us(latency.p50_us),
            human::time_us(latency.p99_us),
            time(latency.device_us),
            time(latency.platform_us),
            human::time_us(latency.cpu_us),
            human::count(drive.alone.iops),
        ]);
    }
    text.push_str(&table.render());
    if let Some(drive) = figures.drives.first() {
        text.push_str(&format!(
            "One read of 4 KiB at a time; split by {}. reads/s: 32 in flight.\n\n",
            drive.latency.split_by
        ));
    }
    let costs = &figures.costs;
    text.push_str(&format!(
        "CPU, by subtracting measured paths: a system call {:.0} ns, copying 4 KiB {:.0} ns ({:.3} ns a byte), a read of 4 KiB from the \
         page cache {:.0} ns, of which {:.0} ns are neither call nor copy\n\n",
        costs.system_call_ns, costs.copy_page_ns, costs.copy_byte_ns, costs.cached_read_ns, costs.page_cache_ns
    ));
    let mut table = Table::new(&["one thread reads by", ">reads/s", ">CPU/read"]);
    for way in &figures.ways {
        table.row([way.name.to_owned(), human::count(way.iops), human::time_us(way.cpu_us_per_op)]);
    }
    text.push_str(&table.render());
    text.push_str(&points("in flight", &figures.depths, |point| point.depth.to_string()));
    text.push_str(&points("request", &figures.sizes, |point| human::size(point.request_bytes.into())));
    text.push_str(&points("threads", &figures.threads, |point| point.threads.to_string()));
    text.push_str(&points("drives", &figures.drive_counts, |point| point.drives.to_string()));
    text.push_str(&points("drives, 64 KiB", &figures.drive_counts_wide, |point| point.drives.to_string()));
    text
}

fn points(what: &str, points: &[Point], of: impl Fn(&Point) -> String) -> String {
    let mut table = Table::new(&[&format!(">{what}"), ">reads/s", ">bandwidth", ">CPU/read", ">CPUs", ">of linear"]);
    for point in points {
        table.row([
            of(point),
            human::count(point.iops),
            human::rate(point.bytes_per_s),
            human::time_us(point.cpu_us_per_op),
            format!("{:.2}", point.cpus_used),
            point.of_linear.map_or("-".to_owned(), |share| format!("{:.0}%", 100.0 * share)),
        ]);
    }
    format!("\n{}", table.render())
}
