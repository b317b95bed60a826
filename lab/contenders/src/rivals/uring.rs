//! io_uring by hand: the code that an expert writes for these reads, and nothing else.
//!
//! One ring per thread over all files. Files, buffers and the ring itself are registered. A second contender leaves the
//! buffers unregistered, as a program does that reads into memory of a caller. One call submits a batch and
//! waits for completions. The loop has no allocation, no clock and no lock. Non-goals: merging, retries, fairness
//! between drives.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{EnterFlags, IoUring, SubmissionQueue, Submitter, opcode, types};
use iomill::{Error, Result};

use crate::contender::{Cache, Contender, Sample, Slice, URING_BY_HAND, URING_BY_HAND_PLAIN};
use crate::slots::Slots;
use crate::target::Target;
use crate::task::Task;
use crate::threads::{self, Count};
use crate::workload::{Places, Workload};

/// Operations per system call of the asynchronous rivals, including fio. From 16 to 128 the CPU time per operation
/// differs by less than 4% on drives that answer at once. Larger batches leave a drive idle for longer.
pub(crate) const BATCH: usize = 32;

/// See the head of this file.
#[derive(Debug)]
pub struct Uring {
    target: Target,
    workload: Workload,
    batch: usize,
    /// Whether the buffers are to be registered.
    registers: bool,
    /// True if a thread could not register its buffers.
    lacks_memory: AtomicBool,
    /// The reason why a thread has no ring.
    refused: OnceLock<String>,
}

impl Uring {
    /// Uses the parts of `target`.
    pub fn new(target: Target) -> Uring {
        Uring {
            target,
            workload: Workload::RANDOM_READ,
            batch: BATCH,
            registers: true,
            lacks_memory: AtomicBool::new(false),
            refused: OnceLock::new(),
        }
    }

    /// The same without registered buffers.
    pub fn plain(target: Target) -> Uring {
        Uring { registers: false, ..Uring::new(target) }
    }

    /// Uses batches of another size.
    pub fn with_batch(self, batch: usize) -> Uring {
        Uring { batch: batch.max(1), ..self }
    }
}

/// The reason why io_uring is not available here, or `None` if it is. Containers often forbid it.
pub(super) fn why_not() -> Option<String> {
    IoUring::new(2).err().map(|error| format!("io_uring is not available here: {error}"))
}

impl Contender for Uring {
    fn name(&self) -> &'static str {
        if self.registers { URING_BY_HAND } else { URING_BY_HAND_PLAIN }
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        (self.lacks_memory, self.refused) = (AtomicBool::new(false), OnceLock::new());
        why_not().map_or_else(|| self.target.why_not_direct(), |why| Ok(Some(why)))
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.target.drop_cached()?;
        let this = &*self;
        let lens = this.target.part_lens();
        threads::run(
            slice,
            |thread| {
                let places = Places::new(&this.workload, &lens, thread, slice.threads)?;
                let worker = Worker::new(this, places)?;
                this.lacks_memory.fetch_or(this.registers && !worker.registered, Ordering::Relaxed);
                Ok(worker)
            },
            |worker, stop| if slice.verify { worker.work::<true>(stop) } else { worker.work::<false>(stop) },
        )
    }

    fn lost(&self) -> Option<String> {
        self.refused.get().cloned()
    }

    fn notes(&self) -> Vec<String> {
        let registered = match self.lacks_memory.load(Ordering::Relaxed) {
            _ if !self.registers => "files registered, but not buffers",
            false => "files and buffers registered",
            true => "files registered, but not all buffers: the limit of locked memory (`ulimit -l`) is too small",
        };
        vec![format!("{} in flight per drive and thread, batches of {}, {registered}", self.workload.depth, self.batch)]
    }
}

struct Worker<'a> {
    /// Dropped (closed) before `_files`, and before `slots`: their memory is registered with it.
    ring: IoUring,
    slots: Slots,
    _files: Vec<File>,
    places: Places,
    target: &'a Target,
    batch: usize,
    block_bytes: u32,
    /// Whether the slots' memory is registered. It counts against a limit that all rings of a user share.
    registered: bool,
}

