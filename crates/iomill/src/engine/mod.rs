//! Engines: how requests reach the kernel. One short trait takes batches. The io_uring, libaio, posix, mmap and null
//! engines here implement it, and a simulated one in `iomill-sim`.
//!
//! Goals: no allocation, no lock and no copy per request; every result handed up as the kernel gave it. Non-goals:
//! retries, short transfers, depth and order. The drive queue above does these once for all engines.

pub mod aio;
pub mod mmap;
pub mod null;
pub mod platform;
pub mod posix;
pub mod real;
pub mod uring;
mod wake;

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::fs::Handle;
use crate::sys::notices::Notices;

pub use wake::Deadline;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `len` bytes at `offset` into the memory.
    Read,
    /// Write `len` bytes from the memory at `offset`.
    Write,
    /// `fdatasync` of the file; `offset`, `memory` and `len` are not used.
    Sync,
}

/// Names an open part to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The open file.
    pub handle: Handle,
    /// Never used again for another file, unlike `handle`. Engines use it as the key of their tables of registered
    /// files, unless it has [`BY_DESCRIPTOR`].
    pub key: u64,
}

/// A bit of a key: engines know the file by its descriptor only. An engine that registers a file holds it open until the thread that owns
/// the engine does I/O again, which may be never. Closing such a file would not give its space back, nor let its file system be unmounted.
pub const BY_DESCRIPTOR: u64 = 1 << 63;

impl FileRef {
    /// Whether no engine may hold the file between requests.
    pub fn is_by_descriptor(self) -> bool {
        self.key & BY_DESCRIPTOR != 0
    }
}

/// No registered memory: see [`Memory::One`].
pub const NO_REGION: u16 = u16::MAX;

/// The longest list of [`Memory::Scatter`]. Every kernel takes more.
pub const MAX_SEGMENTS: usize = 64;

/// One stretch of scattered memory, laid out as the kernel's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub buf: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

const _: () = assert!(
    size_of::<Segment>() == size_of::<libc::iovec>()
        && std::mem::offset_of!(Segment, buf) == std::mem::offset_of!(libc::iovec, iov_base)
        && std::mem::offset_of!(Segment, len) == std::mem::offset_of!(libc::iovec, iov_len)
);

// SAFETY: a segment is a description. The contract of `Engine::push` governs the memory that it names, and does not
// depend on the thread.
unsafe impl Send for Segment {}

// SAFETY: as above. Nothing changes through a shared segment.
unsafe impl Sync for Segment {}

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// In one place.
    One {
        /// Where it begins.
        buf: *mut u8,
        /// The registered memory that holds all of it, by the number that [`Engine::register`] returned, or
        /// [`NO_REGION`].
        region: u16,
    },
    /// In several places, in the order of the list.
    Scatter {
        /// The list. It stays where it is, and unchanged, for as long as the memory must stay.
        list: *const Segment,
        /// Its length, from 1 to [`MAX_SEGMENTS`]; the segments' lengths add up to the request's.
        count: u16,
    },
}

impl Memory {
    /// For requests that have no memory.
    pub const NONE: Memory = Memory::One { buf: std::ptr::null_mut(), region: NO_REGION };

    /// Memory in one place that is not registered.
    pub fn one(buf: *mut u8) -> Memory {
        Memory::One { buf, region: NO_REGION }
    }

    /// Memory in several places.
    ///
    /// # Panics
    /// When the list is empty or longer than [`MAX_SEGMENTS`].
    pub fn scatter(list: &[Segment]) -> Memory {
        assert!(
            (1..=MAX_SEGMENTS).contains(&list.len()),
            "a list has 1 to {MAX_SEGMENTS} segments, this one {}",
            list.len()
        );
        Memory::Scatter { list: list.as_ptr(), count: list.len() as u16 }
    }
}

/// One I/O on one part; plain data.
#[derive(Clone, Copy, Debug)]
pub struct IoRequest {
    /// Comes back in the completion. It is below the engine's capacity. At most one request per slot is in flight.
    pub slot: u32,
    /// What to do.
    pub op: Op,
    /// Length in bytes.
    pub len: u32,
    /// The part.
    pub file: FileRef,
    /// Offset in the part in bytes.
    pub offset: u64,
    /// The memory.
    pub memory: Memory,
}

