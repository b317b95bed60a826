//! The sums of an array's files: their places, and their entries in records. Non-goals: the sums themselves
//! (`file::sums`).

use super::{ArrayParts, FilePlace, bytes_of, failed_at, start_of};
use crate::catalog::{SUMS_IN_PARTS, sums_path};
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::file::backing::{Backing, Part};
use crate::file::sums::{NONE, OpenSums, Opening, PartSums, Sums, UNKNOWN, Writing};
use crate::sys::fsyncs::Since;
use crate::sys::memory::PageBuf;
use crate::sys::sync::Ordering;

impl ArrayParts {
    /// Opens the sums of parts, as `open_parts` does the parts.
    pub(super) fn open_sums(&self, sums: &Sums, parts: &[Part], len: u64) -> Result<Box<[OpenSums]>> {
        let path = sums_path(self.record.number);
        let open = |(index, part): (usize, &Part)| {
            let drive = self.catalog.drives().get(usize::from(part.drive));
            let no_drive = || Error::invalid(format!("drive {}", part.drive), "the array has no such drive");
            let opening = Opening {
                fs: &drive.ok_or_else(no_drive)?.fs,
                path: &path,
                is_writer: self.catalog.is_writer(),
                used: self.map.part_bytes(index as u16, len, self.block_bytes as u32).div_ceil(PAGE_BYTES as u64),
                pages: part.has().div_ceil(PAGE_BYTES as u64),
                memory: sums.memory(),
            };
            PartSums::open(*sums.identity(), index, part.open.as_ref(), &opening)
        };
        parts.iter().enumerate().map(open).collect()
    }

    /// Recomputes the sums of a small file, if a crash has made them doubtful (C60).
    pub(super) fn remake_small(&self, len: u64) -> Result<()> {
        let Some((sums, small)) = self.sums.as_ref().and_then(|sums| Some((sums, sums.small()?))) else {
            return Ok(());
        };
        let bytes = len.next_multiple_of(PAGE_BYTES as u64);
        let Some(held) = self.now().filter(|_| bytes > 0 && small.is_unknown()) else { return Ok(()) };
        let Some(extent) = held.extent() else { return Ok(()) };
        let mut buffer = PageBuf::new(PAGE_BYTES).map_err(Error::memory("making sums anew", PAGE_BYTES as u64))?;
        for page in 0..bytes / PAGE_BYTES as u64 {
            let at = start_of(extent) + page * PAGE_BYTES as u64;
            let sum = match held.parts[0].read_whole(at, buffer.as_mut_slice()) {
                // A sector that cannot be read concerns its own page.
                Err(error @ Error::Io { .. }) if !error.passes() => UNKNOWN,
                read => read.map(|()| sums.identity().sum(page, buffer.as_slice()))?,
            };
            small.set(page, sum);
        }
        Ok(())
    }

    /// A page of a small file that is not what was written.
    pub(super) fn wrong_page(&self, part: &Part, page: u64) -> Error {
        let offset = self.now().and_then(FilePlace::extent).map_or(0, start_of) + page * PAGE_BYTES as u64;
        Error::CorruptPage { file: self.name().to_owned(), page, drive: part.drive, path: part.path(), offset }
    }

    /// Calls `record` with the sums of the present place as a record of `len` bytes has them.
    pub(super) fn with_sums<R>(&self, len: u64, record: impl FnOnce(Option<&[u8]>) -> R) -> R {
        let Some(sums) = &self.sums else { return record(None) };
        match sums.small() {
            Some(small) => small.record(len.div_ceil(PAGE_BYTES as u64), |field| record(Some(field))),
            None => record(Some(&[SUMS_IN_PARTS])),
        }
    }

    /// Moves the sums of the first `len` bytes of a small file to the place `to`. Calls `record` with the sums as a
    /// record of that place has them. Nothing is in flight.
    pub(super) fn move_sums(
        &self,
        to: &FilePlace,
        len: u64,
        record: impl FnOnce(Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let Some(sums) = &self.sums else { return record(None) };
        let (pages, Some(small)) = (len.div_ceil(PAGE_BYTES as u64), sums.small()) else { return record(None) };
        let Some(parts) = &to.sums else { return small.record_moved(pages, |field| record(Some(field))) };
        let (part, block) = self.first_block();
        let first = block * self.block_bytes / PAGE_BYTES as u64;
        if let Some(part) = parts.get(part).filter(|_| pages > 0) {
            let own: Vec<u32> = (0..pages).map(|page| small.sum(page)).collect();
            part.take_first(first, &own, !sums.marks())?;
        }
        record(Some(&[SUMS_IN_PARTS]))
    }

    pub(super) fn draft_has_no_name(&self) -> bool {
        self.draft.as_ref().is_some_and(|draft| draft.is_unpublished())
    }

    pub(super) fn publish_with(&self, len: u64, sums: Option<&[u8]>) -> Result<()> {
        let held = self.now();
        let extent = held.and_then(FilePlace::extent);
        if self.draft.as_ref().is_some_and(|draft| draft.note_length(len, extent, sums)) {
            return Ok(());
        }
        self.catalog.publish(self.record.number, len, extent, sums)?;
        if held.is_some() {
            self.is_published.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the bytes of a small file past `len` read as zero.
    pub(super) fn clear_pages_beyond(&self, len: u64) -> Result<()> {
        let Some(held) = self.now() else { return Ok(()) };
        let Some(extent) = held.extent().filter(|extent| len < bytes_of(*extent)) else { return Ok(()) };
        let within = (len % PAGE_BYTES as u64) as usize;
        let first = len - within as u64;
        let bytes = (bytes_of(extent) - first) as usize;
        let mut buffer = PageBuf::new(bytes).map_err(Error::memory("clearing pages", bytes as u64))?;
        let (part, at) = (&held.parts[0], start_of(extent) + first);
        let open = part.open()?;
        let number = first / PAGE_BYTES as u64;
        let mut writing = None;
        if within > 0 {
            let page = &mut buffer.as_mut_slice()[..PAGE_BYTES];
            part.read_whole(at, page)?;
            if let Some(sums) = &self.sums {
                sums.check_small(number, page).map_err(|_| self.wrong_page(part, number))?;
            }
            page[within..].fill(0);
            if let Some(sums) = &self.sums {
                writing = Some(Writing::begin(sums, vec![(number, sums.identity().sum(number, page))])?);
            }
        }
        let since = Since::now();
        open.fs().write_at(open.handle(), buffer.as_slice(), at).map_err(failed_at("clear", part, at))?;
        part.mark.set(since);
        if let Some(writing) = writing {
            writing.all_written();
        }
        if let Some(small) = self.sums.as_ref().and_then(|sums| sums.small()) {
            (number + u64::from(within > 0)..u64::from(extent.pages)).for_each(|page| small.set(page, NONE));
        }
        Ok(())
    }
}
