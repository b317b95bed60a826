//! One ring with its registered files and memory.
//!
//! Goals: the fewest system calls, and a handful of functions for both old and new kernels. Non-goals: wakes, deadlines
//! and a second ring; the engine has these.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, Submitter, cqueue, opcode, squeue};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::files::{FileTable, Target};
use crate::engine::{IoRequest, Memory, NO_REGION, Op};
use crate::sys::descriptor::made_above;
use crate::sys::event::Event;
use crate::sys::fs::Handle;

/// The largest number of entries in the submission queue. A larger queue would only touch more memory.
const MAX_QUEUED: u32 = 4096;

/// The kernel's bound on completions, less some room for wakes.
pub(super) const MAX_CAPACITY: u32 = 65_536 - 8;

/// Places for registered memory: enough for 256 GiB of frames in chunks of 64 MiB. The kernel allows 16,384 places. An
/// empty one costs it 8 to 16 bytes.
const TABLE_REGIONS: u32 = 4096;

/// The most repetitions of a call after temporary refusals (no memory for a request), 100 us apart: ten seconds.
const MAX_REFUSALS: u32 = 100_000;

/// See the module.
pub(super) struct Ring {
    ring: IoUring,
    files: FileTable,
    regions: RegionTable,
    /// Whether the ring has no thread yet. While it is set, the ring may move to any thread. Once `awaken` has cleared
    /// it, only the thread that called `awaken` may submit.
    asleep: bool,
    /// Whether the kernel shows completions only to a thread that enters it for them.
    deferred: bool,
    /// Whether the kernel's wait takes a timeout (Linux 5.11).
    pub(super) timed: bool,
    /// Temporary refusals since the last call that succeeded.
    refusals: u32,
    /// Requests that were pushed and not yet reaped.
    pub(super) in_flight: u32,
    /// The user data of all entries that were pushed since the queue was last empty. Its end matches the entries that
    /// are still in the queue.
    queued: Vec<u64>,
}

/// The places for registered memory.
#[derive(Debug)]
enum RegionTable {
    /// No table has been requested yet.
    Unasked,
    /// There is a table, with these free places.
    Free(Vec<u16>),
    /// The kernel or a limit refuses a table.
    Refused,
}

