//! Random programs against the whole stack (interface, cache, drive queues, catalog) on simulated machines.
//!
//! Goals: a seed decides a machine, its calls and its faults. Each read, error, length and name is compared with the
//! allowed ones. A program that shows a fault is shortened as far as possible. Non-goals: plain files, several threads,
//! and speed.

mod accidents;
mod acts;
mod calls;
mod coverage;
mod flight;
mod life;
mod model;
mod names;
mod program;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::Coverage;
use life::Life;
use program::Program;

/// A program that showed a fault.
#[derive(Debug)]
pub struct Failure {
    /// The seed of its program.
    pub seed: u64,
    /// The fault.
    pub what: String,
    /// The steps that show it, by their numbers in the program of the seed.
    pub steps: Vec<usize>,
    /// The number of the program's steps.
    pub of: usize,
    /// The results of the steps.
    pub story: Vec<String>,
    /// The machine's last events.
    pub events: String,
}

/// Runs the program of a seed. `only` leaves all steps out but these.
pub fn run(seed: u64, only: Option<&[usize]>, coverage: &mut Coverage) -> Result<Vec<String>, Box<Failure>> {
    let program = Program::draw(seed);
    let steps: Vec<usize> = match only {
        Some(only) => only.iter().copied().filter(|index| *index < program.steps.len()).collect(),
        None => (0..program.steps.len()).collect(),
    };
    coverage.programs += 1;
    play(&program, &steps, coverage)
}

/// The same failure with as few steps as possible. `tell` gets the number of steps that are left.
pub fn shrink(failure: Box<Failure>, tell: &mut dyn FnMut(usize)) -> Box<Failure> {
    let program = Program::draw(failure.seed);
    let mut least = failure;
    let mut piece = least.steps.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        let before = least.steps.len();
        while at < least.steps.len() {
            let mut fewer = least.steps.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            match play(&program, &fewer, &mut Coverage::default()) {
                Err(shorter) => {
                    least = shorter;
                    tell(least.steps.len());
                }
                Ok(_) => at += piece,
            }
        }
        piece = if piece == 1 && least.steps.len() < before { 1 } else { piece / 2 };
    }
    least
}

fn play(program: &Program, steps: &[usize], coverage: &mut Coverage) -> Result<Vec<String>, Box<Failure>> {
    let mut life = None;
    // After a panic only the life's story and the machine's events are used.
    let ended = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
        // A move, because the life keeps it.
        let coverage = { coverage };
        let life = life.insert(Life::begin(program, coverage)?);
        for &index in steps {
            life.step(index, &program.steps[index])?;
        }
        life.finish()
    }));
    let ended = ended.unwrap_or_else(|panic| Err(format!("a panic: {}", words(&*panic))));
    let (mut story, mut events) = (Vec::new(), String::new());
    if let Some(mut life) = life {
        (story, events) = (std::mem::take(&mut life.story), life.world.trace_tail());
        if ended.is_err() {
            // Its state is not known, so it is not dropped in order.
            std::mem::forget(life);
        }
    }
    match ended {
        Ok(()) => Ok(story),
        Err(what) => {
            let (seed, of) = (program.seed, program.steps.len());
            Err(Box::new(Failure { seed, what, steps: steps.to_vec(), of, story, events }))
        }
    }
}

/// The words of a panic.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
