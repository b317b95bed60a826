//! Transfers between a call's memory and a file's drives, past every cache; and [`WriteTurn`], which every write has.
//! Non-goals: pages.

use super::FileState;
use super::split::{IoRange, Splitter};
use super::sums::Sums;
use crate::drive::Class;
use crate::engine::Op;
use crate::error::Result;
use crate::exec::{FirstFailure, Io, Landing, Within};
use crate::sys::fsyncs::Since;

/// A write in progress. If an error or a panic drops it before `finish`, it counts as a failed write.
#[derive(Debug)]
pub struct WriteTurn<'a> {
    file: &'a FileState,
    /// The end of the last byte, as an offset in bytes; 0 if nothing is written.
    end: u64,
    /// Whether it writes to the drives now. A write to the cache marks the parts when its pages are flushed.
    is_direct: bool,
    /// The moment before the write.
    since: Since,
    has_ended: bool,
}

impl<'a> WriteTurn<'a> {
    /// Begins a write up to the offset `end`, in bytes. The caller is inside the gate.
    pub fn begin(file: &'a FileState, end: u64, is_direct: bool) -> WriteTurn<'a> {
        WriteTurn { file, end, is_direct, since: Since::now(), has_ended: end == 0 }
    }

    /// The write has succeeded.
    pub fn finish(mut self) {
        if self.end > 0 {
            if self.is_direct {
                self.file.mark_parts(self.since);
            }
            self.file.wrote(self.end);
        }
        self.has_ended = true;
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.file.wrote_in_part(self.end, self.since);
        }
    }
}

impl FileState {
    /// Reads `reads` and writes `writes`. The caller is inside the gate, and has allocated space. After a failure no
    /// more pieces begin.
    ///
    /// # Safety
    /// The I/O ranges' memory is valid until this has ended or is dropped; memory that is read into is touched by
    /// nothing else.
    pub async unsafe fn transfer(
        &self,
        io: &Io<'_>,
        class: Class,
        within: Within,
        reads: impl Iterator<Item = IoRange>,
        writes: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        if let Some(sums) = self.sums() {
            let (mut read, mut written) = (0, 0);
            let reads = reads.inspect(|io_range| read += io_range.len as u64);
            let writes = writes.inspect(|io_range| written += io_range.len as u64);
            // SAFETY: the caller's promise. In a box, because an operation has room for all that it may wait for.
            let done = unsafe { Box::pin(self.transfer_proved(io, class, sums, reads, writes)) }.await;
            self.exec.count_bytes(Op::Read, read);
            self.exec.count_bytes(Op::Write, written);
            return done;
        }
        let first = FirstFailure::default();
        // SAFETY: the caller's promise.
        let landing = unsafe { self.begin_transfer(io, class, within, reads, writes, &first) }?;
        landing.await;
        first.take().map_or(Ok(()), |failure| Err(self.error(failure)))
    }

    /// `transfer` of a file with these sums, without counting its bytes.
    ///
    /// # Safety
    /// As for `transfer`.
    pub async unsafe fn transfer_proved(
        &self,
        io: &Io<'_>,
        class: Class,
        sums: &Sums,
        reads: impl Iterator<Item = IoRange>,
        writes: impl Iterator<Item = IoRange>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let read = self.read_proved(io, class, sums, reads).await;
            let wrote = self.write_proved(io, class, sums, writes).await;
            read.and(wrote)
        }
    }

    /// # Safety
    /// As for `transfer`, until what is returned has ended or is dropped.
    unsafe fn begin_transfer<'a, 's>(
        &self,
        io: &Io<'a>,
        class: Class,
        within: Within,
        reads: impl Iterator<Item = IoRange>,
        writes: impl Iterator<Item = IoRange>,
        first: &'s FirstFailure,
    ) -> Result<Landing<'a, 's>> {
        let (mut read, mut written) = (0, 0);
        let reads = reads.inspect(|io_range| read += io_range.len as u64);
        let writes = writes.inspect(|io_range| written += io_range.len as u64);
        let mut pieces =
            Splitter::new(self, Op::Read, class, reads).chain(Splitter::new(self, Op::Write, class, writes));
        let until_failure = std::iter::from_fn(|| if first.is_none() { pieces.next() } else { None });
        // SAFETY: the caller's promise.
        let landing = unsafe { io.run(within, until_failure, first) };
        drop(pieces);
        self.exec.count_bytes(Op::Read, read);
        self.exec.count_bytes(Op::Write, written);
        landing
    }
}
