//! A whole measurement: make the file, collect the contenders, measure in turns, remove the file, report.

use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, Error, Layout, Result};

use crate::arena::{Arena, Shape};
use crate::asynchronous::Flyer;
use crate::contender::{
    AIO_BY_HAND, FIO_IO_URING, FIO_IO_URING_TUNED, FOYER, MMAP, MMAP_SMALL_PAGES, MOKA, PREAD, PWRITE, UNCACHED,
};
use crate::contender::{Contender, IOMILL_DRIVE_THREADS, IOMILL_INLINE, IOMILL_NULL};
use crate::contender::{PLAIN_FILES, QUICK_CACHE, REDB, SQLITE, TOKIO_FS, URING_BY_HAND, URING_BY_HAND_PLAIN};
use crate::iomill::Iomill;
use crate::machine::Machine;
use crate::report::Report;
use crate::rivals;
use crate::rounds::{self, Plan, Progress};

/// The names that a choice of rivals may contain.
pub const RIVALS: [&str; 16] = [
    URING_BY_HAND,
    URING_BY_HAND_PLAIN,
    AIO_BY_HAND,
    FIO_IO_URING,
    FIO_IO_URING_TUNED,
    PREAD,
    MMAP,
    MMAP_SMALL_PAGES,
    QUICK_CACHE,
    MOKA,
    FOYER,
    TOKIO_FS,
    PWRITE,
    PLAIN_FILES,
    SQLITE,
    REDB,
];

/// The rivals of [`run`].
pub const ACCESS_RIVALS: &[&str] =
    &[URING_BY_HAND, URING_BY_HAND_PLAIN, AIO_BY_HAND, FIO_IO_URING, FIO_IO_URING_TUNED, PREAD, MMAP];

/// The contenders besides iomill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rivals {
    /// All rivals.
    All,
    /// No rivals.
    None,
    /// These, out of [`RIVALS`].
    Some(Vec<String>),
}

impl Rivals {
    /// Whether that contender takes part. iomill always does.
    pub fn include(&self, name: &str) -> bool {
        match self {
            Rivals::All => true,
            Rivals::None => name.starts_with("iomill-"),
            Rivals::Some(names) => name.starts_with("iomill-") || names.iter().any(|one| one == name),
        }
    }

    /// Refuses rivals that a measurement does not have.
    pub(crate) fn check(&self, names: &[&str]) -> Result<()> {
        let Rivals::Some(chosen) = self else { return Ok(()) };
        match chosen.iter().find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let there = names.join(", ");
                let why = format!("it takes no part in this measurement; give `all`, `none`, or some of {there}");
                Err(Error::invalid(format!("rival {name:?}"), why))
            }
        }
    }
}

impl std::str::FromStr for Rivals {
    type Err = Error;

    fn from_str(text: &str) -> Result<Rivals> {
        match text {
            "all" => Ok(Rivals::All),
            "none" => Ok(Rivals::None),
            names => {
                let names: Vec<String> = names.split(',').map(str::to_owned).collect();
                match names.iter().find(|name| ![&RIVALS, UNCACHED].concat().contains(&name.as_str())) {
                    Some(name) => Err(Error::invalid(
                        format!("rival {name:?}"),
                        format!("give `all`, `none`, or some of {}", [&RIVALS, UNCACHED].concat().join(", ")),
                    )),
                    None => Ok(Rivals::Some(names)),
                }
            }
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file to measure on.
    pub shape: Shape,
    /// The timed part.
    pub plan: Plan,
    /// The ways of iomill to measure, by their contenders' names.
    pub ways: Vec<&'static str>,
    /// Its asynchronous ways to measure.
    pub flyers: Vec<Flyer>,
    /// How iomill opens the array. The measurement sets mode, depth and access itself.
    pub options: ArrayOptions,
    /// The other contenders.
    pub rivals: Rivals,
}

impl Settings {
    /// All blocking ways of iomill.
    pub fn all_ways() -> Vec<&'static str> {
        vec![IOMILL_INLINE, IOMILL_DRIVE_THREADS, IOMILL_NULL]
    }
}

/// The current step of a whole measurement.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Writing the file: bytes so far, and the total.
    Filling(u64, u64),
    /// The contenders take turns.
    Measuring(Progress),
}

/// Measures on `arena`. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    settings.rivals.check(ACCESS_RIVALS)?;
    if settings.plan.workload.writes() && settings.shape.layout.chosen_layout() == Layout::Hash {
        let why = "rivals would write into blocks that the hash layout leaves unused; use striping or rotated";
        return Err(Error::invalid("writes with the hash layout", why));
    }
    arena.fill(&settings.shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let target = arena.target()?;
    let machine = Machine::look(target.parts());
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for &way in &settings.ways {
        contenders.push(Box::new(Iomill::new(way, arena, &settings.options)?));
    }
    for flyer in &settings.flyers {
        contenders.push(Box::new(Iomill::flying(flyer, arena, &settings.options)?));
    }
    contenders.extend(rivals::all(&target).into_iter().filter(|rival| settings.rivals.include(rival.name())));
    let measured = rounds::run(&mut contenders, &settings.plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
    Ok(Report::new(machine, &[measured]))
}
