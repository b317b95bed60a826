//! [`Span`]: a part of a call's range, cut at page edges. [`Want`]: the purpose of the call. Non-goals: I/O, which is
//! done in pieces.

use crate::drive::PAGE_BYTES;
use crate::file::split::IoRange;

/// A range within one page, and the caller's memory for it.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The page's number in its file.
    pub page: u64,
    /// Where the range begins in it, in bytes.
    pub within: u16,
    /// Length in bytes: at most to the page's end.
    pub len: u16,
    /// The memory.
    pub buf: *mut u8,
}

// SAFETY: a span describes memory. A caller that passes it to another thread keeps that memory valid, as for a piece.
unsafe impl Send for Span {}
// SAFETY: as above; only unsafe code reaches the memory through it.
unsafe impl Sync for Span {}

impl Span {
    /// A page without memory, for `Want::Touch` and `Want::Ahead`.
    pub fn of_page(page: u64) -> Span {
        Span { page, within: 0, len: 0, buf: std::ptr::null_mut() }
    }

    /// Offset in the file in bytes.
    pub fn offset(&self) -> u64 {
        self.page * PAGE_BYTES as u64 + u64::from(self.within)
    }

    /// The same as an I/O range.
    pub fn io_range(&self) -> IoRange {
        IoRange { offset: self.offset(), len: usize::from(self.len), buf: self.buf }
    }
}

/// Cuts an I/O range at page edges.
#[inline]
pub fn spans(io_range: IoRange) -> impl Iterator<Item = Span> + Clone {
    let mut rest = io_range;
    std::iter::from_fn(move || {
        if rest.len == 0 {
            return None;
        }
        let within = rest.offset as usize % PAGE_BYTES;
        let len = rest.len.min(PAGE_BYTES - within);
        let span =
            Span { page: rest.offset / PAGE_BYTES as u64, within: within as u16, len: len as u16, buf: rest.buf };
        rest = IoRange { offset: rest.offset + len as u64, len: rest.len - len, buf: rest.buf.wrapping_add(len) };
        Some(span)
    })
}

/// The purpose for which a call needs pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// To copy from them.
    Read,
    /// To copy into them.
    Write,
    /// To cache them, because the call is about to use them in place.
    Touch,
    /// To cache them, because a call may need them soon. No call waits for that. So busy pages, and pages with a full
    /// set, are skipped.
    Ahead,
}
