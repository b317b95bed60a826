//! Memory from the kernel: aligned buffers for direct I/O, and mapped files.
//!
//! Goals: page-aligned, unmapped on drop, in huge pages if the kernel has them. Non-goals: a general allocator.

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::slice;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::pattern::PAGE_BYTES;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Anonymous or file memory, page-aligned.
#[derive(Debug)]
pub(crate) struct Region {
    /// Start of a mapping of `len` bytes. Only this region unmaps it.
    start: *mut u8,
    len: usize,
}

// SAFETY: a region owns its mapping; access goes through `&self` and `&mut self` as for a boxed slice.
unsafe impl Send for Region {}
// SAFETY: as above; `&self` gives only shared slices and a pointer. Its use needs the caller's own `unsafe`.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of at least `len` bytes, faulted in.
    pub(crate) fn anonymous(len: usize) -> Result<Region, Errno> {
        let len = len.next_multiple_of(HUGE_PAGE_BYTES);
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }?.cast::<u8>();
        let mut region = Region { start, len };
        // SAFETY: the range is this region's own. Without huge pages the memory works as well, only slower.
        let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        region.bytes_mut().fill(0);
        Ok(region)
    }

    /// The first `len` bytes of a file, for reading, without read-ahead. After a later cut of the file a read raises
    /// SIGBUS.
    pub(crate) fn file(file: &File, len: usize) -> Result<Region, Errno> {
        let region = Region::file_as_it_comes(file, len)?;
        // SAFETY: the range is this region's own, and the advice changes no bytes.
        unsafe { madvise(region.start.cast(), len, Advice::Random) }?;
        Ok(region)
    }

    /// The same without any advice to the kernel.
    pub(crate) fn file_as_it_comes(file: &File, len: usize) -> Result<Region, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), 0) }?;
        Ok(Region { start: start.cast(), len })
    }

    /// Makes the kernel map only small pages from now on, and no huge ones.
    pub(crate) fn keep_small_pages(&self) -> Result<(), Errno> {
        // SAFETY: the range is this region's own, and the advice changes no bytes.
        unsafe { madvise(self.start.cast(), self.len, Advice::LinuxNoHugepage) }
    }

    /// Maps all pages for reading now, and reads a byte of each. A virtual machine may get the memory behind a page
    /// only at its first read, without a fault in the guest.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        // SAFETY: the range is this region's own, and the advice changes no bytes.
        match unsafe { madvise(self.start.cast(), self.len, Advice::LinuxPopulateRead) } {
            // Linux before 5.14 does not have this advice. The read below then maps the page.
            Err(Errno::INVAL) | Ok(()) => {}
            Err(error) => return Err(error),
        }
        self.bytes().iter().step_by(PAGE_BYTES).for_each(|byte| _ = std::hint::black_box(*byte));
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// The whole mapping. If the kernel writes to the memory, call this only while it does not.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start + len` is mapped readable for as long as `self` lives.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }

    /// The whole mapping, for anonymous regions only. The condition of `bytes` holds here too.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only slice. Callers use it for anonymous regions only.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own, and no slice of it outlives `self`. The call cannot fail for a
        // whole mapping, and drop could do nothing about it.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
