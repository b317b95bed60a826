//! libaio by hand: raw system calls, batched submission, completions read from the kernel's ring in user space.
//!
//! Non-goals: libaio the library; buffered files, because `io_submit` blocks on them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use iomill::{Error, Result};

use super::BATCH;
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

/// `struct iocb` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ControlBlock {
    data: u64,
    #[cfg(target_endian = "little")]
    key: u32,
    rw_flags: u32,
    #[cfg(target_endian = "big")]
    key: u32,
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

const OPCODE_READ: u16 = 0;
const OPCODE_WRITE: u16 = 1;

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

    fn submit(&self, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        // SAFETY: the pointers lead to control blocks that live as long as their operations (see `Worker::blocks`).
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.id, blocks.len() as libc::c_long, blocks.as_ptr()) })
    }

    /// Waits for `min` events, and takes as many as fit into `events`.
    fn wait(&self, min: usize, events: &mut [Event]) -> io::Result<usize> {
        let no_limit = ptr::null_mut::<libc::timespec>();
        let (min, max) = (min.min(events.len()) as libc::c_long, events.len() as libc::c_long);
        // SAFETY: the kernel writes at most `max` events to the slice.
        check(unsafe { libc::syscall(libc::SYS_io_getevents, self.id, min, max, events.as_mut_ptr(), no_limit) })
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
            (*ring).head.store(head, Ordering::Release);
            taken
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own. The call waits for operations in flight. It fails only for a context that does
        // not exist.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
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
            block.opcode = if place.write { OPCODE_WRITE } else { OPCODE_READ };
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
            match self.context.submit(&pending[submitted..]) {
                Ok(taken) => submitted += taken,
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
                Err(source) => {
                    // SAFETY: the pointer is from `self.blocks`, which has not moved since.
                    let block = unsafe { *pending[submitted] };
                    let part = self.descriptors.iter().position(|&d| d == block.descriptor).unwrap_or(0);
                    let path = self.target.path(part).to_owned();
                    return Err(Error::Io { action: "submit", path, offset: Some(block.offset as u64), source });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<ControlBlock>(), size_of::<Event>(), size_of::<RingHead>()), (64, 32, 32));
    }

    #[test]
    fn this_kernels_ring_is_known() {
        assert!(Context::new(8).unwrap().mapped, "completions can be read without a system call");
    }
}
