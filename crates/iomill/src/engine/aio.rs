//! The libaio engine: `io_submit` and `io_getevents`, by their system calls.
//!
//! Goals: asynchronous direct I/O where io_uring is forbidden or would hand its work to threads. Non-goals: buffered
//! files (`io_submit` waits for each request on them); completion polling and registered memory (libaio has neither).
//! The engine ignores `hold`: the requests of a killed process end before its descriptors close.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::posix::execute;
use super::wake::{Deadline, EventWake};
use super::{
    Completion, Engine, EngineConfig, EngineKind, EngineWake, FileRef, IoRequest, Memory, Op, Segment, refused_later,
};
use crate::sys::event::Event as EndsEvent;
use crate::sys::fs::Handle;
use crate::sys::notices::Notices;

const CMD_PREAD: u16 = 0;
const CMD_PWRITE: u16 = 1;
const CMD_FDSYNC: u16 = 3;
const CMD_POLL: u16 = 5;
const CMD_PREADV: u16 = 7;
const CMD_PWRITEV: u16 = 8;

/// A flag of a control block: the end of its request sets the event descriptor `result_fd`.
const FLAG_TELL: u32 = 1;

/// The data of the wake's poll; slots are 32 bits.
const WAKE: u64 = u64::MAX;

/// The time between two looks for a wake on kernels before 4.18: these cannot watch a descriptor for the engine.
const GLANCE: Duration = Duration::from_millis(1);

/// The kernel's `struct iocb`. The order of its key and its flags for `preadv2` depends on the machine; both are zero
/// here.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    data: u64,
    key_and_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    result2: i64,
}

/// See the module.
#[derive(Debug)]
pub struct AioEngine {
    context: libc::c_ulong,
    /// One control block per slot, and a last one for the wake's poll. The length never changes, so no block moves
    /// while `queue` points to it.
    controls: Vec<Control>,
    /// Pointers to control blocks. The first `submitted` of them are in the kernel.
    queue: Vec<*mut Control>,
    submitted: usize,
    events: Vec<Event>,
    /// Completions of requests that ended before they reached the kernel.
    ended: Vec<Completion>,
    /// Requests in the kernel, without the wake's poll.
    in_kernel: usize,
    wake: Arc<EventWake>,
    /// Whether the kernel watches the wake's descriptor at the moment.
    armed: bool,
    /// Whether the kernel can watch that descriptor.
    watches: bool,
    /// The event that the kernel sets at the end of each request; a shared engine has one.
    ends: Option<EndsEvent>,
    /// The place for the notice that the kernel refuses the engine. Taken when the notice is given.
    notices: Option<Arc<Notices>>,
}

// SAFETY: the pointers in `queue` point into `controls`, which the engine owns. A context belongs to the process.
unsafe impl Send for AioEngine {}

