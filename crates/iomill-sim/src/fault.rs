//! Faults: a plan that decides the fate of every operation of the simulated drives.
//!
//! Goals: random faults by rate; targeted faults by kind, drive and path; faults by number. The plan is plain data.
//! Non-goals: the effect of a fault on the bytes of a drive (`disk` and `engine`).

use std::collections::BTreeMap;
use std::fmt;

use fastrand::Rng;
use iomill::engine::NOT_BEGUN;

/// The kinds of operations on a simulated drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Attaching to a drive's directory.
    Attach,
    /// Making a directory.
    MakeDir,
    /// Listing a directory.
    List,
    /// Opening an existing file.
    Open,
    /// Creating a file.
    Create,
    /// Reading, by an engine or by `DriveFs::read_at`.
    Read,
    /// Writing, by an engine or by `DriveFs::write_at`.
    Write,
    /// `fdatasync`, by an engine or by `DriveFs::sync_data`.
    Sync,
    /// Making a directory durable.
    SyncDir,
    /// Cutting or extending a file.
    SetLen,
    /// Allocating space for a file.
    Allocate,
    /// Making a range read as zero.
    Zero,
    /// Renaming.
    Rename,
    /// Unlinking.
    Unlink,
    /// Locking.
    Lock,
}

/// The effect of a fault on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this errno. After EIO a write may have reached the drive in part, and a rename or
    /// unlink may have happened. A failed sync drops some of the dirty data for good, as on Linux.
    Errno(i32),
    /// An engine's read or write transfers only a part. No effect on other operations: `DriveFs` calls go on by
    /// themselves after a short transfer.
    Short,
    /// The machine crashes before the operation takes effect. An engine's write is then in flight.
    Crash,
    /// A write succeeds, and the drive keeps its old bytes. No effect on other operations.
    Lost,
    /// A write succeeds, and its bytes go to another page of the same file: the one before, or behind the first one. No
    /// effect on other operations.
    Misplaced,
    /// The operation succeeds, and the fsync of another file of the drive fails meanwhile.
    Beside,
}

/// The rates of random faults, per thousand operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Engine reads that fail with EIO.
    pub read_error: u16,
    /// Engine writes that fail with EIO.
    pub write_error: u16,
    /// Engine syncs that fail with EIO.
    pub sync_error: u16,
    /// `DriveFs` calls, except locks, that fail with EIO.
    pub catalog_error: u16,
    /// Operations that need space (writes, creates, new directories, allocations) and fail with ENOSPC.
    pub no_space: u16,
    /// Engine reads that transfer only a part.
    pub short_read: u16,
    /// Engine writes that transfer only a part.
    pub short_write: u16,
    /// Engine requests that did nothing: transfers end with EINTR or EAGAIN, and syncs with `NOT_BEGUN`.
    pub interrupted: u16,
}

/// A fault aimed at certain operations.
#[derive(Clone, Debug)]
pub struct Injection {
    kind: Kind,
    fault: Fault,
    drive: Option<usize>,
    path: String,
    except: Option<String>,
    skip: u64,
    times: u64,
}

impl Injection {
    /// A fault that hits the next operation of a kind, once.
    pub fn new(kind: Kind, fault: Fault) -> Injection {
        Injection { kind, fault, drive: None, path: String::new(), except: None, skip: 0, times: 1 }
    }

    /// Hits only operations on this drive.
    pub fn drive(self, drive: usize) -> Injection {
        Injection { drive: Some(drive), ..self }
    }

    /// Hits only operations with `path` (such as `parts/` or `.length`) in their path within `<drive>/iomill`. The path
    /// of a rename is its target, and that of an open file the one by which it was opened.
    pub fn path(self, path: &str) -> Injection {
        Injection { path: path.to_owned(), ..self }
    }

    /// Hits no operations with `path` in their path.
    pub fn except(self, path: &str) -> Injection {
        Injection { except: Some(path.to_owned()), ..self }
    }

    /// Lets this many matching operations pass first.
    pub fn skip(self, count: u64) -> Injection {
        Injection { skip: count, ..self }
    }

    /// Hits this many matching operations in a row. `u64::MAX` means for ever.
    pub fn times(self, count: u64) -> Injection {
        Injection { times: count, ..self }
    }

