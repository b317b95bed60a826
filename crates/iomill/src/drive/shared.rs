//! [`SharedContext`]: engines over all drives of an array that any thread may advance, one at a time. Asynchronous operations run there.
//!
//! A caller begins a share and gives it pieces. A turn starts what can be started, and tells the owners of pieces that have ended. Whatever
//! thread takes the turn, it brings the ends of all shares. So an operation is not bound to the thread that began it, which may be
//! busy, or gone. Non-goals: the lock around it, and which thread takes the next turn (`exec::shared`).

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use super::inline::{BLOCKED_PAUSE, Lane, Service, give_up_after, lanes};
use super::locks::BlockLocks;
use super::regions::Regions;
use super::serve::begin_serving;
use super::shares::{Ended, Owner, Shares};
use super::{Class, Piece};
use crate::engine::platform::Platform;
use crate::sys::fs::Handle;

/// How often a turn starts what can be started. Short transfers and long shares take several.
const ROUNDS: usize = 4;

/// What a turn leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// I/Os of which the engines have not reported the end.
    pub in_flight: usize,
    /// Pieces that wait for what other contexts hold: the locks of blocks, or bounce memory. No completion tells when they can go on.
    pub blocked: usize,
    /// Whether another turn would start something now. A turn is bounded, because its caller may be a poll.
    pub has_more: bool,
}

/// See the module.
pub struct SharedContext {
    lanes: Vec<Lane>,
    /// Drive to lane, and to its queue within the lane. `None` for a drive with an engine that cannot be shared.
    places: Vec<Option<(u16, u16)>>,
    shares: Shares,
    failures: u32,
}

impl SharedContext {
    /// A context over all drives with engines that can be shared (`Service::is_shareable`). There is at least one.
    pub fn new(
        platform: &dyn Platform,
        services: &[Service],
        locks: &Arc<BlockLocks>,
        hold: &[Handle],
    ) -> io::Result<SharedContext> {
        let served: Vec<Service> = services.iter().filter(|service| service.is_shareable()).cloned().collect();
        let (lanes, places) = lanes(platform, &served, locks, hold, true)?;
        let mut places = places.into_iter();
        let place = |service: &Service| if service.is_shareable() { places.next() } else { None };
        let places = services.iter().map(place).collect();
        Ok(SharedContext { lanes, places, shares: Shares::default(), failures: 0 })
    }

    /// For each drive, whether it serves it.
    pub fn serves(&self) -> Box<[bool]> {
        self.places.iter().map(Option::is_some).collect()
    }

    /// The engines' descriptors: one of them is readable when a turn would find completions.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.lanes.iter().filter_map(|lane| lane.engine.descriptor()).collect()
    }

    /// Whether all engines have one.
    pub fn tells_ends(&self) -> bool {
        self.lanes.iter().all(|lane| lane.engine.descriptor().is_some())
    }

    /// Lets go of a file that is being closed.
    pub fn forget(&mut self, key: u64) {
        self.lanes.iter_mut().for_each(|lane| lane.engine.forget(key));
    }

    /// Takes the pieces of a share, and returns their number. The next turn starts them. `span` is as in [`super::serve::Share`].
    ///
    /// # Safety
    /// The pieces' memory and files are valid until `owner` has heard of the end of the share. Nothing else touches memory that is
    /// read into. There is at least one piece, and the context serves their drives.
    pub unsafe fn push(
        &mut self,
        regions: &Regions,
        owner: Arc<dyn Owner>,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
    ) -> u32 {
        self.lanes.iter_mut().for_each(|lane| lane.known.begin(regions, &mut *lane.engine, span));
        let (token, mut count) = (self.shares.begin(owner, 0, 0), 0);
        for (drive, mut piece) in pieces {
            let Some((lane, queue)) = self.places[usize::from(drive)] else {
                unreachable!("the caller asks whether the context serves a drive")
            };
            let lane = &mut self.lanes[usize::from(lane)];
            piece.class = Class::Foreground;
            piece.token = token;
            lane.known.fill_in(regions, &mut *lane.engine, &mut piece);
            self.shares.add_piece(token);
            // SAFETY: the caller's promise.
            unsafe { lane.queues[usize::from(queue)].push(piece) };
            count += 1;
        }
        count
    }

    /// Starts what can be started, and adds the shares that have ended to `ends`: the caller tells them when it has left the context. Waits for
    /// nothing.
    pub fn turn(&mut self, ends: &mut Vec<Ended>) -> Left {
        self.advance(0, Some(Duration::ZERO), ends)
    }

    /// The same, but waits in the engines until something has ended: for simulations.
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
                lane.flush();
                lane.dispatch();
                if lane.in_flight() == 0 {
                    break;
                }
                let shares = &mut self.shares;
                match lane.wait(min, timeout, &mut |done| ends.extend(shares.end_piece(&done))) {
                    Ok(()) => self.failures = 0,
                    Err(error) => {
                        give_up_after(&mut self.failures, &error);
                        // No descriptor tells of what a broken engine has.
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
            lane.drain(&|| (), &mut |done| ends.extend(shares.end_piece(&done)));
        }
        ends.into_iter().for_each(Ended::tell);
    }
}
