//! Drives: the queues between a batch of pieces and an engine.
//!
//! A [`Piece`] is one contiguous I/O on one part, into or out of memory that need not be contiguous. A [`queue::Queue`]
//! serves one drive. It bounds the I/Os in flight, checks every result, continues short transfers, retries, and reads
//! or writes unaligned ends through bounce pages.
//!
//! A queue is plain state: `push` parks a piece, `dispatch` starts the pieces that fit, `complete` processes one
//! result. It never blocks, and does not know which call waits. Two kinds of contexts advance it:
//!
//! - [`inline::InlineContext`] runs a blocking call on the caller's thread over all drives, until its pieces have
//!   ended. It refills when an eighth of the I/Os in flight has ended, so one system call serves a batch.
//! - [`shared::SharedContext`] holds the pieces of asynchronous operations. Any thread may advance it by one round
//!   (`turn`): start pieces, report ends.
//!
//! Each context has engines of its own, or one engine that hands requests to a thread per drive ([`threads`]).
//!
//! - `queue.rs`, `queue/slot.rs`: the queue, and its slots with their completions.
//! - `queue/waiting.rs`, `queue/merge.rs`, `queue/pace.rs`: order, merging, adaptive depth.
//! - `lane.rs`, `service.rs`: one engine with the queues of its drives; the service of a drive.
//! - `inline.rs`, `shared.rs`: the two kinds of contexts.
//! - `threads.rs`, `inbox.rs`: drive threads: an engine that hands requests over.
//! - `shares.rs`: batches of pieces and their owners.
//! - `bounce.rs`, `locks.rs`, `regions.rs`: bounce memory, block locks, registered memory.
//!
//! # Pieces
//!
//! The memory of a piece is in one place, or it is a list of whole pages anywhere. So adjacent pages are one I/O, even
//! if their frames are not adjacent.
//!
//! - The `token` names the share that a piece belongs to. The `tag` is a number chosen by the piece's owner. The owner
//!   is told the end of each piece (`Owner::piece_done`) and of each share (`Owner::share_done`).
//! - Every result is checked (`Slot::advance`). A short transfer is continued. If a continued read transfers nothing,
//!   its part has ended too early. The piece fails with `Fault::Cut`, which `FileState::error` makes `Error::PartCut`.
//! - If a list was transferred in part, its rest is a list in the slot's own memory, of at most 64 segments.
//! - A piece with a list is never bounced.
//!
//! # Pages, bounce pages, block locks
//!
//! The unit of direct I/O is the 4 KiB page, whatever a drive's sector size. So after a crash a page is old or new as a
//! whole, if the drive writes 4 KiB atomically. On a drive of 512-byte sectors each sector is old or new, so no code
//! relies on whole pages. A range that is not whole pages, and memory that the device cannot address, are copied through
//! the slot's bounce buffer of 16 KiB.
//!
//! - The process has at most 128 MiB of bounce memory, for all threads and arrays. At most half of it is unused, and no
//!   queue takes all of it (`bounce.rs`, rules 1 to 4).
//! - Kernels before 6.1 do not say which memory a device can address. On these, memory must be aligned to the device's
//!   logical block, or to a page.
//! - A write within a page reads the page, changes it and writes it back, and holds the block's lock exclusively.
//!   Writes of whole pages hold it shared.
//! - A piece tries its lock, and never waits while it holds one. So no order of locks can deadlock (`locks.rs`).
//! - If a file system has no direct I/O, nothing is bounced and the kernel's page cache is used. `iomill info` says so.
//!
//! # Registered memory
//!
//! A read into memory that is registered with an engine costs less CPU. A batch looks the caller's memory up once. The
//! memory of many small buffers is a slab: an engine registers a chunk of it once all pages of the chunk were used, and
//! computes the chunk's number. Registering memory that was never touched costs the kernel several times as much as
//! touching it. Lists use no registered memory, because their frames lie in several chunks.
//!
//! # Order and merging
//!
//! A context sorts a batch by drive. Its queue of each drive does the rest, after Falcon (Kumar, Huang, ATC'17). Falcon
//! merges the requests of all threads to a drive. A queue here has only its context's pieces: those of one call, or of
//! all asynchronous operations of a thread.
//!
//! - **Windows.** The oldest pieces of each class, 256 at most, are a window. A window is served before the next one,
//!   so no piece is overtaken by more than a window. A sync is a window of its own.
//! - **Order only where it helps.** A window is ordered if at least one piece in sixteen seems to have a neighbour. A
//!   filter estimates that without ordering. A drive without moving parts gains from order only by merging. Falcon
//!   orders every batch.
//! - **Merging.** Adjacent pieces of one part, operation and class become one vectored I/O: up to 256 KiB and 64
//!   stretches of memory.
//! - **Each piece has its own end.** If a merged I/O fails, each piece that was not transferred is tried by itself. So
//!   one bad page fails one piece. Counters count pieces; a latency is that of a request.
//! - **Plug.** A batch waits only while neighbours are in sight, until its class has as many pieces waiting as are in
//!   flight, 32 at most. The wait also ends when 32 I/Os have ended. Falcon's plug is 32 unless it is set lower. A call
//!   says when its last piece has come, so the last pieces do not wait. In a shared context no batch waits in the
//!   queue: the operations of a thread wait for each other before they are sent.
//! - **No piece waits for ever** (`queue.rs`, rules 6 to 8; `locks.rs`, rules 3 to 5).
//! - **Background.** Background pieces have one turn in eight, and at most a quarter of the slots, but always one. An
//!   occupied slot cannot be taken back when a read comes.
//! - **Depth** is fixed, or adaptive (`queue/pace.rs`). Fixed is the default: on no measured drive was adaptive better.
//!
//! A context parks up to sixteen times its slots. With fewer, random requests pile up at some drives while others run
//! dry.
//!
//! # Drive threads
//!
//! SC'13 gives each drive an I/O thread on the CPUs near the drive, and sends it requests in bundles. Here that is an
//! engine (`threads.rs`). A context's requests go to the threads of their drives, in one message for each batch and
//! drive. Each thread has the drive's engine, and slots for the requests of all contexts. Ends return to the context's
//! outbox. Its event descriptor is signalled once for as many ends as the context waits for. The rules are at the top
//! of the file, and models check them.
//!
//! - A wake is paid once for each sleep of a drive thread, not once for each request. A wake on another CPU costs more
//!   than most reads. The thread sleeps in its engine, where a completion and a message both end the sleep. Nothing
//!   spins.
//! - On no measured drive were drive threads faster by 5%, and they cost two to three times the CPU time. So they are
//!   an option. Nodes that cache and own no drives always have them: the threads run on the drives' nodes.
//!
//! `iomill-lab ladder --of falcon` switches order, merging, plug and adaptive depth on one by one. `iomill probe`
//! measures each drive's depth.

