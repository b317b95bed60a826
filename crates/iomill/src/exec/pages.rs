//! Whole pages to several places of drives, by one batch: [`Exec::write_pages`]. Non-goals: which bytes a file has there.

use super::{Exec, FirstFailure, Within};
use crate::drive::{Class, Failure, PAGE_BYTES, Piece};
use crate::engine::{FileRef, Memory, Op};
use crate::error::{Error, Result};
use crate::sys::memory::PageBuf;

/// Bytes for whole pages of one drive. Zeros go behind them, up to the end of the last page.
#[derive(Clone, Copy, Debug)]
pub struct PageWrite<'a> {
    /// Index of the drive.
    pub drive: u16,
    /// The file, which is open until the write has ended.
    pub file: FileRef,
    /// Offset in the file in bytes, at a page's edge.
    pub offset: u64,
    /// At most 64 KiB.
    pub bytes: &'a [u8],
}

impl Exec {
    /// Writes pages, and waits. Nothing else touches them meanwhile. Returns the first failure. After that it is not known which were written.
    pub fn write_pages(&self, class: Class, writes: &[PageWrite<'_>]) -> Result<Option<Failure>> {
        let len = writes.iter().map(|write| write.bytes.len().next_multiple_of(PAGE_BYTES)).sum();
        let mut pages = PageBuf::new(len).map_err(Error::memory("writing small files", len as u64))?;
        let mut left = pages.as_mut_slice();
        let mut pieces = Vec::with_capacity(writes.len());
        for write in writes {
            let (own, rest) = left.split_at_mut(write.bytes.len().next_multiple_of(PAGE_BYTES));
            own[..write.bytes.len()].copy_from_slice(write.bytes);
            let (len, memory) = (own.len() as u32, Memory::one(own.as_mut_ptr()));
            let piece = Piece { op: Op::Write, class, len, offset: write.offset, memory, ..Piece::sync(write.file) };
            pieces.push((write.drive, piece));
            left = rest;
        }
        let within = Within::new(pages.as_slice().as_ptr(), len);
        let failure = FirstFailure::default();
        // SAFETY: `pages` and the files are there until the landing is dropped, which waits.
        drop(unsafe { self.blocking().run(within, pieces.into_iter(), &failure) }?);
        Ok(failure.take())
    }
}