impl AioEngine {
    /// Makes the engine. `EAGAIN` means that the system's limit `fs.aio-max-nr` is used up.
    pub fn new(config: &EngineConfig) -> io::Result<AioEngine> {
        let capacity = config.capacity as usize;
        if config.capacity == 0 || config.capacity > i32::MAX as u32 / 2 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("libaio cannot hold {capacity} requests")));
        }
        let wake = EventWake::new()?;
        let ends = if config.shared { Some(EndsEvent::new()?) } else { None };
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the new context's name to `context`.
        check(unsafe { libc::syscall(libc::SYS_io_setup, config.capacity + 1, &raw mut context) })?;
        Ok(AioEngine {
            context,
            controls: vec![Control::default(); capacity + 1],
            queue: Vec::with_capacity(capacity + 1),
            submitted: 0,
            events: vec![Event::default(); capacity + 1],
            ended: Vec::with_capacity(capacity),
            in_kernel: 0,
            wake,
            armed: false,
            watches: true,
            ends,
            notices: None,
        })
    }

    /// Tests whether the kernel serves the engine: a filter of system calls may allow making it but not using it.
    pub fn try_out(&mut self) -> io::Result<()> {
        // SAFETY: without requests the call reads no memory.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 0, std::ptr::null::<*mut Control>()) })?;
        self.collect(0, Some(Duration::ZERO), &mut Vec::new())
    }

    /// Submits all queued requests.
    fn submit(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        while self.submitted < self.queue.len() {
            let rest = &mut self.queue[self.submitted..];
            // SAFETY: the pointers name control blocks of this engine, which `push` filled in under its caller's
            // promise.
            let taken =
                check(unsafe { libc::syscall(libc::SYS_io_submit, self.context, rest.len(), rest.as_mut_ptr()) });
            match taken {
                Ok(0) => return Err(io::Error::other("io_submit took no request and returned no error")),
                Ok(taken) => {
                    let taken = &self.queue[self.submitted..self.submitted + taken];
                    // SAFETY: the pointers name control blocks of this engine.
                    self.in_kernel += taken.iter().filter(|control| unsafe { (***control).data } != WAKE).count();
                    self.submitted += taken.len();
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel has no room until completions are taken.
                    Some(libc::EAGAIN) if self.in_kernel > 0 => self.collect(1, None, done)?,
                    Some(errno) => {
                        if let libc::EPERM | libc::EACCES | libc::ENOSYS = errno
                            && let Some(notices) = self.notices.take()
                        {
                            notices.push(refused_later(EngineKind::Aio, &error));
                        }
                        self.refused(done);
                    }
                    None => return Err(error),
                },
            }
        }
        self.queue.clear();
        self.submitted = 0;
        Ok(())
    }

    /// Handles the first queued control block after the kernel refused it; the kernel has not looked at the others. Its
    /// request becomes a plain system call. That call works where this kernel's libaio has no such operation (a sync
    /// before 4.18) or a filter forbids libaio. Otherwise it fails for the same reason.
    fn refused(&mut self, done: &mut Vec<Completion>) {
        // SAFETY: the pointer names a control block of this engine.
        let control = unsafe { *self.queue[self.submitted] };
        self.submitted += 1;
        if control.data == WAKE {
            self.armed = false;
            self.watches = false;
            return;
        }
        // SAFETY: it was pushed under the promise of `Engine::push` and has not completed.
        done.push(unsafe { execute(&request(&control)) });
    }

    /// Takes completions. Waits for `min` of them, the end of `timeout`, or a signal.
    fn collect(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let min = min.min(self.events.len());
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos() as _,
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let events = self.events.as_mut_ptr();
        // SAFETY: the kernel writes at most as many events as the vector holds, and reads a time that lives here.
        let taken =
            check(unsafe { libc::syscall(libc::SYS_io_getevents, self.context, min, self.events.len(), events, time) });
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => return Ok(()),
            // A filter of system calls forbids it, and nothing is in flight. Only a wake can come, and the caller looks
            // for one.
            Err(_) if self.in_kernel == 0 => {
                self.watches = false;
                std::thread::sleep(timeout.map_or(GLANCE, |timeout| timeout.min(GLANCE)));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let mut woken = false;
        for event in &self.events[..taken] {
            if event.data == WAKE {
                woken = true;
            } else {
                self.in_kernel -= 1;
                let result = i32::try_from(event.result).unwrap_or(-libc::EIO);
                done.push(Completion { slot: event.data as u32, result });
            }
        }
        if woken {
            self.armed = false;
            self.wake.drain()?;
        }
        Ok(())
    }

    /// Asks the kernel to watch the wake's descriptor, once.
    fn arm(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        self.armed = true;
        let poll = Control {
            data: WAKE,
            opcode: CMD_POLL,
            fd: self.wake.raw_fd() as u32,
            buf: libc::POLLIN as u64,
            ..Control::default()
        };
        self.enqueue(self.controls.len() - 1, poll);
        self.submit(done)
    }

    /// Queues a control block at place `index`.
    fn enqueue(&mut self, index: usize, control: Control) {
        assert!(index < self.controls.len(), "callers check their slots");
        // SAFETY: the place is within the vector, as just checked. The kernel has its own copy of the earlier block.
        let place = unsafe {
            let place = self.controls.as_mut_ptr().add(index);
            place.write(control);
            place
        };
        self.queue.push(place);
    }
}

