//! [`SharedContext`]: engines over all drives of an array that any thread may advance, one at a time. Asynchronous
//! operations run there.
//!
//! A caller begins a share and gives it pieces. A turn starts pieces, and reports ended pieces to their owners. A turn
//! by any thread collects the completions of all shares. So an operation does not depend on the thread that began it:
//! that may be busy, or have ended. Non-goals: the lock around it, and which thread takes the next turn
//! (`exec::shared`).

use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Piece;
use super::lane::{BLOCKED_PAUSE, Engines, Lane, Places, lanes};
use super::regions::Regions;
use super::service::{Service, forget, give_up_after};
use super::shares::{Ended, Owner, Shares, begin_serving};
use crate::engine::EngineKind;

/// How often a turn starts what can be started. Short transfers and long shares take several.
const ROUNDS: usize = 4;

/// The work that a turn leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// I/Os that the engines have not reported as ended.
    pub in_flight: usize,
    /// The number of pieces that wait for block locks or bounce memory of other contexts. No completion of this context
    /// ends such a wait.
    pub blocked: usize,
    /// Whether another turn would start something now. A turn is bounded, because its caller may be a poll.
    pub has_more: bool,
}

/// See the module.
pub struct SharedContext {
    lanes: Vec<Lane>,
    places: Places,
    shares: Shares,
    failures: u32,
}

impl SharedContext {
    /// A context over all drives.
    pub fn new(engines: &Engines<'_>, services: &[Service]) -> io::Result<SharedContext> {
        // A turn must not wait for a drive, as `io_submit` does without direct I/O. And a polled completion makes no
        // descriptor readable.
        let kind = |service: &Service| match service.kind {
            EngineKind::Aio if !service.align.is_direct() => EngineKind::Posix,
            kind => kind,
        };
        let shared = |service: &Service| Service { kind: kind(service), poll: false, ..service.clone() };
        let (lanes, places) = lanes(engines, &services.iter().map(shared).collect::<Vec<_>>(), true)?;
        Ok(SharedContext { lanes, places, shares: Shares::default(), failures: 0 })
    }

    /// The number of drives that it serves.
    pub fn drives(&self) -> usize {
        self.places.len()
    }

    /// The engines' descriptors: one of them is readable when a turn would find completions.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.lanes.iter().filter_map(|lane| lane.engine.descriptor()).collect()
    }

    /// Forgets a file that is being closed.
    pub fn forget(&mut self, key: u64) {
        self.lanes.iter_mut().for_each(|lane| forget(&mut *lane.engine, key));
    }

    /// Takes the pieces of a share, and returns their number. The next turn starts them. `span` contains the memory of
    /// all pieces that is not in slabs.
    ///
    /// # Safety
    /// The pieces' memory and files are valid until the end of the share is reported to `owner`. Nothing else uses the
    /// memory of reads. There is at least one piece, and the context serves their drives.
    pub unsafe fn push(
        &mut self,
        regions: &Regions,
        owner: Arc<dyn Owner>,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
    ) -> u32 {
        self.lanes.iter_mut().for_each(|lane| lane.known.begin(regions, &mut *lane.engine, span));
        let (token, mut count) = (self.shares.begin(owner), 0);
        for (drive, mut piece) in pieces {
            let (lane, queue) = self.places[usize::from(drive)];
            let lane = &mut self.lanes[usize::from(lane)];
            piece.token = token;
            lane.known.fill_in(regions, &mut *lane.engine, &mut piece.memory, piece.len);
            self.shares.add_piece(token);
            // SAFETY: the caller's promise.
            unsafe { lane.queues[usize::from(queue)].push(piece) };
            count += 1;
        }
        count
    }

    /// Starts pieces, and adds the ended shares to `ends`: the caller reports them after it has left the context. Waits
    /// for nothing.
    pub fn turn(&mut self, ends: &mut Vec<Ended>) -> Left {
        self.advance(0, Some(Duration::ZERO), ends)
    }

    /// `turn` that waits in the engines until a piece has ended: for simulations.
    pub fn sleep(&mut self, ends: &mut Vec<Ended>) -> Left {
        self.advance(1, None, ends)
    }

    fn advance(&mut self, min: usize, timeout: Option<Duration>, ends: &mut Vec<Ended>) -> Left {
        let _serving = begin_serving();
        let busy = self.lanes.iter().filter(|lane| lane.in_flight() + lane.parked() > 0).count();
        // With several engines, no engine may delay the others for long.
        let timeout = if min > 0 && busy > 1 { Some(BLOCKED_PAUSE) } else { timeout };
        let mut left = Left::default();
        for lane in &mut self.lanes {
            let mut min = min;
            for _ in 0..ROUNDS {
                let shares = &mut self.shares;
                let round = || {
                    lane.unplug();
                    lane.dispatch();
                    let mut done = |done| ends.extend(shares.end_piece(&done));
                    (lane.in_flight() > 0).then(|| lane.wait(min, timeout, &mut done))
                };
                let waited = catch_unwind(AssertUnwindSafe(round)).unwrap_or_else(|panic| {
                    give_up_after(&mut self.failures, &io::Error::other("it panics"));
                    resume_unwind(panic)
                });
                match waited {
                    None => break,
                    Some(Ok(())) => self.failures = 0,
                    Some(Err(error)) => {
                        give_up_after(&mut self.failures, &error);
                        // A failed engine makes no descriptor readable.
                        left.blocked += 1;
                    }
                }
                if !lane.has_more() {
                    break;
                }
                min = 0;
            }
            left.in_flight += lane.in_flight();
            left.blocked += lane.blocked();
            left.has_more |= lane.has_more();
        }
        left
    }
}

impl Drop for SharedContext {
    /// The kernel may write to memory until I/O has ended, so this waits for all that is in flight.
    fn drop(&mut self) {
        let mut ends = Vec::new();
        for lane in &mut self.lanes {
            let shares = &mut self.shares;
            // All files are closed, so no piece of another context holds what these wait for.
            lane.drain_in_drop(&|| (), &mut |done| ends.extend(shares.end_piece(&done)));
        }
        ends.into_iter().for_each(Ended::tell);
    }
}