    fn matches(&self, operation: &Operation<'_>) -> bool {
        let transfer = operation.engine && matches!(operation.kind, Kind::Read | Kind::Write);
        self.times > 0
            && self.kind == operation.kind
            && self.drive.is_none_or(|drive| drive == operation.drive)
            && operation.path.contains(&self.path)
            && !self.except.as_ref().is_some_and(|path| operation.path.contains(path))
            && (self.fault != Fault::Short || transfer)
            && (!matches!(self.fault, Fault::Lost | Fault::Misplaced) || operation.kind == Kind::Write)
    }
}

/// The way in which a dead drive answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Reads end at once with 0 bytes, like those of a removed NVMe drive. All other operations fail with EIO.
    Empty,
    /// All operations fail with EIO.
    Error,
}

/// The defects of one drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ailment {
    /// The factor of all latencies; 1 is healthy.
    pub slowness: u64,
    /// The way in which it answers, if the drive is dead.
    pub death: Option<Death>,
}

impl Default for Ailment {
    fn default() -> Ailment {
        Ailment { slowness: 1, death: None }
    }
}

/// The faults that requests to drives have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met(u8);

impl Met {
    /// A request that failed.
    pub const ERROR: Met = Met(1);
    /// A transfer of a part.
    pub const SHORT: Met = Met(2);
    /// A request to a slow drive.
    pub const SLOW: Met = Met(4);
    /// A request to a dead drive.
    pub const DEAD: Met = Met(8);
    /// A request that needed space which its drive does not have.
    pub const FULL: Met = Met(16);
    /// A write that was lost, or done at another place.
    pub const LOST: Met = Met(32);
    /// A read of a file with bytes that were not written there.
    pub const ROT: Met = Met(64);

    /// All of them.
    pub const ALL: [Met; 7] = [Met::ERROR, Met::SHORT, Met::SLOW, Met::DEAD, Met::FULL, Met::LOST, Met::ROT];

    /// Whether a fault is among them.
    pub fn has(self, fault: Met) -> bool {
        self.0 & fault.0 != 0
    }

    pub(crate) fn and(self, fault: Met) -> Met {
        Met(self.0 | fault.0)
    }
}

/// The plan of all faults. Change it with [`crate::World::faults`].
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Faults by chance.
    pub rates: Rates,
    /// Whether a crash tears writes between sectors of 512 bytes. Otherwise each page of 4 KiB is old or new, as on
    /// drives that write 4 KiB atomically.
    pub torn_sectors: bool,
    /// Whether a failed fsync may lose unsynced writes of all files of its drive, as that of a drive with a cache.
    /// Otherwise it loses those of its own file only.
    pub loses_beside: bool,
    /// The value of [`crate::World::effects`] at which the machine crashes. The change itself is then in the volatile
    /// state and survives by chance; a sync has not happened. The crash clears this field.
    pub crash_at_effect: Option<u64>,
    fail_at: BTreeMap<u64, i32>,
    injections: Vec<Injection>,
    ailments: BTreeMap<usize, Ailment>,
}

impl Faults {
    /// Fails the operation with this number, as [`crate::World::operations`] counts.
    pub fn fail_at_operation(&mut self, number: u64, errno: i32) {
        self.fail_at.insert(number, errno);
    }

    /// Adds a targeted fault. If several match an operation, the one that was added first strikes.
    pub fn inject(&mut self, injection: Injection) {
        self.injections.push(injection);
    }

    /// The number of targeted faults that have not struck often enough yet.
    pub fn pending(&self) -> usize {
        self.injections.iter().filter(|injection| injection.times > 0).count()
    }

    /// Makes a drive slower by a factor; 1 heals it.
    pub fn slow(&mut self, drive: usize, factor: u64) {
        self.ailments.entry(drive).or_default().slowness = factor.max(1);
    }

    /// Makes a drive dead.
    pub fn kill(&mut self, drive: usize, death: Death) {
        self.ailments.entry(drive).or_default().death = Some(death);
    }

    /// Revives a dead drive, with its contents.
    pub fn revive(&mut self, drive: usize) {
        self.ailments.entry(drive).or_default().death = None;
    }

    /// The defects of a drive.
    pub fn ailment(&self, drive: usize) -> Ailment {
        self.ailments.get(&drive).copied().unwrap_or_default()
    }

