//! Engines: how requests reach the kernel. One short trait that takes batches; behind it io_uring, libaio, posix,
//! mmap and null engines here, and a simulated one in `iomill-sim`.
//!
//! Goals: no allocation, no lock and no copy per request; every result handed up as the kernel gave it. Non-goals:
//! retries, short transfers, depth, order: those belong to the drive queue above, once for all engines.

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
use std::sync::Arc;
use std::time::Duration;

use crate::sys::fs::Handle;

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
    /// Never used again for another file, unlike `handle`: engines key their tables of registered files by it.
    pub key: u64,
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

// SAFETY: a segment is a description; the memory it names is governed by the contract of `Engine::push`, which does not
// depend on the thread.
unsafe impl Send for Segment {}

// SAFETY: as above; nothing is changed through a shared segment.
unsafe impl Sync for Segment {}

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// In one place.
    One {
        /// Where it begins.
        buf: *mut u8,
        /// Registered memory that holds all of it, as [`Engine::register`] numbered it, or [`NO_REGION`].
        region: u16,
    },
    /// In several places, in the order of the list.
    Scatter {
        /// The list, which stays where it is and as it is for as long as the memory must.
        list: *const Segment,
        /// Its length, from 1 to [`MAX_SEGMENTS`]; the segments' lengths add up to the request's.
        count: u16,
    },
}

impl Memory {
    /// For requests that have none.
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
        assert!((1..=MAX_SEGMENTS).contains(&list.len()), "a list of {} segments", list.len());
        Memory::Scatter { list: list.as_ptr(), count: list.len() as u16 }
    }
}

/// One I/O on one part; plain data.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the completion. Below the engine's capacity; at most one request per slot is in flight.
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

// SAFETY: a request is a description; the memory that it names is governed by the contract of `Engine::push`, which
// does not depend on the thread.
unsafe impl Send for Request {}

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's slot.
    pub slot: u32,
    /// Bytes transferred, or a negated errno.
    pub result: i32,
}

/// Wakes an engine's [`Engine::wait`] from any thread.
pub trait Wake: Send + Sync {
    /// Makes the present or the next `wait` return early. Wakes may be merged, never lost.
    fn wake(&self);
}

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// io_uring: first choice.
    Uring,
    /// libaio, `io_submit`.
    Aio,
    /// `pread` and `pwrite` on a few threads.
    Posix,
    /// Copies to and from parts that are mapped: for data in memory, and devices that are memory.
    Mmap,
    /// Completes at once without doing anything: measures our own overhead. Reads leave the buffer as it was.
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

/// What an engine is made for.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most requests in flight; slots are below it.
    pub capacity: u32,
    /// Poll for completions instead of taking interrupts, where the device supports it.
    pub poll: bool,
    /// Files to hold open as long as the kernel may still work for this engine (the array's lock, so that it
    /// outlives I/O in flight after a kill).
    pub hold: Vec<Handle>,
}

/// Starts requests and reports their ends. Owned by one thread at a time, and the requests of an engine that is made
/// by one thread must all be pushed and waited for by that thread (io_uring's single-issuer rule).
pub trait Engine: Send {
    /// Which engine this is.
    fn kind(&self) -> EngineKind;

    /// Takes a batch of requests. They may start now, and have started when `wait` has been called.
    ///
    /// # Safety
    /// The memory of every request stays valid and (for reads) is touched by nobody else, its list (if it has one) stays
    /// as it is, and its file stays open, until its completion has come out of [`Engine::wait`]. No more than the capacity are in flight.
    unsafe fn push(&mut self, requests: &[Request]);

    /// Starts what was pushed, then waits until `min` completions are there, a wake comes, or `timeout` passes
    /// (`None` waits for ever), and appends all that are there to `done`. With `min` 0 it does not wait. While at least
    /// `min` requests are in flight, a wake may be heard only when that many have ended: they will, and one system call for
    /// a batch is worth more.
    ///
    /// An error means that nothing more can be learnt from this engine; requests in flight may still be running.
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()>;

    /// Something that wakes `wait` from other threads.
    fn waker(&self) -> Arc<dyn Wake>;

    /// Lets go of a file that is about to be closed for good; it has no requests in flight.
    fn forget(&mut self, key: u64);

    /// Makes memory known to the kernel, so that requests within it skip the pinning of pages. `None` where the engine
    /// has no such thing or a limit forbids it.
    ///
    /// # Safety
    /// The memory stays mapped until `unregister`, or until the engine is dropped.
    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16>;

    /// Takes that back.
    fn unregister(&mut self, region: u16);
}
