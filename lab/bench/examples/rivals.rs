//! Measures the rivals alone: `rivals [ROUNDS] DIR…` writes 512 MiB into each directory, and removes it again.
//! `RIVALS_PART=2GiB`, `RIVALS_ONLY=uring-by-hand,fio-io_uring` and `RIVALS_JSON=1` change that.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill_bench::machine::Machine;
use iomill_bench::report::Report;
use iomill_bench::rivals;
use iomill_bench::rounds::{self, Plan};
use iomill_bench::target::Target;
use iomill_bench::workload::Workload;
use iomill_cli::human;

fn main() -> ExitCode {
    match measure() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rivals: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> iomill::Result<String> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = arguments.first().and_then(|first| first.parse().ok());
    if rounds.is_some() {
        arguments.remove(0);
    }
    let dirs: Vec<PathBuf> = arguments.iter().map(PathBuf::from).collect();
    let setting = |name: &str| std::env::var(name).ok();
    let part_bytes = human::parse_size(setting("RIVALS_PART").as_deref().unwrap_or("512MiB"))?;
    let target = Target::write(&dirs, "rivals.tmp", part_bytes, 1, &AtomicBool::new(false), &mut |_, _| ())?;
    let mut contenders = rivals::all(&target);
    if let Some(only) = setting("RIVALS_ONLY") {
        contenders.retain(|contender| only.split(',').any(|name| name == contender.name()));
    }
    let second = Duration::from_secs(1);
    let plan = Plan {
        workload: Workload::RANDOM_READ,
        threads: 1,
        rounds: rounds.unwrap_or(5),
        slice: 2 * second,
        warm_up: second,
    };
    let tell = &mut |at: rounds::Progress| eprint!("\r{}/{} {:20}", at.done, at.total, at.contender);
    let measured = rounds::run(&mut contenders, &plan, tell, &AtomicBool::new(false));
    eprintln!();
    for part in target.parts() {
        std::fs::remove_file(&part.path).map_err(|e| iomill::Error::io("remove", &part.path, e))?;
    }
    let report = Report::new(Machine::look(target.parts()), &[measured?]);
    if setting("RIVALS_JSON").is_some() { report.json() } else { Ok(report.table(None)) }
}
