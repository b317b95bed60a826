//! [`ArrayParts`]: the parts of a file of an array, as a [`Backing`]. Non-goals: changes of their size (`room`, `tail`).

use std::io::ErrorKind;
use std::sync::Arc;

use super::backing::{Backing, BackingKind, KeepLength, Part, Place};
use super::mark::Mark;
use crate::catalog::{Catalog, LengthFile, Record, part_path};
use crate::engine::FileRef;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::layout::{LayoutKind, Map};
use crate::sys::fs::{Access, DriveFile};
use crate::sys::sync::AtomicU64;

/// An open file of an array: its layout and its parts.
#[derive(Debug)]
pub struct ArrayParts {
    record: Arc<Record>,
    map: Map,
    block_bytes: u64,
    parts: Vec<Part>,
}

impl ArrayParts {
    /// Opens the parts of a file that is `len` bytes long.
    pub fn open(exec: &Exec, catalog: &Catalog, record: &Arc<Record>, len: u64) -> Result<ArrayParts> {
        let map = Map::new(record.layout, &record.weights, record.key)?;
        let access = if catalog.is_writer() { Access::WRITE } else { Access::READ }.direct();
        let mut parts = Vec::with_capacity(record.drives.len());
        for (index, &drive) in record.drives.iter().enumerate() {
            let holds_bytes = map.part_bytes(index as u16, len, record.block_bytes) > 0;
            parts.push(open_part(exec, catalog, record, drive, access, Mark::new(holds_bytes))?);
        }
        Ok(ArrayParts { record: Arc::clone(record), map, block_bytes: u64::from(record.block_bytes), parts })
    }
}

impl Backing for ArrayParts {
    fn kind(&self) -> BackingKind {
        BackingKind::Parts
    }

    /// Only one process at a time writes to an array.
    fn is_known(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        &self.record.name
    }

    fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn locate(&self, offset: u64) -> Place {
        let placement = self.map.place(offset / self.block_bytes);
        let within = offset % self.block_bytes;
        let (offset, left) = (placement.block * self.block_bytes + within, self.block_bytes - within);
        Place { part: usize::from(placement.drive), block: placement.block, offset, left }
    }

    fn part_bytes(&self, part: usize, len: u64) -> u64 {
        self.map.part_bytes(part as u16, len, self.record.block_bytes)
    }

    fn unused_ranges(&self, part: usize, len: u64, part_end: u64) -> Vec<(u64, u64)> {
        if self.record.layout != LayoutKind::Hash {
            return Vec::new();
        }
        let (index, block_bytes) = (part as u16, self.block_bytes);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        // Only the last group of blocks can be used in part: all before it is full.
        let group = self.map.group_blocks();
        let first = self.map.part_blocks(index, len / block_bytes / group * group);
        for rank in first..part_end.div_ceil(block_bytes) {
            let start = self.map.block(index, rank) * block_bytes;
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
}

impl KeepLength for LengthFile {
    fn publish(&mut self, len: u64) -> Result<()> {
        LengthFile::publish(self, len)
    }
}

fn open_part(exec: &Exec, catalog: &Catalog, record: &Record, drive: u16, access: Access, mark: Mark) -> Result<Part> {
    let Some(place) = catalog.drives().get(usize::from(drive)) else {
        let what = format!("drive {drive} in the record of {:?}", record.name);
        return Err(Error::invalid(what, "the array has no such drive"));
    };
    let path = part_path(&record.id);
    let whole_path = || place.fs.location().join("iomill").join(&path);
    let align = exec.align(drive);
    let access = Access { direct: access.direct && align.is_direct(), ..access };
    let mut open = DriveFile::open(&place.fs, &path, access).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let why =
                format!("the drive has lost its part of {:?}; `iomill check` tells what can be done", record.name);
            Error::Corrupt { path: whole_path(), why }
        }
        _ => Error::io("open", whole_path(), e),
    })?;
    let own = place.fs.alignment(open.handle()).map_err(|e| Error::io("examine", whole_path(), e))?;
    if own != align {
        // A file may differ from others of its drive (encrypted, journalled, inline). The queue aligns pieces by its drive, and buffered
        // I/O takes them all.
        let buffered = Access { direct: false, ..access };
        open = DriveFile::open(&place.fs, &path, buffered).map_err(|e| Error::io("open", whole_path(), e))?;
    }
    let reserved = place.fs.len(open.handle()).map_err(|e| Error::io("measure", whole_path(), e))?;
    let file = FileRef { handle: open.handle(), key: exec.next_key() };
    Ok(Part { open, file, drive, align, reserved: AtomicU64::new(reserved), mark })
}
