//! The inline way: a blocking call drives its own thread's engine over all drives. No hand-off, no context switch.
//!
//! Rule: `run` returns only when nothing that it started is in flight, also when a piece fails and when it unwinds. Until then
//! the kernel may write to the caller's memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::bounce::Bounce;
use super::locks::BlockLocks;
use super::queue::Queue;
use super::regions::{Known, Regions};
use super::{Batching, Class, Done, Piece};
use crate::counters::Meter;
use crate::engine::platform::Platform;
use crate::engine::{Completion, Engine, EngineConfig, EngineKind};
use crate::sys::fs::{Alignment, Handle};

/// How long to wait before a block lock that another piece holds is tried again.
pub(super) const BLOCKED_PAUSE: Duration = Duration::from_micros(50);

/// At most so many times the slots' number is parked. Random requests come to the drives unevenly. With little parked, the drives
/// that are ahead hold all of it. The others then run dry: a quarter of the time at 2, one in twenty at 16.
const LOOK_AHEAD: usize = 16;

/// How one drive is served.
#[derive(Clone, Debug)]
pub struct Service {
    /// The engine.
    pub kind: EngineKind,
    /// What its parts demand of I/O.
    pub align: Alignment,
    /// Slots in flight at most.
    pub depth: u32,
    /// What is done with the pieces that wait.
    pub batching: Batching,
    /// Poll for completions.
    pub poll: bool,
    /// Where its queues count, if anywhere.
    pub meter: Option<Meter>,
}

impl Service {
    /// Whether any thread may advance its engine, one at a time.
    pub fn is_shareable(&self) -> bool {
        !self.poll && self.kind.is_shareable()
    }
}

/// Engines where there can be no ring, the best first.
const INSTEAD_OF_RINGS: [EngineKind; 2] = [EngineKind::Aio, EngineKind::Posix];

/// What `make` makes for services. A ring may find too little locked memory: the kernel counts that of all rings of a user
/// together, so other processes may hold it. Where `may_change`, another engine then serves in place of the ring, and `notice` is
/// called.
pub fn with_rings_or_without<T>(
    services: &[Service],
    may_change: bool,
    notice: &dyn Fn(String),
    make: impl Fn(&[Service]) -> io::Result<T>,
) -> io::Result<T> {
    let has_rings = services.iter().any(|service| service.kind == EngineKind::Uring);
    let error = match make(services) {
        Err(error) if has_rings && may_change && error.kind() == io::ErrorKind::OutOfMemory => error,
        made => return made,
    };
    for kind in INSTEAD_OF_RINGS {
        let changed = |service: &Service| match service.kind {
            // Without direct I/O `io_submit` does each request before it takes the next.
            EngineKind::Uring if !service.align.is_direct() => Service { kind: EngineKind::Posix, ..service.clone() },
            EngineKind::Uring => Service { kind, ..service.clone() },
            _ => service.clone(),
        };
        if let Ok(made) = make(&services.iter().map(changed).collect::<Vec<_>>()) {
            notice(format!("some threads use {kind}: {error}"));
            return Ok(made);
        }
    }
    Err(error)
}

/// One engine with the queues that it serves.
///
/// Field order matters: the engine is dropped first, so that its ring no longer holds the queues' bounce memory.
pub(super) struct Lane {
    pub engine: Box<dyn Engine>,
    pub queues: Vec<Queue>,
    /// Slot to the index of its queue.
    owner: Vec<u16>,
    pub known: Known,
    completions: Vec<Completion>,
    ends: Vec<Done>,
}

