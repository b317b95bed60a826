//! [`Sparse`]: the bytes that a file should have, of any length. Bytes that were not written are zero.

use std::collections::BTreeMap;

pub const PAGE: u64 = 4096;

#[derive(Default)]
pub struct Sparse {
    len: u64,
    /// The written pages by their numbers. Bytes past `len` are zero.
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Sparse {
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The bytes of a range that are within the file.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = self.len.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        for (page, within, range) in pieces(offset, len) {
            if let Some(page) = self.pages.get(&page) {
                bytes[range.clone()].copy_from_slice(&page[within..within + range.len()]);
            }
        }
        bytes
    }

    /// Writes a range, and makes the file as long as that takes. A range without bytes does nothing.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, range) in pieces(offset, bytes.len()) {
            let page = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[within..within + range.len()].copy_from_slice(&bytes[range]);
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            drop(self.pages.split_off(&len.div_ceil(PAGE)));
            if let Some(page) = self.pages.get_mut(&(len / PAGE)) {
                page[(len % PAGE) as usize..].fill(0);
            }
        }
        self.len = len;
    }

    /// The offsets of the written pages.
    pub fn offsets(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().map(|page| page * PAGE)
    }

    /// Whether all bytes of a range are zero.
    pub fn is_zero(&self, start: u64, end: u64) -> bool {
        let pages = if start < end { start / PAGE..end.div_ceil(PAGE) } else { 0..0 };
        self.pages.range(pages).all(|(page, bytes)| {
            let from = start.saturating_sub(page * PAGE) as usize;
            let to = (end - page * PAGE).min(PAGE) as usize;
            bytes[from..to].iter().all(|byte| *byte == 0)
        })
    }
}

/// The bytes of a write. They depend on their offsets, so ranges of one call that overlap agree.
pub fn content(offset: u64, len: usize, salt: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_add(salt << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..len as u64).map(|index| byte(offset.wrapping_add(index))).collect()
}

/// A range cut at pages: the number of each page, the first byte in it, and the range of the bytes.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (start, at) = (done, offset + done as u64);
        let room = (PAGE - at % PAGE) as usize;
        done = len.min(start + room);
        (start < done).then_some((at / PAGE, (at % PAGE) as usize, start..done))
    })
}
