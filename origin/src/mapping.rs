//! [`Mapping`]: a file in shared memory, as words that all its processes read and write. Non-goals: what
//! the words mean (`index`).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// See the module.
#[derive(Debug)]
pub struct Mapping {
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the words are atomics in memory of this mapping alone, which lives until the drop. All threads may use them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `words` of a file. The file has blocks for all of them: a touch of a page without a block on a
    /// full file system ends the process.
    pub fn new(file: &File, words: usize) -> io::Result<Mapping> {
        let bytes = words.checked_mul(8).filter(|bytes| *bytes > 0).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address where nothing is mapped, so no memory of the process changes.
        let address = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let words_at = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { words: words_at, len: words })
    }
}

impl Deref for Mapping {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words from its first page on, which is aligned. They are mapped until the drop,
        // and the slice borrows from `self`. Other processes change them only as atomics of the same size, by this
        // code. A word is valid with any bits.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the address and the length are those of the mapping, and no slice of it is left, because all borrow
        // from `self`.
        let unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.len * 8) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_of_a_file_are_one_memory() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let (one, other) = (Mapping::new(&file, 512).unwrap(), Mapping::new(&file, 512).unwrap());
        one[511].store(7, Relaxed);
        assert_eq!(other[511].load(Relaxed), 7);
        assert!(Mapping::new(&file, 0).is_err());
    }
}