impl Lane {
    /// A lane over drives that share an engine kind. With `shared` any thread may use it, one at a time.
    pub fn new(
        platform: &dyn Platform,
        drives: &[&Service],
        locks: &Arc<BlockLocks>,
        hold: &[Handle],
        shared: bool,
    ) -> io::Result<Lane> {
        let capacity: u32 = drives.iter().map(|d| d.depth).sum();
        let kind = drives.first().map_or(EngineKind::Null, |d| d.kind);
        let poll = drives.iter().all(|d| d.poll);
        let engine = platform.engine(kind, &EngineConfig { capacity, poll, hold: hold.to_vec(), shared })?;
        let mut queues = Vec::with_capacity(drives.len());
        let mut owner = Vec::with_capacity(capacity as usize);
        for (index, drive) in drives.iter().enumerate() {
            let first = owner.len();
            let bounce = Bounce::new(drive.depth)?;
            // SAFETY: the queue lives in the lane, after the engine in drop order. The lane never drops with I/O in flight
            // (`run`, and the drains of `Server` and `SharedContext`).
            queues.push(unsafe { Queue::new(drive.depth, first as u32, drive.align, Arc::clone(locks), bounce) });
            if let Some(queue) = queues.last_mut() {
                queue.batch(drive.batching, platform.clock());
                drive.meter.iter().for_each(|meter| queue.count(meter.probe()));
            }
            owner.resize(first + drive.depth as usize, index as u16);
        }
        let completions = Vec::with_capacity(capacity as usize);
        Ok(Lane { engine, queues, owner, known: Known::default(), completions, ends: Vec::new() })
    }

    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(Queue::in_flight).sum()
    }

    pub fn parked(&self) -> usize {
        self.queues.iter().map(Queue::parked).sum()
    }

    pub fn parked_before(&self) -> usize {
        self.queues.iter().map(Queue::parked_before).sum()
    }

    pub fn blocked(&self) -> usize {
        self.queues.iter().map(Queue::blocked).sum()
    }

    pub fn held_back(&self) -> usize {
        self.queues.iter().map(Queue::held_back).sum()
    }

    /// Whether a dispatch would start something: no piece waits for neighbours.
    pub fn has_more(&self) -> bool {
        self.queues.iter().any(Queue::has_more)
    }

    /// Starts what can be started. Returns the slots in flight and the pieces parked after it.
    pub fn dispatch(&mut self) -> (usize, usize) {
        let (mut in_flight, mut parked) = (0, 0);
        for queue in &mut self.queues {
            queue.dispatch(&mut *self.engine);
            in_flight += queue.in_flight();
            parked += queue.parked();
        }
        (in_flight, parked)
    }

    /// Waits in the engine and reports what ended.
    pub fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut impl FnMut(Done)) -> io::Result<()> {
        // Completions are left here when an engine panicked after it had found them.
        if self.completions.is_empty() {
            self.engine.wait(min, timeout, &mut self.completions)?;
        }
        for completion in self.completions.drain(..) {
            let queue = self.owner[completion.slot as usize];
            self.queues[usize::from(queue)].complete(completion, &mut self.ends);
        }
        // Last, because `done` may panic, and then no completion may be lost.
        self.ends.drain(..).for_each(done);
        Ok(())
    }

    /// No more pieces come for now.
    pub fn flush(&mut self) {
        self.queues.iter_mut().for_each(Queue::flush);
    }

    /// Runs everything that is parked or in flight to its end. Calls `unblock` while pieces wait for what others hold.
    pub fn drain(&mut self, unblock: &dyn Fn(), done: &mut impl FnMut(Done)) {
        if self.in_flight() + self.parked() == 0 {
            // Every call ends with this, and mostly nothing is left.
            return;
        }
        let mut failures = 0;
        loop {
            self.flush();
            // Also after the last piece: a lane that stays unused keeps no bounce memory that others need.
            let (in_flight, parked) = self.dispatch();
            if in_flight + parked == 0 {
                return;
            }
            let pause = (self.blocked() > 0).then_some(BLOCKED_PAUSE);
            if pause.is_some() {
                unblock();
            }
            if let Err(error) = self.wait(in_flight, pause, done) {
                give_up_after(&mut failures, &error);
            }
        }
    }
}

/// The engine reports nothing any more, while the kernel may still write to memory. After a while only the end of the process is
/// safe. This has no known cause on a working kernel.
pub(super) fn give_up_after(failures: &mut u32, error: &io::Error) {
    /// A panic cannot leave an `extern "C"` function: its message is printed, and the process ends.
    extern "C" fn give_up(error: &io::Error) {
        panic!("iomill: an engine no longer reports the ends of I/O in flight ({error}); memory is not safe any more");
    }
    *failures += 1;
    if *failures > 10_000 {
        give_up(error);
    }
    std::thread::sleep(Duration::from_millis(1));
}

/// Drive to lane, and to its queue within the lane.
pub(super) type Places = Vec<(u16, u16)>;

/// A lane for each kind of engine, and the places of all drives.
pub(super) fn lanes(
    platform: &dyn Platform,
    services: &[Service],
    locks: &Arc<BlockLocks>,
    hold: &[Handle],
    shared: bool,
) -> io::Result<(Vec<Lane>, Places)> {
    let mut kinds: Vec<(EngineKind, bool)> = services.iter().map(|s| (s.kind, s.poll)).collect();
    kinds.sort_by_key(|&(kind, poll)| (kind as u8, poll));
    kinds.dedup();
    let mut lanes = Vec::new();
    let mut places = vec![(0, 0); services.len()];
    for (lane, &(kind, poll)) in kinds.iter().enumerate() {
        let mut members = Vec::new();
        for (drive, service) in services.iter().enumerate().filter(|(_, s)| (s.kind, s.poll) == (kind, poll)) {
            places[drive] = (lane as u16, members.len() as u16);
            members.push(service);
        }
        lanes.push(Lane::new(platform, &members, locks, hold, shared)?);
    }
    Ok((lanes, places))
}

/// One thread's engines over all drives of an array.
pub struct InlineContext {
    lanes: Vec<Lane>,
    places: Places,
}