impl Ring {
    /// Makes the first ring of `kinds` that the kernel knows.
    pub(super) fn new(capacity: u32, poll: bool, hold: &[Handle], kinds: &[Kind]) -> io::Result<Ring> {
        let (ring, kind) = build(capacity, poll, kinds)?;
        let mut probe = Probe::new();
        // The plain read and write came with 5.6, as did the probe itself.
        ring.submitter().register_probe(&mut probe).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => too_old(),
            _ => error,
        })?;
        if !probe.is_supported(opcode::Write::CODE) || !ring.params().is_feature_nodrop() {
            return Err(too_old());
        }
        let files = FileTable::new(&ring.submitter(), hold)?;
        let deferred = kind == Kind::Deferred;
        let timed = ring.params().is_feature_ext_arg();
        let entries = ring.params().sq_entries() as usize;
        Ok(Ring {
            ring,
            files,
            regions: RegionTable::Unasked,
            asleep: deferred,
            deferred,
            timed,
            refusals: 0,
            in_flight: 0,
            queued: Vec::with_capacity(entries),
        })
    }

    /// The ring's descriptor. It is readable while completions wait.
    pub(super) fn raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.raw_fd()) }
    }

    /// Makes the calling thread the ring's only user, at its first call. Called before every other use.
    pub(super) fn awaken(&mut self) -> io::Result<()> {
        if self.asleep {
            self.ring.submitter().register_enable_rings()?;
            self.asleep = false;
        }
        Ok(())
    }

    /// Submits one entry that does nothing. A filter of system calls may allow making a ring but not entering it: then
    /// this is the error.
    pub(super) fn try_out(&mut self) -> io::Result<()> {
        self.awaken()?;
        // SAFETY: the entry points to nothing.
        unsafe { self.push_entry(&opcode::Nop::new().build()) }?;
        let mut has_ended = false;
        while !has_ended {
            self.submit_and_wait(1, None)?;
            self.reap(|_| has_ended = true);
        }
        Ok(())
    }

    /// Queues requests, and counts them in `pushed`. Submits whenever the queue is full.
    ///
    /// # Safety
    /// As for [`crate::engine::Engine::push`].
    pub(super) unsafe fn push(&mut self, requests: &[IoRequest], pushed: &mut usize) -> io::Result<()> {
        let mut rest = requests;
        while !rest.is_empty() {
            let (submitter, mut queue, _) = self.ring.split();
            let mut taken = 0;
            for request in rest {
                let queued = !queue.is_empty();
                let target = match request.op {
                    // A thread of the kernel does the sync, and looks the file up when it begins, perhaps long after the
                    // submission. By then the entry may be another file's, while the descriptor is still this one's.
                    Op::Sync => Some(Target::Plain(request.file.handle.0)),
                    Op::Read | Op::Write => self.files.resolve(&submitter, request.file, queued),
                };
                let Some(target) = target else { break };
                // SAFETY: the caller keeps memory and file alive until the completion has been reaped.
                if unsafe { queue.push(&entry(request, target)) }.is_err() {
                    break;
                }
                if !queued {
                    self.queued.clear();
                }
                self.queued.push(u64::from(request.slot));
                taken += 1;
            }
            drop(queue);
            self.in_flight += taken as u32;
            *pushed += taken;
            rest = &rest[taken..];
            if !rest.is_empty() {
                self.submit()?;
            }
        }
        Ok(())
    }

    /// Queues an entry that is not a request.
    ///
    /// # Safety
    /// Everything that the entry points to stays valid until its completion.
    pub(super) unsafe fn push_entry(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        if unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit()?;
            // SAFETY: the caller's promise.
            unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        }
        if self.ring.submission().len() == 1 {
            self.queued.clear();
        }
        self.queued.push(entry.get_user_data());
        Ok(())
    }

    /// The user data of the queued entries. The caller must not enter the ring again, so the kernel never takes them.
    pub(super) fn take_back(&mut self) -> Vec<u64> {
        let left = self.ring.submission().len();
        self.queued.split_off(self.queued.len().saturating_sub(left))
    }

    /// Passes every completion that the kernel shows to `each`.
    pub(super) fn reap(&mut self, mut each: impl FnMut(cqueue::Entry)) {
        for completion in self.ring.completion() {
            each(completion);
        }
    }

    /// Whether a system call has work to do: entries to submit, or completions that the kernel does not show yet.
    pub(super) fn has_business(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Submits all queued entries, and has the kernel show all completions, without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        loop {
            let queued = self.ring.submission().len() as u32;
            // Only a call that asks for events polls the device, or does the work of a deferred ring.
            let flags = if self.deferred || self.ring.params().is_setup_iopoll() || self.has_overflow() {
                EnterFlags::GETEVENTS
            } else {
                EnterFlags::empty()
            };
            // SAFETY: no argument is passed, and the entries are valid by the promise of `push`.
            let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, flags.bits(), None) };
            match entered {
                Ok(count) => {
                    self.refusals = 0;
                    if count as u32 >= queued {
                        return Ok(());
                    }
                }
                Err(error) => self.judge(error)?,
            }
        }
    }

    /// Submits, then waits for `want` completions, at most for `timeout`. May return earlier.
    pub(super) fn submit_and_wait(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let queued = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        let flags = EnterFlags::GETEVENTS;
        let entered = match timeout {
            // SAFETY: as in `submit`.
            None => unsafe { submitter.enter::<libc::sigset_t>(queued, want, flags.bits(), None) },
            Some(timeout) if self.timed => {
                let time = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&time);
                let flags = flags | EnterFlags::EXT_ARG;
                // SAFETY: the arguments live until the call returns, and have the type that the flag announces.
                // `SubmitArgs` has the layout of the kernel's own structure.
                unsafe { submitter.enter(queued, want, flags.bits(), Some(&args)) }
            }
            Some(timeout) => return self.submit_and_poll(timeout),
        };
        match entered {
            Err(error) if error.raw_os_error() != Some(libc::ETIME) => self.judge(error),
            _ => {
                self.refusals = 0;
                Ok(())
            }
        }
    }

    /// Submits, then waits with a timeout on kernels before 5.11.
    fn submit_and_poll(&mut self, timeout: Duration) -> io::Result<()> {
        self.submit()?;
        let fd = self.fd();
        let time = rustix::event::Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until a completion comes, `event` is set, or `timeout` is over. Whether there are completions.
    pub(super) fn is_readable(&self, event: &Event, timeout: Option<Duration>) -> io::Result<bool> {
        let time =
            timeout.map(rustix::event::Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = self.fd();
        let mut polled = [PollFd::new(&fd, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
        match rustix::event::poll(&mut polled, time.as_ref()) {
            Ok(_) => Ok(polled[0].revents().contains(PollFlags::IN)),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the kernel holds completions back because their queue is full.
    fn has_overflow(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// `Ok` after an error for which the caller repeats the call, else the error. Sleeps a little after a temporary
    /// refusal.
    fn judge(&mut self, error: io::Error) -> io::Result<()> {
        match error.raw_os_error() {
            Some(libc::EINTR) => Ok(()),
            // The kernel is short of memory, or completions must be reaped first.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if self.refusals < MAX_REFUSALS => {
                self.refusals += 1;
                std::thread::sleep(Duration::from_micros(100));
                Ok(())
            }
            Some(libc::EEXIST) => Err(io::Error::other(
                "an io_uring engine was used by another thread than the thread that used it first",
            )),
            _ => Err(error),
        }
    }

    /// Unregisters all files before the ring is dropped. Nothing is in flight.
    pub(super) fn let_go(&mut self) {
        // Refused to a thread that is not the ring's. The kernel then releases the files some time after the close.
        let _done_at_once = self.ring.submitter().unregister_files();
    }

    pub(super) fn forget(&mut self, key: u64) {
        self.files.forget(&self.ring.submitter(), key);
    }

    /// Registers memory. `None` if the kernel or a limit refuses.
    ///
    /// # Safety
    /// As for [`crate::engine::Engine::register`].
    pub(super) unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        if let RegionTable::Unasked = self.regions {
            self.regions = match self.ring.submitter().register_buffers_sparse(TABLE_REGIONS) {
                Ok(()) => RegionTable::Free((0..TABLE_REGIONS as u16).rev().collect()),
                Err(_) => RegionTable::Refused,
            };
        }
        let RegionTable::Free(free) = &mut self.regions else { return None };
        let region = free.last().copied()?;
        // SAFETY: the caller keeps the memory mapped.
        unsafe { update_region(&self.ring.submitter(), region, start, len) }.ok()?;
        free.pop();
        Some(region)
    }

    pub(super) fn unregister(&mut self, region: u16) {
        let RegionTable::Free(free) = &mut self.regions else { return };
        // SAFETY: an empty place points to no memory.
        let cleared = unsafe { update_region(&self.ring.submitter(), region, std::ptr::null_mut(), 0) };
        // A place that the kernel did not clear is never used again, so no request reaches the old memory.
        if cleared.is_ok() {
            free.push(region);
        }
    }
}

/// The kinds of rings, each for a range of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One thread submits. It does the ring's work when it asks for completions (Linux 6.1).
    Deferred,
    /// The thread does the ring's work when it next enters the kernel (Linux 5.19).
    Cooperative,
    /// The ring's work interrupts the thread.
    Interrupting,
}

impl Kind {
    /// All kinds, the best first.
    pub(super) const ALL: [Kind; 3] = [Kind::Deferred, Kind::Cooperative, Kind::Interrupting];

    /// The kinds that any thread may use. In the others the work waits until the thread that submitted enters the
    /// kernel, perhaps much later.
    pub(super) const SHAREABLE: [Kind; 1] = [Kind::Interrupting];
}

fn build(capacity: u32, poll: bool, kinds: &[Kind]) -> io::Result<(IoUring, Kind)> {
    let entries = (capacity + 2).next_power_of_two().min(MAX_QUEUED);
    // The queue of completions has room for every request and for wakes, so it never overflows.
    let completions = (capacity + 8).next_power_of_two().max(entries);
    let mut refused = None;
    for &kind in kinds {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions);
        if poll {
            builder.setup_iopoll();
        }
        match kind {
            Kind::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
                // The thread that calls `awaken` becomes the single issuer.
                builder.setup_r_disabled();
            }
            Kind::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            Kind::Interrupting => {}
        }
        match made_above(|| builder.build(entries)) {
            Ok(ring) => return Ok((ring, kind)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or_else(too_old))
}

fn too_old() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old, iomill needs 5.6 or newer")
}

/// Registers memory at a place of the table.
///
/// # Safety
/// The memory stays mapped until the place changes again or the ring is gone.
unsafe fn update_region(submitter: &Submitter<'_>, region: u16, start: *mut u8, len: usize) -> io::Result<()> {
    let memory = [libc::iovec { iov_base: start.cast(), iov_len: len }];
    // SAFETY: the caller's promise.
    unsafe { submitter.register_buffers_update(u32::from(region), &memory, Some(&[0])) }
}

/// The kernel's form of a request.
fn entry(request: &IoRequest, target: Target) -> squeue::Entry {
    let &IoRequest { op, len, offset, memory, .. } = request;
    macro_rules! build {
        ($file:expr) => {
            match (op, memory) {
                (Op::Read, Memory::One { buf, region: NO_REGION }) => {
                    opcode::Read::new($file, buf, len).offset(offset).build()
                }
                (Op::Write, Memory::One { buf, region: NO_REGION }) => {
                    opcode::Write::new($file, buf, len).offset(offset).build()
                }
                (Op::Read, Memory::One { buf, region }) => {
                    opcode::ReadFixed::new($file, buf, len, region).offset(offset).build()
                }
                (Op::Write, Memory::One { buf, region }) => {
                    opcode::WriteFixed::new($file, buf, len, region).offset(offset).build()
                }
                // Segments have the layout of the kernel's vectors. The fixed form (6.15) needs all of them in one
                // region.
                (Op::Read, Memory::Scatter { list, count }) => {
                    opcode::Readv::new($file, list.cast(), u32::from(count)).offset(offset).build()
                }
                (Op::Write, Memory::Scatter { list, count }) => {
                    opcode::Writev::new($file, list.cast(), u32::from(count)).offset(offset).build()
                }
                (Op::Sync, _) => opcode::Fsync::new($file).flags(FsyncFlags::DATASYNC).build(),
            }
        };
    }
    let entry = match target {
        Target::Fixed(place) => build!(Fixed(place)),
        Target::Plain(fd) => build!(Fd(fd)),
    };
    entry.user_data(u64::from(request.slot))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;

    use super::super::files::TABLE_FILES;
    use super::*;
    use crate::engine::FileRef;

    /// The kernel looks up the file of a sync when one of its threads begins the sync, which may be long after the
    /// submission. Meanwhile the entry of an idle file may be given to another file.
    ///
    /// Seen to fail when a sync named its file by the table: it synced the other file.
    #[test]
    fn a_sync_that_waits_for_a_thread_keeps_its_file() {
        const OPEN: u64 = 1000;
        let Ok(mut ring) = Ring::new(8, false, &[], &[Kind::Interrupting]) else { return };
        let dir = tempfile::tempdir().unwrap();
        // One thread does all such work, and waits in the open of a pipe without a writer. Kernels before 5.15 have no
        // such setting.
        if ring.ring.submitter().register_iowq_max_workers(&mut [1, 1]).is_err() {
            return;
        }
        let pipe = CString::new(dir.path().join("pipe").as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), pipe.as_ptr()).flags(libc::O_RDONLY).build();
        // SAFETY: the name outlives the request.
        unsafe { ring.push_entry(&open.flags(squeue::Flags::ASYNC).user_data(OPEN)) }.unwrap();
        ring.submit().unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        // A sync of this one is an error.
        let other = Event::new().unwrap();
        let of = |key| FileRef { handle: Handle(file.as_raw_fd()), key };
        let request = |slot, op, file| IoRequest { slot, op, len: 0, file, offset: 0, memory: Memory::NONE };
        // SAFETY: the files outlive the requests, which use no memory.
        unsafe { ring.push(&[request(1, Op::Read, of(1)), request(2, Op::Sync, of(1))], &mut 0) }.unwrap();
        ring.submit().unwrap();
        // The other entries are taken, and the first one is idle.
        for key in (2..=u64::from(TABLE_FILES)).cycle().take(8192) {
            ring.files.resolve(&ring.ring.submitter(), of(key), false);
        }
        let late = ring.files.resolve(
            &ring.ring.submitter(),
            FileRef { handle: Handle(other.as_fd().as_raw_fd()), key: 1 << 20 },
            false,
        );
        assert!(matches!(late, Some(Target::Fixed(_))), "the entry of the idle file");
        let _writer = OpenOptions::new().write(true).open(dir.path().join("pipe")).unwrap();
        let mut results = Vec::new();
        while results.len() < 3 {
            ring.submit_and_wait(1, None).unwrap();
            ring.reap(|end| results.push((end.user_data(), end.result())));
        }
        let sync = results.iter().find(|(slot, _)| *slot == 2).map(|(_, result)| *result);
        assert_eq!(sync, Some(0), "{results:?}");
    }
}
