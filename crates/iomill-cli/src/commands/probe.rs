//! `iomill probe`: measures what drives and machine can do, and where the time goes.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::human;
use crate::probe;
use crate::probe::course::{Settings, Stage};
use crate::probe::figures::{DEEP, Figures, Point};
use iomill::Profile;
use iomill_platform::tree::Tree;
use serde_json::{Value, json};

use crate::arguments::Probe;
use crate::console::Answer;
use crate::context::Context;
use crate::destination::{self, Destination};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::table::Table;

pub fn run(context: &Context<'_>, arguments: &Probe) -> Result<Answer> {
    let document_file = context.global.json_file();
    may_write(arguments, document_file)?;
    let mut why = Vec::new();
    let settings = Settings {
        places: places(context, arguments, &mut why)?,
        raw: arguments.raw.clone(),
        part_bytes: arguments.size,
        slice: Duration::from_secs_f64(arguments.seconds),
        threads: match arguments.threads {
            Some(threads) => threads.into(),
            None => std::thread::available_parallelism().map_or(1, usize::from),
        },
    };
    if arguments.profile.is_some() && !settings.places.is_empty() {
        has_ids(&settings.places)?;
    }
    let interrupt = Interrupt::install()?;
    let mut progress = Progress::of_steps(context.global);
    let tree = Tree::machine();
    let probed = probe::run(&settings, &tree, interrupt.flag(), &mut |stage| show(&mut progress, stage), &mut why);
    drop(progress);
    interrupt.check()?;
    let Some(figures) = probed? else {
        if arguments.profile.is_some() {
            why.push("no profile was written".to_owned());
        }
        if arguments.html.is_some() {
            why.push("no page was written".to_owned());
        }
        let text: String = why.iter().map(|why| format!("nothing to measure: {why}\n")).collect();
        let document = json!({ "verdict": why, "drives": [] });
        write_document(document_file, &document)?;
        return Ok(Answer::new(text, document));
    };
    context.note(figures.left_out.iter().chain(&figures.paths_left_out).map(|why| format!("not measured: {why}")));
    let document = serde_json::to_value(&figures)
        .map_err(|e| iomill::Error::Tool { what: "the figures as JSON".into(), why: e.to_string() })?;
    write_document(document_file, &document)?;
    if let Some(file) = &arguments.profile {
        write_profile(file, &figures)?;
    }
    if let Some(file) = &arguments.html {
        std::fs::write(file, probe::html::page(&figures)).map_err(Failure::local("write", file))?;
    }
    Ok(Answer::new(text(&figures), document))
}

fn show(progress: &mut Progress, stage: Stage) {
    let (done, total, what) = match stage {
        Stage::Filling(done, total) => (done, total, format!("writing {}", human::size(total))),
        Stage::Measuring { done, total, what } => (done as u64, total as u64, what.to_owned()),
    };
    progress.set(done, total);
    progress.say(what);
}

/// Checks before a minute's measuring whether the results can be written. It leaves no empty files.
fn may_write(arguments: &Probe, document_file: Option<&Path>) -> Result<()> {
    let files =
        [("--profile", arguments.profile.as_deref()), ("--html", arguments.html.as_deref()), ("--json", document_file)];
    let mut seen: Vec<(&str, PathBuf)> = Vec::new();
    for (option, file) in files.into_iter().filter_map(|(option, file)| Some((option, file?))) {
        let place = std::path::absolute(file).map_err(Failure::local("find", file))?;
        if let Some((other, _)) = seen.iter().find(|(_, other)| *other == place) {
            return Err(Failure::Usage(format!("{other} and {option} name the same file, {}", file.display())));
        }
        seen.push((option, place));
        match option {
            "--profile" => may_write_profile(file)?,
            _ => destination::check_report(option, file)?,
        }
    }
    Ok(())
}

fn write_document(file: Option<&Path>, document: &Value) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    std::fs::write(file, format!("{document}\n")).map_err(Failure::local("write", file))
}

