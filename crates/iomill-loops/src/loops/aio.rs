//! libaio: raw system calls, batched submission, completions read from the kernel's ring in user space.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use iomill::{Error, Result};

use super::slots::Slots;
use super::{BATCH, Failed, Reader};

/// `struct iocb` of the kernel. The order of its key and flags depends on the machine, but both stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ControlBlock {
    data: u64,
    key_and_flags: [u32; 2],
    /// 0 is a read.
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// Head of the completion ring, which the kernel maps at the context's address.
#[repr(C)]
struct RingHead {
    id: u32,
    entries: u32,
    /// Next event to take. The thread that takes it moves this.
    head: AtomicU32,
    /// End of the available events. The kernel moves this.
    tail: AtomicU32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    head_bytes: u32,
}

/// Shows that the mapped ring has the layout that this file knows.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// A kernel context.
#[derive(Debug)]
struct Context {
    /// From `io_setup`. It is also the address of the ring, and valid until `io_destroy` in `drop`.
    id: libc::c_ulong,
    mapped: bool,
}

impl Context {
    fn new(events: usize) -> io::Result<Context> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word to `id`.
        check(unsafe { libc::syscall(libc::SYS_io_setup, events as libc::c_uint, &raw mut id) })?;
        let ring = id as *const RingHead;
        // SAFETY: the context's id is the address of its ring, mapped readable until `io_destroy`.
        let mapped = unsafe {
            (*ring).magic == RING_MAGIC
                && (*ring).incompatible_features == 0
                && (*ring).head_bytes as usize == size_of::<RingHead>()
        };
        Ok(Context { id, mapped })
    }

    /// Takes available events without a system call.
    #[inline(always)]
    fn take(&self, events: &mut [Event]) -> usize {
        if !self.mapped {
            return 0;
        }
        let ring = self.id as *const RingHead;
        // SAFETY: the ring is mapped until `io_destroy`. Only this thread moves `head`, and the kernel moves `tail`. Events between
        // the two are complete once `tail` has been read with Acquire. `head` stays below `entries`.
        unsafe {
            let (mut head, tail) = ((*ring).head.load(Ordering::Relaxed), (*ring).tail.load(Ordering::Acquire));
            let first = ring.add(1).cast::<Event>();
            let mut taken = 0;
            while head != tail && taken < events.len() {
                events[taken] = first.add(head as usize).read();
                taken += 1;
                head = if head + 1 == (*ring).entries { 0 } else { head + 1 };
            }
            // Release: pairs with the kernel's read of `head`, which may reuse what lies before it.
            (*ring).head.store(head, Ordering::Release);
            taken
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own. The call waits for reads in flight. It fails only for a context that does not
        // exist.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

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
            let (count, blocks) = (left.len() as libc::c_long, left.as_ptr());
            // SAFETY: the pointers lead to blocks in `self.blocks`, which do not move. Buffers and files in them live in `slots`,
            // which is dropped after the context.
            match check(unsafe { libc::syscall(libc::SYS_io_submit, self.context.id, count, blocks) }) {
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
            let (min, free) = ((want - taken) as libc::c_long, &mut self.events[taken..]);
            let (max, no_limit) = (free.len() as libc::c_long, ptr::null_mut::<libc::timespec>());
            // SAFETY: the kernel writes at most `max` events to the slice.
            let more = unsafe {
                libc::syscall(libc::SYS_io_getevents, self.context.id, min, max, free.as_mut_ptr(), no_limit)
            };
            taken += match check(more) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<ControlBlock>(), size_of::<Event>(), size_of::<RingHead>()), (64, 32, 32));
    }

    #[test]
    fn this_kernels_ring_is_known() {
        match Context::new(8) {
            Ok(context) => assert!(context.mapped, "completions can be read without a system call"),
            Err(error) => assert!(error.raw_os_error() != Some(libc::EINVAL), "{error}"),
        }
    }
}
