//! A part that is mapped, with address space far beyond its end, so that it can grow without a new mapping.
//!
//! Goals: an address that stays while the part fits. Non-goals: which threads may use the mapping, and when
//! ([`super::epochs`]).
//!
//! Linux lets a mapping reach beyond the end of its file. Pages there raise SIGBUS until the file has grown over them,
//! and again when it has been cut. So neither growth nor a cut changes the mapping. Its length is a hint that may be
//! wrong at any time.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::flush::LineFlush;
use crate::sys::fs::Handle;
use crate::sys::memory::page_bytes;
use crate::sys::sync::{AtomicU64, Ordering};

/// The least address space for a part, and how many times the part's present size. Half of that, and so on, where the
/// system has less.
const RESERVE_LEAST_BYTES: u64 = 16 << 30;
const RESERVE_TIMES: u64 = 4;

/// One mapping of a part. A drop unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Start of `reserved` bytes of address space that only this value owns. The file is mapped to all of them.
    base: *mut u8,
    /// Whole pages; never 0.
    reserved: u64,
    /// Bytes that the file had when it was last asked, in whole pages; at most `reserved`.
    len: AtomicU64,
    /// Whether it may be written to: the part is open for writing.
    pub(super) is_writable: bool,
    /// Set if the file is memory itself (DAX with `MAP_SYNC`). Then lines that were written back are durable.
    pub(super) flush: Option<LineFlush>,
}

// SAFETY: the mapping belongs to no thread. Only copies that tolerate other accesses touch its bytes (`super::copy`).
unsafe impl Send for Mapping {}
// SAFETY: as above. The fields do not change, except an atomic one.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part that has so many bytes, with room to grow if there is address space for it.
    pub(super) fn new(file: Handle, size: u64) -> io::Result<Mapping> {
        let page = page_bytes() as u64;
        let least = size.checked_next_multiple_of(page).filter(|least| *least > 0).ok_or(Errno::INVAL)?;
        let mut reserve = size.saturating_mul(RESERVE_TIMES).clamp(RESERVE_LEAST_BYTES, 1 << 46).max(least);
        loop {
            let reserved = reserve / page * page;
            match map(file, usize::try_from(reserved).map_err(|_| Errno::NOMEM)?) {
                Ok((base, is_writable, flush)) => {
                    let len = AtomicU64::new(size / page * page);
                    return Ok(Mapping { base, reserved, len, is_writable, flush });
                }
                Err(Errno::NOMEM | Errno::OVERFLOW | Errno::INVAL) if reserve > least => {
                    reserve = (reserve / 2).max(least);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The address of a byte that [`Mapping::len`] covers, or covered a moment ago.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.reserved);
        self.base.wrapping_add(offset as usize)
    }

    /// Bytes that are known to be there, in whole pages. A file's last, partial page would read as zeroes beyond the
    /// file's end, while a system call reports the end.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes that the part can have without a new mapping.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Notes the file's size.
    pub(super) fn measured(&self, size: u64) {
        let page = page_bytes() as u64;
        self.len.store(size.min(self.reserved) / page * page, Ordering::Relaxed);
    }

    /// A page was missing: the next request asks for the file's length.
    pub(super) fn distrust(&self) {
        self.len.store(0, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and its readers have left (`super::epochs`, rule 3).
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.reserved as usize) };
        debug_assert!(unmapped.is_ok(), "unmapping an own mapping cannot fail");
    }
}

/// Maps so many bytes, for writing if the file is open for writing. It uses `MAP_SYNC` where that works, also for
/// reading, because that tells memory from drives.
fn map(file: Handle, len: usize) -> Result<(*mut u8, bool, Option<LineFlush>), Errno> {
    if file.0 < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: a descriptor of a part that is open (contract of `Engine::push`), not negative, used for these calls alone.
    let fd = unsafe { BorrowedFd::borrow_raw(file.0) };
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
    let try_map = |access, flags| unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let flush = LineFlush::of_this_processor();
    if flush.is_some() {
        // Every other kind of file refuses this flag, in one way or another. Real errors show below.
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        match try_map(both, synchronous) {
            Ok(base) => return Ok((base.cast(), true, flush)),
            Err(Errno::ACCESS | Errno::PERM) => {
                if let Ok(base) = try_map(ProtFlags::READ, synchronous) {
                    return Ok((base.cast(), false, flush));
                }
            }
            Err(_) => {}
        }
    }
    match try_map(both, MapFlags::SHARED) {
        Ok(base) => Ok((base.cast(), true, None)),
        // The file is open for reading only, or sealed.
        Err(Errno::ACCESS | Errno::PERM) => Ok((try_map(ProtFlags::READ, MapFlags::SHARED)?.cast(), false, None)),
        Err(error) => Err(error),
    }
}