impl<'a> Worker<'a> {
    fn new(of: &'a Uring, places: Places) -> Result<Worker<'a>> {
        let (target, workload) = (&of.target, &of.workload);
        let files = target.open(true, workload.writes())?;
        let slots = Slots::new(workload, files.len())?;
        let ring = make_ring(slots.capacity() as u32).map_err(|e| {
            let error = refused("an io_uring", e);
            // Another thread may have set it first.
            let _ = of.refused.set(error.to_string());
            error
        })?;
        let descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        ring.submitter().register_files(&descriptors).map_err(|e| refused("registered files", e))?;
        let memory = slots.memory();
        let buffers = [libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() }];
        // SAFETY: the memory lives in `slots`, which is dropped after the ring.
        let registered = match of.registers.then(|| unsafe { ring.submitter().register_buffers(&buffers) }) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(e)) if e.raw_os_error() == Some(libc::ENOMEM) => false,
            Some(Err(e)) => return Err(refused("registered buffers", e)),
        };
        let batch = of.batch.min(slots.capacity());
        Ok(Worker { ring, slots, _files: files, places, target, batch, block_bytes: workload.block_bytes, registered })
    }

    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let mut count = Count::new()?;
        let outcome = self.serve::<VERIFY>(stop, &mut count);
        if outcome.is_err() {
            self.drain();
        }
        outcome.map(|()| count)
    }

    fn serve<const VERIFY: bool>(&mut self, stop: &AtomicBool, count: &mut Count) -> Result<()> {
        let (mut submitter, mut queue, mut completed) = self.ring.split();
        // Kernels before 5.18 do not have this. Each call then looks up its descriptor.
        let ring_is_registered = submitter.register_ring_fd().is_ok();
        let mut feed = Feed {
            slots: &mut self.slots,
            places: &mut self.places,
            target: self.target,
            registered: self.registered,
            ending: false,
        };
        let (batch, block_bytes) = (self.batch, self.block_bytes);
        let mut unsubmitted = 0;
        let outcome = loop {
            unsubmitted += feed.push_batch(&mut queue, batch, block_bytes);
            // After the batch, as in `goes_on`.
            feed.ending |= stop.load(Ordering::Relaxed);
            let in_flight = feed.slots.in_flight();
            if in_flight == 0 && feed.ending {
                break Ok(());
            }
            // Waits until there is room for a batch, so that the next one is full.
            let want = if feed.ending { in_flight } else { batch.saturating_sub(feed.slots.free()).max(1) };
            match enter(&submitter, unsubmitted, want) {
                Ok(submitted) => unsubmitted -= submitted,
                Err(error) => break Err(error),
            }
            completed.sync();
            let wrong = completed.by_ref().try_for_each(|entry| {
                feed.slots.give_back::<VERIFY>(entry.user_data() as u32, entry.result().into(), count, feed.target)
            });
            if wrong.is_err() {
                break wrong;
            }
        };
        if ring_is_registered {
            // Without this the ring would live, and keep the files open, until the thread ends.
            submitter.unregister_ring_fd().map_err(|e| refused("unregistering an io_uring", e))?;
        }
        outcome
    }

    /// Waits for operations in flight after an error, because the kernel still uses their buffers.
    fn drain(&mut self) {
        let mut left = self.slots.in_flight();
        while left > 0 && self.ring.submit_and_wait(1).is_ok() {
            left = left.saturating_sub(self.ring.completion().count());
        }
    }
}

/// The source of the loop's operations.
struct Feed<'a> {
    slots: &'a mut Slots,
    places: &'a mut Places,
    target: &'a Target,
    /// As in [`Worker`].
    registered: bool,
    /// True when no more operations are wanted, or none are left.
    ending: bool,
}

impl Feed<'_> {
    /// Queues up to a batch of operations, and returns their number.
    #[inline(always)]
    fn push_batch(&mut self, queue: &mut SubmissionQueue<'_>, batch: usize, block_bytes: u32) -> usize {
        let mut pushed = 0;
        // The kernel has taken entries since. Without this the queue seems as full as before.
        queue.sync();
        while pushed < batch && !self.ending && !queue.is_full() && self.slots.free() > 0 {
            let Some(place) = self.places.draw() else {
                self.ending = true;
                break;
            };
            let Some((slot, buffer)) = self.slots.take(place, self.target) else { break };
            let file = types::Fixed(place.part);
            let entry = match (place.write, self.registered) {
                (true, true) => opcode::WriteFixed::new(file, buffer, block_bytes, 0).offset(place.offset).build(),
                (true, false) => opcode::Write::new(file, buffer, block_bytes).offset(place.offset).build(),
                (false, true) => opcode::ReadFixed::new(file, buffer, block_bytes, 0).offset(place.offset).build(),
                (false, false) => opcode::Read::new(file, buffer, block_bytes).offset(place.offset).build(),
            };
            // SAFETY: the buffer belongs to a slot that was not in flight, and nothing touches it until its completion.
            // File and buffer live as long as the ring. The push cannot fail, because the queue was not full.
            let _ = unsafe { queue.push(&entry.user_data(slot.into())) };
            pushed += 1;
        }
        queue.sync();
        pushed
    }
}

/// Submits the queued operations and waits for `want` completions, in one call. Returns the number of submitted
/// operations.
#[inline(always)]
fn enter(submitter: &Submitter<'_>, unsubmitted: usize, want: usize) -> Result<usize> {
    loop {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: the call passes no pointer that the kernel would follow.
        match unsafe { submitter.enter::<libc::sigset_t>(unsubmitted as u32, want as u32, flags, None) } {
            Ok(submitted) => return Ok(submitted),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) => return Err(refused("submitting to an io_uring", e)),
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

fn refused(what: &str, error: io::Error) -> Error {
    let why = format!("{error}; a locked-memory limit (`ulimit -l`) or a seccomp filter may be the cause");
    Error::Tool { what: what.into(), why }
}
