//! The progress and the ends of calls in flight.

use std::ops::Range;
use std::task::{Context, Poll, Waker};

use super::flight::{Brought, Call, Part, Pending};
use super::life::{Life, Wrong};
use super::model::SECTOR;
use crate::testing::STEPS_MAX;

impl Life<'_> {
    /// Whether no call in flight touches a range, in whole sectors. Reads may overlap reads.
    pub fn is_free(&self, id: u32, range: &Range<usize>, writes: bool) -> bool {
        let sectors = |range: &Range<usize>| range.start / SECTOR..range.end.div_ceil(SECTOR);
        let wanted = sectors(range);
        let parts = self.calls.iter().filter(|call| call.id == id).flat_map(|call| &call.parts);
        let meets = |part: &Part| {
            let has = sectors(&part.range());
            has.start < wanted.end && wanted.start < has.end && (writes || matches!(part, Part::Write(_)))
        };
        !range.is_empty() && !parts.into_iter().any(meets)
    }

    /// Polls a call once. If it has ended, takes its result.
    pub fn poll(&mut self, index: usize) -> Result<Option<String>, Wrong> {
        let mut context = Context::from_waker(Waker::noop());
        let brought = match &mut self.calls[index].pending {
            Pending::Future(future) => match future.as_mut().poll(&mut context) {
                Poll::Ready(brought) => brought,
                Poll::Pending => return Ok(None),
            },
            Pending::Callback(outcome) => {
                match outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
                    Some(brought) => brought,
                    None => return Ok(None),
                }
            }
            Pending::Abandoned => return Ok(None),
        };
        let call = self.calls.swap_remove(index);
        let said = self.ended(&call, brought)?;
        self.has_let_go(call.id);
        Ok(Some(said))
    }

    /// Waits for a call.
    pub fn wait(&mut self, index: usize) -> Result<String, Wrong> {
        for _ in 0..STEPS_MAX {
            if let Some(said) = self.poll(index)? {
                return Ok(said);
            }
            self.array().step();
        }
        Err(format!("a call has not ended after {STEPS_MAX} steps"))
    }

    /// Waits for all calls, or for those on one file. Dropped calls get the steps that they need at most.
    pub fn finish_calls(&mut self, id: Option<u32>) -> Result<(), Wrong> {
        while let Some(index) = self
            .calls
            .iter()
            .position(|call| id.is_none_or(|id| call.id == id) && !matches!(call.pending, Pending::Abandoned))
        {
            self.wait(index)?;
        }
        let dropped = self.calls.iter().filter(|call| id.is_none_or(|id| call.id == id)).count();
        // A dropped write may wait for a thread of a pool, and one step begins it. The next call waits for begun
        // writes.
        (0..16 * dropped).for_each(|_| self.array().step());
        Ok(())
    }

    fn ended(&mut self, call: &Call, brought: Brought) -> Result<String, Wrong> {
        match brought {
            Ok(brought) => {
                let mut reads = brought.iter();
                for part in &call.parts {
                    match part {
                        Part::Write(began) => self.contents(call.id).end(began),
                        Part::Read(range) => {
                            let bytes = reads.next().ok_or("a call brought too few reads")?;
                            if bytes.len() != range.len() {
                                return Err(format!("a read of {range:?} brought {} bytes", bytes.len()));
                            }
                            let right = self.contents(call.id).read(range.start, bytes);
                            right.map_err(|why| format!("a call in flight, contents {}: {why}", call.id))?;
                        }
                    }
                }
                Ok("ended".to_owned())
            }
            Err(error) => {
                self.excuse(&error)?;
                let len = self.contents(call.id).len();
                for part in &call.parts {
                    if let Part::Write(began) = part {
                        self.contents(call.id).fail(began, len);
                    }
                }
                Ok(format!("failed: {error}"))
            }
        }
    }
}
