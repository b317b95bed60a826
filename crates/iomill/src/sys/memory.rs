//! Page-aligned memory.
//!
//! Goals: zeroed memory that direct I/O accepts; an error instead of an abort if there is no memory. A [`PageBuf`] has
//! a fixed size. A [`Slab`] grows and shrinks within a reservation. Non-goals: pooling.

mod slab;

use std::fmt;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

pub use slab::{NodePolicy, SLAB_ALIGN_BYTES, Slab, page_bytes};

/// The least size of memory that uses huge pages. Two of the usual size, so that at least one is aligned.
const HUGE_FROM_BYTES: usize = 4 << 20;

/// An anonymous mapping: page-aligned, zeroed, unmapped on drop.
pub struct PageBuf {
    /// The start of a mapping of `mapped` bytes, which this value alone owns.
    start: NonNull<u8>,
    /// The requested length in bytes; at most `mapped`.
    len: usize,
    /// The mapped length in bytes: whole pages, and never 0.
    mapped: usize,
}

// SAFETY: only this value owns the mapping, and a shared reference gives only read access.
unsafe impl Send for PageBuf {}
// SAFETY: as above.
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// Maps `len` bytes of zeroes.
    ///
    /// # Errors
    /// `len` is 0, or is larger than any address space, or there is no memory.
    pub fn new(len: usize) -> io::Result<PageBuf> {
        let page = page_bytes();
        let mapped = len.checked_next_multiple_of(page).filter(|bytes| *bytes > 0 && *bytes <= isize::MAX as usize);
        let Some(mapped) = mapped else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cannot map {len} bytes of memory")));
        };
        // SAFETY: a new private mapping at an address that the kernel chooses touches no memory that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        if mapped >= HUGE_FROM_BYTES {
            // SAFETY: the range is the mapping just made, and advice changes no byte. A kernel without huge pages
            // answers EINVAL, and small pages work as well.
            let _advised = unsafe { rustix::mm::madvise(start, mapped, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(PageBuf { start, len, mapped })
    }

    /// Binds the memory, untouched so far, to a node.
    pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
        slab::bind(self.start.as_ptr(), self.mapped, node, policy)
    }

    /// Returns the memory from byte `from` on to the system, in whole pages. It reads as zero afterwards.
    ///
    /// # Safety
    /// During the call no thread accesses these bytes except by atomic operations.
    pub unsafe fn release_from(&self, from: usize) -> io::Result<()> {
        let from = from.next_multiple_of(page_bytes());
        if from >= self.mapped {
            return Ok(());
        }
        // SAFETY: the range lies in the mapping, and by the caller's promise no code relies on its bytes.
        unsafe {
            let start = self.start.as_ptr().add(from);
            rustix::mm::madvise(start.cast(), self.mapped - from, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }

    /// The requested length in bytes; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are mapped and initialised (to zero) while `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, for changes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The address, for engines. It stays the same and valid while `self` lives.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "unmapping own memory cannot fail");
    }
}

impl fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBuf").field("start", &self.start).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_writable() {
        for len in [1, 4096, 5000, HUGE_FROM_BYTES + 1] {
            let mut buf = PageBuf::new(len).unwrap();
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_mut_ptr() as usize % 4096, 0);
            assert!(buf.as_slice().iter().all(|byte| *byte == 0));
            buf.as_mut_slice()[len - 1] = 7;
            assert_eq!(buf.as_slice()[len - 1], 7);
        }
    }

    #[test]
    fn senseless_lengths_are_errors() {
        assert_eq!(PageBuf::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(PageBuf::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(PageBuf::new(isize::MAX as usize - 8192).is_err(), "no machine has that much");
    }
}
