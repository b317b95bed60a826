//! [`Filler`]: the thread of a drive that writes fetched granules after the answers. Rules W1 and F4 of
//! `docs/origin.md`. Non-goals: the writing of a batch (`append`).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::append::{Appended, Item, append, is_full};
use crate::counters::{Tally, add};
use crate::drive::Drive;
use crate::flights::Flights;
use crate::identity::GranuleId;
use crate::index::Claim;
use crate::load;
use crate::lock::Held;
use crate::notices::locked;

/// A granule to be written, with this process's claim on it.
#[derive(Debug)]
pub struct Fill {
    pub id: GranuleId,
    pub bytes: Bytes,
    pub claim: Option<Claim>,
    /// It was fetched ahead of its first read, so a full drive admits it: `Options::admit` is for reads.
    pub is_ahead: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Filler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    drive: Arc<Drive>,
    flights: Arc<Flights>,
    tally: Arc<Tally>,
    /// The most bytes that may wait.
    most: u64,
    admit: f64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    fills: VecDeque<Fill>,
    /// The bytes of the waiting granules and of the batch that is being written.
    bytes: u64,
    writing: bool,
    ends: bool,
    /// The regions of the drive are in the index, or cannot be for now.
    is_loaded: bool,
    /// The thread has ended.
    has_ended: bool,
}

/// The most granules of one batch. After each batch other processes have a turn.
const BATCH: usize = 64;
/// How long a batch waits for the right to append, and the interval between two tries. Another process holds the right
/// for a batch, or is stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for each batch that is left when the cache is closed.
const PATIENCE_AT_END: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);
/// How long the close of a cache waits for the thread of a drive. After that the thread continues alone.
const PATIENCE_FOR_THREAD: Duration = Duration::from_secs(30);
/// The interval at which a wait checks whether the drive is late.
const LOOK: Duration = Duration::from_millis(20);

impl Filler {
    pub fn start(
        drive: Arc<Drive>,
        flights: Arc<Flights>,
        tally: Arc<Tally>,
        most: u64,
        admit: f64,
    ) -> std::io::Result<Filler> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { drive, flights, tally, most, admit, queue, changed });
        let served = Arc::clone(&shared);
        let thread = thread::Builder::new().name("iomill-origin".into()).spawn(move || {
            let _told = Ending(&served);
            served.serve();
        })?;
        Ok(Filler { shared, thread: Some(thread) })
    }

    /// Takes a granule, unless too many bytes wait. `extra`: no call needs it, so it is taken only if half of the room
    /// is free.
    pub fn offer(&self, mut fill: Fill, extra: bool) {
        let shared = &*self.shared;
        let (most, bytes) = (if extra { shared.most / 2 } else { shared.most }, fill.bytes.len() as u64);
        let late = shared.drive.is_late();
        let mut queue = locked(&shared.queue);
        if late || queue.bytes + bytes > most || queue.ends || shared.drive.is_dead() {
            // The thread may be stuck for ever, so the memory of the waiting granules is freed here.
            let left = if shared.drive.is_dead() { shared.take(&mut queue, usize::MAX) } else { Vec::new() };
            drop(queue);
            add(&shared.tally.dropped, 1 + left.len() as u64);
            shared.drive.give_up(fill.claim);
            shared.release(left);
            return;
        }
        // A copy: the granule is a part of the memory of its GET, and would keep all of that memory beyond the bound.
        fill.bytes = Bytes::copy_from_slice(&fill.bytes);
        if !shared.flights.hold(fill.id, &fill.bytes) {
            drop(queue);
            shared.drive.give_up(fill.claim);
            return;
        }
        queue.bytes += bytes;
        queue.fills.push_back(fill);
        shared.changed.notify_all();
    }

    /// Whether `bytes` more may wait. An idle drive takes any number. A late or dead drive takes none.
    pub fn has_room(&self, bytes: u64) -> bool {
        let drive = &self.shared.drive;
        let waiting = locked(&self.shared.queue).bytes;
        // Shares of a few granules are not equal.
        waiting == 0 || waiting + 2 * bytes <= self.shared.most || drive.is_late() || drive.is_dead()
    }

    /// Waits until no granule waits to be written, or the drive is late. Returns whether none waits.
    pub fn flush_before(&self, end: Option<Instant>) -> bool {
        self.shared.wait_while(end, |queue| !queue.ends && (queue.writing || !queue.fills.is_empty()))
    }

    /// Waits until the index has the contents of the drive. It ends earlier if the drive is late, or if another process
    /// keeps the right to append.
    pub fn wait_until_loaded(&self) {
        let _late = self.shared.wait_while(None, |queue| !queue.ends && !queue.is_loaded);
    }

    /// No more granules are taken. The thread ends when it has written the waiting ones.
    pub fn end(&self) {
        locked(&self.shared.queue).ends = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
impl Filler {
    /// The lock, for a test of calls that must not need it.
    pub fn locked(&self) -> impl Sized {
        locked(&self.shared.queue)
    }
}

/// Announces the end of the thread, also after a panic.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut queue = locked(&self.0.queue);
        (queue.has_ended, queue.ends) = (true, true);
        self.0.changed.notify_all();
    }
}

