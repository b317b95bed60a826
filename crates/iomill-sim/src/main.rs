//! Runs random programs against the whole stack on simulated machines, until one shows a fault.
//!
//! `cargo run --release -p iomill-sim -- --seeds 10000` runs the programs of seeds from 0 on, `--from N` others.
//! `--seed N` runs one program and prints its steps, and `--steps 3,7,12` leaves all other steps out.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use iomill_sim::swarm::{Coverage, Failure, run, shrink};

const HELP: &str = "\
Usage: iomill-sim [--seeds N] [--from N] [--minutes N] [--jobs N] | --seed N [--steps N,N,...]

  --seeds N    run the programs of N seeds (1000)
  --from N     the first seed (0)
  --minutes N  begin no program after N minutes
  --jobs N     threads, each with programs of its own (all processors)
  --seed N     run one program, and tell what each step does
  --steps ...  only these of its steps";

/// The arguments of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    seeds: u64,
    from: u64,
    minutes: Option<u64>,
    jobs: usize,
    seed: Option<u64>,
    steps: Option<Vec<usize>>,
}

fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Asked, String> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut asked = Asked { seeds: 1000, from: 0, minutes: None, jobs, seed: None, steps: None };
    let mut arguments = arguments.into_iter();
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Err(HELP.to_owned());
        }
        let value = arguments.next().ok_or_else(|| format!("{name} lacks a value\n\n{HELP}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number\n\n{HELP}"));
        match name.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--from" => asked.from = number()?,
            "--minutes" => asked.minutes = Some(number()?),
            "--jobs" => asked.jobs = number()?.max(1) as usize,
            "--seed" => asked.seed = Some(number()?),
            "--steps" => {
                let steps = value.split(',').map(|step| step.trim().parse::<usize>());
                let steps: Result<Vec<usize>, _> = steps.collect();
                asked.steps = Some(steps.map_err(|_| format!("--steps {value}: not numbers\n\n{HELP}"))?);
            }
            _ => return Err(format!("there is no option {name}\n\n{HELP}")),
        }
    }
    if asked.steps.is_some() && asked.seed.is_none() {
        return Err(format!("--steps are those of a --seed\n\n{HELP}"));
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(text) if text == HELP => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprintln!("iomill-sim: {text}");
            return ExitCode::from(2);
        }
    };
    // A panic is a fault of a program, and is reported with it.
    std::panic::set_hook(Box::new(|_| ()));
    match asked.seed {
        Some(seed) => one(seed, asked.steps.as_deref()),
        None => many(&asked),
    }
}

/// Runs one program, and prints each step.
fn one(seed: u64, steps: Option<&[usize]>) -> ExitCode {
    match run(seed, steps, &mut Coverage::default()) {
        Ok(story) => {
            story.iter().for_each(|line| println!("{line}"));
            println!("seed {seed}: right");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            tell(&failure);
            ExitCode::FAILURE
        }
    }
}

fn tell(failure: &Failure) {
    println!("{}", failure.events);
    failure.story.iter().for_each(|line| println!("{line}"));
    println!("seed {}, {} of {} steps: {}", failure.seed, failure.steps.len(), failure.of, failure.what);
    let steps: Vec<String> = failure.steps.iter().map(usize::to_string).collect();
    let some = if failure.steps.len() < failure.of { format!(" --steps {}", steps.join(",")) } else { String::new() };
    println!("again: cargo run --release -p iomill-sim -- --seed {}{some}", failure.seed);
}

/// Runs programs in several threads until one fails.
fn many(asked: &Asked) -> ExitCode {
    let (next, stop) = (AtomicU64::new(asked.from), AtomicBool::new(false));
    let (all, failed) = (Mutex::new(Coverage::default()), Mutex::new(Vec::new()));
    let start = Instant::now();
    let end = asked.from.saturating_add(asked.seeds);
    let is_late = || asked.minutes.is_some_and(|minutes| start.elapsed() >= Duration::from_secs(60 * minutes));
    let work = || {
        let mut coverage = Coverage::default();
        while !stop.load(Ordering::Relaxed) && !is_late() {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                break;
            }
            if let Err(failure) = run(seed, None, &mut coverage) {
                stop.store(true, Ordering::Relaxed);
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
            if seed % 1000 == 999 {
                eprintln!("{} programs, {} s", seed + 1 - asked.from, start.elapsed().as_secs());
            }
        }
        all.lock().unwrap_or_else(PoisonError::into_inner).add(&coverage);
    };
    std::thread::scope(|scope| (0..asked.jobs).for_each(|_| drop(scope.spawn(work))));
    print!("{}", all.into_inner().unwrap_or_else(PoisonError::into_inner));
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let Some(first) = failed.into_iter().min_by_key(|failure| failure.seed) else {
        println!("all right, {} s", start.elapsed().as_secs());
        return ExitCode::SUCCESS;
    };
    eprintln!("seed {} is wrong: {}; looking for fewer steps", first.seed, first.what);
    let shortest = shrink(first, &mut |left| eprintln!("{left} steps"));
    tell(&shortest);
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Asked, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_command_line_is_checked() {
        assert_eq!(asked("--seeds 7 --from 3").map(|asked| (asked.seeds, asked.from)), Ok((7, 3)));
        assert_eq!(asked("--seed 9 --steps 1,2").unwrap().steps, Some(vec![1, 2]));
        for wrong in ["--seeds", "--seeds x", "--stpes 1", "--steps 1", "--seed 1 --steps a,b"] {
            assert!(asked(wrong).unwrap_err().contains("Usage"), "{wrong}");
        }
    }
}
