//! The sizes of parts: methods of [`FileState`] and [`Part`] that make parts longer, ahead of the writes, and that
//! clear or cut off the bytes past the file's end.
//!
//! Goals: appends do not pay for the file system each time; a batch allocates as much as its writes would one after the
//! other in rising order. Non-goals: the file's length in memory and in the catalog.
//!
//! A process leaves stale bytes past the end if it dies between a write there and the publication of the new length, or
//! between the publication of a shorter length and the cut of the parts. With the hash layout the last, partial group
//! of blocks leaves unused blocks *inside* a part, so cutting is not enough.

use std::ops::Range;

use super::FileState;
use super::backing::Part;
use super::sums::OpenSums;
use crate::catalog::is_full;
use crate::drive::PAGE_BYTES;
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::sys::fsyncs::Since;
use crate::sys::sync::{Ordering, lock, try_lock};

/// Parts grow by an eighth of their size, within these bounds, in bytes. A range that skips more than the most leaves a
/// hole.
const GROW_LEAST_BYTES: u64 = 1 << 20;
const GROW_MOST_BYTES: u64 = 256 << 20;

impl Part {
    /// Notes the part's new size in bytes, which the next sync makes durable. `since` is the moment before it grew. The
    /// caller holds `FileState::grow`, or nothing else is inside the file.
    fn grew(&self, to: u64, since: Since) {
        self.reserved.store(to, Ordering::Relaxed);
        self.mark.set(since);
    }

    /// Measures the part before its size changes. Returns its size in bytes. An error if it is shorter than its known
    /// size: then another program has cut it, and a new size would replace the lost bytes by zeros. `is_plain` says
    /// that it is a plain file.
    pub(super) fn check_uncut(&self, is_plain: bool) -> Result<u64> {
        let (open, has) = (self.open()?, self.has());
        let offset = open.fs().len(open.handle()).map_err(|e| Error::io("measure", self.path(), e))?;
        match has.saturating_sub(offset) {
            0 => Ok(offset),
            missing if is_plain => Err(Error::FileCut { path: self.path(), offset, missing }),
            missing => Err(Error::PartCut { path: self.path(), offset, missing }),
        }
    }

    /// Makes a part of an array at least `needs` bytes long, for a range that begins at `start`. If `start` is far past
    /// the end, it leaves a hole before it.
    fn reserve(&self, start: u64, needs: u64, is_ahead: bool, sums: Option<&OpenSums>) -> Result<()> {
        let mut has = self.has();
        if needs <= has {
            return Ok(());
        }
        self.check_uncut(false)?;
        if start > has + GROW_MOST_BYTES {
            self.extend(start, Since::now())?;
            has = start;
        }
        if needs <= has {
            // This part holds no byte of the ranges.
            return Ok(());
        }
        let since = Since::now();
        let to = match is_ahead {
            true => self.allocate_ahead(has, needs, sums)?,
            false => self.allocate(has, needs, sums).map(|()| needs)?,
        };
        self.grew(to, since);
        Ok(())
    }

    /// Allocates more than a part needs now. If the drive lacks space for that, it allocates only what the part needs.
    /// Returns the new size in bytes.
    fn allocate_ahead(&self, has: u64, needs: u64, sums: Option<&OpenSums>) -> Result<u64> {
        let extra = (has / 8).clamp(GROW_LEAST_BYTES, GROW_MOST_BYTES);
        let target = needs.max((has + extra).next_multiple_of(PAGE_BYTES as u64));
        match self.allocate(has, target, sums) {
            Ok(()) => Ok(target),
            Err(_) if target > needs => self.allocate(has, needs, sums).map(|()| needs),
            Err(error) => Err(error),
        }
    }

    /// Lengthens a part by a hole, and marks it as changed since `since`.
    fn extend(&self, to: u64, since: Since) -> Result<()> {
        let open = self.open()?;
        open.fs().set_len(open.handle(), to).map_err(|e| Error::io("extend", self.path(), e))?;
        self.grew(to, since);
        Ok(())
    }

