//! What lies beyond a file's end in its parts: cutting it off and making it read as zero.
//!
//! Garbage gets there when a process dies between a write past the end and the publication of the new length, or between the
//! publication of a shorter length and the cutting of the parts. With the hash layout the last, partial group of blocks
//! also leaves unused blocks *inside* a part, so cutting is not enough.

use super::state::FileState;
use crate::drive::PAGE_BYTES;
use crate::engine::EngineKind;
use crate::error::{Error, Result};
use crate::layout::LayoutKind;
use crate::sys::sync::Ordering;

/// Makes everything beyond `len` read as zero, and cuts the parts to what the layout implies, in whole pages. Nothing
/// is in flight.
pub fn clean(file: &FileState, len: u64) -> Result<()> {
    for (index, part) in file.parts.iter().enumerate() {
        let (fs, handle) = (part.open.fs(), part.open.handle());
        let failed = |action| move |e| Error::io(action, part.open.full_path(), e);
        let end = file.part_bytes(index, len);
        let whole = end.next_multiple_of(PAGE_BYTES as u64);
        let has = part.reserved.load(Ordering::Relaxed);
        if has > end {
            // The file system zeroes the rest of the last page when it cuts within it.
            fs.set_len(handle, end).map_err(failed("cut"))?;
        }
        if has != end || whole != end {
            fs.set_len(handle, whole).map_err(failed("extend"))?;
            part.reserved.store(whole, Ordering::Relaxed);
            part.mark.set();
        }
        if file.record.layout == LayoutKind::Hash {
            let ranges = unused_ranges(file, index, len, whole);
            for &(offset, len) in &ranges {
                fs.zero(handle, offset, len).map_err(failed("zero"))?;
                // Durable before a longer length is, which would uncover what was here.
                part.mark.set();
            }
            // An engine of mapped parts would not hear of it, and leave it out of a sync.
            if !ranges.is_empty() && file.array().services[usize::from(part.drive)].kind == EngineKind::Mmap {
                fs.sync_data(handle).map_err(failed("sync"))?;
            }
        }
    }
    Ok(())
}

/// Gives back what was allocated ahead.
pub fn trim(file: &FileState) -> Result<()> {
    let len = file.len();
    for (index, part) in file.parts.iter().enumerate() {
        let needs = file.part_bytes(index, len).next_multiple_of(PAGE_BYTES as u64);
        if part.reserved.load(Ordering::Relaxed) > needs {
            let cut = part.open.fs().set_len(part.open.handle(), needs);
            cut.map_err(|e| Error::io("cut", part.open.full_path(), e))?;
            part.reserved.store(needs, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// The ranges of a part, before its end at `part_end`, that belong to no byte below `len`: (offset, length) in bytes.
fn unused_ranges(file: &FileState, index: usize, len: u64, part_end: u64) -> Vec<(u64, u64)> {
    let block_bytes = file.block_bytes;
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    // Only the last group of blocks can be used in part: all before it is full.
    let group = file.map.group_blocks();
    let first = file.map.part_blocks(index as u16, len / block_bytes / group * group);
    for rank in first..part_end.div_ceil(block_bytes) {
        let start = file.map.block(index as u16, rank) * block_bytes;
        let used = len.saturating_sub(start).min(block_bytes);
        let (from, to) = (rank * block_bytes + used, ((rank + 1) * block_bytes).min(part_end));
        if from < to {
            match ranges.last_mut() {
                Some((offset, length)) if *offset + *length == from => *length += to - from,
                _ => ranges.push((from, to - from)),
            }
        }
    }
    ranges
}
