//! The state behind a [`crate::World`]: drives, open files, the clock, the queue of events, the dice.
//!
//! Goals: every step of time goes through `advance_to`, so that events happen in the order of their times. Every
//! `DriveFs` call passes `enter`, which counts it and judges its fate. Non-goals: the single operations, which are in
//! `fs` and `engine`.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use fastrand::Rng;
use iomill::sys::fs::{Access, Alignment, Handle, Lock};
use iomill::sys::fsyncs::FsyncFailures;

use crate::dice::{Dice, Survival};
use crate::disk::{Disk, File};
use crate::errno;
use crate::fault::{Death, Faults, Kind, Met, Operation, Verdict};
use crate::flight::{Flight, Port};
use crate::image::{PAGE_BYTES, SECTOR_BYTES};
use crate::trace::Trace;

/// The virtual time of a read of the clock. It is not 0, so that a loop of reads ends.
pub(crate) const CLOCK_NS: u64 = 25;

/// The properties of a simulated drive.
#[derive(Clone, Debug)]
pub struct DriveModel {
    /// The time of a read or write on a channel, in nanoseconds. Each request draws from the range.
    pub latency_ns: Range<u64>,
    /// The additional time for each 4 KiB of a request, in nanoseconds.
    pub page_ns: u64,
    /// The time of a sync, in nanoseconds.
    pub sync_latency_ns: Range<u64>,
    /// The number of requests that the drive serves at a time. More requests wait.
    pub channels: usize,
    /// The capacity in bytes; `None` for no limit.
    pub capacity_bytes: Option<u64>,
    /// The alignment of direct I/O. With [`Alignment::NONE`] the file system refuses direct I/O, and files open
    /// buffered.
    pub alignment: Alignment,
    /// The NUMA node.
    pub node: Option<u32>,
}

impl Default for DriveModel {
    fn default() -> DriveModel {
        DriveModel {
            latency_ns: 60_000..140_000,
            page_ns: 800,
            sync_latency_ns: 300_000..2_000_000,
            channels: 16,
            capacity_bytes: None,
            alignment: Alignment { offset: 512, memory: 512 },
            node: None,
        }
    }
}

/// The counts of engines' requests to a drive so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveStats {
    /// Reads started.
    pub reads: u64,
    /// Writes started.
    pub writes: u64,
    /// Syncs started.
    pub syncs: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Bytes of these writes.
    pub write_bytes: u64,
    /// The most requests in flight at one time.
    pub peak_in_flight: u64,
}

#[derive(Debug)]
pub(crate) struct Drive {
    pub path: PathBuf,
    pub model: DriveModel,
    pub disk: Disk,
    /// Whether the drive's directory exists.
    pub plugged: bool,
    /// The time at which each channel is free.
    pub channels_ns: Vec<u64>,
    pub stats: DriveStats,
    pub in_flight: u64,
    pub fsync_failures: Arc<FsyncFailures>,
}

/// An open file description. Handles, engines and requests in flight refer to it.
#[derive(Debug)]
pub(crate) struct Open {
    pub drive: usize,
    pub file: u64,
    pub path: String,
    pub access: Access,
    pub alignment: Alignment,
    pub lock: Option<Lock>,
    /// The number of handles, engines and requests that refer to it. At 0 it ends, and its lock is released.
    refs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The moment at which a write takes its bytes from memory.
    Take(u64),
    /// The end of a request.
    End(u64),
}

/// One generator per purpose, so that a new choice for one purpose does not change the others.
#[derive(Debug)]
pub(crate) struct Chance {
    pub time: Rng,
    pub fault: Rng,
    pub crash: Rng,
    pub names: Rng,
    pub order: Rng,
    pub beside: Rng,
}

