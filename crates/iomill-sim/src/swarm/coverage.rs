//! What a swarm has met: operations by faults, states by faults, and operations by faults in each state.
//!
//! An operation meets a fault if one of its requests to a drive does. The fault fails or shortens the request, or the
//! drive is slow, dead or full, or the bytes that the request reads are not what was written.

use std::fmt;

use super::program::Act;
use crate::fault::Met;

/// The state of a program before a step. Several are true at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Sums,
    NoSums,
    Cached,
    Uncached,
    /// A crash leaves the present bytes and lengths.
    Clean,
    Unsynced,
    /// Calls in flight: pages are being filled and written to.
    InFlight,
    Drafts,
    /// The array was opened after the machine had stopped.
    AfterCrash,
    /// The array was opened after its process had died.
    AfterDeath,
}

impl State {
    /// All of them.
    pub const ALL: [State; STATES] = [
        State::Sums,
        State::NoSums,
        State::Cached,
        State::Uncached,
        State::Clean,
        State::Unsynced,
        State::InFlight,
        State::Drafts,
        State::AfterCrash,
        State::AfterDeath,
    ];
}

const STATES: usize = 10;

/// No fault, each fault that an operation may meet, and the end of the machine.
const COLUMNS: [&str; 2 + Met::ALL.len()] =
    ["no fault", "error", "short", "slow", "dead", "full", "lost", "rot", "crash"];

/// Counts of steps with work. See the module.
#[derive(Clone, Debug)]
pub struct Coverage {
    cells: Vec<[Cell; COLUMNS.len()]>,
    /// Programs.
    pub programs: u64,
    /// Steps with work.
    pub steps: u64,
}

/// Steps of one kind that met one fault.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    ran: u64,
    failed: u64,
    in_state: [u64; STATES],
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage { cells: vec![[Cell::default(); COLUMNS.len()]; Act::ALL.len()], programs: 0, steps: 0 }
    }
}

impl Coverage {
    /// A step has ended, which began in these states.
    pub fn count(&mut self, act: Act, states: &[State], met: Met, did: &str, crashed: bool) {
        if !act.is_operation() {
            return;
        }
        let cells = &mut self.cells[act as usize];
        self.steps += 1;
        let faults = (1..).zip(Met::ALL).filter(|(_, fault)| met.has(*fault)).map(|(column, _)| column);
        let crash = crashed.then_some(COLUMNS.len() - 1);
        let nothing = (met == Met::default() && !crashed).then_some(0);
        for column in faults.chain(crash).chain(nothing) {
            let cell = &mut cells[column];
            cell.ran += 1;
            cell.failed += u64::from(did.starts_with("failed"));
            states.iter().for_each(|state| cell.in_state[*state as usize] += 1);
        }
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &Coverage) {
        self.programs += other.programs;
        self.steps += other.steps;
        for (own, other) in self.cells.iter_mut().flatten().zip(other.cells.iter().flatten()) {
            own.ran += other.ran;
            own.failed += other.failed;
            own.in_state.iter_mut().zip(other.in_state).for_each(|(own, other)| *own += other);
        }
    }

    fn operations(&self) -> impl Iterator<Item = (Act, &[Cell; COLUMNS.len()])> {
        Act::ALL.into_iter().zip(&self.cells).filter(|(act, _)| act.is_operation())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, cells: impl Iterator<Item = String>) -> fmt::Result {
    writeln!(f, "{name:<12}{}", cells.map(|cell| format!("{cell:>15}")).collect::<String>())
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} programs, {} steps. How many met a fault, and how many of these failed:",
            self.programs, self.steps
        )?;
        row(f, "", COLUMNS.into_iter().map(str::to_owned))?;
        for (act, cells) in self.operations() {
            row(f, &format!("{act:?}"), cells.iter().map(|cell| format!("{}/{}", cell.ran, cell.failed)))?;
        }
        writeln!(f, "\nHow many steps met a fault in a state:")?;
        row(f, "", COLUMNS.into_iter().map(str::to_owned))?;
        for state in State::ALL {
            let steps =
                |column: usize| self.cells.iter().map(|cells| cells[column].in_state[state as usize]).sum::<u64>();
            row(f, &format!("{state:?}"), (0..COLUMNS.len()).map(|column| steps(column).to_string()))?;
        }
        writeln!(f, "\nNever met, by operation:")?;
        for (act, cells) in self.operations() {
            for (cell, column) in cells.iter().zip(COLUMNS) {
                let missed: Vec<String> = State::ALL
                    .into_iter()
                    .filter(|state| cell.in_state[*state as usize] == 0)
                    .map(|state| format!("{state:?}"))
                    .collect();
                match missed.len() {
                    0 => {}
                    STATES => writeln!(f, "{act:?}: {column}")?,
                    _ => writeln!(f, "{act:?}: {column} in {}", missed.join(", "))?,
                }
            }
        }
        Ok(())
    }
}
