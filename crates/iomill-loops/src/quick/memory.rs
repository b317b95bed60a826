//! Memory from the kernel: aligned buffers for direct I/O, and mapped files.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::slice;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::pages::PAGE_BYTES;

/// Anonymous memory, or the start of a file. It is aligned to pages, and unmapped on drop.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Start of a mapping of `len` bytes. Only this value unmaps it.
    start: *mut u8,
    len: usize,
}

impl Memory {
    /// Zeroed memory of `len` bytes, which is not 0.
    pub(crate) fn anonymous(len: usize) -> Result<Memory, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }?.cast::<u8>();
        let mut memory = Memory { start, len };
        // From here on no access faults.
        memory.bytes_mut().fill(0);
        Ok(memory)
    }

    /// The first `len` bytes of a file, for reading, without read-ahead. `len` is not 0. With `is_populated` all pages
    /// come into memory now. A read raises SIGBUS if the file is cut later or its drive fails.
    pub(crate) fn file(file: &File, len: usize, is_populated: bool) -> Result<Memory, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0) }?;
        let memory = Memory { start: start.cast(), len };
        // SAFETY: the range is this mapping, and the advice changes no bytes.
        unsafe { madvise(start, len, Advice::Random) }?;
        if is_populated {
            // SAFETY: as above.
            match unsafe { madvise(start, len, Advice::LinuxPopulateRead) } {
                // Linux before 5.14 does not have this advice. The reads below then map the pages.
                Err(Errno::INVAL) | Ok(()) => {}
                Err(error) => return Err(error),
            }
            // A virtual machine may get the memory behind a page only at its first read.
            memory.bytes().iter().step_by(PAGE_BYTES).for_each(|byte| _ = std::hint::black_box(*byte));
        }
        Ok(memory)
    }

    /// The start. A caller that hands it to the kernel uses no slice of the memory meanwhile.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// All bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start + len` is mapped readable for as long as `self` lives. Nothing writes to the measured
        // file. The kernel writes to anonymous memory through `as_ptr`, but not while a slice of it exists.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// All bytes of anonymous memory.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. `&mut self` makes it the only slice. Only owners of anonymous memory, which is
        // writable, call this.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no slice of it outlives `self`. Unmapping a whole mapping cannot
        // fail.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
