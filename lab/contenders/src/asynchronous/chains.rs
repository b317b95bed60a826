//! Callbacks that begin the next operation of their lane. So all operations begin and end on the callback thread, and
//! the submitting thread only waits for the lanes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use iomill::{Error, Request, Result};

use super::executor::Inbox;
use super::lane::{Flights, Memory, Ops, Shared, Started};
use super::way::{Driver, Way};

/// Operations by `File::read_at_then`, and writes by `File::submit`.
#[derive(Debug)]
pub(super) struct Chains;

impl Way for Chains {
    fn driver(&self, flights: Flights) -> Result<Box<dyn Driver>> {
        let (lanes, shared) = flights.into_parts();
        let ended = Arc::new(Inbox::new(Vec::new()));
        let lane = |(index, (ops, memory))| {
            let lane = Lane {
                ops,
                timer: Started::new(index),
                done: 0,
                to_write: shared.bytes_to_write(),
                shared: Arc::clone(&shared),
                ended: Arc::clone(&ended),
            };
            (Box::new(lane), memory)
        };
        let lanes = lanes.into_iter().enumerate().map(lane).collect();
        Ok(Box::new(Chaining { lanes, ended }))
    }
}

struct Chaining {
    lanes: Vec<(Box<Lane>, Memory)>,
    ended: Arc<Inbox<Ended>>,
}

/// A message to the submitting thread.
enum Ended {
    /// A lane, after this number of operations.
    Lane(u64),
    Failed(Error),
}

/// The state of a lane. The callback of its operation owns it. Its drop reports the end of the lane.
struct Lane {
    ops: Ops,
    timer: Started,
    done: u64,
    to_write: Vec<u8>,
    shared: Arc<Shared>,
    ended: Arc<Inbox<Ended>>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.ended.push(Ended::Lane(self.done));
    }
}

impl Lane {
    /// Begins the next operation, or ends the lane if none is left. `memory` is for reads.
    fn begin(mut self: Box<Self>, memory: Memory) {
        let Some(op) = self.ops.next() else { return };
        let started = self.timer.start();
        let (shared, ended) = (Arc::clone(&self.shared), Arc::clone(&self.ended));
        let begun = if op.write {
            let mut bytes = std::mem::take(&mut self.to_write);
            shared.stamp(op.offset, &mut bytes);
            let task = Request::Write { offset: op.offset, bytes };
            shared.file().submit(vec![task], move |outcome| {
                let written = outcome.map(|mut bytes| self.to_write = bytes.pop().unwrap_or_default());
                self.end(started, memory, written);
            })
        } else {
            let read = shared.file().read_at_then(memory, op.offset, move |outcome| match outcome {
                Ok((memory, count)) => {
                    let checked = self.shared.check(op.offset, &memory.as_slice()[..count]);
                    self.end(started, black_box(memory), checked);
                }
                Err(failed) => self.fail(failed.into()),
            });
            read.map_err(Error::from)
        };
        if let Err(error) = begun {
            // The lane was dropped with its callback.
            shared.stop();
            ended.push(Ended::Failed(error));
        }
    }

    /// Handles the end of an operation.
    fn end(mut self: Box<Self>, started: Option<Instant>, memory: Memory, outcome: Result<()>) {
        if let Err(error) = outcome {
            return self.fail(error);
        }
        self.shared.record(started);
        self.done += 1;
        if !self.shared.is_over() {
            self.begin(memory);
        }
    }

    /// Ends all lanes.
    fn fail(&self, error: Error) {
        self.shared.stop();
        self.ended.push(Ended::Failed(error));
    }
}

impl Driver for Chaining {
    fn drive(&mut self) -> Result<u64> {
        let mut running = self.lanes.len();
        self.lanes.drain(..).for_each(|(lane, memory)| lane.begin(memory));
        let (mut done, mut failure, mut messages) = (0, None, Vec::new());
        while running > 0 {
            self.ended.take(&mut messages);
            for message in messages.drain(..) {
                match message {
                    Ended::Lane(ops) => (running, done) = (running - 1, done + ops),
                    Ended::Failed(error) => failure = failure.or(Some(error)),
                }
            }
        }
        failure.map_or(Ok(done), Err)
    }
}
