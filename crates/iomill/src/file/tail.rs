//! The bytes beyond a file's end in its parts: [`clean`] makes them read as zero, [`trim`] and [`cut_plain`] cut them
//! off, and [`fill_up`] replaces those that are missing. Non-goals: space for a longer file (`room`).
//!
//! A process leaves stale bytes there if it dies between a write past the end and the publication of the new length, or
//! between the publication of a shorter length and the cut of the parts. With the hash layout the last, partial group
//! of blocks leaves unused blocks *inside* a part, so cutting is not enough.

use super::FileState;
use super::backing::Part;
use crate::drive::PAGE_BYTES;
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::sys::fsyncs::Since;
use crate::sys::sync::Ordering;

/// Makes everything beyond `len` read as zero, and cuts the parts to what the layout implies, in whole pages. Nothing
/// is in flight.
pub fn clean(file: &FileState, len: u64) -> Result<()> {
    if file.backing.is_small() {
        return file.backing.clear_beyond(len);
    }
    for (index, part) in file.parts().iter().enumerate() {
        let open = part.open()?;
        let (fs, handle, since) = (open.fs(), open.handle(), Since::now());
        let failed = |action| move |e| Error::io(action, part.path(), e);
        let end = file.backing.part_bytes(index, len);
        let whole = file.needs(index, len);
        let has = part.has();
        if has == end && file.is_plain() {
            // Nothing lies beyond, and its length shows.
            continue;
        }
        if has != end || whole != end {
            part.check_uncut(file.is_plain())?;
        }
        if has > end {
            // The file system zeroes the rest of the last page when it cuts within it.
            fs.set_len(handle, end).map_err(failed("cut"))?;
            // If the part cannot be extended to whole pages, reads end here.
            part.reserved.store(end, Ordering::Relaxed);
        }
        if has != end || whole != end {
            extend(part, whole, since)?;
        }
        let ranges = file.backing.unused_ranges(index, len, whole);
        for &(offset, len) in &ranges {
            fs.zero(handle, offset, len).map_err(failed("zero"))?;
            // The zeroes must be durable before a longer length, which would otherwise show the old bytes.
            part.mark.set(since);
        }
        // The engine `mmap` does not track these zeroes, and would leave them out of a sync.
        if !ranges.is_empty() && file.exec.services[usize::from(part.drive)].kind == EngineKind::Mmap {
            fs.sync_data(handle).map_err(failed("sync"))?;
        }
    }
    Ok(())
}

/// Makes parts as long as the layout implies, in whole pages. A crash within `clean` may have left them shorter. Longer
/// ones stay as they are.
pub fn fill_up(file: &FileState, len: u64) -> Result<()> {
    for (index, part) in file.parts().iter().enumerate() {
        let (needs, since) = (file.needs(index, len), Since::now());
        if part.has() < needs {
            extend(part, needs, since)?;
        }
    }
    Ok(())
}

/// Makes a part as long as that, and marks it as changed since `since`.
fn extend(part: &Part, bytes: u64, since: Since) -> Result<()> {
    let open = part.open()?;
    open.fs().set_len(open.handle(), bytes).map_err(|e| Error::io("extend", part.path(), e))?;
    part.reserved.store(bytes, Ordering::Relaxed);
    part.mark.set(since);
    Ok(())
}

/// Cuts a plain file to its length, without a sync. No page is dirty, and nothing is in flight (rule 6 of the length).
pub fn cut_plain(file: &FileState) -> Result<()> {
    let len = file.len();
    for part in file.parts().iter().filter(|part| part.has() > len) {
        part.check_uncut(true)?;
        let (open, since) = (part.open()?, Since::now());
        let cut = open.fs().set_len(open.handle(), len);
        cut.map_err(|e| Error::io("cut", part.path(), e))?;
        part.reserved.store(len, Ordering::Relaxed);
        part.mark.set(since);
    }
    Ok(())
}

/// Gives back the space that was allocated ahead.
pub fn trim(file: &FileState) -> Result<()> {
    if file.backing.is_small() {
        return Ok(());
    }
    let len = file.len();
    for (index, part) in file.parts().iter().enumerate() {
        let needs = file.needs(index, len);
        if part.has() > needs {
            part.check_uncut(false)?;
            let open = part.open()?;
            let cut = open.fs().set_len(open.handle(), needs);
            cut.map_err(|e| Error::io("cut", part.path(), e))?;
            part.reserved.store(needs, Ordering::Relaxed);
            file.part_sums(index).map_or(Ok(()), |sums| sums.trim(needs / PAGE_BYTES as u64))?;
        }
    }
    Ok(())
}
