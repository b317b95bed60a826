//! The storage of a file's bytes and length: the trait [`Backing`], the [`Part`]s of a backing, and their [`Place`]s.
//!
//! Goals: the rooms above are the same for files of an array and for plain files. Non-goals: I/O, which is done in
//! pieces on parts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::mark::Mark;
use super::sums::Sums;
use crate::catalog::{Catalog, Extent, SharedPart};
use crate::drive::PAGE_BYTES;
use crate::engine::FileRef;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::sys::fs::{Alignment, DriveFile};
use crate::sys::fsyncs::Since;
use crate::sys::sync::{AtomicU64, Ordering};

/// One drive's share of an open file.
#[derive(Debug)]
pub struct Part {
    /// The open part. `None` if it is empty and this process only reads: then no read reaches it.
    pub open: Option<Arc<DriveFile>>,
    /// Its handle and key, which identify it to engines.
    pub file: FileRef,
    /// Index of its drive.
    pub drive: u16,
    /// The alignment that its drive's queues assume for I/O on it.
    pub align: Alignment,
    /// Bytes that the part is known to have: a multiple of the page. Changed only under `FileState::grow`, or with
    /// nothing in flight.
    pub reserved: AtomicU64,
    /// Whether it holds bytes that no fdatasync has covered.
    pub mark: Mark,
}

impl Part {
    /// Bytes that it is known to have.
    pub fn has(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Reads all of `bytes` from an offset, past the path of I/O. An error if the part ends before.
    pub fn read_whole(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let open = self.open()?;
        let read = open.fs().read_at(open.handle(), bytes, offset);
        let failed = |source| Error::Io { action: "read", path: self.path(), offset: Some(offset), source };
        let read = read.map_err(failed)?;
        match (bytes.len() - read) as u64 {
            0 => Ok(()),
            missing => Err(Error::PartCut { path: self.path(), offset: offset + read as u64, missing }),
        }
    }

    /// Where it is, for messages.
    pub fn path(&self) -> PathBuf {
        self.open.as_ref().map(|open| open.full_path()).unwrap_or_default()
    }

    /// The open part of a file that is open for writing, or that has bytes in it.
    pub fn open(&self) -> Result<&DriveFile> {
        let why = || Error::invalid("a part that is empty", "no process that only reads has it open");
        self.open.as_deref().ok_or_else(why)
    }
}

/// Pages of a shared part that are to be a file's first place. No other call can reach them before the file takes them.
/// Dropping this frees them.
#[derive(Debug)]
pub struct FirstPlace {
    catalog: Arc<Catalog>,
    /// `None` when they are taken.
    pages: Option<Pages>,
    /// Whether they read as zero.
    pub is_zero: bool,
    /// The moment before the first write to them.
    pub since: Since,
}

/// Pages of a shared part.
#[derive(Debug)]
pub struct Pages {
    pub part: Part,
    pub extent: Extent,
    pub shared: Arc<SharedPart>,
}

impl FirstPlace {
    /// Wraps pages that the catalog has allocated.
    pub fn new(catalog: &Arc<Catalog>, pages: Pages, is_zero: bool) -> FirstPlace {
        FirstPlace { catalog: Arc::clone(catalog), pages: Some(pages), is_zero, since: Since::now() }
    }

    /// The part, and where in it the pages begin, in bytes.
    pub fn place(&self) -> (&Part, u64) {
        let Some(pages) = &self.pages else { unreachable!("what takes them takes this") };
        (&pages.part, u64::from(pages.extent.page) * PAGE_BYTES as u64)
    }

    /// Passes the pages to the file.
    pub fn take(mut self) -> Pages {
        let Some(pages) = self.pages.take() else { unreachable!("what takes them takes this") };
        pages
    }
}

impl Drop for FirstPlace {
    fn drop(&mut self) {
        self.pages.iter().for_each(|pages| self.catalog.take_pages_back(pages.extent));
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
    /// The number of bytes from here on that are contiguous in the part.
    pub left: u64,
}

/// The kind of a file's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingKind {
    /// Parts of an array. They may be longer than the file, and the catalog has its length.
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

