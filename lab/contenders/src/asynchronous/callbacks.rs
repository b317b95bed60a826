//! Callbacks: each puts its outcome into the inbox of the submitting thread, which then submits the lane's next
//! operation.

use std::sync::Arc;
use std::time::Instant;

use iomill::{Error, Request, Result};

use super::executor::Inbox;
use super::lane::{Flights, Op, Ops, Shared, Started};
use super::way::{Driver, Way};

/// Operations by `File::submit`, one task each.
#[derive(Debug)]
pub(super) struct Callbacks;

impl Way for Callbacks {
    fn driver(&self, flights: Flights) -> Result<Box<dyn Driver>> {
        let (lanes, shared) = flights.into_parts();
        // `submit` makes the memory of its reads itself.
        let lane = |(index, (ops, _memory))| {
            let (timer, bytes) = (Started::new(index), shared.bytes_to_write());
            Lane { ops, timer, started: None, op: None, bytes }
        };
        let lanes = lanes.into_iter().enumerate().map(lane).collect();
        Ok(Box::new(Submitting { lanes, shared }))
    }
}

struct Submitting {
    lanes: Vec<Lane>,
    shared: Arc<Shared>,
}

/// The index of a lane, and the result of its operation.
type Ended = (usize, Result<Vec<Vec<u8>>>);

/// The state of a lane.
struct Lane {
    ops: Ops,
    timer: Started,
    started: Option<Instant>,
    /// The operation in flight.
    op: Option<Op>,
    bytes: Vec<u8>,
}

impl Lane {
    /// Starts the next operation. Returns `false` if none is left.
    fn begin(&mut self, index: usize, shared: &Shared, ended: &Arc<Inbox<Ended>>) -> Result<bool> {
        self.op = self.ops.next();
        let Some(op) = self.op else { return Ok(false) };
        self.started = self.timer.start();
        let task = if op.write {
            let mut bytes = std::mem::take(&mut self.bytes);
            shared.stamp(op.offset, &mut bytes);
            Request::Write { offset: op.offset, bytes }
        } else {
            Request::Read { offset: op.offset, len: shared.op_bytes() }
        };
        let ended = Arc::clone(ended);
        shared.file().submit(vec![task], move |outcome| ended.push((index, outcome)))?;
        Ok(true)
    }

    /// Handles the end of the operation in flight.
    fn end(&mut self, outcome: Result<Vec<Vec<u8>>>, shared: &Shared) -> Result<()> {
        let lost =
            || Error::Tool { what: "a callback".into(), why: "it came without the bytes of its operation".into() };
        let (op, bytes) = (self.op.take().ok_or_else(lost)?, outcome?.pop().ok_or_else(lost)?);
        shared.record(self.started.take());
        if op.write {
            self.bytes = bytes;
            return Ok(());
        }
        shared.check(op.offset, &bytes)
    }
}

impl Driver for Submitting {
    fn drive(&mut self) -> Result<u64> {
        let Submitting { lanes, shared } = self;
        let ended = Arc::new(Inbox::new(Vec::new()));
        let (mut done, mut in_flight, mut failure) = (0, 0, None);
        for (index, lane) in lanes.iter_mut().enumerate() {
            match lane.begin(index, shared, &ended) {
                Ok(begun) => in_flight += u64::from(begun),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let mut outcomes = Vec::new();
        while in_flight > 0 {
            ended.take(&mut outcomes);
            for (index, outcome) in outcomes.drain(..) {
                in_flight -= 1;
                let lane = &mut lanes[index];
                let begun = lane.end(outcome, shared).and_then(|()| {
                    done += 1;
                    // After a failure the loop only waits for the operations in flight.
                    if failure.is_some() || shared.is_over() { Ok(false) } else { lane.begin(index, shared, &ended) }
                });
                match begun {
                    Ok(begun) => in_flight += u64::from(begun),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
        }
        failure.map_or(Ok(done), Err)
    }
}
