//! [`Bounded`]: the reads in flight of one drive, at most `READS_MOST`. A read that does not end in time keeps its slot
//! until it ends, and no caller waits for it. Rule D1 of `docs/origin.md`. Non-goals: the places to read (`pages`).

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// Late reads: no caller waits for them any more. Those that a thread polls are not in it.
    late: Mutex<Vec<(Reading, Slot)>>,
    /// The number of late reads, also of those that a thread polls: never less than the length of `late`.
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
                self.late_count.fetch_add(1, Relaxed);
                locked(&self.late).push((read, slot));
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
        // Without the lock: a poll, and the end of a slot, may run code of an executor, which may read this drive.
        let polled = std::mem::take(&mut *locked(&self.late));
        let count = polled.len();
        let mut pending: Vec<_> = polled.into_iter().filter_map(still_pending).collect();
        let ended = count - pending.len();
        locked(&self.late).append(&mut pending);
        self.late_count.fetch_sub(ended, Relaxed) - ended
    }
}

/// Polls a late read of another call. `None`: it has ended, or its panic has ended it.
fn still_pending((mut read, slot): (Reading, Slot)) -> Option<(Reading, Slot)> {
    let polled = move || {
        let is_pending = read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        is_pending.then_some((read, slot))
    };
    // The panic message has been printed.
    catch_unwind(AssertUnwindSafe(polled)).unwrap_or(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::Timer;
    use futures_channel::oneshot;
    use futures_executor::block_on;
    use futures_util::FutureExt;
    use std::task::Poll;
    use std::time::Duration;

    /// A read that is pending at first, and then ends as `second` does.
    fn late_read(bounded: &Bounded, mut second: impl FnMut() + Send + 'static) {
        let mut is_first = true;
        let read = std::future::poll_fn(move |_| {
            if std::mem::take(&mut is_first) {
                return Poll::Pending;
            }
            second();
            Poll::Ready(Ok(Vec::new()))
        });
        let timer = Timer::start().unwrap();
        let slot = bounded.try_slot().unwrap();
        assert!(block_on(bounded.wait(read.boxed(), slot, &mut timer.after(Duration::ZERO))).is_none());
    }

    /// Seen to fail when the panic was that of the call that polled the read.
    #[test]
    fn a_late_read_that_panics_fails_no_other_call() {
        let bounded = Bounded::default();
        late_read(&bounded, || panic!("a read's own"));
        late_read(&bounded, || ());
        assert_eq!(bounded.late(), 0);
        assert_eq!(std::iter::from_fn(|| bounded.try_slot().map(std::mem::forget)).count(), READS_MOST);
    }

    /// Seen to fail when reads were polled under the lock: the thread waited for itself.
    #[test]
    fn a_late_read_may_run_code_that_reads_the_drive() {
        let bounded = Arc::new(Bounded::default());
        let (sender, counted) = std::sync::mpsc::channel();
        let own = Arc::clone(&bounded);
        // The read itself counts until it has ended.
        late_read(&bounded, move || sender.send((own.late(), own.is_stuck())).unwrap());
        let called = Arc::clone(&bounded);
        std::thread::spawn(move || called.late());
        assert_eq!(counted.recv_timeout(Duration::from_secs(600)), Ok((1, false)));
        while bounded.late() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

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
