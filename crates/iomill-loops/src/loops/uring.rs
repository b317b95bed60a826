//! io_uring: one ring per thread over all files. Files, buffers and the ring itself are registered. One call submits a
//! batch and waits for completions.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{EnterFlags, IoUring, SubmissionQueue, Submitter, opcode, types};
use iomill::{Error, Result};

use super::reader::{BATCH, Failed, Reader};
use super::slots::Slots;

/// See the head of this file.
pub(super) struct Uring<'a> {
    /// Dropped (closed) before `slots`: the files and the memory there are registered with it.
    ring: IoUring,
    pub(super) slots: Slots<'a>,
    /// Whether the slots' memory is registered. It counts against a limit that all rings of a user share.
    registered: bool,
}

impl<'a> Uring<'a> {
    /// A thread's ring. Containers often forbid it.
    pub(super) fn new(mut slots: Slots<'a>) -> std::result::Result<Uring<'a>, Failed> {
        let refused = |what, e: io::Error| Failed::Refused(failed(what, e).to_string());
        let ring = make_ring(slots.capacity() as u32).map_err(|e| refused("an io_uring", e))?;
        ring.submitter().register_files(&slots.descriptors()).map_err(|e| refused("registered files", e))?;
        let buffers = [slots.memory()];
        // SAFETY: the memory lives in `slots`, which is dropped after the ring.
        let registered = match unsafe { ring.submitter().register_buffers(&buffers) } {
            Ok(()) => true,
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => false,
            Err(e) => return Err(refused("registered buffers", e)),
        };
        Ok(Uring { ring, slots, registered })
    }

    fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        let slots = &mut self.slots;
        let batch = BATCH.min(slots.capacity());
        let (mut submitter, mut queue, mut completed) = self.ring.split();
        // Kernels before 5.18 do not have this. Each call then looks up its descriptor.
        let ring_is_registered = submitter.register_ring_fd().is_ok();
        let (mut unsubmitted, mut ending) = (0, false);
        let outcome = loop {
            if !ending {
                unsubmitted += push_batch(slots, &mut queue, batch, self.registered);
                ending = stop.load(Ordering::Relaxed);
            }
            let in_flight = slots.in_flight();
            if in_flight == 0 {
                break Ok(());
            }
            // Waits until there is room for a batch, so that the next one is full.
            let want = if ending { in_flight } else { batch.saturating_sub(slots.free()).max(1) };
            match enter(&submitter, unsubmitted, want) {
                Ok(submitted) => unsubmitted -= submitted,
                Err(error) => break Err(error),
            }
            completed.sync();
            let ended =
                completed.by_ref().try_for_each(|end| slots.give_back(end.user_data() as u32, end.result().into()));
            if ended.is_err() {
                break ended;
            }
        };
        if ring_is_registered {
            // Without this the ring would live, and keep the files open, until the thread ends.
            submitter.unregister_ring_fd().map_err(|e| failed("unregistering an io_uring", e))?;
        }
        outcome
    }
}

impl Reader for Uring<'_> {
    fn read(&mut self, stop: &AtomicBool) -> Result<u64> {
        let outcome = self.serve(stop);
        // After an error reads may be in flight, and the kernel uses their buffers.
        let mut left = self.slots.in_flight();
        while left > 0 && self.ring.submit_and_wait(1).is_ok() {
            left = left.saturating_sub(self.ring.completion().count());
        }
        outcome.map(|()| self.slots.reads)
    }
}

/// Queues up to a batch of reads, and returns their number.
#[inline(always)]
fn push_batch(slots: &mut Slots<'_>, queue: &mut SubmissionQueue<'_>, batch: usize, registered: bool) -> usize {
    let mut pushed = 0;
    // The kernel has taken entries since. Without this the queue seems as full as before.
    queue.sync();
    while pushed < batch && !queue.is_full() {
        let Some(read) = slots.take() else { break };
        let (file, len) = (types::Fixed(read.part), slots.block_bytes());
        let entry = match registered {
            true => opcode::ReadFixed::new(file, read.buffer, len, 0).offset(read.offset).build(),
            false => opcode::Read::new(file, read.buffer, len).offset(read.offset).build(),
        };
        // SAFETY: the buffer belongs to a slot that was not in flight, and nothing touches it until its completion.
        // File and buffer live as long as the ring. The push cannot fail, because the queue was not full.
        let _ = unsafe { queue.push(&entry.user_data(read.slot.into())) };
        pushed += 1;
    }
    queue.sync();
    pushed
}

/// Submits the queued reads and waits for `want` completions, in one call. Returns the number of submitted reads.
#[inline(always)]
fn enter(submitter: &Submitter<'_>, unsubmitted: usize, want: usize) -> Result<usize> {
    loop {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: the call passes no pointer that the kernel would follow.
        match unsafe { submitter.enter::<libc::sigset_t>(unsubmitted as u32, want as u32, flags, None) } {
            Ok(submitted) => return Ok(submitted),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return Err(failed("submitting to an io_uring", e)),
        }
    }
}

/// A ring that only its thread uses, and that processes completions when the thread asks for them. On older kernels a
/// plain ring.
fn make_ring(entries: u32) -> io::Result<IoUring> {
    let entries = entries.next_power_of_two();
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_no_sqarray().build(entries);
    match modern {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries),
        other => other,
    }
}

fn failed(what: &str, error: io::Error) -> Error {
    let why = format!("{error}; a locked-memory limit (`ulimit -l`) or a seccomp filter may be the cause");
    Error::Tool { what: what.into(), why }
}