impl Drop for Filler {
    /// Writes the waiting granules, and ends.
    fn drop(&mut self) {
        self.end();
        // A drive that does not answer blocks its thread. Then the thread and its data are left behind.
        let has_ended = self.shared.wait_while(Some(Instant::now() + PATIENCE_FOR_THREAD), |queue| !queue.has_ended);
        if let Some(thread) = self.thread.take().filter(|_| has_ended) {
            let _panicked = thread.join();
            #[cfg(test)]
            crate::faults::only_killed(_panicked);
        }
    }
}

impl Drive {
    fn give_up(&self, claim: Option<Claim>) {
        if let Some(claim) = claim {
            self.index.unclaim(claim);
        }
    }
}

impl Shared {
    /// Waits as long as a condition holds, until `end`, and as long as the drive answers: rule D2. Returns whether the
    /// condition no longer holds.
    fn wait_while(&self, end: Option<Instant>, condition: impl Fn(&Queue) -> bool) -> bool {
        let mut queue = locked(&self.queue);
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()).min(LOOK));
            let waited = self.changed.wait_timeout_while(queue, left, |queue| condition(queue));
            let (waited, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            if !timed_out.timed_out() {
                return true;
            }
            if self.drive.is_late() || end.is_some_and(|end| end <= Instant::now()) {
                return false;
            }
            queue = waited;
        }
    }

    /// Takes the first waiting fills. Their bytes count until they are released.
    fn take(&self, queue: &mut Queue, most: usize) -> Vec<Fill> {
        let len = queue.fills.len().min(most);
        queue.fills.drain(..len).collect()
    }

    /// Fills are written, or will not be.
    fn release(&self, fills: Vec<Fill>) {
        let bytes: u64 = fills.iter().map(|fill| fill.bytes.len() as u64).sum();
        for fill in fills {
            // After the index has the granule, or when it never will.
            self.flights.release(fill.id);
            self.drive.give_up(fill.claim);
        }
        locked(&self.queue).bytes -= bytes;
        self.changed.notify_all();
    }

    fn serve(&self) {
        self.load();
        loop {
            let batch = {
                let queue = locked(&self.queue);
                let waited = self.changed.wait_while(queue, |queue| queue.fills.is_empty() && !queue.ends);
                let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
                if queue.fills.is_empty() {
                    return;
                }
                queue.writing = true;
                self.take(&mut queue, BATCH)
            };
            self.write(&batch);
            self.release(batch);
            locked(&self.queue).writing = false;
            self.changed.notify_all();
        }
    }

    /// Rule L2: reads the summaries of the drive, a few regions at a time. Lookups meanwhile use the regions that were
    /// read.
    fn load(&self) {
        while !self.drive.index.is_loaded() && !locked(&self.queue).ends {
            let Some(held) = self.hold() else {
                // A stopped or hanging process has the right. No call waits for this thread.
                self.tell_loaded();
                continue;
            };
            if let Err(error) = load::load_some(&self.drive, &held) {
                self.drive.failed("read the summaries", &error);
                break;
            }
        }
        self.tell_loaded();
    }

    fn tell_loaded(&self) {
        locked(&self.queue).is_loaded = true;
        self.changed.notify_all();
    }

    fn hold(&self) -> Option<Held<'_>> {
        let begun = Instant::now();
        let patience = || if locked(&self.queue).ends { PATIENCE_AT_END } else { PATIENCE };
        loop {
            match self.drive.try_hold() {
                Some(held) => return Some(held),
                None if begun.elapsed() > patience() => return None,
                None => thread::sleep(PAUSE),
            }
        }
    }

    fn write(&self, batch: &[Fill]) {
        let full = self.admit < 1.0 && is_full(&self.drive);
        let admitted = batch.iter().filter(|fill| fill.is_ahead || !full || fastrand::f64() < self.admit);
        let items: Vec<Item> = admitted.map(|fill| Item { id: fill.id, bytes: fill.bytes.clone() }).collect();
        add(&self.tally.refused, (batch.len() - items.len()) as u64);
        if items.is_empty() {
            return;
        }
        let mut done = Appended::default();
        // The drive has counted the error already.
        let ended = match self.hold() {
            Some(held) => append(&self.drive, &items, &held, &mut done),
            None => Err(std::io::ErrorKind::WouldBlock.into()),
        };
        let tally = &*self.tally;
        add(&tally.filled, done.granules);
        add(&tally.filled_before, done.known);
        add(&tally.carried, done.carried);
        add(&tally.emptied, done.emptied);
        if ended.is_err() {
            add(&tally.dropped, (items.len() as u64).saturating_sub(done.granules + done.known));
        }
    }
}

#[cfg(test)]
mod tests;
