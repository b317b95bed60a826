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

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read `len` bytes at `offset` into the memory.
    Read,
    /// Write `len` bytes from the memory at `offset`.
    Write,
    /// `fdatasync` of the file; `offset`, `memory` and `len` are not used.
    Sync,
}

/// The name of an open part, as an engine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The open file.
    pub handle: Handle,
    /// Unique in the process and never reused, unlike `handle`. Engines use it as the key of their tables of
    /// registered files, unless it has [`BY_DESCRIPTOR`].
    pub key: u64,
}

/// A bit of a key: engines must not register the file, and know it by its descriptor alone.
///
/// A registered file stays open until the engine's thread does I/O again, perhaps for ever. Until then a close gives
/// no space back, and the file system cannot be unmounted.
pub const BY_DESCRIPTOR: u64 = 1 << 63;

impl FileRef {
    /// Whether the key has [`BY_DESCRIPTOR`]: no engine may hold the file open between requests.
    pub fn is_by_descriptor(self) -> bool {
        self.key & BY_DESCRIPTOR != 0
    }
}

/// The region of memory that is not registered: see [`Memory::One`].
pub const NO_REGION: u16 = u16::MAX;

/// The largest number of segments in a [`Memory::Scatter`]. Every kernel takes more.
pub const MAX_SEGMENTS: usize = 64;

/// One stretch of scattered memory, laid out as the kernel's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub buf: *mut u8,
    /// Its length in bytes.
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
        /// The first byte.
        buf: *mut u8,
        /// The number from [`Engine::register`] of the registered memory that holds all of it, or [`NO_REGION`].
        region: u16,
    },
    /// In several places, in the order of the list.
    Scatter {
        /// The list. It is neither moved nor changed while the request is in flight.
        list: *const Segment,
        /// Its length, from 1 to [`MAX_SEGMENTS`]; the segments' lengths add up to the request's.
        count: u16,
    },
}

impl Memory {
    /// No memory: for [`Op::Sync`].
    pub const NONE: Memory = Memory::One { buf: std::ptr::null_mut(), region: NO_REGION };

    /// Memory in one place that is not registered.
    pub fn one(buf: *mut u8) -> Memory {
        Memory::One { buf, region: NO_REGION }
    }

    /// Memory in several places.
    ///
    /// # Panics
    /// If the list is empty or longer than [`MAX_SEGMENTS`].
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
    /// Below the engine's capacity. At most one request per slot is in flight. The completion has the same slot.
    pub slot: u32,
    /// The operation.
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

/// The result of a request that never reached the kernel: the same request may be pushed again, also a sync. No errno
/// says that, because a file system may answer a sync with any errno. The kernel has none as high.
pub const NOT_BEGUN: i32 = -4096;

/// The end of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's slot.
    pub slot: u32,
    /// Bytes transferred, or a negated errno, or [`NOT_BEGUN`].
    pub result: i32,
}

/// Wakes an engine's [`Engine::wait`] from any thread.
pub trait EngineWake: Send + Sync {
    /// Makes the present or the next `wait` return early. Several wakes may become one, but none is lost.
    fn wake(&self);
}

/// The way by which I/O reaches the kernel. Each drive gets the best one that it supports, unless
/// [`ArrayOptions::engine`](crate::ArrayOptions::engine) names one.
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
    #[doc(hidden)]
    Null,
    /// Simulated drives.
    #[doc(hidden)]
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

/// The notice that the kernel no longer serves an engine.
fn refused_later(kind: EngineKind, error: &io::Error) -> String {
    format!(
        "the kernel no longer serves {kind} to a thread that has used it ({error}); a filter of system calls may have \
         been set meanwhile. The thread's requests are now plain system calls, one after the other"
    )
}

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The largest number of requests in flight; slots are below it.
    pub capacity: u32,
    /// Poll for completions instead of taking interrupts, where the device supports it.
    pub poll: bool,
    /// Files to hold open while the kernel may still do I/O for this engine. One is the array's lock: after a kill it
    /// must outlive the I/O in flight.
    pub hold: Vec<Handle>,
    /// Whether any thread may use the engine, one at a time, also to wait for another thread's requests. A `wait` with
    /// `min` 0 then never waits for a drive. Such an engine costs the kernel more per request.
    pub shared: bool,
}

/// Starts requests and reports their ends. One thread at a time uses an engine. Unless the engine is shared, its first
/// user is its only user: it pushes all requests and waits for all of them (io_uring's single-issuer rule).
pub trait Engine: Send {
    /// The kind of this engine.
    fn kind(&self) -> EngineKind;

    /// Takes a batch of requests. They start now or in the next `wait`.
    ///
    /// # Safety
    /// Until [`Engine::wait`] has returned a request's completion:
    /// - its memory stays valid, and for reads no other thread touches it,
    /// - its list of segments, if any, is neither moved nor changed,
    /// - its file stays open.
    ///
    /// No more requests than the capacity are in flight.
    unsafe fn push(&mut self, requests: &[IoRequest]);

    /// Starts all pushed requests. Then waits for `min` completions, a wake, or the end of `timeout` (`None` is for
    /// ever), and appends all present completions to `done`. With `min` 0 it does not wait.
    ///
    /// While at least `min` requests are in flight, a wake may end the wait only after `min` completions. The requests
    /// do end, and one system call for the whole batch is worth the delay.
    ///
    /// # Errors
    /// The engine can report no more completions. Requests in flight may still be running.
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()>;

    /// An object that wakes `wait` from other threads.
    fn waker(&self) -> Arc<dyn EngineWake>;

    /// A descriptor that is readable (for `poll`) while completions wait, and perhaps until the next `wait` after they
    /// were taken. A shared engine without a descriptor ends all pushed requests within each `wait`, or is simulated.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Sets the place for the engine's notices to the user, such as that the kernel no longer serves it.
    fn tell(&mut self, notices: &Arc<Notices>) {
        let _has_nothing_to_tell = notices;
    }

    /// Drops the engine's hold on a file that is about to be closed for good. The file has no requests in flight.
    fn forget(&mut self, key: u64) {
        let _holds_none = key;
    }

    /// Registers memory with the kernel, so that it need not pin pages for each request. Returns the number of the
    /// region, or `None` if the engine has no such function or a limit forbids it.
    ///
    /// # Safety
    /// The memory stays mapped until `unregister`, or until the engine is dropped.
    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        let _has_no_such_function = (start, len);
        None
    }

    /// Ends a registration. No request with this region is in flight.
    fn unregister(&mut self, region: u16) {
        let _there_is_none = region;
    }
}