/// Refuses to replace a file that is no profile.
fn may_write_profile(file: &Path) -> Result<()> {
    if file == Path::new("-") {
        let why = "--profile needs a file: the standard output is for the figures".to_owned();
        return Err(Failure::Usage(why));
    }
    match Profile::read(file) {
        Ok(_) => Ok(()),
        Err(iomill::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            destination::make_and_remove(file, "write the profile")
        }
        Err(error @ iomill::Error::Corrupt { .. }) => {
            let why = format!(
                "{error}; it exists and is no profile, so it is not replaced: name another file for the profile, or remove this one"
            );
            Err(Failure::Usage(why))
        }
        Err(error) => Err(error.into()),
    }
}

/// Fails if no directory has a drive's label: a profile names drives by the ids in their labels.
fn has_ids(places: &[PathBuf]) -> Result<()> {
    for place in places {
        if probe::profile::id_of(place)?.is_some() {
            return Ok(());
        }
    }
    let why = "--profile: a profile names drives by the ids in their labels, and none of these directories has a label that can be \
               read; make them an array with `iomill init`, or leave --profile out";
    Err(Failure::Usage(why.to_owned()))
}

fn write_profile(file: &Path, figures: &Figures) -> Result<()> {
    let text = probe::profile::of(figures)?.text();
    let destination = Destination::open(Some(file), "profile.toml", true)?;
    let (mut sink, _) = destination.sink()?;
    sink.write_all(text.as_bytes()).map_err(Failure::local("write", file))?;
    destination.finish().map(drop)
}

/// The named places, with the directory of each that is a file: the probe reads files of its own, and makes them there.
fn directories(context: &Context<'_>, named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut places: Vec<PathBuf> = Vec::new();
    for place in named {
        let mut directory = place.clone();
        if place.is_file() {
            // The file itself may be elsewhere than a symbolic link to it.
            directory = place.canonicalize().map_err(Failure::local("find", place))?;
            directory.pop();
            context.note([format!(
                "{} is a file, so its drive is probed by files of its own in {}; nothing in the file is read or changed",
                place.display(),
                directory.display()
            )]);
            // Files beside each other are on one drive.
            if places.contains(&directory) {
                continue;
            }
        }
        places.push(directory);
    }
    Ok(places)
}

/// The named directories, or else the array's drives.
fn places(context: &Context<'_>, arguments: &Probe, why: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    if !arguments.places.is_empty() {
        return directories(context, &arguments.places);
    }
    // Raw devices alone are enough, whatever the current directory is. With them an array is probed only if `-a` names
    // it.
    if !arguments.raw.is_empty() && context.global.array.is_empty() {
        return Ok(Vec::new());
    }
    if context.starts_if_named()?.is_none() {
        why.push("name a directory on each drive, or an array with -a".to_owned());
        return Ok(Vec::new());
    }
    let info = context.peek()?.info()?;
    Ok(info.drives.iter().map(|drive| drive.path.clone()).collect())
}

fn text(figures: &Figures) -> String {
    let mut text: String = figures.verdict.iter().map(|words| format!("- {words}\n")).collect();
    text.push_str(&format!("\n{}\n\n", figures.machine.line()));
    text.push_str(&latencies(figures));
    text.push_str(&costs(figures));
    for (what, list, of) in sweeps() {
        text.push_str(&points(what, list(figures), of));
    }
    text
}

