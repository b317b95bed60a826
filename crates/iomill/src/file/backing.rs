//! What holds a file's bytes and its length: the traits [`Backing`] and [`KeepLength`], the [`Part`]s of a backing, and their [`Place`]s.
//!
//! Goals: the rooms above need not know whether a file is spread over an array. Non-goals: I/O, which goes by pieces on parts.

use std::fmt;
use std::path::PathBuf;

use super::mark::Mark;
use crate::engine::FileRef;
use crate::error::Result;
use crate::sys::fs::{Alignment, DriveFile};
use crate::sys::sync::{AtomicU64, Ordering};

/// One drive's share of an open file.
#[derive(Debug)]
pub struct Part {
    /// The open part.
    pub open: DriveFile,
    /// Its handle and key, by which engines know it.
    pub file: FileRef,
    /// Index of its drive.
    pub drive: u16,
    /// The alignment that its drive's queues assume for I/O on it.
    pub align: Alignment,
    /// Bytes that the part is known to have: a multiple of the page. Changed only under `FileState::grow`, or with nothing in flight.
    pub reserved: AtomicU64,
    /// Whether it holds what no fdatasync has covered.
    pub mark: Mark,
}

impl Part {
    /// Bytes that it is known to have.
    pub fn has(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Where it is, for messages.
    pub fn path(&self) -> PathBuf {
        self.open.full_path()
    }
}

/// Where a byte of a file is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Index of the part.
    pub part: usize,
    /// Number of the block within the part.
    pub block: u64,
    /// Offset in the part in bytes.
    pub offset: u64,
    /// How many bytes from here on lie one after the other in the part.
    pub left: u64,
}

/// What holds a file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingKind {
    /// Parts of an array. They may be longer than the file, and its length is kept elsewhere.
    Parts,
    /// A plain file. Its length is the file's.
    Plain,
    /// Plain files, one after the other, for reading only. They may begin and end within a page.
    List,
}

/// The places of a file's bytes.
pub trait Backing: fmt::Debug + Send + Sync {
    /// What it is.
    fn kind(&self) -> BackingKind;

    /// Whether a later opening can tell that the file is as it was when it was closed.
    fn is_known(&self) -> bool;

    /// The file's name when it was opened.
    fn name(&self) -> &str;

    /// The block size in bytes, a multiple of the page. The bytes of a block lie in one part, one after the other.
    fn block_bytes(&self) -> u64;

    /// Its parts.
    fn parts(&self) -> &[Part];

    /// Where a byte is, by its offset in bytes.
    fn locate(&self, offset: u64) -> Place;

    /// The bytes that a part must have at least when the file is `len` bytes long.
    fn part_bytes(&self, part: usize, len: u64) -> u64;

    /// Ranges of a part, up to `part_end`, that hold no byte of a file of `len` bytes: (offset, length) in bytes.
    fn unused_ranges(&self, part: usize, len: u64, part_end: u64) -> Vec<(u64, u64)>;
}

/// Keeps a file's length over a crash.
pub trait KeepLength: fmt::Debug + Send {
    /// Makes a length durable, in bytes.
    fn publish(&mut self, len: u64) -> Result<()>;
}