    /// Removes all faults: dead drives live, and slow ones are fast again.
    pub fn clear(&mut self) {
        *self = Faults { torn_sectors: self.torn_sectors, loses_beside: self.loses_beside, ..Faults::default() };
    }

    /// Decides the fate of an operation, and counts targeted faults down.
    pub(crate) fn judge(&mut self, operation: &Operation<'_>, rng: &mut Rng) -> Verdict {
        if let Some(errno) = self.fail_at.remove(&operation.number) {
            return Verdict::Fail(errno);
        }
        for injection in &mut self.injections {
            if !injection.matches(operation) {
                continue;
            }
            if injection.skip > 0 {
                injection.skip -= 1;
                continue;
            }
            if injection.times != u64::MAX {
                injection.times -= 1;
            }
            return match injection.fault {
                Fault::Errno(errno) => Verdict::Fail(errno),
                Fault::Short => Verdict::Short,
                Fault::Crash => Verdict::Crash,
                Fault::Beside => Verdict::Beside,
                Fault::Lost => Verdict::Lost,
                Fault::Misplaced => Verdict::Misplaced,
            };
        }
        self.rates.judge(operation, rng)
    }
}

impl Rates {
    /// Rates of all kinds. Errors of the catalog, and lack of space, are rarer than the others.
    pub fn draw(mut rate: impl FnMut() -> u16) -> Rates {
        Rates {
            read_error: rate(),
            write_error: rate(),
            sync_error: rate(),
            catalog_error: rate() / 4,
            no_space: rate() / 2,
            short_read: rate(),
            short_write: rate(),
            interrupted: rate(),
        }
    }

    fn judge(&self, operation: &Operation<'_>, rng: &mut Rng) -> Verdict {
        let mut strikes = |rate: u16| rate > 0 && rng.u16(0..1000) < rate;
        let interrupted = operation.engine && strikes(self.interrupted);
        let (error, short) = match (operation.engine, operation.kind) {
            (_, Kind::Lock) => (0, 0),
            (false, _) => (self.catalog_error, 0),
            (true, Kind::Read) => (self.read_error, self.short_read),
            (true, Kind::Write) => (self.write_error, self.short_write),
            (true, _) => (self.sync_error, 0),
        };
        let space = match operation.kind {
            Kind::Write | Kind::Create | Kind::MakeDir | Kind::Allocate => self.no_space,
            _ => 0,
        };
        if strikes(error) {
            Verdict::Fail(libc::EIO)
        } else if strikes(space) {
            Verdict::Fail(libc::ENOSPC)
        } else if strikes(short) {
            Verdict::Short
        } else if interrupted {
            // No errno for a sync: one that failed may have lost pages, while one that did not begin has lost none.
            let transfer = matches!(operation.kind, Kind::Read | Kind::Write);
            let errno = if rng.bool() { libc::EINTR } else { libc::EAGAIN };
            Verdict::Fail(if transfer { errno } else { -NOT_BEGUN })
        } else {
            Verdict::Go
        }
    }
}

/// An operation about to happen.
pub(crate) struct Operation<'a> {
    /// The number of the operation, from 1.
    pub number: u64,
    pub kind: Kind,
    pub drive: usize,
    pub path: &'a str,
    /// Whether it is an engine's request, not a `DriveFs` call.
    pub engine: bool,
}

/// The fate of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Go,
    Fail(i32),
    Short,
    Crash,
    Beside,
    Lost,
    Misplaced,
}

/// The offset of a misplaced write, in bytes.
pub(crate) fn misplaced(offset: u64) -> u64 {
    const PAGE: u64 = 4096;
    if offset < PAGE { offset + PAGE } else { offset - PAGE }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Go => f.write_str("go"),
            Verdict::Fail(errno) => write!(f, "errno {errno}"),
            Verdict::Short => f.write_str("short"),
            Verdict::Crash => f.write_str("crash"),
            Verdict::Beside => f.write_str("beside"),
            Verdict::Lost => f.write_str("lost"),
            Verdict::Misplaced => f.write_str("misplaced"),
        }
    }
}

/// The length of a short transfer of `len` bytes, in whole units; `len` itself if that is one unit or less.
pub(crate) fn short_len(rng: &mut Rng, len: u32, unit: u32) -> u32 {
    let units = len.div_ceil(unit);
    if units < 2 { len } else { unit * rng.u32(1..units) }
}