mod bounce;
pub mod inbox;
pub mod inline;
pub mod lane;
pub mod locks;
pub mod queue;
pub mod regions;
pub mod service;
pub mod shared;
pub mod shares;
pub mod threads;

use crate::engine::{FileRef, MAX_SEGMENTS, Memory, Op};

/// The unit of direct I/O, in bytes. After a crash each such unit is old or new as a whole, or each of its sectors is, if
/// the drive has shorter ones.
pub const PAGE_BYTES: usize = 4096;

/// The longest piece that does not need a bounce buffer, in bytes. Longer transfers gain nothing on any drive we
/// know, and shorter ones share a drive better.
pub const PIECE_BYTES: usize = 256 << 10;

// A piece of scattered pages is never cut short by the length of its list.
const _: () = assert!(MAX_SEGMENTS * PAGE_BYTES >= PIECE_BYTES);

/// The bounce buffer of one slot in bytes: the longest piece that needs one, page edges included.
pub const BOUNCE_BYTES: usize = 16 << 10;

/// Whether a caller waits for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Class {
    /// A caller waits: served first.
    #[default]
    Foreground,
    /// No caller waits. It is served when the foreground leaves room, and at least once in eight turns. It never has
    /// more than a quarter of a drive's slots, but always one. So a read finds a slot free however much is written
    /// behind it. A caller that waits for background work to end asks for it as foreground.
    Background,
}

