//! [`Exec::write_pages`]: writes of whole pages to several places of drives in one batch, also those of a turn's jobs.
//! Non-goals: which bytes a file has there.

use std::sync::Arc;

use super::turns::{Job, Jobs};
use super::{Exec, FirstFailure, PageWrite, Within};
use crate::drive::{Class, Failure, PAGE_BYTES, Piece};
use crate::engine::{Memory, Op};
use crate::error::{Error, Result};
use crate::sys::memory::PageBuf;

impl Exec {
    /// Writes pages, and waits. No other code touches these pages meanwhile. Returns the first failure. After a failure
    /// any of the pages may have been written.
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
        // SAFETY: `pages` and the files outlive the landing, and its drop waits for the pieces.
        drop(unsafe { self.blocking().run(within, pieces.into_iter(), &failure) }?);
        Ok(failure.take())
    }

    /// Adds a job to the turns in which changes of the catalog are made.
    pub fn change(self: &Arc<Exec>, job: Box<dyn Job>) {
        let exec = Arc::clone(self);
        self.changes.push(move |jobs| exec.write_pages_of(jobs), job);
    }

    /// Writes the pages of all jobs in one batch. Returns whether they are written: after a failure each job writes by
    /// itself, and so gets an error of its own.
    fn write_pages_of(&self, jobs: &Jobs) -> bool {
        let writes: Vec<PageWrite<'_>> = jobs.iter().filter_map(|job| job.pages()).collect();
        writes.is_empty() || matches!(self.write_pages(Class::Foreground, &writes), Ok(None))
    }
}
