//! A table of steps by accidents. An empty cell was never tried.

use std::fmt;

use super::program::Act;

/// The trouble of a machine while a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Errors by chance, or aimed ones.
    Errors,
    /// A drive is slow.
    Slow,
    /// A drive is dead.
    Dead,
    /// A drive is full.
    Full,
    /// The machine stopped during the step.
    Crash,
    /// A drive has other bytes than were written.
    Rot,
}

const TROUBLES: usize = 7;

/// Counts of steps by their trouble.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// By step and trouble: the numbers of runs and of failures.
    cells: Vec<[[u64; 2]; TROUBLES]>,
    now: [bool; TROUBLES],
    /// Programs.
    pub programs: u64,
    /// Steps.
    pub steps: u64,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage { cells: vec![[[0; 2]; TROUBLES]; Act::ALL.len()], now: [false; TROUBLES], programs: 0, steps: 0 }
    }
}

impl Coverage {
    /// A program begins.
    pub fn program(&mut self) {
        self.programs += 1;
        self.now = [false; TROUBLES];
    }

    /// Trouble begins.
    pub fn trouble(&mut self, trouble: Trouble) {
        self.now[trouble as usize] = true;
    }

    /// All trouble ends.
    pub fn calm(&mut self) {
        self.now = [false; TROUBLES];
    }

    /// A step has ended.
    pub fn count(&mut self, act: Act, did: &str, crashed: bool) {
        self.steps += 1;
        let cells = &mut self.cells[act as usize];
        let failed = usize::from(did.starts_with("failed"));
        let mut count = |trouble: Trouble| {
            let cell = &mut cells[trouble as usize];
            cell[0] += 1;
            cell[1] += failed as u64;
        };
        if crashed {
            return count(Trouble::Crash);
        }
        let troubles = [Trouble::Errors, Trouble::Slow, Trouble::Dead, Trouble::Full, Trouble::Rot];
        let met: Vec<Trouble> = troubles.into_iter().filter(|trouble| self.now[*trouble as usize]).collect();
        if met.is_empty() {
            count(Trouble::None);
        }
        met.into_iter().for_each(count);
    }

    /// Adds the counts of others.
    pub fn add(&mut self, other: &Coverage) {
        self.programs += other.programs;
        self.steps += other.steps;
        for (own, other) in self.cells.iter_mut().flatten().flatten().zip(other.cells.iter().flatten().flatten()) {
            *own += other;
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} programs, {} steps. Each cell: how often it ran, and how often of these it failed.",
            self.programs, self.steps
        )?;
        writeln!(
            f,
            "{:<13}{:>15}{:>15}{:>15}{:>15}{:>15}{:>15}{:>15}",
            "", "no trouble", "errors", "slow", "dead", "full", "crash", "rot"
        )?;
        for (act, cells) in Act::ALL.iter().zip(&self.cells) {
            write!(f, "{:<13}", format!("{act:?}"))?;
            for [ran, failed] in cells {
                let text = if *ran == 0 { "-".to_owned() } else { format!("{ran}/{failed}") };
                write!(f, "{text:>15}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
