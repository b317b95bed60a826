//! [`Splitter`] cuts the [`IoRange`]s of a call into pieces: at block boundaries, because the next block is on another
//! drive, and at page edges, for the drive's direct I/O. [`Lies`] says which pages one piece can move. Non-goals: the
//! order and merging of pieces (`drive::queue`).

use super::FileState;
use crate::drive::locks::BlockLocks;
use crate::drive::{BOUNCE_BYTES, Class, PAGE_BYTES, PIECE_BYTES, Piece};
use crate::engine::{Memory, Op};
use crate::sys::fs::Alignment;

/// A range of a virtual file and the caller's memory for it.
#[derive(Clone, Copy, Debug)]
pub struct IoRange {
    /// Offset in the file in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// The memory.
    pub buf: *mut u8,
}

// SAFETY: an I/O range describes memory. A caller that passes it to another thread keeps that memory valid, as for a
// piece.
unsafe impl Send for IoRange {}
// SAFETY: as above; only unsafe code reaches the memory through it.
unsafe impl Sync for IoRange {}

/// Ranges with their memory, which lies one after the other from `start` on.
pub fn io_ranges<R: Iterator<Item = (u64, usize)>>(
    ranges: R,
    start: *mut u8,
) -> std::iter::Map<R, impl FnMut((u64, usize)) -> IoRange + Clone> {
    let mut at = 0;
    ranges.map(move |(offset, len)| {
        let buf = start.wrapping_add(at);
        at += len;
        IoRange { offset, len, buf }
    })
}

/// An iterator over the pieces of I/O ranges, each with the array's index of its drive.
pub struct Splitter<'a, E> {
    file: &'a FileState,
    op: Op,
    class: Class,
    io_ranges: E,
    now: IoRange,
}

impl<'a, E: Iterator<Item = IoRange>> Splitter<'a, E> {
    /// Cuts `io_ranges`, which lie within the parts.
    pub fn new(file: &'a FileState, op: Op, class: Class, io_ranges: E) -> Self {
        let now = IoRange { offset: 0, len: 0, buf: std::ptr::null_mut() };
        Splitter { file, op, class, io_ranges, now }
    }
}

impl<E: Iterator<Item = IoRange>> Iterator for Splitter<'_, E> {
    type Item = (u16, Piece);

    #[inline]
    fn next(&mut self) -> Option<(u16, Piece)> {
        while self.now.len == 0 {
            self.now = self.io_ranges.next()?;
        }
        let IoRange { offset, len, buf } = self.now;
        let (part, place) = self.file.locate(offset);
        let in_block = (len as u64).min(place.left) as usize;
        let len = piece_len(self.op, part.align, place.offset, in_block, buf as usize);
        self.now = IoRange { offset: offset + len as u64, len: self.now.len - len, buf: buf.wrapping_add(len) };
        let lock = if self.op == Op::Write { BlockLocks::index(part.file.key, place.block) } else { 0 };
        let piece = Piece {
            file: part.file,
            op: self.op,
            class: self.class,
            lock,
            len: len as u32,
            token: 0,
            tag: 0,
            offset: place.offset,
            memory: Memory::one(buf),
        };
        Some((part.drive, piece))
    }
}

/// The position of a page relative to the page before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// Directly after it in the same part: one piece can move both.
    Behind,
    /// Elsewhere.
    Apart,
    /// Across pages of its part, or in several parts. It takes pieces of its own.
    Across,
}

impl FileState {
    /// The number of bytes of a page in its part: a whole page, except at the end of a part that is open for reading
    /// only, and of a plain file.
    pub fn page_bytes(&self, page: u64) -> usize {
        // Bytes below the length are in the parts (rule 1 of the length).
        // The pages of a small file are whole.
        if (page + 1) * PAGE_BYTES as u64 <= self.len() || self.backing.is_small() {
            return PAGE_BYTES;
        }
        if self.is_list() {
            return self.len().saturating_sub(page * PAGE_BYTES as u64).clamp(1, PAGE_BYTES as u64) as usize;
        }
        let (part, place) = self.locate(page * PAGE_BYTES as u64);
        part.has().saturating_sub(place.offset).clamp(1, PAGE_BYTES as u64) as usize
    }

    /// The number of bytes to write for pages of one block. The last page of a plain file without direct I/O is
    /// partial.
    pub fn written_bytes(&self, page: u64, pages: usize) -> usize {
        let whole = pages * PAGE_BYTES;
        if !self.is_plain() {
            return whole;
        }
        let (part, place) = self.locate(page * PAGE_BYTES as u64);
        match part.has().checked_sub(place.offset) {
            // A write in progress has made the file long enough before it changed the page.
            Some(has) if has > 0 && !part.align.is_direct() => whole.min(has as usize),
            _ => whole,
        }
    }

