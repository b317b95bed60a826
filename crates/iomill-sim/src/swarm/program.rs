//! A program: a machine, and the steps on it. A seed draws the whole program before it runs, so steps can be left out.
//!
//! A step names files, ranges and drives by numbers, which are taken modulo the present number of files, bytes and
//! drives. So each step has a meaning in every program. Each seed draws how often it wants each kind of step, most
//! kinds seldom or never (swarm testing: Groce et al., ISSTA 2012).

use std::fmt;

use fastrand::Rng;
use iomill::{ArrayOptions, FileOptions, PolicyKind, Topology, Tuning};

use crate::{DriveModel, Rates, World, testing};

const PAGE: usize = 4096;

/// The kinds of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    Create,
    Open,
    Drop,
    Close,
    Rename,
    Delete,
    Attribute,
    Put,
    Copy,
    Draft,
    Publish,
    Read,
    Gather,
    Pin,
    Write,
    Append,
    Scatter,
    SetLen,
    Preallocate,
    Sync,
    BeginRead,
    BeginGather,
    BeginWrite,
    Submit,
    Poll,
    Finish,
    Abandon,
    Step,
    Resize,
    /// Operations fail by chance from here on.
    Errors,
    /// The next operations of a kind fail on a drive.
    Inject,
    Slow,
    Kill,
    Fill,
    /// Nothing fails from here on.
    Calm,
    /// The machine stops at a later change of its drives.
    CrashSoon,
    Crash,
    /// The process dies, and the machine goes on.
    KillProcess,
    /// The array is closed and opened again.
    Reopen,
    /// Bytes of a file on a drive change.
    Rot,
    /// The next write to a file succeeds, and is lost.
    Lose,
    /// The next write to a file succeeds, and goes to another place of it.
    Misplace,
}

impl Act {
    /// All of them.
    pub const ALL: [Act; 42] = [
        Act::Create,
        Act::Open,
        Act::Drop,
        Act::Close,
        Act::Rename,
        Act::Delete,
        Act::Attribute,
        Act::Put,
        Act::Copy,
        Act::Draft,
        Act::Publish,
        Act::Read,
        Act::Gather,
        Act::Pin,
        Act::Write,
        Act::Append,
        Act::Scatter,
        Act::SetLen,
        Act::Preallocate,
        Act::Sync,
        Act::BeginRead,
        Act::BeginGather,
        Act::BeginWrite,
        Act::Submit,
        Act::Poll,
        Act::Finish,
        Act::Abandon,
        Act::Step,
        Act::Resize,
        Act::Errors,
        Act::Inject,
        Act::Slow,
        Act::Kill,
        Act::Fill,
        Act::Calm,
        Act::CrashSoon,
        Act::Crash,
        Act::KillProcess,
        Act::Reopen,
        Act::Rot,
        Act::Lose,
        Act::Misplace,
    ];

    /// The number of kinds that each program may draw. Some programs have the others, too.
    const DRAWN: usize = 39;

    /// Whether the step causes a fault.
    pub fn is_accident(self) -> bool {
        matches!(
            self,
            Act::Errors
                | Act::Inject
                | Act::Slow
                | Act::Kill
                | Act::Fill
                | Act::Calm
                | Act::CrashSoon
                | Act::Crash
                | Act::KillProcess
        )
    }

    /// Whether the step calls iomill. The others cause faults, or end them.
    pub fn is_operation(self) -> bool {
        !self.is_accident() && !matches!(self, Act::Rot | Act::Lose | Act::Misplace)
            || matches!(self, Act::Crash | Act::KillProcess)
    }

    /// Its largest weight in the draw.
    fn weight(self) -> u32 {
        match self {
            Act::Read | Act::Write | Act::Append | Act::BeginWrite | Act::BeginRead | Act::Finish => 12,
            Act::Gather | Act::Put | Act::Poll | Act::Sync | Act::Submit | Act::BeginGather => 6,
            Act::Crash | Act::KillProcess | Act::Reopen | Act::Kill | Act::Fill | Act::CrashSoon | Act::Slow => 1,
            _ => 3,
        }
    }
}

