//! A swarm of runs: two processes, their drives and a hostile origin take steps that a seed draws. Reads, changes with
//! any outcome, pins, kills in the midst of an append, crashes of the machine, flipped bits, drives that are exchanged
//! or lost, full and failing drives. A model knows all contents of each object, and each byte of each call is compared.
//!
//! `IOMILL_SEED=7 cargo test --lib swarm` repeats one run, and `IOMILL_ROUNDS=100` makes 100 times as many. A run that
//! fails is shortened first. The steps of a run are those of its seed. The threads of drives are not under the control
//! of the swarm, so a failure that depends on them may need several repetitions.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod checks;
mod damage;
mod program;
mod sea;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use program::Program;
use world::World;

/// The number of runs of a test.
const RUNS: u64 = 40;
/// How often a shorter program is tried before the failure counts as gone.
const REPEATS: u32 = 3;

/// Runs a program. An error has the number of the failed step, and the reason.
fn run(program: &Program) -> Result<(), (usize, String)> {
    let mut at = 0;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(program);
        for (number, step) in program.steps.iter().enumerate() {
            at = number;
            world.step(step);
        }
        world.close_all();
    }));
    ended.map_err(|payload| (at, words(&*payload)))
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn fails(program: &Program) -> Option<(usize, String)> {
    (0..REPEATS).find_map(|_| run(program).err())
}

/// Leaves out steps as long as the program fails.
fn shortened(program: Program, at: usize) -> Program {
    let mut shortest = program;
    shortest.steps.truncate(at + 1);
    let mut length = shortest.steps.len() / 2;
    while length > 0 {
        let mut begin = 0;
        while begin < shortest.steps.len() {
            let mut shorter = shortest.clone();
            shorter.steps.drain(begin..(begin + length).min(shorter.steps.len()));
            match fails(&shorter) {
                Some(_) => shortest = shorter,
                None => begin += length,
            }
        }
        length /= 2;
    }
    shortest
}

fn check(seed: u64) {
    let program = Program::new(seed);
    if let Err((at, why)) = run(&program) {
        let shorter = shortened(program, at);
        let steps: Vec<String> = shorter.steps.iter().map(|step| format!("    {step:?}")).collect();
        let settings = &shorter.settings;
        panic!("seed {seed}, step {at}: {why}\n{settings:?}\nenough for a failure:\n{}", steps.join("\n"));
    }
}

#[test]
fn no_run_returns_a_wrong_byte() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("IOMILL_SEED") {
        Some(seed) => check(seed),
        None => (0..RUNS * number("IOMILL_ROUNDS").unwrap_or(1)).for_each(check),
    }
}
