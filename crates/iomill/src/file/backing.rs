//! What a file's bytes lie in.
//!
//! Goals: the rooms above need not know whether a file is spread over an array. Non-goals: I/O, which goes by pieces on parts.

use std::fmt;
use std::path::PathBuf;

use super::mark::Mark;
use crate::engine::FileRef;
use crate::error::Result;
use crate::sys::fs::{Alignment, OpenFile};
use crate::sys::sync::{AtomicU64, Ordering};

/// One drive's share of an open file.
#[derive(Debug)]
pub struct Part {
    /// The open part.
    pub open: OpenFile,
    /// Its name to the engines.
    pub file: FileRef,
    /// Index of its drive.
    pub drive: u16,
    /// What its drive's queues take I/O on it to demand.
    pub align: Alignment,
    /// Bytes that the part is known to have: a multiple of the page. Written under `FileState::grow` only.
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
}

/// The places of a file's bytes.
pub trait Backing: fmt::Debug + Send + Sync {
    /// The file's name when it was opened.
    fn name(&self) -> &str;

    /// Bytes that lie in one part one after the other, from each multiple of this on: a multiple of the page.
    fn block_bytes(&self) -> u64;

    /// Its parts.
    fn parts(&self) -> &[Part];

    /// Where a byte is, by its offset in bytes.
    fn locate(&self, offset: u64) -> Place;

    /// What a part must hold at least when the file is `len` bytes long, in bytes.
    fn part_bytes(&self, part: usize, len: u64) -> u64;

    /// Ranges of a part before its end at `part_end` that hold no byte below `len`: (offset, length) in bytes.
    fn unused_ranges(&self, part: usize, len: u64, part_end: u64) -> Vec<(u64, u64)>;
}

/// What keeps a file's length over a crash.
pub trait KeepLength: fmt::Debug + Send {
    /// Makes a length durable, in bytes.
    fn publish(&mut self, len: u64) -> Result<()>;
}