/// A step: its kind, and the draws that choose its objects.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub act: Act,
    /// Which file, handle, drive or call.
    pub which: u32,
    /// An offset, a length, or another choice.
    pub first: u32,
    pub second: u32,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}, {}, {})", self.act, self.which, self.first, self.second)
    }
}

/// A machine, and the steps on it.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub drives: Vec<DriveModel>,
    pub weights: Vec<u32>,
    /// Whether drives tear sectors when the machine stops.
    pub tears: bool,
    /// Files stay below this length.
    pub longest: usize,
    pub steps: Vec<Step>,
    /// Whether its files have sums.
    pub has_sums: bool,
}

impl Program {
    /// The program of a seed.
    pub fn draw(seed: u64) -> Program {
        let mut rng = Rng::with_seed(seed);
        let drives: Vec<DriveModel> = (0..rng.usize(1..=5)).map(|_| testing::drive(&mut rng)).collect();
        let weights = drives.iter().map(|_| rng.u32(1..8)).collect();
        let wanted = wanted(&mut rng);
        let total: u32 = wanted.iter().sum();
        let count = [rng.usize(5..40), rng.usize(20..150), rng.usize(50..400)][rng.usize(0..3)];
        let steps = (0..count).map(|_| step(&mut rng, &wanted, total)).collect();
        let longest = [6 * PAGE, 40 * PAGE, 700 << 10, 3 << 20][rng.usize(0..4)];
        let has_sums = seed.is_multiple_of(2);
        let mut program = Program { seed, drives, weights, tears: rng.bool(), longest, steps, has_sums };
        match seed % 8 {
            4 | 5 => program.add_trouble(),
            _ if program.has_sums => program.add_rot(),
            _ => {}
        }
        program
    }

    /// In every fourth program a fault meets most calls: one or the other, for a few calls at a time.
    fn add_trouble(&mut self) {
        // Separate draws, so that older seeds keep their meaning.
        let mut rng = Rng::with_seed(!self.seed);
        let kinds = [Act::Errors, Act::Inject, Act::Inject, Act::Slow, Act::Kill, Act::Fill, Act::Calm, Act::CrashSoon];
        let (own, mut until) = (std::mem::take(&mut self.steps), 0);
        for (at, step) in own.into_iter().enumerate() {
            if at == until {
                until += rng.usize(1..8);
                let (which, first, second) = (rng.u32(..), rng.u32(..), rng.u32(..));
                self.steps.push(Step { act: kinds[rng.usize(0..kinds.len())], which, first, second });
            }
            self.steps.push(step);
        }
    }

    /// In every other program with sums drives return other bytes than were written, and there is no other fault: pages
    /// that a crash makes doubtful are accepted as they are (C60).
    fn add_rot(&mut self) {
        // Separate draws, so that older seeds keep their meaning.
        let mut rng = Rng::with_seed(!self.seed);
        if rng.bool() {
            return;
        }
        self.steps.retain(|step| !step.act.is_accident() || step.act == Act::Slow);
        let only = [Act::Rot, Act::Lose, Act::Misplace][rng.usize(0..3)];
        for _ in 0..rng.usize(1..6) {
            let (which, first, second) = (rng.u32(..), rng.u32(..), rng.u32(..));
            let act = if rng.bool() { Act::Rot } else { only };
            let at = rng.usize(0..=self.steps.len());
            self.steps.insert(at, Step { act, which, first, second });
        }
    }

    /// A machine with the program's drives.
    pub fn world(&self) -> World {
        let world = World::new(self.seed);
        for (index, model) in self.drives.iter().enumerate() {
            world.add_drive(format!("/sim/{index}"), model.clone());
        }
        // A separate draw, so that older seeds keep their meaning.
        let loses_beside = Rng::with_seed(self.seed.rotate_left(32)).bool();
        world.faults(|faults| (faults.torn_sectors, faults.loses_beside) = (self.tears, loses_beside));
        world
    }