    /// Whether a later opening can tell that the file has not changed since its close.
    fn is_known(&self) -> bool;

    /// The file's name when it was opened. A draft has the name that it got.
    fn name(&self) -> &str;

    /// The block size in bytes, a multiple of the page. The bytes of a block are contiguous in one part.
    fn block_bytes(&self) -> u64;

    /// Its parts. None before it has any.
    fn parts(&self) -> &[Part];

    /// Whether its bytes are in a part that other files share. Then only the bytes within `Part::reserved` are its own.
    fn is_small(&self) -> bool {
        false
    }

    /// Makes a place for `end` bytes if it has none. The caller holds `FileState::grow`.
    fn make_place(&self, exec: &Exec, end: u64) -> Result<()> {
        let _always_has_one = (exec, end);
        Ok(())
    }

    /// Pages of a shared part for a file that has no place, if `bytes` bytes are few.
    fn give_first(&self, exec: &Exec, bytes: u64) -> Result<Option<FirstPlace>> {
        let _always_has_one = (exec, bytes);
        Ok(None)
    }

    /// Makes such pages the file's place. They were written as a whole. Frees them if the file has a place by now. The
    /// caller holds `FileState::grow`.
    fn take_first(&self, place: FirstPlace) -> bool {
        drop(place);
        false
    }

    /// Whether it needs another place for `end` bytes.
    fn must_move(&self, end: u64) -> bool {
        let _never = end;
        false
    }

    /// Moves its first `len` bytes to a place for `end` bytes. The gate is closed, and the caller holds
    /// `FileState::grow`.
    fn move_for(&self, exec: &Exec, len: u64, end: u64) -> Result<()> {
        let _never = (exec, len, end);
        Ok(())
    }

    /// Frees space on the full drive of a part, if possible. Returns whether it has freed any.
    fn find_space(&self, part: usize) -> bool {
        let _nowhere = part;
        false
    }

    /// Makes its own bytes past `len` in a shared part read as zero. Nothing is in flight.
    fn clear_beyond(&self, len: u64) -> Result<()> {
        let _none = len;
        Ok(())
    }

    /// Makes writes to a shared part durable up to a stamp (`sys::fsyncs`). `None` if the file has no shared part.
    fn sync_shared(&self, _stamp: u64) -> Option<Result<()>> {
        None
    }

    /// Makes a length in bytes durable, with the places of the bytes.
    fn publish(&self, len: u64) -> Result<()>;

    /// Notes that the file was modified, when its length has not changed.
    fn touch(&self) -> Result<()>;

    /// Makes durable the changes of names that did not wait for their fsync.
    fn sync_changes(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the names of new parts durable. After an error it is not known which are.
    fn settle_names(&self) -> Result<()> {
        Ok(())
    }

    /// The sums of its pages, if they have some.
    fn sums(&self) -> Option<&Arc<Sums>> {
        None
    }

    /// Whether a crash removes the file, because it has no name.
    fn is_unnamed(&self) -> bool {
        false
    }

    /// Makes the sums of a small file of `len` bytes durable in its record, if no write has begun since the epoch
    /// (`sums`).
    fn settle_record(&self, before: u64, len: u64) -> Result<()> {
        let _none = (before, len);
        Ok(())
    }

    /// Where a byte is, by its offset in bytes. It has parts.
    fn locate(&self, offset: u64) -> Place;

    /// The bytes that a part must have at least when the file is `len` bytes long.
    fn part_bytes(&self, part: usize, len: u64) -> u64;

    /// Ranges of a part, up to `part_end`, that hold no byte of a file of `len` bytes: (offset, length) in bytes.
    fn unused_ranges(&self, part: usize, len: u64, part_end: u64) -> Vec<(u64, u64)>;
}
