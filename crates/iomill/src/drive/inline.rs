//! The inline context: a blocking call drives its own thread's engine over all drives, without a hand-off or a context
//! switch.
//!
//! Rule: `run` returns only when none of its I/O is in flight, also when a piece fails and when it unwinds. Until then
//! the kernel may write to the caller's memory.

use std::io;

use super::lane::{BLOCKED_PAUSE, Engines, Lane, Places, lanes};
use super::regions::Regions;
use super::service::{Service, forget, give_up_after};
use super::{Done, Piece};

/// The most parked pieces, as a multiple of the slots' number. Random requests are uneven over the drives. With few
/// parked pieces, all of them are for the busiest drives, and the others are idle: a quarter of the time at 2, one in
/// twenty at 16.
const LOOK_AHEAD: usize = 16;

/// The next item of a source of pieces.
pub enum Supply {
    /// A piece for a drive.
    Piece(u16, Piece),
    /// No piece before one of its pieces has ended. At least one is in flight.
    Later,
    /// The end of the source.
    Nothing,
}

/// The source of a call's pieces. They are taken as the drives make progress.
pub trait Source {
    /// The next item.
    fn supply(&mut self) -> Supply;
}

impl<I: Iterator<Item = (u16, Piece)>> Source for I {
    #[inline]
    fn supply(&mut self) -> Supply {
        self.next().map_or(Supply::Nothing, |(drive, piece)| Supply::Piece(drive, piece))
    }
}

/// One thread's engines over all drives of an array.
pub struct InlineContext {
    lanes: Vec<Lane>,
    places: Places,
}

impl InlineContext {
    /// A context for the calling thread.
    pub fn new(engines: &Engines<'_>, services: &[Service]) -> io::Result<InlineContext> {
        let (lanes, places) = lanes(engines, services, false)?;
        Ok(InlineContext { lanes, places })
    }

    /// The number of drives that it serves.
    pub fn drives(&self) -> usize {
        self.places.len()
    }

    /// Forgets a file that is being closed.
    pub fn forget(&mut self, key: u64) {
        for lane in &mut self.lanes {
            forget(&mut *lane.engine, key);
        }
    }

    /// Runs all pieces to their ends and reports each end once.
    ///
    /// `span` contains the memory of all pieces that is not in slabs. It is looked up among the registered regions
    /// once. `idle` is called when all remaining pieces wait for block locks or bounce memory of others. It drives the
    /// others' I/O, and lets time pass.
    ///
    /// # Safety
    /// The memory and the files of all pieces are valid until this returns. Nothing else touches memory that is read
    /// into.
    pub unsafe fn run(
        &mut self,
        regions: &Regions,
        span: (*const u8, usize),
        mut pieces: impl Source,
        idle: impl Fn(),
        mut done: impl FnMut(Done),
    ) -> io::Result<()> {
        for lane in &mut self.lanes {
            lane.known.begin(regions, &mut *lane.engine, span);
        }
        let drain = DrainOnUnwind { context: self, idle: &idle };
        let context = &mut *drain.context;
        // By the rule of this file a call finds nothing parked.
        let (mut more, mut parked) = (true, 0);
        let mut failures = 0;
        loop {
            if more {
                more = context.take(regions, parked, &mut pieces);
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

    /// Moves pieces from the source to the queues, with a bounded number parked. `parked` is their present number.
    /// Returns whether the source may have more.
    fn take(&mut self, regions: &Regions, parked: usize, pieces: &mut impl Source) -> bool {
        let room = self.lanes.iter().map(|l| LOOK_AHEAD * l.owner.len()).sum::<usize>();
        for _ in parked..room {
            let (drive, mut piece) = match pieces.supply() {
                Supply::Piece(drive, piece) => (drive, piece),
                end => {
                    // No piece waits for neighbours that the source cannot supply now.
                    self.lanes.iter_mut().for_each(Lane::unplug);
                    return matches!(end, Supply::Later);
                }
            };
            let (lane, queue) = self.places[usize::from(drive)];
            let lane = &mut self.lanes[usize::from(lane)];
            lane.known.fill_in(regions, &mut *lane.engine, &mut piece.memory, piece.len);
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
            lane.drain_in_drop(self.idle, &mut |_| {});
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::super::locks::BlockLocks;
    use super::super::{Batching, PAGE_BYTES};
    use super::*;
    use crate::engine::real::RealPlatform;
    use crate::engine::{EngineKind, FileRef, Memory, Op};
    use crate::sys::fs::{Alignment, Handle};
    use crate::sys::memory::PageBuf;
    use crate::sys::sync::{Mutex, lock};

    const LOCK: u32 = 5;

    /// A call that a panic unwinds leaves when its pieces have ended, and brings on what blocks them.
    #[test]
    fn a_panic_brings_on_what_blocks_the_pieces_that_it_leaves() {
        let (platform, locks) = (RealPlatform::default(), Arc::<BlockLocks>::default());
        let align = Alignment { offset: 512, memory: 512 };
        let (batching, meter) = (Batching::NONE, None);
        let service = Service { kind: EngineKind::Null, align, depth: 4, batching, poll: false, meter };
        let engines = Engines { platform: &platform, locks: &locks, hold: &[], notices: None, threads: Vec::new() };
        let mut context = InlineContext::new(&engines, &[service]).unwrap();
        assert!(locks.try_exclusive(LOCK));
        let held = Mutex::new(Some(Arc::clone(&locks)));
        let unblock = || {
            if let Some(locks) = lock(&held).take() {
                locks.release_exclusive(LOCK);
            }
        };
        let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
        let sync = Piece::sync(FileRef { handle: Handle(1), key: 7 });
        let memory = Memory::one(memory.as_mut_ptr());
        let write = Piece { op: Op::Write, lock: LOCK, len: PAGE_BYTES as u32, memory, ..sync };
        let mut pieces = vec![(0, write)].into_iter();
        let source = std::iter::from_fn(|| Some(pieces.next().unwrap_or_else(|| panic!("a test's own"))));
        let run = AssertUnwindSafe(|| {
            // SAFETY: the memory outlives the context, and the engine touches no file.
            unsafe { context.run(&Regions::default(), (std::ptr::null(), 0), source, unblock, |_| ()) }
        });
        assert!(catch_unwind(run).is_err());
        assert!(locks.try_exclusive(LOCK), "the piece has ended");
    }
}
