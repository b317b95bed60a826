//! [`Program`]: the steps of a run, drawn from a seed. Non-goals: their effects (`world`).

use rustix::io::Errno;

use super::sea::Fate;

/// The number of objects. Those with even numbers are asked for their version in each call, and the others never.
pub const KEYS: usize = 6;
/// The number of processes.
pub const HANDS: usize = 2;

pub fn key(number: usize) -> String {
    format!("{}/{number}", if number.is_multiple_of(2) { "asked" } else { "never" })
}

/// The options of a cache, and the steps.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub settings: Settings,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub drives: usize,
    pub granule_bytes: u32,
    pub region_bytes: u64,
    pub regions: u64,
    pub fill_bytes: u64,
    pub admit: f64,
    pub has_etags: bool,
    pub hedges: bool,
}

/// The form of a read.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Ranges,
    Whole,
    Bounded,
    Offset,
    Suffix,
    Head,
    Conditional,
}

/// A read of one object. The seed decides the ranges.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub hand: usize,
    pub key: usize,
    pub form: Form,
    pub seed: u64,
}

/// A change of one object through the store.
#[derive(Clone, Copy, Debug)]
pub enum How {
    Put,
    Upload,
    Delete,
    Copy { from: usize },
    Rename { from: usize },
}

#[derive(Clone, Debug)]
pub enum Step {
    Read(Read),
    Together(Vec<Read>),
    /// The future is dropped after some polls.
    Dropped {
        read: Read,
        polls: u32,
    },
    Change {
        hand: usize,
        key: usize,
        how: How,
        len: u64,
        fate: Fate,
        beside: Option<Read>,
    },
    DeleteMany {
        hand: usize,
        fates: Vec<(usize, Fate)>,
    },
    /// Another program puts or deletes.
    Behind {
        key: usize,
        len: Option<u64>,
    },
    Tide,
    /// The percentage of requests that get a wrong answer from now on.
    Trouble(u32),
    Open {
        hand: usize,
        key: usize,
    },
    ReadOpened {
        hand: usize,
        seed: u64,
    },
    Prefetch {
        hand: usize,
        key: usize,
    },
    Pin {
        hand: usize,
        key: usize,
        seed: u64,
    },
    Unpin {
        hand: usize,
        key: usize,
        seed: u64,
    },
    UnpinAll {
        hand: usize,
    },
    Evict {
        hand: usize,
    },
    Reopen {
        hand: usize,
    },
    /// A process is killed after some steps of its appends.
    Kill {
        hand: usize,
        steps: u32,
        torn: usize,
        read: Read,
    },
    /// The machine crashes. Some of the last pages are lost, and all memory.
    Crash {
        steps: u32,
        torn: usize,
        lost: u64,
        read: Read,
    },
    FlipData {
        drive: usize,
        seed: u64,
    },
    FlipIndex {
        drive: usize,
        seed: u64,
    },
    FlipLabel {
        drive: usize,
        seed: u64,
    },
    Cut {
        drive: usize,
        seed: u64,
    },
    /// Two drives exchange their data files, or their places.
    Exchange {
        data_only: bool,
    },
    Save {
        drive: usize,
    },
    Restore {
        drive: usize,
    },
    /// A drive is unmounted, with an empty mount point or none.
    Away {
        drive: usize,
        leaves_place: bool,
    },
    Back,
    FailWrites {
        drive: usize,
        errno: Errno,
        count: u32,
    },
    AllocatesNothing(bool),
}

fn fate(rng: &mut fastrand::Rng) -> Fate {
    match rng.u32(..12) {
        0 => Fate::Refused,
        1 => Fate::LostDone,
        2 => Fate::LostNever,
        3 => Fate::LostLater,
        4 => Fate::Silent,
        _ => Fate::Done,
    }
}

fn read(rng: &mut fastrand::Rng) -> Read {
    let form = match rng.u32(..12) {
        0 => Form::Whole,
        1 => Form::Bounded,
        2 => Form::Offset,
        3 => Form::Suffix,
        4 => Form::Head,
        5 => Form::Conditional,
        _ => Form::Ranges,
    };
    Read { hand: rng.usize(..HANDS), key: rng.usize(..KEYS), form, seed: rng.u64(..) }
}

