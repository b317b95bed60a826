//! Drives: what stands between a batch of pieces and an engine.
//!
//! A [`Piece`] is one contiguous I/O on one part, into or out of memory that need not be contiguous. A [`queue::Queue`] serves
//! one drive. It bounds what is in flight, checks every result, continues short transfers, retries, and takes unaligned ends
//! through bounce pages. A queue is plain state, and two kinds of contexts advance it. [`inline::InlineContext`] runs a blocking call on the
//! caller's thread over all drives. Any thread may advance a [`shared::SharedContext`], where asynchronous operations begin. Both have
//! engines of their own, or one that hands requests to a thread per drive ([`threads`]).

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

/// The unit of direct I/O and of what is old or new as a whole, in bytes.
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
    /// No caller waits. It is served when the foreground leaves room, and at least once in eight turns. It never has more than a
    /// quarter of a drive's slots, but always one. So a read finds a slot free however much is written behind it. A caller that
    /// waits for background work to end asks for it as foreground.
    Background,
}

/// Pieces that wait at most before a batch is sent on: the value that Falcon (ATC'17) found best for each drive.
pub const DEFAULT_PLUG: u32 = 32;

/// The largest number of slots of a drive.
pub const DEPTH_MAX: u32 = 1024;

/// The largest number of pieces that a batch waits for.
pub const PLUG_MAX: u32 = 1024;

/// What a drive's queue does with the pieces that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Order them by offset where neighbours are in sight.
    pub sort: bool,
    /// Merge neighbours into one I/O.
    pub merge: bool,
    /// While neighbours are in sight, a batch waits until it has as many pieces as its class has in flight. It waits for at most
    /// so many pieces, and until at most so many I/Os have ended. 1: it never waits.
    pub plug: u32,
    /// Use as many of the slots as the drive's throughput asks for, instead of all.
    pub adaptive: bool,
}

impl Batching {
    /// Pieces are served as they come.
    pub const NONE: Batching = Batching { sort: false, merge: false, plug: 1, adaptive: false };
}

impl Default for Batching {
    fn default() -> Self {
        Batching { sort: true, merge: true, plug: DEFAULT_PLUG, adaptive: false }
    }
}

/// One contiguous I/O on one part, as the layout cut it.
///
/// A read needs no alignment. Where the read or its memory is not aligned as the drive demands, it is at most [`BOUNCE_BYTES`]
/// with its page edges. A write is either whole pages or lies within one page.
///
/// A piece with scattered memory is whole pages at a page's edge, at most [`PIECE_BYTES`]. Each of its segments is whole pages at
/// a page's edge too, so that the drive takes the piece as it is.
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
    /// The owner's own: comes back with the piece's end.
    pub tag: u32,
    /// Offset in the part in bytes.
    pub offset: u64,
    /// The owner's memory. The context that runs the piece fills in the region.
    pub memory: Memory,
}

/// Pieces are copied from queue to queue: they fit a line of the processor's cache.
const _: () = assert!(size_of::<Piece>() <= 64);

// SAFETY: a piece describes an I/O. By the contract of `queue::Queue::push` its memory and its list stay valid, on any thread,
// until the piece's end is reported.
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