#[derive(Debug)]
pub(crate) struct State {
    pub now_ns: u64,
    /// The number of the machine's present boot (or process). Objects of an earlier one cannot act any more.
    pub boot: u64,
    /// Whether the machine has crashed and has not booted since.
    pub down: bool,
    pub drives: Vec<Drive>,
    handles: Vec<Option<u64>>,
    pub opens: BTreeMap<u64, Open>,
    pub ports: BTreeMap<u64, Port>,
    pub flights: BTreeMap<u64, Flight>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub faults: Faults,
    pub chance: Chance,
    pub trace: Trace,
    pub operations: u64,
    /// The number of operations that are `Kind::Sync`.
    pub fsyncs: u64,
    pub effects: u64,
    pub violations: Vec<String>,
    pub abandoned: u64,
    /// The faults that requests have met since this was taken.
    met: Cell<Met>,
    /// The files that hold bytes of another place, or of another time, or changed ones: drive and path.
    pub rotten: BTreeSet<(usize, String)>,
    last_id: u64,
}

impl State {
    pub fn new(seed: u64) -> State {
        let mut root = Rng::with_seed(seed);
        State {
            now_ns: 1_000_000_000,
            boot: 1,
            down: false,
            drives: Vec::new(),
            handles: Vec::new(),
            opens: BTreeMap::new(),
            ports: BTreeMap::new(),
            flights: BTreeMap::new(),
            events: BinaryHeap::new(),
            faults: Faults::default(),
            chance: Chance {
                time: root.fork(),
                fault: root.fork(),
                crash: root.fork(),
                names: root.fork(),
                order: root.fork(),
                beside: root.fork(),
            },
            trace: Trace::default(),
            operations: 0,
            fsyncs: 0,
            effects: 0,
            violations: Vec::new(),
            abandoned: 0,
            met: Cell::default(),
            rotten: BTreeSet::new(),
            last_id: 0,
        }
    }

    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub fn note(&mut self, event: &str) {
        self.trace.add(self.now_ns, event);
    }

    /// Fails if an object of the boot `boot` may not act any more.
    pub fn check_boot(&self, boot: u64) -> io::Result<()> {
        if self.down {
            return Err(io::Error::other("the simulated machine is down after a crash"));
        }
        if boot != self.boot {
            return Err(io::Error::other("the simulated machine or process of this object has ended"));
        }
        Ok(())
    }

    // Time.

    pub fn schedule(&mut self, at_ns: u64, event: Event) {
        let order = self.next_id();
        self.events.push(Reverse((at_ns, order, event)));
    }