/// How a point is named in its table.
type Name = fn(&Point) -> String;
type Sweep = (&'static str, fn(&Figures) -> &[Point], Name);

/// The quantity that varies, the points, and the name of each point.
fn sweeps() -> [Sweep; 7] {
    let (depth, threads, drives): (Name, Name, Name) =
        (|point| point.depth.to_string(), |point| point.threads.to_string(), |point| point.drives.to_string());
    [
        ("in flight", |figures| &figures.depths, depth),
        ("in flight, 64 KiB", |figures| &figures.depths_wide, depth),
        ("request", |figures| &figures.sizes, |point| human::size(point.request_bytes.into())),
        ("threads", |figures| &figures.threads, threads),
        ("threads, 64 KiB", |figures| &figures.threads_wide, threads),
        ("drives", |figures| &figures.drive_counts, drives),
        ("drives, 64 KiB", |figures| &figures.drive_counts_wide, drives),
    ]
}

/// Latencies of one read at a time, one row per drive.
fn latencies(figures: &Figures) -> String {
    let mut table = Table::new(&[
        "drive",
        "?devices",
        "?>node",
        ">p50",
        ">p99",
        "?>before",
        ">drive's",
        "?>after",
        ">platform's",
        ">CPU",
        ">reads/s",
        ">best depth",
    ]);
    let node = |node: Option<u32>| node.map_or("-".to_owned(), |node| node.to_string());
    let time = |us: Option<f64>| us.map_or("?".to_owned(), human::time_us);
    let drives = figures
        .drives
        .iter()
        .map(|drive| (&drive.path, &drive.devices, drive.node, &drive.latency, drive.alone.iops, drive.best_depth));
    let raw = figures.raw.iter().map(|raw| {
        let deep = raw.depths.iter().find(|depth| depth.depth == DEEP).map_or(0.0, |depth| depth.iops);
        (&raw.path, &raw.devices, raw.node, &raw.latency, deep, raw.best_depth)
    });
    for (path, devices, its_node, latency, deep, best_depth) in drives.chain(raw) {
        table.row([
            path.display().to_string(),
            devices.join(","),
            node(its_node),
            human::time_us(latency.p50_us),
            human::time_us(latency.p99_us),
            time(latency.submit_us),
            time(latency.is_split().then_some(latency.device_us)),
            time(latency.complete_us),
            time(latency.is_split().then_some(latency.platform_us)),
            human::time_us(latency.cpu_us),
            human::count(deep),
            best_depth.to_string(),
        ]);
    }
    let mut text = table.render();
    let latencies = figures.drives.iter().map(|drive| (&drive.path, &drive.latency));
    let latencies: Vec<_> = latencies.chain(figures.raw.iter().map(|raw| (&raw.path, &raw.latency))).collect();
    text.push_str(&format!("One read of 4 KiB at a time; reads/s: {} in flight.\n", DEEP));
    for (path, latency) in latencies {
        text.push_str(&format!("{}: split by {}\n", path.display(), latency.split_by));
    }
    text
}

/// The CPU costs of the paths and parts of a read.
fn costs(figures: &Figures) -> String {
    let mut text = String::new();
    let costs = &figures.costs;
    if costs.system_call_ns > 0.0 {
        text.push_str(&format!(
        "\nCPU, by subtracting measured paths: a system call {:.0} ns, copying 4 KiB {:.0} ns ({:.3} ns a byte), a read of 4 KiB from the \
         page cache {:.0} ns, of which {:.0} ns are neither call nor copy\n",
        costs.system_call_ns, costs.copy_page_ns, costs.copy_byte_ns, costs.cached_read_ns, costs.page_cache_ns
        ));
    }
    let mut table = Table::new(&["one thread reads by", "of", ">reads/s", ">CPU/read", ">cycles/read"]);
    for way in &figures.ways {
        let (iops, cpu) = (human::count(way.iops), human::time_us(way.cpu_us_per_op));
        table.row([way.name.to_owned(), "all drives".to_owned(), iops, cpu, String::new()]);
    }
    for cost in &figures.paths {
        table.row([
            cost.words(),
            cost.path.display().to_string(),
            human::count(cost.iops),
            human::time_us(cost.cpu_us_per_op),
            cost.cycles_per_op.map_or("?".to_owned(), human::count),
        ]);
    }
    text.push_str(&format!("\n{}cycles: {}\n", table.render(), figures.cycles_by));
    figures.paths_left_out.iter().for_each(|why| text.push_str(&format!("not measured: {why}\n")));
    if let Some(served) = &figures.served {
        let mut table = Table::new(&["iomill, I/O by", ">reads/s", ">CPU/read"]);
        for way in &served.ways {
            let name = if way.value == "caller" { "the calling thread" } else { "--drive-threads" };
            table.row([name.to_owned(), human::count(way.iops), human::time_us(way.cpu_us_per_op)]);
        }
        text.push_str(&format!("\n{}", table.render()));
    }
    text
}

fn points(what: &str, points: &[Point], of: Name) -> String {
    if points.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[&*format!(">{what}"), ">reads/s", ">bandwidth", ">CPU/read", ">CPUs", ">of linear"]);
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
