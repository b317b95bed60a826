//! `Lane`: one engine with the queues of the drives that it serves. A context has a lane for each kind of engine.
//! Non-goals: when a lane is advanced (`inline`, `shared`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Done;
use super::bounce::Bounce;
use super::locks::BlockLocks;
use super::queue::Queue;
use super::regions::Known;
use super::service::{Service, end_in_drop, give_up_after};
use super::threads::{DriveThread, RemoteEngine};
use crate::engine::platform::Platform;
use crate::engine::{Completion, Engine, EngineConfig, EngineKind};
use crate::sys::fs::Handle;
use crate::sys::notices::Notices;

/// How long to wait before a block lock that another piece holds is tried again.
pub(super) const BLOCKED_PAUSE: Duration = Duration::from_micros(50);

/// What contexts make their engines from.
pub struct Engines<'a> {
    /// Makes them.
    pub platform: &'a dyn Platform,
    /// The locks of blocks, common to all contexts of an array.
    pub locks: &'a Arc<BlockLocks>,
    /// Handles that engines keep open, so that locks last as long as I/O.
    pub hold: &'a [Handle],
    /// The messages of engines for users.
    pub notices: Option<&'a Arc<Notices>>,
    /// The threads of all drives. Empty: the contexts have the drives' engines themselves.
    pub threads: Vec<Arc<DriveThread>>,
}

impl Engines<'_> {
    /// An engine for drives of one kind. With `shared` any thread may use it, one at a time.
    fn engine(&self, drives: &[&Service], shared: bool) -> io::Result<Box<dyn Engine>> {
        if !self.threads.is_empty() {
            return Ok(Box::new(RemoteEngine::new(&self.threads, drives.iter().map(|drive| drive.depth))?));
        }
        let capacity = drives.iter().map(|drive| drive.depth).sum();
        let kind = drives.first().map_or(EngineKind::Null, |drive| drive.kind);
        let poll = drives.iter().all(|drive| drive.poll);
        let mut engine =
            self.platform.engine(kind, &EngineConfig { capacity, poll, hold: self.hold.to_vec(), shared })?;
        self.notices.iter().for_each(|notices| engine.tell(notices));
        Ok(engine)
    }
}

/// One engine with the queues that it serves.
///
/// Field order matters: the engine is dropped first, so that its ring no longer holds the queues' bounce memory.
pub(super) struct Lane {
    pub engine: Box<dyn Engine>,
    pub queues: Vec<Queue>,
    /// Slot to the index of its queue.
    pub owner: Vec<u16>,
    pub known: Known,
    completions: Vec<Completion>,
    ends: Vec<Done>,
}

impl Lane {
    /// A lane over drives that share an engine. With `shared` any thread may use it, one at a time.
    pub fn new(engines: &Engines<'_>, drives: &[&Service], shared: bool) -> io::Result<Lane> {
        let engine = engines.engine(drives, shared)?;
        let mut queues = Vec::with_capacity(drives.len());
        let mut owner = Vec::new();
        for (index, drive) in drives.iter().enumerate() {
            let first = owner.len();
            let bounce = Bounce::new(drive.depth)?;
            // SAFETY: the queue lives in the lane, after the engine in drop order. The lane never drops with I/O in
            // flight (`run`, and the drain of `SharedContext`).
            queues
                .push(unsafe { Queue::new(drive.depth, first as u32, drive.align, Arc::clone(engines.locks), bounce) });
            if let Some(queue) = queues.last_mut() {
                queue.batch(drive.batching, engines.platform.clock());
                drive.meter.iter().for_each(|meter| queue.count(meter.probe()));
            }
            owner.resize(first + drive.depth as usize, index as u16);
        }
        let completions = Vec::with_capacity(owner.len());
        Ok(Lane { engine, queues, owner, known: Known::default(), completions, ends: Vec::new() })
    }

    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(Queue::in_flight).sum()
    }

    pub fn parked(&self) -> usize {
        self.queues.iter().map(Queue::parked).sum()
    }

    pub fn blocked(&self) -> usize {
        self.queues.iter().map(Queue::blocked).sum()
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

    /// Tells the queues that no more pieces follow for now.
    pub fn unplug(&mut self) {
        self.queues.iter_mut().for_each(Queue::unplug);
    }

    /// Runs all parked pieces and those in flight to their end. Calls `unblock` while pieces wait for locks or memory
    /// of others.
    pub fn drain(&mut self, unblock: &dyn Fn(), done: &mut impl FnMut(Done)) {
        if self.in_flight() + self.parked() == 0 {
            // Every call ends with this, and mostly nothing is left.
            return;
        }
        let mut failures = 0;
        loop {
            self.unplug();
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

    /// `drain` for a drop (`end_in_drop`).
    pub fn drain_in_drop(&mut self, unblock: &dyn Fn(), done: &mut impl FnMut(Done)) {
        end_in_drop(|| self.drain(unblock, done));
    }
}

/// Drive to lane, and to its queue within the lane.
pub(super) type Places = Vec<(u16, u16)>;

/// A lane for each kind of engine, and the places of all drives. With drive threads it is one lane for all.
pub(super) fn lanes(engines: &Engines<'_>, services: &[Service], shared: bool) -> io::Result<(Vec<Lane>, Places)> {
    if !engines.threads.is_empty() {
        let lane = Lane::new(engines, &services.iter().collect::<Vec<_>>(), shared)?;
        return Ok((vec![lane], (0..services.len() as u16).map(|queue| (0, queue)).collect()));
    }
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
        lanes.push(Lane::new(engines, &members, shared)?);
    }
    Ok((lanes, places))
}