/// Pieces that wait at most before a batch is sent on: the value that Falcon (ATC'17) found best for each drive.
pub const DEFAULT_PLUG: u32 = 32;

/// The largest number of slots of a drive.
pub const DEPTH_MAX: u32 = 1024;

/// The largest number of pieces that a batch waits for.
pub const PLUG_MAX: u32 = 1024;

/// The options of a drive's queue for waiting pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Sort them by offset if they seem to have neighbours.
    pub sort: bool,
    /// Merge neighbours into one I/O.
    pub merge: bool,
    /// While neighbours are in sight, a batch waits until it has as many pieces as its class has in flight. It waits
    /// for at most this number of pieces, and until at most this number of I/Os has ended. 1: it never waits.
    pub plug: u32,
    /// Use as many of the slots as the drive's throughput asks for, instead of all.
    pub adaptive: bool,
}

impl Batching {
    /// Pieces are served in the order of their arrival.
    pub const NONE: Batching = Batching { sort: false, merge: false, plug: 1, adaptive: false };
}

impl Default for Batching {
    fn default() -> Self {
        Batching { sort: true, merge: true, plug: DEFAULT_PLUG, adaptive: false }
    }
}

/// One contiguous I/O on one part.
///
/// A read needs no alignment. If the read or its memory is not aligned for the drive, it is at most [`BOUNCE_BYTES`]
/// with its page edges. A write is whole pages, or is within one page.
///
/// A piece with scattered memory is whole pages at a page's edge, at most [`PIECE_BYTES`]. Each of its segments is
/// whole pages at a page's edge too, so that the drive takes the piece as it is.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The part.
    pub file: FileRef,
    /// Read, write or sync.
    pub op: Op,
    /// Whether a caller waits.
    pub class: Class,
    /// The block's lock (writes).
    pub lock: u32,
    /// Length in bytes.
    pub len: u32,
    /// A shared context's own: which share the piece belongs to.
    pub token: u32,
    /// The owner's number, reported with the piece's end.
    pub tag: u32,
    /// Offset in the part in bytes.
    pub offset: u64,
    /// The owner's memory. The context that runs the piece fills in the region.
    pub memory: Memory,
}

/// Pieces are copied from queue to queue: they fit a line of the processor's cache.
const _: () = assert!(size_of::<Piece>() <= 64);

// SAFETY: a piece describes an I/O. By the contract of `queue::Queue::push` its memory and its list stay valid, on any
// thread, until the piece's end is reported.
unsafe impl Send for Piece {}

impl Piece {
    /// The fdatasync of a part.
    pub fn sync(file: FileRef) -> Piece {
        Piece {
            file,
            op: Op::Sync,
            class: Class::Foreground,
            lock: 0,
            len: 0,
            token: 0,
            tag: 0,
            offset: 0,
            memory: Memory::NONE,
        }
    }
}

/// Why a piece failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel's errno.
    Errno(i32),
    /// The part ended this many bytes early.
    Cut(u64),
    /// The bytes of a page are not those that were written. The failure's offset is that of the page in its file.
    Wrong,
    /// The sum of a page is not known, so its bytes are not proved. The offset is as above.
    NoSum(NoSum),
}

/// The sum that a page should have, if it is known.
pub type PageSum = Result<u32, NoSum>;

/// The reason for which the sum of a page is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSum {
    /// The page of sums is damaged.
    Lost,
    /// The page of sums could not be loaded, with this errno.
    Unread(i32),
}

/// A failed piece: what and where in its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was tried.
    pub op: Op,
    /// The part, by its key.
    pub key: u64,
    /// Offset in the part in bytes.
    pub offset: u64,
    /// Why.
    pub fault: Fault,
}

/// The end of a piece.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The piece's token.
    pub token: u32,
    /// The piece's tag.
    pub tag: u32,
    /// Nothing, or what went wrong.
    pub result: Result<(), Failure>,
}
