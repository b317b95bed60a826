//! The first write of a small file: whole pages, in one I/O. Non-goals: all other writes (`transfer`).
//!
//! A write of a part of a page first reads the page, and pages of an earlier file are first cleared. A file without a
//! place needs neither: no other write can reach its pages before this one has ended.

use super::FileState;
use super::backing::{BackingKind, FirstPlace};
use crate::drive::Class;
use crate::engine::Op;
use crate::error::Result;
use crate::exec::PageWrite;
use crate::sys::sync::lock;

impl FileState {
    /// Writes the first bytes of a file, if it has no place and they fit into pages of a shared part. Returns whether
    /// it did. The caller is inside the gate.
    pub fn write_first(&self, bytes: &[u8], class: Class) -> Result<bool> {
        let Some(place) = self.give_first(bytes.len())? else { return Ok(false) };
        let failed = self.exec.write_pages(class, &[PageWrite::first(&place, bytes)])?;
        if let Some(failure) = failed {
            return Err(self.error_in(place.place().0.path(), failure));
        }
        Ok(self.take_first(place, bytes))
    }

    /// Pages for the first bytes of a file. `None` if the file has a place, or if the bytes are many. The caller writes
    /// all of the pages.
    pub fn give_first(&self, bytes: usize) -> Result<Option<FirstPlace>> {
        if bytes == 0 || self.kind != BackingKind::Parts || !self.parts().is_empty() {
            return Ok(None);
        }
        self.check_writable()?;
        self.backing.give_first(&self.exec, bytes as u64)
    }

    /// Makes written pages the file's place. They hold the first bytes of the file, and zeros after them. `false` if
    /// another write was first: then the pages are discarded.
    pub fn take_first(&self, place: FirstPlace, bytes: &[u8]) -> bool {
        let _grow = lock(&self.grow);
        let is_taken = self.backing.take_first(place);
        if is_taken {
            self.note_first_sums(bytes);
            self.exec.count_bytes(Op::Write, bytes.len() as u64);
            self.wrote(bytes.len() as u64);
        }
        is_taken
    }
}

impl<'a> PageWrite<'a> {
    /// Bytes for the pages of a first place.
    pub fn first(place: &FirstPlace, bytes: &'a [u8]) -> PageWrite<'a> {
        let (part, offset) = place.place();
        PageWrite { drive: part.drive, file: part.file, offset, bytes }
    }
}