    /// Allocates space for a plain file from its end, or from `start` if that is later, up to `needs`, which becomes
    /// its end. `measured` is its present size.
    fn allocate_plain(&self, start: u64, needs: u64, measured: u64) -> Result<()> {
        let open = self.open()?;
        let (fs, handle, from) = (open.fs(), open.handle(), start.max(self.has()));
        let since = Since::now();
        fs.allocate(handle, from, needs - from).map_err(|source| {
            // As in `allocate`. If this fails, the end of the file cuts it. If another program has made it longer, the
            // bytes of that program stay.
            if fs.len(handle).is_ok_and(|len| len > measured) {
                let _ = fs.set_len(handle, measured);
            }
            Error::Io { action: "make room in", path: self.path(), offset: Some(from), source }
        })?;
        self.grew(needs, since);
        Ok(())
    }

    /// Allocates space for a range, with that of its sums. So a full drive is an error of the write, and not of the
    /// sync that writes the sums.
    fn allocate(&self, from: u64, to: u64, sums: Option<&OpenSums>) -> Result<()> {
        sums.map_or(Ok(()), |sums| sums.reserve(from / PAGE_BYTES as u64..to.div_ceil(PAGE_BYTES as u64)))?;
        let open = self.open()?;
        let (fs, handle) = (open.fs(), open.handle());
        fs.allocate(handle, from, to - from).map_err(|source| {
            // Some file systems keep the space that they took before they ran out: all free space of the drive. If
            // freeing it fails here, the next opening frees it.
            if fs.len(handle).is_ok_and(|len| len > from) {
                let _ = fs.set_len(handle, from);
            }
            Error::Io { action: "make room in", path: self.path(), offset: Some(from), source }
        })
    }
}

impl FileState {
    /// Makes the parts long enough for writes of `ranges`, in bytes and in any order. The last ends at `end` (rule 1 of
    /// the length). `false` if the file must move first: another thread may just have given it a place that is too
    /// small.
    pub fn reserve(&self, end: u64, ranges: impl Iterator<Item = Range<u64>>) -> Result<bool> {
        self.check_writable()?;
        if self.is_plain() {
            return self.make_room_in_plain(end, ranges).map(|()| true);
        }
        let len = self.len();
        if end <= whole_pages(len) {
            return Ok(true);
        }
        let _grow = lock(&self.grow);
        self.backing.make_place(&self.exec, end)?;
        if self.must_move(end) {
            return Ok(false);
        }
        // The common case.
        if self.has_room_for(end) {
            return Ok(true);
        }
        let spans = spans(ranges.filter(|range| range.end > len).collect());
        for span in &spans {
            for (index, part) in self.parts().iter().enumerate() {
                let start = self.backing.part_bytes(index, span.start) & !(PAGE_BYTES as u64 - 1);
                let needs = self.needs(index, span.end);
                let sums = self.part_sums(index);
                self.with_space(index, || part.reserve(start, needs, span.end == end, sums))?;
            }
        }
        Ok(true)
    }

    /// The sums of part `index`, if it has some.
    fn part_sums(&self, index: usize) -> Option<&OpenSums> {
        self.sums.as_ref()?.parts().get(index)
    }

    /// Allocates in a part. If its drive is full, frees the space of deleted files first.
    fn with_space(&self, part: usize, make: impl Fn() -> Result<()>) -> Result<()> {
        match make() {
            Err(error) if is_full(&error) && self.backing.find_space(part) => make(),
            made => made,
        }
    }

    /// An error if another program has cut a part. Pages in a shared part are checked at its fsync.
    pub fn check_uncut(&self) -> Result<()> {
        if self.backing.is_small() {
            return Ok(());
        }
        self.parts().iter().try_for_each(|part| part.check_uncut(self.is_plain()).map(drop))
    }

