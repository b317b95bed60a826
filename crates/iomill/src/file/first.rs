//! The first write of a small file: whole pages, in one I/O. Non-goals: all other writes (`transfer`).
//!
//! A write of a part of a page reads the page before, and pages that had another file are cleared before. A file that has no place yet needs
//! neither: no other write can reach its pages before this one has ended.

use super::FileState;
use super::backing::{BackingKind, Part};
use crate::drive::{PAGE_BYTES, Piece};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::exec::{FirstFailure, Within};
use crate::sys::memory::PageBuf;
use crate::sys::sync::lock;

impl FileState {
    /// Writes the first bytes of a file, if it has no place and they fit into pages of a shared part. Returns whether it did. The caller is
    /// inside the gate.
    pub fn write_first(&self, bytes: &[u8]) -> Result<bool> {
        if bytes.is_empty() || self.kind != BackingKind::Parts || !self.parts().is_empty() {
            return Ok(false);
        }
        self.check_writable()?;
        let _grow = lock(&self.grow);
        let write = |part: &Part, at| self.write_pages(part, at, bytes);
        if !self.backing.make_first_place(&self.exec, bytes.len() as u64, &write)? {
            return Ok(false);
        }
        self.exec.count_bytes(Op::Write, bytes.len() as u64);
        self.wrote(bytes.len() as u64);
        Ok(true)
    }

    /// Writes bytes and zeros behind them, up to the end of the last page, to an offset of a part.
    fn write_pages(&self, part: &Part, at: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len().next_multiple_of(PAGE_BYTES);
        let mut pages = PageBuf::new(len).map_err(Error::memory("writing a small file", len as u64))?;
        pages.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let memory = Memory::one(pages.as_mut_slice().as_mut_ptr());
        let piece = Piece { op: Op::Write, len: len as u32, offset: at, memory, ..Piece::sync(part.file) };
        let within = Within::new(pages.as_slice().as_ptr(), len);
        let failure = FirstFailure::default();
        // SAFETY: `pages` is there until the landing is dropped, which waits, and the caller holds the part.
        drop(unsafe { self.exec.blocking_inline().run(within, std::iter::once((part.drive, piece)), &failure) }?);
        failure.take().map_or(Ok(()), |failure| Err(self.error(failure)))
    }
}
