//! libaio by hand: batched submission, completions read from the kernel's ring in user space.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use iomill_loops::aio_context::{Context, ControlBlock, Event, READ, WRITE};

use super::uring::BATCH;
use crate::contender::{AIO_BY_HAND, Cache, Contender, Sample, Slice};
use crate::slots::Slots;
use crate::target::Target;
use crate::task::Task;
use crate::threads::{self, Count};
use crate::workload::{Places, Workload};

/// See the head of this file.
#[derive(Debug)]
pub struct Aio {
    target: Target,
    workload: Workload,
}

impl Aio {
    /// Uses the parts of `target`.
    pub fn new(target: Target) -> Aio {
        Aio { target, workload: Workload::RANDOM_READ }
    }
}

impl Contender for Aio {
    fn name(&self) -> &'static str {
        AIO_BY_HAND
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        match Context::new(1) {
            Ok(_) => self.target.why_not_direct(),
            Err(error) => Ok(Some(format!("libaio is not available here: {error}"))),
        }
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.target.drop_cached()?;
        let this = &*self;
        let lens = this.target.part_lens();
        threads::run(
            slice,
            |thread| {
                let places = Places::new(&this.workload, &lens, thread, slice.threads)?;
                Worker::new(&this.target, &this.workload, places)
            },
            |worker, stop| if slice.verify { worker.work::<true>(stop) } else { worker.work::<false>(stop) },
        )
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "{} in flight per drive and thread, batches of {BATCH}, completions reaped in user space",
            self.workload.depth
        )]
    }
}

struct Worker<'a> {
    /// Dropped first: the drop waits for operations in flight, which use `blocks` and `slots`.
    context: Context,
    /// One block per slot. The kernel reads it during `io_submit` only.
    blocks: Box<[ControlBlock]>,
    slots: Slots,
    _files: Vec<File>,
    descriptors: Vec<u32>,
    events: Box<[Event]>,
    places: Places,
    target: &'a Target,
    batch: usize,
    block_bytes: u32,
}

impl<'a> Worker<'a> {
    fn new(target: &'a Target, workload: &Workload, places: Places) -> Result<Worker<'a>> {
        let files = target.open(true, workload.writes())?;
        let slots = Slots::new(workload, files.len())?;
        let context = Context::new(slots.capacity()).map_err(|e| Error::Tool {
            what: format!("a libaio context for {} operations", slots.capacity()),
            why: format!("{e}; `fs.aio-max-nr` may be reached"),
        })?;
        Ok(Worker {
            context,
            blocks: vec![ControlBlock::default(); slots.capacity()].into(),
            descriptors: files.iter().map(|file| file.as_raw_fd() as u32).collect(),
            events: vec![Event::default(); slots.capacity()].into(),
            batch: BATCH.min(slots.capacity()),
            slots,
            _files: files,
            places,
            target,
            block_bytes: workload.block_bytes,
        })
    }

    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let mut count = Count::new()?;
        let mut ending = false;
        let mut pending: Vec<*mut ControlBlock> = Vec::with_capacity(self.batch);
        loop {
            if !ending {
                ending = !self.fill_batch(&mut pending);
                self.submit(&mut pending)?;
                // After the batch, as in `goes_on`.
                ending |= stop.load(Ordering::Relaxed);
            }
            let in_flight = self.slots.in_flight();
            if in_flight == 0 && ending {
                return Ok(count);
            }
            let want = if ending { in_flight } else { self.batch.saturating_sub(self.slots.free()).max(1) };
            let taken = self.reap(want)?;
            for index in 0..taken {
                let event = self.events[index];
                self.slots.give_back::<VERIFY>(event.data as u32, event.result, &mut count, self.target)?;
            }
        }
    }

    /// Prepares up to a batch of operations. Returns `false` when there are no more places.
    #[inline(always)]
    fn fill_batch(&mut self, pending: &mut Vec<*mut ControlBlock>) -> bool {
        for _ in 0..self.batch.min(self.slots.free()) {
            let Some(place) = self.places.draw() else { return false };
            let Some((slot, buffer)) = self.slots.take(place, self.target) else { return true };
            let block = &mut self.blocks[slot as usize];
            block.data = slot.into();
            block.opcode = if place.write { WRITE } else { READ };
            block.descriptor = self.descriptors[place.part as usize];
            block.buffer = buffer as u64;
            block.len = self.block_bytes.into();
            block.offset = place.offset as i64;
            pending.push(block);
        }
        true
    }

    fn submit(&mut self, pending: &mut Vec<*mut ControlBlock>) -> Result<()> {
        let mut submitted = 0;
        while submitted < pending.len() {
            // SAFETY: the blocks are those of `self.blocks`, which do not move. The memory and files that they name are
            // dropped after the context.
            match unsafe { self.context.submit(&pending[submitted..]) } {
                Ok(taken) => submitted += taken,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
                Err(source) => {
                    // SAFETY: the pointer is from `self.blocks`, which has not moved since.
                    let block = unsafe { *pending[submitted] };
                    let part = self.descriptors.iter().position(|&d| d == block.descriptor).unwrap_or(0);
                    let path = self.target.path(part).to_owned();
                    return Err(Error::io_at("submit", path, block.offset as u64, source));
                }
            }
        }
        pending.clear();
        Ok(())
    }

    /// Takes at least `want` events.
    #[inline(always)]
    fn reap(&mut self, want: usize) -> Result<usize> {
        let mut taken = self.context.take(&mut self.events);
        while taken < want {
            taken += match self.context.wait(want - taken, &mut self.events[taken..]) {
                Ok(more) => more,
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => 0,
                Err(e) => {
                    return Err(Error::Tool { what: "waiting for libaio".into(), why: e.to_string() });
                }
            };
        }
        Ok(taken)
    }
}