    /// Makes a plain file long enough for writes of `ranges` (rule 6 of the length), and allocates their space: a full
    /// disk is an error of the write, and not of a later sync. Space ahead would show in the length. Skipped bytes are
    /// a hole.
    fn make_room_in_plain(&self, end: u64, ranges: impl Iterator<Item = Range<u64>>) -> Result<()> {
        if self.has_room_for(end) {
            return Ok(());
        }
        let _grow = lock(&self.grow);
        let Some(part) = self.parts().first() else { return Ok(()) };
        let mut ranges: Vec<Range<u64>> = ranges.collect();
        ranges.sort_unstable_by_key(|range| range.start);
        for range in ranges {
            let needs = self.needs(0, range.end);
            if needs > part.has() {
                let measured = part.check_uncut(true)?;
                part.allocate_plain(range.start & !(PAGE_BYTES as u64 - 1), needs, measured)?;
            }
        }
        Ok(())
    }

    /// Whether another thread makes the parts longer at this moment.
    pub fn is_growing(&self) -> bool {
        try_lock(&self.grow).is_none()
    }

    /// Whether the parts are long enough for a file of `end` bytes.
    pub fn has_room_for(&self, end: u64) -> bool {
        // The last page of a plain file may be partial.
        (end <= whole_pages(self.len()) && !self.is_plain())
            || (!self.parts().is_empty()
                && self.parts().iter().enumerate().all(|(index, part)| self.needs(index, end) <= part.has()))
    }

    /// Allocates the parts of a file of `end` bytes, without space ahead. `false` if the file must move first.
    pub fn preallocate(&self, end: u64) -> Result<bool> {
        self.check_writable()?;
        if self.is_plain() {
            let what = format!("preallocate on the plain file {}", self.name());
            let error = Error::invalid(what, "room ahead would show in its length");
            return Err(error.advise("make it longer with `set_len`"));
        }
        let _grow = lock(&self.grow);
        self.backing.make_place(&self.exec, end)?;
        if self.must_move(end) {
            return Ok(false);
        }
        for (index, part) in self.parts().iter().enumerate() {
            let (needs, has) = (self.needs(index, end), part.has());
            if needs > has {
                part.check_uncut(false)?;
                let since = Since::now();
                self.with_space(index, || part.allocate(has, needs, self.part_sums(index)))?;
                part.grew(needs, since);
            }
        }
        Ok(true)
    }

    /// Lengthens the parts by holes.
    pub(super) fn extend(&self, len: u64) -> Result<()> {
        let _grow = lock(&self.grow);
        self.backing.make_place(&self.exec, len)?;
        for (index, part) in self.parts().iter().enumerate() {
            let needs = self.needs(index, len);
            if needs > part.has() {
                part.check_uncut(self.is_plain())?;
                part.extend(needs, Since::now())?;
            }
        }
        Ok(())
    }

    /// Makes everything beyond `len` read as zero, and cuts the parts to what the layout implies, in whole pages.
    /// Nothing is in flight.
    pub(super) fn clean_beyond(&self, len: u64) -> Result<()> {
        if self.backing.is_small() {
            return self.backing.clear_beyond(len);
        }
        for (index, part) in self.parts().iter().enumerate() {
            let open = part.open()?;
            let (fs, handle, since) = (open.fs(), open.handle(), Since::now());
            let failed = |action| move |e| Error::io(action, part.path(), e);
            let end = self.backing.part_bytes(index, len);
            let whole = self.needs(index, len);
            let has = part.has();
            if has == end && self.is_plain() {
                // Nothing lies beyond, and its length shows.
                continue;
            }
            if has != end || whole != end {
                part.check_uncut(self.is_plain())?;
            }
            if has > end {
                // The file system zeroes the rest of the last page when it cuts within it.
                fs.set_len(handle, end).map_err(failed("cut"))?;
                // If the part cannot be extended to whole pages, reads end here.
                part.reserved.store(end, Ordering::Relaxed);
            }
            if has != end || whole != end {
                part.extend(whole, since)?;
            }
            let ranges = self.backing.unused_ranges(index, len, whole);
            for &(offset, len) in &ranges {
                fs.zero(handle, offset, len).map_err(failed("zero"))?;
                // The zeroes must be durable before a longer length, which would otherwise show the old bytes.
                part.mark.set(since);
            }
            // The engine `mmap` does not track these zeroes, and would leave them out of a sync.
            if !ranges.is_empty() && self.exec.services[usize::from(part.drive)].kind == EngineKind::Mmap {
                fs.sync_data(handle).map_err(failed("sync"))?;
            }
        }
        Ok(())
    }

