//! [`Bounded`]: the reads in flight of one drive, at most `READS_MOST`. A read that does not end in time keeps its slot
//! until it ends, and no caller waits for it. Rule D1 of `docs/origin.md`. Non-goals: the places to read (`pages`).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use async_lock::{Semaphore, SemaphoreGuardArc};
use futures_util::future::{Either, select};

use crate::notices::locked;
use crate::timer::Delay;

/// The result of a read of a drive.
pub type Bytes = iomill::Result<Vec<u8>>;
/// A read in flight.
pub type Reading = Pin<Box<dyn Future<Output = Bytes> + Send>>;
/// The right to have a read in flight.
pub type Slot = SemaphoreGuardArc;

/// The most reads in flight of a drive. Each has a few pieces.
const READS_MOST: usize = 256;
/// A drive with this many late reads gets no more reads.
const LATE_MOST: usize = 8;

/// See the module.
pub struct Bounded {
    slots: Arc<Semaphore>,
    /// Late reads: no caller waits for them any more.
    late: Mutex<Vec<(Reading, Slot)>>,
    /// The number of `late` reads.
    late_count: AtomicUsize,
}

impl Default for Bounded {
    fn default() -> Self {
        Bounded { slots: Arc::new(Semaphore::new(READS_MOST)), late: Mutex::default(), late_count: AtomicUsize::new(0) }
    }
}

impl std::fmt::Debug for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bounded").field("late", &self.late_count).finish_non_exhaustive()
    }
}

impl Bounded {
    /// A slot, if one is free now.
    pub fn try_slot(&self) -> Option<Slot> {
        self.slots.try_acquire_arc()
    }

    /// A slot, if one is free before the end.
    pub async fn slot_before(&self, end: &mut Delay) -> Option<Slot> {
        match select(std::pin::pin!(self.slots.acquire_arc()), end).await {
            Either::Left((slot, _)) => Some(slot),
            Either::Right(_) => None,
        }
    }

    /// Waits for a read until `end`. `None`: the read is late, and no caller waits for it any more.
    pub async fn wait(&self, read: Reading, slot: Slot, end: &mut Delay) -> Option<(Bytes, Slot)> {
        match select(read, end).await {
            Either::Left((bytes, _)) => Some((bytes, slot)),
            Either::Right(((), read)) => {
                let mut late = locked(&self.late);
                late.push((read, slot));
                self.late_count.store(late.len(), Relaxed);
                None
            }
        }
    }

    /// Whether `LATE_MOST` reads are late, so that the drive gets no more.
    pub fn is_stuck(&self) -> bool {
        self.late() >= LATE_MOST
    }

    /// The number of late reads.
    pub fn late(&self) -> usize {
        if self.late_count.load(Relaxed) == 0 {
            return 0;
        }
        let mut late = locked(&self.late);
        late.retain_mut(|(read, _)| read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        self.late_count.store(late.len(), Relaxed);
        late.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::Timer;
    use futures_channel::oneshot;
    use futures_executor::block_on;
    use futures_util::FutureExt;
    use std::time::Duration;

    #[test]
    fn late_reads_keep_their_slots_until_they_end() {
        let (timer, bounded) = (Timer::start().unwrap(), Bounded::default());
        let mut ends = Vec::new();
        for n in 0..READS_MOST {
            assert_eq!(bounded.is_stuck(), n >= LATE_MOST);
            let (end, ended) = oneshot::channel::<()>();
            ends.push(end);
            let read = ended.map(|_| Ok(Vec::new())).boxed();
            let slot = bounded.try_slot().unwrap();
            assert!(block_on(bounded.wait(read, slot, &mut timer.after(Duration::ZERO))).is_none());
        }
        assert!(bounded.try_slot().is_none());
        assert!(block_on(bounded.slot_before(&mut timer.after(Duration::from_millis(1)))).is_none());
        // All late reads end, except one less than the bound.
        ends.truncate(LATE_MOST - 1);
        assert!(!bounded.is_stuck());
        assert!(bounded.try_slot().is_some());
        let slot = bounded.try_slot().unwrap();
        let read = async { Ok(vec![7]) }.boxed();
        let (bytes, _slot) = block_on(bounded.wait(read, slot, &mut timer.after(Duration::from_secs(600)))).unwrap();
        assert_eq!(bytes.unwrap(), [7]);
    }
}