// SAFETY: a request is a description. The contract of `Engine::push` governs the memory that it names, and does not
// depend on the thread.
unsafe impl Send for IoRequest {}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's slot.
    pub slot: u32,
    /// Bytes transferred, or a negated errno.
    pub result: i32,
}

/// Wakes an engine's [`Engine::wait`] from any thread.
pub trait EngineWake: Send + Sync {
    /// Makes the present or the next `wait` return early. Several wakes may become one, but none is lost.
    fn wake(&self);
}

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// io_uring: the first choice.
    Uring,
    /// libaio, `io_submit`.
    Aio,
    /// `pread` and `pwrite` on a few threads.
    Posix,
    /// Copies to and from parts that are mapped: for data in memory, and for devices that are memory.
    Mmap,
    /// Completes at once and does nothing: measures the cost of iomill itself. Reads leave the buffer as it was.
    Null,
    /// Simulated drives.
    Simulated,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineKind::Uring => "io_uring",
            EngineKind::Aio => "libaio",
            EngineKind::Posix => "posix",
            EngineKind::Mmap => "mmap",
            EngineKind::Null => "null",
            EngineKind::Simulated => "simulated",
        })
    }
}

/// What a user should know of an engine that the kernel has stopped to serve.
fn refused_later(kind: EngineKind, error: &io::Error) -> String {
    format!(
        "{kind} is refused to a thread that used it before ({error}), as by a filter of system calls that came later: its requests are \
         system calls, one after the other"
    )
}

/// What an engine is made for.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The largest number of requests in flight; slots are below it.
    pub capacity: u32,
    /// Poll for completions instead of taking interrupts, where the device supports it.
    pub poll: bool,
    /// Files to hold open as long as the kernel may still work for this engine. One is the array's lock, which must
    /// outlive I/O in flight after a kill.
    pub hold: Vec<Handle>,
    /// Any thread may use it, one at a time, also to wait for what another thread has pushed. A `wait` for no completions does not wait for a
    /// drive then. It costs the kernel more.
    pub shared: bool,
}

/// Starts requests and reports their ends. One thread at a time uses it. Unless it is shared, the thread that uses it first must push all
/// its requests and wait for all of them (io_uring's single-issuer rule).
pub trait Engine: Send {
    /// Which engine this is.
    fn kind(&self) -> EngineKind;

    /// Takes a batch of requests. They may start now. When `wait` has been called, they have started.
    ///
    /// # Safety
    /// Until a request's completion has come out of [`Engine::wait`]:
    /// - its memory stays valid, and for reads no other thread touches it,
    /// - its list (if it has one) stays as it is,
    /// - its file stays open.
    ///
    /// No more requests than the capacity are in flight.
    unsafe fn push(&mut self, requests: &[IoRequest]);

    /// Starts what was pushed. Then it waits until `min` completions are there, a wake comes, or `timeout` passes
    /// (`None` waits for ever). It appends all completions that are there to `done`. With `min` 0 it does not wait.
    /// While at least `min` requests are in flight, it may notice a wake only when that many have ended. They will end,
    /// and one system call for a batch is worth more.
    ///
    /// An error means that this engine can report nothing more. Requests in flight may still be running.
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()>;

    /// An object that wakes `wait` from other threads.
    fn waker(&self) -> Arc<dyn EngineWake>;

    /// A descriptor that `poll` finds readable while completions are there, and perhaps until the next `wait` after they were taken. `None` of a shared engine: each `wait` reports the ends of all that was
    /// pushed, or the engine is a simulation's.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Names the place for what a user should know, such as that the kernel no longer serves the engine.
    fn tell(&mut self, notices: &Arc<Notices>) {
        let _has_nothing_to_tell = notices;
    }

    /// Drops the engine's hold on a file that is about to be closed for good. It has no requests in flight.
    fn forget(&mut self, key: u64) {
        let _holds_none = key;
    }

    /// Makes memory known to the kernel, so that requests within it skip the pinning of pages. `None` if the engine has
    /// no such function or a limit forbids it.
    ///
    /// # Safety
    /// The memory stays mapped until `unregister`, or until the engine is dropped.
    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        let _has_no_such_function = (start, len);
        None
    }

    /// Takes a registration back.
    fn unregister(&mut self, region: u16) {
        let _there_is_none = region;
    }
}