impl InlineContext {
    /// A context for the calling thread.
    pub fn new(
        platform: &dyn Platform,
        services: &[Service],
        locks: &Arc<BlockLocks>,
        hold: &[Handle],
    ) -> io::Result<InlineContext> {
        let (lanes, places) = lanes(platform, services, locks, hold, false)?;
        Ok(InlineContext { lanes, places })
    }

    /// How many drives it serves.
    pub fn drives(&self) -> usize {
        self.places.len()
    }

    /// Lets go of a file that is being closed.
    pub fn forget(&mut self, key: u64) {
        for lane in &mut self.lanes {
            lane.engine.forget(key);
        }
    }

    /// Runs all pieces to their ends and reports each end once.
    ///
    /// `span` is memory that holds all pieces' memory but what lies in slabs. It is looked up among the registered regions once.
    /// `idle` is called when all that is left waits for block locks or bounce memory that others hold. It brings those on, steps other
    /// servers, and lets time pass. The class of the pieces makes no difference: the caller waits for all of them, and the context serves
    /// no other caller.
    ///
    /// # Safety
    /// The memory and the files of all pieces are valid until this returns. Nothing else touches memory that is read into.
    pub unsafe fn run(
        &mut self,
        regions: &Regions,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
        idle: impl Fn(),
        mut done: impl FnMut(Done),
    ) -> io::Result<()> {
        for lane in &mut self.lanes {
            lane.known.begin(regions, &mut *lane.engine, span);
        }
        let drain = DrainOnUnwind { context: self, idle: &idle };
        let context = &mut *drain.context;
        let mut pieces = pieces;
        // By the rule of this file a call finds nothing parked.
        let (mut more, mut parked) = (true, 0);
        let mut failures = 0;
        loop {
            if more {
                more = context.take(regions, parked, &mut pieces);
                if !more {
                    context.lanes.iter_mut().for_each(Lane::flush);
                }
            }
            let in_flight;
            (in_flight, parked) = context.dispatch();
            if in_flight == 0 && !more && parked == 0 {
                // Nothing is left to drain.
                std::mem::forget(drain);
                return Ok(());
            }
            if in_flight == 0 {
                // Everything parked waits for block locks or bounce memory that others hold.
                idle();
                continue;
            }
            // Refill in batches while there is more to start; at the end, wait once for all that is left.
            let min = if more || parked > 0 { (in_flight / 8).max(1) } else { in_flight };
            if let Err(error) = context.wait(min, &mut done) {
                give_up_after(&mut failures, &error);
            }
        }
    }

    /// Moves pieces from the source to the queues, a bounded number ahead of what the drives take. `parked` pieces are there.
    fn take(&mut self, regions: &Regions, parked: usize, pieces: &mut impl Iterator<Item = (u16, Piece)>) -> bool {
        let room = self.lanes.iter().map(|l| LOOK_AHEAD * l.owner.len()).sum::<usize>();
        for _ in parked..room {
            let Some((drive, mut piece)) = pieces.next() else { return false };
            let (lane, queue) = self.places[usize::from(drive)];
            let lane = &mut self.lanes[usize::from(lane)];
            piece.class = Class::Foreground;
            lane.known.fill_in(regions, &mut *lane.engine, &mut piece);
            // SAFETY: by the contract of `run`, which does not return before the piece has ended.
            unsafe { lane.queues[usize::from(queue)].push(piece) };
        }
        true
    }

    /// Starts what can be started; slots in flight and pieces parked after it.
    fn dispatch(&mut self) -> (usize, usize) {
        let mut sums = (0, 0);
        for lane in &mut self.lanes {
            let (in_flight, parked) = lane.dispatch();
            sums = (sums.0 + in_flight, sums.1 + parked);
        }
        sums
    }

    /// Something is in flight.
    fn wait(&mut self, min: usize, done: &mut impl FnMut(Done)) -> io::Result<()> {
        if let [lane] = &mut *self.lanes {
            return lane.wait(min, (lane.blocked() > 0).then_some(BLOCKED_PAUSE), done);
        }
        let busy = self.lanes.iter().filter(|l| l.in_flight() > 0).count();
        for lane in self.lanes.iter_mut().filter(|l| l.in_flight() > 0) {
            // With several engines, no engine may delay the others for long.
            let pause = (busy > 1 || lane.blocked() > 0).then_some(BLOCKED_PAUSE);
            let min = if busy > 1 { 1 } else { min };
            lane.wait(min, pause, done)?;
        }
        Ok(())
    }
}

/// Keeps the rule of this file when the source of pieces or the receiver of their ends panics.
struct DrainOnUnwind<'a> {
    context: &'a mut InlineContext,
    idle: &'a dyn Fn(),
}

impl Drop for DrainOnUnwind<'_> {
    fn drop(&mut self) {
        for lane in &mut self.context.lanes {
            lane.drain(self.idle, &mut |_| {});
        }
    }
}
