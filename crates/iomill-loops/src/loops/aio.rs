//! libaio: batched submission, completions read from the kernel's ring in user space.

use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};

use super::reader::{BATCH, Failed, Reader};
use super::slots::Slots;
use crate::aio_context::{Context, ControlBlock, Event};

/// See the head of this file.
pub(super) struct Aio<'a> {
    /// Dropped first: the drop waits for reads in flight, which use `slots`.
    context: Context,
    /// One block per slot. The kernel reads it during `io_submit` only.
    blocks: Box<[ControlBlock]>,
    pub(super) slots: Slots<'a>,
    descriptors: Vec<i32>,
    events: Box<[Event]>,
    /// The blocks of the reads that are submitted next.
    pending: Vec<*mut ControlBlock>,
}

impl<'a> Aio<'a> {
    /// A thread's context. A container may forbid it.
    pub(super) fn new(slots: Slots<'a>) -> std::result::Result<Aio<'a>, Failed> {
        let capacity = slots.capacity();
        let context = Context::new(capacity).map_err(|e| {
            let why = if e.raw_os_error() == Some(libc::EAGAIN) { "; `fs.aio-max-nr` is reached" } else { "" };
            Failed::Refused(format!("libaio is not available here for {capacity} reads: {e}{why}"))
        })?;
        Ok(Aio {
            context,
            blocks: vec![ControlBlock::default(); capacity].into(),
            descriptors: slots.descriptors(),
            events: vec![Event::default(); capacity].into(),
            pending: Vec::with_capacity(BATCH),
            slots,
        })
    }

    /// Prepares up to a batch of reads.
    #[inline(always)]
    fn fill_batch(&mut self) {
        while self.pending.len() < BATCH {
            let Some(read) = self.slots.take() else { break };
            let block = &mut self.blocks[read.slot as usize];
            block.data = read.slot.into();
            block.descriptor = self.descriptors[read.part as usize] as u32;
            block.buffer = read.buffer as u64;
            block.len = self.slots.block_bytes().into();
            block.offset = read.offset as i64;
            self.pending.push(block);
        }
    }

    fn submit(&mut self) -> Result<()> {
        let mut submitted = 0;
        while let left @ [first, ..] = &self.pending[submitted..] {
            // SAFETY: the pointers lead to blocks in `self.blocks`, which do not move. Buffers and files in them live
            // in `slots`, which is dropped after the context.
            match unsafe { self.context.submit(left) } {
                Ok(taken) => submitted += taken,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
                Err(e) => {
                    // SAFETY: as above.
                    let slot = unsafe { (**first).data } as u32;
                    return Err(self.slots.failed(slot, -i64::from(e.raw_os_error().unwrap_or(libc::EIO))));
                }
            }
        }
        self.pending.clear();
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
                Err(e) => return Err(Error::Tool { what: "waiting for libaio".into(), why: e.to_string() }),
            };
        }
        Ok(taken)
    }
}

impl Reader for Aio<'_> {
    fn read(&mut self, stop: &AtomicBool) -> Result<u64> {
        let batch = BATCH.min(self.slots.capacity());
        let mut ending = false;
        loop {
            if !ending {
                self.fill_batch();
                self.submit()?;
                ending = stop.load(Ordering::Relaxed);
            }
            let in_flight = self.slots.in_flight();
            if in_flight == 0 {
                return Ok(self.slots.reads);
            }
            let want = if ending { in_flight } else { batch.saturating_sub(self.slots.free()).max(1) };
            for index in 0..self.reap(want)? {
                let event = self.events[index];
                self.slots.give_back(event.data as u32, event.result)?;
            }
        }
    }
}
