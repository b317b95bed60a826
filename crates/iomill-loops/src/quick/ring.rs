//! io_uring by hand: the loop that an expert writes for these reads and nothing else.
//!
//! One ring over all parts. Files, buffers and the ring itself are registered. One system call submits a batch and
//! waits for completions. The slot that was freed last is used first, so that few buffers stay hot. Non-goals: merging,
//! retries, several drives in fair shares.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{CompletionQueue, EnterFlags, IoUring, SubmissionQueue, Submitter, opcode, types};
use iomill::{Error, Result};

use super::calls::failed;
use super::memory::Memory;
use super::pages::{self, Deck, PAGE_BYTES};
use super::{Count, Limits, Reads};

/// Reads per system call. From 16 to 128 the CPU time of a read differs by less than 4% on drives that answer at once.
const BATCH: usize = 32;

/// A ring with its buffers.
pub struct Ring {
    /// Dropped (closed) before `slots` and `_parts`: their memory and files are registered with it.
    ring: IoUring,
    slots: Slots,
    _parts: Vec<File>,
}

/// The reads in flight.
struct Slots {
    /// The buffer of slot s is page s.
    memory: Memory,
    /// Slots that are not in flight.
    free: Vec<u32>,
    /// The page that each slot reads.
    pages: Vec<u64>,
    /// Whether `memory` is registered.
    is_registered: bool,
}

impl Ring {
    /// A ring with up to `depth` reads in flight over all parts, which are in the layout's order and open for direct
    /// I/O. `depth` is not 0. With a depth of 1 each read is timed.
    pub fn new(parts: Vec<File>, depth: usize) -> Result<Ring> {
        let ring = make(depth as u32).map_err(refused("io_uring"))?;
        let descriptors: Vec<i32> = parts.iter().map(AsRawFd::as_raw_fd).collect();
        ring.submitter().register_files(&descriptors).map_err(refused("registering files with io_uring"))?;
        let memory = Memory::anonymous(depth * PAGE_BYTES).map_err(|e| refused("memory for io_uring")(e.into()))?;
        let buffers = [libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: depth * PAGE_BYTES }];
        // SAFETY: the memory lives in `slots`, which is dropped after the ring.
        let is_registered = match unsafe { ring.submitter().register_buffers(&buffers) } {
            Ok(()) => true,
            // The limit of locked memory is too small. The reads work as well, and cost a little more.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => false,
            Err(error) => return Err(refused("registering buffers with io_uring")(error)),
        };
        let (free, pages) = ((0..depth as u32).rev().collect(), vec![0; depth]);
        Ok(Ring { ring, slots: Slots { memory, free, pages, is_registered }, _parts: parts })
    }

    /// Whether its buffers are registered. If not, the limit of locked memory (`ulimit -l`) is too small.
    pub fn is_registered(&self) -> bool {
        self.slots.is_registered
    }
}

impl Reads for Ring {
    fn run(&mut self, deck: &mut Deck, limits: &Limits<'_>, count: &mut Count) -> Result<()> {
        let (mut submitter, mut queue, mut completed) = self.ring.split();
        // Linux before 5.18 does not have this. Each call then looks up its descriptor.
        let has_index = submitter.register_ring_fd().is_ok();
        let outcome = self.slots.read((deck, limits, count), &submitter, &mut queue, &mut completed);
        if has_index {
            submitter.unregister_ring_fd().map_err(refused("unregistering an io_uring"))?;
        }
        drop((queue, completed));
        // After an error the kernel still uses the buffers of the reads in flight.
        let mut left = if outcome.is_err() { self.slots.in_flight() } else { 0 };
        while left > 0 && self.ring.submit_and_wait(1).is_ok() {
            left = left.saturating_sub(self.ring.completion().count());
        }
        outcome
    }
}