    /// Options of an opening, and whether it has a cache. Each opening has others.
    pub fn options(&self, world: &World, opening: u64) -> (ArrayOptions, bool) {
        let mut rng = Rng::with_seed(self.seed ^ opening.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let depth = [1, 2, 3, 8, 32][rng.usize(0..5)];
        let mut options = ArrayOptions::new()
            .platform(world.platform())
            .depth(depth)
            .tuning(Tuning::new().sort(rng.bool()).merge(rng.bool()));
        if self.has_sums {
            // Separate draws, so that older seeds keep their meaning. A part has one page of sums.
            let draw = Rng::with_seed(!self.seed ^ opening).usize(0..5);
            options = options
                .with_tuning(|tuning| [1, 1, 2, 4].get(draw).map_or(tuning.clone(), |pages| tuning.sums_pages(*pages)));
        }
        if rng.u8(0..4) == 0 {
            options = options.with_cache(|cache| cache.read_ahead_bytes(rng.u64(0..64) * PAGE as u64));
        }
        let kind = rng.u8(0..5);
        let options = match kind {
            0 => options.cache_bytes(0),
            1 => options,
            _ => {
                let ways = [4, 8, 12, 32][rng.usize(0..4)];
                let nodes = [1, 1, 2, 4][rng.usize(0..4)];
                let sets = rng.usize(1..9).max(nodes);
                let policy = PolicyKind::all().nth(rng.usize(0..PolicyKind::all().len())).unwrap_or_default();
                let mask = [u64::MAX, u64::MAX, 0, 0xFF << 32][rng.usize(0..4)];
                let bytes = (sets * ways * PAGE) as u64;
                options
                    .with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes)))
                    .with_cache(|cache| {
                        cache.policy(policy).hash_mask(mask).set_pages(ways).max_bytes(bytes * rng.u64(1..4))
                    })
                    .cache_bytes(bytes)
            }
        };
        (options, kind != 0)
    }

    /// The options of a file that a draw means.
    pub fn file_options(&self, draw: u32) -> FileOptions {
        testing::file_options(&mut Rng::with_seed(u64::from(draw)), self.drives.len()).checksums(self.has_sums)
    }
}

/// How often each kind of step is wanted. Some seeds have no accidents, some all, most a few.
fn wanted(rng: &mut Rng) -> Vec<u32> {
    let accidents = rng.u8(0..4);
    let wants = |act: &Act| match act {
        Act::Create => 4,
        _ if act.is_accident() && accidents == 0 => 0,
        _ if act.is_accident() && accidents < 3 => rng.u32(0..4).saturating_sub(2) * act.weight(),
        _ => rng.u32(0..3) * act.weight(),
    };
    Act::ALL[..Act::DRAWN].iter().map(wants).collect()
}

fn step(rng: &mut Rng, wanted: &[u32], total: u32) -> Step {
    let mut draw = rng.u32(0..total);
    let mut index = 0;
    while draw >= wanted[index] {
        draw -= wanted[index];
        index += 1;
    }
    Step { act: Act::ALL[index], which: rng.u32(..), first: rng.u32(..), second: rng.u32(..) }
}

/// The rates of a draw: some errors, or only faults that calls survive.
pub fn rates(draw: u32) -> Rates {
    let mut rng = Rng::with_seed(u64::from(draw));
    let transient = Rates { short_read: 100, short_write: 100, interrupted: 100, ..Rates::default() };
    if rng.u8(0..3) == 0 {
        return transient;
    }
    Rates::draw(|| [0, 0, 5, 30, 200][rng.usize(0..5)])
}

/// A length that a draw means: mostly short, sometimes whole pages, seldom long.
pub fn length(draw: u32) -> usize {
    let mut rng = Rng::with_seed(u64::from(draw));
    match rng.u8(0..10) {
        0 => 0,
        1..4 => rng.usize(1..300),
        4..6 => rng.usize(1..20_000),
        6..8 => PAGE * rng.usize(1..20),
        8 => 512 * rng.usize(1..100),
        _ => rng.usize(1..300_000),
    }
}

/// An offset of at most `end` that a draw means. Every other one is at a page's start.
pub fn offset(draw: u32, end: usize) -> usize {
    let offset = (draw >> 1) as usize % (end + 1);
    if draw & 1 == 0 { offset - offset % PAGE } else { offset }
}

/// Bytes of a step. They differ from those of all others.
pub fn bytes(draw: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(u64::from(draw) << 1 | 1).fill(&mut bytes);
    bytes
}
