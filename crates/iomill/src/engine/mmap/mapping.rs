//! A mapped part, with address space far beyond its end, so that the part can grow without a new mapping.
//!
//! Goals: an address that stays the same while the part fits. Non-goals: which threads may use the mapping, and when
//! ([`super::epochs`]).
//!
//! Linux lets a mapping reach beyond the end of its file. Access to pages there raises SIGBUS until the file has grown
//! over them, and again after it was cut. So neither growth nor a cut changes the mapping. The length that is noted
//! here is a hint, and may be wrong at any time.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::persist::Persist;
use crate::sys::fs::Handle;
use crate::sys::memory::page_bytes;
use crate::sys::sync::{AtomicU64, Ordering};

/// The address space for a part: `RESERVE_TIMES` its size, and at least `RESERVE_LEAST_BYTES`. Where the system has
/// less, half of that, and so on.
const RESERVE_LEAST_BYTES: u64 = 16 << 30;
const RESERVE_TIMES: u64 = 4;

/// One mapping of a part. A drop unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The start of `reserved` bytes of address space that this value alone owns. The file is mapped to all of them.
    base: *mut u8,
    /// In bytes: whole pages, and never 0.
    reserved: u64,
    /// The file's length as the kernel last gave it, rounded down to whole pages; at most `reserved`.
    len: AtomicU64,
    /// Whether the mapping may be written to: the part is open for writing.
    pub(super) is_writable: bool,
    /// Set if the file is memory itself (DAX with `MAP_SYNC`). Lines that were written back are then durable.
    pub(super) persist: Option<Persist>,
}

// SAFETY: the mapping belongs to no thread. Only copies that tolerate other accesses touch its bytes (`super::copy`).
unsafe impl Send for Mapping {}
// SAFETY: as above. No field changes but the atomic one.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of `size` bytes, with room to grow if there is address space for it.
    pub(super) fn new(file: Handle, size: u64) -> io::Result<Mapping> {
        let page = page_bytes() as u64;
        let least = size.checked_next_multiple_of(page).filter(|least| *least > 0).ok_or(Errno::INVAL)?;
        let mut reserve = size.saturating_mul(RESERVE_TIMES).clamp(RESERVE_LEAST_BYTES, 1 << 46).max(least);
        loop {
            let reserved = reserve / page * page;
            match map(file, usize::try_from(reserved).map_err(|_| Errno::NOMEM)?) {
                Ok((base, is_writable, persist)) => {
                    let len = AtomicU64::new(size / page * page);
                    return Ok(Mapping { base, reserved, len, is_writable, persist });
                }
                Err(Errno::NOMEM | Errno::OVERFLOW | Errno::INVAL) if reserve > least => {
                    reserve = (reserve / 2).max(least);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The address of the byte at `offset`. [`Mapping::len`] covers that byte, or covered it a moment ago.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.reserved);
        self.base.wrapping_add(offset as usize)
    }

    /// The bytes that may be copied: the file's length as last known, in whole pages. A partial last page is left out:
    /// beyond the file's end a copy would read zeroes, while a system call reports the end.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// The largest size of the part for which this mapping is enough, in bytes.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Notes the file's size.
    pub(super) fn measured(&self, size: u64) {
        let page = page_bytes() as u64;
        self.len.store(size.min(self.reserved) / page * page, Ordering::Relaxed);
    }

    /// Forgets the length after a page was missing, so that the next request asks for the file's length.
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

/// Maps `len` bytes, for writing if the file is open for writing. Uses `MAP_SYNC` where it works, also for reading: it
/// works only on memory, and so tells memory from drives.
fn map(file: Handle, len: usize) -> Result<(*mut u8, bool, Option<Persist>), Errno> {
    if file.0 < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: a descriptor of an open part (contract of `Engine::push`), not negative, used for these calls alone.
    let fd = unsafe { BorrowedFd::borrow_raw(file.0) };
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
    let try_map = |access, flags| unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let persist = Persist::of_this_processor();
    if persist.is_some() {
        // Files on drives refuse the flag by one errno or another. The mapping without it, below, shows other errors.
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        match try_map(both, synchronous) {
            Ok(base) => return Ok((base.cast(), true, persist)),
            Err(Errno::ACCESS | Errno::PERM) => {
                if let Ok(base) = try_map(ProtFlags::READ, synchronous) {
                    return Ok((base.cast(), false, persist));
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
