//! [`Flushes`]: which flush of a file covers a write, where many callers write to one file. Non-goals: flushing, and turns.
//!
//! Rules:
//! 1. A flush covers each write that had ended when it began. So a caller takes a stamp after its write: how many flushes had begun.
//! 2. The write is durable when a flush with a higher number has ended well. That may be a flush of another caller.
//! 3. One flush runs at a time. So they end in the order in which they begin.

use super::sync::{AtomicU64, Ordering, fence};

/// See the module.
#[derive(Debug, Default)]
pub struct Flushes {
    begun: AtomicU64,
    /// The number of the last one that ended well.
    ended: AtomicU64,
}

impl Flushes {
    /// The stamp of a write that has ended (rule 1).
    pub fn stamp(&self) -> u64 {
        // SeqCst: pairs with the fence in `run`. A flush that the load does not see begins after the write.
        fence(Ordering::SeqCst);
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a write with this stamp is durable (rule 2).
    pub fn cover(&self, stamp: u64) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.ended.load(Ordering::Acquire) > stamp
    }

    /// Flushes, unless another flush has made durable what is asked for. Rule 3 is the caller's.
    pub fn run<E>(&self, stamp: u64, flush: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        if self.cover(stamp) {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        // SeqCst: pairs with the fence in `stamp`.
        fence(Ordering::SeqCst);
        flush()?;
        self.ended.store(number, Ordering::Release);
        Ok(())
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_ended_before_it() {
        let (flushes, mut runs) = (Flushes::default(), 0);
        let mut run = |stamp, result: Result<(), ()>| {
            let before = runs;
            let done = flushes.run(stamp, || {
                runs += 1;
                result
            });
            (done, runs - before)
        };
        let (early, same) = (flushes.stamp(), flushes.stamp());
        assert_eq!(run(early, Ok(())), (Ok(()), 1));
        assert_eq!(run(same, Ok(())), (Ok(()), 0), "one flush is enough for both");
        let late = flushes.stamp();
        assert!(!flushes.cover(late));
        assert_eq!(run(late, Err(())), (Err(()), 1));
        assert!(!flushes.cover(late), "a flush that failed covers nothing");
        assert_eq!(run(late, Ok(())), (Ok(()), 1));
        assert!(flushes.cover(late));
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sys::sync::{Arc, Mutex, lock, model};

    /// A drive with a cache of its own. A bit is a write.
    #[derive(Default)]
    struct Drive {
        holds: AtomicU64,
        durable: AtomicU64,
    }

    #[derive(Default)]
    struct Part {
        flushes: Flushes,
        drive: Drive,
        turn: Mutex<()>,
    }

    fn write_and_sync(part: &Part, bit: u64) {
        part.drive.holds.fetch_or(bit, Ordering::Relaxed);
        let stamp = part.flushes.stamp();
        let turn = lock(&part.turn);
        let flush = || {
            let holds = part.drive.holds.load(Ordering::Relaxed);
            part.drive.durable.fetch_or(holds, Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        part.flushes.run(stamp, flush).unwrap();
        drop(turn);
        assert!(part.drive.durable.load(Ordering::Relaxed) & bit != 0, "write {bit} is said to be durable");
    }

    /// No write counts as durable that no flush has covered.
    ///
    /// Seen to fail when `cover` took a flush with the stamp's own number, and when the flush was counted as begun after it had ended.
    #[test]
    fn loom_flushes_cover_what_they_say() {
        model(|| {
            let part = Arc::new(Part::default());
            let threads: Vec<_> = [1, 2].map(|bit| (Arc::clone(&part), bit)).into_iter().collect();
            let threads: Vec<_> =
                threads.into_iter().map(|(part, bit)| thread::spawn(move || write_and_sync(&part, bit))).collect();
            write_and_sync(&part, 4);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
