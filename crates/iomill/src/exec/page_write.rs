//! [`PageWrite`]: a write of whole pages to a place of a drive. Non-goals: the I/O (`pages`).

use crate::engine::FileRef;

/// Bytes for whole pages of one drive. Zeroes fill the last page.
#[derive(Clone, Copy, Debug)]
pub struct PageWrite<'a> {
    /// The index of the drive.
    pub drive: u16,
    /// The file, which is open until the write has ended.
    pub file: FileRef,
    /// The offset in the file in bytes, a multiple of a page.
    pub offset: u64,
    /// At most 64 KiB.
    pub bytes: &'a [u8],
}