impl Slots {
    fn in_flight(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Keeps as many reads in flight as there are slots.
    fn read(
        &mut self,
        (deck, limits, count): (&mut Deck, &Limits<'_>, &mut Count),
        submitter: &Submitter<'_>,
        queue: &mut SubmissionQueue<'_>,
        completed: &mut CompletionQueue<'_>,
    ) -> Result<()> {
        let mut began = Instant::now();
        let (end, batch, is_single) = (began + limits.duration, BATCH.min(self.pages.len()), self.pages.len() == 1);
        let (mut left, mut unsubmitted) = (limits.pages_max, 0);
        loop {
            // The kernel has taken entries since. Without this the queue seems as full as before.
            queue.sync();
            let mut pushed = 0;
            while pushed < batch && left > 0 && !self.free.is_empty() {
                self.push(deck.draw(), queue);
                (pushed, left) = (pushed + 1, left - 1);
            }
            queue.sync();
            unsubmitted += pushed;
            let in_flight = self.in_flight();
            if in_flight == 0 {
                return Ok(());
            }
            // Waits until there is room for a batch, so that the next one is full.
            let want = if left == 0 { in_flight } else { batch.saturating_sub(self.free.len()).max(1) };
            unsubmitted -= enter(submitter, unsubmitted, want)?;
            completed.sync();
            let before = count.pages;
            for entry in completed.by_ref() {
                let (page, first) = self.take(entry.user_data() as u32, entry.result())?;
                pages::check(page, first)?;
                count.pages += 1;
            }
            let now = Instant::now();
            // A signal may end a wait before the read.
            if is_single && count.pages > before {
                count.add(now - began);
                began = now;
            }
            if !limits.goes_on(end, now) {
                left = 0;
            }
        }
    }

    /// Queues the read of a page. A slot is free, so the queue, which has as many entries, is not full.
    fn push(&mut self, page: u64, queue: &mut SubmissionQueue<'_>) {
        let Some(slot) = self.free.pop() else { return };
        self.pages[slot as usize] = page;
        let (part, offset) = pages::place(page);
        let (file, buffer, len) = (types::Fixed(part as u32), self.buffer(slot), PAGE_BYTES as u32);
        let entry = match self.is_registered {
            true => opcode::ReadFixed::new(file, buffer, len, 0).offset(offset).build(),
            false => opcode::Read::new(file, buffer, len).offset(offset).build(),
        };
        // SAFETY: the buffer is that of a slot that was not in flight, and nothing touches it until its completion.
        // Files and buffers live as long as the ring. A push to a queue with room cannot fail.
        let _ = unsafe { queue.push(&entry.user_data(slot.into())) };
    }

    /// Frees the slot of a read that has ended. Returns its page, and the first bytes that it brought.
    fn take(&mut self, slot: u32, result: i32) -> Result<(u64, [u8; 8])> {
        let page = self.pages[slot as usize];
        self.free.push(slot);
        if result != PAGE_BYTES as i32 {
            let (part, offset) = pages::place(page);
            let source = match result {
                0.. => io::Error::from(io::ErrorKind::UnexpectedEof),
                errno => io::Error::from_raw_os_error(-errno),
            };
            return Err(failed(part, offset, source));
        }
        // SAFETY: the slot's page lies in the memory, is aligned to pages, and was written by a read that has ended.
        Ok((page, unsafe { self.buffer(slot).cast::<[u8; 8]>().read() }))
    }

    /// The slot's page. Slots are below the number of pages of the memory.
    fn buffer(&self, slot: u32) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(slot as usize * PAGE_BYTES)
    }
}

/// Submits the queued reads and waits for `want` completions, in one call. Returns how many it has submitted.
fn enter(submitter: &Submitter<'_>, unsubmitted: usize, want: usize) -> Result<usize> {
    loop {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: the call passes no pointer that the kernel would follow.
        match unsafe { submitter.enter::<libc::sigset_t>(unsubmitted as u32, want as u32, flags, None) } {
            Ok(submitted) => return Ok(submitted),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(refused("submitting to io_uring")(error)),
        }
    }
}

/// A ring that only its thread uses, and that processes completions when the thread asks for them. On older kernels a
/// plain ring.
fn make(entries: u32) -> io::Result<IoUring> {
    let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_no_sqarray().build(entries);
    match modern {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries),
        other => other,
    }
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Tool { what: what.into(), why: error.to_string() }
}