impl Engine for AioEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Aio
    }

    fn tell(&mut self, notices: &Arc<Notices>) {
        self.notices = Some(Arc::clone(notices));
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        for request in requests {
            let index = request.slot as usize;
            let offset = i64::try_from(request.offset);
            let (true, Ok(offset)) = (index + 1 < self.controls.len(), offset) else {
                self.ended.push(Completion { slot: request.slot, result: -libc::EINVAL });
                continue;
            };
            let (flags, result_fd) = match &self.ends {
                Some(ends) => (FLAG_TELL, ends.as_fd().as_raw_fd() as u32),
                None => (0, 0),
            };
            let fd = request.file.handle.0 as u32;
            let control = Control { data: u64::from(request.slot), fd, flags, result_fd, ..Control::default() };
            let (read, write, buf, len) = match request.memory {
                Memory::One { buf, .. } => (CMD_PREAD, CMD_PWRITE, buf as u64, u64::from(request.len)),
                Memory::Scatter { list, count } => (CMD_PREADV, CMD_PWRITEV, list as u64, u64::from(count)),
            };
            let transfer = Control { buf, len, offset, ..control };
            let control = match request.op {
                Op::Read => Control { opcode: read, ..transfer },
                Op::Write => Control { opcode: write, ..transfer },
                // The kernel requires zeroes in the fields of the memory.
                Op::Sync => Control { opcode: CMD_FDSYNC, ..control },
            };
            self.enqueue(index, control);
        }
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let wanted = done.len().saturating_add(min);
        let mut deadline = Deadline::new(timeout);
        done.append(&mut self.ended);
        if let Some(ends) = &self.ends {
            // Drained before the completions are taken: a later completion sets the event again.
            ends.drain()?;
        }
        self.submit(done)?;
        let mut looked = false;
        loop {
            let missing = wanted.saturating_sub(done.len());
            let left = deadline.left();
            let sleep = missing > 0 && left != Some(Duration::ZERO) && !self.wake.take();
            if !sleep {
                if !looked && self.in_kernel > 0 {
                    self.collect(0, Some(Duration::ZERO), done)?;
                }
                return Ok(());
            }
            let shared = EventWake::is_shared(&self.wake);
            if shared && self.watches && !self.armed {
                self.arm(done)?;
                // The kernel may have refused, or completions may have been taken to make room: both change `want`.
                continue;
            }
            let sleep_for =
                if shared && !self.watches { Some(left.map_or(GLANCE, |left| left.min(GLANCE))) } else { left };
            // If only a wake can come, one event must end the wait. Otherwise the kernel would wait for more.
            let want = if shared && missing > self.in_kernel { 1 } else { missing };
            self.collect(want, sleep_for, done)?;
            looked = true;
        }
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::clone(&self.wake) as Arc<dyn EngineWake>
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.ends.as_ref().map(|ends| ends.as_fd().as_raw_fd())
    }
}

impl Drop for AioEngine {
    /// The kernel ends the requests in flight, or waits for them.
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used again.
        let destroyed = check(unsafe { libc::syscall(libc::SYS_io_destroy, self.context) });
        debug_assert!(destroyed.is_ok(), "io_destroy of the engine's own context: {destroyed:?}");
    }
}

/// The request that a control block describes.
fn request(control: &Control) -> IoRequest {
    let one = Memory::one(control.buf as *mut u8);
    let list = Memory::Scatter { list: control.buf as *const Segment, count: control.len as u16 };
    let (op, memory) = match control.opcode {
        CMD_PREAD => (Op::Read, one),
        CMD_PWRITE => (Op::Write, one),
        CMD_PREADV => (Op::Read, list),
        CMD_PWRITEV => (Op::Write, list),
        _ => (Op::Sync, Memory::NONE),
    };
    let file = FileRef { handle: Handle(control.fd as RawFd), key: 0 };
    IoRequest { slot: control.data as u32, op, len: control.len as u32, file, offset: control.offset as u64, memory }
}

/// A system call's answer as a result.
fn check(answer: libc::c_long) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_kernels() {
        assert_eq!(size_of::<Control>(), 64);
        assert_eq!(std::mem::offset_of!(Control, opcode), 16);
        assert_eq!(std::mem::offset_of!(Control, buf), 24);
        assert_eq!(std::mem::offset_of!(Control, result_fd), 60);
        assert_eq!(size_of::<Event>(), 32);
    }

    #[test]
    fn wakes_without_the_kernels_watching() {
        let config = EngineConfig { capacity: 4, poll: false, hold: Vec::new(), shared: false };
        // Nothing to test on a machine that has used up its `fs.aio-max-nr`.
        let Ok(mut engine) = AioEngine::new(&config) else { return };
        engine.watches = false;
        let waker = engine.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            waker.wake();
        });
        let mut done = Vec::new();
        engine.wait(1, None, &mut done).unwrap();
        assert!(done.is_empty());
        thread.join().unwrap();
    }
}
