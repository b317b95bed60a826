//! The state of the asynchronous rivals per operation in flight, allocated once.
//!
//! Goals: the slot that was freed last is used first, so that few buffers stay hot in the CPU's caches. One operation
//! in 64 is timed, so that the clock adds little to the CPU time.

use std::time::{Duration, Instant};

use iomill::{Error, Result};

use crate::memory::Region;
use crate::target::Target;
use crate::threads::Count;
use crate::workload::{Place, Workload};

/// One operation in this many is timed.
pub const TIMED_EVERY: u32 = 64;

/// Buffers and state of the operations of one thread.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The buffer of slot s has `block_bytes` bytes from `s * block_bytes`. The kernel writes to the buffers of slots
    /// in flight.
    memory: Region,
    block_bytes: usize,
    /// Slots that are not in flight. The last one is taken next.
    free: Vec<u32>,
    /// The place that each slot in flight reads or writes.
    places: Vec<Place>,
    /// The time of submission of a timed operation. Most operations are not timed.
    started: Vec<Option<Instant>>,
    until_timed: u32,
}

impl Slots {
    pub(crate) fn new(workload: &Workload, drives: usize) -> Result<Slots> {
        let capacity = workload.depth as usize * drives;
        // Neither interface makes a queue with more than 32 Ki entries.
        if capacity > 16 << 10 {
            let what = format!("{} operations in flight on each of {drives} drives", workload.depth);
            return Err(Error::invalid(what, "give a depth of at most 16384 over all drives together"));
        }
        let block_bytes = workload.block_bytes as usize;
        let mut memory = Region::anonymous(capacity * block_bytes)
            .map_err(|e| Error::Tool { what: "memory for the I/O buffers".into(), why: e.to_string() })?;
        if workload.writes() {
            crate::pattern::fill_to_write(memory.bytes_mut());
        }
        Ok(Slots {
            memory,
            block_bytes,
            free: (0..capacity as u32).rev().collect(),
            places: vec![Place::default(); capacity],
            started: vec![None; capacity],
            until_timed: TIMED_EVERY,
        })
    }

    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Takes a free slot for the operation that is submitted next, and prepares its buffer.
    #[inline(always)]
    pub(crate) fn take(&mut self, place: Place, target: &Target) -> Option<(u32, *mut u8)> {
        let slot = self.free.pop()?;
        let index = slot as usize;
        self.places[index] = place;
        self.until_timed -= 1;
        if self.until_timed == 0 {
            self.until_timed = TIMED_EVERY;
            self.started[index] = Some(Instant::now());
        }
        let start = index * self.block_bytes;
        if place.write {
            let buffer = &mut self.memory.bytes_mut()[start..start + self.block_bytes];
            target.put_stamps(place.part as usize, place.offset, buffer);
        }
        // The address is inside the region: slot numbers are below its capacity.
        Some((slot, self.memory.as_ptr().wrapping_add(start)))
    }

    /// Frees a slot after its operation has ended with `result` (bytes or a negated errno), and counts the operation.
    #[inline(always)]
    pub(crate) fn give_back<const VERIFY: bool>(
        &mut self,
        slot: u32,
        result: i64,
        count: &mut Count,
        target: &Target,
    ) -> Result<()> {
        let index = slot as usize;
        if let Some(started) = self.started[index].take() {
            count.record(started.elapsed());
        }
        self.free.push(slot);
        if result != self.block_bytes as i64 {
            return Err(failed(self.places[index], result, self.block_bytes, target));
        }
        if VERIFY && !self.places[index].write {
            let start = index * self.block_bytes;
            let place = self.places[index];
            target.verify(place.part as usize, place.offset, &self.memory.bytes()[start..start + self.block_bytes])?;
        }
        count.ops += 1;
        count.bytes += self.block_bytes as u64;
        Ok(())
    }
}

#[cold]
fn failed(place: Place, result: i64, block_bytes: usize, target: &Target) -> Error {
    let path = target.path(place.part as usize).to_owned();
    if result >= 0 {
        let missing = block_bytes as u64 - result as u64;
        return Error::part_cut(path, place.offset + result as u64, missing);
    }
    let action = if place.write { "write" } else { "read" };
    let source = std::io::Error::from_raw_os_error(-result as i32);
    Error::io_at(action, path, place.offset, source)
}

/// Times one operation in [`TIMED_EVERY`], for operations that end within their call.
#[derive(Debug)]
pub(crate) struct Timer {
    until_timed: u32,
}

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer { until_timed: TIMED_EVERY }
    }

    #[inline(always)]
    pub(crate) fn time(&mut self, count: &mut Count, operation: impl FnOnce() -> Result<()>) -> Result<()> {
        self.until_timed -= 1;
        if self.until_timed > 0 {
            return operation();
        }
        self.until_timed = TIMED_EVERY;
        let start = Instant::now();
        operation()?;
        let latency: Duration = start.elapsed();
        count.record(latency);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn setting() -> (tempfile::TempDir, Target) {
        let dir = tempfile::tempdir().unwrap();
        let target =
            Target::write(&[dir.path().to_owned()], "f", 1 << 20, 9, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
        (dir, target)
    }

    #[test]
    fn slots_are_bounded_reused_hot_and_checked() {
        let (_dir, target) = setting();
        let workload = Workload { depth: 4, ..Workload::RANDOM_READ };
        let mut slots = Slots::new(&workload, 1).unwrap();
        let mut count = Count::new().unwrap();
        let place = Place { part: 0, write: false, offset: 8192 };
        let taken: Vec<u32> = (0..4).map(|_| slots.take(place, &target).unwrap().0).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert!(slots.take(place, &target).is_none() && slots.free() == 0 && slots.in_flight() == 4);
        slots.give_back::<false>(2, 4096, &mut count, &target).unwrap();
        assert_eq!(slots.take(place, &target).unwrap().0, 2, "the hottest buffer comes first");
        assert_eq!((count.ops, count.bytes), (1, 4096));
        let cut = slots.give_back::<false>(2, 1000, &mut count, &target).unwrap_err();
        assert!(matches!(cut, Error::PartCut { offset: 9192, missing: 3096, .. }), "{cut}");
        let eio = slots.give_back::<false>(3, -i64::from(libc::EIO), &mut count, &target).unwrap_err();
        assert_eq!(eio.errno(), Some(libc::EIO));
        assert!(slots.give_back::<true>(1, 4096, &mut count, &target).is_err(), "nothing was read into it");
        assert_eq!(count.ops, 1, "what failed is not counted");
    }

    #[test]
    fn one_in_64_is_timed_and_writes_carry_stamps() {
        let (_dir, target) = setting();
        let mut slots = Slots::new(&Workload { read_percent: 0, ..Workload::RANDOM_READ }, 1).unwrap();
        let mut count = Count::new().unwrap();
        for page in 0..256 {
            let place = Place { part: 0, write: true, offset: page * 4096 };
            let (slot, _) = slots.take(place, &target).unwrap();
            target.verify(0, page * 4096, &slots.memory().bytes()[..4096]).unwrap();
            slots.give_back::<true>(slot, 4096, &mut count, &target).unwrap();
        }
        assert_eq!(count.latency_ns.len(), 256 / u64::from(TIMED_EVERY));
        assert!(slots.capacity() == 32);
    }

    #[test]
    fn too_many_in_flight_is_an_error() {
        assert!(Slots::new(&Workload { depth: 1024, ..Workload::RANDOM_READ }, 17).is_err());
    }
}