    /// The position of a page of a list relative to the page before it.
    pub fn lies(&self, page: u64) -> Lies {
        let (_, place) = self.locate(page * PAGE_BYTES as u64);
        if !place.offset.is_multiple_of(PAGE_BYTES as u64) || place.left < self.page_bytes(page) as u64 {
            return Lies::Across;
        }
        // A file, and a block, begins at a page's edge.
        if place.offset.is_multiple_of(self.block_bytes()) { Lies::Apart } else { Lies::Behind }
    }

    /// The piece that moves `len` bytes of one block, from the start of `page` on, and its drive.
    pub fn page_piece(&self, op: Op, class: Class, page: u64, len: usize, memory: Memory) -> (u16, Piece) {
        let (part, place) = self.locate(page * PAGE_BYTES as u64);
        let lock = BlockLocks::index(part.file.key, place.block);
        let piece = Piece { op, class, lock, len: len as u32, offset: place.offset, memory, ..Piece::sync(part.file) };
        (part.drive, piece)
    }
}

/// The length in bytes of the next piece of a range within one block, by the bounds of `drive::Piece`.
#[inline]
fn piece_len(op: Op, align: Alignment, offset: u64, len: usize, address: usize) -> usize {
    if !align.is_direct() {
        return len.min(PIECE_BYTES);
    }
    let into_page = offset as usize % PAGE_BYTES;
    let misaligned = |address: usize| !address.is_multiple_of(align.memory as usize);
    if into_page == 0 {
        let whole = len - len % PAGE_BYTES;
        return match op {
            _ if whole > 0 && !misaligned(address) => whole.min(PIECE_BYTES),
            Op::Write if whole > 0 => whole.min(BOUNCE_BYTES),
            Op::Write => len,
            _ => len.min(BOUNCE_BYTES),
        };
    }
    let to_edge = PAGE_BYTES - into_page;
    if op == Op::Write || len <= to_edge {
        return len.min(to_edge);
    }
    if into_page + len <= BOUNCE_BYTES {
        return len;
    }
    // A long read: up to the page edge through a bounce page if the rest can go without one, else a whole bounce
    // buffer.
    if misaligned(address + to_edge) { BOUNCE_BYTES - into_page } else { to_edge }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::property::check;

    const DIRECT: Alignment = Alignment { offset: 4096, memory: 512 };
    /// Drives of large sectors under an old kernel, and zram.
    const STRICT: Alignment = Alignment { offset: 4096, memory: 4096 };

    /// Pieces make progress and are what `Piece` promises.
    #[test]
    fn pieces_are_as_promised() {
        let make = |bytes: &mut arbitrary::Unstructured<'_>| {
            let (offset, len) =
                (bytes.int_in_range(0..=(1u64 << 20) - 1)?, bytes.int_in_range(1..=(1usize << 20) - 1)?);
            let (address, write) = (bytes.int_in_range(0..=(1usize << 14) - 1)?, bytes.arbitrary::<bool>()?);
            Ok((offset, len, address, write, bytes.int_in_range(0..=2usize)?))
        };
        check(256, make, |(offset, len, address, write, kind)| {
            let (op, align) = (if write { Op::Write } else { Op::Read }, [Alignment::NONE, DIRECT, STRICT][kind]);
            let demand = align.memory as usize;
            let (mut offset, mut left, mut address) = (offset, len, address);
            while left > 0 {
                let n = piece_len(op, align, offset, left, address);
                assert!(n > 0 && n <= left);
                let first = offset as usize % PAGE_BYTES;
                let pages = (first + n).next_multiple_of(PAGE_BYTES);
                let direct =
                    kind == 0 || (first == 0 && n.is_multiple_of(PAGE_BYTES) && address.is_multiple_of(demand));
                if direct {
                    assert!(n <= PIECE_BYTES);
                } else {
                    assert!(pages <= BOUNCE_BYTES);
                    assert!(!write || pages == PAGE_BYTES || (first == 0 && n.is_multiple_of(PAGE_BYTES)));
                }
                offset += n as u64;
                address += n;
                left -= n;
            }
        });
    }

    #[test]
    fn an_aligned_long_transfer_is_never_bounced() {
        assert_eq!(piece_len(Op::Read, DIRECT, 8192, 1 << 20, 512), PIECE_BYTES);
        assert_eq!(piece_len(Op::Read, DIRECT, 4000, 1 << 20, 416), 96, "the edge, so that the rest is aligned");
        assert_eq!(piece_len(Op::Write, DIRECT, 4000, 1 << 20, 1), 96);
        assert_eq!(piece_len(Op::Read, DIRECT, 100, 128, 7), 128);
        assert_eq!(piece_len(Op::Read, DIRECT, 4090, 128, 7), 128, "one bounced read over the page edge");
    }
}
