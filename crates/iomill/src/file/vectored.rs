//! [`VectoredWrite`]: a vectored write, cut so that every page is written once and as a whole. Non-goals: vectored
//! reads.

use std::io::IoSlice;

use super::split::IoRange;
use crate::drive::PAGE_BYTES;

/// The I/O ranges of a vectored write. A page that several buffers share is copied together, so that one piece writes
/// it.
pub struct VectoredWrite {
    /// One after the other; none ends within a page that the next one begins in.
    pub io_ranges: Vec<IoRange>,
    /// The pages that were copied together. I/O ranges point into them.
    shared: Vec<Vec<u8>>,
}

impl VectoredWrite {
    /// Cuts `bufs`, which are written one after the other from `offset` on, in bytes.
    pub fn new(bufs: &[IoSlice<'_>], offset: u64) -> VectoredWrite {
        let mut write = VectoredWrite { io_ranges: Vec::with_capacity(bufs.len()), shared: Vec::new() };
        let mut at = offset;
        // The bytes of the page that ends after `at`, copied so far.
        let mut page: Vec<u8> = Vec::new();
        for buf in bufs {
            let mut bytes = &buf[..];
            if !page.is_empty() {
                let (head, rest) = bytes.split_at(bytes.len().min(to_page_end(at)));
                page.extend_from_slice(head);
                at += head.len() as u64;
                bytes = rest;
                if at.is_multiple_of(PAGE_BYTES as u64) {
                    write.push_shared(&mut page, at);
                }
            }
            // Now either `bytes` or `page` is empty.
            let tail = (at as usize + bytes.len()) % PAGE_BYTES;
            let (whole, rest) = bytes.split_at(bytes.len().saturating_sub(tail));
            if !whole.is_empty() {
                write.io_ranges.push(IoRange { offset: at, len: whole.len(), buf: whole.as_ptr().cast_mut() });
            }
            page.extend_from_slice(rest);
            at += bytes.len() as u64;
        }
        if !page.is_empty() {
            write.push_shared(&mut page, at);
        }
        write
    }

    /// Takes over a copied page that ends at `end`.
    fn push_shared(&mut self, page: &mut Vec<u8>, end: u64) {
        let page = std::mem::take(page);
        let io_range = IoRange { offset: end - page.len() as u64, len: page.len(), buf: page.as_ptr().cast_mut() };
        self.io_ranges.push(io_range);
        self.shared.push(page);
    }
}

/// From an offset to the end of its page, in bytes.
fn to_page_end(offset: u64) -> usize {
    PAGE_BYTES - (offset % PAGE_BYTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::property::{check, list};

    /// A vectored write is cut at page edges only, and misses and changes nothing.
    #[test]
    fn vectored_buffers_share_no_page() {
        let len = |bytes: &mut arbitrary::Unstructured<'_>| match bytes.int_in_range(0..=2)? {
            0 => bytes.int_in_range(0..=9usize),
            1 => bytes.int_in_range(0..=5999),
            _ => Ok(4096),
        };
        let make = |bytes: &mut arbitrary::Unstructured<'_>| {
            Ok((bytes.int_in_range(0..=3 * 4096 - 1u64)?, list(bytes, 0..=7, len)?))
        };
        check(256, make, |(offset, lens)| {
            let total: usize = lens.iter().sum();
            let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
            let mut rest = &bytes[..];
            let bufs: Vec<IoSlice<'_>> = lens
                .iter()
                .map(|len| {
                    let (buf, more) = rest.split_at(*len);
                    rest = more;
                    IoSlice::new(buf)
                })
                .collect();
            let write = VectoredWrite::new(&bufs, offset);
            let mut at = offset;
            for io_range in &write.io_ranges {
                assert_eq!(io_range.offset, at);
                assert!(io_range.len > 0);
                assert!(at == offset || at % 4096 == 0);
                // SAFETY: the I/O range is part of `bytes` or of a page of `write`; both live.
                let there = unsafe { std::slice::from_raw_parts(io_range.buf, io_range.len) };
                assert_eq!(there, &bytes[(at - offset) as usize..][..io_range.len]);
                at += io_range.len as u64;
            }
            assert_eq!(at, offset + total as u64);
        });
    }
}
