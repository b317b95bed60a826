//! Engines: how requests reach the kernel. One short trait takes batches. The io_uring, libaio, posix, mmap and null
//! engines here implement it, and a simulated one in `iomill-sim`.
//!
//! Goals: no allocation, no lock and no copy per request, except where the table says so; every result handed up as the
//! kernel gave it. Non-goals: retries, short transfers, depth and order. The drive queue above does these once for all
//! engines.
//!
//! | engine | how | when iomill chooses it |
//! |---|---|---|
//! | io_uring | one system call submits and waits; registered files and memory; polling on request | first choice |
//! | libaio | `io_submit`, `io_getevents` | direct I/O, and io_uring is forbidden or would use worker threads |
//! | posix | `pread`, `pwrite` on a few threads, which share a lock | buffered files, files in memory |
//! | mmap | copies to and from mapped parts | never |
//! | null | completes at once, touches nothing | never; it measures iomill itself |
//! | simulated | drives of `iomill-sim` | in a simulation |
//!
//! `real.rs` chooses an engine for each drive by trying it. `iomill info` has the reason if it is not io_uring. A
//! `Platform` makes engines, opens drives and has the clock. `CONTRIBUTING.md` says how to add an engine.
//!
//! # Refusals
//!
//! A ring may find too little locked memory, because the kernel counts the rings of a user together. If the array did
//! not name an engine, that thread uses libaio or posix instead, and a notice says so.
//!
//! A program may install a filter of system calls after its files are open. The kernel then refuses `io_uring_enter`.
//! From then on that engine does each request by a system call of its own, on the calling thread, as the posix engine
//! does. The libaio engine does the same. A notice says so once. Requests that the kernel has accepted go on, and a
//! shared ring shows their ends without a system call. A ring that belongs to one thread does not, and neither does one
//! that polls. If such a ring has I/O in flight at that moment, the process ends, because its memory is not safe: no
//! other call brings the ends, and no other thread may enter the ring. This happens only if one thread sets a filter
//! for all threads while another has I/O in flight. A thread that sets a filter for itself has none in flight.
//!
//! # Files that a ring holds
//!
//! An engine that ends unregisters the files of its ring. Otherwise the kernel would hold them, and so the mounts of a
//! closed array, until it has destroyed the ring: a tenth of a second after it was closed. Only the ring's own thread
//! may unregister them. So a thread that has read the array and lives on holds the mounts for that time.
//!
//! # Mapped parts
//!
//! The engine `mmap` (`--engine mmap`) is for data in memory, and for devices that are memory: a copy needs no system
//! call. The bytes are in the kernel's page cache, so give the array a small cache or none (`--cache 0`).
//!
//! It is not for data that comes from drives. Missing bytes come through the page cache and are copied from there,
//! never faster than by `pread`. io_uring has hundreds of reads in flight and needs neither the page cache nor the
//! copy. A write of pages that are not in memory reads them first.
//!
//! Parts are open without direct I/O, and nothing is bounced. All engines of a platform share one mapping for each
//! part.
//!
//! - **Address space is reserved beyond the end**: four times the part's size, and at least 16 GiB. If there is less
//!   address space, the reservation is halved until it fits. Linux lets a file grow under its mapping, so neither
//!   growth nor a cut changes the mapping.
//! - **A part that outgrows its reservation is mapped anew** while other threads read (`mmap/epochs.rs`, rules 1 to 5).
//!   A reader announces itself, then reads which mapping is current. The last reader that leaves unmaps the old one.
//!   Announcing is a plain store for a batch; the rare side pays with `membarrier`. A thread that finds the part being
//!   mapped uses system calls (`mmap/parts.rs`, rules 1 to 5).
//! - **A thread checks now and then whether its copies have waited** (`mmap/ahead.rs`, rules 1 to 5). The kernel by
//!   itself reads around each missing page, by `read_ahead_kb`. After a wait, a lone read uses a system call, and the
//!   reads of a batch are announced (`POSIX_FADV_WILLNEED`) before the first copy. Sequential reads are left to the
//!   kernel. A permanent `MADV_RANDOM` was worse: sequential reads had half the speed, and warm copies were slower.
//! - **The length of a mapping is a hint.** It saves faults. No decision relies on it, since a file may be cut at any
//!   moment.
//! - **SIGBUS ends a copy, not the process** (`mmap/copy.rs`, rules 1 to 4). The copy is a short routine in assembly.
//!   The handler recognizes it by the interrupted instruction, and makes it return the number of missing bytes. The
//!   same request is then repeated as a system call, and the answer of that call is the request's. Other signals are
//!   passed to the earlier handler. A program that installs a SIGBUS handler later must call the one it finds. A copy
//!   by the kernel (`process_vm_readv`) needs no handler, and costs a system call for each copy.
//!   `iomill-lab mmap-vs-syscall` measures that too.
//! - **A cut within a page is seen at the page's end.** The kernel shows zeroes for the rest of that page.
//! - **A sync is an `fdatasync`.** It covers stores through mappings and writes around them. On Linux `msync` is the
//!   same call for a range.
//! - **On DAX with `MAP_SYNC`** each write is written back by cache line (`clwb`, `clflushopt`, `dc cvap`) before it
//!   ends. A sync calls the kernel only if a write went around the mapping, or the file's size or allocation changed. A
//!   processor without these instructions treats DAX as any file system.
//! - **The kernel says which drives are memory**: those with files that can be mapped with `MAP_SYNC`. That takes an
//!   NVDIMM in mode `fsdax`, ext4 or XFS (older kernels: without `reflink`), and `mount -o dax=always`.
//!   `iomill info --engine mmap` shows the result. Memory of virtio is DAX without `MAP_SYNC`, so there a sync is an
//!   `fdatasync`.
//! - **`MAP_SYNC` makes first stores slow.** The first store to a page of new room makes the file system commit its
//!   journal. A file that grows by mapped writes pays one commit for each 4 KiB. This is not measured on real NVDIMMs.
//!
//! `.ci/qemu` tests this on emulated NVDIMMs with a power failure. On ext4 and XFS the mappings have `MAP_SYNC`, and
//! all bytes are there afterwards. Writes and syncs within the file make no system call that writes or syncs. A store
//! by a plain mapping beside them is lost. The emulated processor has no cache that a power failure empties. So the
//! test would not notice a cache line that was not written back.
//!
//! `docs/performance.md` has figures.

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