    /// Makes parts as long as the layout implies, in whole pages. A crash within `clean_beyond` may have left them
    /// shorter. Longer ones stay as they are.
    pub(super) fn fill_up(&self, len: u64) -> Result<()> {
        for (index, part) in self.parts().iter().enumerate() {
            let (needs, since) = (self.needs(index, len), Since::now());
            if part.has() < needs {
                part.extend(needs, since)?;
            }
        }
        Ok(())
    }

    /// Makes a plain file as long as its length, without a sync. Nothing is in flight, and no page is dirty (rule 6 of
    /// the length).
    pub fn cut_plain(&self) -> Result<()> {
        if !self.is_overlong() {
            return Ok(());
        }
        let len = self.len();
        for part in self.parts().iter().filter(|part| part.has() > len) {
            part.check_uncut(true)?;
            let (open, since) = (part.open()?, Since::now());
            let cut = open.fs().set_len(open.handle(), len);
            cut.map_err(|e| Error::io("cut", part.path(), e))?;
            part.reserved.store(len, Ordering::Relaxed);
            part.mark.set(since);
        }
        Ok(())
    }

    /// Gives back the space that was allocated ahead. Nothing is in flight.
    pub fn trim(&self) -> Result<()> {
        if self.backing.is_small() {
            return Ok(());
        }
        let len = self.len();
        for (index, part) in self.parts().iter().enumerate() {
            let needs = self.needs(index, len);
            if part.has() > needs {
                part.check_uncut(false)?;
                let open = part.open()?;
                let cut = open.fs().set_len(open.handle(), needs);
                cut.map_err(|e| Error::io("cut", part.path(), e))?;
                part.reserved.store(needs, Ordering::Relaxed);
                self.part_sums(index).map_or(Ok(()), |sums| sums.trim(needs / PAGE_BYTES as u64))?;
            }
        }
        Ok(())
    }

    /// Whether a small file needs another place for `end` bytes. The caller then closes the gate, and calls
    /// [`Resize::move_for`](super::Resize).
    pub fn must_move(&self, end: u64) -> bool {
        self.backing.must_move(end)
    }

    /// The bytes that part `index` must have when the file is `end` bytes long: whole pages, as direct I/O writes them.
    /// A plain file without direct I/O has its own length at all times.
    pub(super) fn needs(&self, index: usize, end: u64) -> u64 {
        let bytes = self.backing.part_bytes(index, end);
        if self.is_exact(index) { bytes } else { bytes.next_multiple_of(PAGE_BYTES as u64) }
    }

    /// Whether part `index` is a plain file that is written to by bytes.
    fn is_exact(&self, index: usize) -> bool {
        self.is_plain() && !self.parts()[index].align.is_direct()
    }
}

/// The end of a file of `len` bytes up to which no part of an array needs to grow: parts have whole pages.
fn whole_pages(len: u64) -> u64 {
    len.next_multiple_of(PAGE_BYTES as u64)
}

/// The ranges in rising order. Ranges near each other are joined.
fn spans(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut spans: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match spans.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GROW_MOST_BYTES) => last.end = last.end.max(range.end),
            _ => spans.push(range),
        }
    }
    spans
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_one_span() {
        let far = GROW_MOST_BYTES;
        let ranges =
            vec![3 * far..3 * far + 9, 10..20, 0..100, far + 100..far + 101, 40..50, 2 * far + 102..2 * far + 103];
        assert_eq!(spans(ranges), [0..far + 101, 2 * far + 102..3 * far + 9]);
        assert_eq!(spans(Vec::new()), []);
    }
}