impl Program {
    pub fn new(seed: u64) -> Program {
        let mut rng = fastrand::Rng::with_seed(seed);
        let granule_bytes = [4096, 16 << 10, 64 << 10][rng.usize(..3)];
        let settings = Settings {
            drives: rng.usize(1..4),
            granule_bytes,
            region_bytes: u64::from(granule_bytes) * rng.u64(17..40),
            regions: rng.u64(2..7),
            fill_bytes: [64 << 10, 1 << 20, 64 << 20][rng.usize(..3)],
            admit: if rng.u32(..5) == 0 { 0.3 } else { 1.0 },
            has_etags: rng.u32(..5) > 0,
            hedges: rng.u32(..5) == 0,
        };
        // Less than a piece of a stream, so that each read is one call.
        let longest = (u64::from(granule_bytes) * 30).min(600_000);
        let mut steps: Vec<Step> = (0..KEYS).map(|key| Step::Behind { key, len: Some(rng.u64(1..longest)) }).collect();
        let count = rng.usize(10..60);
        // A calm run finds what a hostile one hides.
        let is_calm = rng.u32(..4) == 0;
        steps.extend((0..count).map(|_| step(&mut rng, longest, &settings, is_calm)));
        Program { seed, settings, steps }
    }
}

fn step(rng: &mut fastrand::Rng, longest: u64, settings: &Settings, is_calm: bool) -> Step {
    let hand = rng.usize(..HANDS);
    let key = rng.usize(..KEYS);
    match rng.u32(..if is_calm { 74 } else { 100 }) {
        0..26 => Step::Read(read(rng)),
        26..31 => Step::Together((0..rng.usize(2..5)).map(|_| read(rng)).collect()),
        31..35 => Step::Dropped { read: read(rng), polls: rng.u32(1..12) },
        35..43 => {
            let how = match rng.u32(..8) {
                0 | 1 => How::Delete,
                2 => How::Upload,
                3 => How::Copy { from: rng.usize(..KEYS) },
                4 => How::Rename { from: rng.usize(..KEYS) },
                _ => How::Put,
            };
            let beside = (rng.u32(..3) == 0).then(|| Read { key, hand, ..read(rng) });
            Step::Change { hand, key, how, len: rng.u64(1..longest), fate: fate(rng), beside }
        }
        43..45 => Step::DeleteMany { hand, fates: (0..KEYS / 2).map(|n| (2 * n + hand, fate(rng))).collect() },
        45..50 => Step::Behind { key, len: (rng.u32(..5) > 0).then(|| rng.u64(1..longest)) },
        50..52 => Step::Tide,
        52..54 => Step::Open { hand, key },
        54..58 => Step::ReadOpened { hand, seed: rng.u64(..) },
        58..60 => Step::Prefetch { hand, key },
        60..66 => Step::Pin { hand, key, seed: rng.u64(..) },
        66..69 => Step::Unpin { hand, key, seed: rng.u64(..) },
        69..70 => Step::UnpinAll { hand },
        70..72 => Step::Evict { hand },
        72..74 => Step::Reopen { hand },
        other => damage(rng, other, settings),
    }
}

fn damage(rng: &mut fastrand::Rng, choice: u32, settings: &Settings) -> Step {
    let (hand, drive, seed) = (rng.usize(..HANDS), rng.usize(..settings.drives), rng.u64(..));
    let (most, torn) = (1 << rng.u32(1..9), rng.usize(..40));
    let steps = rng.u32(..most);
    match choice {
        74..78 => Step::Trouble([0, 0, 10, 40, 90][rng.usize(..5)]),
        78..82 => Step::Kill { hand, steps, torn, read: Read { hand, form: Form::Whole, ..read(rng) } },
        82..84 => Step::Crash { steps, torn, lost: seed, read: Read { hand, form: Form::Whole, ..read(rng) } },
        84..87 => Step::FlipData { drive, seed },
        87..89 => Step::FlipIndex { drive, seed },
        89 => Step::FlipLabel { drive, seed },
        90 => Step::Cut { drive, seed },
        91 => Step::Exchange { data_only: rng.bool() },
        92 => Step::Save { drive },
        93 => Step::Restore { drive },
        94 => Step::Away { drive, leaves_place: rng.bool() },
        95 => Step::Back,
        96..99 => {
            let errno = if rng.u32(..3) == 0 { Errno::IO } else { Errno::NOSPC };
            Step::FailWrites { drive, errno, count: rng.u32(1..12) }
        }
        _ => Step::AllocatesNothing(rng.bool()),
    }
}