    pub fn next_event_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((at_ns, ..))| *at_ns)
    }

    /// Runs the next event, if it is due by `limit_ns`. Returns whether there was one.
    pub fn step(&mut self, limit_ns: u64) -> bool {
        if self.next_event_ns().is_none_or(|at_ns| at_ns > limit_ns) {
            return false;
        }
        let Some(Reverse((at_ns, _, event))) = self.events.pop() else { return false };
        self.now_ns = self.now_ns.max(at_ns);
        match event {
            Event::Take(flight) => self.take(flight),
            Event::End(flight) => self.end(flight),
        }
        true
    }

    /// Advances the time, and runs all events that are due.
    pub fn advance_to(&mut self, at_ns: u64) {
        while self.step(at_ns) {}
        self.now_ns = self.now_ns.max(at_ns);
    }

    /// A draw from `range`, times the drive's slowness.
    pub fn draw_ns(&mut self, drive: usize, range: Range<u64>) -> u64 {
        let drawn = if range.is_empty() { range.start } else { self.chance.time.u64(range) };
        drawn.saturating_mul(self.faults.ailment(drive).slowness)
    }

    // Operations.

    /// The way in which a dead or unplugged drive answers; `None` for a living drive.
    pub fn death(&self, drive: usize) -> Option<Death> {
        if !self.drives[drive].plugged {
            return Some(Death::Error);
        }
        self.faults.ailment(drive).death
    }

    /// Counts an operation, and decides its fate.
    pub fn judge(&mut self, drive: usize, kind: Kind, path: &str, engine: bool) -> Verdict {
        self.operations += 1;
        self.fsyncs += u64::from(kind == Kind::Sync);
        let operation = Operation { number: self.operations, kind, drive, path, engine };
        let verdict = self.faults.judge(&operation, &mut self.chance.fault);
        self.note_met(drive, kind, path, verdict);
        if verdict == Verdict::Beside {
            self.lose_beside(drive, None);
            self.drives[drive].fsync_failures.note(Some(libc::EIO));
        }
        let number = self.operations;
        self.note(&format!("#{number} {kind:?} on {drive} {path:?}: {verdict}"));
        verdict
    }

    fn note_met(&mut self, drive: usize, kind: Kind, path: &str, verdict: Verdict) {
        let is_lost = matches!(verdict, Verdict::Lost | Verdict::Misplaced);
        if is_lost {
            self.rotten.insert((drive, path.to_owned()));
        }
        let is_rotten =
            kind == Kind::Read && !self.rotten.is_empty() && self.rotten.contains(&(drive, path.to_owned()));
        let (is_slow, is_dead) = (self.faults.ailment(drive).slowness > 1, self.death(drive).is_some());
        let faults = [
            (Met::ERROR, matches!(verdict, Verdict::Fail(_) | Verdict::Beside)),
            (Met::SHORT, verdict == Verdict::Short),
            (Met::SLOW, is_slow),
            (Met::DEAD, is_dead),
            (Met::LOST, is_lost),
            (Met::ROT, is_rotten),
        ];
        faults.into_iter().filter(|(_, is_met)| *is_met).for_each(|(fault, _)| self.meet(fault));
    }

    /// A request meets a fault.
    pub fn meet(&self, fault: Met) {
        self.met.set(self.met.get().and(fault));
    }

    pub fn take_met(&self) -> Met {
        self.met.take()
    }

    /// A failed fsync loses unsynced writes of all files of the drive but `own`, if the plan says so.
    pub fn lose_beside(&mut self, drive: usize, own: Option<u64>) {
        if self.faults.loses_beside {
            let others = self.drives[drive].disk.files.iter_mut().filter(|(file, _)| Some(**file) != own);
            others.for_each(|(_, file)| file.fail_sync(&mut self.chance.beside));
        }
    }

    /// Begins a `DriveFs` call: time passes, and the call's fate is decided. A planned crash happens here, and a dead
    /// drive is an error. The caller handles `Fail`, because some operations have effects when they fail.
    pub fn enter(&mut self, boot: u64, drive: usize, kind: Kind, path: &str) -> io::Result<Verdict> {
        self.check_boot(boot)?;
        let range = match kind {
            Kind::Sync | Kind::SyncDir => self.drives[drive].model.sync_latency_ns.clone(),
            _ => 1_000..10_000,
        };
        let cost_ns = self.draw_ns(drive, range);
        self.advance_to(self.now_ns.saturating_add(cost_ns));
        self.check_boot(boot)?;
        let verdict = self.judge(drive, kind, path, false);
        if verdict == Verdict::Crash {
            self.crash(Survival::Seeded);
            self.check_boot(boot)?;
        }
        if self.death(drive).is_some() && kind != Kind::Read {
            return Err(errno(libc::EIO));
        }
        Ok(verdict)
    }

    /// Counts a change of a drive that has just happened (but a sync that is about to happen). Crashes if that is
    /// planned.
    pub fn effect(&mut self) -> io::Result<()> {
        self.effects += 1;
        if self.faults.crash_at_effect == Some(self.effects) {
            self.faults.crash_at_effect = None;
            self.crash(Survival::Seeded);
            return self.check_boot(self.boot);
        }
        Ok(())
    }

    /// The number of pages that still fit on a drive.
    pub fn free_pages(&self, drive: usize) -> u64 {
        let Some(capacity_bytes) = self.drives[drive].model.capacity_bytes else { return u64::MAX };
        (capacity_bytes / PAGE_BYTES).saturating_sub(self.used_pages(drive))
    }

    pub fn used_pages(&self, drive: usize) -> u64 {
        self.drives[drive].disk.used_pages(&self.open_files(drive))
    }

    /// The number of bytes, of `len` at `offset`, for which the drive has room.
    pub fn fitting(&self, drive: usize, file: u64, offset: u64, len: usize) -> usize {
        let Some(found) = self.drives[drive].disk.files.get(&file) else { return 0 };
        let space = found.now.space();
        let (first, after) = (offset / PAGE_BYTES, (offset + len as u64).div_ceil(PAGE_BYTES));
        let missing = space.missing(first, after);
        if missing == 0 {
            return len;
        }
        let free = self.free_pages(drive);
        if missing <= free {
            return len;
        }
        self.meet(Met::FULL);
        let end = (first + 1..=after).take_while(|end| space.missing(first, *end) <= free).last().unwrap_or(first);
        (end * PAGE_BYTES).saturating_sub(offset).min(len as u64) as usize
    }

    pub fn file(&mut self, drive: usize, file: u64) -> io::Result<&mut File> {
        self.drives[drive].disk.files.get_mut(&file).ok_or_else(|| errno(libc::EBADF))
    }

    // Open files.

    /// Adds an open file description, and gives it the lowest free handle.
    pub fn open(&mut self, open: Open) -> Handle {
        let id = self.next_id();
        self.opens.insert(id, open);
        let number = self.handles.iter().position(Option::is_none).unwrap_or_else(|| {
            self.handles.push(None);
            self.handles.len() - 1
        });
        self.handles[number] = Some(id);
        // As on a real system, files of arrays never have descriptors 0 to 2.
        Handle(number as i32 + 3)
    }

    pub fn open_id(&self, handle: Handle) -> io::Result<u64> {
        let number = usize::try_from(i64::from(handle.0) - 3).map_err(|_| errno(libc::EBADF))?;
        self.handles.get(number).copied().flatten().ok_or_else(|| errno(libc::EBADF))
    }

    /// The description behind a handle of a drive.
    pub fn opened(&self, drive: usize, handle: Handle) -> io::Result<&Open> {
        let open = self.opens.get(&self.open_id(handle)?).ok_or_else(|| errno(libc::EBADF))?;
        if open.drive != drive { Err(errno(libc::EBADF)) } else { Ok(open) }
    }

    pub fn close(&mut self, handle: Handle) {
        if let Ok(id) = self.open_id(handle) {
            self.handles[(handle.0 - 3) as usize] = None;
            self.release(id);
        } else {
            self.violations.push(format!("close of handle {}, which is not open", handle.0));
        }
    }

    pub fn retain(&mut self, open: u64) {
        if let Some(open) = self.opens.get_mut(&open) {
            open.refs += 1;
        }
    }

    pub fn release(&mut self, id: u64) {
        let Some(open) = self.opens.get_mut(&id) else { return };
        open.refs -= 1;
        if open.refs == 0 {
            let drive = open.drive;
            self.opens.remove(&id);
            let open = self.open_files(drive);
            self.drives[drive].disk.collect(&open);
        }
    }

    pub fn open_files(&self, drive: usize) -> BTreeSet<u64> {
        self.opens.values().filter(|open| open.drive == drive).map(|open| open.file).collect()
    }

    // The end of processes and machines.

    /// Crashes the machine.
    pub fn crash(&mut self, survival: Survival) {
        if self.down {
            return;
        }
        self.end_process(survival != Survival::Nothing);
        self.down = true;
        let granule = if self.faults.torn_sectors { SECTOR_BYTES } else { PAGE_BYTES };
        for drive in &mut self.drives {
            drive.disk.crash(&mut Dice::new(&mut self.chance.crash, survival), granule);
        }
        self.note("crash");
    }

    /// Ends the process that uses the drives. Writes in flight reach the drives by chance. With `all_writes` they
    /// surely do, so that the crash decides about them.
    pub fn end_process(&mut self, all_writes: bool) {
        let flights: Vec<u64> = self.flights.keys().copied().collect();
        for flight in flights {
            if all_writes || self.chance.crash.bool() {
                self.take_unheeded(flight);
            }
        }
        for flight in std::mem::take(&mut self.flights).into_values() {
            self.land(&flight);
        }
        self.events.clear();
        self.ports.clear();
        self.opens.clear();
        self.handles.clear();
        self.boot += 1;
        for drive in &mut self.drives {
            drive.in_flight = 0;
            drive.channels_ns.fill(0);
            drive.disk.collect(&BTreeSet::new());
        }
    }
}

impl Open {
    pub fn new(drive: usize, file: u64, path: &str, access: Access, alignment: Alignment) -> Open {
        Open { drive, file, path: path.to_owned(), access, alignment, lock: None, refs: 1 }
    }
}
