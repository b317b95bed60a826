//! [`Meter`]: the counters and the stopwatch of a drive's queues.

use std::sync::Arc;

use super::board::Board;
use super::tally::DriveTally;
use crate::sys::clock::Clock;

/// The number of requests for each one that is timed. It is odd, because batch sizes are powers of two, and would fall
/// into step with an even number.
pub const TIMED_ONE_IN: u32 = 17;

/// The source of counters for the queues of one drive.
#[derive(Clone, Debug)]
pub struct Meter {
    board: Arc<Board>,
    drive: u16,
    clock: Arc<dyn Clock>,
}

impl Meter {
    /// A meter for one drive, with times from `clock`.
    pub fn new(board: &Arc<Board>, drive: u16, clock: &Arc<dyn Clock>) -> Meter {
        Meter { board: Arc::clone(board), drive, clock: Arc::clone(clock) }
    }

    /// The counters and the stopwatch of one queue.
    pub fn probe(&self) -> Probe {
        let tally = self.board.take_drive(self.drive);
        Probe { tally, clock: Arc::clone(&self.clock), until_timed: TIMED_ONE_IN }
    }
}

/// The counters of one queue, and a stopwatch for some of its requests.
#[derive(Debug)]
pub struct Probe {
    /// The counters.
    pub tally: DriveTally,
    clock: Arc<dyn Clock>,
    until_timed: u32,
}

impl Probe {
    /// Called when a request starts. Returns a stamp for [`Probe::stop`], or 0 if the request is not timed.
    #[inline]
    pub fn start(&mut self) -> u64 {
        self.until_timed -= 1;
        if self.until_timed > 0 {
            return 0;
        }
        self.until_timed = TIMED_ONE_IN;
        // At least 1, because 0 stands for "not timed".
        self.clock.now_ns().max(1)
    }

    /// Called when a request has succeeded.
    #[inline]
    pub fn stop(&self, stamp: u64) {
        if stamp != 0 {
            self.tally.took(self.clock.now_ns().saturating_sub(stamp));
        }
    }
}
